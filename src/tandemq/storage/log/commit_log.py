"""Commit log: the messages of all topics in order of arrival, split into segment files.

Records of a turn are collected in memory and written by `write()`, with one call per file; large buffers are written
from where they are. If that fails, none of the turn's records is in the log: `end` is reset, and the caller rejects the
messages.

    append … append · write()  ->  [start, end) is readable · flush job  ->  below `flushed_offset` is on the device

Source: docs/internals/storage.md, "commit log"; RocketMQ CommitLog.
"""

from struct import Struct
from typing import NamedTuple

from tandemq.boundary import Buffer, Disk, File, split_buffers
from tandemq.codec.record.entries import BLANK, BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import encode_record, encoded_bytes
from tandemq.engine import LARGE_BODY_BYTES
from tandemq.errors import DiskFailed, DiskFull, RecordTooLarge, StoreError
from tandemq.storage.log.range_reader import RangeReader
from tandemq.storage.log.recent_writes import RecentWrites
from tandemq.storage.segmented_file import FileCache, SegmentLog

ZERO_AHEAD_BYTES = 4 << 20
_size_at = Struct(">i").unpack_from


class NewMessage(NamedTuple):
    """A message to store; its topic, queue and offsets are passed separately."""

    body: bytes
    properties: bytes
    """Encoded pairs that each end with 0x02, without a CRC property."""
    flag: int
    sys_flag: int
    born_ms: int
    born_host: bytes
    """Address and port: 8 bytes with IPv4, 20 with IPv6. The same for `store_host`."""
    store_ms: int
    store_host: bytes
    reconsume_times: int
    prepared_offset: int = 0


class AppendMessageResult(NamedTuple):
    """Position of an appended message, and the size of its record."""

    queue_offset: int
    log_offset: int
    size: int
    """Bytes of its record."""


