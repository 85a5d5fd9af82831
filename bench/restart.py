"""Restart after `kill -9`: seconds until the name server has all routes again, and the rate of recovery alone.

    python -m bench.restart                        5,000 topics of 4 queues, one message in each queue, three restarts
    python -m bench.restart --late 20000           the same, with as many further messages just before the kill
    python -m bench.restart --directory DIR        keep the store, and use it again
    python -m bench.restart log                    rebuild queues and index of logs of 256 MiB, in this process

CPU time is the broker's, user and system, until the last route is there. Phases end with lines of the broker's log.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from bench.inside import _MEMORY, _Driven
from bench.probe import has_route, wait_for_port
from bench.servers import cpu_seconds
from tandemq.boundary import LinkKind
from tandemq.codec.remoting.frame import encode_command
from tandemq.load.wire.frames import SendFrames, SendShape
from tandemq.load.wire.probe import create_topic_request
from tandemq.load.wire.responses import ResponseCounter
from tandemq.load.wire.sockets import connect
from tandemq.real.disk import RealDisk
from tandemq.storage.recovery import open_store
from tandemq.storage.store import Store, StoreConfig
from tests.interop.java import wait_until
from tests.interop.ours import OurBroker, OurNameServer

_QUEUES = 4
_WINDOW = 500
_WITHIN_S = 300.0
_LOG_BYTES = 256 << 20
_SETTLE_S = 2.5  # Queue entries are written every second.
_PHASES = {"store open": "store: opened", "registered": "registration: .* registered as"}
"""Lines of the broker's log that end a phase."""
_LAYOUTS = {
    "128 B": SendShape("bench"),
    "1 KiB": SendShape("bench", body_bytes=1024),
    "varied": SendShape("bench", varied=True),
    "varied, 300 topics": SendShape("bench", varied=True, topics=300, queue_count=_QUEUES),
}


class Restart(NamedTuple):
    """Seconds from the start of a broker's process to its last route, and the CPU time that it took until then."""

    seconds: float
    cpu_s: float
    phases: dict[str, float]
    """Seconds from the start to the end of each phase."""


def _shape(topics: int) -> SendShape:
    return SendShape("restart", topics=topics, queue_count=_QUEUES)


def build_store(path: Path, topics: int) -> None:
    """Write a store with topics of four queues and one message in each queue, and leave it as a killed broker does."""
    shape = _shape(topics)
    broker = _Driven(path, auto_create_topic=False)
    broker.open(1, LinkKind.REMOTING)
    for name in shape.topic_names():
        broker.turn([(1, encode_command(create_topic_request(name, _QUEUES)))])
    frames = SendFrames(shape, identity=1, wall_ms=broker.now.wall_ms, frames=topics * _QUEUES)
    for at in range(0, topics * _QUEUES, _WINDOW):
        count = min(_WINDOW, topics * _QUEUES - at)
        broker.turn([(1, bytes(frames.take(count, broker.now.wall_ms)))])
    broker.node.store.flush_queues()
    assert broker.node.store.entries_total() == topics * _QUEUES, "one message in each queue"


