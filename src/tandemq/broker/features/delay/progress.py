"""Progress of delay levels: what of each level's queue is delivered, and the messages that wait apart.

    {"dataVersion": …, "offsetTable": {"3": 42}, "waitingTable": {"3": [17, 20]}}

Entries below 42 of level 3 are delivered, but 17 and 20, which were damaged when they were due. RocketMQ has no
`waitingTable` and ignores it. It is in the same file as the offsets, because a list of another age would lose messages
or repeat them.

Limit: `WAITING_MAX` messages of a level wait apart; then the level waits as a whole.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tandemq.codec.remoting.bodies import integer
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.storage.json_tables import require

WAITING_MAX = 256
_OFFSETS, _WAITING = "offsetTable", "waitingTable"


class LevelProgress(NamedTuple):
    """Progress of one level: entries below `offset` are delivered, except `waiting` (ascending, all below it)."""

    offset: int = 0
    waiting: tuple[int, ...] = ()

    def advanced(self, offset: int) -> "LevelProgress":
        """Return the progress after the delivery of all entries up to `offset`."""
        return self._replace(offset=offset)

    def put_apart(self, queue_offset: int) -> "LevelProgress":
        """Return the progress if the next entry is not delivered, but waits apart."""
        assert queue_offset >= self.offset, "only the next entry is put apart"
        return LevelProgress(queue_offset + 1, (*self.waiting, queue_offset))

    def settled(self, queue_offset: int) -> "LevelProgress":
        """Return the progress after the delivery of an entry that waited apart."""
        return self._replace(waiting=tuple(offset for offset in self.waiting if offset != queue_offset))

    def cut(self, end: int) -> "LevelProgress":
        """Return the progress in a queue that was truncated to `end`."""
        return LevelProgress(min(self.offset, end), tuple(offset for offset in self.waiting if offset < end))

    def has_delivered(self, queue_offset: int) -> bool:
        """Return whether an entry is delivered."""
        return queue_offset < self.offset and queue_offset not in self.waiting


NOTHING = LevelProgress()
Table = Mapping[int, LevelProgress]


def delivered_by_either(first: LevelProgress, second: LevelProgress) -> LevelProgress:
    """Return the progress of a level at two members together: an entry counts if either has delivered it."""
    return LevelProgress(
        max(first.offset, second.offset),
        tuple(
            queue_offset
            for queue_offset in sorted({*first.waiting, *second.waiting})
            if not (first.has_delivered(queue_offset) or second.has_delivered(queue_offset))
        ),
    )


def delivered_by_both(first: LevelProgress, second: LevelProgress) -> LevelProgress:
    """Return the common part of two states of a level: an entry counts only if both have it."""
    offset = min(first.offset, second.offset)
    return LevelProgress(
        offset,
        tuple(queue_offset for queue_offset in sorted({*first.waiting, *second.waiting}) if queue_offset < offset),
    )


def progress_as_json(table: Table) -> dict[str, Any]:
    """Return the tables of offsets and of waiting messages, the latter only if there are any."""
    waiting = {level: list(progress.waiting) for level, progress in table.items() if progress.waiting}
    offsets: dict[str, Any] = {_OFFSETS: {level: progress.offset for level, progress in table.items()}}
    return offsets | ({_WAITING: waiting} if waiting else {})


def check_progress(raw: dict[str, Any]) -> None:
    """Check a table of a file.

    Raises:
        StoreDamaged: it is not a table of progress.
    """
    require(raw, _OFFSETS)
    progress_in(raw)


def progress_in(raw: dict[str, Any]) -> dict[int, LevelProgress]:
    """Return the progress by level in a table of a file or a peer.

    Raises:
        StoreDamaged: it is not a table of progress, or has more waiting messages than the limit.
    """
    try:
        offsets = {
            int(level): integer(offset, f"level {level}")
            for level, offset in (raw.get(_OFFSETS) or {}).items()
            if offset is not None
        }
        waiting = {int(level): _waiting_in(level, found) for level, found in (raw.get(_WAITING) or {}).items()}
    except (AttributeError, TypeError, ValueError, ProtocolError) as error:
        raise StoreDamaged(f"delay offsets: {error}") from error
    return {
        level: LevelProgress(
            offset, tuple(queue_offset for queue_offset in waiting.get(level, ()) if 0 <= queue_offset < offset)
        )
        for level, offset in offsets.items()
    }


def _waiting_in(level: str, found: Iterable[Any]) -> list[int]:
    waiting = sorted({integer(offset, f"waiting message of level {level}") for offset in found})
    if len(waiting) > WAITING_MAX:
        raise ProtocolError(f"{len(waiting)} messages of level {level:.8} wait, at most {WAITING_MAX} can")
    return waiting
