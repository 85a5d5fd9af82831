"""Sequence of fixed-size segment files, addressed as one byte space.

A file is named after the 20-digit offset of its first byte and created sparse, at full length. The valid bytes are
`[start, end)`; the owner keeps track of `end`, since the files are longer.

Source: docs/internals/storage.md, "files"; RocketMQ MappedFileQueue.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from tandemq.boundary import Buffer, Disk, File
from tandemq.errors import OffsetGone, StoreDamaged, StoreError
from tandemq.storage.cached_reads import read_cached

log = logging.getLogger(__name__)
NAME_DIGITS = 20
MISSING_MAX = 1_000
"""Maximum number of missing files that are created; more are no accident."""
_CHUNK_BYTES = 1 << 20
_PAGE_BYTES = 4096
_ZEROES = bytes(_CHUNK_BYTES)


class FileCache:
    """LRU cache of at most `files_max` open files."""

    def __init__(self, disk: Disk, files_max: int = 1024) -> None:
        """Begin with no file open."""
        self._disk = disk
        self._files_max = files_max
        self._open: OrderedDict[str, File] = OrderedDict()
        self.unsynced: dict[str, None] = {}
        """Paths of files with derived bytes that were changed, for their owner to sync and to remove from here."""
        self.may_wait = True
        """Whether `SegmentLog.read` may wait for the device."""

    def get(self, path: str, *, create_bytes: int = 0) -> File:
        """Return the open file; if it does not exist and `create_bytes` is positive, create it with that length."""
        file = self._open.get(path)
        if file is not None:
            self._open.move_to_end(path)
            return file
        file = self._disk.open(path, create=create_bytes > 0)
        if create_bytes and file.size() < create_bytes:
            file.truncate(create_bytes)
        self._open[path] = file
        if len(self._open) > self._files_max:
            self._open.popitem(last=False)
        return file

    def drop(self, path: str) -> None:
        """Remove a file that is about to be deleted. A sync job that still uses it keeps it open until the job ends."""
        self._open.pop(path, None)
        self.unsynced.pop(path, None)

    def close(self) -> None:
        """Close all files."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def write_zeroes(file: File, within: int) -> bool:
    """Zero a file from a position on, keeping its length; return whether anything had to be written.

    Bytes that are zero are only read, and unallocated ranges not even read, since the disk may have no space for them.
    Proceeds from the end: if the process is killed meanwhile, no hole precedes the bytes that are left.
    """
    written = False
    for start in reversed(list(_data_from(file, within))):
        written |= _zero_piece(file, start, _chunk_bytes(start))
    return written


def _zero_piece(file: File, start: int, size: int) -> bool:
    data = file.pread(size, start)
    if data == _ZEROES[: len(data)]:  # the common case in a 1 GiB file; a comparison is a hundred times faster
        return False
    stop = len(data.rstrip(b"\0"))
    if not stop:
        return False
    first = len(data) - len(data.lstrip(b"\0"))
    file.pwrite(bytes(stop - first), start + first)
    return True


def _data_from(file: File, position: int) -> Iterator[int]:
    """Yield the positions of chunks that may hold data."""
    size, start = file.size(), file.next_data(position)
    while start < size:
        yield start
        start = file.next_data(start + _chunk_bytes(start))


def _chunk_bytes(start: int) -> int:
    return -start % _PAGE_BYTES or _CHUNK_BYTES


