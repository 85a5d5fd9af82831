"""Work of the scrubber on worker threads: read the commit log from its files and verify it.

    CheckWork    the next records of a pass: the end of the sound ones, or the damaged range
    ServeWork    verified whole records for a replica, or why there are none
    WeighWork    the part of a replica's bytes for a damaged range that may be written, or why none may
    SettleWork   sync bytes that were written in place, read them again and compare
    SyncWork     sync files of queues whose entries were rewritten

Nothing is written here. Files are read through handles of their own. The bytes between `start` and `limit` do not
change meanwhile, except by a truncation of the log, after which the owner drops the result.

Source: docs/internals/storage.md, "scrubbing".
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from isal.isal_zlib import crc32

from tandemq.boundary import Disk, File
from tandemq.codec.record.entries import BLANK_BYTES_MIN
from tandemq.codec.record.record import peek
from tandemq.engine import record_entries
from tandemq.errors import DiskFailed
from tandemq.replication.record_stream import CorruptRecord, Piece, RecordStream
from tandemq.storage.log.scan import boundary_before, find_next_record

PAGE_BYTES = 4096
CONTEXT_BYTES = 256
"""Maximum number of bytes before and behind a damaged range that are compared with those of the replica."""


class LogReader:
    """Reader of the log files as one sequence of bytes. Pages that the device cannot read are returned as zeroes."""

    def __init__(self, disk: Disk, segment_bytes: int) -> None:
        """No file is open yet."""
        self._disk = disk
        self._segment_bytes = segment_bytes
        self._open: tuple[int, File] | None = None
        self.unreadable = ""
        """The last error of the device for bytes that it could not read."""

    def __call__(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes, not beyond the file that holds the offset.

        Raises:
            DiskFailed: the file does not exist.
        """
        start = offset - offset % self._segment_bytes
        size = min(size, start + self._segment_bytes - offset)
        file = self.file(start)
        try:
            return file.pread(size, offset - start)
        except DiskFailed:
            return b"".join(
                self._page(
                    file, page_start, min(PAGE_BYTES - page_start % PAGE_BYTES, offset - start + size - page_start)
                )
                for page_start in _page_starts(offset - start, size)
            )

    def _page(self, file: File, position: int, size: int) -> bytes:
        try:
            return file.pread(size, position)
        except DiskFailed as error:
            self.unreadable = str(error)
            return bytes(size)

    def file(self, start: int) -> File:
        """Return the open file that begins at an offset.

        Raises:
            DiskFailed: it does not exist.
        """
        if self._open is None or self._open[0] != start:
            self.close()
            self._open = start, self._disk.open(f"commitlog/{start:020d}")
        return self._open[1]

    def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _page_starts(position: int, size: int) -> list[int]:
    first = position - position % PAGE_BYTES + PAGE_BYTES
    return [position, *range(first, position + size, PAGE_BYTES)]


class Entries(NamedTuple):
    """Queue entries derived from the log: packed, consecutive from `queue_offset`."""

    topic: bytes
    queue_id: int
    queue_offset: int
    packed: bytes


class Checked(NamedTuple):
    """Result of a check: `[start, end)` is sound; with a fault, `[end, resumes)` is damaged."""

    start: int
    end: int
    records: int
    entries: list[Entries]
    fault: str = ""
    resumes: int = 0
    is_unread: bool = False
    """Whether the fault is that the device could not read the bytes."""


class Context(NamedTuple):
    """Bytes next to a range: their number and their CRC."""

    size: int
    crc: int


class Served(NamedTuple):
    """Verified records for a replica, or b"" and a fault; and the bytes next to the range that it asked for."""

    data: bytes
    before: Context
    behind: Context
    fault: str = ""


class Weighed(NamedTuple):
    """Bytes to write: `data` at `offset`; b"" if the replica's are refused with a `reason`, or ours are sound.

    `end`: the range is sound up to here, or will be once `data` is written.
    """

    offset: int
    data: bytes
    end: int
    entries: list[Entries]
    reason: str = ""


@dataclass(slots=True)
class _Walked:
    """Verified whole records from an offset, their end, and the corrupt record there, if any."""

    end: int
    pieces: list[Piece] = field(default_factory=list)
    corrupt: CorruptRecord | None = None


