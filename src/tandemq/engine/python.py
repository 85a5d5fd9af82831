"""The engine in Python: what `engine.pyx` does, message by message.

It takes no sends, so that all of them go through `DecodedPath`, which is the specification of what the compiled engine
stores and answers.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from tandemq.codec.record.entries import BLANK_BYTES_MIN, BLANK_MAGIC, INDEX_ENTRY, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import Buffer, Record, parse_record, peek, read_message, record_keys, tags_code
from tandemq.engine.program import FilterStep
from tandemq.errors import ProtocolError
from tandemq.model.java_hash import cached_java_hash, java_hash
from tandemq.model.message import StoredMessage, SysFlag, decode_properties
from tandemq.model.topic import SCHEDULE_TOPIC

if TYPE_CHECKING:
    import numpy as np

NAME = "python"
KEY_ROW = Struct("<iqq")
"""A key of a message for the index: hash of topic#key, log offset, store time (ms)."""
KEY_ROW_BYTES = KEY_ROW.size
TIMED_BYTES_MAX = 192
"""Longest properties that the delivery of a timed message adds, besides the name of its topic."""
CHECKED_BYTES_MAX = 96
"""Longest properties that the checks of a half message add."""
_TRANSACTION_BITS = 0xC
_PREPARED = 0x4
_COMPRESSED = int(SysFlag.COMPRESSED)
_ROLLBACK = 0xC
_MASK = 0xFFFFFFFF
_INT32_MAX = 0x7FFFFFFF
_SCHEDULE = SCHEDULE_TOPIC.encode()
_pack = QUEUE_ENTRY.pack
_unpack = QUEUE_ENTRY.unpack_from


class QueueTail:
    """The entries of a consume queue that are not in its files yet.

    [tail_start, max_offset)     entries of messages in the log
    [max_offset, next_offset)    staged entries: their messages are not written to the log yet
    """

    __slots__ = ("_entries", "held", "last_log_end", "max_offset", "next_offset", "tail_start")

    def __init__(self) -> None:
        """Begin without entries."""
        self._entries = bytearray()
        self.tail_start = 0
        self.max_offset = 0
        self.next_offset = 0
        """Queue offset of the next message; larger than `max_offset` only within a turn."""
        self.last_log_end = 0
        """Log offset of the end of the newest record in this queue."""
        self.held: object | None = None
        """Pulls waiting for this queue; owned by the broker's long polling service."""

    def start_tail(self, queue_offset: int) -> None:
        """Drop all entries; the next one has this queue offset."""
        self._entries.clear()
        self.tail_start = self.max_offset = self.next_offset = queue_offset

    def stage_entry(self, log_offset: int, size: int, tags_code: int, times: int = 1) -> bool:
        """Stage the entry of the next queue offset, or of several; return whether it is the first staged one."""
        is_first = self.next_offset == self.max_offset
        self._entries += _pack(log_offset, size, tags_code) * times
        self.next_offset += times
        return is_first

    def stage_packed(self, entries: bytes) -> None:
        """Stage packed entries of the next queue offsets."""
        self._entries += entries
        self.next_offset += len(entries) // QUEUE_ENTRY_BYTES

    def staged_log_end(self) -> int:
        """Return the end of the record of the newest entry, staged or not."""
        if self.next_offset == self.max_offset:
            return self.last_log_end
        log_offset, size, _ = _unpack(self._entries, len(self._entries) - QUEUE_ENTRY_BYTES)
        return int(log_offset + size)

    def commit_staged(self) -> None:
        """Take the staged entries as those of messages in the log."""
        self.last_log_end = self.staged_log_end()
        self.max_offset = self.next_offset

    def drop_staged(self) -> None:
        """Drop the staged entries: their messages could not be written to the log."""
        self.next_offset = self.max_offset
        del self._entries[(self.max_offset - self.tail_start) * QUEUE_ENTRY_BYTES :]

    def tail(self, queue_offset: int, stop: int) -> bytes:
        """Return the packed entries `[queue_offset, stop)`, all of them at or after `tail_start`."""
        at = self.tail_start
        return bytes(self._entries[(queue_offset - at) * QUEUE_ENTRY_BYTES : (stop - at) * QUEUE_ENTRY_BYTES])

    def rewrite_tail(self, queue_offset: int, packed: bytes) -> None:
        """Replace entries at or after `tail_start`."""
        at = (queue_offset - self.tail_start) * QUEUE_ENTRY_BYTES
        self._entries[at : at + len(packed)] = packed

    def advance_tail(self, count: int) -> None:
        """Drop the first `count` entries, which are in the files now."""
        del self._entries[: count * QUEUE_ENTRY_BYTES]
        self.tail_start += count

    def cut_tail(self, queue_offset: int) -> None:
        """Drop the entries from a queue offset on, which is at or after `tail_start`; none is staged."""
        del self._entries[(queue_offset - self.tail_start) * QUEUE_ENTRY_BYTES :]
        self.max_offset = self.next_offset = queue_offset


