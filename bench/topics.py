"""Creation of many topics, one after the other: seconds, CPU time of each process, and when all routes are served.

    python -m bench.topics                         5,000 topics of 4 queues, created by the admin client
    python -m bench.topics --by wire               by bare requests on one connection, as the cell `topics/create`
    python -m bench.topics --by send               by one message to each, so that the broker creates them
    python -m bench.topics --count 1000 --slave    with a slave that copies them
    python -m bench.topics --server 5.3.3          RocketMQ

Name server and broker are processes with a store on the disk of `--directory`. `all routes` is the time from the first
creation until the name server has answered a route for every topic.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.cells import JAVA, OURS
from bench.probe import first_acknowledgement, has_route
from bench.servers import BrokerGroup, cpu_seconds
from tandemq.client.aio.admin import Admin
from tandemq.load.wire.frames import SendFrames, SendShape
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import connect

_TOPIC = "topic"
_QUEUES = 4
_ROUTES_S = 120.0
_STORES = Path(__file__).resolve().parent.parent / "build" / "bench"


class _Cost(NamedTuple):
    """Wall time of the creations and until all routes are served, and CPU time by process."""

    created_s: float
    routed_s: float
    cpu_s: dict[str, float]


def _by_admin(group: BrokerGroup, names: list[str]) -> None:
    async def create() -> None:
        async with Admin(group.name_server.address) as admin:
            for name in names:
                await admin.create_topic(name, queues=_QUEUES)

    asyncio.run(create())


def _by_wire(group: BrokerGroup, names: list[str]) -> None:
    with connect(group.master.address, 60) as broker:
        for name in names:
            create_topic(broker, name, _QUEUES)


def _by_send(group: BrokerGroup, names: list[str]) -> None:
    shape = SendShape(_TOPIC, queue_count=1, topics=len(names))
    frames = SendFrames(shape, identity=1, wall_ms=time.time_ns() // 1_000_000, frames=len(names))
    with connect(group.master.address, 60) as broker:
        for name in names:
            broker.write(frames.take(1, time.time_ns() // 1_000_000))
            response = broker.receive()
            if response.code != 0:
                raise LoadError(f"{name}: code {response.code}: {response.remark}")


_WAYS: dict[str, Callable[[BrokerGroup, list[str]], None]] = {"admin": _by_admin, "wire": _by_wire, "send": _by_send}


def _wait_for_routes(group: BrokerGroup, names: list[str]) -> None:
    deadline = time.perf_counter() + _ROUTES_S
    with connect(group.name_server.address, 60) as name_server:
        for name in names:
            while not has_route(name_server, name):
                if time.perf_counter() > deadline:
                    raise LoadError(f"{name} has no route after {_ROUTES_S:.0f} s")
                time.sleep(0.005)


def measure(group: BrokerGroup, names: list[str], way: str, *, has_slave: bool) -> _Cost:
    """Start the processes, create the topics, and wait for their routes."""
    group.start_master()
    first_acknowledgement(group.master.address, SendShape("first"))
    processes = {"broker": group.master.pid, "name server": group.name_server.pid}
    if has_slave:
        group.start(group.slave)
        processes["slave"] = group.slave.pid
    _wait_for_routes(group, ["first"])
    before = {name: cpu_seconds(pid) for name, pid in processes.items()}
    started = time.perf_counter()
    _WAYS[way](group, names)
    created_s = time.perf_counter() - started
    _wait_for_routes(group, names)
    routed_s = time.perf_counter() - started
    return _Cost(created_s, routed_s, {name: cpu_seconds(pid) - before[name] for name, pid in processes.items()})


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.topics", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=5_000, help="number of topics")
    parser.add_argument("--by", choices=_WAYS, default="admin", help="who creates them")
    parser.add_argument("--slave", action="store_true", help="start a slave too")
    parser.add_argument("--server", choices=(OURS, *JAVA), default=OURS)
    parser.add_argument("--directory", type=Path, default=_STORES / "topics", help="where stores are put and deleted")
    args = parser.parse_args(arguments)
    names = SendShape(_TOPIC, topics=args.count).topic_names()
    with BrokerGroup(args.server, args.directory) as group:
        cost = measure(group, names, args.by, has_slave=args.slave)
    cpu = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in cost.cpu_s.items())
    print(f"{args.count} topics by {args.by}: {cost.created_s:.2f} s, all routes {cost.routed_s:.2f} s; CPU: {cpu}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
