"""Files of one commit log, in a broker's store or in a directory of archived segments, and the end of their records.

    store/commitlog/00000000000000000000 00000000001073741824 …      or the same files in a directory of their own
    store/epochFileCheckpoint                                         epochs, if the store has any

Read only; the broker may be running and writing. The log is read up to its last complete and sound record. A file that
is missing between others, or shorter than they are, leaves a gap (`sources.log.gaps`). Archived files may be at a URL
(`runtime.location`).

Source: docs/internals/storage.md, "files", "recovery".
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from types import TracebackType
from typing import Self, cast

from tandemq.boundary import Disk
from tandemq.errors import OffsetGone, StoreDamaged
from tandemq.spark.runtime.location import FileEntry, Location, Place, locate
from tandemq.spark.sources.log.segments import SegmentFile, open_segment
from tandemq.storage.log.epochs import EpochTable, load_epochs
from tandemq.storage.log.scan import Walker, find_next_record

NAME_DIGITS = 20
SIZE_FIELD_BYTES = 4
TAIL_BYTES = 4 << 20
"""Distance from the last written byte at which the search for the last record begins."""
OPEN_FILES_MAX = 8


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Snapshot of the files of a log: starts ascending. Some may be missing in between, or shorter than the others."""

    store: Location
    """Directory that was opened: of the store, or of the files."""
    location: Location
    """Directory of the files."""
    broker_name: str
    segment_bytes: int
    """Size of a whole file."""
    starts: tuple[int, ...]
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first log offset), ascending; () if the log has no epochs."""
    changed_s: float = 0.0
    """At a URL: when a file was last changed, seconds since 1970 by the clock of the storage."""
    short: tuple[tuple[int, int], ...] = ()
    """(start, size) of files with fewer than `segment_bytes`."""

    @property
    def directory(self) -> str:
        """Path or URL of the directory of the files."""
        return self.location.url

    @property
    def start(self) -> int:
        """Log offset of the first byte."""
        return self.starts[0]

    @property
    def capacity_end(self) -> int:
        """Log offset of the end of the last file."""
        return self.starts[-1] + self.segment_bytes

    def file_end(self, log_offset: int) -> int:
        """Return the end of the bytes of the file that a log offset belongs to; the file's start if it is missing."""
        start = log_offset - log_offset % self.segment_bytes
        index = bisect_left(self.starts, start)
        if index == len(self.starts) or self.starts[index] != start:
            return start
        return start + dict(self.short).get(start, self.segment_bytes)

    def gap_after(self, log_offset: int) -> int:
        """Return the end of the bytes that follow a log offset without a gap; the offset itself if it is in one."""
        end = log_offset
        while (file_end := self.file_end(end)) > end:
            end = file_end
        return end

    def name(self, start: int) -> str:
        """Return the name of the file that begins at a log offset."""
        return f"{start:0{NAME_DIGITS}d}"

    def path(self, start: int) -> str:
        """Return the path or URL of the file that begins at a log offset."""
        return self.location.child(self.name(start))

    def exists(self, start: int) -> bool:
        """Return whether the file that begins at a log offset still exists."""
        return bool(self.location.entries([self.name(start)]))

    def epoch_at(self, log_offset: int) -> int:
        """Return the epoch of the byte at a log offset; 0 if the log has none."""
        index = bisect_right([start for _, start in self.epochs], log_offset)
        return self.epochs[index - 1][0] if index else 0


def open_log(place: Place, broker_name: str | None = None) -> LogFiles:
    """List the files of a store directory, or of a directory of commit log files.

    Args:
        place: a path, a URL or a location.
        broker_name: value of the column of that name; by default the directory's name.
    Raises:
        ConfigError: the URL is malformed, or its scheme is not supported.
        StoreDamaged: there is no commit log, or the files overlap.
        LocalError: the storage refuses access or does not respond.
    """
    root = locate(place, "the log")
    directory = root.within("commitlog")
    found = _log_files(directory)
    if not found and not (directory.is_local and directory.path.is_dir()):
        directory = root
        found = _log_files(directory)
    sizes = {file.name: file.size for file in found}
    names = sorted(sizes)
    if not names:
        raise StoreDamaged(
            f"{root} holds no commit log", hint="give a broker's storePathRootDir, or a directory of commit log files"
        )
    size = max(sizes.values())
    starts = tuple(map(int, names))
    for name, start in zip(names, starts, strict=True):
        if start % size:
            raise StoreDamaged(
                f"{directory.child(name)} does not begin at a multiple of {size}, the size of the largest file",
                hint="all files of a log have one size, but for the one that was cut off; put back a whole one",
            )
    epochs: EpochTable = load_epochs(cast(Disk, StoreFiles(root)))
    changed_s = 0.0 if root.is_local else max(file.changed_s for file in found)
    short = tuple((int(name), sizes[name]) for name in names if sizes[name] < size)
    return LogFiles(root, directory, broker_name or root.name, size, starts, tuple(epochs), changed_s, short)


