"""Cells: quantities, units and targets.

A target is either a ratio to the better of the two Java brokers of the same run, or an absolute bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OURS = "ours"
JAVA = ("4.9.7", "5.3.3")
SERVERS = (OURS, *JAVA)

Session = Literal["send", "read", "flush", "pair", "rest", "store", "failover"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure."""

    name: str  # Name for --only.
    title: str
    session: Session  # Session: the group measured on one start of the server.
    unit: str
    more_is_better: bool = True
    ratio: float | None = None  # Ratio to the better Java; for times, at most this.
    bound: float | None = None  # At least this, or at most, by more_is_better.
    ours_only: bool = False

    @property
    def target(self) -> str:
        """Return the target as text."""
        sign = "≥" if self.more_is_better else "≤"
        parts = [f"{sign} {self.ratio:g}×"] if self.ratio is not None else []
        parts += [f"{sign} {self.bound:g} {self.unit}"] if self.bound is not None else []
        return ", ".join(parts) or "–"


@dataclass(frozen=True, slots=True)
class SendLoad:
    """Load of a cell that sends."""

    connections: int
    window: int
    body_bytes: int = 128
    batch: int = 1

    @property
    def open_requests(self) -> int:
        """Return the number of requests in flight."""
        return self.connections * self.window


_SHAPES = {"1x1": (1, 1, 1.3), "64x1": (64, 1, 1.7), "1x32": (1, 32, 2.0), "16x32": (16, 32, 2.0)}

SEND_LOADS: dict[str, SendLoad] = {
    **{f"send-128-{shape}": SendLoad(c, w) for shape, (c, w, _) in _SHAPES.items()},
    **{f"send-1k-{shape}": SendLoad(c, w, 1024) for shape, (c, w, _) in _SHAPES.items()},
    "batch": SendLoad(4, 8, batch=32),
    "flush-1x1": SendLoad(1, 1),
    "flush-16x32": SendLoad(16, 32),
    "pair-1x1": SendLoad(1, 1),
    "pair-16x32": SendLoad(16, 32),
}
"""Connections × window of every cell that is a rate of sends."""

CELLS: tuple[Cell, ...] = (
    *(Cell(f"send-128-{s}", f"send 128 B, {s}", "send", "msg/s", ratio=r) for s, (_, _, r) in _SHAPES.items()),
    *(Cell(f"send-1k-{s}", f"send 1 KiB, {s}", "send", "msg/s", ratio=r) for s, (_, _, r) in _SHAPES.items()),
    Cell("batch", "batch of 32 × 128 B, 4x8", "send", "msg/s", ratio=1.0),
    Cell("e2e-p50", "end to end at 1,000 msg/s, p50", "send", "ms", more_is_better=False, ratio=0.5),
    Cell("e2e-p99", "end to end at 1,000 msg/s, p99", "send", "ms", more_is_better=False, ratio=0.5),
    Cell("pull", "pull catch-up, 1 KiB", "read", "msg/s", ratio=1.5),
    Cell("ha", "HA catch-up to a raw classic slave", "read", "MB/s", ratio=1.5),
    Cell("flush-1x1", "sync flush, 128 B, 1x1", "flush", "msg/s", ratio=1.3),
    Cell("flush-16x32", "sync flush, 128 B, 16x32", "flush", "msg/s", ratio=2.5),
    Cell("pair-1x1", "SYNC_MASTER pair, 128 B, 1x1", "pair", "msg/s", ratio=1.5),
    Cell("pair-16x32", "SYNC_MASTER pair, 128 B, 16x32", "pair", "msg/s", ratio=1.3),
    Cell("start", "process start → first acknowledgement", "rest", "s", more_is_better=False, bound=1.0),
    Cell("rss", "resident memory at rest", "rest", "MB", more_is_better=False, bound=90),
    Cell("rss-10k", "resident memory, 10,000 idle connections", "rest", "MB", more_is_better=False, bound=400),
    Cell("twin", "master → our slave, stored and verified", "store", "MB/s", bound=400, ours_only=True),
    Cell(
        "recovery",
        "recovery of a 4 GiB store after kill -9",
        "store",
        "s",
        more_is_better=False,
        bound=5.0,
        ours_only=True,
    ),
    Cell("verify", "tandemq log verify, 1 KiB bodies", "store", "MB/s", bound=400, ours_only=True),
    Cell(
        "failover",
        "kill -9 of the master → next message, our client",
        "failover",
        "s",
        more_is_better=False,
        bound=1.5,
        ours_only=True,
    ),
)

SESSIONS: tuple[Session, ...] = ("send", "read", "flush", "pair", "rest", "store", "failover")


def chosen(only: list[str]) -> list[Cell]:
    """Return the cells whose name or session is in `only`, or begins with an entry; all if it is empty.

    Raises:
        ValueError: an entry matches nothing.
    """
    if not only:
        return list(CELLS)
    for entry in only:
        if not any(_matches(cell, entry) for cell in CELLS):
            names = ", ".join(cell.name for cell in CELLS)
            raise ValueError(f"no cell and no session is called {entry!r}; there are {names}; {', '.join(SESSIONS)}")
    return [cell for cell in CELLS if any(_matches(cell, entry) for entry in only)]


def _matches(cell: Cell, entry: str) -> bool:
    return entry in (cell.name, cell.session) or cell.name.startswith(entry + "-")
