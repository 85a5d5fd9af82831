"""Messages of a queue for a pull: matching entries, and the bytes of their records.

Every record is compared with its entry before it is sent: log offset, size, topic, queue and queue offset. Of adjacent
records only the first and the last are compared: the entries between them fill the distance, so no other record can lie
there. Bodies and checksums are verified by the scrubber and the client.

Source: docs/internals/storage.md, "read rules".
"""

from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import compress
from operator import add, ne
from struct import Struct
from typing import NamedTuple

from tandemq.broker.filter.parser import SqlFilter
from tandemq.broker.filter.retry import RetryFilter
from tandemq.broker.kernel.pulls import Messages
from tandemq.broker.kernel.verification import Mismatch
from tandemq.broker.state.damage_table import WAITS, Damages
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, is_hole
from tandemq.codec.record.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, TOPIC_V1_BYTES_MAX
from tandemq.engine import EXAMINED_ENTRIES_MAX, Selected, evaluation_cost, record_properties
from tandemq.errors import OffsetGone
from tandemq.model.message import SysFlag
from tandemq.not_cached import NotCached
from tandemq.storage.consume_queue import ConsumeQueue, unpack_entries
from tandemq.storage.log.commit_log import CommitLog

EVALUATION_COST_MAX = 4 << 20
"""Cost of evaluations (`evaluation_cost`) from which on a pull with an SQL filter examines no more messages."""
EXAMINED_BYTES_MAX = 4 << 20
"""Bytes of records from which on such a pull examines no more."""
EXAMINED_AT_ONCE = 64
EXAMINED_AT_ONCE_BYTES = 256 << 10
JOINED_RECORD_BYTES_MAX = 8192
"""Mean record size up to which records are copied into one buffer, since many small buffers cost more."""
_head_of = Struct(">iI4xi4xqq48xi").unpack_from
"""Size, magic, queue id, queue offset, log offset, and the body's length if both hosts are IPv4."""
_FLAGS_LAST_AT = 39
_BODY_AT = 88
_length_at = Struct(">i").unpack_from
_BORN_V6, _STORE_V6 = int(SysFlag.BORN_HOST_V6), int(SysFlag.STORE_HOST_V6)
_ANY_V6 = _BORN_V6 | _STORE_V6


class _Selection(NamedTuple):
    """Records chosen by their entries and not read yet; the first three fields have an item per record, in order."""

    starts: Sequence[int]
    """Log offsets."""
    ends: Sequence[int]
    queue_offsets: Sequence[int]
    next_offset: int
    mismatch: Mismatch | None = None
    waits_at: int | None = None


