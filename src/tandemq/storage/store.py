"""Public interface of the message store: put, commit, read, query, flush, close.

A turn appends messages with `put`, then calls `commit()` once: one write, then dispatch to queues and index. When
`commit` returns, the messages are in the log and in their queues; if it raises, none of them is stored.

    put … put · commit() · [send responses] · begin_flush() → job → end_flush()
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.boundary import Buffer, Disk, File
from tandemq.codec.record.entries import HOLE_SIZE_MIN, QUEUE_ENTRY
from tandemq.codec.record.record import (
    MAGIC_V2,
    Record,
    parse_record,
    property_value,
    stated_lengths,
    tags_code,
    unpack_head,
)
from tandemq.engine import CopiedRecord, RecordChanges, commit_staged, copy_record, key_rows, stage_records
from tandemq.errors import OffsetGone, StoreError
from tandemq.model.message import SysFlag, decode_properties, encode_properties
from tandemq.model.topic import DELETION_TOPIC, SCHEDULE_TOPIC, topic_name_error
from tandemq.storage.checkpoint import REBUILDING, Checkpoint, Marks, open_marks, write_checkpoint, write_marks
from tandemq.storage.consume_queue import ConsumeQueue, QueueFiles, around
from tandemq.storage.deleted_queues import DeletedQueues
from tandemq.storage.key_index import PENDING_MAX, KeyIndex
from tandemq.storage.log.commit_log import AppendMessageResult, CommitLog, NewMessage
from tandemq.storage.log.scan import DamagedRange
from tandemq.storage.queue_flush import QueueFlush

log = logging.getLogger(__name__)
FIRST_READ_BYTES = 4096
"""Number of bytes read first of a record of unknown size; most records are smaller."""
_TRANSACTION_BITS = 0xC
_DELETED = "DELETED_TOPIC"
"""Property of a record of `DELETION_TOPIC`: the name of the deleted topic."""
_PREPARED = int(SysFlag.TRANSACTION_PREPARED)
_ROLLBACK = int(SysFlag.TRANSACTION_ROLLBACK)


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Sizes of the store's files, and the delays of the delay levels (ms), level 1 first."""

    segment_bytes: int
    queue_file_bytes: int
    index_enable: bool
    index_slots: int
    index_entries: int
    delays_ms: tuple[int, ...]
    boot_id: str = ""
    without_queues: frozenset[str] = frozenset()
    """Topics whose records get no queue entries: the format of their queues is not supported."""


class RecordBatch(NamedTuple):
    """Contiguous records to append to the log, within one file, whose queue entries are staged."""

    log_offset: int
    parts: tuple[Buffer, ...]
    """Buffers that hold the records, one behind the other."""
    queues: list[ConsumeQueue]
    """Queues that had no staged entry before these records."""
    keys: bytes
    """Keys of the records, packed (`engine.KEY_ROW`)."""
    store_ms: int
    """Store time of the last record, 0 if there is none."""


class FlushJob(NamedTuple):
    """Syncs log files; afterwards the log before offset `end` is on the device."""

    files: list[File]
    end: int
    truncations: int = 0
    """Value of `CommitLog.truncations` when the job was created; if it has changed, the job has no effect."""

    def run(self) -> None:
        """Sync the files; blocking.

        Raises:
            DiskFailed: bytes written since the last successful sync may be lost.
        """
        for file in self.files:
            file.datasync()


