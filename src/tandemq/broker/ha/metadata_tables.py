"""The tables a slave copies from its master.

A table goes in one frame, as 4.9 asks for it. Topics and their attributes are limited so that theirs fits (`topics`);
any table that does not is answered with an error, because a frame above the limit would end the slave's connection.
Source: docs/reference/requests.md, "all codes"; RocketMQ AdminBrokerProcessor.
"""

from typing import TYPE_CHECKING, Any

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.codec.remoting.fastjson import dumps, dumps_java
from tandemq.codec.remoting.frame import FRAME_BYTES_MAX
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler

ATTRIBUTE_DEFECT_VERSIONS = (477, 479)
"""Java slaves 5.3.2 and 5.3.3 give up on the first topic or group with attributes: theirs are sent without."""
HEADER_BYTES = 64 * 1024
"""Of a frame, kept for its header."""


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Tables(broker)
    return {
        Code.GET_ALL_TOPIC_CONFIG: on.topics,
        Code.GET_ALL_CONSUMER_OFFSET: on.offsets,
        Code.GET_ALL_DELAY_OFFSET: on.delays,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: on.groups,
        Code.GET_ALL_MESSAGE_REQUEST_MODE: on.request_modes,
        Code.TANDEM_PEER_INFO: on.peer_info,
    }


class _Tables:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def topics(self, _link: Link, command: Command, _now: Now) -> Command | None:
        table = self._broker.topics.as_json()
        return _answer(command, dumps(_plain(table, "topicConfigTable", command)))

    def groups(self, _link: Link, command: Command, _now: Now) -> Command | None:
        table = self._broker.groups.as_json()
        return _answer(command, dumps(_plain(table, "subscriptionGroupTable", command)))

    def offsets(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return _answer(command, dumps_java(self._broker.offsets.as_json()))

    def delays(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(ResponseCode.SUCCESS, body=dumps_java(self._broker.delay.as_json()))

    def request_modes(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(ResponseCode.SUCCESS, body=dumps({"messageRequestModeMap": {}}))

    def peer_info(self, _link: Link, command: Command, _now: Now) -> Command | None:
        config = self._broker.config
        return command.answer(
            ResponseCode.SUCCESS,
            fields={
                "brokerName": config.broker_name,
                "brokerId": str(config.broker_id),
                "role": role_of(self._broker),
                "logStart": str(self._broker.store.log.start),
                "logEnd": str(self._broker.store.log.written_end),
            },
        )


def _answer(command: Command, body: bytes) -> Command:
    if len(body) > FRAME_BYTES_MAX - HEADER_BYTES:
        remark = f"the table has {len(body)} bytes, more than the {FRAME_BYTES_MAX} of a frame; delete what nobody uses"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    return command.answer(ResponseCode.SUCCESS, body=body)


def role_of(broker: "Broker") -> str:
    """The role at this moment, in the words of the settings."""
    if broker.failover is None:
        return broker.config.role
    if not broker.is_master:
        return "SLAVE"
    return "SYNC_MASTER" if broker.is_elect or broker.config.role == "SYNC_MASTER" else "ASYNC_MASTER"


def _plain(table: dict[str, Any], entries: str, command: Command) -> dict[str, Any]:
    if command.version in ATTRIBUTE_DEFECT_VERSIONS:
        for entry in table[entries].values():
            entry["attributes"] = {}
    return table
