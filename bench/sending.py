"""Sends: to one master, with synchronous flush, to a SYNC_MASTER pair."""

from __future__ import annotations

from collections.abc import Iterator

from bench.cells import OURS
from bench.clocks import Clocks
from bench.loads import run_load
from bench.matrix import LARGE, SEND_LOADS
from bench.servers import BrokerGroup, Conf
from bench.setting import Bench, Figure, start_pair, sync_master, warm_up


def send(bench: Bench) -> Iterator[Figure]:
    """Measure sends to one asynchronous master."""
    with bench.group(_tls(bench)) as group:
        group.start_master()
        yield from _cells(bench, group)


def flush(bench: Bench) -> Iterator[Figure]:
    """Measure sends that are acknowledged when they are on the disk."""
    with bench.group({"flushDiskType": "SYNC_FLUSH"}) as group:
        group.start_master()
        yield from _cells(bench, group)


def pair(bench: Bench) -> Iterator[Figure]:
    """Measure sends that are acknowledged when the slave has them."""
    with bench.group(sync_master(bench.server)) as group:
        start_pair(group)
        yield from _cells(bench, group)


def _tls(bench: Bench) -> Conf:
    """Return settings with which a broker of ours makes itself a certificate, as Java's do without any."""
    is_needed = any(SEND_LOADS[cell.name].form == "tls" for cell in bench.cells)
    return {"tls.test.mode.enable": "true"} if is_needed and bench.server == OURS else {}


def _cells(bench: Bench, group: BrokerGroup) -> Iterator[Figure]:
    loads = [(cell, SEND_LOADS[cell.name]) for cell in bench.cells]
    warm_up(bench, group, [load for _, load in loads])
    # Batches and large bodies last, as they fill the disk; wide ones first, as they compile what the narrow ones use.
    order = sorted(loads, key=lambda one: (one[1].form == "batch", one[1].lengths in LARGE, -one[1].open_requests))
    for cell, load in order:
        bench.say(cell.title)
        with Clocks(group.pids) as clocks:
            result = run_load(
                "produce",
                group.master.address,
                **load.options,
                seconds=bench.pace.measure_s,
                warmup=bench.pace.settle_s,
            )
        yield bench.figure(
            cell.name, result["messages_per_s"], {**result, **clocks.shares(result, bench.pace.measure_s)}
        )
