"""Handing consumer offsets and delay progress to the member that serves reads next (TANDEM_HAND_OFFSETS), and taking
those that a reader which does not return had copied to the registry."""

import logging
from typing import Any, NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.copied_tables import StreamedTable
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.roles.copied_offsets import ReaderOffsets, decode
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.coordination.member.machine import MemberMachine
from tandemq.coordination.member.orders import HandOffsets
from tandemq.coordination.registry.records import CopiedOffsets
from tandemq.errors import StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)
HAND_TIMEOUT_MS = 2_000


class ReceivedOffsets(NamedTuple):
    """Offsets of another member that are being saved."""

    change: int
    """Number of the change of tables; see `Saver.asked`."""
    giver: int
    """Broker id of the member that hands over."""
    token: int
    """Version of the group's record that the handover belongs to."""


class MergedOffsets(NamedTuple):
    """Copied offsets that are being saved."""

    change: int
    """See ReceivedOffsets."""
    copied: CopiedOffsets


class OffsetHandover:
    """Both sides of a handover."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._offsets = kernel.offsets
        self._features = kernel.features
        self._saver = kernel.saver
        self._members = kernel.members
        self.reader = ReaderOffsets(kernel.offsets)
        self._unsaved: list[ReceivedOffsets | MergedOffsets] = []

    def _tables(self) -> list[StreamedTable]:
        tables = [table for table in self._features.tables if isinstance(table, StreamedTable)]
        return [table for table in tables if table.handed_as]

    def send(self, order: HandOffsets, member: MemberMachine, turn: Turn, now: Now) -> None:
        """Send our offsets to another member, and report to this one whether they were saved there."""
        record = (member.view.live or {}).get(order.to)
        if record is None or not record.address:
            member.on_handed(order.token, now, is_stored=False)
            return
        command = Command(
            Code.TANDEM_HAND_OFFSETS,
            fields={"from": str(member.id), "token": str(order.token)},
            body=dumps_java({table.handed_as: table.handed() for table in self._tables()}),
        )

        def on_answer(answer: Command | None, now: Now) -> None:
            is_stored = answer is not None and answer.code == ResponseCode.SUCCESS
            member.on_handed(order.token, now, is_stored=is_stored)

        self._members.call(record.address, command, HAND_TIMEOUT_MS, on_answer, turn, now)

    def receive(self, giver: int, token: int, table: dict[str, Any]) -> None:
        """Merge what a member hands over. It counts once it is saved.

        Raises:
            StoreDamaged, ProtocolError: it is not a table of offsets.
        """
        for own in self._tables():
            own.take_handed(table.get(own.handed_as) or {})
        self._unsaved.append(ReceivedOffsets(self._saver.asked, giver, token))

    def merge(self, copied: CopiedOffsets, member: MemberMachine, now: Now) -> None:
        """Merge what a reader had copied to the registry, and report to the member when it is saved."""
        try:
            self._offsets.merge_positions(decode(copied.table))
        except StoreDamaged as error:
            log.error("failover: messages read at broker %d are delivered again: %s", copied.reader, error)
            member.on_merged(copied, now, is_saved=True)
            return
        self._offsets.save(is_awaited=True)
        self._unsaved.append(MergedOffsets(self._saver.asked, copied))

    def saved(self, settled: int, member: MemberMachine, now: Now, *, is_saved: bool) -> None:
        """Report to the member that changes up to number `settled` are on the device, or could not be saved."""
        done = [order for order in self._unsaved if order.change <= settled]
        self._unsaved = [order for order in self._unsaved if order.change > settled]
        for order in done:
            if isinstance(order, MergedOffsets):
                member.on_merged(order.copied, now, is_saved=is_saved)
            elif is_saved:
                member.on_taken(order.giver, order.token, now)
