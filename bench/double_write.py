"""The price of synchronous double write: a SYNC_MASTER pair beside an ASYNC_MASTER pair.

    python -m bench.double_write                          TandemQ, 7 rounds per load: about ten minutes
    python -m bench.double_write --server 5.3.3 --rounds 3

Both pairs, each a master and its slave, run all the time; one of them has load at a time. A round is one pair, the
other, the other, the one, so that neither the order matters, nor that the machine gets slower. Printed per load: the
medians of rates and response times, and of the rounds' ratios with the smallest and the largest one.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.cells import JAVA, OURS
from bench.loads import run_load
from bench.matrix import PAIRS
from bench.servers import BrokerGroup
from bench.setting import start_pair, sync_master

_LOADS = tuple(name for name in PAIRS if name.startswith("pair/varied/"))
_SECONDS = 2.5


def measure(
    groups: dict[str, BrokerGroup], load: str, rounds: int, seconds: float
) -> list[dict[str, dict[str, float]]]:
    """Return per round the rate (msg/s) and the median response time (ms) of each pair."""
    found = []
    for number in range(rounds):
        first, second = ("sync", "async") if number % 2 else ("async", "sync")
        runs: dict[str, list[dict[str, Any]]] = {"sync": [], "async": []}
        for name in (first, second, second, first):
            address = groups[name].master.address
            runs[name].append(run_load("produce", address, **PAIRS[load].options, seconds=seconds, warmup=1.0))
        found.append({name: _mean(of_pair) for name, of_pair in runs.items()})
    return found


def _mean(runs: list[dict[str, Any]]) -> dict[str, float]:
    return {
        "messages_per_s": statistics.mean(run["messages_per_s"] for run in runs),
        "p50_ms": statistics.mean(run["latency"]["p50_ms"] for run in runs),
    }


def main(arguments: list[str] | None = None) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench.double_write", description=__doc__.partition("\n")[0])
    parser.add_argument("--server", choices=(OURS, *JAVA), default=OURS)
    parser.add_argument("--load", choices=_LOADS, action="append", help="default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=_SECONDS, help="per run; a round has four per load")
    args = parser.parse_args(arguments)
    console = Console(width=120, highlight=False)
    shown = Table("load", "async msg/s", "sync msg/s", "sync ÷ async", "async p50 ms", "sync p50 ms", title=args.server)
    with (
        tempfile.TemporaryDirectory(prefix="tandemq-double-write-") as directory,
        BrokerGroup(args.server, Path(directory) / "sync", sync_master(args.server)) as sync,
        BrokerGroup(args.server, Path(directory) / "async", {"brokerRole": "ASYNC_MASTER"}) as plain,
    ):
        groups = {"sync": sync, "async": plain}
        for group in groups.values():
            start_pair(group)
        for load in args.load or _LOADS:
            rounds = measure(groups, load, args.rounds, args.seconds)
            ratios = [one["sync"]["messages_per_s"] / one["async"]["messages_per_s"] for one in rounds]
            cells = {
                (name, key): statistics.median(one[name][key] for one in rounds)
                for name in groups
                for key in ("messages_per_s", "p50_ms")
            }
            shown.add_row(
                load.rpartition("/")[2],
                *(f"{cells[name, 'messages_per_s']:,.0f}" for name in ("async", "sync")),
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
                *(f"{cells[name, 'p50_ms']:.2f}" for name in ("async", "sync")),
            )
            console.print(f"{load}: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")
    console.print(shown)


if __name__ == "__main__":
    main()
