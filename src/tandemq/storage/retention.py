"""Retention: which commit log files to delete.

    expired      older than the reserved time: deleted in the hours of deleteWhen, or at any hour above the used ratio,
                 unless a slave has not copied it yet or a delayed message in it is still pending
    forced       above the force ratio the oldest file is deleted even if it is not expired or still needed (logged)
    full         above the full ratio the broker rejects messages until there is space

The last file is never deleted. Source: docs/internals/storage.md, "retention"; RocketMQ CleanCommitLogService.
"""

from dataclasses import dataclass

from tandemq.boundary import DiskUsage

FILES_PER_ROUND = 10


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Retention settings: reserved time in ms, hours of the day 0…23, used fractions of the device 0…1."""

    reserved_ms: int
    delete_hours: frozenset[int]
    used_ratio: float
    force_ratio: float
    full_ratio: float
    force_enable: bool


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A commit log file: the log offsets `[start, end)` and its modification time."""

    start: int
    end: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Result of `decide`."""

    delete: list[LogSegment]
    """Files to delete, oldest first."""
    kept_for: str = ""
    """Users of the log that keep an expired file from being deleted."""
    forced: str = ""
    """Users of the log that still needed a file which is deleted."""
    is_full: bool = False


def decide(
    config: RetentionConfig,
    segments: list[LogSegment],
    usage: DiskUsage,
    *,
    wall_ms: int,
    hour: int,
    needed: dict[str, int],
    asked: bool = False,
) -> Decision:
    """Return the files to delete now.

    Args:
        segments: all files, oldest first; the last one is never deleted.
        hour: hour of the local day, 0…23.
        needed: by user of the log, the offset from which on it needs the log ({"slave 1": 4096}).
        asked: an operator requested that expired files be deleted now.
    """
    ratio = usage.ratio
    is_full = ratio > config.full_ratio
    must = config.force_enable and ratio > config.force_ratio
    may = asked or hour in config.delete_hours or ratio > config.used_ratio
    delete: list[LogSegment] = []
    forced: set[str] = set()
    kept_for = ""
    for segment in segments[:-1][:FILES_PER_ROUND]:
        expired = wall_ms - segment.modified_ms >= config.reserved_ms
        if not (must or (may and expired)):
            break
        users = [who for who, offset in needed.items() if offset < segment.end]
        if users and not must:
            kept_for = ", ".join(users)
            break
        forced.update(users)
        delete.append(segment)
        if must:
            break
    return Decision(delete, kept_for, ", ".join(sorted(forced)), is_full)


def parse_hours(text: str) -> frozenset[int]:
    """Parse hours of the day, for example "04" or "04;16".

    Raises:
        ValueError: a number is not in 0…23.
    """
    hours = frozenset(int(word) for word in text.split(";") if word.strip())
    if any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(f"{text!r}: hours are 0 to 23")
    return hours
