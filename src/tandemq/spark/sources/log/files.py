"""Files of one commit log, in a broker's store or in a directory of archived segments, and the end of their records.

    store/commitlog/00000000000000000000 00000000001073741824 …      or the same files in a directory of their own
    store/epochFileCheckpoint                                         epochs, if the store has any

Read only; the broker may be running and writing. The log is read up to its last complete and sound record. Source:
docs/internals/storage.md, "files", "recovery".
"""

import os
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from tandemq.boundary import Disk
from tandemq.errors import OffsetGone, StoreDamaged
from tandemq.spark.runtime.local_paths import local_path
from tandemq.storage.log.epochs import EpochTable, load_epochs
from tandemq.storage.log.scan import Walker, find_next_record

NAME_DIGITS = 20
SIZE_FIELD_BYTES = 4
TAIL_BYTES = 4 << 20
"""Distance from the last written byte at which the search for the last record begins."""
OPEN_FILES_MAX = 8


@dataclass(frozen=True, slots=True)
class LogFiles:
    """Snapshot of the files of a log: starts ascending, all of one size, without gaps."""

    directory: str
    broker_name: str
    segment_bytes: int
    starts: tuple[int, ...]
    epochs: tuple[tuple[int, int], ...]
    """(epoch, first log offset), ascending; () if the log has no epochs."""

    @property
    def start(self) -> int:
        """Log offset of the first byte."""
        return self.starts[0]

    @property
    def capacity_end(self) -> int:
        """Log offset of the end of the last file."""
        return self.starts[-1] + self.segment_bytes

    def path(self, start: int) -> str:
        """Return the path of the file that begins at a log offset."""
        return f"{self.directory}/{start:0{NAME_DIGITS}d}"

    def epoch_at(self, log_offset: int) -> int:
        """Return the epoch of the byte at a log offset; 0 if the log has none."""
        at = bisect_right([start for _, start in self.epochs], log_offset)
        return self.epochs[at - 1][0] if at else 0


def open_log(path: str | Path, broker_name: str | None = None) -> LogFiles:
    """List the files of a store directory, or of a directory of commit log files.

    Args:
        broker_name: value of the column of that name; by default the directory's name.
    Raises:
        ConfigError: the path is not local.
        StoreDamaged: there is no commit log, or a file between two others is missing or has another size.
    """
    root = local_path(path, "the log").absolute()
    directory = root / "commitlog" if (root / "commitlog").is_dir() else root
    names = sorted(p.name for p in directory.glob("[0-9]*") if p.name.isdigit() and len(p.name) == NAME_DIGITS)
    sizes = {name: _size(directory / name) for name in names}
    names = [name for name in names if sizes[name]]
    if not names:
        raise StoreDamaged(
            f"{root} holds no commit log", hint="give a broker's storePathRootDir, or a directory of commit log files"
        )
    size = sizes[names[0]]
    for before, name in pairwise(names):
        if sizes[name] != size:
            raise StoreDamaged(f"{directory / name} has {sizes[name]} bytes, {names[0]} has {size}")
        if int(name) != int(before) + size:
            raise StoreDamaged(f"{directory / name} does not follow {before}", hint="a file in between is missing")
    epochs: EpochTable = load_epochs(cast(Disk, _Store(root)))
    return LogFiles(str(directory), broker_name or root.name, size, tuple(map(int, names)), tuple(epochs))


def _size(path: Path) -> int:
    """Return the size of a file; 0 if it has been deleted since it was listed."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


class _Store:
    """The part of `Disk` that reads a small file of a store, without write access."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        try:
            return (self._root / path).read_bytes()
        except FileNotFoundError:
            return None


class LogFileReader:
    """Reads the files of a log by log offset; a read ends at the end of its file. Use it in `with`, or close it."""

    def __init__(self, files: LogFiles) -> None:
        """Create a reader with no file open."""
        self.files = files
        self._open: OrderedDict[int, int] = OrderedDict()

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
        return b"" if found is None else os.pread(found[0], min(size, found[1]), self._within(offset))

    def read_into(self, buffer: memoryview, offset: int) -> int:
        """Fill a buffer from an offset on; returns the number of bytes read. Raises as `__call__`."""
        found = self._file(offset)
        return 0 if found is None else os.preadv(found[0], [buffer[: found[1]]], self._within(offset))

    def next_data(self, offset: int) -> int:
        """Return the first offset at or after `offset` that was ever written, according to the file system's holes;
        the end of the file if there is none."""
        found = self._file(offset)
        if found is None:
            return offset
        try:
            return offset - self._within(offset) + os.lseek(found[0], self._within(offset), os.SEEK_DATA)
        except OSError:
            return offset + found[1]

    def written_end(self, start: int) -> int:
        """Return the end of the data in the file that begins at `start`, according to the file system's holes."""
        found = self._file(start)
        if found is None:
            return start
        at = end = 0
        try:
            while True:
                at = os.lseek(found[0], end, os.SEEK_DATA)
                end = os.lseek(found[0], at, os.SEEK_HOLE)
        except OSError:
            return start + end

    def close(self) -> None:
        """Close all files."""
        while self._open:
            os.close(self._open.popitem()[1])

    def _within(self, offset: int) -> int:
        return offset % self.files.segment_bytes

    def _file(self, offset: int) -> tuple[int, int] | None:
        """Return the descriptor and the bytes from the offset to the end of the file; None if the log has no file
        there."""
        start = offset - self._within(offset)
        if not self.files.start <= start < self.files.capacity_end:
            return None
        descriptor = self._open.get(start)
        if descriptor is None:
            try:
                descriptor = os.open(self.files.path(start), os.O_RDONLY)
            except FileNotFoundError as error:
                raise OffsetGone(
                    f"{self.files.path(start)} is gone", hint="retention has deleted it; read closer behind the broker"
                ) from error
            self._open[start] = descriptor
            if len(self._open) > OPEN_FILES_MAX:
                os.close(self._open.popitem(last=False)[1])
        return descriptor, start + self.files.segment_bytes - offset


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
    Cost: reads at most some MiB at the end of the log; whole files from the last one back, if these hold no record.
    """
    files = read.files
    for start in reversed(files.starts):
        written = read.written_end(start)
        if known is not None and start <= known <= written and written - known <= TAIL_BYTES:
            return _walk(read, known)
        found = find_record(read, max(start, written - TAIL_BYTES), written)
        if found is None:
            found = find_record(read, start, written)
        if found is not None:
            return _walk(read, found)
    return files.start


def _walk(read: LogFileReader, position: int) -> int:
    """Return the end of the last sound record after a record boundary; damage before it is skipped."""
    files = read.files
    walker = Walker(read, files.segment_bytes, position)
    while True:
        for _ in walker.records():
            pass
        end = walker.position
        found = find_record(read, end + 1, files.capacity_end)
        if found is None:
            return end
        walker.position = found
