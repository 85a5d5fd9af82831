"""Liveness of members, by this broker's own connections and by several consecutive checks of the registry.

    missing, silent ──check──► 1 of N ──1 s──► 2 of N ──…──► N of N: may take over
         ▲                        │ a check with another result, or without an answer
         └────────────────────────┘

Writing to a connection is not a sign of life. Source: docs/internals/failover.md, "When another takes over";
requirement F17.
"""

from dataclasses import dataclass
from typing import NamedTuple


class TableProgress(NamedTuple):
    """How much of the master's metadata a member has saved."""

    has_needed: bool
    """Whether it has the metadata tables from before it began to join, and receives their changes; in a switch to it,
    whether it has the last changes too."""
    keeps_up: bool
    """Whether it has all metadata that was published when it last kept up."""


@dataclass(slots=True)
class GroupPeer:
    """Another member, as seen on this broker's own connections."""

    heard_ms: int
    """Monotonic time of the last byte received from it; the start of this broker if there was none."""
    is_linked: bool = False
    """Whether a replication connection is open and its handshake done; either side may have opened it."""
    acked: int = -1
    """Log offset that it reported on this epoch's connection, bytes; -1: none yet."""
    caught_up_ms: int = -(1 << 62)
    """When it last had all bytes that this log had at its previous report."""
    tables_ms: int = -(1 << 62)
    """When it last kept up with the metadata: see `TableProgress`."""
    has_tables: bool = False
    """Whether it has the metadata that it needs: see `TableProgress`."""
    end_then: int = 0
    """This broker's log end at its last report."""
    lease_ms: int = 0
    """Its lease time by its heartbeats; members that take over from it wait at least as long."""
    log_end: int = -1
    """Its log end by its heartbeats; -1: unknown."""


class AbsenceChecks:
    """Consecutive checks of the registry, a fixed time apart."""

    def __init__(self) -> None:
        """Start without checks."""
        self.count = 0
        self.next_ms: int | None = None
        """When the next check is due; None: no checks are in progress."""

    def begin(self, now_ms: int) -> None:
        """Start checking now, unless checks are in progress."""
        if self.next_ms is None:
            self.next_ms = now_ms

    def is_due(self, now_ms: int, check_ms: int) -> bool:
        """Return whether a check is due, and schedule the next one if so."""
        if self.next_ms is None or now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + check_ms
        return True

    def found(self, *, holds: bool) -> None:
        """Take the result of a check: whether the conditions of a takeover hold."""
        self.count = self.count + 1 if holds else 0

    def reset(self) -> None:
        """Stop checking: the holder is not suspected any more."""
        self.count = 0
        self.next_ms = None