def _send(address: str, topics: int, count: int) -> None:
    """Send messages to the queues in turn, and wait until all are acknowledged."""
    frames = SendFrames(_shape(topics), identity=os.getpid(), wall_ms=time.time_ns() // 1_000_000)
    responses = ResponseCounter()
    with connect(address, 60) as broker:
        for at in range(0, count, _WINDOW):
            broker.write(frames.take(min(_WINDOW, count - at), time.time_ns() // 1_000_000))
            left = min(_WINDOW, count - at)
            while left:
                done, good = responses.feed(broker.socket.recv(1 << 18))
                assert done == good, responses.first_refusal
                left -= done


def restarts(store: Path, work: Path, topics: int, runs: int, late: int) -> Iterator[Restart]:
    """Kill a broker and start it again, several times."""
    names = [f"restart-{number}" for number in range(topics)]
    name_server = OurNameServer(work / "namesrv")
    broker = OurBroker(work / "broker", namesrv=name_server.address, name="broker-a", store=store)
    try:
        name_server.begin_start()
        wait_for_port(name_server.address, 60)
        with connect(name_server.address, 60) as routes:
            for number in range(runs + 1):  # The first one is a start after a crash of the machine; it is not shown.
                wait_until(lambda: not has_route(routes, names[-1]), what="no route left", within_s=180)
                began, began_wall = time.perf_counter(), time.time()
                broker.begin_start()
                waiting = list(names)
                while waiting:
                    if has_route(routes, waiting[-1]):
                        waiting.pop()
                    else:
                        assert time.perf_counter() - began < _WITHIN_S, f"{len(waiting)} topics have no route"
                        time.sleep(0.005)
                found = Restart(time.perf_counter() - began, cpu_seconds(broker.pid), _phases(broker, began_wall))
                if number:
                    yield found
                time.sleep(_SETTLE_S)
                _send(broker.address, topics, late)
                broker.kill()
    finally:
        broker.kill()
        name_server.kill()


def _phases(broker: OurBroker, began: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, pattern in _PHASES.items():
        line = broker.wait_for_line(pattern, _WITHIN_S)
        clock, _, millis = line[:23].partition(",")
        found[name] = time.mktime(time.strptime(clock, "%Y-%m-%d %H:%M:%S")) + int(millis) / 1000 - began
    return found


def _measure_topics(topics: int, runs: int, late: int, directory: Path | None) -> None:
    with contextlib.ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        store = (directory or work) / f"store-{topics}"
        if not store.is_dir():
            logging.disable(logging.CRITICAL)
            build_store(store, topics)
        for found in restarts(store, work, topics, runs, late):
            phases = "  ".join(f"{name} {seconds:.2f}" for name, seconds in found.phases.items())
            print(f"{topics:,} topics: {found.seconds:5.2f} s, CPU {found.cpu_s:5.2f} s  ({phases})", flush=True)


def _fill_log(path: Path, shape: SendShape) -> StoreConfig:
    """Write a log with synthetic messages and return the settings of its store."""
    broker = _Driven(path, auto_create_topic=False)
    broker.open(1, LinkKind.REMOTING)
    for name in shape.topic_names():
        broker.turn([(1, encode_command(create_topic_request(name, shape.queue_count)))])
    frames = SendFrames(shape, identity=1, wall_ms=broker.now.wall_ms)
    while broker.node.store.log.end < _LOG_BYTES:
        broker.turn([(1, bytes(frames.take(_WINDOW, broker.now.wall_ms)))])
    store = broker.node.store
    store.log.close()
    return store.config


def _reopen(path: Path, config: StoreConfig) -> tuple[float, float, Store, int]:
    """Recover all of a store's log; return wall and CPU seconds, the store, and the number of records."""
    for name in ("tandemq.marks", "checkpoint"):
        (path / name).unlink(missing_ok=True)
    for name in ("consumequeue", "index"):
        shutil.rmtree(path / name, ignore_errors=True)
    began, began_cpu = time.perf_counter(), time.process_time()
    store, recovered = open_store(RealDisk(path), replace(config, boot_id="another"))
    return time.perf_counter() - began, time.process_time() - began_cpu, store, recovered.records


def _measure_logs(runs: int) -> None:
    for name, shape in _LAYOUTS.items():
        with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
            path = Path(directory) / "store"
            config = _fill_log(path, shape)
            best = min((_reopen(path, config) for _ in range(runs)), key=lambda found: found[1])
            seconds, cpu_s, store, records = best
            rate, micros = store.log.end / cpu_s / 1e6, cpu_s / records * 1e6
            print(f"{name:20} {rate:6.0f} MB/s of CPU time, {micros:5.2f} µs per record, {seconds:5.2f} s", flush=True)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("topics", "log"), default="topics")
    parser.add_argument("--topics", type=int, default=5_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--late", type=int, default=0, help="messages sent just before the kill")
    parser.add_argument("--directory", type=Path, help="where the store is kept")
    args = parser.parse_args()
    if args.what == "topics":
        _measure_topics(args.topics, args.runs, args.late, args.directory)
    else:
        logging.disable(logging.CRITICAL)
        _measure_logs(args.runs)


if __name__ == "__main__":
    main()
