"""Latency at fixed rates: groups that read live, end to end, and with other work beside."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.background import in_background
from bench.cells import GROUPS, LIVE_RATE, RATES
from bench.clocks import Clocks
from bench.copying import copy_log, forget_copy, slave_log_end
from bench.loads import LoadFailed, background_load, run_load
from bench.probe import log_end, runtime_info
from bench.reading import fill
from bench.servers import BrokerGroup, Conf
from bench.setting import Bench, Figure
from tandemq.load.wire.sockets import connect

_SENDERS = 8
_YEAR_S = 365 * 86_400
_BEGIN_S = 3.0  # What a producer takes to start, at most.
_CLEAN_OFTEN: Conf = {
    "mappedFileSizeCommitLog": 8 << 20,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": 1000,
}


def live(bench: Bench) -> Iterator[Figure]:
    """Measure the latencies of sends and of deliveries while groups read what arrives, and end to end."""
    with bench.group() as group:
        group.start_master()
        bench.say("warm-up, live groups")
        _live(bench, group, max(GROUPS), bench.warmup_s)
        for groups in GROUPS:
            names = [cell.name for cell in bench.cells if cell.name.startswith(f"live/{groups}g/")]
            if names:
                bench.say(f"{groups} live groups")
                values, detail = _live(bench, group, groups, bench.pace.latency_s)
                for name in names:
                    yield bench.figure(name, values[name.rpartition("/")[2]], detail)
        for rate in RATES:
            names = [cell.name for cell in bench.cells if cell.name.startswith(f"e2e/{rate}/")]
            if names:
                bench.say(f"end to end at {rate:,} msg/s")
                result = _end_to_end(bench, group, rate)
                for name in names:
                    yield bench.figure(name, result["latency"][f"{name.rpartition('/')[2]}_ms"], result)


def _live(bench: Bench, group: BrokerGroup, groups: int, seconds: float) -> tuple[dict[str, float], dict[str, Any]]:
    """Run the groups, if any, in one process and the producer in another; return values and details."""
    address, settle = group.master.address, bench.pace.settle_s * 2
    common = {"topic": f"live{groups}", "lengths": "varied"}
    readers = {"rate": 0, "groups": groups, "warmup": settle, "seconds": seconds + _BEGIN_S}
    with contextlib.ExitStack() as stack:
        readings = stack.enter_context(background_load("latency", address, **common, **readers)) if groups else None
        sender = {"rate": LIVE_RATE, "groups": 0, "warmup": settle, "connections": _SENDERS}
        with Clocks(group.pids) as clocks:
            sends = run_load("latency", address, **common, **sender, seconds=seconds)
        shares = clocks.shares(sends, seconds)
        reads = readings() if readings is not None else None
    values = {**_points(sends, reads), "cpu": shares["server_cpu"]}
    if reads is None:
        return values, {**values, "sends": sends, **shares}
    expected = (int(sends["sent"]) - int(sends["refused"])) * groups
    # Readers that fall behind are the generator's limit or the broker's: the share tells.
    detail = {
        **values,
        "sends": sends,
        "reads": reads,
        "expected": expected,
        "readers_cpu": reads["cpu_share"],
        **shares,
    }
    return values, detail


def _points(sends: dict[str, Any], reads: dict[str, Any] | None) -> dict[str, float]:
    found = {f"send-{point}": float(sends["acknowledged"][f"{point}_ms"]) for point in ("p50", "p99")}
    if reads is not None:
        found |= {f"e2e-{point}": float(reads["latency"][f"{point}_ms"]) for point in ("p50", "p99")}
    return found


def _end_to_end(bench: Bench, group: BrokerGroup, rate: int) -> dict[str, Any]:
    os.sync()  # Nothing is left to be written at this rate; flushing what earlier cells left would take seconds.
    return run_load(
        "latency",
        group.master.address,
        topic="latency",
        lengths="varied",
        rate=rate,
        seconds=bench.pace.latency_s,
        warmup=bench.pace.settle_s * 3,
    )


def beside(bench: Bench) -> Iterator[Figure]:
    """Measure latencies of sends and deliveries beside other work of the broker on a full log.

    Raises:
        LoadFailed: the other work did not happen.
    """
    for name, work in _BESIDE.items():
        cells = [cell.name for cell in bench.cells if cell.name.startswith(f"beside/{name}/")]
        if not cells:
            continue
        with bench.group(work.conf) as group:
            group.start_master()
            fill(bench, group, "varied", "4q", bench.pace.store_bytes // 4, batch=32)
            bench.say(f"sends beside: {name}")
            with work.running(group) as done:
                result = _end_to_end(bench, group, LIVE_RATE)
                amount = done()
            if not amount:
                raise LoadFailed(f"beside/{name}: the work beside the load did not happen")
            values = _points(result, result)
            detail = {**result, "work": amount, "work_unit": work.unit}
            for cell in cells:
                yield bench.figure(cell, values[cell.rpartition("/")[2]], detail)


@contextlib.contextmanager
def _nothing(_: BrokerGroup) -> Iterator[Callable[[], int]]:
    yield lambda: 1


@contextlib.contextmanager
def _scrubbed(group: BrokerGroup) -> Iterator[Callable[[], int]]:
    """Count the bytes that the scrubber verifies while the body runs, at least those of its unfinished pass."""

    def position() -> int:
        with connect(group.master.address) as broker:
            return int(runtime_info(broker)["scrubPosition"])

    begun = position()
    yield lambda: abs(position() - begun)


@contextlib.contextmanager
def _deleted(group: BrokerGroup) -> Iterator[Callable[[], int]]:
    """Let the files of the log, except the last, have been written a year ago; count those that are deleted."""
    log = Path(str(group.master.conf["storePathCommitLog"]))
    files = sorted(log.iterdir())[:-1]
    for path in files:
        os.utime(path, (time.time() - _YEAR_S,) * 2)
    yield lambda: sum(not path.exists() for path in files)


@contextlib.contextmanager
def _copied(group: BrokerGroup) -> Iterator[Callable[[], int]]:
    """Let a slave copy the log again and again while the body runs; count the bytes of whole copies and of the last."""
    with connect(group.master.address) as broker:
        end = log_end(broker)
    sizes: list[int] = []

    def copy(is_over: threading.Event) -> None:
        while not is_over.is_set():
            copy_log(group, end)
            sizes.append(end)
            forget_copy(group)

    with in_background(copy):
        yield lambda: sum(sizes) or slave_log_end(group)


@dataclass(frozen=True, slots=True)
class _Work:
    """What the broker does beside the load."""

    conf: Conf
    running: Callable[[BrokerGroup], contextlib.AbstractContextManager[Callable[[], int]]]
    """Runs it; the value of the context counts what was done."""
    unit: str


_BESIDE = {
    "nothing": _Work({}, _nothing, ""),
    "scrubber": _Work({"scrubInterval": 1000}, _scrubbed, "bytes verified"),
    "retention": _Work(_CLEAN_OFTEN, _deleted, "files deleted"),
    "slave": _Work({}, _copied, "bytes copied"),
}
