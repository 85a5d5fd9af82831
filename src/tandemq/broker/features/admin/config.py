"""Requests of operators to read and change the settings of a running broker.

A change is applied completely or not at all, and takes effect at once: `Kernel.reconfigure` passes it to all parts that
keep settings, and `ChangedSettings` keeps it over restarts.
Source: docs/reference/configuration.md, "changes while running"; RocketMQ AdminBrokerProcessor.
"""

import logging
from dataclasses import replace

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.fastjson import dumps
from tandemq.config.files import as_properties, as_texts, changed
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)
READ_BY_TOOLS = {
    "filterServerNums": "0",
    "useTLS": "false",
}
"""Settings of RocketMQ, with their defaults, without which mqadmin's exportConfigs of 4.9 ends with an exception."""


class ConfigProcessor(Feature):
    """Show the settings in force, and change some of them while the broker runs."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._current = kernel.current
        self._changes = kernel.changes
        self._reconfigure = kernel.reconfigure
        self._shown: tuple[BrokerConfig, bytes] | None = None
        """The settings that were shown last, and their text."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.GET_BROKER_CONFIG: Request(self._on_read), Code.UPDATE_BROKER_CONFIG: Request(self._on_change)}

    def _on_read(self, _link: Link, command: Command, _now: Now) -> Command | None:
        version = dumps(self._current.version.as_json()).decode()
        config = self._current.config
        if self._shown is None or self._shown[0] is not config:
            self._shown = config, _text(config)
        return command.answer(ResponseCode.SUCCESS, fields={"version": version}, body=self._shown[1])

    def _on_change(self, link: Link, command: Command, now: Now) -> Command | None:
        try:
            config, keys = changed(self._current.config, command.body.decode())
        except UnicodeDecodeError:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="the settings are not UTF-8")
        except ConfigError as error:
            return command.answer(ResponseCode.NO_PERMISSION, remark=str(error))
        if keys:
            self._changes.note(self._current.config, config, keys)
            self._reconfigure(config, now)
            log.warning("settings: changed by %s: %s", link.peer, ", ".join(keys))
        return command.answer(ResponseCode.SUCCESS)


def _text(config: BrokerConfig) -> bytes:
    if not config.registry_address:
        config = replace(config, role=config.static_role)
    known = as_texts(config)
    missing = "".join(f"{key}={value}\n" for key, value in READ_BY_TOOLS.items() if key not in known)
    return (as_properties(config) + missing).encode()
