"""Proxies for gRPC clients beside each other: TandemQ's and Java's, on the same broker.

    python -m bench.grpc                     about 5 minutes
    python -m bench.grpc --rounds 1 --seconds 4

All cells run on one proxy and then on the other, for as many rounds. It prints messages per second, CPU time of the
proxy per message, latency, and the ratio of the CPU times: what a proxy does on a core. The load generator and the
broker use the machine's other cores, so that messages per second depend on them too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from tandemq.run.children import ChildCluster, ClusterPorts
from tests.interop.grpc_proxies import Proxy, proxy

JAVA = "5.3.3"
WARM_UP_S = 20.0
"""Load before the first measurement of a proxy: Java compiles its code meanwhile."""
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Cell(NamedTuple):
    """One kind of load."""

    name: str
    what: str
    topic: str
    connections: int
    in_flight: int
    kind: str = "normal"


CELLS = (
    Cell("send 1x1", "send", "One", 1, 1),
    Cell("send 16x1", "send", "Many", 16, 1),
    Cell("send 16x8", "send", "Many", 16, 8),
    Cell("send 128x1", "send", "Many", 128, 1),
    Cell("send fifo 16x4", "send", "Fifo", 16, 4, "fifo"),
    Cell("receive 1", "receive", "Many", 1, 1),
    Cell("receive 16", "receive", "Many", 16, 1),
)


class Figure(NamedTuple):
    """What one run measured."""

    rate: float
    cpu_us: float
    p50: float
    p99: float
    failures: int


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def _load(cell: Cell, front: Proxy, seconds: float, group: str, *, count: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "bench.grpc_load", cell.what, front.address, "--topic", cell.topic]
    command += ["--connections", str(cell.connections), "--in-flight", str(cell.in_flight), "--kind", cell.kind]
    command += ["--seconds", str(seconds), "--group", group, "--count", str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


def _measure(cell: Cell, front: Proxy, seconds: float, group: str) -> Figure:
    if cell.what == "receive":
        _load(cell, front, 0.5, group)  # groups begin at the end
        fill = Cell("fill", "send", cell.topic, 16, 8)
        _load(fill, front, 60, group, count=int(12_000 * seconds))
    before = _cpu_s(front.pid)
    found = _load(cell, front, seconds, group)
    cpu_us = (_cpu_s(front.pid) - before) * 1e6 / max(1, found["messages"])
    failures = sum(found["failures"].values())
    return Figure(found["messages"] / found["seconds"], cpu_us, found["p50"], found["p99"], failures)


@contextmanager
def _cluster(directory: Path) -> Iterator[ChildCluster]:
    with ChildCluster(directory / "cluster", groups=1, slaves=0, ports=ClusterPorts()) as cluster:
        at = ["--namesrv", cluster.name_servers]
        for topic, kind in (("One", "normal"), ("Many", "normal"), ("Fifo", "fifo")):
            command = [sys.executable, "-m", "tandemq", "topic", "create", topic, "--type", kind, *at]
            subprocess.run(command, check=True, capture_output=True)
        yield cluster


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.grpc", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each cell, of which the median counts")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of a measurement")
    parser.add_argument("--only", default="", help="part of the names of the cells")
    parser.add_argument("--proxies", default=f"ours,{JAVA}", help="comma list of ours and versions of Java's proxy")
    args = parser.parse_args()
    kinds = args.proxies.split(",")
    figures: dict[tuple[str, str], list[Figure]] = {}
    with tempfile.TemporaryDirectory(prefix="tandemq-bench-grpc-") as name, _cluster(Path(name)) as cluster:
        for kind in kinds:
            with proxy(kind, Path(name) / f"proxy-{kind}", cluster.name_servers) as front:
                front.start()
                _load(CELLS[2], front, WARM_UP_S, "warm-up")
                _load(CELLS[6], front, WARM_UP_S / 2, "warm-up")
                for number in range(args.rounds):
                    for cell in CELLS:
                        if args.only in cell.name:
                            group = f"{kind.replace('.', '-')}-{number}"
                            found = _measure(cell, front, args.seconds, group)
                            figures.setdefault((cell.name, kind), []).append(found)
                            print(f"{kind} {cell.name}: {found}", file=sys.stderr)
    _print(kinds, figures)


def _print(kinds: list[str], figures: dict[tuple[str, str], list[Figure]]) -> None:
    table = Table("cell", "proxy", "msg/s", "CPU us/msg", "p50 ms", "p99 ms", "failed", "per core")
    for cell in CELLS:
        base = None
        for kind in reversed(kinds):
            found = figures.get((cell.name, kind))
            if not found:
                continue
            median = Figure(*(statistics.median(values) for values in zip(*found, strict=True)))
            base = base or median.cpu_us
            ratio = f"{base / median.cpu_us:.2f}x" if median.cpu_us else ""
            table.add_row(
                cell.name,
                kind,
                f"{median.rate:,.0f}",
                f"{median.cpu_us:.0f}",
                f"{median.p50:.1f}",
                f"{median.p99:.1f}",
                f"{median.failures:.0f}",
                ratio,
            )
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
