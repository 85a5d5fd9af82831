"""Reads that would wait for the device: the loop reads what the page cache has, and a worker thread the rest."""

from collections.abc import Sequence
from typing import NamedTuple

from tandemq.boundary import File


class FileRange(NamedTuple):
    """A range of bytes of an open file."""

    file: File
    position: int
    size: int


class NotCached(Exception):  # no error: the caller reads later
    """The page cache lacks bytes of a file.

    The caller has a worker thread read `ranges`, and then reads again: the page cache has them by then.
    """

    def __init__(self, ranges: Sequence[FileRange]) -> None:
        """`ranges`: what is missing first, and what the same read is likely to need behind it."""
        super().__init__(f"{len(ranges)} ranges are not in the page cache")
        self.ranges = ranges


def read_ranges(ranges: Sequence[FileRange]) -> None:
    """Read ranges, so that the page cache has them; blocking.

    Raises:
        DiskFailed: the device failed.
    """
    for file, position, size in ranges:
        file.will_read(size, position)
    for file, position, size in ranges:
        file.pread(size, position)
