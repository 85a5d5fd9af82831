"""The cost of metrics: a broker with 10,000 series that sends keep busy, with and without scrapes.

    python -m bench.scraping                  the figures of the cells `metrics/…`, by themselves
    python -m bench.scraping --pairs 60       more pairs of windows, for a narrower interval

The event loop answers a scrape in slices (`real/monitoring/metered_node`). The broker measures their CPU time, and its
page has the longest slice of the collection before. A scrape costs the CPU time of the whole process, measured at rest.

What scrapes take from sends is measured in one run under load, in pairs of windows of WINDOW_S, one without scrapes and
one with SCRAPES of them, in random order:

    load   ────────────────────────────────────────────────────────►
    window │ without │ with │ with │ without │ without │ with │ …
    each: CPU time of the broker's process, and bytes added to its log

Of each pair the CPU time per byte is compared, and the bytes per second: neighbours that come and go disturb both
windows of a pair alike. The figure is the median over all pairs, scaled to one scrape per second, with the interval
that has the true median with a probability of 95 %, whatever the distribution (order statistics).
"""

from __future__ import annotations

import argparse
import gzip
import math
import re
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple
from urllib.request import Request, urlopen

from bench.cells import OURS
from bench.loads import LoadFailed, run_load
from bench.servers import BrokerGroup, cpu_seconds
from bench.setting import Bench, Figure, Pace
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.requests import update_offset_request
from tandemq.load.wire.frames import SendFrames, SendShape
from tandemq.load.wire.probe import create_topic
from tandemq.load.wire.responses import LoadError
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tests.interop.java import free_port

TOPICS, QUEUES, GROUPS = 100, 4, 20
"""Each pair of a topic and a group has five series of lag: 10,000 in all."""
LOAD: dict[str, str | float] = {"topic": "busy", "queues": 4, "connections": 16, "window": 32, "lengths": "varied"}
SCRAPES_AT_REST, INTERVAL_S = 10, 0.6
"""The interval is longer than the time for which a page serves all requests."""
SCRAPES = 2
WINDOW_S = SCRAPES * INTERVAL_S
PAIRS = 16
_SETTLE_S, _SLACK = 2.0, 1.2
_CONFIDENCE = 0.95
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
    with connect(address, 60) as broker:
        for name in shape.topic_names():
            create_topic(broker, name, QUEUES)
            for group in range(GROUPS):
                for queue in range(QUEUES):
                    commit = update_offset_request(f"group-{group}", MessageQueue(name, "", queue), 0)
                    if broker.request(commit).code != 0:
                        raise LoadError(f"{name}: the offset of group-{group} was refused")
        frames = SendFrames(shape, identity=1, wall_ms=0, frames=TOPICS)
        for _ in range(TOPICS):
            broker.write(frames.take(1, 0))
            broker.receive()


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


class Window(NamedTuple):
    """What the broker did in one window."""

    cpu_s: float
    bytes: int
    seconds: float


class Pair(NamedTuple):
    """Two windows, one after the other."""

    without: Window
    scraped: Window

    @property
    def cpu_ratio(self) -> float:
        """CPU time per byte with scrapes, as a multiple of that without."""
        return (self.scraped.cpu_s / self.scraped.bytes) / (self.without.cpu_s / self.without.bytes)

    @property
    def throughput_ratio(self) -> float:
        """Bytes per second with scrapes, as a multiple of those without."""
        return (self.scraped.bytes / self.scraped.seconds) / (self.without.bytes / self.without.seconds)


class Interval(NamedTuple):
    """A median, and the interval that has the true one with a probability of at least 95 %."""

    median: float
    low: float
    high: float

    def scaled(self) -> Interval:
        """Return this, a ratio, for one scrape per second instead of one per INTERVAL_S."""
        return Interval(*(1 + (one - 1) * INTERVAL_S for one in self))

    def __str__(self) -> str:
        """Return it as percentages."""
        return f"{self.median:.2%} ({self.low:.2%} to {self.high:.2%})"


