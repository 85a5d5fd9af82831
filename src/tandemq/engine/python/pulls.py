"""Pulls: records of queue entries, gathered from memory and files."""

from collections.abc import Callable, Collection
from typing import NamedTuple

EXAMINED_ENTRIES_MAX = 800
"""Queue entries examined for a pull that selects messages."""


def read_cached(descriptor: int, size: int, position: int) -> bytes | None:
    """Return bytes of an open file; None if the page cache lacks some, and always without a compiler."""
    return None


class LogSources:
    """Sources of bytes of the log: cached blocks, what the page cache has of files, and a function for the rest."""

    __slots__ = ("bytes_mapped", "bytes_read")

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
        self.bytes_mapped = 0
        """Of these, bytes copied from mapped files."""

    def limit_memory(self, bytes_max: int) -> None:
        """Set how many bytes of mapped files may count as memory of the process; the page cache keeps them."""

    def add_file(self, start: int, descriptor: int) -> None:
        """Register the open file that begins at a log offset; it stays open until `forget`."""

    def forget(self, log_start: int) -> None:
        """Forget the files, and how often blocks were read; files before the log's start were deleted."""

    def age(self) -> None:
        """Forget what the page cache has of the files, and unmap a piece of those forgotten; called every second."""


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