class Store:
    """One broker's store, opened by `storage.recovery.open_store`."""

    def __init__(self, disk: Disk, config: StoreConfig) -> None:
        """Load the files. Recovery must set the log's end before the first `put`."""
        self.disk = disk
        self.config = config
        self.log = CommitLog(disk, config.segment_bytes)
        self.index = KeyIndex(disk, config.index_slots, config.index_entries) if config.index_enable else None
        self.queue_files = QueueFiles(disk)
        self.queues: dict[tuple[str, int], ConsumeQueue] = {}
        self._queues_of: dict[str, dict[int, ConsumeQueue]] = {}
        """The same by topic."""
        self.queues_opened = 0
        """Number of queues opened or created so far."""
        self.without_queues = set(config.without_queues)
        """See `StoreConfig`; the broker changes it with its topics."""
        self.dirty_queues: dict[ConsumeQueue, None] = {}
        """Queues with entries not yet written, in the order in which they will be written."""
        self._flushing: QueueFlush | None = None
        self._taken: dict[str, None] = {}
        """Paths that were taken to be synced, until the synced mark shows that they are."""
        self.marks = Marks(boot_id=config.boot_id)
        self._marks_file = open_marks(disk)
        self.last_store_ms = 0
        """Store time (ms) of the last record in the log, 0 if there is none or it cannot be read."""
        self.queued_ms = 0
        """Store time (ms) of the last record whose queue entries are written."""
        self.damaged: list[DamagedRange] = []
        """Ranges of the log that recovery found damaged and left in place."""
        self.suspect_entries: list[tuple[ConsumeQueue, int]] = []
        """Queue entries that recovery found damaged and left in place: queue and queue offset."""
        self.touched: list[ConsumeQueue] = []
        """Queues with staged entries."""
        self._staged_keys = bytearray()
        """Keys of the records appended since the last commit, packed (`engine.KEY_ROW`)."""
        self._staged_ms = 0
        """Store time (ms) of the last appended record that has one."""
        self._woken: list[ConsumeQueue] = []
        """Queues with held pulls that got messages; the long polling service empties the list."""
        self._deleted_until = 0
        """Log offset after the last record of a deletion; 0 once it is on the device, and the queues are deleted."""
        self._deleted = DeletedQueues(disk, lambda topic: topic in self._queues_of)
        """Their files are deleted by `flush_some_queues`."""
        self._on_dropped: list[Callable[[str], None]] = []
        self._load_queues()

    def watch_drops(self, on_dropped: Callable[[str], None]) -> None:
        """Call a function with each topic whose queues are deleted: its `ConsumeQueue` objects are no longer valid."""
        self._on_dropped.append(on_dropped)

    def _load_queues(self) -> None:
        for topic in self.disk.list("consumequeue"):
            for queue_id in self.disk.list(f"consumequeue/{topic}"):
                if queue_id.isdigit():
                    self.queue(topic, int(queue_id))

    @property
    def has_records(self) -> bool:
        """Whether the log has records."""
        return self.log.written_end > self.log.start

    # Queues.

    def queue(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Return a queue; it is created if it does not exist."""
        found = self.queues.get((topic, queue_id))
        if found is None:
            if self._deleted:
                self._deleted.remove(topic, queue_id)
            found = ConsumeQueue(
                self.disk, self.queue_files, topic, queue_id, self.config.queue_file_bytes, self.config.segment_bytes
            )
            self.queues[topic, queue_id] = found
            self._queues_of.setdefault(topic, {})[queue_id] = found
            self.queues_opened += 1
        return found

    def queues_of(self, topic: str) -> list[ConsumeQueue]:
        """Return the queues of a topic, in the order in which they were opened."""
        return list(self._queues_of.get(topic, {}).values())

    def forget_queue(self, queue: ConsumeQueue) -> None:
        """Remove a queue from the table; its files stay."""
        del self.queues[queue.topic, queue.queue_id]
        of_topic = self._queues_of[queue.topic]
        del of_topic[queue.queue_id]
        if not of_topic:
            del self._queues_of[queue.topic]

    def delete_topic(self, topic: str, store_ms: int) -> None:
        """Write a record of a topic's deletion, then delete its queues. Nothing else may be appended and not committed.

        Because of the record, recovery and replicas create no queue entries for the topic's earlier records.

        Raises:
            DiskFull, DiskFailed: the record was not written, and the topic keeps its queues.
        """
        assert not (self.touched or self._staged_keys), "all appended messages must be committed before a deletion"
        no_host = bytes(8)
        properties = encode_properties({_DELETED: topic}).encode()
        message = NewMessage(b"", properties, 0, _ROLLBACK, store_ms, no_host, store_ms, no_host, 0)
        raw = self.log.encode(DELETION_TOPIC, 0, 0, message)
        self.append(RecordBatch(self.log.end, (raw,), [], b"", store_ms))
        self.commit()
        self._drop_recorded(topic, self.log.end)

    def drop_topic(self, topic: str) -> None:
        """Delete a topic's queues and the entries staged for them; its records stay in the log until retention."""
        before = self._drop_queues(topic)
        self._deleted.remove_some(len(self._deleted))
        if self.marks.entries != REBUILDING:
            self.marks.entries -= before
        self.save_marks()

    def _drop_recorded(self, topic: str, log_end: int) -> None:
        """Delete the queues of a topic whose deletion record ends at `log_end` or before.

        Until the log up to `log_end` is on the device and all files are deleted, a start rebuilds all queues.
        """
        if self.marks.entries != REBUILDING:
            self.marks.entries = REBUILDING
            self.sync_marks()
        self._drop_queues(topic)
        self._deleted_until = max(self._deleted_until, log_end)

    def _drop_queues(self, topic: str) -> int:
        """Delete the queues of a topic; return how many entries the marks count for them."""
        self.touched = [queue for queue in self.touched if queue.topic != topic]
        flush, entries, dropped = self._flushing, 0, self.queues_of(topic)
        for queue in dropped:
            self.forget_queue(queue)
            self.dirty_queues.pop(queue, None)
            entries += queue.tail_start if flush is None else flush.drop(queue)
            queue.close()
        self._deleted.add(topic, [queue.queue_id for queue in dropped])
        for on_dropped in self._on_dropped:
            on_dropped(topic)
        return entries

    def _deleted_in_copy(self, properties: bytes) -> None:
        """Delete the queues of a topic whose deletion record is in the bytes being appended by a slave."""
        topic = deleted_topic(properties)
        if topic is not None:
            self._drop_recorded(topic, self.log.end + 1)  # a sync beyond that offset covers the whole piece

    def _deleted_in_walk(self, properties: bytes) -> None:
        """Delete the queues of a topic whose deletion record recovery or repair has read."""
        if (topic := deleted_topic(properties)) is not None:
            self._drop_queues(topic)

    # Writing.

    def put(
        self,
        queue: ConsumeQueue,
        *,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_ms: int,
        born_host: bytes,
        store_ms: int,
        store_host: bytes,
        reconsume_times: int,
        prepared_offset: int = 0,
    ) -> AppendMessageResult:
        """Append a message of any kind; tags and keys are taken from its properties.

        Raises:
            RecordTooLarge: see `CommitLog.encode`.
        """
        message = NewMessage(
            body, properties, flag, sys_flag, born_ms, born_host, store_ms, store_host, reconsume_times, prepared_offset
        )
        queue_offset = _queue_offset(queue, sys_flag)
        raw = self.log.encode(queue.topic, queue.queue_id, queue_offset, message)
        return self._append_one(queue, queue_offset, sys_flag, CopiedRecord(raw, properties, self.log.end), store_ms)

    def put_copy(
        self, queue: ConsumeQueue, record: bytes, changes: RecordChanges, store_ms: int
    ) -> AppendMessageResult:
        """Append a copy of a record to a queue.

        Raises:
            ProtocolError, RecordTooLarge: see `engine.copy_record`.
        """
        queue_offset, topic = _queue_offset(queue, changes.sys_flag), queue.topic.encode()
        copy = copy_record(record, changes, topic, queue.queue_id, queue_offset, store_ms, self.log.reserve)
        return self._append_one(queue, queue_offset, changes.sys_flag, copy, store_ms)

    def _append_one(
        self, queue: ConsumeQueue, queue_offset: int, sys_flag: int, record: CopiedRecord, store_ms: int
    ) -> AppendMessageResult:
        data, properties, log_offset = record
        transaction = sys_flag & _TRANSACTION_BITS
        queues: list[ConsumeQueue] = []
        if transaction not in (_PREPARED, _ROLLBACK):
            code = self.entry_code(queue.topic, properties, store_ms)
            if queue.stage_entry(log_offset, len(data), code):
                queues.append(queue)
        keys = key_rows(queue.topic, properties, log_offset, store_ms) if transaction != _ROLLBACK else b""
        self.append(RecordBatch(log_offset, (data,), queues, keys, store_ms))
        return AppendMessageResult(queue_offset, log_offset, len(data))

    def append(self, batch: RecordBatch) -> None:
        """Append records whose entries are staged in their queues; all records of the log are appended here."""
        assert batch.log_offset == self.log.end, "the records contain the log offset that they were encoded for"
        self.log.append(*batch.parts)
        self.touched += batch.queues
        self._staged_keys += batch.keys
        self._staged_ms = batch.store_ms or self._staged_ms

    def entry_code(self, topic: str, properties: bytes, store_ms: int) -> int:
        """Return the tags code of a queue entry: the tag's hash, or the delivery time (ms) on the delay topic."""
        if topic == SCHEDULE_TOPIC:
            level = property_value(properties, b"DELAY")
            if level is not None and level.isdigit() and int(level) > 0:
                delays = self.config.delays_ms
                return store_ms + (delays[min(int(level), len(delays)) - 1] if delays else 1000)
        return tags_code(properties)

    def append_copy(self, data: Buffer) -> None:
        """Append verified bytes of the master's log: whole records, perhaps a blank after them, within one file.

        Raises:
            DiskFailed: a queue cannot be opened. Nothing that was appended since the last commit is stored.
        """
        try:
            found = stage_records(data, self._queue_for, self.entry_code, self._deleted_in_copy)
        except StoreError:
            self.log.drop_appended()
            self._drop_staged()
            raise
        self.append(RecordBatch(self.log.end, (data,), self._present(found.queues), found.keys, found.store_ms))

    def _present(self, queues: list[ConsumeQueue]) -> list[ConsumeQueue]:
        """Return the queues that have not been deleted since."""
        return [queue for queue in queues if self.queues.get((queue.topic, queue.queue_id)) is queue]

    def _queue_for(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        """Return the queue of a record, created if needed; None if its name is invalid or its topic has no queues."""
        name = topic.decode("utf-8", "replace")
        found = self.queues.get((name, queue_id))
        if found is not None:
            return found
        return None if name in self.without_queues or self._is_unfit(name, queue_id) else self.queue(name, queue_id)

    def _drop_staged(self) -> None:
        """Drop the entries of records that are not in the log."""
        for queue in self.touched:
            queue.drop_staged()
        self.touched.clear()
        self._staged_keys.clear()

    def take_woken(self) -> list[ConsumeQueue]:
        """Return the queues with held pulls that got messages since the last call."""
        woken, self._woken = self._woken, []
        return woken

    def commit(self) -> int:
        """Write the appended messages, then dispatch them to queues and index; return the number of bytes written.

        Raises:
            DiskFull, DiskFailed: none of the messages is stored.
        """
        try:
            written = self.log.write()
        except StoreError:
            self._drop_staged()
            raise
        if self.touched:
            commit_staged(self.touched, self._woken)
            self.dirty_queues.update(dict.fromkeys(self.touched))
            self.touched.clear()
            self.last_store_ms = self._staged_ms
        if self._staged_keys:
            self._index_staged()
        return written

    def _index_staged(self) -> None:
        if self.index is not None:
            self.index.pending += self._staged_keys
        self._staged_keys.clear()
        if self.index is not None and self.index.waiting >= PENDING_MAX:
            try:
                self.index.absorb()
            except StoreError as error:  # the messages are stored; their keys wait in memory for the next flush
                log.warning("index: %d keys wait for the disk: %s", self.index.waiting, error)

    def dispatch_found(self, record: Record) -> None:
        """Dispatch a record that recovery or repair found in the log; no effect if it was dispatched before."""
        topic = record.topic.decode("utf-8", "replace")
        transaction = record.sys_flag & _TRANSACTION_BITS
        self.last_store_ms = record.store_ms
        if topic == DELETION_TOPIC:
            self._deleted_in_walk(record.properties)
            return
        if topic in self.without_queues:
            return
        if self._is_unfit(topic, record.queue_id):
            log.error(
                "store: log=%d names the topic %r queue %d, which cannot be; the record is not entered anywhere",
                record.log_offset,
                topic[:64],
                record.queue_id,
            )
            return
        if transaction not in (_PREPARED, _ROLLBACK):
            queue = self.queue(topic, record.queue_id)
            code = self.entry_code(topic, record.properties, record.store_ms)
            if queue.enter(record.queue_offset, record.log_offset, record.size, code):
                self.dirty_queues[queue] = None
        if self.index is not None and record.log_offset > self.index.end_offset:
            self._staged_keys += self.keys_of(record)
            self._index_staged()

    def keys_of(self, record: Record) -> bytes:
        """Return the keys under which the index has a record, packed (`engine.KEY_ROW`)."""
        topic = record.topic.decode("utf-8", "replace")
        is_entered = topic != DELETION_TOPIC and topic not in self.without_queues
        is_indexed = is_entered and record.sys_flag & _TRANSACTION_BITS != _ROLLBACK
        if not is_indexed or self._is_unfit(topic, record.queue_id):
            return b""
        return bytes(key_rows(topic, record.properties, record.log_offset, record.store_ms))

    def dispatch_run(self, data: Buffer) -> None:
        """Like `dispatch_found`, for contiguous valid records without a blank."""
        found = stage_records(data, self._found_queue, self.entry_code, self._deleted_in_walk)
        queues = self._present(found.queues)
        commit_staged(queues, self._woken)
        self.dirty_queues.update(dict.fromkeys(queues))
        self.last_store_ms = found.store_ms
        if self.index is not None:
            self._staged_keys += self.index.not_indexed(found.keys)
            self._index_staged()

    def _found_queue(self, topic: bytes, queue_id: int) -> ConsumeQueue | None:
        found = self._queue_for(topic, queue_id)
        if found is None and topic.decode("utf-8", "replace") not in self.without_queues:
            log.error(
                "store: a record names the topic %r queue %d, which cannot be; the record is not entered anywhere",
                topic[:64].decode("utf-8", "replace"),
                queue_id,
            )
        return found

    def _is_unfit(self, topic: str, queue_id: int) -> bool:
        """Whether a queue must not be created: a damaged or forged record may have a topic that is no file name."""
        return (topic, queue_id) not in self.queues and (queue_id < 0 or topic_name_error(topic) is not None)

    # Reading.

    def allow_waits(self, *, allowed: bool) -> None:
        """Set whether reads of log, queues and index may wait for the device; if not, they raise NotCached."""
        self.log.files.may_wait = self.queue_files.may_wait = allowed
        if self.index is not None:
            self.index.may_wait = allowed

    @property
    def waits_allowed(self) -> bool:
        """Whether reads may wait for the device now."""
        return self.log.files.may_wait

    def record_at(self, log_offset: int, size: int = 0) -> bytes | None:
        """Return the bytes of the record at a log offset, None if no record begins there."""
        try:
            if size <= 0:
                head = self.log.read(log_offset, 8)
                size = int.from_bytes(head[:4], "big", signed=True) if len(head) == 8 else 0
            if not 0 < size <= self.config.segment_bytes:
                return None
            data = self.log.read(log_offset, size)
        except OffsetGone:
            return None
        record = parse_record(data, 0, len(data))
        return data if not isinstance(record, str) and record.log_offset == log_offset else None

    def queued_record_at(self, log_offset: int) -> tuple[Record, bytes] | None:
        """Return the message at a log offset that a client sent, and its bytes; None if no message begins there.

        A client may have sent a body with the bytes of a forged record. The record must therefore have an entry in its
        queue, which records of deleted topics and of topics in `without_queues` have not.

        Cost: reads FIRST_READ_BYTES, topic and properties, and a queue entry. The whole record is read only if the
        entry points to it, since forged bytes may state the maximum size.
        """
        try:
            first = self.log.read(log_offset, FIRST_READ_BYTES)
            size = self._queued_size(log_offset, first)
            data = first[:size] if size <= len(first) else self.log.read(log_offset, size)
        except OffsetGone:
            return None
        record = parse_record(data, 0, len(data))
        return (record, data) if not isinstance(record, str) and record.log_offset == log_offset else None

    def _queued_size(self, log_offset: int, first: bytes) -> int:
        """Return the size of the record at a log offset; 0 if there is none, or no queue entry points to it.

        `first`: the first bytes there, with the whole header unless the log ends before.

        Raises:
            OffsetGone: the offset was deleted.
        """
        lengths = stated_lengths(first, log_offset)
        if lengths is None:
            return 0
        head = unpack_head(first, 0)
        start = lengths.body_end
        tail = first[start:] if len(first) >= lengths.size else self.log.read(log_offset + start, lengths.size - start)
        width = 2 if head.magic == MAGIC_V2 else 1
        topic = tail[width : width + int.from_bytes(tail[:width])]
        queue = self.queues.get((topic.decode("utf-8", "replace"), head.queue_id))
        if queue is None or not queue.min_offset <= head.queue_offset < queue.max_offset:
            return 0
        entry = queue.read(head.queue_offset, 1)
        is_queued = len(entry) == QUEUE_ENTRY.size and QUEUE_ENTRY.unpack(entry)[:2] == (log_offset, lengths.size)
        return lengths.size if is_queued else 0

    def record_at_raw(self, log_offset: int) -> bytes:
        """Return the bytes of a possible record at a log offset, before the log's end is known; b"" if none."""
        try:
            head = self.log.read_raw(log_offset, 8)
            size = int.from_bytes(head[:4], "big", signed=True) if len(head) == 8 else 0
            return self.log.read_raw(log_offset, size) if 0 < size <= self.config.segment_bytes else b""
        except OffsetGone:
            return b""

    def store_time(self, log_offset: int, size: int) -> int:
        """Return the store time (ms) of the record at a log offset, 0 if it cannot be read."""
        data = self.record_at(log_offset, size)
        if data is None:
            return 0
        record = parse_record(data, 0, len(data))
        return 0 if isinstance(record, str) else record.store_ms

    def record_of(self, queue: ConsumeQueue, queue_offset: int) -> tuple[Record, bytes] | None:
        """Return the record of a queue entry, and its bytes; None if the entry is a placeholder, or damage is found.

        Checks structure, log offset, topic, queue and queue offset, but no checksums. Cost: reads the record.
        """
        log_offset, size, _ = queue.entry(queue_offset)
        data = self.record_at(log_offset, size) if 0 < size < HOLE_SIZE_MIN else None
        record = parse_record(data, 0, len(data)) if data is not None else "none"
        if data is None or isinstance(record, str):
            return None
        stated = record.size, record.queue_id, record.queue_offset, record.topic
        return (record, data) if stated == (size, queue.queue_id, queue_offset, queue.topic.encode()) else None

    def stored_ms(self, queue: ConsumeQueue, queue_offset: int) -> int:
        """Return the store time (ms) of a message of a queue, 0 if it cannot be read."""
        found = self.record_of(queue, queue_offset)
        return found[0].store_ms if found is not None else 0

    def take_last_time(self) -> None:
        """Set `last_store_ms` from the newest queue entry, after a recovery that read no records."""
        queue = max(self.queues.values(), key=lambda known: known.last_log_end, default=None)
        if queue is not None and queue.max_offset > queue.min_offset:
            self.last_store_ms = self.stored_ms(queue, queue.max_offset - 1)

    def offset_by_time(self, queue: ConsumeQueue, wall_ms: int, *, upper: bool = False) -> int:
        """Return the queue offset of the first message stored at or after a time (`upper`: the last at or before it).

        If all are earlier, the max offset; if all are later, the min offset. Unreadable messages are skipped.
        Cost: reads log2(n) records.
        """
        low, high = queue.min_offset, queue.max_offset
        limit = wall_ms + 1 if upper else wall_ms
        while low < high:
            read = ((queue_offset, self.stored_ms(queue, queue_offset)) for queue_offset in around(low, high))
            queue_offset, stored_ms = next((pair for pair in read if pair[1]), ((low + high) // 2, 0))
            low, high = (queue_offset + 1, high) if stored_ms < limit else (low, queue_offset)
        return max(queue.min_offset, low - 1) if upper else low

    def entries(self, queue: ConsumeQueue, queue_offset: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yield log offset, size and tags code of up to `count` entries of a queue."""
        return QUEUE_ENTRY.iter_unpack(queue.read(queue_offset, count))

    def drop_first_segment(self) -> None:
        """Delete the oldest commit log file, and the queue and index files that have only entries of its records."""
        for _ in self.dropping_first_segment(lambda: True):
            pass

    def dropping_first_segment(self, may_drop: Callable[[], bool]) -> Iterator[None]:
        """Like `drop_first_segment`, but yield after each queue: with many of them it takes long.

        The queues first begin behind the file, so that no message is offered whose record is gone; their own files are
        deleted after it, since a start rebuilds queues that lack entries of records in the log.

        Args:
            may_drop: asked right before the file is deleted; nothing is, if it returns False.
        """
        end = self.log.start + self.config.segment_bytes
        for queue in self._queues_in_turn():
            queue.raise_min(end)
            yield
        if not may_drop():
            return
        start = self.log.drop_first_segment()
        if self.index is not None:
            self.index.drop_before(start)
        for queue in self._queues_in_turn():
            queue.correct_min(start)
            yield

    def _queues_in_turn(self) -> Iterator[ConsumeQueue]:
        """Yield the queues; of those deleted meanwhile none."""
        for key, queue in list(self.queues.items()):
            if self.queues.get(key) is queue:
                yield queue

    # Flushing.

    def begin_flush(self) -> FlushJob | None:
        """Return a job that syncs the log up to its current end; None if it is synced, or if a sync failed before.

        After a failed sync, another one would report success although the kernel dropped pages without writing them.
        """
        if self.log.flushed_offset >= self.log.written_end or self.log.refused is not None:
            return None
        return FlushJob(self.log.files_to_sync(), self.log.written_end, self.log.truncations)

    def end_flush(self, job: FlushJob) -> None:
        """Set the log's flushed offset after a job has succeeded."""
        if job.truncations != self.log.truncations:
            return
        self.log.flushed_offset = max(self.log.flushed_offset, job.end)

    def flush(self) -> None:
        """Sync the log; blocking.

        Raises:
            DiskFailed: bytes written since the last successful sync may be lost.
        """
        job = self.begin_flush()
        if job is not None:
            job.run()
            self.end_flush(job)

    def flush_failed(self, error: Exception) -> None:
        """Refuse writes after a failed job: the kernel may have dropped dirty pages, so nothing may be acknowledged."""
        self.log.refused = self.log.refused or error

    def flush_queues(self) -> None:
        """Write the queue and index entries that are still in memory, then the marks.

        Raises:
            DiskFull, DiskFailed: entries that were not written stay in memory.
        """
        if self._flushing is not None:
            self.flush_some_queues(len(self.queues))
        self._deleted.remove_some(len(self._deleted))
        self.flush_some_queues(len(self.queues))

    def flush_some_queues(self, count: int) -> bool:
        """Begin or continue a flush of the queues; return whether all that was in memory at its beginning is written.

        Deletes the files of up to `count` deleted queues, and writes the entries of as many; with the last of them, the
        marks.

        Raises:
            DiskFull, DiskFailed: entries that were not written stay in memory; the next call writes them.
        """
        self._deleted.remove_some(count)
        is_deletion_synced = not self._deleted and 0 < self._deleted_until <= self.log.flushed_offset
        flush = self._flushing
        if flush is None:
            if not (self.dirty_queues or is_deletion_synced or (self.index is not None and self.index.waiting)):
                return not self._deleted
            if self.index is not None:
                self.index.absorb()
            left = {queue: queue.max_offset for queue in self.dirty_queues}
            flush = QueueFlush(self.log.written_end, self.entries_total(), self.last_store_ms, left)
            self._flushing = flush
        for queue in flush.write_some(count):
            self.dirty_queues.pop(queue, None)
        if flush.left:
            return False
        self._flushing = None
        if is_deletion_synced:
            self._deleted_until = 0
        self.queued_ms = flush.store_ms
        self.marks.written = flush.end
        self.marks.entries = REBUILDING if self._deleted_until else flush.entries
        self.save_marks()
        return not self._deleted

    def write_queues(self) -> None:
        """Write the queue and index entries that are still in memory, but no marks.

        Raises:
            DiskFull, DiskFailed: entries that were not written stay in memory.
        """
        self._flushing = None
        if self.index is not None:
            self.index.absorb()
        for queue in list(self.dirty_queues):
            queue.flush()
            del self.dirty_queues[queue]
        self.queued_ms = self.last_store_ms

    def take_unsynced(self, log_offset: int) -> list[str]:
        """Return the paths of queue and index files that have to be synced, and count them as synced.

        `log_offset`: below it, index files are on the device.
        """
        unsynced, self.queue_files.unsynced = self.queue_files.unsynced, {}
        paths = list(unsynced)
        if self.index is not None:
            paths += [file.path for file in self.index.files if file.end_offset >= log_offset]
        self._taken.update(dict.fromkeys(paths))
        return paths

    def not_synced(self, paths: list[str]) -> None:
        """Count files as not synced again: their sync failed."""
        self.queue_files.unsynced.update(dict.fromkeys(paths))

    def note_unsynced(self, log_offset: int) -> None:
        """Count queue files with entries of records at or after a log offset as not synced: recovery cannot know."""
        for queue in self.queues.values():
            if queue.last_log_end > log_offset:
                self.not_synced(queue.paths_from(log_offset))

    def synced_up_to(self, log_offset: int) -> None:
        """Set the synced mark: log, queues and index before `log_offset` are on the device."""
        self.marks.synced = max(self.marks.synced, log_offset)
        self._taken.clear()
        self.save_marks()

    def save_marks(self) -> None:
        """Write the marks."""
        write_marks(self._marks_file, self.marks)

    def sync_marks(self) -> None:
        """Write the marks and sync them; blocking."""
        self.save_marks()
        self._marks_file.datasync()

    def entries_total(self) -> int:
        """Return the sum of all queues' max offsets. Cost: one step per queue."""
        return sum(queue.max_offset for queue in self.queues.values())

    def entries_in_files(self) -> int:
        """Return the sum of the queue offsets up to which the queues are in files. Cost: one step per queue."""
        return sum(queue.tail_start for queue in self.queues.values())

    def checkpoint(self, store_ms: int) -> Checkpoint:
        """Return RocketMQ's checkpoint. The records up to `store_ms` and their queue entries must be synced."""
        index_ms = self.index.last_full_ms() if self.index is not None else 0
        return Checkpoint(store_ms, store_ms, index_ms, 0, self.log.flushed_offset)

    def close(self, *, clean: bool = True) -> None:
        """Write and sync everything, then delete `abort`. Does nothing unless `clean`, or after a failed write."""
        if not clean or self.log.refused is not None:
            return
        self.flush()
        self.flush_queues()
        for path in dict.fromkeys([*self._taken, *self.take_unsynced(self.marks.synced)]):  # a sync may be in progress
            if self.disk.exists(path):
                self.disk.open(path).datasync()
        if self.index is not None:
            self.index.close()
        write_checkpoint(self.disk, self.checkpoint(self.last_store_ms))
        self.marks.synced = self.marks.written = self.log.written_end
        self.marks.entries = self.entries_total()
        self.marks.clean = True
        self.marks.without_keys = self.index is not None and not self.index.files
        self.sync_marks()
        self.disk.remove("abort")
        self.log.close()


def deleted_topic(properties: bytes) -> str | None:
    """Return the topic that a record of `DELETION_TOPIC` names; None if it is missing or invalid."""
    topic = decode_properties(properties.decode("utf-8", "replace")).get(_DELETED, "")
    return topic if topic_name_error(topic) is None else None


def _queue_offset(queue: ConsumeQueue, sys_flag: int) -> int:
    """Return the queue offset of the next record of a queue; 0 if its sys flag means that it gets no queue entry."""
    return 0 if sys_flag & _TRANSACTION_BITS in (_PREPARED, _ROLLBACK) else queue.next_offset