def _log_files(directory: Location) -> list[FileEntry]:
    """Return the log files in a directory; empty ones are left out."""
    return [file for file in directory.files() if file.size and file.name.isdigit() and len(file.name) == NAME_DIGITS]


class StoreFiles:
    """The part of `Disk` that reads a small file of a store, without write access."""

    def __init__(self, root: Location) -> None:
        """`root`: the directory of the store."""
        self._root = root

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self._root.read(path)


class LogFileReader:
    """Reads the files of a log by log offset; a read ends at the end of its file. Use it in `with`, or close it."""

    def __init__(self, files: LogFiles) -> None:
        """Create a reader with no file open."""
        self.files = files
        self._open: OrderedDict[int, SegmentFile] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, offset: int, size: int) -> bytes:
        """Read up to `size` bytes; b"" if the log has no file at the offset.

        Raises:
            OffsetGone: retention has deleted the file since the snapshot.
        """
        found = self._file(offset)
        return b"" if found is None else found[0].read(self._within(offset), min(size, found[1]))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from an offset on; returns the number of bytes read. Raises as `__call__`."""
        found = self._file(offset)
        return 0 if found is None else found[0].read_into(buffer[: found[1]], self._within(offset))

    def next_data(self, offset: int) -> int:
        """Return the first offset at or after `offset` that may have been written, according to a local file system's
        holes; the end of the file if there is none."""
        found = self._file(offset)
        if found is None:
            return offset
        position = found[0].next_data(self._within(offset))
        return offset + found[1] if position is None else offset - self._within(offset) + position

    def written_end(self, start: int) -> int:
        """Return the end of the data in the file that begins at `start`, according to a local file system's holes; of a
        remote file its end."""
        found = self._file(start)
        return start if found is None else start + found[0].written_end()

    def data_end(self, start: int) -> int:
        """Return the end of the data in the file that begins at `start`. Cost: of a remote file the zeros at its end
        are read, once."""
        found = self._file(start)
        return start if found is None else start + found[0].data_end()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _within(self, offset: int) -> int:
        return offset % self.files.segment_bytes

    def _file(self, offset: int) -> tuple[SegmentFile, int] | None:
        """Return the open file and the bytes from the offset to the end of the file; None if the log has no byte
        there."""
        files = self.files
        start, end = offset - self._within(offset), files.file_end(offset)
        if end <= offset:
            return None
        segment = self._open.get(start)
        if segment is None:
            try:
                segment = open_segment(files.location, files.name(start), end - start)
            except FileNotFoundError as error:
                raise OffsetGone(
                    f"{files.path(start)} is gone", hint="retention has deleted it; read closer behind the broker"
                ) from error
            self._open[start] = segment
            if len(self._open) > OPEN_FILES_MAX:
                self._open.popitem(last=False)[1].close()
        return segment, end - offset


def find_record(read: LogFileReader, start: int, end: int) -> int | None:
    """Return the offset of the first sound record that begins in `[start, end)`; holes in files are skipped unread."""
    files = read.files
    size = files.segment_bytes
    while start < min(end, files.capacity_end):
        segment = start - start % size
        stop = min(end, read.written_end(segment))
        start = max(start, read.next_data(start) - SIZE_FIELD_BYTES)
        found = find_next_record(read, start, stop, size) if start < stop else None
        if found is not None and found < stop:
            return found
        start = segment + size
    return None


def log_end(read: LogFileReader, known: int | None = None) -> int:
    """Return the end of the records of a log: after its last complete and sound record, or the blank that ends a file.

    Args:
        known: an end found earlier; if little was written since, only that is read.
    Cost: reads at most some MiB at the end of the log, and the zeros at the end of a remote file; whole files from the
        last one back, if these hold no record.
    """
    files = read.files
    for start in reversed(files.starts):
        written = read.data_end(start)
        if known is not None and start <= known <= written and written - known <= TAIL_BYTES:
            return _walk(read, known, written)
        found = find_record(read, max(start, written - TAIL_BYTES), written)
        if found is None:
            found = find_record(read, start, written)
        if found is not None:
            return _walk(read, found, written)
    return files.start


def _walk(read: LogFileReader, position: int, written: int) -> int:
    """Return the end of the last sound record after a record boundary; damage before it is skipped. `written`: end of
    the data of the last file that has any."""
    files = read.files
    walker = Walker(read, files.segment_bytes, position)
    while True:
        for _ in walker.records():
            pass
        end = walker.position
        found = find_record(read, end + 1, written)
        if found is None:
            return end
        walker.position = found
