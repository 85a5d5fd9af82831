"""The open transactions of a master: which half messages are neither committed, rolled back nor given up.

A check appends a copy of a half message, and the copy takes its place. A producer may end the transaction by any of the
copies.
"""

from itertools import islice
from typing import NamedTuple

ENDED_MAX = 65_536
"""Number of ended transactions that are remembered, so that a repeated END_TRANSACTION is known as such."""
_FORGOTTEN_AT_ONCE = 4_096
"""Number by which there may be more: deleting the first key of a dict again and again takes longer each time."""


class HalfEntry(NamedTuple):
    """Where the newest copy of a half message is."""

    log_offset: int
    topic: str
    """Topic of the message after the commit, "" if the record could not be read."""
    size: int = 0
    """Bytes of its record, 0 if that is not known."""


class OpenTransactions:
    """Open half messages by queue offset, in its order."""

    def __init__(self) -> None:
        """Begin without transactions."""
        self.entries: dict[int, HalfEntry] = {}
        self.counts: dict[str, int] = {}
        """Number of open transactions by topic."""
        self._newest: dict[int, int] = {}
        """Queue offset of the newest copy, by that of each older one."""
        self._older: dict[int, list[int]] = {}
        """Queue offsets of the older copies, by that of the newest one."""
        self._over: dict[int, tuple[int, ...]] = {}
        """By queue offset, of the last transactions that are over: all its copies if it was given up, else none."""

    def __len__(self) -> int:
        """Return the number of open transactions."""
        return len(self.entries)

    def add(self, queue_offset: int, entry: HalfEntry) -> None:
        """Add a half message, or its copy, behind all others."""
        self.entries[queue_offset] = entry
        self.counts[entry.topic] = self.counts.get(entry.topic, 0) + 1

    def current(self, queue_offset: int) -> int | None:
        """Return the queue offset of the newest copy of an open transaction; None if it is not open."""
        found = self._newest.get(queue_offset, queue_offset)
        return found if found in self.entries else None

    def copied(self, queue_offset: int, copy: int, entry: HalfEntry) -> None:
        """Replace a half message by its copy."""
        self._remove(queue_offset)
        self.add(copy, entry)
        older = [*self._older.pop(queue_offset, ()), queue_offset]
        self._older[copy] = older
        for replaced in older:
            self._newest[replaced] = copy

    def end(self, queue_offset: int, *, is_given_up: bool = False) -> None:
        """Note that a transaction is over, by the queue offset of its newest copy."""
        self._remove(queue_offset)
        older = self._older.pop(queue_offset, None)
        if older is None and not is_given_up and queue_offset not in self._over:
            self._over[queue_offset] = ()
        else:
            copies = self._over.get(queue_offset) or (*(older or ()), queue_offset)
            for ended in copies:
                self._newest.pop(ended, None)
                self._over[ended] = copies if is_given_up else ()
        if len(self._over) > ENDED_MAX + _FORGOTTEN_AT_ONCE:
            for forgotten in list(islice(self._over, len(self._over) - ENDED_MAX)):
                del self._over[forgotten]

    def _remove(self, queue_offset: int) -> None:
        entry = self.entries.pop(queue_offset, None)
        if entry is not None:
            self.counts[entry.topic] -= 1

    def is_over(self, queue_offset: int) -> bool:
        """Whether a transaction is known as committed or rolled back."""
        return self._over.get(queue_offset) == ()

    def given_up(self, queue_offset: int) -> int | None:
        """Return the queue offset of the newest copy of a transaction that is known as given up; None if it is not."""
        copies = self._over.get(queue_offset)
        return copies[-1] if copies else None

    def forget_given_up(self, queue_offset: int) -> None:
        """Forget a transaction that was given up: it is resumed as another half message."""
        for copy in self._over.get(queue_offset, ()):
            del self._over[copy]

    def first(self, end: int) -> int:
        """Return the queue offset of the oldest open half message; `end`: the result if none is open."""
        return next(iter(self.entries), end)