class CommitLog:
    """The commit log of one broker. One writer; reads see all written bytes."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        """Load the segment files. Recovery must then set `end`.

        Raises:
            StoreDamaged: see `SegmentLog`.
        """
        self.files = FileCache(disk, files_max=64)
        self._segments = SegmentLog(disk, self.files, "commitlog", segment_bytes)
        self.segment_bytes = segment_bytes
        self.end = 0
        """End of the last appended record, written or not."""
        self.written_end = 0
        """End of the written bytes; equal to `end` between turns."""
        self.flushed_offset = 0
        """Below this offset the log is on the device."""
        self.truncations = 0
        """Number of calls of `open_at`, for jobs that must not outlive a truncation."""
        self.refused: Exception | None = None
        """Device error after which all writes are refused: bytes before them may be missing."""
        self.recent = RecentWrites()
        self._pending: list[Buffer] = []
        self._rolls: list[int] = []
        self._segment_end = 0
        self._zero_ahead = False
        """Write zeroes ahead of the log's end: syncs then change no block map, which makes them a third cheaper."""
        self._zeroed_end = 0
        self.reader = RangeReader(self)
        """Reader used by pulls."""

    @property
    def start(self) -> int:
        """Offset of the first byte held."""
        return self._segments.start

    def open_at(self, end: int, *, flushed: int) -> None:
        """Truncate the log at `end` and append from there on. Bytes below `flushed` are on the device."""
        self._segments.truncate(end)
        self.truncations += 1
        self.end = self.written_end = end
        self.flushed_offset = min(flushed, end)
        self._segment_end = self._file_end(end)
        self._pending.clear()
        self._rolls.clear()
        self.reader.forget()
        self._zeroed_end = end
        self.recent.restart(end)

    def wipe(self, end: int) -> None:
        """Zero the bytes after `end` and sync, as the step before a truncation; blocking."""
        self._segments.wipe(end)

    def reserve(self, size: int) -> int:
        """Return the offset of the next record of `size` bytes; if it does not fit, end the current file with a blank.

        Raises:
            RecordTooLarge: it fits into no file.
        """
        room = self._segment_end - self.end
        if size + BLANK_BYTES_MIN > room:
            if size + BLANK_BYTES_MIN > self.segment_bytes:
                raise RecordTooLarge(
                    f"a record of {size} bytes does not fit into a commit log file of {self.segment_bytes} bytes"
                )
            if room:
                self._pending.append(BLANK.pack(room, BLANK_MAGIC) + bytes(room - BLANK_BYTES_MIN))
                self.end += room
            self._rolls.append(self.end)
            self._segment_end = self.end + self.segment_bytes
        return self.end

    @property
    def room(self) -> int:
        """Bytes of records that the current file still has room for."""
        return max(0, self._segment_end - self.end - BLANK_BYTES_MIN)

    def encode(self, topic: str, queue_id: int, queue_offset: int, message: NewMessage) -> bytes:
        """Encode a message as the record at `end`, for `append`.

        Raises:
            RecordTooLarge: see `reserve` and `encode_record`.
        """
        name = topic.encode()
        size = encoded_bytes(name, message.body, message.properties, message.born_host, message.store_host)
        offset = self.reserve(size)
        raw = encode_record(
            topic=name,
            queue_id=queue_id,
            queue_offset=queue_offset,
            log_offset=offset,
            body=message.body,
            properties=message.properties,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_ms=message.born_ms,
            born_host=message.born_host,
            store_ms=message.store_ms,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_offset=message.prepared_offset,
        )
        assert len(raw) == size, "the size computed before encoding must hold"
        return raw

    def append(self, *parts: Buffer) -> None:
        """Append encoded records, unchanged: buffers, one behind the other, which must not cross a file's end."""
        size = sum(map(len, parts))
        room = self._segment_end - self.end
        if not room:
            self._rolls.append(self.end)
            self._segment_end = self.end + self.segment_bytes
            room = self.segment_bytes
        assert size <= room, "appended bytes must not cross files"
        self._pending += parts
        self.end += size

    def begin_at(self, offset: int) -> None:
        """Set the start of an empty log to a file's start other than 0, for a slave that copies from the last file."""
        assert not self._segments.starts and not self._pending and offset % self.segment_bytes == 0
        self.end = self.written_end = self.flushed_offset = offset
        self._segment_end = offset + self.segment_bytes
        self.recent.restart(offset)

    def write(self) -> int:
        """Write the appended records; return the number of bytes.

        Raises:
            DiskFull: none of them is in the log, and `end` is reset. Later appends may succeed.
            DiskFailed: the same, and the log refuses all further writes.
        """
        if not self._pending:
            return 0
        start, size = self.written_end, self.end - self.written_end
        parts, self._pending = _joined(self._pending), []
        rolls, self._rolls = self._rolls, []
        try:
            if self.refused is not None:
                raise DiskFailed(str(self.refused), hint="restart the broker once the disk is sound")
            self._write_pieces(parts, start, rolls)
        except StoreError as error:
            self._undo_write(start, b"".join(parts))
            if not isinstance(error, DiskFull):
                self.refused = self.refused or error
            raise
        self.written_end = self.end
        self.recent.add(*parts)
        if self._zero_ahead and self.end > self._zeroed_end:
            self._write_zeroes()
        return size

    def keep_zeroed_ahead(self, *, is_wanted: bool) -> None:
        """Write zeroes ahead of the log's end from now on, or no more."""
        self._zero_ahead = is_wanted

    def _write_zeroes(self) -> None:
        """Zero a few MiB of the current file. Errors are ignored; the write that needs the space reports them."""
        room = min(ZERO_AHEAD_BYTES, self._segment_end - self.end)
        if room <= 0:
            return
        try:
            self._segments.write(bytes(room), self.end)
        except StoreError:
            return
        self._zeroed_end = self.end + room

    def _write_pieces(self, parts: list[Buffer], start: int, rolls: list[int]) -> None:
        if not rolls:
            self._segments.write_parts(parts, start)
            return
        end = self.end
        for stop in (*(roll for roll in rolls if start < roll < end), end):
            of_file, parts = split_buffers(parts, stop - start)
            self._segments.write_parts(of_file, start)
            start = stop

    def _undo_write(self, start: int, data: Buffer) -> None:
        """Undo a failed write, on the device too: its records must not come back after a restart.

        Records are erased from the last to the first. If that fails too, the ones left are whole and nothing follows
        them, so that recovery does not take them for damage.
        """
        self.end = self._zeroed_end = start
        if self.refused is None:
            try:
                self._segments.erase([(start + position, size) for position, size in _records_in(data)], start)
            except StoreError as error:
                self.refused = error
        self._segment_end = self._file_end(start)

    def drop_appended(self) -> None:
        """Drop the appended records that are not written."""
        self._pending.clear()
        self._rolls.clear()
        self.end = self.written_end
        self._segment_end = self._file_end(self.end)

    def _file_end(self, end: int) -> int:
        """Return where the file ends that a log with this end goes on in; `end` itself: in a new file."""
        if end and end % self.segment_bytes == 0 and end == self._segments.capacity_end:
            return end
        return end - end % self.segment_bytes + self.segment_bytes

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` written bytes from `offset`, not beyond that file; b"" at the end of the log.

        Raises:
            OffsetGone: the offset was deleted.
        """
        size = min(size, self.written_end - offset)
        if size <= 0:
            return b""
        if offset >= self.recent.start:
            room = self.segment_bytes - offset % self.segment_bytes
            return self.recent.read(offset, min(size, room))
        return self._segments.read(offset, size)

    def read_cached(self, offset: int, size: int) -> bytes:
        """Return bytes as `read` does, without waiting for the device.

        Raises:
            OffsetGone: the offset was deleted.
            NotCached: the device would have to be waited for.
        """
        if offset >= self.recent.start:
            return self.read(offset, size)
        return self._segments.read_cached(offset, min(size, self.written_end - offset))

    def file_at(self, offset: int) -> tuple[int, File]:
        """Return start and file of the segment that holds an offset.

        Raises:
            OffsetGone: no file holds it.
        """
        return self._segments.file_at(offset)

    def read_raw(self, offset: int, size: int) -> bytes:
        """Like `read`, but also return bytes after the log's end: for recovery and repair."""
        return self._segments.read(offset, size)

    def is_blank_from(self, offset: int) -> bool:
        """Whether nothing was ever written at or after an offset, determined without reading data."""
        return self._segments.is_blank_from(offset)

    def next_data(self, offset: int) -> int:
        """Return the first offset from one on that may hold a byte other than zero, determined without reading data.

        If there is none in its file, the end of that file.
        """
        return self._segments.next_data(offset)

    def overwrite(self, data: bytes, offset: int) -> File:
        """Replace damaged bytes by those of a replica, within one file and below `written_end`.

        Returns the file, which the caller must sync.

        Raises:
            DiskFailed: the device failed; the content of the range is unknown.
        """
        assert self.start <= offset and offset + len(data) <= self.written_end, "repair stays within the log"
        self._segments.write(data, offset)
        self.reader.forget()
        self.recent.restart(self.written_end)
        return self._segments.files_between(offset, offset + 1)[0]

    def files_to_sync(self) -> list[File]:
        """Return the files that hold bytes between `flushed_offset` and `written_end`."""
        return self._segments.files_between(self.flushed_offset, self.written_end)

    def drop_first_segment(self) -> int:
        """Delete the oldest file and return the log's new start; the last file must not be deleted."""
        assert len(self._segments.starts) > 1, "the last file is never deleted"
        self._segments.drop_first()
        self.reader.forget()
        return self.start

    @property
    def segment_starts(self) -> list[int]:
        """Start offsets of the files, oldest first."""
        return list(self._segments.starts)

    def segment_path(self, start: int) -> str:
        """Return the path of one file, relative to the store."""
        return self._segments.path(start)

    def close(self) -> None:
        """Close the files."""
        self.reader.forget()
        self._segments._files.close()  # noqa: SLF001  # the log owns this cache


def _joined(parts: list[Buffer]) -> list[Buffer]:
    """Join small buffers with their neighbors: a copy of them is cheaper than a longer list."""
    if len(parts) == 1:
        return parts
    joined: list[Buffer] = []
    small: list[Buffer] = []
    for part in parts:
        if len(part) < LARGE_BODY_BYTES:
            small.append(part)
            continue
        if small:
            joined.append(b"".join(small))
            small.clear()
        joined.append(part)
    return [*joined, b"".join(small)] if small else joined


def _records_in(data: Buffer) -> list[tuple[int, int]]:
    """Return position and size of contiguous records, and of blanks that end a file."""
    found: list[tuple[int, int]] = []
    position = 0
    while position < len(data):
        size = max(BLANK_BYTES_MIN, min(_size_at(data, position)[0], len(data) - position))
        found.append((position, size))
        position += size
    return found
