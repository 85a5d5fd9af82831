"""Open transactions of a broker that has become master, read from the log.

    op records from O on ──► half messages that are over          last op record of TandemQ: it names H and O
    half queue from H on ──► open transactions, copies joined     none: the offset table names them, with a margin
    log behind the last op record ──► commits whose op record was not written any more, as their broker died
    half queue again ──► half messages that arrived meanwhile

Source: docs/reference/transactions.md.
"""

import logging
from collections.abc import Iterator

from tandemq.broker.features.transactions.op_records import OpRecord, Progress, read_op
from tandemq.broker.features.transactions.open_transactions import HalfEntry, OpenTransactions
from tandemq.broker.kernel.log_queue import LogReading, read_message
from tandemq.broker.kernel.messages.half_message import read_half
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.codec.record.record import unpack_head
from tandemq.errors import ProtocolError
from tandemq.model.message import FIRST_OFFSET, TRANSACTION_MASK, SysFlag
from tandemq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
GROUP = "CID_RMQ_SYS_TRANS"
"""Group under which the offset table has the progress."""
SLICE_RECORDS = 256
"""Number of records read in one turn."""
MARGIN_MS = 60_000
"""How far the offset table of another broker may be ahead of the log that was replicated from it."""
_COMMIT = int(SysFlag.TRANSACTION_COMMIT)
OPS_BACK = 3
"""Number of op records of another broker before the last one behind which its commits may lack their op record."""


