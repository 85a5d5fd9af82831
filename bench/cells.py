"""Cells: quantities, units and targets.

A target is either a ratio to the better of the two Java brokers of the same run, or an absolute bound. Without `--only`
the cells of `DEFAULT` are measured, within 50 minutes (bench/estimate.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

from bench.matrix import DELIVERIES, FLUSHES, PAIRS, PULL_LOADS, SENDS, layout_text, size_text

OURS = "ours"
JAVA = ("4.9.7", "5.3.3")
NATS = "nats"
SERVERS = (OURS, *JAVA, NATS)
SERVER_NAMES = {OURS: "TandemQ", **{version: f"RocketMQ {version}" for version in JAVA}, NATS: "NATS JetStream"}
NATS_CELLS = frozenset(f"send/json/varied/4q/{shape}" for shape in ("1x1", "64x1", "1x32", "16x32"))
"""The cells that NATS JetStream is measured on, with bodies of the same lengths. It is no part of any target."""

Session = Literal[
    "send", "deliver", "read", "live", "flush", "pair", "java", "rest", "store", "failover", "client", "topics",
    "metrics", "beside", "sim"
]  # fmt: skip
SESSIONS: tuple[Session, ...] = (
    "send", "deliver", "read", "live", "flush", "pair", "java", "rest", "store", "failover", "client", "topics",
    "metrics", "beside", "sim"
)  # fmt: skip
"""Groups of cells that are measured on one start of the server, in this order."""
_Quantity = Literal["rate", "time"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure."""

    name: str  # Name for --only.
    title: str
    session: Session
    unit: str
    more_is_better: bool = True
    ratio: float | None = None  # Ratio to the better Java; for times, at most this.
    bound: float | None = None  # At least this, or at most, by more_is_better.
    ours_only: bool = False

    def is_measured_on(self, server: str) -> bool:
        """Return whether the cell makes sense on this server."""
        if server == NATS:
            return self.name in NATS_CELLS
        if server == "4.9.7" and self.name.startswith("deliver/timed/"):
            return False  # it knows no timed messages
        return server == OURS or not self.ours_only

    @property
    def target(self) -> str:
        """Return the target as text."""
        sign = "≥" if self.more_is_better else "≤"
        parts = [f"{sign} {self.ratio:g}×"] if self.ratio is not None else []
        parts += [f"{sign} {self.bound:g} {self.unit}"] if self.bound is not None else []
        return ", ".join(parts) or "–"


_DEFAULT_RATIOS: dict[str, float | None] = {
    "send/json/varied/4q/16x32": 5.0,
    "send/v5/varied/4q/16x32": 4.5,
    "send/binary/varied/4q/16x32": 4.5,
    "send/v1/varied/4q/16x32": 4.5,
    "send/json/varied/1024q/16x32": 3.5,
    "send/json/varied/300t/16x32": 3.5,
    "send/delay/varied/4q/16x32": 2.0,
    "send/timed/varied/4q/16x32": 1.5,
    "deliver/delay/varied/4q/16x32": 1.5,
    "deliver/timed/varied/4q/16x32": 1.5,
    "send/json/128/4q/16x32": 3.8,
    "send/json/1k/4q/16x32": 2.6,
    "send/batch/varied/4q/4x8": 1.5,
    "send/tls/varied/4q/16x32": 1.0,
    "send/transaction/varied/4q/16x32": 1.5,
    "send/transaction/varied/300t/16x32": 1.5,
    "send/transaction/1k/4q/64x1": None,
    "send/json/varied/4q/1000x1": None,
    "send/json/varied/4q/1x32": 4.0,
    "send/json/varied/4q/64x1": 1.9,
    "send/json/varied/4q/1x1": 1.9,
    "send/json/64k/4q/4x8": None,
    "send/json/1m/4q/4x8": None,
    "pull/1k/4q/1c": 1.2,
    "pull/1k/4q/4c": 1.1,
    "pull/1k/1024q/1c": 1.0,
    "pull/1k/1024q/4c": 1.0,
    "pull/1k/300t/1c": None,
    "pull/1k/300t/4c": None,
    "pull/64k/4q/4c": None,
    "pull/1m/4q/4c": None,
    "filter/4q/4c": None,
    "filter/1024q/4c": None,
    "sql/4q/4c": 1.0,
    "flush/128/1x1": 1.3,
    "flush/128/16x32": 2.5,
    "flush/varied/1x1": 1.3,
    "flush/varied/16x32": 3.5,
    "pair/128/1x1": 1.5,
    "pair/128/16x32": 1.3,
    "pair/varied/1x1": 1.7,
    "pair/varied/64x1": 1.6,
    "pair/varied/16x32": 3.5,
}
"""The loads that are measured without `--only`, with the ratios that are wanted."""

