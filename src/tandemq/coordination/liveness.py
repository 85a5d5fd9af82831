"""Who lives, as far as this broker can tell: what it heard itself, and looks at the registry that must agree in a row.

    absent, silent ──look──► 1 of N ──1 s──► 2 of N ──…──► N of N: may take over
         ▲                      │ one look that finds otherwise, or is not answered
         └──────────────────────┘

Own writes never count as a sign of life. Source: docs/internals/failover.md, "When another takes over"; requirement
F17.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class GroupPeer:
    """One other member, as this broker's own connections show it."""

    heard_ms: int
    """Monotonic time of the last byte that came from it; when we started, if none did."""
    is_linked: bool = False
    """A replication link is open and its handshake done, whichever side opened it."""
    acked: int = -1
    """Log offset it reported on the link of this epoch, bytes; -1: none yet."""
    caught_up_ms: int = -(1 << 62)
    """When it last had all we had when we heard from it before."""
    has_tables: bool = False
    """It has the tables that clients were told of before it began to join, and is told of what changes."""
    end_then: int = 0
    """Our log end at its last report."""
    lease_ms: int = 0
    """Of its own leases, as its heartbeats say; its promise-takers wait no shorter."""
    log_end: int = -1
    """Its log end, as its heartbeats say; -1: never told."""


class AbsenceChecks:
    """N looks in a row, a fixed time apart."""

    def __init__(self) -> None:
        """Nothing seen."""
        self.count = 0
        self.next_ms: int | None = None
        """When the next look is due; None: not looking."""

    def begin(self, now_ms: int) -> None:
        """Something is suspicious: look now."""
        if self.next_ms is None:
            self.next_ms = now_ms

    def is_due(self, now_ms: int, check_ms: int) -> bool:
        """Whether a check is due; if so, the next one is scheduled."""
        if self.next_ms is None or now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + check_ms
        return True

    def found(self, *, holds: bool) -> None:
        """A look was answered."""
        self.count = self.count + 1 if holds else 0

    def reset(self) -> None:
        """It was nothing."""
        self.count = 0
        self.next_ms = None
