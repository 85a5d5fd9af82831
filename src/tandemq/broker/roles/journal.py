"""What a member of a group keeps about itself on the disk.

    config/failover.json    whether the log is whole, or may lack something that was acknowledged; the newest record of
                            the group that was seen
    config/timeline.json    the last changes of its role, for operators

Source: docs/internals/failover.md, "A broker and its member".
"""

import logging
from typing import Any

from tandemq.boundary import Disk, Now
from tandemq.broker.state.persistence import Saver
from tandemq.coordination.registry.records import GroupState, state_from_fields, state_to_fields
from tandemq.errors import ConfigError, StoreDamaged, StoreError
from tandemq.storage.json_tables import TableFile
from tandemq.storage.recovery import clear_loss_flag

log = logging.getLogger(__name__)
FILE = TableFile("failover.json")
TIMELINE_FILE = TableFile("timeline.json")
TIMELINE_MAX = 200
"""Entries kept; the oldest are dropped first."""


class FailoverJournal:
    """The state of the log as other members may know it, and the timeline."""

    def __init__(self, disk: Disk, saver: Saver, *, has_messages: bool, may_have_lost: bool) -> None:
        """Load both files.

        Args:
            disk: the store.
            saver: writes the timeline.
            has_messages: whether the log has any; without a note an empty log is not known to be whole.
            may_have_lost: whether the last stop may have lost bytes of the log.
        Raises:
            StoreDamaged: a file cannot be read.
        """
        self._disk = disk
        self._saver = saver
        saved = FILE.load(disk)
        is_noted = bool(saved["isLogWhole"]) if "isLogWhole" in saved else has_messages
        self.was_whole = is_noted and not may_have_lost
        """Whether the log is whole, as far as is known at the start."""
        held = saved.get("held", [0, 0])
        self.held: tuple[int, int] = (int(held[0]), int(held[1]))
        """Epoch and version of the last record by which this broker served clients."""
        self.seen = _record_of(saved)
        """The newest record of the group that this broker has seen; None: none is known."""
        self._noted: tuple[bool, tuple[int, int], GroupState | None] | None = None
        self._is_failing = False
        """Whether the disk did not take the note."""
        self.timeline: list[dict[str, Any]] = list(TIMELINE_FILE.load(disk).get("entries", []))
        """When (calendar ms), in which epoch, what; oldest first."""

    def note(self, *, is_whole: bool, held: tuple[int, int], seen: GroupState | None, is_elect: bool) -> bool:
        """Save whether the log is whole, which record this broker served by, and the newest one that it has seen.
        Returns whether they are on the disk; if not, call it again."""
        if (is_whole, held, seen) == self._noted:
            return True
        table: dict[str, Any] = {"isLogWhole": is_whole, "held": list(held)}
        if seen is not None:
            table["seen"] = state_to_fields(seen)
        try:
            FILE.save(self._disk, table)
            if is_elect:
                clear_loss_flag(self._disk)
            self._noted, self._is_failing = (is_whole, held, seen), False
            return True
        except StoreError as error:
            if not self._is_failing:
                log.error(
                    "failover: it cannot be noted that the log is%s whole, that this broker served by record %s, and "
                    "that it has seen epoch %d: %s",
                    "" if is_whole else " not",
                    held,
                    0 if seen is None else seen.epoch,
                    error,
                )
            self._is_failing = True
            return False

    def add(self, now: Now, epoch: int, text: str, at_ms: int) -> None:
        """Log a change of the role, and append it to the timeline. `at_ms`: when it happened, monotonic."""
        log.warning("failover: epoch=%d mono_ms=%d %s", epoch, at_ms, text)
        self.timeline = [*self.timeline[1 - TIMELINE_MAX :], {"ms": now.wall_ms, "epoch": epoch, "text": text}]
        self._saver.later(TIMELINE_FILE, lambda: {"entries": self.timeline}, is_awaited=False)


def _record_of(saved: dict[str, Any]) -> GroupState | None:
    """Return the record in the file; None if it has none, as one of an earlier version.

    Raises:
        StoreDamaged: the record is malformed.
    """
    fields = saved.get("seen")
    if fields is None:
        return None
    what = f"{FILE.path}: seen"
    try:
        if not isinstance(fields, dict):
            raise ConfigError(f"{what} must be a JSON object")
        return state_from_fields(what, fields)
    except ConfigError as error:
        hint = "delete the field, if the registry's data are as new as when this broker stopped"
        raise StoreDamaged(str(error), hint=hint) from error