GROUPS = (0, 1, 20, 100)
LIVE_RATE = 5_000
"""Messages per second while groups read live, and beside other work."""
RATES = (1_000, 10_000)
"""Messages per second of the cells that measure end to end."""
BESIDE = {
    "nothing": "no other work",
    "scrubber": "while the scrubber runs",
    "retention": "while old files are deleted",
    "slave": "while a slave copies the log from its start",
}
"""Work beside which latency is measured."""


def _rate(name: str, title: str, session: Session, unit: str = "msg/s") -> Cell:
    return Cell(name, title, session, unit, ratio=_DEFAULT_RATIOS.get(name))


def _load_cells() -> Iterable[Cell]:
    for name, load in SENDS.items():
        yield _rate(name, f"send {load.title}", "send")
    for name, deliveries in DELIVERIES.items():
        what = "delayed by 1 s" if deliveries.form == "delay" else f"timed, {deliveries.delay_s} s"
        yield _rate(name, f"deliveries while sending, {what}, 16x32", "deliver")
    for name, load in FLUSHES.items():
        yield _rate(name, f"sync flush, {load.title}", "flush")
    for name, load in PAIRS.items():
        yield _rate(name, f"SYNC_MASTER pair, {load.title}", "pair")
    for name, pull in PULL_LOADS.items():
        what = {"": "pull catch-up,", "tag": "filter 1 of 100,", "sql": "SQL filter 1 of 10,"}[pull.filter]
        title = f"{what} {size_text(pull.lengths)}{layout_text(pull.layout)}, {pull.connections} connections"
        yield _rate(name, title.replace(" 1 connections", " 1 connection"), "read")


def _time(
    name: str,
    title: str,
    session: Session,
    unit: str,
    *,
    ratio: float | None = None,
    bound: float | None = None,
    ours_only: bool = False,
) -> Cell:
    return Cell(name, title, session, unit, False, ratio, bound, ours_only)


def _latency_cells() -> Iterable[Cell]:
    for groups in GROUPS:  # Without groups the cells are of sends alone.
        text = f"{groups or 'no'} live group{'' if groups == 1 else 's'} at {LIVE_RATE:,} msg/s"
        for what, title in (("send", "sends"), ("e2e", "end to end")):
            if not groups and what == "e2e":
                continue
            for point in ("p50", "p99"):
                ratio = 1.0 if (groups, what, point) == (100, "send", "p99") else None
                yield _time(f"live/{groups}g/{what}-{point}", f"{text}, {title}, {point}", "live", "ms", ratio=ratio)
        yield _time(f"live/{groups}g/cpu", f"{text}, broker", "live", "cores")
    for rate in RATES:
        for point, bound in (("p50", 0.15), ("p99", 0.3)):
            title = f"end to end at {rate:,} msg/s, {point}"
            yield _time(f"e2e/{rate}/{point}", title, "live", "ms", bound=bound)
    for name, text in BESIDE.items():
        for what, title in (("send", "sends"), ("e2e", "end to end")):
            title = f"{title} at {LIVE_RATE:,} msg/s, p99, {text}"
            yield _time(f"beside/{name}/{what}-p99", title, "beside", "ms", ours_only=True)


