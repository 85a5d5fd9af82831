"""Records of timed messages, which are all left to the caller."""

from collections.abc import Sequence

from tandemq.codec.record.entries import QUEUE_ENTRY_BYTES

TimerRow = tuple[int, str, str, bool, bool, int, int]
"""The fields of `broker.features.timers.records.TimerHead`. A plain tuple, since one is made per message."""


def timer_heads(data: bytes, base: int, entries: bytes, queue_offset: int, topic: bytes) -> Sequence[TimerRow | None]:
    """Return the fields of records for the index of timed messages; None for each that the caller has to read.

    Args:
        base: log offset of `data[0]`.
        entries: packed, of consecutive messages of queue 0 of a topic.
        queue_offset: of the first.
    """
    return [None] * (len(entries) // QUEUE_ENTRY_BYTES)
