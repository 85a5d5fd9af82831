"""Reads of what the page cache has of a file."""

from tandemq import engine
from tandemq.boundary import File
from tandemq.not_cached import FileRange, NotCached


def read_cached(file: File, size: int, position: int) -> bytes:
    """Return up to `size` bytes of a file as `File.pread` does.

    Raises:
        NotCached: the page cache lacks some of them.
        DiskFailed: the device failed.
    """
    descriptor = file.fileno()
    data = engine.read_cached(descriptor, size, position) if descriptor >= 0 else None
    if data is None:
        data = file.pread_cached(size, position)
    if data is None:
        raise NotCached([FileRange(file, position, size)])
    return data