def _other_cells() -> Iterable[Cell]:
    yield Cell("ha", "HA catch-up to a raw classic slave", "read", "MB/s", ratio=1.5)
    yield Cell("java/producer", "RocketMQ's benchmark producer, 64 threads", "java", "msg/s", ratio=1.1)
    yield Cell("java/consumer", "RocketMQ's benchmark consumer, 64 threads", "java", "msg/s", ratio=1.0)
    yield _time("rest/start", "process start → first acknowledgement", "rest", "s", bound=1.0)
    yield _time("rest/cpu", "broker at rest", "rest", "cores")
    yield _time("rest/rss", "resident memory at rest", "rest", "MB", bound=90)
    yield _time("rest/rss-10k", "resident memory, 10,000 idle connections", "rest", "MB", bound=400)
    yield Cell("store/slave", "master → its slave, stored and verified, varied", "store", "MB/s", bound=800)
    yield _time("store/recovery", "recovery of a 4 GiB store after kill -9", "store", "s", bound=5.0, ours_only=True)
    yield Cell("store/verify", "tandemq log verify, varied", "store", "MB/s", bound=400, ours_only=True)
    title = "kill -9 of the master → next message, our client"
    yield _time("failover", title, "failover", "s", bound=1.5, ours_only=True)
    yield Cell("client/send", "asyncio client, 64 in flight, 1 KiB", "client", "msg/s", bound=60_000, ours_only=True)
    yield Cell("client/consume", "asyncio client, push, 1 KiB", "client", "msg/s", bound=160_000, ours_only=True)
    yield _time("topics/create", "creating 5,000 topics", "topics", "s", bound=5.0, ours_only=True)
    title = "kill -9 with 5,000 topics → all routes are back"
    yield _time("topics/restart", title, "topics", "s", bound=3.0, ours_only=True)
    title = "10,000 series, a scrape per second"
    yield _time("metrics/slice", f"{title}: longest slice", "metrics", "ms", bound=3.0, ours_only=True)
    yield _time("metrics/scrape", f"{title}: CPU time of one", "metrics", "ms", bound=10.0, ours_only=True)
    yield Cell("metrics/throughput", f"{title}: sends kept", "metrics", "%", bound=99.0, ours_only=True)
    yield Cell("sim/seeds", "simulation", "sim", "seeds/s", bound=10, ours_only=True)


CELLS: tuple[Cell, ...] = (*_load_cells(), *_latency_cells(), *_other_cells())
"""All cells, those of the whole product of the matrix included."""
_LOADS = {*SENDS, *FLUSHES, *PAIRS, *PULL_LOADS}
DEFAULT: tuple[Cell, ...] = tuple(cell for cell in CELLS if cell.name not in _LOADS or cell.name in _DEFAULT_RATIOS)
"""What is measured without `--only`."""


def chosen(only: list[str]) -> list[Cell]:
    """Return the cells that an entry of `only` names; DEFAULT if it is empty.

    An entry is a session (its cells of DEFAULT), a name or the beginning of one up to a slash (all such cells), or a
    pattern, for example `send/*/varied/*/1x1`.

    Raises:
        ValueError: an entry matches nothing.
    """
    if not only:
        return list(DEFAULT)
    names: set[str] = set()
    for entry in only:
        found = {cell.name for cell in _matching(entry)}
        if not found:
            raise ValueError(
                f"no cell and no session is called {entry!r}; sessions: {', '.join(SESSIONS)}; cells: "
                f"{', '.join(cell.name for cell in DEFAULT)}; and send/FORM/LENGTHS/LAYOUT/SHAPE (bench/matrix.py)"
            )
        names |= found
    return [cell for cell in CELLS if cell.name in names]


def _matching(entry: str) -> list[Cell]:
    if entry in SESSIONS and (found := [cell for cell in DEFAULT if cell.session == entry]):
        return found
    return [
        cell
        for cell in CELLS
        if cell.name == entry or cell.name.startswith(entry + "/") or fnmatchcase(cell.name, entry)
    ]
