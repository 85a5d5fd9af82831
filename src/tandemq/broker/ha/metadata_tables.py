"""The tables that a slave copies from its master.

A table goes in one frame, as 4.9 asks for it. Topics and their attributes are limited so that theirs fits (`topics`);
any table that does not is answered with an error, because a frame above the limit would end the slave's connection.
Source: docs/reference/requests.md, "all codes"; RocketMQ AdminBrokerProcessor.
"""

from typing import Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Handler, Link
from tandemq.broker.kernel.context import CurrentConfig, CurrentTurn
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.progress_table import ProgressTable
from tandemq.broker.kernel.serving import Serving
from tandemq.broker.send.processor import SendPath
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topics
from tandemq.codec.remoting.fastjson import dumps, dumps_java
from tandemq.codec.remoting.frame import FRAME_BYTES_MAX
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.store import Store

ATTRIBUTE_DEFECT_VERSIONS = (477, 479)
"""Versions (5.3.2, 5.3.3) of Java slaves that fail on topics or groups with attributes: they get them without."""
HEADER_BYTES = 64 * 1024
"""Part of a frame that is kept for its header."""


class MetadataTablesProcessor(Feature):
    """Serve the tables that slaves copy, and the facts by which peers recognise this broker."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delay: ProgressTable,
        send: SendPath,
        current: CurrentConfig,
        turn: CurrentTurn,
    ) -> None:
        """Take the collaborators; nothing is read yet."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._send = send
        self._current = current
        self._turn = turn

    def handlers(self) -> dict[Code, Handler]:
        """Return the handlers by request code."""
        return {
            Code.GET_ALL_TOPIC_CONFIG: self._on_topics,
            Code.GET_ALL_CONSUMER_OFFSET: self._on_offsets,
            Code.GET_ALL_DELAY_OFFSET: self._on_delays,
            Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self._on_groups,
            Code.GET_ALL_MESSAGE_REQUEST_MODE: self._on_request_modes,
            Code.TANDEM_PEER_INFO: self._on_peer_info,
        }

    def _on_topics(self, _link: Link, command: Command, _now: Now) -> Command | None:
        table = _plain(self._topics.as_json(), "topicConfigTable", command)
        return _answer(command, dumps(table | self._topics.mappings.for_slaves()))

    def _on_groups(self, _link: Link, command: Command, _now: Now) -> Command | None:
        table = self._groups.as_json()
        return _answer(command, dumps(_plain(table, "subscriptionGroupTable", command)))

    def _on_offsets(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return _answer(command, dumps_java(self._offsets.for_slaves()))

    def _on_delays(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(ResponseCode.SUCCESS, body=dumps_java(self._delay.as_json()))

    def _on_request_modes(self, _link: Link, command: Command, _now: Now) -> Command | None:
        return command.answer(ResponseCode.SUCCESS, body=dumps({"messageRequestModeMap": {}}))

    def _on_peer_info(self, _link: Link, command: Command, _now: Now) -> Command | None:
        config = self._current.config
        return command.answer(
            ResponseCode.SUCCESS,
            fields={
                "brokerName": config.broker_name,
                "brokerId": str(config.broker_id),
                "role": role_name(self._turn.serving),
                "logStart": str(self._store.log.start),
                "logEnd": str(self._store.log.written_end),
                "refusing": "" if self._send.refusal is None else self._send.refusal[1],
            },
        )


def _answer(command: Command, body: bytes) -> Command:
    if len(body) > FRAME_BYTES_MAX - HEADER_BYTES:
        remark = f"the table has {len(body)} bytes, more than the {FRAME_BYTES_MAX} of a frame; delete what is not used"
        return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
    return command.answer(ResponseCode.SUCCESS, body=body)


def role_name(serving: Serving) -> str:
    """Return the role at this moment, in the words of the setting `brokerRole`."""
    if not serving.is_master:
        return "SLAVE"
    return "SYNC_MASTER" if serving.waits_for_replicas else "ASYNC_MASTER"


def _plain(table: dict[str, Any], entries: str, command: Command) -> dict[str, Any]:
    if command.version in ATTRIBUTE_DEFECT_VERSIONS:
        table[entries] = {
            name: msgspec.structs.replace(config, attributes={}) for name, config in table[entries].items()
        }
    return table
