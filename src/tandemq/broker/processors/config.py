"""Operators read and change the settings of a running broker.

A change is made whole or not at all, and holds at once; `Broker.reconfigure` hands it to all who keep settings, and
`changes` keeps it over restarts.
Source: docs/reference/configuration.md, "changes while running"; RocketMQ AdminBrokerProcessor.
"""

import logging
from typing import TYPE_CHECKING

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.files import as_properties, changed
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler

log = logging.getLogger(__name__)


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Settings(broker)
    return {Code.GET_BROKER_CONFIG: on.read, Code.UPDATE_BROKER_CONFIG: on.change}


class _Settings:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def read(self, _link: Link, command: Command, _now: Now) -> Command | None:
        version = dumps(self._broker.config_version.as_json()).decode()
        body = as_properties(self._broker.config).encode()
        return command.answer(ResponseCode.SUCCESS, fields={"version": version}, body=body)

    def change(self, link: Link, command: Command, now: Now) -> Command | None:
        try:
            config, keys = changed(self._broker.config, command.body.decode())
        except UnicodeDecodeError:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="the settings are not UTF-8")
        except ConfigError as error:
            return command.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        if keys:
            self._broker.changes.note(self._broker.config, config, keys)
            self._broker.reconfigure(config, now)
            log.warning("settings: changed by %s: %s", link.peer, ", ".join(keys))
        return command.answer(ResponseCode.SUCCESS)