def _walk(reader: LogReader, start: int, limit: int, size: int, segment_bytes: int) -> _Walked:
    """Verify about `size` bytes of whole records, at least one. `limit`: a record boundary that none may cross."""
    limit = min(limit, start - start % segment_bytes + segment_bytes)
    data = reader(start, min(max(size, BLANK_BYTES_MIN), limit - start))
    stream = RecordStream(start, segment_bytes)
    pieces, corrupt = stream.feed(data)
    if corrupt is None and stream.position == start and BLANK_BYTES_MIN <= len(data) < limit - start:
        claimed, _ = peek(data, 0)
        pieces, corrupt = stream.feed(reader(start + len(data), min(claimed, limit - start) - len(data)))
    if corrupt is None and stream.received_end == limit and stream.position < limit:
        corrupt = CorruptRecord(stream.position, "what lies there reaches beyond the end of the file or of the log")
    if corrupt is None and stream.position == start:
        corrupt = CorruptRecord(start, "the file ends here")
    if corrupt is not None and reader.unreadable:
        corrupt = CorruptRecord(corrupt.log_offset, f"it cannot be read: {reader.unreadable}")
    return _Walked(stream.position, pieces, corrupt)


def walk_bytes(data: bytes, start: int, segment_bytes: int) -> tuple[list[Piece], str | None]:
    """Return the whole records that bytes consist of, and a reason if they do not consist of whole records."""
    stream = RecordStream(start, segment_bytes)
    pieces, corrupt = stream.feed(data)
    if corrupt is not None:
        return pieces, f"at {corrupt.log_offset}: {corrupt.reason}"
    if stream.position != start + len(data):
        return pieces, f"the last record begins at {stream.position} and is not whole"
    return pieces, None


def entries_of(pieces: list[Piece]) -> list[Entries]:
    """Return the queue entries of records; in the schedule topic with the store time as tags code."""
    found: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
    done: list[Entries] = []
    for piece in pieces:
        for topic, queue_id, queue_offset, entry in record_entries(piece.data):
            first, packed = found.get((topic, queue_id), (queue_offset, []))
            if queue_offset != first + len(packed):
                done.append(Entries(topic, queue_id, first, b"".join(packed)))
                first, packed = queue_offset, []
            packed.append(entry)
            found[topic, queue_id] = first, packed
    done += [Entries(topic, number, first, b"".join(packed)) for (topic, number), (first, packed) in found.items()]
    return done


class CheckWork(NamedTuple):
    """Verify records from the record boundary `position`; `near`: from a boundary at or before any offset.

    Damage that ends at or before that offset is not what was asked for: the check goes on behind it.
    """

    disk: Disk
    segment_bytes: int
    position: int
    limit: int
    size: int
    truncations: int
    near: bool = False
    searches: bool = False
    """Whether this is the search for the record of a damaged queue entry, not part of a pass."""

    def run(self) -> Checked:
        """Do the work.

        Raises:
            DiskFailed: the file does not exist.
        """
        reader = LogReader(self.disk, self.segment_bytes)
        try:
            start, size = self.position, self.size
            if self.near:
                start = boundary_before(reader, self.position, self.segment_bytes)
                size += self.position - start
            found = self._checked(reader, start, size)
            while self.near and found.fault and found.resumes <= self.position < self.limit:
                found = self._checked(reader, found.resumes, self.size + self.position - found.resumes)
            return found
        finally:
            reader.close()

    def _checked(self, reader: LogReader, start: int, size: int) -> Checked:
        walked = _walk(reader, start, self.limit, size, self.segment_bytes)
        records, entries = sum(piece.records for piece in walked.pieces), entries_of(walked.pieces)
        if walked.corrupt is None:
            return Checked(start, walked.end, records, entries)
        file_end = walked.end - walked.end % self.segment_bytes + self.segment_bytes
        end = min(file_end, self.limit)
        is_unread = bool(reader.unreadable)
        resumes = find_next_record(reader, walked.end + 1, end, self.segment_bytes)
        return Checked(start, walked.end, records, entries, walked.corrupt.reason, resumes or end, is_unread)


class Wanted(NamedTuple):
    """A damaged range `[start, end)` of one file, and the number of bytes next to it that are known to be sound."""

    start: int
    end: int
    before: int
    behind: int


