"""POP beside Java's: messages popped and acknowledged, while all of them wait.

    python -m bench.pops                              about 6 minutes
    python -m bench.pops --rounds 1 --only 16x1024

Each cell has a topic of its own, full of messages, on one broker of each kind, in turn. It prints messages per second,
CPU time of the broker per message, memory at the end, and the ratio of the CPU times. The load generator uses the other
core, so that messages per second depend on it too. In the cell "later" they are the acknowledgements per second of
messages popped before; its CPU time is that of both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cells import OURS
from bench.loads import run_load
from bench.servers import BrokerGroup, cpu_seconds, resident_mb

JAVA = "5.3.3"


class Cell(NamedTuple):
    """One kind of load."""

    connections: int
    queues: int
    acks: str = "each"
    batch: int = 32

    @property
    def name(self) -> str:
        """Return "connections x queues", and what is unusual."""
        more = f" {self.acks}" * (self.acks != "each") + f" of {self.batch}" * (self.batch != 32)
        return f"{self.connections}x{self.queues}{more}"


CELLS = (
    Cell(1, 1),
    Cell(16, 1),
    Cell(1, 1024),
    Cell(16, 1024),
    Cell(16, 16),
    Cell(16, 16, "batch"),
    Cell(16, 16, "later"),
    Cell(16, 16, batch=1),
    Cell(64, 64),
)


class Figure(NamedTuple):
    """What one run measured."""

    rate: float
    cpu_us: float
    memory_mb: float
    failures: int


def _run(group: BrokerGroup, cell: Cell, number: int, seconds: float, messages_per_s: int) -> Figure:
    topic = f"pop-{number}-{cell.connections}-{cell.queues}-{cell.acks}-{cell.batch}"
    count = int(messages_per_s * seconds)
    run_load("produce", group.master.address, topic=topic, queues=cell.queues, lengths="varied", count=count, warmup=0)
    command = [sys.executable, "-m", "bench.pop_load", group.master.address, "--topic", topic, "--group", f"g{number}"]
    command += ["--connections", str(cell.connections), "--acks", cell.acks, "--batch", str(cell.batch)]
    command += ["--seconds", str(seconds), "--count", str(count)]
    before = cpu_seconds(group.master.pid)
    found: dict[str, Any] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    cpu_us = (cpu_seconds(group.master.pid) - before) * 1e6 / max(1, found["popped"])
    failures = sum(found["failures"].values())
    rate = found["acked"] / found["ack_seconds"] if cell.acks == "later" else found["popped"] / found["seconds"]
    return Figure(rate, cpu_us, resident_mb(group.master.pid), failures)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.pops", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell, of which the median counts")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    parser.add_argument("--fill", type=int, default=120_000, help="messages that wait, per second of a measurement")
    parser.add_argument("--only", default="", help="part of the names of the cells")
    parser.add_argument("--brokers", default=f"{OURS},{JAVA}", help="comma list of ours and versions of Java's broker")
    args = parser.parse_args()
    kinds = args.brokers.split(",")
    figures: dict[tuple[Cell, str], list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="tandemq-bench-pops-") as name:
        for kind in kinds:
            with BrokerGroup(kind, Path(name) / kind) as group:
                group.start_master()
                _run(group, CELLS[4], 1_000, args.seconds, args.fill)  # Java compiles its code meanwhile
                for number in range(args.rounds):
                    for cell in CELLS:
                        if args.only in cell.name:
                            found = _run(group, cell, number, args.seconds, args.fill)
                            figures.setdefault((cell, kind), []).append(found)
                            print(f"{kind} {cell.name}: {found}", file=sys.stderr)
    _print(kinds, figures)


def _print(kinds: list[str], figures: dict[tuple[Cell, str], list[Figure]]) -> None:
    table = Table(
        "consumers x queues", "broker", "msg/s", "CPU us/msg", "memory MB", "failed", "msg/s ratio", "per core"
    )
    for cell in CELLS:
        base: Figure | None = None
        for kind in reversed(kinds):
            found = figures.get((cell, kind))
            if not found:
                continue
            median = Figure(*(statistics.median(values) for values in zip(*found, strict=True)))
            base = base or median
            table.add_row(
                cell.name,
                kind,
                f"{median.rate:,.0f}",
                f"{median.cpu_us:.1f}",
                f"{median.memory_mb:.0f}",
                f"{median.failures:.0f}",
                f"{median.rate / base.rate:.2f}x" if base.rate else "",
                f"{base.cpu_us / median.cpu_us:.2f}x" if median.cpu_us else "",
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