def interval_of(values: Sequence[float]) -> Interval:
    """Return the median with its interval; from the lowest to the highest value if there are too few for 95 %."""
    ordered, count = sorted(values), len(values)
    skipped, outside = 0, 0.0
    for number in range(count // 2):
        outside += 2 * math.comb(count, number) / 2**count
        if outside > 1 - _CONFIDENCE:
            break
        skipped = number
    return Interval(statistics.median(ordered), ordered[skipped], ordered[-1 - skipped])


class Scraped(NamedTuple):
    """What `measure` found."""

    pairs: list[Pair]
    ms_per_collection: float
    """CPU time of the event loop per collection, under load."""
    ms_per_scrape: float
    """Of the whole process, at rest."""
    slices_ms: list[float]
    """Longest slice of each collection, sorted."""
    series: int

    @property
    def cpu(self) -> Interval:
        """CPU time per byte with one scrape per second, as a multiple of that without."""
        return interval_of([pair.cpu_ratio for pair in self.pairs]).scaled()

    @property
    def throughput(self) -> Interval:
        """Bytes per second with one scrape per second, as a multiple of those without."""
        return interval_of([pair.throughput_ratio for pair in self.pairs]).scaled()

    @property
    def kept(self) -> Interval:
        """Share of the sends that are left if the broker's CPU time is what limits them."""
        cpu = self.cpu
        return Interval(1 / cpu.median, 1 / cpu.high, 1 / cpu.low)


def measure(group: BrokerGroup, port: int, pace: Pace, pairs: int) -> Scraped:
    """Start the broker, make its series, and load it through all windows."""
    group.start_master()
    fill(group.master.address)
    run_load("produce", group.master.address, **LOAD, seconds=pace.warmup_ours_s, warmup=0)
    scrape(port)  # the texts of all series are made once
    before, pages = cost_in(scrape(port)), list[bytes]()
    random, found = Random(pairs), list[Pair]()
    is_over = threading.Event()

    def load() -> None:
        try:
            seconds = _SETTLE_S + pairs * 2 * WINDOW_S * _SLACK
            run_load("produce", group.master.address, **LOAD, seconds=seconds, warmup=0)
        finally:
            is_over.set()

    thread = threading.Thread(target=load)
    thread.start()
    with connect(group.master.address, 60) as broker:
        end = _log_end(broker)
        while _log_end(broker) == end and not is_over.wait(0.1):
            continue  # the generator begins
        while len(found) < pairs and not is_over.wait(_SETTLE_S if not found else 0):
            one = _pair(group.master.pid, broker, port, pages, random)
            if not is_over.is_set() and min(window.bytes for window in one) > 0:
                found.append(one)
    thread.join()
    if len(found) < pairs // 2:
        raise LoadFailed(f"the load ended after {len(found)} of {pairs} pairs of windows")
    after = cost_in(scrape(port))
    return Scraped(
        found,
        1000 * (after.loop_s - before.loop_s) / (after.collections - before.collections),
        _at_rest_ms(group.master.pid, lambda: scrape(port)) - _at_rest_ms(group.master.pid, lambda: b""),
        sorted(1000 * cost_in(page).longest_slice_s for page in pages),
        after.series,
    )


def _pair(pid: int, broker: BlockingConnection, port: int, pages: list[bytes], random: Random) -> Pair:
    """Measure a window without scrapes and one with them, in random order."""
    windows: dict[bool, Window] = {}
    for is_scraped in random.sample([False, True], 2):
        began, cpu_s, end = time.perf_counter(), cpu_seconds(pid), _log_end(broker)
        for number in range(SCRAPES):
            if is_scraped:
                pages.append(scrape(port))
            time.sleep(max(0.0, began + (number + 1) * INTERVAL_S - time.perf_counter()))
        windows[is_scraped] = Window(cpu_seconds(pid) - cpu_s, _log_end(broker) - end, time.perf_counter() - began)
    return Pair(windows[False], windows[True])


def _log_end(broker: BlockingConnection) -> int:
    """Return the end of the broker's log."""
    return int(broker.request(Command(RequestCode.TANDEM_PEER_INFO)).fields["logEnd"])


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
    bench.say(f"10,000 series, {PAIRS} pairs of windows without and with scrapes")
    with bench.group({"metricsPort": port}) as group:
        found = measure(group, port, bench.pace, PAIRS)
    bench.say(f"sends kept by CPU time {found.kept}, by throughput {found.throughput}")
    slices = {"series": found.series, "slices_ms": [round(one, 2) for one in found.slices_ms]}
    kept = {
        "kept": found.kept._asdict(),
        "throughput": found.throughput._asdict(),
        "loop_ms": found.ms_per_collection,
        "cpu_ratios": [round(pair.cpu_ratio, 4) for pair in found.pairs],
    }
    for name, value, details in (
        ("metrics/slice", round(found.slices_ms[-1], 2), slices),
        ("metrics/scrape", round(found.ms_per_scrape, 2), slices),
        ("metrics/throughput", round(100 * found.kept.median, 2), kept),
    ):
        if bench.wants(name):
            yield bench.figure(name, value, details)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.scraping", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=PAIRS, help="pairs of windows, without and with scrapes")
    parser.add_argument("--directory", type=Path, default=_STORES / "scraping", help="where stores are put and deleted")
    args = parser.parse_args(arguments)
    port = free_port()
    with BrokerGroup(OURS, args.directory, {"metricsPort": port}) as group:
        found = measure(group, port, Pace(), args.pairs)
    print(
        f"{found.series:,} series: {found.ms_per_scrape:.1f} ms of CPU time per scrape at rest; under load the event "
        f"loop needed {found.ms_per_collection:.1f} ms"
    )
    slices = found.slices_ms
    median = statistics.median(slices)
    print(f"longest slice of a collection: median {median:.2f} ms, longest of {len(slices)}: {slices[-1]:.2f} ms")
    print(f"with one scrape per second, median of {len(found.pairs)} pairs of windows (95 % interval):")
    print(f"  CPU time per byte, beside that without scrapes     {found.cpu}")
    print(f"  sends kept if CPU time limits them                 {found.kept}")
    print(f"  throughput, beside that without scrapes            {found.throughput}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
