"""Records: verified, parsed, staged in queues."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC, QUEUE_ENTRY
from tandemq.codec.record.record import Buffer, Record, parse_record, peek, tags_code
from tandemq.engine.python.keys import key_rows
from tandemq.model.topic import DELETION_TOPIC, SCHEDULE_TOPIC

if TYPE_CHECKING:
    import numpy as np

_TRANSACTION_BITS = 0xC
_PREPARED = 0x4
_ROLLBACK = 0xC
_SCHEDULE = SCHEDULE_TOPIC.encode()
_pack = QUEUE_ENTRY.pack


class VerifiedRecords(NamedTuple):
    """Valid records: the position of their end, and their number."""

    end: int
    records: int


def verify_records(data: bytes, start: int, end: int, base: int) -> VerifiedRecords:
    """Return the valid whole records from `start` on; there may be more, which the caller verifies itself.

    Args:
        base: log offset of `data[0]`; the log offset stated by each record must match.
    """
    return VerifiedRecords(start, 0)


class ParsedRecords(NamedTuple):
    """Records that were found by their size fields."""

    places: bytes
    """Positions of each, as four 64-bit numbers of this machine: start and end, end of the body, end of the topic."""
    regular: bytes
    """One byte for each: 1 if it is a sound record with magic V1 and IPv4 hosts, else 0; of others body and topic end
    where they start."""
    heads: bytes
    """The first 88 bytes of each: of a regular record its fixed fields."""


def parse_records(data: bytes | bytearray | memoryview, start: int, end: int, *, checks: bool) -> ParsedRecords | None:
    """Return the apparent records in `[start, end)`; the last one ends before `end`. Always None without a compiler.

    Args:
        checks: whether checksums are verified.
    """
    return None


class RecordEntry(NamedTuple):
    """The queue entry that a record must have."""

    topic: bytes
    queue_id: int
    queue_offset: int
    entry: bytes
    """Packed; its tags code is the record's store time (ms) on the delay topic."""


def record_entries(data: Buffer) -> list[RecordEntry]:
    """Return the queue entries of valid records, perhaps with a blank at the end; messages in no queue have none."""
    return [
        RecordEntry(
            record.topic,
            record.queue_id,
            record.queue_offset,
            _pack(
                record.log_offset,
                record.size,
                record.store_ms if record.topic == _SCHEDULE else tags_code(record.properties),
            ),
        )
        for record in _records(bytes(data))
        if record.sys_flag & _TRANSACTION_BITS not in (_PREPARED, _ROLLBACK)
    ]


def _records(data: bytes) -> Iterator[Record]:
    position = 0
    while len(data) - position >= BLANK_BYTES_MIN and peek(data, position)[1] != BLANK_MAGIC:
        record = parse_record(data, position, len(data))
        assert not isinstance(record, str), record
        yield record
        position += record.size


class RecordQueue(Protocol):
    """Part of a consume queue that `stage_records` uses."""

    topic: str
    next_offset: int
    max_offset: int

    def stage(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Stage the entry of a record at the queue offset that the record states; False if that entry exists."""

    def unstage(self, queue_offset: int) -> None:
        """Drop the staged entries from a queue offset on."""


_Queue = TypeVar("_Queue", bound=RecordQueue)


class StagedRecords(NamedTuple, Generic[_Queue]):
    """Result of `stage_records`."""

    queues: list[_Queue]
    """Queues of which the first entry since the last commit was staged."""
    keys: bytes
    """Packed (`KEY_ROW`)."""
    store_ms: int
    """Store time of the last record, 0 if there is none."""


def stage_records(
    data: Buffer,
    queue_for: Callable[[bytes, int], _Queue | None],
    entry_code: Callable[[str, bytes, int], int],
    topic_deleted: Callable[[bytes], None],
) -> StagedRecords[_Queue]:
    """Stage the entries of valid records at the queue offsets that they state.

    Args:
        data: whole records, perhaps with a blank at the end.
        queue_for: returns the queue of a topic and queue id; None if the record is entered nowhere. Asked again behind
            a deletion.
        entry_code: returns the tags code of an entry of the delay topic, for topic, properties and store time.
        topic_deleted: called with the properties of a record of `DELETION_TOPIC`.

    Raises:
        Exception: what the callables raise; no entry is staged then.
    """
    store_ms = 0
    queues: list[_Queue] = []
    keys: list[bytes] = []
    begun: list[tuple[_Queue, int]] = []
    """Queues, each with its next queue offset before a record."""
    try:
        for record in _records(bytes(data)):
            store_ms = record.store_ms
            topic = record.topic.decode("utf-8", "replace")
            if topic == DELETION_TOPIC:
                topic_deleted(record.properties)
                continue
            transaction = record.sys_flag & _TRANSACTION_BITS
            if transaction not in (_PREPARED, _ROLLBACK):
                queue = queue_for(record.topic, record.queue_id)
                if queue is None:
                    continue
                begun.append((queue, queue.next_offset))
                if topic == SCHEDULE_TOPIC:
                    code = entry_code(topic, record.properties, store_ms)
                else:
                    code = tags_code(record.properties)
                is_first = queue.next_offset == queue.max_offset
                if queue.stage(record.queue_offset, record.log_offset, record.size, code) and is_first:
                    queues.append(queue)
            if transaction != _ROLLBACK:
                keys.append(key_rows(topic, record.properties, record.log_offset, store_ms))
    except BaseException:
        for queue, queue_offset in reversed(begun):
            queue.unstage(queue_offset)
        raise
    return StagedRecords(queues, b"".join(keys), store_ms)


def property_spans(data: Buffer, bounds: "np.ndarray[Any, np.dtype[np.int32]]", begin: bytes) -> bytes | None:
    """Return the value of a property in each of several records, as two 32-bit numbers of this machine: start and end
    in `data`, equal where it is absent or empty. If a record has it twice, the last one counts. Always None without a
    compiler.

    Args:
        data: the properties of the records, as stored, one behind the other.
        bounds: where those of each record start, and the end of the last ones.
        begin: name and 0x01.
    Raises:
        ValueError: bounds do not ascend, or exceed `data`.
    """
    return None


def copy_spans(
    data: Buffer,
    starts: "np.ndarray[Any, np.dtype[np.int64]]",
    stops: "np.ndarray[Any, np.dtype[np.int64]]",
    values: bytearray | memoryview,
) -> bytes | None:
    """Copy spans `[start, stop)` of bytes, one behind the other. Always None without a compiler.

    Args:
        values: the memory to copy to.
    Returns:
        Where each begins in `values`, and the end of the last one, as 32-bit numbers of this machine.
    Raises:
        ValueError: a span is not within `data`, or `values` is too small, or has 2 GiB or more.
    """
    return None
