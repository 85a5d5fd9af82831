"""A quiet tenant beside a noisy one: p50 and p99 of its sends, without and with limits.

    python -m bench.tenants                      about two minutes
    python -m bench.tenants --rounds 1 --seconds 3

The quiet one sends 1,000 messages per second from 4 connections; the noisy one as many as it can to another topic, with
8 connections of 16 requests in flight, which it repeats at once if they are refused. The limit of the noisy topic is
2,000 per second. On a machine with few cores the noisy process itself takes time from the broker and the quiet client:
the cell with a neighbour that keeps to the limit by itself shows how much.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cells import OURS
from bench.loads import LoadFailed, run_load
from bench.servers import BrokerGroup

LIMIT = 2_000
_LEAD_S = 2.0


class Cell(NamedTuple):
    """What the quiet tenant has beside it."""

    name: str
    rate: int | None = None
    """Messages per second of the other tenant; 0: as many as it can, None: there is no other tenant."""
    limit: tuple[str, ...] = ()
    """Options of the limit; (): there is none."""


CELLS = (
    Cell("alone"),
    Cell("neighbour within the limit", LIMIT),
    Cell("noisy, no limit", 0),
    Cell("noisy, refused", 0, ("--messages", str(LIMIT))),
    Cell("noisy, --slow", 0, ("--messages", str(LIMIT), "--slow")),
)


class Figure(NamedTuple):
    """What one run measured."""

    p50_ms: float
    p99_ms: float
    noisy_per_s: float


def _quota(name_server: str, *words: str) -> None:
    command = [sys.executable, "-m", "tandemq", "quota", *words, "--namesrv", name_server]
    subprocess.run(command, check=True, capture_output=True)


def _measure(cell: Cell, group: BrokerGroup, seconds: float) -> Figure:
    address, name_server = group.master.address, group.name_server.address
    if cell.limit:
        _quota(name_server, "set", "topic", "noisy", *cell.limit)
    noisy: dict[str, Any] = {}
    failures: list[LoadFailed] = []

    def shout() -> None:
        try:
            options: dict[str, Any] = {"topic": "noisy", "connections": 8, "window": 16, "lengths": "varied"}
            if cell.rate:
                options["rate"] = cell.rate
            noisy.update(run_load("produce", address, **options, seconds=seconds + _LEAD_S, warmup=0))
        except LoadFailed as error:
            failures.append(error)

    thread = threading.Thread(target=shout)
    if cell.rate is not None:
        thread.start()
    quiet: dict[str, Any] = {"topic": "quiet", "rate": 1_000, "connections": 4, "window": 1, "lengths": "varied"}
    found = run_load("produce", address, **quiet, seconds=seconds, warmup=_LEAD_S / 2)
    if cell.rate is not None:
        thread.join()
    if failures:
        raise failures[0]
    if cell.limit:
        _quota(name_server, "delete", "topic", "noisy")
    return Figure(found["latency"]["p50_ms"], found["latency"]["p99_ms"], noisy.get("messages_per_s", 0.0))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.tenants", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell, of which the median counts")
    parser.add_argument("--seconds", type=float, default=5.0, help="length of a measurement")
    args = parser.parse_args()
    figures: dict[Cell, list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="tandemq-bench-") as name, BrokerGroup(OURS, Path(name) / "ours") as group:
        group.start_master()
        for topic in ("quiet", "noisy"):
            run_load("produce", group.master.address, topic=topic, count=1_000, warmup=0)
        for _ in range(args.rounds):
            for cell in CELLS:
                figures.setdefault(cell, []).append(_measure(cell, group, args.seconds))
                print(f"{cell.name}: {figures[cell][-1]}", file=sys.stderr)
    table = Table("quiet tenant", "p50 ms", "p99 ms", "of alone", "of a neighbour", "other tenant/s")
    alone, beside = (statistics.median(found.p99_ms for found in figures[cell]) for cell in CELLS[:2])
    for cell, found in figures.items():
        p50, p99, noisy = (statistics.median(values) for values in zip(*found, strict=True))
        table.add_row(
            cell.name, f"{p50:.2f}", f"{p99:.2f}", f"{p99 / alone:.2f}x", f"{p99 / beside:.2f}x", f"{noisy:,.0f}"
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
