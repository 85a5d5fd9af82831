"""Programs of clients: RocketMQ's own benchmark, and our asyncio client (bench.client_load)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator

from bench.loads import LoadFailed, run_load
from bench.matrix import LAYOUTS, store_options
from bench.reading import fill
from bench.servers import BrokerGroup
from bench.setting import Bench, Figure
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.sockets import connect
from tests.interop.java import Process, java_command

EXAMPLE_VERSION = "5.5.0"
"""Version of RocketMQ's example jar, with the client of that version: the only one since 4.7.0 on Maven Central."""
_MAIN = "org.apache.rocketmq.example.benchmark."
_THREADS = 64
_BODY = 1024
_LAYOUT = "1024q"
_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
_TPS = re.compile(r"TPS: (\d+)")


def java(bench: Bench) -> Iterator[Figure]:
    """Run RocketMQ's benchmark programs, 64 threads, 1 KiB, 1,024 queues, and take the best rate that they print."""
    with bench.group() as group:
        group.start_master()
        topic = "JavaBenchmark"
        with connect(group.master.address, 30) as broker:
            create_topic(broker, topic, LAYOUTS[_LAYOUT][1])
        if bench.wants("java/producer"):
            bench.say("RocketMQ's benchmark producer")
            rates = _rates(bench, group, "Producer", "-t", topic, "-s", str(_BODY))
            yield bench.figure("java/producer", max(rates), {"rates": rates})
        if bench.wants("java/consumer"):
            options = {**store_options("1k", _LAYOUT), "topic": topic, "connections": 16, "window": 32}
            bench.say("filling for RocketMQ's benchmark consumer")
            run_load("produce", group.master.address, **options, count=bench.pace.java_messages)
            bench.say("RocketMQ's benchmark consumer")
            rates = _rates(bench, group, "Consumer", "-t", topic, "-g", "benchmark", "-p", "false")
            yield bench.figure("java/consumer", max(rates), {"rates": rates})


def _rates(bench: Bench, group: BrokerGroup, program: str, *arguments: str) -> list[float]:
    """Run one of the programs for a while; return the rates that it printed."""

    def command() -> list[str]:
        return java_command(
            "example",
            EXAMPLE_VERSION,
            _MAIN + program,
            "-n",
            group.name_server.address,
            "-w",
            str(_THREADS),
            *arguments,
            home=group.directory / f"{program}.home",
            jvm_options=_JVM,
        )

    with Process(program, group.directory / program, command=command, ready="topic") as process:
        process.start()
        time.sleep(bench.pace.java_s)
        rates = [float(found[1]) for line in process.lines() if (found := _TPS.search(line))]
        if not rates:
            raise LoadFailed(f"{program} printed no rate: {process.log_tail(5)}")
        return rates


def client(bench: Bench) -> Iterator[Figure]:
    """Measure our asyncio client, a process beside the broker."""
    with bench.group() as group:
        group.start_master()
        count = bench.pace.client_messages
        for kind in ("send", "consume"):
            bench.say(f"asyncio client, {kind}")
            if kind == "consume":
                fill(bench, group, "1k", "4q", count * (_BODY + 200))
            if bench.wants(f"client/{kind}"):
                detail = _client_load(kind, group, count)
                yield bench.figure(f"client/{kind}", detail["messages_per_s"], detail)


def _client_load(kind: str, group: BrokerGroup, count: int) -> dict[str, float]:
    topic = str(store_options("1k", "4q")["topic"])
    command = [sys.executable, "-m", "bench.client_load", kind, group.name_server.address, topic, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadFailed(done.stderr.strip().splitlines()[-1])
    result: dict[str, float] = json.loads(done.stdout)
    return result
