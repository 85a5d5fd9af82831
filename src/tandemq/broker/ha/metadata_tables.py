"""Requests of slaves for the tables of their master.

A table goes in one frame, as 4.9 asks for it. Topics and their attributes are limited so that theirs fits (`topics`);
any table that does not is answered with an error, because a frame above the limit would end the slave's connection.
Source: docs/reference/requests.md, "all codes"; RocketMQ AdminBrokerProcessor.
"""

from functools import partial

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.remoting.frame import FRAME_BYTES_MAX
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

HEADER_BYTES = 64 * 1024
"""Part of a frame that is kept for its header."""


class MetadataTablesProcessor(Feature):
    """Serve the tables that slaves copy, and the facts by which peers recognise this broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Serve the tables of all features."""
        self._tables = kernel.features.tables
        self._store = kernel.store
        self._puts = kernel.puts
        self._current = kernel.current
        self._turn = kernel.turn

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {table.code: Request(partial(self._on_table, table)) for table in self._tables} | {
            Code.TANDEM_PEER_INFO: Request(self._on_peer_info),
        }

    def _on_table(self, table: Table, _link: Link, command: Command, _now: Now) -> Command | None:
        body = table.polled(command)
        if len(body) > FRAME_BYTES_MAX - HEADER_BYTES:
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                remark=f"the table has {len(body)} bytes, more than the {FRAME_BYTES_MAX} of a frame; "
                "delete what is not used",
            )
        return command.answer(ResponseCode.SUCCESS, body=body)

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
                "refusing": "" if self._puts.refusal is None else self._puts.refusal[1],
            },
        )


def role_name(serving: Serving) -> str:
    """Return the role at this moment, in the words of the setting `brokerRole`."""
    if not serving.is_master:
        return "SLAVE"
    return "SYNC_MASTER" if serving.waits_for_replicas else "ASYNC_MASTER"
