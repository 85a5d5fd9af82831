"""Sends to brokers on 1, 2, 4 … cores: messages per second of the machine and of each core, ours beside Java's.

    python -m bench.cores                         as many cores as there are, about six minutes for two
    python -m bench.cores --cores 1,2 --servers ours --rounds 1

Ours has as many shards as cores (`tandemq broker --shards`), Java's one broker. Brokers run on the first cores, the
generators, one per core of the brokers, on the others; where none is left, they share them, and the table says so. The
row "2 shards on 1 core" is what shards cost where they cannot help.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cells import JAVA, OURS, SERVER_NAMES
from bench.loads import LoadFailed, run_load
from bench.matrix import SEND_LOADS
from bench.probe import wait_for_port
from bench.servers import BrokerGroup
from tandemq.config.shards import PORT_DISTANCE
from tests.interop.java import LOOPBACK, JavaJars

LOADS = (
    "send/json/varied/4q/64x1",
    "send/json/varied/4q/16x32",
    "send/json/varied/1024q/16x32",
    "send/batch/varied/4q/4x8",
)
START_S = 60.0
WARM_UP_S = {True: 30.0, False: 5.0}
"""By whether the server is a JVM."""


class Setup(NamedTuple):
    """A server on some cores."""

    server: str
    cores: int
    shards: int

    @property
    def title(self) -> str:
        """Return the name of its rows."""
        on = f"{self.cores} core{'s' if self.cores > 1 else ''}"
        if self.server != OURS:
            return f"{SERVER_NAMES[self.server]} on {on}"
        return f"{self.shards} shard{'s' if self.shards > 1 else ''} on {on}"


@contextlib.contextmanager
def _on(cores: set[int]) -> Iterator[None]:
    """Have processes that the body starts run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _measure(setup: Setup, directory: Path, seconds: float) -> dict[str, float]:
    """Return messages per second by load."""
    every = sorted(os.sched_getaffinity(0))
    brokers = set(every[: setup.cores])
    others = set(every) - brokers or brokers
    conf = {"shards": setup.shards} if setup.server == OURS else {}
    with BrokerGroup(setup.server, directory / "stores", conf) as group:
        with _on(brokers):
            group.start_master()
        addresses = [f"{LOOPBACK}:{group.master.port + PORT_DISTANCE * number}" for number in range(setup.shards)]
        for address in addresses:
            wait_for_port(address, START_S)
        with _on(others):
            warm_up_s = WARM_UP_S[setup.server in JAVA] / len(LOADS)
            for name in LOADS:
                _load(setup, addresses, name, warm_up_s, 0.0)
            return {name: _load(setup, addresses, name, seconds, 1.0) for name in LOADS}


def _load(setup: Setup, addresses: list[str], name: str, seconds: float, warm_up_s: float) -> float:
    """Put a load on all addresses, by a generator per core; return the sum of their messages per second."""
    rates: list[float] = []
    failures: list[LoadFailed] = []

    def send(address: str) -> None:
        options: dict[str, Any] = SEND_LOADS[name].options
        try:
            found = run_load("produce", address, **options, seconds=seconds, warmup=warm_up_s)
            rates.append(float(found["messages_per_s"]))
        except LoadFailed as error:
            failures.append(error)

    targets = [addresses[number % len(addresses)] for number in range(max(setup.cores, setup.shards))]
    threads = [threading.Thread(target=send, args=(address,)) for address in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(rates)


def _setups(cores: list[int], servers: list[str]) -> list[Setup]:
    found = [Setup(server, count, count if server == OURS else 1) for count in cores for server in servers]
    return [*found, Setup(OURS, 1, 2)] if OURS in servers else found


def _table(figures: dict[Setup, list[dict[str, float]]], machine_cores: int) -> Table:
    table = Table(title="messages per second; in brackets: per core; ratio to one shard on one core")
    table.add_column("")
    for name in LOADS:
        table.add_column(name.removeprefix("send/"), justify="right")
    one = {name: _median(figures.get(Setup(OURS, 1, 1), []), name) for name in LOADS}
    for setup, found in figures.items():
        cells = []
        for name in LOADS:
            rate = _median(found, name)
            ratio = f" {rate / one[name]:.2f}x" if one[name] else ""
            cells.append(f"{rate:,.0f} ({rate / setup.cores:,.0f}){ratio}")
        shared = " *" if setup.cores >= machine_cores else ""
        table.add_row(setup.title + shared, *cells)
    table.caption = "*: the generators share the cores"
    return table


def _median(found: list[dict[str, float]], name: str) -> float:
    return statistics.median([rates[name] for rates in found]) if found else 0.0


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.cores", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    there = len(os.sched_getaffinity(0))
    powers = [2**power for power in range(there.bit_length()) if 2**power <= there]
    parser.add_argument("--cores", default=",".join(map(str, powers)), help="comma list of numbers of cores")
    parser.add_argument("--servers", default=f"{OURS},{JAVA[0]}", help=f"comma list of {OURS}, {', '.join(JAVA)}")
    parser.add_argument("--rounds", type=int, default=2, help="measurements of each, of which the median counts")
    parser.add_argument("--seconds", type=float, default=4.0, help="length of a measurement")
    args = parser.parse_args()
    cores = [int(text) for text in args.cores.split(",")]
    servers = args.servers.split(",")
    if not cores or not all(1 <= count <= there for count in cores):
        parser.error(f"--cores {args.cores}: this machine has {there}")
    for server in servers:
        if server not in (OURS, *JAVA):
            parser.error(f"--servers {server}: there are {OURS}, {', '.join(JAVA)}")
        if server in JAVA:
            JavaJars.resolve("server", server)
    figures: dict[Setup, list[dict[str, float]]] = {setup: [] for setup in _setups(cores, servers)}
    with tempfile.TemporaryDirectory(prefix="tandemq-bench-") as name:
        for _ in range(args.rounds):
            for setup, found in figures.items():
                found.append(_measure(setup, Path(name), args.seconds))
                print(f"{setup.title}: {found[-1]}", file=sys.stderr)
    Console(width=160).print(_table(figures, there))


if __name__ == "__main__":
    main()
