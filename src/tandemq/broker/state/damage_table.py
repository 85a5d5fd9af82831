"""Ranges of the commit log known to be damaged, and those that were repaired; kept in `config/scrub.json`.

Their bytes stay in place until good ones arrive. While a range waits for its repair, its messages are not delivered to
consumers; once every replica has answered that it lacks the good bytes too, consumers skip them. A range that the
device could not read waits until it can be read, or until a replica has it: it may not be damaged.

Source: docs/internals/storage.md, "scrubbing".
"""

from typing import Any, TypeVar

import msgspec

from tandemq.codec.record.entries import HOLE_SIZE_MIN

WAITS = "waits"
LOST = "lost"
REPAIRED_MAX = 50
"""Maximum number of repairs that are remembered, the latest ones."""
RANGES_MAX = 10_000
"""Maximum number of damaged ranges; a log with more cannot be repaired range by range."""


class Damage(msgspec.Struct, rename="camel", eq=False):
    """A damaged range `[start, end)` within one file; both are boundaries of records. Times are wall-clock, ms."""

    start: int
    end: int
    reason: str
    found_ms: int
    trouble: str = ""
    """Why the last attempt to repair it failed."""
    is_lost: bool = False
    """Whether no replica has valid bytes for it."""
    is_unread: bool = False
    """Whether the device could not read it."""


class Repair(msgspec.Struct, rename="camel", frozen=True):
    """A repaired range. `source`: the member that had valid bytes; "": the range turned out to be valid."""

    start: int
    end: int
    source: str
    repaired_ms: int


_Range = TypeVar("_Range", Damage, Repair)


class Damages:
    """The damaged and the repaired ranges of one log."""

    def __init__(self) -> None:
        """Begin without ranges."""
        self.ranges: list[Damage] = []
        self.repairs: list[Repair] = []
        self.repaired_total = 0

    def add(self, start: int, end: int, reason: str, wall_ms: int, *, is_unread: bool = False) -> Damage | None:
        """Add a range, merged with those that overlap it; return None if it is known, or there are too many."""
        touched = [known for known in self.ranges if known.start < end and start < known.end]
        for known in touched:
            if known.start <= start and end <= known.end:
                if not known.is_unread or is_unread:
                    return None
                known.reason, known.is_unread = reason, False  # it can be read now
                return known
        if len(self.ranges) >= RANGES_MAX:
            return None
        if touched:
            start = min(start, *(known.start for known in touched))
            end = max(end, *(known.end for known in touched))
        found = Damage(start, end, reason, wall_ms, is_unread=is_unread)
        self.ranges = sorted([known for known in self.ranges if known not in touched] + [found], key=_start_of)
        return found

    def shrink(self, damage: Damage, start: int, source: str, wall_ms: int) -> None:
        """Record that a range is valid up to `start`; remove it if that is its end."""
        repair = Repair(damage.start, start, source, wall_ms)
        newest = self.repairs[-1] if self.repairs else None
        if newest is not None and (newest.end, newest.source) == (repair.start, source):
            self.repairs[-1] = Repair(newest.start, start, source, wall_ms)
        else:
            self.repairs = [*self.repairs, repair][-REPAIRED_MAX:]
        damage.start = start
        if start >= damage.end:
            self.repaired_total += 1
            self.ranges = [known for known in self.ranges if known is not damage]

    def fate_of(self, log_offset: int, size: int) -> str:
        """Return what to do with a message: "" deliver it, WAITS for its repair, or LOST and skipped.

        A placeholder entry has the log offset of the message before it, so its record may lie in any later range.
        """
        is_placeholder = size >= HOLE_SIZE_MIN
        known = [
            damage
            for damage in self.ranges
            if damage.end > log_offset and (is_placeholder or damage.start < log_offset + size)
        ]
        if any(not damage.is_lost for damage in known):
            return WAITS
        return LOST if known and not is_placeholder else ""

    def forget_outside(self, start: int, end: int) -> bool:
        """Remove ranges that are no longer in the log; return whether there were any."""
        kept = [known for known in self.ranges if known.start >= start and known.end <= end]
        changed = len(kept) < len(self.ranges)
        self.ranges = kept
        return changed

    def as_json(self) -> dict[str, Any]:
        """Return the table in the form of its file."""
        return {
            "damaged": msgspec.to_builtins(self.ranges),
            "repaired": msgspec.to_builtins(self.repairs),
            "repairedTotal": self.repaired_total,
        }

    def load(self, table: dict[str, Any]) -> None:
        """Load the table of a file; invalid ranges are ignored, since the next pass finds them again."""
        self.ranges = sorted(_read(Damage, table.get("damaged")), key=_start_of)[:RANGES_MAX]
        self.repairs = _read(Repair, table.get("repaired"))[-REPAIRED_MAX:]
        total = table.get("repairedTotal")
        self.repaired_total = total if isinstance(total, int) else 0


def _start_of(damage: Damage) -> int:
    return damage.start


def _read(kind: type[_Range], found: Any) -> list[_Range]:
    try:
        ranges = [msgspec.convert(item, kind) for item in (found if isinstance(found, list) else [])]
    except msgspec.ValidationError:
        return []
    return [known for known in ranges if 0 <= known.start < known.end]
