"""The cost of metrics: a broker with 10,000 series that sends keep busy, with and without a scrape each second.

    python -m bench.scraping                  the figures of the cells `metrics/…`, by themselves
    python -m bench.scraping --rounds 10      more rounds for the throughput

The event loop answers a scrape in slices (`real/monitoring/metered_node`). The broker measures their CPU time, and its
page has the longest slice of the collection before. A scrape costs the CPU time of the whole process, measured at rest.
What scrapes take from sends is the process's CPU time per message, in rounds without and with scrapes in turn; that
says something on a quiet machine only, because turns grow when neighbours take the processor.
"""

from __future__ import annotations

import argparse
import gzip
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

from bench.background import in_background
from bench.cells import OURS
from bench.loads import run_load
from bench.servers import BrokerGroup, cpu_seconds
from bench.setting import Bench, Figure, Pace
from tandemq.load.wire.frames import SendFrames, SendShape
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import ask, connect, exchange
from tests.interop.java import free_port

TOPICS, QUEUES, GROUPS = 100, 4, 20
"""Each pair of a topic and a group has five series of lag: 10,000 in all."""
LOAD: dict[str, str | float] = {"topic": "busy", "queues": 4, "connections": 16, "window": 32, "lengths": "varied"}
SCRAPES_AT_REST, INTERVAL_S = 10, 0.6
"""The interval is longer than the time for which a page serves all requests."""
_UPDATE_CONSUMER_OFFSET = 15
_STORES = Path(__file__).resolve().parent.parent / "build" / "bench"


class Cost(NamedTuple):
    """What the broker measured: of all collections, and the series of the last one."""

    collections: int
    loop_s: float
    longest_slice_s: float
    series: int


def fill(address: str) -> None:
    """Create the topics with one message each, and the groups by their offsets."""
    shape = SendShape("metered", queue_count=QUEUES, topics=TOPICS)
    with connect(address, 60) as sock:
        for name in shape.topic_names():
            create_topic(sock, name, QUEUES)
            for group in range(GROUPS):
                for queue in range(QUEUES):
                    fields = {"consumerGroup": f"group-{group}", "topic": name, "queueId": queue, "commitOffset": 0}
                    if ask(sock, _UPDATE_CONSUMER_OFFSET, fields).code != 0:
                        raise LoadError(f"{name}: the offset of group-{group} was refused")
        frames = SendFrames(shape, identity=1, wall_ms=0, frames=TOPICS)
        for _ in range(TOPICS):
            exchange(sock, bytes(frames.take(1, 0)))


def scrape(port: int) -> bytes:
    """Return the page of a broker, compressed, as Prometheus asks for it."""
    request = Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urlopen(request, timeout=60) as answer:
        page: bytes = answer.read()
    return page


def cost_in(compressed: bytes) -> Cost:
    """Return what a page says about the collections before it."""
    page = gzip.decompress(compressed).decode()

    def value(name: str) -> float:
        found = re.search(rf"^tandemq_metrics_{name}(?:\{{[^}}]*\}})? (\S+)$", page, re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    return Cost(
        int(value("collect_seconds_count")),
        value("cpu_seconds_total"),
        value("longest_slice_seconds"),
        int(value("series")),
    )


class Scraped(NamedTuple):
    """What `measure` found: CPU time of the broker per message in each round, and the cost of collections."""

    without_us: list[float]
    with_scrapes_us: list[float]
    ms_per_collection: float
    ms_per_scrape: float
    """Of the whole process, at rest."""
    slices_ms: list[float]
    """Longest slice of each collection, sorted."""
    series: int

    @property
    def kept(self) -> float:
        """Share of the sends that are left if the broker's CPU time is what limits them."""
        return statistics.median(self.without_us) / statistics.median(self.with_scrapes_us)


def measure(group: BrokerGroup, port: int, pace: Pace, rounds: int) -> Scraped:
    """Start the broker, make its series, and load it without and with scrapes in turn."""
    group.start_master()
    fill(group.master.address)
    run_load("produce", group.master.address, **LOAD, seconds=pace.warmup_ours_s, warmup=0)
    scrape(port)  # the texts of all series are made once
    before, pages = cost_in(scrape(port)), list[bytes]()

    def scrape_each_second(is_over: threading.Event) -> None:
        while not is_over.wait(1.0):
            pages.append(scrape(port))

    def microseconds_per_message() -> float:
        began_s = cpu_seconds(group.master.pid)
        run = run_load("produce", group.master.address, **LOAD, seconds=2 * pace.measure_s, warmup=0)
        return 1e6 * (cpu_seconds(group.master.pid) - began_s) / int(run["messages"])

    without_us, with_scrapes_us = list[float](), list[float]()
    for _ in range(rounds):
        without_us.append(microseconds_per_message())
        with in_background(scrape_each_second):
            with_scrapes_us.append(microseconds_per_message())
    after = cost_in(scrape(port))
    return Scraped(
        without_us,
        with_scrapes_us,
        1000 * (after.loop_s - before.loop_s) / (after.collections - before.collections),
        _at_rest_ms(group.master.pid, lambda: scrape(port)) - _at_rest_ms(group.master.pid, lambda: b""),
        sorted(1000 * cost_in(page).longest_slice_s for page in pages),
        after.series,
    )


def _at_rest_ms(pid: int, scrape_once: Callable[[], bytes]) -> float:
    """Return the CPU time of a process per interval, milliseconds."""
    began_s = cpu_seconds(pid)
    for _ in range(SCRAPES_AT_REST):
        scrape_once()
        time.sleep(INTERVAL_S)
    return 1000 * (cpu_seconds(pid) - began_s) / SCRAPES_AT_REST


def metrics(bench: Bench) -> Iterator[Figure]:
    """Measure the cells `metrics/…`."""
    port = free_port()
    bench.say("10,000 series, a scrape each second")
    with bench.group({"metricsPort": port}) as group:
        found = measure(group, port, bench.pace, 3)
    slices = {"series": found.series, "slices_ms": [round(one, 2) for one in found.slices_ms]}
    per_message = {"without_us": found.without_us, "with_scrapes_us": found.with_scrapes_us}
    for name, value, details in (
        ("metrics/slice", round(found.slices_ms[-1], 2), slices),
        ("metrics/scrape", round(found.ms_per_scrape, 2), slices),
        ("metrics/throughput", round(100 * found.kept, 1), per_message),
    ):
        if bench.wants(name):
            yield bench.figure(name, value, details)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scraping", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=_STORES / "scraping", help="where stores are put and deleted")
    args = parser.parse_args(arguments)
    port = free_port()
    with BrokerGroup(OURS, args.directory, {"metricsPort": port}) as group:
        found = measure(group, port, Pace(), args.rounds)
    print(
        f"{found.series:,} series: {found.ms_per_scrape:.1f} ms of CPU time per scrape at rest; under load the event "
        f"loop needed {found.ms_per_collection:.1f} ms"
    )
    print(f"longest slice of each: {', '.join(f'{one:.2f}' for one in found.slices_ms)} ms")
    print(
        f"CPU time per message: {statistics.median(found.without_us):.2f} µs, with a scrape per second "
        f"{statistics.median(found.with_scrapes_us):.2f} µs: {found.kept:.1%} of the sends are kept"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