class MessageReader:
    """Reads messages of all queues of one log."""

    def __init__(self, log: CommitLog, damages: Damages) -> None:
        """`damages`: damaged ranges of the log, whose messages are not returned."""
        self._log = log
        self._damages = damages

    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        codes: Collection[int] | None,
        *,
        most: int,
        bytes_max: int,
        limit: int,
        may_wait: bool = True,
    ) -> Messages:
        """Read messages from a queue offset on.

        Args:
            codes: tags codes that match; None: all.
            most: maximum number of messages, at least 1.
            bytes_max: maximum of their bytes; a single message may be larger.
            limit: log offset from which on messages may not be shown yet.
            may_wait: whether to wait for the device; only records that do not match their entries are read so anyway.

        Raises:
            OffsetGone: the records were deleted.
            NotCached: the device would have to be waited for, and that may not be.
            DiskFailed: the device failed.
        """
        entries = queue.read(offset, most if codes is None else EXAMINED_ENTRIES_MAX, may_wait=may_wait)
        return self._read(queue, entries, offset, codes, most=most, bytes_max=bytes_max, limit=limit, may_wait=may_wait)

    def _read(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        offset: int,
        codes: Collection[int] | None,
        *,
        most: int,
        bytes_max: int,
        limit: int,
        may_wait: bool,
    ) -> Messages:
        """Read messages of packed queue entries, the first of which has an offset; else as `read`."""
        selection = None
        if not self._damages.ranges:
            try:
                found = self._log.reader.gather(
                    entries, offset, queue.queue_id, queue.topic.encode(), codes,
                    most=most, bytes_max=bytes_max, limit=limit, may_wait=may_wait,
                )  # fmt: skip
            except OffsetGone:
                found = None
            if found is not None:  # none is unusual, and each matches its entry
                data, count, next_offset = found
                return Messages([data] if count else [], count, len(data), next_offset)
        if codes is None and not self._damages.ranges:
            selection = self._select_all(entries, offset, bytes_max, limit)
        if selection is None:
            selection = self._select(entries, offset, codes, most, bytes_max, limit)
        try:
            messages = self._load_runs(queue, selection, may_wait=may_wait)
        except NotCached as missing:
            raise self._log.reader.with_next(missing, entries, codes) from None
        return self._load_each(queue, selection) if messages is None else messages

    def read_matching(
        self,
        queue: ConsumeQueue,
        offset: int,
        sql: SqlFilter | RetryFilter,
        *,
        most: int,
        bytes_max: int,
        limit: int,
        may_wait: bool = True,
    ) -> Messages:
        """Read the messages whose properties match; arguments and errors as for `read`."""
        if isinstance(sql, SqlFilter) and not self._damages.ranges:
            entries = queue.read(offset, EXAMINED_ENTRIES_MAX, may_wait=may_wait)
            selected = self._select_matching(queue, entries, offset, sql, most, bytes_max, limit, may_wait)
            if selected is not None:
                data, count, next_offset, _, cost = selected
                return Messages([data] if count else [], count, len(data), next_offset, cost=cost)
        return self._examine(queue, offset, sql, most, bytes_max, limit, may_wait=may_wait)

    def _select_matching(
        self,
        queue: ConsumeQueue,
        entries: bytes,
        offset: int,
        sql: SqlFilter,
        most: int,
        bytes_max: int,
        limit: int,
        may_wait: bool,
    ) -> Selected | None:
        """Examine messages by the engine; None if one is unusual, does not match its entry, or was deleted."""
        try:
            return self._log.reader.select(
                entries,
                offset,
                queue.queue_id,
                queue.topic.encode(),
                sql.program,
                most=most,
                bytes_max=bytes_max,
                examined_max=EXAMINED_BYTES_MAX,
                cost_max=EVALUATION_COST_MAX,
                limit=limit,
                may_wait=may_wait,
            )
        except OffsetGone:
            return None

    def _examine(
        self,
        queue: ConsumeQueue,
        offset: int,
        sql: SqlFilter | RetryFilter,
        most: int,
        bytes_max: int,
        limit: int,
        *,
        may_wait: bool = True,
    ) -> Messages:
        """Examine messages one by one."""
        entries = queue.read(offset, EXAMINED_ENTRIES_MAX, may_wait=may_wait)
        first, stop = offset, offset + EXAMINED_ENTRIES_MAX
        found: list[bytes] = []
        size = examined = cost = 0
        part = Messages([], 0, 0, offset)
        while offset < stop and len(found) < most and examined < EXAMINED_BYTES_MAX:
            before = offset
            at = (offset - first) * QUEUE_ENTRY_BYTES
            try:
                part = self._read_some(
                    queue, entries[at : at + EXAMINED_AT_ONCE * QUEUE_ENTRY_BYTES], offset, limit, may_wait=may_wait
                )
            except OffsetGone:
                if found:
                    break
                raise
            except NotCached as missing:
                if offset > first:
                    break
                raise self._log.reader.with_next(missing, entries, None) from None
            for data in map(bytes, part.buffers):
                start = 0
                for record in record_properties(data):
                    is_full = len(found) >= most or examined >= EXAMINED_BYTES_MAX or cost >= EVALUATION_COST_MAX
                    matches = not is_full and sql.matches(record.properties)
                    if is_full or (matches and found and size + record.end - start > bytes_max):
                        return Messages([b"".join(found)] if found else [], len(found), size, offset, cost=cost)
                    if matches:
                        found.append(data[start : record.end])
                        size += record.end - start
                    examined += record.end - start
                    cost += evaluation_cost(sql.parts, record.size)
                    start, offset = record.end, record.queue_offset + 1
            if part.next_offset == before or part.mismatch is not None or part.waits_at is not None:
                break
            offset = part.next_offset
        return part._replace(buffers=[b"".join(found)] if found else [], number=len(found), size=size, cost=cost)

    def _read_some(self, queue: ConsumeQueue, entries: bytes, offset: int, limit: int, *, may_wait: bool) -> Messages:
        """Read the messages of entries, or those before the first one that is not cached; raises as `read`."""
        while True:
            try:
                return self._read(
                    queue,
                    entries,
                    offset,
                    None,
                    most=EXAMINED_AT_ONCE,
                    bytes_max=EXAMINED_AT_ONCE_BYTES,
                    limit=limit,
                    may_wait=may_wait,
                )
            except NotCached as missing:
                cached = self._log.reader.entries_before(missing, entries)
                if not 0 < len(cached) < len(entries):
                    raise
                entries = cached

    def _select_all(self, entries: bytes, offset: int, bytes_max: int, limit: int) -> _Selection | None:
        """Select all entries, in far fewer steps than `_select`; None if that is not possible."""
        starts, sizes = unpack_entries(entries)
        if not starts or min(sizes) < RECORD_BYTES_MIN or min(starts) < 0 or sum(sizes) > bytes_max:
            return None
        ends = list(map(add, starts, sizes))
        if max(ends) > min(limit, self._log.written_end):
            return None
        next_offset = offset + len(starts)
        return _Selection(starts, ends, range(offset, next_offset), next_offset)

    def _select(
        self, entries: bytes, offset: int, codes: Collection[int] | None, most: int, bytes_max: int, limit: int
    ) -> _Selection:
        starts: list[int] = []
        ends: list[int] = []
        queue_offsets: list[int] = []
        total = 0
        written_end = self._log.written_end
        damages = self._damages if self._damages.ranges else None
        mismatch, waits_at = None, None
        for log_offset, size, code in QUEUE_ENTRY.iter_unpack(entries):
            is_message = not is_hole(size, code)
            if is_message and not (size >= RECORD_BYTES_MIN and 0 <= log_offset <= written_end - size):
                mismatch = Mismatch(offset, log_offset, f"the entry says {size} bytes at log offset {log_offset}")
                break
            if log_offset >= limit:
                break
            fate = damages.fate_of(log_offset, size) if damages is not None else ""
            if fate == WAITS:
                waits_at = log_offset
                break
            if fate or not is_message or (codes is not None and code not in codes):
                offset += 1
                continue
            total += size
            if starts and (len(starts) >= most or total > bytes_max):
                break
            starts.append(log_offset)
            ends.append(log_offset + size)
            queue_offsets.append(offset)
            offset += 1
        return _Selection(starts, ends, queue_offsets, offset, mismatch, waits_at)

    def _load_runs(self, queue: ConsumeQueue, selection: _Selection, *, may_wait: bool) -> Messages | None:
        """Read the selected records, adjacent ones as one piece; None if one is missing or does not match its entry."""
        starts, ends, queue_offsets = selection.starts, selection.ends, selection.queue_offsets
        gaps = list(compress(range(1, len(starts)), map(ne, ends, starts[1:])))
        firsts: Sequence[int] = range(len(starts))
        lasts = firsts
        if len(gaps) < len(starts) - 1:
            firsts, lasts = [0, *gaps], [*[gap - 1 for gap in gaps], len(starts) - 1]
            ranges = [(starts[first], ends[last]) for first, last in zip(firsts, lasts, strict=True)]
        else:
            ranges = list(zip(starts, ends, strict=True))
        try:
            pieces = self._log.reader.read(ranges, may_wait=may_wait)
        except OffsetGone:
            return None
        queue_id, topics, head_of, body_at = queue.queue_id, _stored_topics(queue.topic), _head_of, _BODY_AT
        topic = topics.get(MAGIC_V1, b"")
        for first, last, data in zip(firsts, lasts, pieces, strict=True):
            start = starts[last]
            position = start - starts[first]
            size, magic, stated_queue_id, queue_offset, log_offset, body_bytes = head_of(data, position)
            matches = (
                log_offset == start
                and queue_offset == queue_offsets[last]
                and stated_queue_id == queue_id
                and size == ends[last] - start
                and magic == MAGIC_V1
                and data.startswith(topic, position + body_at + body_bytes)
            )  # the common case of `_is_record`, without the call
            if not matches and not _is_record(
                data, position, queue_id, queue_offsets[last], start, ends[last] - start, topics
            ):
                return None
            if first != last and not _is_record(data, 0, queue_id, queue_offsets[first], starts[first], 0, topics):
                return None
        return _messages(pieces, len(starts), selection)

    def _load_each(self, queue: ConsumeQueue, selection: _Selection) -> Messages:
        """Read record by record, up to the first that does not match its entry.

        Raises:
            OffsetGone: the first record was deleted.
        """
        topics = _stored_topics(queue.topic)
        pieces: list[bytes] = []
        for start, end, queue_offset in zip(selection.starts, selection.ends, selection.queue_offsets, strict=True):
            stopped = selection._replace(next_offset=queue_offset, mismatch=None, waits_at=None)
            if end <= self._log.start:
                if not pieces:
                    raise OffsetGone(f"commit log: the record at {start} was deleted")
                return _messages(pieces, len(pieces), stopped)
            try:
                (data,) = self._log.reader.read([(start, end)])
            except OffsetGone:
                data = b""
            if not data or not _is_record(data, 0, queue.queue_id, queue_offset, start, end - start, topics):
                reason = "no record of this topic, queue and offset begins at the log offset of the entry"
                return _messages(pieces, len(pieces), stopped._replace(mismatch=Mismatch(queue_offset, start, reason)))
            pieces.append(data)
        return _messages(pieces, len(pieces), selection)