def context_of(reader: LogReader, start: int, end: int) -> Context:
    """Return the size and CRC of the bytes in a range."""
    data = reader(start, end - start) if end > start else b""
    return Context(len(data), crc32(data))


class ServeWork(NamedTuple):
    """Read records for a replica. `limit`: our log end; `size`: maximum bytes of a response of several records."""

    disk: Disk
    segment_bytes: int
    wanted: Wanted
    log_start: int
    limit: int
    size: int
    record_bytes_max: int

    def run(self) -> Served:
        """Do the work.

        Raises:
            DiskFailed: the file does not exist.
        """
        reader = LogReader(self.disk, self.segment_bytes)
        start, end, before, behind = self.wanted
        try:
            first = start - start % self.segment_bytes
            stood = context_of(reader, max(first, self.log_start, start - before), start)
            stands = context_of(reader, end, min(first + self.segment_bytes, self.limit, end + behind))
            walked = _walk(reader, start, self.limit, min(self.size, end - start), self.segment_bytes)
            if walked.end > end:
                return Served(b"", stood, stands, f"here a record reaches from {start} to {walked.end}")
            if walked.end == start:
                reason = walked.corrupt.reason if walked.corrupt is not None else "nothing"
                return Served(b"", stood, stands, f"damaged at {start} as well: {reason}")
            data = b"".join(piece.data for piece in walked.pieces)
            if len(data) > self.record_bytes_max:
                return Served(b"", stood, stands, f"the record at {start} is too long for an answer")
            return Served(data, stood, stands)
        finally:
            reader.close()


class WeighWork(NamedTuple):
    """Check the response of a replica. `before` and `behind`: its bytes next to the range."""

    disk: Disk
    segment_bytes: int
    wanted: Wanted
    data: bytes
    before: Context
    behind: Context
    truncations: int

    def run(self) -> Weighed:
        """Do the work.

        Raises:
            DiskFailed: the file does not exist.
        """
        start, end, data = self.wanted.start, self.wanted.end, self.data
        pieces, fault = walk_bytes(data, start, self.segment_bytes)
        if fault is not None:
            return Weighed(start, b"", start, [], f"it sent bytes that are no records, {fault}")
        if not 0 < len(data) <= end - start:
            return Weighed(start, b"", start, [], f"it sent {len(data)} bytes for {end - start}")
        reader = LogReader(self.disk, self.segment_bytes)
        try:
            if context_of(reader, start - self.before.size, start) != self.before or (
                context_of(reader, end, end + self.behind.size) != self.behind
            ):
                return Weighed(start, b"", start, [], "its bytes next to the range are not ours: another history")
            return self._beside_ours(reader, pieces)
        finally:
            reader.close()

    def _beside_ours(self, reader: LogReader, pieces: list[Piece]) -> Weighed:
        """Compare our valid records with the replica's; ours are never overwritten."""
        start, data = self.wanted.start, self.data
        walked = _walk(reader, start, self.wanted.end, len(data), self.segment_bytes)
        if walked.corrupt is None:
            return Weighed(walked.end, b"", walked.end, entries_of(walked.pieces))
        sound = b"".join(piece.data for piece in walked.pieces)
        if sound != data[: len(sound)]:
            return Weighed(start, b"", start, [], "its records are not those that are sound here: another history")
        return Weighed(walked.end, data[len(sound) :], max(walked.end, start + len(data)), entries_of(pieces))


class SettleWork(NamedTuple):
    """Sync bytes that were written in place, and read them again."""

    disk: Disk
    segment_bytes: int
    offset: int
    data: bytes
    file: File

    def run(self) -> None:
        """Do the work.

        Raises:
            DiskFailed: the device failed, or returned other bytes than were written.
        """
        self.file.datasync()
        reader = LogReader(self.disk, self.segment_bytes)
        try:
            found = reader(self.offset, len(self.data))
        finally:
            reader.close()
        if found != self.data:
            raise DiskFailed(f"commitlog: what was written at {self.offset} is not what is read there")


class SyncWork(NamedTuple):
    """Sync files of rewritten queue entries."""

    files: list[File]

    def run(self) -> None:
        """Do the work.

        Raises:
            DiskFailed: the device failed.
        """
        for file in self.files:
            file.datasync()
