"""Measurement of each group of cells on one kind of server.

A session starts its server, warms it up, measures the chosen cells one after the other, and removes everything. It
yields each figure at once, so that earlier figures survive when a later cell fails.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.cells import OURS, SEND_LOADS, Cell, Session
from bench.failover import seconds_without_delivery
from bench.loads import idle_connections, run_load
from bench.servers import BrokerGroup, Conf, cpu_seconds, machine_cpu_seconds, resident_mb
from tandemq.load import SendShape
from tandemq.load.wire.probe import first_acknowledgement, first_record_end, log_end, wait_for_port
from tandemq.load.wire.sockets import connect
from tests.interop.java import wait_until

_TOPIC = "bench"
_QUEUES = 8
_KIB = 1024
_BATCH = 32
_STORED_KIB = 1250  # Approximate size of a record of 1 KiB in the log, bytes.
_PAIR_S = 60.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Durations and amounts; the quick pace is for trying the benchmark itself, not for figures."""

    measure_s: float = 4.0
    settle_s: float = 1.0  # The load of a cell before its measured time.
    warmup_look_s: float = 3.0  # Warming up goes on while rates grow …
    warmup_max_s: float = 30.0  # … but not longer than this.
    latency_s: float = 8.0
    read_bytes: int = 2 << 30
    store_bytes: int = 4 << 30
    replays: int = 3  # Repetitions of a stream of a few seconds; the median counts.
    idle_connections: int = 10_000


