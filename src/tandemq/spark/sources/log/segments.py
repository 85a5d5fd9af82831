"""Random access to one file of a commit log: on a file system, or as an archived object at a URL.

Of a remote file only the bytes asked for are read, and some after them, because callers mostly read forward: one
request for many records. The holes of a local file tell what was never written; of a remote one its zeros are read.

Source: docs/internals/storage.md, "files"; docs/guides/pipeline-lakes.md.
"""

import os
from typing import Protocol

from tandemq.errors import LocalError, OffsetGone
from tandemq.spark.runtime.location import Location

AHEAD_BYTES = 1 << 20
"""Bytes of a remote file that a small read fetches."""
WINDOW_BYTES = 8 << 20
"""Maximum size of one request while zeros are skipped."""


class SegmentFile(Protocol):
    """An open file of a log. Positions are those within the file."""

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes, not beyond the end of the file."""

    def read_into(self, buffer: memoryview, position: int) -> int:
        """Fill a buffer, as far as the file has bytes; returns their number."""

    def next_data(self, position: int) -> int | None:
        """Return the first position at or after another one that may ever have been written; None if there is none."""

    def written_end(self) -> int:
        """Return an upper bound for the end of the data, without reading."""

    def data_end(self) -> int:
        """Return an upper bound for the end of the data; a remote file is read for it, from its end back to the last
        byte that is not zero."""

    def close(self) -> None:
        """Close the file."""


class LocalSegment:
    """A file of a file system."""

    def __init__(self, path: str) -> None:
        """Open a file. Raises FileNotFoundError if it was deleted."""
        self._descriptor = os.open(path, os.O_RDONLY)

    def read(self, position: int, size: int) -> bytes:
        """As in `SegmentFile`."""
        return os.pread(self._descriptor, size, position)

    def read_into(self, buffer: memoryview, position: int) -> int:
        """As in `SegmentFile`."""
        return os.preadv(self._descriptor, [buffer], position)

    def next_data(self, position: int) -> int | None:
        """As in `SegmentFile`, according to the file system's holes."""
        try:
            return os.lseek(self._descriptor, position, os.SEEK_DATA)
        except OSError:
            return None

    def written_end(self) -> int:
        """As in `SegmentFile`, according to the file system's holes."""
        start = end = 0
        try:
            while True:
                start = os.lseek(self._descriptor, end, os.SEEK_DATA)
                end = os.lseek(self._descriptor, start, os.SEEK_HOLE)
        except OSError:
            return end

    def data_end(self) -> int:
        """As in `SegmentFile`."""
        return self.written_end()

    def close(self) -> None:
        """As in `SegmentFile`."""
        os.close(self._descriptor)


class RemoteSegment:
    """A file at a URL, read by ranges."""

    def __init__(self, directory: Location, name: str, size: int) -> None:
        """Open a file. Raises FileNotFoundError if it was deleted, and as `Location.open_input`."""
        try:
            self._file = directory.open_input(name)
        except LocalError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise FileNotFoundError(name) from error
            raise
        self._directory = directory
        self._name = name
        self._size = size
        self._ahead = (0, b"")
        self._data_end: int | None = None

    def read(self, position: int, size: int) -> bytes:
        """As in `SegmentFile`; of a small read the bytes after it are kept."""
        if size >= AHEAD_BYTES:
            return self._fetch(position, size)
        start, data = self._ahead
        if not start <= position <= position + size <= start + len(data):
            start, data = position, self._fetch(position, AHEAD_BYTES)
            self._ahead = start, data
        return data[position - start : position - start + size]

    def read_into(self, buffer: memoryview, position: int) -> int:
        """As in `SegmentFile`."""
        data = self._fetch(position, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def next_data(self, position: int) -> int | None:
        """As in `SegmentFile`."""
        return position if position < self._size else None

    def written_end(self) -> int:
        """As in `SegmentFile`."""
        return self._size

    def data_end(self) -> int:
        """As in `SegmentFile`; it is determined once."""
        if self._data_end is None:
            end, step, data = self._size, AHEAD_BYTES, b""
            while end and not data:
                start = max(0, end - step)
                data = self._fetch(start, end - start).rstrip(b"\0")
                end, step = start, min(2 * step, WINDOW_BYTES)
            self._data_end = end + len(data)
        return self._data_end

    def close(self) -> None:
        """As in `SegmentFile`."""
        self._file.close()

    def _fetch(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        with self._directory.errors(self._name):
            self._file.seek(position)
            data = self._file.read(size)
        if len(data) != size:
            raise OffsetGone(
                f"{self._directory.child(self._name)} has become shorter", hint="another program has replaced it"
            )
        return data


def open_segment(directory: Location, name: str, size: int) -> SegmentFile:
    """Open a file of a log. `size`: of the file.

    Raises:
        FileNotFoundError: it was deleted. LocalError: the storage refuses access or does not respond.
    """
    return LocalSegment(directory.child(name)) if directory.is_local else RemoteSegment(directory, name, size)
