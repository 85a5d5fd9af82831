"""Which commit log files may go, and which must wait.

    expired      older than the reserved time: goes in the hours of deleteWhen, or at any hour above the used ratio,
                 unless a slave has not got it or an open delay still needs it
    forced       above the force ratio the oldest file goes whatever its age and whoever needs it, and that is said
    full         above the full ratio the broker takes no more messages until there is room

The last file never goes. Source: docs/internals/storage.md, "retention"; RocketMQ CleanCommitLogService.
"""

from dataclasses import dataclass

from tandemq.boundary import DiskUsage

FILES_PER_ROUND = 10


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Hours, hours of the day, and ratios 0…1."""

    reserved_ms: int
    delete_hours: frozenset[int]
    used_ratio: float
    force_ratio: float
    full_ratio: float
    force_enable: bool


@dataclass(frozen=True, slots=True)
class LogSegment:
    """A commit log file as retention sees it: `[start, end)` and the calendar time of its last change."""

    start: int
    end: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Files to delete, oldest first; `kept_for`: why an expired one stays; `forced`: who needed what is deleted."""

    delete: list[LogSegment]
    kept_for: str = ""
    forced: str = ""
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
    """What to delete now.

    Args:
        segments: all files, oldest first; the last one is never deleted.
        hour: of the local day, 0…23.
        needed: who needs the log from which offset on ("slave 1": 4096).
        asked: an operator asked for expired files to go now.
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
    """Hours of "04" or "04;16".

    Raises:
        ValueError: one is not an hour.
    """
    hours = frozenset(int(word) for word in text.split(";") if word.strip())
    if any(not 0 <= hour <= 23 for hour in hours):
        raise ValueError(f"{text!r}: hours are 0 to 23")
    return hours
