"""False failovers: groups whose masters are never killed, on a busy machine.

    python -m bench.steady                                    an hour at 80 % of all cores, sessions of 2 s and 0.5 s
    python -m bench.steady --minutes 10 --load 0.95 --session 300 --json

One group in `elect` mode for each session timeout, all at once; a producer sends to each one message after the other.
Beside them a process per core computes for that share of each 50 ms.

    failovers   epochs that began without a kill
    gap         the longest time without a stored message, in seconds

Exit code 1: there was a failover, or a send failed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import get_context
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.modes import Pair, Writes, running_pair
from tandemq.coordination.registry.records import Mode

_PERIOD_S = 0.05
_POLL_S = 1.0
_SESSIONS_MS = (2_000, 500)


class Steadiness(NamedTuple):
    """What happened to one group."""

    session_ms: int
    failovers: int
    failed: int
    stored: int
    gap: float


def compute(share: float) -> None:
    """Use this share of a core until killed."""
    while True:
        until = time.monotonic() + _PERIOD_S * share
        while time.monotonic() < until:
            pass
        time.sleep(_PERIOD_S * (1 - share))


@contextmanager
def busy(share: float) -> Iterator[None]:
    """Use this share of all cores while the body runs."""
    processes = [get_context("spawn").Process(target=compute, args=(share,), daemon=True) for _ in _cores()]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def _cores() -> range:
    return range(len(os.sched_getaffinity(0)))


def watch(sessions_ms: list[int], seconds: float, share: float, progress: Progress) -> list[Steadiness]:
    """Run a group for each session timeout, and return what happened to them."""
    with ExitStack() as stack:
        pairs = [
            stack.enter_context(running_pair(Mode.ELECT, "namesrv", registrySessionTimeout=session_ms))
            for session_ms in sessions_ms
        ]
        loads = [Writes(pair.cluster.name_servers) for pair in pairs]
        epochs = [_epoch(pair) for pair in pairs]
        for load in loads:
            stack.enter_context(load.running())
        stack.enter_context(busy(share))
        begun = time.monotonic()
        task = progress.add_task("", total=seconds)
        while (passed := time.monotonic() - begun) < seconds:
            failovers = sum(_epoch(pair) - epoch for pair, epoch in zip(pairs, epochs, strict=True))
            progress.update(task, completed=passed, description=f"{failovers} failovers")
            time.sleep(min(_POLL_S, seconds - passed))
        return [
            Steadiness(session_ms, _epoch(pair) - epoch, len(load.failed), len(load.moments), load.gap_since(begun))
            for session_ms, pair, epoch, load in zip(sessions_ms, pairs, epochs, loads, strict=True)
        ]


def _epoch(pair: Pair) -> int:
    return max(int(broker.failover_status().get("epoch", 0)) for broker in pair.cluster.brokers)


def main(arguments: list[str] | None = None) -> int:
    """Watch and report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.steady", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--load", type=float, default=0.8, help="share of each core that other processes use")
    parser.add_argument(
        "--session", type=int, action="append", help="registrySessionTimeout in ms; default: 2000 and 500"
    )
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(arguments)
    if not 0 <= args.load <= 1 or args.minutes <= 0:
        parser.error("--load is a share from 0 to 1, --minutes is positive")
    columns = (TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        found = watch(args.session or list(_SESSIONS_MS), args.minutes * 60, args.load, progress)
    if args.json:
        print(json.dumps([one._asdict() for one in found]))
    else:
        Console().print(_table(found, args))
    return 1 if any(one.failovers or one.failed for one in found) else 0


def _table(found: list[Steadiness], args: argparse.Namespace) -> Table:
    title = f"{args.minutes:g} minutes, {args.load:.0%} of {len(_cores())} cores"
    table = Table("session", "failovers", "sends failed", "stored", "gap", title=title)
    for one in found:
        table.add_row(
            f"{one.session_ms / 1000:g} s", str(one.failovers), str(one.failed), f"{one.stored:,}", f"{one.gap:.2f} s"
        )
    return table


if __name__ == "__main__":
    sys.exit(main())
