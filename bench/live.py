"""Latency at fixed rates: groups that read live, end to end, and with other work beside."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.background import in_background
from bench.cells import GROUPS, LIVE_RATE, RATES
from bench.loads import background_load, run_load
from bench.processes import copied_mb_per_s
from bench.reading import fill
from bench.servers import BrokerGroup, Conf
from bench.setting import Bench, Clocks, Figure
from tandemq.load.wire.probe import log_end
from tandemq.load.wire.sockets import connect

_SENDERS = 8
_YEAR_S = 365 * 86_400
_BEGIN_S = 3.0  # What a producer takes to start, at most.
_CLEAN_OFTEN: Conf = {
    "mappedFileSizeCommitLog": 8 << 20,
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "cleanResourceInterval": 1000,
}
_BESIDE: dict[str, Conf] = {"scrubber": {"scrubInterval": 1000}, "retention": _CLEAN_OFTEN, "slave": {}}


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
    """Run the groups in one process and the producer in another; return values and details."""
    address, settle = group.master.address, bench.pace.settle_s * 2
    common = {"topic": f"live{groups}", "lengths": "varied"}
    readers = {"rate": 0, "groups": groups, "warmup": settle, "seconds": seconds + _BEGIN_S}
    with background_load("latency", address, **common, **readers) as readings:
        clocks = Clocks(group.pids)
        sender = {"rate": LIVE_RATE, "groups": 0, "warmup": settle, "connections": _SENDERS}
        sends = run_load("latency", address, **common, **sender, seconds=seconds)
        shares = clocks.shares(sends, settle + seconds)
        reads = readings()
    values = {
        "send-p50": sends["acknowledged"]["p50_ms"],
        "send-p99": sends["acknowledged"]["p99_ms"],
        "e2e-p50": reads["latency"]["p50_ms"],
        "e2e-p99": reads["latency"]["p99_ms"],
        "cpu": shares["server_cpu"],
    }
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
    """Measure latency end to end beside other work of the broker on a full log."""
    for name, conf in _BESIDE.items():
        if not bench.wants(f"beside/{name}"):
            continue
        with bench.group(conf) as group:
            group.start_master()
            fill(bench, group, "varied", "4q", bench.pace.store_bytes // 4, batch=32)
            bench.say(f"end to end beside the {name}")
            if name == "retention":
                _make_old(Path(str(group.master.conf["storePathCommitLog"])))
            with _copies(group) if name == "slave" else contextlib.nullcontext():
                result = _end_to_end(bench, group, 1_000)
            yield bench.figure(f"beside/{name}", result["latency"]["p99_ms"], result)


@contextlib.contextmanager
def _copies(group: BrokerGroup) -> Iterator[None]:
    """Let a slave copy the log again and again while the body runs."""
    with connect(group.master.address) as sock:
        end = log_end(sock)

    def copy(is_over: threading.Event) -> None:
        while not is_over.is_set():
            copied_mb_per_s(group, end)

    with in_background(copy):
        yield


def _make_old(log: Path) -> None:
    """Let the files of a log, except the last, have been written a year ago, so that they are deleted soon."""
    for path in sorted(log.iterdir())[:-1]:
        os.utime(path, (time.time() - _YEAR_S,) * 2)