class TransactionLoader(LogReading):
    """One reading of the queues."""

    def __init__(self, store: Store, offsets: ConsumerOffsets) -> None:
        """Begin; nothing is read yet."""
        super().__init__(store)
        self._offsets = offsets
        self.table = OpenTransactions()
        self.ops: list[Progress] = []
        """Op records read: the greatest half message that each names, and its own queue offset."""
        self.committed: list[int] = []
        """Queue offsets of open half messages whose message is in the log already."""
        self.replaced: list[int] = []
        """Queue offsets of half messages whose copies were read, and that no op record names."""
        self._ended: set[int] = set()
        self._copied: set[int] = set()
        """Half messages replaced by a copy."""
        self.unread_ops: list[int] = []
        """Queue offsets of op records that could not be read."""

    def _load(self) -> Iterator[None]:
        self.table, self.ops, self.committed, self.replaced = OpenTransactions(), [], [], []
        self._ended, self._copied, self.unread_ops = set(), set(), []
        halves, ops = self._store.queues.get((HALF_TOPIC, 0)), self._store.queues.get((OP_HALF_TOPIC, 0))
        if halves is None:
            return
        last_op = self._last_op(ops)
        start = self._start(halves, ops, last_op.progress if last_op is not None else None)
        if ops is not None:
            yield from self._read_ops(ops, halves, start)
        is_ours = last_op is not None and last_op.progress is not None
        newest: dict[tuple[str, int], int] = {}
        yield from self._read_halves(halves, start.half, newest, is_ours=is_ours)
        if self.table.entries:
            end = halves.max_offset
            yield from self._find_commits(ops, is_ours=is_ours)
            yield from self._read_halves(halves, end, newest, is_ours=is_ours)

    def _last_op(self, ops: ConsumeQueue | None) -> OpRecord | None:
        if ops is None or ops.max_offset <= ops.min_offset:
            return None
        return self._op(ops, ops.max_offset - 1)

    def _start(self, halves: ConsumeQueue, ops: ConsumeQueue | None, progress: Progress | None) -> Progress:
        """Return from where both queues are read."""
        op_min = ops.min_offset if ops is not None else 0
        if ops is None or ops.max_offset <= ops.min_offset:
            progress = Progress(0, 0)  # no transaction has ended, whatever the offset table says
        elif progress is None:
            before_ms = self._store.last_store_ms - MARGIN_MS
            progress = Progress(
                min(self._offsets.get(HALF_TOPIC, GROUP, 0) or 0, self._store.offset_by_time(halves, before_ms)),
                min(self._offsets.get(OP_HALF_TOPIC, GROUP, 0) or 0, self._store.offset_by_time(ops, before_ms)),
            )
        return Progress(max(progress.half, halves.min_offset), max(progress.op, op_min))

    def _read_ops(self, ops: ConsumeQueue, halves: ConsumeQueue, start: Progress) -> Iterator[None]:
        for queue_offset in range(start.op, ops.max_offset):
            found = self._op(ops, queue_offset)
            if found is None:
                self.unread_ops.append(queue_offset)
            elif found.offsets:
                if found.progress is None:
                    self._drop_unfounded(found.offsets, halves, ops.entry(queue_offset).log_offset, queue_offset)
                over = self._copied if found.is_copied else self._ended
                over.update([offset for offset in found.offsets if offset >= start.half])
                self.ops.append(Progress(max(found.offsets, default=0), queue_offset))
            if queue_offset % SLICE_RECORDS == 0:
                yield

    def _drop_unfounded(self, offsets: list[int], halves: ConsumeQueue, log_offset: int, queue_offset: int) -> None:
        """Drop offsets of half messages that are not before another broker's op record: they would end later ones."""
        founded = [
            offset
            for offset in offsets
            if offset < halves.min_offset
            or (offset < halves.max_offset and halves.entry(offset).log_offset < log_offset)
        ]
        if len(founded) < len(offsets):
            log.error(
                "transactions: op record %d names %d half messages that are not before it; they stay open",
                queue_offset,
                len(offsets) - len(founded),
            )
            offsets[:] = founded

    def _op(self, ops: ConsumeQueue, queue_offset: int) -> OpRecord | None:
        message = read_message(self._store, ops, queue_offset, "transactions: op record")
        return None if message is None else read_op(message.body, message.properties)

    def _read_halves(
        self, halves: ConsumeQueue, start: int, newest: dict[tuple[str, int], int], *, is_ours: bool
    ) -> Iterator[None]:
        """Read the half queue to its end, which moves while this broker accepts messages.

        Other brokers write no op record for a half message that they copy: the end of its copy is its end too.

        Args:
            halves: the half queue.
            start: queue offset of the first half message.
            newest: queue offset of the newest copy, by unique key and born time; it grows.
            is_ours: whether the last op record is TandemQ's.
        """
        queue_offset = start
        while queue_offset < halves.max_offset:
            if queue_offset not in self._ended and queue_offset not in self._copied:
                self._add(halves, queue_offset, newest)
            elif not is_ours and queue_offset in self._ended:
                self._end_older(halves, queue_offset, newest)
            queue_offset += 1
            if queue_offset % SLICE_RECORDS == 0:
                yield

    def _add(self, halves: ConsumeQueue, queue_offset: int, newest: dict[tuple[str, int], int]) -> None:
        """Add an open half message; a copy takes the place of its original."""
        try:
            half = read_half(self._store, halves, queue_offset)
        except ProtocolError as error:
            log.error("transactions: half message %d cannot be read: %s", queue_offset, error)
            half = None
        if half is None:
            self.table.add(queue_offset, HalfEntry(halves.entry(queue_offset).log_offset, ""))
            return
        first = half.message.properties.get(FIRST_OFFSET, "")
        if first.isdecimal() and len(first) < 19 and int(first) in self._ended:
            return
        entry = HalfEntry(half.message.log_offset, half.topic, halves.entry(queue_offset).size)
        key = (half.unique_key, half.message.born_ms)
        older = newest.get(key) if half.unique_key else None
        if older is not None and older in self.table.entries:
            self.table.copied(older, queue_offset, entry)
            self.replaced.append(older)
        else:
            self.table.add(queue_offset, entry)
        newest[key] = queue_offset

    def _end_older(self, halves: ConsumeQueue, queue_offset: int, newest: dict[tuple[str, int], int]) -> None:
        try:
            half = read_half(self._store, halves, queue_offset)
        except ProtocolError as error:
            log.error("transactions: half message %d cannot be read: %s", queue_offset, error)
            return
        older = None if half is None else newest.pop((half.unique_key, half.message.born_ms), None)
        if half is not None and half.unique_key and older is not None:
            self.table.end(older)

    def _find_commits(self, ops: ConsumeQueue | None, *, is_ours: bool) -> Iterator[None]:
        """Find messages of open transactions in the log behind the last op record.

        A broker of ours writes the op record of a turn behind its messages; others write it up to three seconds later.
        """
        position = min(entry.log_offset for entry in self.table.entries.values())
        if ops is not None and not self.unread_ops:
            behind = ops.max_offset - (1 if is_ours else OPS_BACK)
            if behind >= ops.min_offset:
                position = max(position, ops.entry(behind).log_offset)
        by_log_offset = {entry.log_offset: queue_offset for queue_offset, entry in self.table.entries.items()}
        for met in self._records(position, self._store.log.written_end, SLICE_RECORDS):
            if met is None:
                yield
                continue
            record, window, position = met
            if record.sys_flag & TRANSACTION_MASK == _COMMIT:
                head = unpack_head(window, position)
                found = by_log_offset.get(head.prepared_offset)
                # What a consumer sent back has the mark too, and 0 as its prepared offset.
                if found is not None and not (head.reconsume_times and not head.prepared_offset):
                    self.committed.append(found)