class TopicTarget:
    """The values of a topic that its ordinary sends need."""

    __slots__ = ("encoded", "queues", "takes_plain", "write_queue_nums")

    def __init__(self, name: str, write_queue_nums: int, *, takes_plain: bool) -> None:
        """Begin without a queue.

        Args:
            takes_plain: whether an ordinary send needs no further check of the topic.
        """
        raw = name.encode()
        self.encoded = bytes([min(len(raw), 255)]) + raw
        """The name in the form of records, length byte first."""
        self.write_queue_nums = write_queue_nums
        self.takes_plain = takes_plain
        self.queues: dict[int, QueueTail] = {}
        """Queues in use so far, by queue id."""


Ack = tuple[int, bytes | None, int, bool, int]
"""Responses of one connection that wait for the log: link, frames, log offset, waits, messages.

The frames say SUCCESS; None or empty for one-way sends. They may be sent when the log is safe up to the log offset; 0:
nothing was stored, at once. `waits`: whether flush and replicas count as safe. `messages`: how many they acknowledge. A
plain tuple, since one is made per connection and turn.
"""


TimedSend = tuple[int, int, str, bool]
"""A timed message: queue offset, TIMER_OUT_MS, topic that it is delivered to, whether it asks not to deliver another.
A plain tuple, since one is made per message."""


EndedHalf = tuple[int, str, int, bool]
"""The end of a transaction: queue offset of its half message, topic, born time (ms), whether it was committed."""


class TakenSends(NamedTuple):
    """What `SendEngine.flush` returns."""

    log_offset: int
    data: bytes
    """Contiguous records."""
    queues: list[Any]
    """Queues whose first entry since the last commit was staged."""
    keys: bytes
    """Packed (`KEY_ROW`)."""
    store_ms: int
    acks: list[Ack]
    messages: int
    """Sends; ends of transactions are none."""
    body_bytes: int
    timed: list[TimedSend]
    """The timed ones among the messages."""
    halves: list[tuple[int, int, str, int]]
    """Half messages among them: queue offset, log offset, topic after the commit, bytes of the record."""
    ends: list[EndedHalf]
    """Transactions that were committed or rolled back."""


