"""The timed messages that wait, read from the log by a broker that has become master.

    last done record ──► what is over: all of a time before T and an offset below Q, and what records from S on name
    wheel topic from the lowest offset that waits ──► the rest waits; a copy replaces the message it was made from
    messages of this broker's own, taken meanwhile ──► added behind (`arrived`), so that the reading ends
    log behind the last done record ──► copies that a broker delivered, but could not name any more, as it died

If a Java broker had the store, its `timercheck` says what is over. Copies that a Java broker delivered later, perhaps
as the master of which this broker was a slave, are found in the log by their times and unique keys.

Source: docs/reference/timers.md.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from tandemq.broker.features.timers.done_records import NOTHING, DoneRecord, TimerProgress, read_done
from tandemq.broker.features.timers.pending import PendingTimers
from tandemq.broker.features.timers.records import NoTimedMessage, TimerHead, head_of, read_head, read_rows
from tandemq.broker.features.timers.timer_check import TimerCheck
from tandemq.broker.kernel.log_queue import LogReading, read_message
from tandemq.codec.record.record import Record, unpack_head
from tandemq.engine.python import TimerRow
from tandemq.model.message import TIMER_DEQUEUED, TRANSACTION_MASK, decode_properties
from tandemq.model.topic import TIMER_DONE_TOPIC, TIMER_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
SLICE_RECORDS = 512
"""Number of records read in one turn."""
MARGIN_MS = 60_000
"""How far the file of a Java broker may be ahead of the log."""
_TIMER_TOPIC = TIMER_TOPIC.encode()
_DEQUEUED = TIMER_DEQUEUED.encode()


class _SlotKeys(NamedTuple):
    """Messages of one time by topic and unique key."""

    offsets: dict[tuple[str, str], int]
    end: int
    """Queue offset up to which they were read."""


class TimerLoader(LogReading):
    """One reading of the queues."""

    def __init__(self, store: Store, java: TimerCheck | None) -> None:
        """Begin; nothing is read yet. `java`: the file of a Java broker that had the store."""
        super().__init__(store)
        self._java = java
        self.table = PendingTimers()
        self.arrived = PendingTimers()
        """Messages that were stored since the reading began."""
        timers = store.queues.get((TIMER_TOPIC, 0))
        self._stop = timers.max_offset if timers is not None else 0
        """Queue offset up to which is read."""
        self._log_end = store.log.written_end
        self.progress = NOTHING
        """Of the last done record."""
        self.unread: set[int] = set()
        """Queue offsets of waiting messages whose record or entry is damaged."""
        self.copied: set[int] = set()
        """Log offsets of messages that are over, if their entries were damaged."""
        self.over: list[int] = []
        """Queue offsets of messages that are over, though no done record says so."""
        self.over_until_ms = 0
        """Latest time of them."""
        self._copies_from = 0
        """Log offset behind which copies may lie that no done record names."""
        self._last_ms = 0
        """Store time of the last record in the log."""
        self._named: set[int] = set()
        """Queue offsets that done records name."""
        self._keys: dict[int, _SlotKeys] = {}
        """Unique keys of the messages of a time, if a copy that a Java broker made names one of them."""

    @property
    def is_of_java(self) -> bool:
        """Whether a Java broker had the store."""
        return self._java is not None

    def _load(self) -> Iterator[None]:
        self.table, self.unread, self.copied, self.over = PendingTimers(), set(), set(), []
        self._named, self._keys, self._copies_from = set(), {}, 0
        timers, done = self._store.queues.get((TIMER_TOPIC, 0)), self._store.queues.get((TIMER_DONE_TOPIC, 0))
        if timers is None:
            return
        self.progress = NOTHING
        self._last_ms = _last_store_ms(self._store)
        self._adopt_java()
        if done is not None:
            yield from self._read_done(done)
        yield from self._read_timers(timers)
        if len(self.table):
            yield from self._find_copies(timers)
        self.table.add_later(self.arrived)
        self._named.clear()
        self._keys.clear()

    # Done records.

    def _read_done(self, done: ConsumeQueue) -> Iterator[None]:
        found = last_done(self._store, done)
        if found is None:
            return
        self.progress, self._copies_from = found
        self._adopt_java()
        first = max(self.progress.since, done.min_offset)
        for queue_offset in range(first, done.max_offset):
            record = _done_at(self._store, done, queue_offset)
            if record is None:
                before = done.entry(queue_offset - 1).log_offset if queue_offset > first else 0
                self._copies_from = min(self._copies_from, before)
            else:
                self._named.update([offset for offset in record.offsets if offset >= self.progress.lowest])
            if queue_offset % SLICE_RECORDS == 0:
                yield

    def _adopt_java(self) -> None:
        """Use the progress in a Java broker's file, if it is ahead of ours everywhere."""
        java, ours = self._java, self.progress
        if java is not None:
            before_ms = self._java_before_ms(java)
            if before_ms >= ours.before_ms and java.queue_offset >= ours.below:
                self.progress = ours._replace(before_ms=before_ms, below=java.queue_offset)

    # Messages.

    def _read_timers(self, timers: ConsumeQueue) -> Iterator[None]:
        queue_offset = max(self.progress.lowest, timers.min_offset, self.table.seen)
        while queue_offset < self._stop:
            entries = timers.read(queue_offset, min(SLICE_RECORDS, self._stop - queue_offset))
            if not entries:
                return
            for row in read_rows(self._store, queue_offset, entries):
                self._read_one(timers, queue_offset, row)
                queue_offset += 1
                self.table.seen = queue_offset
            if queue_offset < self._stop:
                yield

    def _read_one(self, timers: ConsumeQueue, queue_offset: int, row: TimerRow | None) -> None:
        try:
            head = TimerHead(*row) if row is not None else read_head(self._store, timers, queue_offset)
        except NoTimedMessage as error:
            log.error("timers: offset %d of %s is ignored: %s", queue_offset, TIMER_TOPIC, error)
            self.over.append(queue_offset)
            return
        if head is None and queue_offset in self._named:
            return
        if head is None:  # a repair may still enter the message of a hole
            self.table.keep(queue_offset)
            self.unread.add(queue_offset)
            return
        self._replace_origin(timers, head)
        if queue_offset not in self._named and not self._is_over(queue_offset, head):
            self.table.add(queue_offset, head.out_ms, head.topic, is_delete=head.is_delete)

    def _is_over(self, queue_offset: int, head: TimerHead) -> bool:
        progress, java = self.progress, self._java
        if queue_offset < progress.below and head.out_ms < progress.before_ms:
            return True
        if java is not None and queue_offset < java.queue_offset and head.out_ms < self._java_before_ms(java):
            self._note_over(queue_offset, head)
            return True
        return False

    def _java_before_ms(self, java: TimerCheck) -> int:
        return min(java.read_ms, self._last_ms) - MARGIN_MS

    def _replace_origin(self, timers: ConsumeQueue, head: TimerHead) -> None:
        """Remove the message that this one is a copy of."""
        if head.origin >= 0:
            self._discard_origin(timers, head)
        elif head.is_rolled:
            self._discard(self._by_key(timers, head), head)

    def _discard_origin(self, timers: ConsumeQueue, head: TimerHead) -> None:
        queue_offset = self._offset_of(timers, head.origin)
        if queue_offset is None and self.unread:
            self.copied.add(head.origin)
        self._discard(queue_offset, head)

    def _discard(self, queue_offset: int | None, head: TimerHead) -> None:
        if queue_offset is None:
            return
        if queue_offset in self.unread:
            self.unread.discard(queue_offset)
            self.table.release(queue_offset)
            self._note_over(queue_offset, head)
        elif self.table.discard(queue_offset, head.out_ms):
            self.table.count(head.topic, -1)
            self._note_over(queue_offset, head)

    def _note_over(self, queue_offset: int, head: TimerHead) -> None:
        self.over.append(queue_offset)
        self.over_until_ms = max(self.over_until_ms, head.out_ms)

    def _by_key(self, timers: ConsumeQueue, head: TimerHead) -> int | None:
        """Return the waiting message of which a Java broker made a copy; None if there is none.

        A Java broker's copy has the time and the unique key, but no prepared offset.
        """
        slot = self.table.slots.get(head.out_ms)
        if slot is None or not head.key:
            return None
        keys = self._keys.setdefault(head.out_ms, _SlotKeys({}, 0))
        for queue_offset in slot.messages[bisect_left(slot.messages, keys.end) :]:
            found = read_head(self._store, timers, queue_offset)
            if found is not None:
                keys.offsets[found.topic, found.key] = queue_offset
        self._keys[head.out_ms] = keys._replace(end=self.table.seen)
        return keys.offsets.get((head.topic, head.key))

    def _offset_of(self, timers: ConsumeQueue, log_offset: int) -> int | None:
        """Return the queue offset of the record of the wheel topic at a log offset; None if there is none."""
        queue_offset = timers.first_at_or_after(log_offset, timers.min_offset, timers.max_offset)
        is_there = queue_offset < timers.max_offset and timers.entry(queue_offset).log_offset == log_offset
        return queue_offset if is_there else None

    # Copies in the log.

    def _find_copies(self, timers: ConsumeQueue) -> Iterator[None]:
        """Find messages delivered after the last done record, of the turn in which a broker died."""
        first = self.table.first()
        if not self.unread and (first is None or first > self._last_ms + MARGIN_MS):
            return
        for found in self._records(self._first_copy(timers), self._log_end, 4 * SLICE_RECORDS):
            if found is None:
                yield
                continue
            record, window, position = found
            if record.topic != _TIMER_TOPIC and not record.sys_flag & TRANSACTION_MASK:
                self._meet(timers, record, unpack_head(window, position).prepared_offset - 1)

    def _first_copy(self, timers: ConsumeQueue) -> int:
        """Return the log offset from which the log has to be read."""
        store = self._store
        lowest = self.table.lowest()
        assert lowest is not None, "messages wait"
        position = max(timers.entry(max(lowest, timers.min_offset)).log_offset, store.log.start)
        if self._java is None:
            return max(position, self._copies_from)
        before_ms = self._java_before_ms(self._java)
        starts = [start for start in store.log.segment_starts if 0 < store.store_time(start, 0) < before_ms]
        return max(position, starts[-1]) if starts else position

    def _meet(self, timers: ConsumeQueue, record: Record, origin: int) -> None:
        is_java = origin < 0 and _DEQUEUED in record.properties
        if origin < 0 and not is_java:
            return
        try:
            head = head_of(record, decode_properties(record.properties.decode("utf-8", "replace")), origin)
        except NoTimedMessage:
            return
        if origin >= 0:
            self._discard_origin(timers, head)
        else:
            self._discard(self._by_key(timers, head), head)


def _last_store_ms(store: Store) -> int:
    """Return the store time of the last message in the log; a time that never comes if it cannot be read."""
    queues = [queue for queue in store.queues.values() if queue.max_offset > queue.min_offset]
    if not queues:
        return 1 << 62
    queue = max(queues, key=lambda known: known.last_log_end)
    return store.stored_ms(queue, queue.max_offset - 1) or 1 << 62


def last_done(store: Store, done: ConsumeQueue) -> tuple[TimerProgress, int] | None:
    """Return the progress in the last readable done record, and its log offset; None if there is none."""
    for queue_offset in range(done.max_offset - 1, done.min_offset - 1, -1):
        record = _done_at(store, done, queue_offset)
        if record is not None and record.progress is not None:
            return record.progress, done.entry(queue_offset).log_offset
    return None


def _done_at(store: Store, done: ConsumeQueue, queue_offset: int) -> DoneRecord | None:
    message = read_message(store, done, queue_offset, "timers: done record")
    return None if message is None else read_done(message.body, message.properties)
