"""Processes and stores: start, memory, a slave's copy, recovery, verification, failover, many topics, simulation."""

from __future__ import annotations

import dataclasses
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.cells import OURS
from bench.copying import copy_log, forget_copy, seed, verify
from bench.failover import seconds_without_delivery
from bench.loads import LoadFailed, idle_connections
from bench.probe import first_acknowledgement, has_route, log_end, wait_for_port
from bench.reading import fill
from bench.servers import BrokerGroup, cpu_seconds, resident_mb
from bench.setting import PROBE_TOPIC, Bench, Figure, start_pair, sync_master
from tandemq.load import SendShape
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect
from tests.interop.java import wait_until

_QUEUES = 4
_PROBE = SendShape(PROBE_TOPIC)


def rest(bench: Bench) -> Iterator[Figure]:
    """Measure the start of a broker and its memory at rest."""
    with bench.group() as group:
        group.start_name_server()
        bench.say("process start → first acknowledgement")
        seconds = [_start_and_send(group) for _ in range(bench.pace.replays)]
        if bench.wants("rest/start"):
            yield bench.figure("rest/start", round(statistics.median(seconds), 3), {"runs": seconds})
        if bench.wants("rest/cpu"):
            yield bench.figure("rest/cpu", _cpu_at_rest(group, bench.pace.idle_s))
        if bench.wants("rest/rss"):
            yield bench.figure("rest/rss", round(_resident_at_rest(group), 1))
        if bench.wants("rest/rss-10k"):
            bench.say("idle connections")
            with idle_connections(group.master.address, bench.pace.idle_connections, PROBE_TOPIC):
                value = round(resident_mb(group.master.pid), 1)
            yield bench.figure("rest/rss-10k", value, {"connections": bench.pace.idle_connections})


def _start_and_send(group: BrokerGroup) -> float:
    """Start the master (again, on the same store) and return the seconds to its first SUCCESS."""
    group.master.kill()
    started = time.perf_counter()
    group.master.begin_start()
    first_acknowledgement(group.master.address, _PROBE)
    return time.perf_counter() - started


def _cpu_at_rest(group: BrokerGroup, seconds: float) -> float:
    """Return the share of a core that the master uses without requests."""
    time.sleep(1.0)  # What the start left to be done.
    started, before = time.perf_counter(), cpu_seconds(group.master.pid)
    time.sleep(seconds)
    return round((cpu_seconds(group.master.pid) - before) / (time.perf_counter() - started), 4)


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


# ----------------------------------------------------------------------------------------------------- slave and store


def store(bench: Bench) -> Iterator[Figure]:
    """Fill one log for three cells: a slave copies it, the master recovers it after kill -9, `log verify` reads it."""
    with bench.group() as group:
        group.start_master()
        if bench.wants("store/slave"):
            yield _copy(bench, group)
        if not (bench.wants("store/recovery") or bench.wants("store/verify")):
            return
        with connect(group.master.address) as broker:
            fill(bench, group, "varied", "4q", bench.pace.store_bytes - log_end(broker), batch=32)
            end = log_end(broker)
        if bench.wants("store/recovery"):
            yield _recovery(bench, group, end)
        group.master.stop()
        if bench.wants("store/verify"):
            yield _verify(bench, group, end)


def _copy(bench: Bench, group: BrokerGroup) -> Figure:
    """Return the second copy's rate: in the first one a virtual machine may have to ask for the memory of the page
    cache, which takes longer than the copy.

    Raises:
        LoadFailed: the copy is damaged.
    """
    begin = 0
    if bench.server != OURS:
        bench.say("the slave's first message")
        first_acknowledgement(group.master.address, _PROBE)
        begin = seed(group)
    fill(bench, group, "varied", "4q", bench.pace.copy_bytes, batch=32)
    with connect(group.master.address) as broker:
        end = log_end(broker)
    bench.say("master → slave, for the first time")
    first = copy_log(group, end, begin)
    forget_copy(group)
    bench.say("master → slave")
    copied = copy_log(group, end, begin)
    bench.say("verifying the copy")
    verify(group.slave.store)
    forget_copy(group)
    detail = {**dataclasses.asdict(copied), "server_cpu": copied.master_cpu + copied.slave_cpu}
    return bench.figure("store/slave", copied.mb_per_s, {**detail, "first_mb_per_s": first.mb_per_s})