QUICK = Pace(
    measure_s=1.0,
    settle_s=0.3,
    warmup_look_s=1.0,
    warmup_max_s=3.0,
    latency_s=2.0,
    read_bytes=1 << 28,
    store_bytes=1 << 28,
    replays=1,
    idle_connections=1_000,
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
        return any(cell.name == name and (self.server == OURS or not cell.ours_only) for cell in self.cells)

    def group(self, conf: Conf | None = None) -> BrokerGroup:
        """Return a fresh group of brokers of this kind."""
        return BrokerGroup(self.server, self.directory / f"{self.server}-{os.getpid()}", conf)


def measure(session: Session, bench: Bench) -> Iterator[Figure]:
    """Measure the chosen cells of one session on one server.

    Raises:
        LoadFailed, LoadError: the server refused the load or did not start.
    """
    return _SESSIONS[session](bench)


# ------------------------------------------------------------------------------------------------------------ sending


def _send(bench: Bench) -> Iterator[Figure]:
    with bench.group() as group:
        group.start_master()
        _warm_up(bench, group)
        yield from _send_cells(bench, group)
        if bench.wants("e2e-p50") or bench.wants("e2e-p99"):
            yield from _latency(bench, group)


def _flush(bench: Bench) -> Iterator[Figure]:
    with bench.group({"flushDiskType": "SYNC_FLUSH"}) as group:
        group.start_master()
        _warm_up(bench, group)
        yield from _send_cells(bench, group)


def _pair(bench: Bench) -> Iterator[Figure]:
    with bench.group(sync_master(bench.server)) as group:
        start_pair(group)
        _warm_up(bench, group)
        yield from _send_cells(bench, group)


def sync_master(server: str) -> Conf:
    """Return the settings of a pair that acknowledges what its slave has; 5.3.3 needs one more to wait for it."""
    five = {"inSyncReplicas": 2, "totalReplicas": 2} if server.startswith("5.") else {}
    return {"brokerRole": "SYNC_MASTER", **five}


def start_pair(group: BrokerGroup) -> None:
    """Start master and slave and wait until a send is acknowledged by both."""
    group.start_master()
    group.start(group.slave)
    first_acknowledgement(group.master.address, SendShape(_TOPIC, queue_count=_QUEUES), _PAIR_S)


def _warm_up(bench: Bench, group: BrokerGroup) -> None:
    """Load the server until its rate stops growing by a tenth, so that compiled code is measured.

    A cold Java broker on two busy cores can need half a minute to reach half of its rate. Ours is treated alike, and is
    done after the first three measurements.
    """
    bench.say("warm-up")
    end = time.perf_counter() + bench.pace.warmup_max_s
    best = 0.0
    flat = 0  # Measurements in a row without growth; a single one may be noise of the machine.
    while time.perf_counter() < end and flat < 2:
        result = run_load(
            "produce", group.master.address, topic=_TOPIC, queues=_QUEUES, seconds=bench.pace.warmup_look_s, warmup=0.0
        )
        rate = float(result["messages_per_s"])
        bench.say(f"warm-up, {rate:,.0f} msg/s")
        flat = flat + 1 if rate < best * 1.1 else 0
        best = max(best, rate)


def _send_cells(bench: Bench, group: BrokerGroup) -> Iterator[Figure]:
    # The wide ones first: they compile what the narrow ones then use.
    cells = [cell for cell in bench.cells if cell.name in SEND_LOADS]
    for cell in sorted(cells, key=lambda cell: (SEND_LOADS[cell.name].batch, -SEND_LOADS[cell.name].open_requests)):
        load = SEND_LOADS[cell.name]
        bench.say(cell.title)
        clocks = _Clocks(group)
        result = run_load(
            "produce",
            group.master.address,
            topic=_TOPIC,
            queues=_QUEUES,
            body=load.body_bytes,
            batch=load.batch,
            connections=load.connections,
            window=load.window,
            seconds=bench.pace.measure_s,
            warmup=bench.pace.settle_s,
        )
        yield Figure(cell.name, bench.server, result["messages_per_s"], {**result, **clocks.shares(result)})


class _Clocks:
    """CPU time during a cell: of the brokers, and of everything that is neither broker nor generator."""

    def __init__(self, group: BrokerGroup) -> None:
        self._pids = [broker.pid for broker in (group.master, group.slave) if broker.is_running]
        self._started, self._brokers, self._machine = self._read()

    def _read(self) -> tuple[float, float, float]:
        return time.perf_counter(), sum(map(cpu_seconds, self._pids)), machine_cpu_seconds()

    def shares(self, result: dict[str, Any]) -> dict[str, float]:
        """Return the shares of one core since the start."""
        now, brokers, machine = self._read()
        passed = now - self._started
        server = (brokers - self._brokers) / passed
        others = (machine - self._machine) / passed - server - float(result["cpu_share"])
        return {"server_cpu": round(server, 3), "others_cpu": round(max(0.0, others), 3)}


def _latency(bench: Bench, group: BrokerGroup) -> Iterator[Figure]:
    bench.say("end to end at 1,000 msg/s")
    pace = bench.pace
    options: dict[str, str | float] = {"topic": "latency", "seconds": pace.latency_s, "warmup": pace.settle_s * 3}
    os.sync()  # nothing is left to be written at this rate; flushing what earlier cells left would take seconds
    result = run_load("latency", group.master.address, rate=1000.0, **options)
    # Beyond the target: the same at ten times the rate, kept beside the figure.
    result["at_10k"] = run_load("latency", group.master.address, rate=10000.0, **options)
    for name, key in (("e2e-p50", "p50_ms"), ("e2e-p99", "p99_ms")):
        if bench.wants(name):
            yield Figure(name, bench.server, result["latency"][key], result)


# ------------------------------------------------------------------------------------------------------------ reading


def _read(bench: Bench) -> Iterator[Figure]:
    with bench.group() as group:
        group.start_master()
        _fill(bench, group, bench.pace.read_bytes)
        if bench.wants("pull"):
            bench.say("pull catch-up")
            clocks = _Clocks(group)
            result = run_load(
                "consume",
                group.master.address,
                topic=_TOPIC,
                queues=_QUEUES,
                seconds=bench.pace.measure_s,
                warmup=bench.pace.warmup_look_s,
            )
            yield Figure("pull", bench.server, result["messages_per_s"], {**result, **clocks.shares(result)})
        if bench.wants("ha"):
            yield _raw_slave(bench, group)


def _fill(bench: Bench, group: BrokerGroup, size: int) -> None:
    """Write that many bytes of log with bodies of 1 KiB, and let the disk settle."""
    bench.say(f"filling {size / (1 << 30):.2g} GiB")
    run_load(
        "produce",
        group.master.address,
        topic=_TOPIC,
        queues=_QUEUES,
        body=_KIB,
        batch=_BATCH,
        connections=4,
        window=4,
        count=math.ceil(size / _STORED_KIB),
    )
    os.sync()


def _raw_slave(bench: Bench, group: BrokerGroup) -> Figure:
    bench.say("HA catch-up")
    address = group.master.address
    start = first_record_end(address, _TOPIC, _QUEUES)
    with connect(address) as sock:
        end = log_end(sock)
    ha_address = f"127.0.0.1:{group.master.ha_port}"
    runs = [run_load("replicate", ha_address, start=start, end=end, seconds=30.0) for _ in range(bench.pace.replays)]
    runs.sort(key=lambda run: float(run["mb_per_s"]))
    return Figure("ha", bench.server, runs[len(runs) // 2]["mb_per_s"], {"runs": runs, "log_bytes": end - start})


# ------------------------------------------------------------------------------------------------------------- at rest


def _rest(bench: Bench) -> Iterator[Figure]:
    with bench.group() as group:
        group.start_name_server()
        bench.say("process start → first acknowledgement")
        seconds = [_start_and_send(group) for _ in range(bench.pace.replays)]
        if bench.wants("start"):
            yield Figure("start", bench.server, round(statistics.median(seconds), 3), {"runs": seconds})
        if bench.wants("rss"):
            yield Figure("rss", bench.server, round(_resident_at_rest(group), 1))
        if bench.wants("rss-10k"):
            bench.say("idle connections")
            with idle_connections(group.master.address, bench.pace.idle_connections, _TOPIC):
                value = round(resident_mb(group.master.pid), 1)
            yield Figure("rss-10k", bench.server, value, {"connections": bench.pace.idle_connections})


def _start_and_send(group: BrokerGroup) -> float:
    """Start the master (again, on the same store) and return the seconds to its first SUCCESS."""
    group.master.kill()
    started = time.perf_counter()
    group.master.begin_start()
    first_acknowledgement(group.master.address, SendShape(_TOPIC, queue_count=_QUEUES))
    return time.perf_counter() - started


def _resident_at_rest(group: BrokerGroup) -> float:
    """Return the resident memory once it has stopped growing: two equal measurements a second apart."""
    now = resident_mb(group.master.pid)
    for _ in range(10):
        last = now
        time.sleep(1.0)
        now = resident_mb(group.master.pid)
        if abs(now - last) < 1.0:
            break
    return now


# ------------------------------------------------------------------------------------------- ours only: slave and store


def _store(bench: Bench) -> Iterator[Figure]:
    """Fill one log for three cells: a slave copies it, the master recovers it after kill -9, `log verify` reads it."""
    with bench.group() as group:
        group.start_master()
        _fill(bench, group, bench.pace.store_bytes)
        with connect(group.master.address) as sock:
            end = log_end(sock)
        if bench.wants("twin"):
            yield _twin(bench, group, end)
        if bench.wants("recovery"):
            yield _recovery(bench, group, end)
        group.master.stop()
        if bench.wants("verify"):
            yield _verify(bench, group, end)


def _twin(bench: Bench, group: BrokerGroup, end: int) -> Figure:
    """Return the second copy's rate: in the first one a virtual machine may have to ask for the memory of the page
    cache, which takes longer than the copy.
    """
    bench.say("master → our slave, for the first time")
    first_mb_per_s = _copied_mb_per_s(group, end)
    bench.say("master → our slave")
    value = _copied_mb_per_s(group, end)
    return Figure("twin", bench.server, value, {"bytes": end, "first_mb_per_s": first_mb_per_s})


def _copied_mb_per_s(group: BrokerGroup, end: int) -> float:
    """Let the slave copy the log into an empty store, and remove the copy."""
    group.start(group.slave)
    with connect(group.slave.address) as sock:
        first = wait_until(lambda: log_end(sock), what="the slave's first bytes", within_s=60, every_s=0.002)
        started = time.perf_counter()
        wait_until(lambda: log_end(sock) >= end, what=f"the slave's log end {end}", within_s=120, every_s=0.01)
        seconds = time.perf_counter() - started
    group.slave.kill()
    shutil.rmtree(str(group.slave.conf["storePathRootDir"]))
    return round((end - first) / seconds / 1e6, 1)


def _recovery(bench: Bench, group: BrokerGroup, end: int) -> Figure:
    bench.say("recovery after kill -9")
    group.master.kill()
    started = time.perf_counter()
    group.master.begin_start()
    wait_for_port(group.master.address, 300)
    answered = time.perf_counter() - started
    first_acknowledgement(group.master.address, SendShape(_TOPIC, queue_count=_QUEUES), 300)
    acknowledged = time.perf_counter() - started
    with connect(group.master.address) as sock:
        assert log_end(sock) > end, "recovery lost acknowledged messages although the system did not go down"
    detail = {"port_answers_s": answered, "log_bytes": end}
    return Figure("recovery", bench.server, round(acknowledged, 2), detail)


def _verify(bench: Bench, group: BrokerGroup, end: int) -> Figure:
    bench.say("tandemq log verify")
    store = str(group.master.conf["storePathRootDir"])
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "tandemq", "log", "verify", store], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    return Figure("verify", bench.server, round(end / seconds / 1e6, 1), {"bytes": end, "seconds": seconds})


def _failover(bench: Bench) -> Iterator[Figure]:
    with bench.group(sync_master(bench.server)) as group:
        bench.say("kill -9 of the master")
        start_pair(group)
        gap = seconds_without_delivery(group)
        yield Figure("failover", bench.server, round(gap.seconds, 3), {"delivered": gap.delivered, "sent": gap.sent})


_SESSIONS: dict[Session, Callable[[Bench], Iterator[Figure]]] = {
    "send": _send,
    "read": _read,
    "flush": _flush,
    "pair": _pair,
    "rest": _rest,
    "store": _store,
    "failover": _failover,
}