class SendEngine:
    """Ordinary sends of one turn: from frames to records, queue entries, keys and responses."""

    count = 0
    """Messages taken since the last `flush`."""

    def __init__(self, topics: Mapping[str, TopicTarget]) -> None:
        """Take the table of topics, which the owner changes; nothing is known of transactions."""

    def configure(
        self,
        *,
        store_host: bytes,
        region: str,
        trace_on: str,
        common_pairs: bytes,
        frame_bytes_max: int,
        body_bytes_max: int,
        delays_ms: Sequence[int],
        broker_name: str,
        timer_precision_ms: int,
        timer_delay_max_ms: int,
    ) -> None:
        """Set what responses and records have in common, and the limits of ordinary messages.

        Args:
            timer_precision_ms: unit of time of timed messages; 0: they are not taken.
        """

    def know_transactions(
        self,
        open_halves: Mapping[int, tuple[int, str, int]] | None,
        ended: dict[int, bool] | None,
        read_log: Callable[[int, int], bytes] | None,
    ) -> None:
        """Set what is known of transactions; None: nothing.

        Args:
            open_halves: log offset, topic and record size of each open half message, by queue offset.
            ended: those that ended in this turn; the engine enters what it ends.
            read_log: returns bytes of the log, from an offset on; b"" if they cannot be read.
        """

    def begin(
        self,
        log_end: int,
        room: int,
        store_ms: int,
        timers_room: int,
        *,
        takes_halves: bool = False,
        takes_ends: bool = False,
    ) -> None:
        """Begin with records for a log offset.

        Args:
            log_end: that log offset.
            room: bytes that the current file has for them.
            store_ms: their store time.
            timers_room: maximum number of timed messages.
            takes_halves: whether half messages are accepted.
            takes_ends: whether ends of transactions are accepted.
        """

    def take(self, link: int, born_host: bytes, data: bytes, at: int) -> int:
        """Take the ordinary sends from `data[at]` on; return the position of the first other or incomplete frame."""
        return at

    def flush(self) -> TakenSends:
        """Return what was taken since `begin`, and forget it."""
        return TakenSends(0, b"", [], b"", 0, [], 0, 0, [], [], [])