def _messages(pieces: list[bytes], count: int, selection: _Selection) -> Messages:
    size = sum(map(len, pieces))
    if len(pieces) > 1 and size <= JOINED_RECORD_BYTES_MAX * len(pieces):
        pieces = [b"".join(pieces)]
    return Messages(pieces, count, size, selection.next_offset, selection.mismatch, selection.waits_at)


@lru_cache(maxsize=1024)
def _stored_topics(topic: str) -> dict[int, bytes]:
    """Return the topic with its length in the form of records, by the magic of the record."""
    raw = topic.encode()
    forms = {MAGIC_V2: len(raw).to_bytes(2) + raw}
    if len(raw) <= TOPIC_V1_BYTES_MAX:
        forms[MAGIC_V1] = len(raw).to_bytes(1) + raw
    return forms


def _is_record(
    data: bytes, at: int, queue_id: int, queue_offset: int, log_offset: int, size: int, topics: dict[int, bytes]
) -> bool:
    """Return whether a record of any form at a position in a buffer matches an entry; `size` 0: any size."""
    stated_size, magic, stated_queue_id, stated_offset, stated_log_offset, body_bytes = _head_of(data, at)
    topic = topics.get(magic)
    hosts = data[at + _FLAGS_LAST_AT] & _ANY_V6
    if hosts:
        at += 12 * bool(hosts & _BORN_V6) + 12 * bool(hosts & _STORE_V6)
        (body_bytes,) = _length_at(data, at + _BODY_AT - 4)
    return (
        topic is not None
        and stated_log_offset == log_offset
        and stated_offset == queue_offset
        and stated_queue_id == queue_id
        and size in (0, stated_size)
        and body_bytes >= 0
        and data.startswith(topic, at + _BODY_AT + body_bytes)
    )