class SegmentLog:
    """The segment files of one directory."""

    def __init__(
        self, disk: Disk, files: FileCache, directory: str, segment_bytes: int, *, is_derived: bool = False
    ) -> None:
        """Load the existing files.

        Args:
            is_derived: the bytes can be rebuilt from the log, so the last file may be short: an interrupted truncation.
                If other files have the right length, a short or missing one is zeroed: its entries count as damaged.

        Raises:
            StoreDamaged: a file has another length than `segment_bytes`, or a file between others is missing.
        """
        self._disk = disk
        self._is_derived = is_derived
        self._files = files
        self.directory = directory
        self.segment_bytes = segment_bytes
        self._latest_path = -1, ""
        self.starts: list[int] = []
        names = [name for name in disk.list(directory) if name.isdigit()]
        if is_derived and len(names) > 1:
            names = self._completed(names)
        for name in names:
            self._load(name, is_last=name == names[-1])

    def _completed(self, names: list[str]) -> list[str]:
        """Zero the short files and create the missing ones before the last; not if no file has the right length."""
        sizes = {name: self._files.get(f"{self.directory}/{name}").size() for name in names}
        starts = [int(name) for name in names]
        is_expected = self.segment_bytes in sizes.values() and all(
            len(name) == NAME_DIGITS and start % self.segment_bytes == 0 and sizes[name] <= self.segment_bytes
            for name, start in zip(names, starts, strict=True)
        )
        if not is_expected or (starts[-1] - starts[0]) // self.segment_bytes > len(names) + MISSING_MAX:
            return names
        for start in range(starts[0], starts[-1], self.segment_bytes):
            path = self.path(start)
            if sizes.get(path.rpartition("/")[2]) != self.segment_bytes:
                log.error("store: %s is missing or too short; its entries are rebuilt from the log", path)
                self._files.get(path, create_bytes=self.segment_bytes).truncate(self.segment_bytes)
                self._files.unsynced[path] = None
        return [f"{start:0{NAME_DIGITS}d}" for start in range(starts[0], starts[-1] + 1, self.segment_bytes)]

    def _load(self, name: str, *, is_last: bool) -> None:
        path = f"{self.directory}/{name}"
        size = self._files.get(path).size()
        if size == 0 and is_last:
            self._files.drop(path)
            self._disk.remove(path)
            return
        if size < self.segment_bytes and is_last and self._is_derived:
            self._files.get(path).truncate(self.segment_bytes)
        elif size != self.segment_bytes:
            raise StoreDamaged(
                f"{path} is {size} bytes long, {self.segment_bytes} are expected",
                hint="was the directory written with another file size? set mappedFileSize… to what it was",
            )
        if len(name) != NAME_DIGITS or int(name) % self.segment_bytes:
            raise StoreDamaged(
                f"{path}: the name is not a multiple of {self.segment_bytes}", hint="move the file out of the directory"
            )
        if self.starts and int(name) != self.starts[-1] + self.segment_bytes:
            raise StoreDamaged(
                f"{path} does not follow {self.starts[-1]:020d}", hint="a file in between is missing; put it back"
            )
        self.starts.append(int(name))

    @property
    def start(self) -> int:
        """Offset of the first byte held; 0 if there is no file."""
        return self.starts[0] if self.starts else 0

    @property
    def capacity_end(self) -> int:
        """Offset of the end of the last file; 0 if there is no file."""
        return self.starts[-1] + self.segment_bytes if self.starts else 0

    def path(self, start: int) -> str:
        """Return the path of the file that begins at `start`."""
        latest, path = self._latest_path
        if start != latest:
            path = f"{self.directory}/{start:0{NAME_DIGITS}d}"
            self._latest_path = start, path
        return path

    def write(self, data: Buffer, offset: int) -> None:
        """Write bytes within one file, creating the next file if they begin at its start.

        Raises:
            DiskFull, DiskFailed: as `File.pwrite`. A file created by this call is deleted if its bytes are derived;
                otherwise it is kept for `erase`.
        """
        self.write_parts((data,), offset)

    def write_parts(self, parts: Sequence[Buffer], offset: int) -> None:
        """Write several buffers, one behind the other; otherwise as `write`."""
        start = offset - offset % self.segment_bytes
        size = sum(map(len, parts))
        assert offset + size <= start + self.segment_bytes, "a write must not cross files"
        is_new = not self.starts or start == self.capacity_end
        assert is_new or start >= self.starts[0], "a write before the first file"
        file = self._files.get(self.path(start), create_bytes=self.segment_bytes if is_new else 0)
        try:
            if len(parts) == 1:
                file.pwrite(parts[0], offset - start)
            else:
                file.pwritev(parts, offset - start)
        except StoreError:
            if is_new and self._is_derived:
                self._remove(start)
            elif is_new:
                self.starts.append(start)
            raise
        if is_new:
            assert not self.starts or start == self.capacity_end, "a write must not leave a gap"
            self.starts.append(start)
        if self._is_derived:
            self._files.unsynced[self.path(start)] = None

    def erase(self, pieces: list[tuple[int, int]], end: int) -> None:
        """Zero the pieces after `end`, sync, and delete the files that held nothing else.

        Proceeds from the last piece to the first: if it fails, the pieces left are whole and nothing follows them.

        Args:
            pieces: (offset, size) of each; none crosses files.
            end: offset of the first piece; no other data follows it.
        """
        touched: dict[int, File] = {}
        for offset, size in reversed(pieces):
            start = offset - offset % self.segment_bytes
            if self.starts and self.starts[0] <= start <= self.starts[-1]:
                file = self._files.get(self.path(start))
                if _zero_piece(file, offset - start, size):
                    touched[start] = file
        for file in touched.values():
            file.datasync()
        self._drop_from(end)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to `size` bytes from `offset`, not beyond the end of that file.

        Raises:
            OffsetGone: no file holds the offset.
            NotCached: the device would have to be waited for, and `FileCache.may_wait` is false.
        """
        if not self._files.may_wait:
            return self.read_cached(offset, size)
        start, file = self.file_at(offset)
        within = offset - start
        return file.pread(min(size, self.segment_bytes - within), within)

    def read_cached(self, offset: int, size: int) -> bytes:
        """Return bytes as `read` does, without waiting for the device.

        Raises:
            OffsetGone: no file holds the offset.
            NotCached: the device would have to be waited for.
        """
        start, file = self.file_at(offset)
        within = offset - start
        return read_cached(file, min(size, self.segment_bytes - within), within)

    def file_at(self, offset: int) -> tuple[int, File]:
        """Return start and file of the segment that holds an offset.

        Raises:
            OffsetGone: no file holds it.
        """
        start = offset - offset % self.segment_bytes
        if not self.starts or not self.starts[0] <= start <= self.starts[-1]:
            raise OffsetGone(
                f"{self.directory}: no file holds offset {offset}; held are [{self.start}, {self.capacity_end})"
            )
        return start, self._files.get(self.path(start))

    def is_blank_from(self, offset: int) -> bool:
        """Whether nothing was ever written at or after an offset in the last file."""
        if not self.starts or offset < self.starts[-1]:
            return False
        within = offset - self.starts[-1]
        return (
            within >= self.segment_bytes
            or self._files.get(self.path(self.starts[-1])).next_data(within) >= self.segment_bytes
        )

    def next_data(self, offset: int) -> int:
        """Return the first offset from one on that may hold a byte other than zero, or the end of its file.

        Raises:
            OffsetGone: no file holds the offset.
        """
        start, file = self.file_at(offset)
        return start + min(self.segment_bytes, file.next_data(offset - start))

    def drop_first(self) -> int:
        """Delete the first file; return the bytes freed."""
        self._remove(self.starts.pop(0))
        return self.segment_bytes

    def truncate(self, end: int) -> None:
        """Delete files that begin at or after `end`, and zero the rest of the last one.

        The first file is kept unless it begins at 0, since its name records the log's start. Bytes that are not derived
        are zeroed and synced before their file is deleted, as a power loss may undo the deletion.
        """
        if not self._is_derived:
            self._zero(end)
        self._drop_from(end)
        if self._is_derived and self.starts and end < self.capacity_end:
            file = self._files.get(self.path(self.starts[-1]))
            file.truncate(end - self.starts[-1])
            file.truncate(self.segment_bytes)
            self._files.unsynced[self.path(self.starts[-1])] = None

    def _drop_from(self, end: int) -> None:
        while len(self.starts) > (end > 0) and self.starts[-1] >= end:
            self._remove(self.starts.pop())

    def _zero(self, end: int, *, always_syncs: bool = False) -> None:
        for start in reversed(self.starts):
            if start + self.segment_bytes > end:
                file = self._files.get(self.path(start))
                if write_zeroes(file, max(0, end - start)) or always_syncs:
                    file.datasync()

    def wipe(self, end: int) -> None:
        """Zero all bytes after `end` and sync, last file first: otherwise a power loss might bring them back."""
        self._zero(end, always_syncs=not self._is_derived)

    def destroy(self) -> None:
        """Delete the directory with all files."""
        self.close()
        self._disk.remove(self.directory)

    def close(self) -> None:
        """Close all files, of which none is used any more."""
        for start in self.starts:
            self._files.drop(self.path(start))
        self.starts.clear()

    def files_between(self, start: int, end: int) -> list[File]:
        """Return the open files that hold bytes of `[start, end)`: a sync of that range must include them."""
        return [
            self._files.get(self.path(first))
            for first in self.starts
            if first < end and first + self.segment_bytes > start
        ]

    def _remove(self, start: int) -> None:
        path = self.path(start)
        self._files.drop(path)
        self._disk.remove(path)