class RecordQueue(Protocol):
    """What `stage_records` needs of a consume queue."""

    topic: str
    next_offset: int
    max_offset: int

    def stage(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
        """Stage the entry of a record at the queue offset that the record states; False if that entry exists."""


_Tail = TypeVar("_Tail", bound=QueueTail)
_Queue = TypeVar("_Queue", bound=RecordQueue)


def commit_staged(queues: Sequence[_Tail], woken: list[_Tail]) -> None:
    """Commit the staged entries of queues; add those with held pulls to `woken`."""
    for queue in queues:
        queue.commit_staged()
        if queue.held is not None:
            woken.append(queue)


def key_hash(topic: str, key: bytes) -> int:
    """Return |hashCode(topic#key)|; 0 for the minimum of an int32, which has no absolute value."""
    if key.isascii():
        value = cached_java_hash(f"{topic}#") & _MASK
        for unit in key:
            value = 31 * value + unit & _MASK
    else:
        value = java_hash(f"{topic}#{key.decode('utf-8', 'replace')}") & _MASK
    value = value - 0x100000000 if value & 0x80000000 else value
    return 0 if value == -(1 << 31) else abs(value)


def key_rows(topic: str, properties: bytes, log_offset: int, store_ms: int) -> bytes:
    """Return the rows (`KEY_ROW`) of a message's keys: its unique key, then each word of KEYS."""
    return b"".join([KEY_ROW.pack(key_hash(topic, key), log_offset, store_ms) for key in record_keys(properties)])


class LinkedKeys(NamedTuple):
    """Index entries, packed, and how many of them are the first of their slot."""

    entries: bytes
    fresh: int


def link_keys(rows: bytes, table: "np.ndarray[Any, np.dtype[np.int32]]", begin_ms: int, number: int) -> LinkedKeys:
    """Return the index entries of keys, and enter them in the slots.

    Args:
        rows: packed keys (`KEY_ROW`), in log order.
        table: number of the newest entry of each slot, 0 for none.
        begin_ms: begin time of the index file.
        number: number of the first entry.
    """
    entries: list[bytes] = []
    fresh = 0
    for hashed, log_offset, store_ms in KEY_ROW.iter_unpack(rows):
        slot = hashed % len(table)
        previous = int(table[slot])
        fresh += previous == 0
        seconds = min(max((store_ms - begin_ms) // 1000, 0), _INT32_MAX)
        entries.append(INDEX_ENTRY.pack(hashed, log_offset, seconds, previous))
        table[slot] = number
        number += 1
    return LinkedKeys(b"".join(entries), fresh)


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


def parse_records(data: bytes | bytearray | memoryview, start: int, end: int, *, checks: bool) -> ParsedRecords | None:
    """Return the apparent records in `[start, end)`; the last one ends before `end`. Always None without a compiler.

    Args:
        checks: whether checksums are verified.
    """
    return None


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


TimerRow = tuple[int, str, str, bool, bool, int, int]
"""The fields of `broker.timers.records.TimerHead`. A plain tuple, since one is made per message."""


def timer_heads(data: bytes, base: int, entries: bytes, queue_offset: int, topic: bytes) -> Sequence[TimerRow | None]:
    """Return what the index of timed messages needs of records; None for those that the caller reads itself.

    Args:
        base: log offset of `data[0]`.
        entries: packed, of consecutive messages of queue 0 of a topic.
        queue_offset: of the first.
    """
    return [None] * (len(entries) // QUEUE_ENTRY_BYTES)


CopyRow = tuple[TimerRow, int, int, int, int, int, int, bytes, bytes, int, bytes, bytes]
"""The fields of `broker.timers.records.TimedCopy`."""


def timer_copies(data: bytes, base: int, entries: bytes, queue_offset: int, topic: bytes) -> Sequence[CopyRow | None]:
    """Return what the copies of timed messages need, verified; None for those that the caller reads itself.

    Args:
        data: and the others, see `timer_heads`.
    """
    return [None] * (len(entries) // QUEUE_ENTRY_BYTES)


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


class StagedRecords(NamedTuple, Generic[_Queue]):
    """What `stage_records` staged."""

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
) -> StagedRecords[_Queue]:
    """Stage the entries of valid records at the queue offsets that they state.

    Args:
        data: whole records, perhaps with a blank at the end.
        queue_for: returns the queue of a topic and queue id; None if the record is entered nowhere.
        entry_code: returns the tags code of an entry of the delay topic, for topic, properties and store time.
    """
    store_ms = 0
    queues: list[_Queue] = []
    keys: list[bytes] = []
    for record in _records(bytes(data)):
        store_ms = record.store_ms
        topic = record.topic.decode("utf-8", "replace")
        transaction = record.sys_flag & _TRANSACTION_BITS
        if transaction not in (_PREPARED, _ROLLBACK):
            queue = queue_for(record.topic, record.queue_id)
            if queue is None:
                continue
            if topic == SCHEDULE_TOPIC:
                code = entry_code(topic, record.properties, store_ms)
            else:
                code = tags_code(record.properties)
            is_first = queue.next_offset == queue.max_offset
            if queue.stage(record.queue_offset, record.log_offset, record.size, code) and is_first:
                queues.append(queue)
        if transaction != _ROLLBACK:
            keys.append(key_rows(topic, record.properties, record.log_offset, store_ms))
    return StagedRecords(queues, b"".join(keys), store_ms)


class LogSources:
    """Sources of bytes of the log: cached blocks, what the page cache has of files, and a function for the rest."""

    __slots__ = ("bytes_read",)

    def __init__(
        self,
        blocks: dict[int, bytes],
        block_bytes: int,
        segment_bytes: int,
        load: Callable[[int, int, int, bool], bytes | None],
    ) -> None:
        """Begin without files.

        Args:
            blocks: bytes of the log by block number; the owner changes them.
            block_bytes, segment_bytes: size of a block and of a file.
            load: reads a record that is not in memory. Called with log offsets: its start and end, and the end of the
                records that one read can serve with it; and whether it is cheaper to add the block in which the record
                begins to `blocks`. Returns the bytes of the log from the start on, at least those of the record; or
                None if the record is in `blocks` now.
        """
        self.bytes_read = 0
        """Bytes read from files, `load` not counted."""

    def add_file(self, start: int, descriptor: int) -> None:
        """Register the open file that begins at a log offset; it stays open until `forget`."""

    def forget(self) -> None:
        """Forget the files, and how often blocks were read."""


class Gathered(NamedTuple):
    """Records of a pull, one behind the other."""

    data: bytes
    messages: int
    next_offset: int
    """Queue offset behind the last examined entry."""


def gather_messages(
    entries: bytes,
    queue_offset: int,
    queue_id: int,
    topic: bytes,
    codes: Collection[int] | None,
    most: int,
    bytes_max: int,
    limit: int,
    written_end: int,
    recent_start: int,
    recent: bytearray,
    sources: LogSources,
) -> Gathered | None:
    """Return the records of queue entries; None: the caller selects and reads them one by one.

    None is returned for unusual entries and records, and always without a compiler.

    Args:
        entries: packed queue entries from `queue_offset` on.
        queue_id, topic: of the queue; each record must state them, and its queue offset.
        codes: tags codes that match; None: all.
        most: maximum number of messages, at least 1.
        bytes_max: maximum of their bytes; a single message may be larger.
        limit: log offset from which on messages may not be shown yet.
        written_end: end of the log.
        recent_start, recent: the newest bytes of the log, and the log offset of the first of them.
        sources: of older bytes.

    Raises:
        Exception: what `sources.load` raises.
    """
    return None


class StoredMessages(NamedTuple):
    """Messages of records, and the end of the last of them."""

    messages: list[StoredMessage]
    end: int


def stored_messages(data: bytes, start: int) -> StoredMessages:
    """Return the messages of records from `start` on, up to the first that is damaged, incomplete or compressed."""
    messages: list[StoredMessage] = []
    while 0 <= start < len(data):
        try:
            message = read_message(data, start, len(data), inflates=False)
        except ProtocolError:
            break
        if message.sys_flag & _COMPRESSED:
            break
        messages.append(message)
        start += message.size
    return StoredMessages(messages, start)


class RecordProperties(NamedTuple):
    """Properties of a record, and where it ends."""

    queue_offset: int
    log_offset: int
    end: int
    """Position behind the record."""
    size: int
    """Bytes of the properties."""
    properties: dict[str, str]


def record_properties(data: bytes) -> list[RecordProperties]:
    """Return the properties of records that follow each other, up to the first damaged one; CRCs are not verified."""
    found: list[RecordProperties] = []
    start = 0
    while start < len(data):
        record = parse_record(data, start, len(data))
        if isinstance(record, str):
            break
        start += record.size
        found.append(
            RecordProperties(
                record.queue_offset,
                record.log_offset,
                start,
                len(record.properties),
                decode_properties(record.properties.decode("utf-8", "replace")),
            )
        )
    return found


class FilterProgram:
    """An SQL92 filter over stored properties."""

    __slots__ = ("_matches", "parts")

    def __init__(self, steps: Sequence[FilterStep], parts: int, matches: Callable[[dict[str, str]], bool]) -> None:
        """Take a filter.

        Args:
            steps: its evaluation; the last step is the whole.
            parts: number of its constants and properties.
            matches: the same in Python, which decides what is unusual, and without a compiler everything.
        """
        self.parts = parts
        self._matches = matches

    def matches(self, properties: bytes) -> bool:
        """Return whether stored properties match."""
        return self._matches(decode_properties(properties.decode("utf-8", "replace")))


class Selected(NamedTuple):
    """Records that match a filter, one behind the other."""

    data: bytes
    messages: int
    next_offset: int
    """Queue offset behind the last examined entry."""
    examined: int
    """Bytes of the records that the filter was evaluated for."""
    cost: int
    """Cost of these evaluations (`evaluation_cost`)."""


def select_messages(
    entries: bytes,
    queue_offset: int,
    queue_id: int,
    topic: bytes,
    program: FilterProgram,
    most: int,
    bytes_max: int,
    examined_max: int,
    cost_max: int,
    limit: int,
    written_end: int,
    recent_start: int,
    recent: bytearray,
    sources: LogSources,
) -> Selected | None:
    """Return the records of queue entries that match a filter; None: the caller reads and examines them one by one.

    None is returned for unusual entries and records, and always without a compiler. The other arguments are those of
    `gather_messages`.

    Args:
        examined_max: bytes of examined records from which on no more are examined.
        cost_max: cost of evaluations (`evaluation_cost`) from which on no more are examined.

    Raises:
        Exception: what `sources.load` raises.
    """
    return None


def evaluation_cost(parts: int, size: int) -> int:
    """Return the cost of a filter with a number of constants and properties, for properties of a size in bytes."""
    return (1 + parts) * (64 + size)