def _recovery(bench: Bench, group: BrokerGroup, end: int) -> Figure:
    bench.say("recovery after kill -9")
    group.master.kill()
    started = time.perf_counter()
    group.master.begin_start()
    wait_for_port(group.master.address, 300)
    answered = time.perf_counter() - started
    first_acknowledgement(group.master.address, _PROBE, 300)
    acknowledged = time.perf_counter() - started
    with connect(group.master.address) as broker:
        assert log_end(broker) > end, "recovery lost acknowledged messages although the system did not go down"
    detail = {"port_answers_s": answered, "log_bytes": end}
    return bench.figure("store/recovery", round(acknowledged, 2), detail)


def _verify(bench: Bench, group: BrokerGroup, end: int) -> Figure:
    bench.say("tandemq log verify")
    seconds = verify(group.master.store)
    return bench.figure("store/verify", round(end / seconds / 1e6, 1), {"bytes": end, "seconds": seconds})


def failover(bench: Bench) -> Iterator[Figure]:
    """Measure how long our consumer gets nothing after kill -9 of the master."""
    with bench.group(sync_master(bench.server)) as group:
        bench.say("kill -9 of the master")
        start_pair(group)
        gap = seconds_without_delivery(group)
        yield bench.figure("failover", round(gap.seconds, 3), {"delivered": gap.delivered, "sent": gap.sent})


# ------------------------------------------------------------------------------------------------------- many topics


def topics(bench: Bench) -> Iterator[Figure]:
    """Create topics one after the other, then kill the broker and wait for all routes."""
    names = [f"topic-{number}" for number in range(bench.pace.topics)]
    with bench.group() as group:
        group.start_master()
        bench.say(f"creating {len(names):,} topics")
        started = time.perf_counter()
        with connect(group.master.address, 60) as broker:
            for name in names:
                create_topic(broker, name, _QUEUES)
        seconds = time.perf_counter() - started
        if bench.wants("topics/create"):
            yield bench.figure("topics/create", round(seconds, 2), {"topics": len(names)})
        if bench.wants("topics/restart"):
            bench.say("kill -9, until all routes are back")
            yield bench.figure("topics/restart", round(_restart(group, names), 2), {"topics": len(names)})


def _restart(group: BrokerGroup, names: list[str]) -> float:
    """Kill the master; return the seconds from its start until the name server has a route for each topic again."""
    with connect(group.name_server.address, 60) as server:

        def has_none() -> bool:
            return not has_route(server, names[0]) and not has_route(server, names[-1])

        wait_until(lambda: has_route(server, names[-1]), what="the route of the last topic", within_s=60, every_s=0.05)
        group.master.kill()
        wait_until(has_none, what="the routes of a killed broker gone", within_s=180, every_s=0.05)
        started = time.perf_counter()
        group.master.begin_start()
        waiting = list(names)
        while waiting:
            if time.perf_counter() - started > 120:
                raise LoadFailed(f"{len(waiting)} topics have no route two minutes after the start")
            if has_route(server, waiting[-1]):
                waiting.pop()
            else:
                time.sleep(0.01)
        return time.perf_counter() - started


def sim(bench: Bench) -> Iterator[Figure]:
    """Run simulations on both cores."""
    bench.say("simulation")
    seeds = bench.pace.seeds
    started = time.perf_counter()
    command = [sys.executable, "-m", "lab.sim", "--seeds", str(seeds), "--jobs", "2"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    yield bench.figure("sim/seeds", round(seeds / seconds, 2), {"seeds": seeds, "seconds": round(seconds, 2)})
