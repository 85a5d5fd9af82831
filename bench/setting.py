"""What every session gets: the chosen cells, the pace, a group of brokers; and warm-up for its loads."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cells import JAVA, Cell
from bench.loads import run_load
from bench.matrix import LARGE, SendLoad
from bench.probe import first_acknowledgement
from bench.servers import BrokerGroup, Conf
from tandemq.load import SendShape

PROBE_TOPIC = "probe"
_PAIR_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations and amounts; the quick pace is for trying the benchmark itself, not for figures."""

    measure_s: float = 3.0
    settle_s: float = 1.0  # The load of a cell before its measured time.
    warmup_java_s: float = 30.0  # A JVM goes on compiling for that long.
    warmup_ours_s: float = 6.0
    latency_s: float = 8.0
    read_bytes: int = 512 << 20
    store_bytes: int = 4 << 30
    copy_bytes: int = 2 << 30  # Of a log that a slave copies.
    replays: int = 3  # Repetitions of a stream of a few seconds; the median counts.
    idle_connections: int = 10_000
    idle_s: float = 10.0  # CPU time at rest.
    java_s: float = 32.0  # RocketMQ's benchmark programs print a rate every ten seconds.
    java_messages: int = 3_000_000
    client_messages: int = 400_000
    topics: int = 5_000
    seeds: int = 60

    @property
    def load_s(self) -> float:
        """Return how long a cell that sends is under load."""
        return self.settle_s + self.measure_s


QUICK = Pace(
    measure_s=1.0,
    settle_s=0.3,
    warmup_java_s=3.0,
    warmup_ours_s=1.0,
    latency_s=2.0,
    read_bytes=1 << 27,
    store_bytes=1 << 28,
    copy_bytes=1 << 27,
    replays=1,
    idle_connections=1_000,
    idle_s=2.0,
    java_s=22.0,
    java_messages=300_000,
    client_messages=50_000,
    topics=500,
    seeds=6,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value, with details."""

    cell: str
    server: str
    value: float
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bench:
    """What a session gets."""

    server: str
    cells: list[Cell]  # The chosen cells of this session.
    directory: Path
    pace: Pace
    say: Callable[[str], None]

    def wants(self, name: str) -> bool:
        """Return whether this cell is to be measured on this server."""
        return any(cell.name == name and cell.is_measured_on(self.server) for cell in self.cells)

    @property
    def place(self) -> Path:
        """Return the directory for what this server stores."""
        return self.directory / f"{self.server}-{os.getpid()}"

    def group(self, conf: Conf | None = None) -> BrokerGroup:
        """Return a fresh group of brokers of this kind."""
        return BrokerGroup(self.server, self.place, conf)

    def figure(self, cell: str, value: float, detail: dict[str, Any] | None = None) -> Figure:
        """Return a figure of this server."""
        return Figure(cell, self.server, value, detail or {})

    @property
    def warmup_s(self) -> float:
        """Return how long this server is to be loaded before anything is measured."""
        return self.pace.warmup_java_s if self.server in JAVA else self.pace.warmup_ours_s


def warm_up(bench: Bench, group: BrokerGroup, loads: Iterable[SendLoad]) -> None:
    """Send each form and layout that will be measured, for as long as this kind of server needs in all."""
    kinds = {(load.form, load.layout): load for load in loads if load.lengths not in LARGE}
    for (form, layout), load in kinds.items():
        bench.say(f"warm-up, {form}, {layout}")
        options = {**load.options, "connections": 16, "window": 32 // int(load.options.get("batch", 1)) or 1}
        run_load("produce", group.master.address, **options, seconds=bench.warmup_s / len(kinds), warmup=0)


def sync_master(server: str) -> Conf:
    """Return the settings of a pair that acknowledges what its slave has; 5.3.3 needs one more to wait for it."""
    five = {"inSyncReplicas": 2, "totalReplicas": 2} if server.startswith("5.") else {}
    return {"brokerRole": "SYNC_MASTER", **five}


def start_pair(group: BrokerGroup) -> None:
    """Start master and slave and wait until a send is acknowledged by both."""
    group.start_master()
    group.start(group.slave)
    first_acknowledgement(group.master.address, SendShape(PROBE_TOPIC), _PAIR_S)
