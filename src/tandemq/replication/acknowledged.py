"""Log offsets that enough replicas have acknowledged.

A replica with several connections counts once, with the offset of its newest connection.
Source: docs/internals/ha.md, "synchronous wait"; requirements W04-W06, W09.
"""

from collections.abc import Iterable


def copied_offset(acked: Iterable[int], needed: int) -> int:
    """Return the log offset that at least `needed` replicas have reported; -1 if fewer are connected, 2^62 for 0."""
    if needed <= 0:
        return 1 << 62
    offsets = sorted(acked, reverse=True)
    return offsets[needed - 1] if len(offsets) >= needed else -1


def enough_in_reach(acked: Iterable[int], needed: int, log_end: int, lag_bytes_max: int) -> bool:
    """Whether waiting can succeed: `needed` replicas are connected and less than `lag_bytes_max` bytes behind."""
    return sum(1 for offset in acked if log_end - offset < lag_bytes_max) >= needed
