"""A master is killed with kill -9 under load: what Prometheus sees, as a chart.

    python -m bench.kill_chart                    writes docs/assets/kill-master.svg
    python -m bench.kill_chart --out chart.svg

Two groups of two members in mode `elect`, a producer of RATE messages per second and a consumer, and a real Prometheus
(Debian's package) that scrapes each member each 0.6 s. The master of broker-a is killed at KILL_S and started again
at RETURN_S. All that is drawn comes from Prometheus, by the expressions in PANELS.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from bench.background import in_background
from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.coordination.registry.records import Mode
from tandemq.errors import TandemError
from tandemq.run.children import ChildCluster, ClusterPorts
from tests.interop.prometheus import Prometheus

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs" / "assets" / "kill-master.svg"
TOPIC, RATE, QUEUES = "Orders", 200, 4
WARM_S, KILL_S, RETURN_S, END_S = 12.0, 10.0, 25.0, 45.0
"""Load before the chart begins; then times in it."""
STEP_S = 0.6
"""Longer than the half second for which a page serves all requests."""


MASTERS = "Active master"


class Line(NamedTuple):
    """A line of a panel: its name, its colour, the labels that its series has."""

    name: str
    colour: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel: what Prometheus is asked, and the lines that are drawn of it."""

    title: str
    expr: str
    lines: Sequence[Line]
    top: float = 0
    """Lowest upper end of the axis."""


_BLUE, _LIGHT, _GREY, _RED = "#1d4ed8", "#f59e0b", "#9ca3af", "#dc2626"
_MEMBERS = (
    Line("broker-a, member 0", _BLUE, {"broker": "broker-a", "broker_id": "0"}),
    Line("broker-a, member 1", _LIGHT, {"broker": "broker-a", "broker_id": "1"}),
    Line("broker-b", _GREY, {"broker": "broker-b"}),
)


def _rate(family: str) -> str:
    """Return the expression of the rate of a counter of the topic, by member; that of masters only."""
    rate = f'label_replace(irate({family}{{topic="{TOPIC}"}}[2s]), "broker", "$1", "node_id", "(.*)")'
    return f"sum by (broker, broker_id) ({rate} * on (instance) group_left (broker_id) tandemq_broker_master)"


PANELS = (
    Panel("Messages accepted per second", _rate("rocketmq_messages_in_total"), _MEMBERS),
    Panel("Messages consumed per second", _rate("rocketmq_messages_out_total"), _MEMBERS),
    Panel(MASTERS, 'tandemq_broker_master{broker="broker-a"}', _MEMBERS[:2], 1.2),
    Panel(
        "Members of broker-a in sync, as its master sees them",
        'max by (broker) (tandemq_group_in_sync_members{broker="broker-a"} and tandemq_broker_master == 1)',
        (Line("members in sync", _RED, {}),),
        2.4,
    ),
)
Points = list[tuple[float, float]]
"""(seconds since the chart's start, value)"""


def record(directory: Path) -> list[list[Points]]:
    """Run the cluster, and return the points of each line of each panel."""
    cluster = ChildCluster(directory / "cluster", mode=Mode.ELECT, ports=ClusterPorts(has_metrics=True))
    with cluster:
        targets = [child.startup["metrics"] for child in cluster.brokers]
        with Prometheus(directory / "prometheus", targets, interval="600ms") as prometheus:
            prometheus.start()
            with (
                in_background(lambda is_over: _produce(cluster, is_over)),
                in_background(lambda is_over: _consume(cluster, is_over)),
            ):
                time.sleep(WARM_S)
                began_s = time.time()
                master = cluster.master_of("broker-a")
                assert master is not None
                _wait_until(began_s + KILL_S)
                master.kill()
                _wait_until(began_s + RETURN_S)
                master.start()
                _wait_until(began_s + END_S)
            return [[_points(prometheus, panel, line, began_s) for line in panel.lines] for panel in PANELS]


def _wait_until(wall_s: float) -> None:
    time.sleep(max(0.0, wall_s - time.time()))


def _produce(cluster: ChildCluster, is_over: threading.Event) -> None:
    """Send RATE messages per second, one after the other; after a failure the next one."""
    with BlockingProducer(cluster.name_servers, group="shop") as producer:
        due_s = time.monotonic()
        number = 0
        while not is_over.wait(max(0.0, due_s - time.monotonic())):
            due_s = max(due_s + 1 / RATE, time.monotonic() - 1)
            number += 1
            with contextlib.suppress(TandemError):
                producer.send(Message(TOPIC, b"order %d" % number, keys=[str(number)]))


def _consume(cluster: ChildCluster, is_over: threading.Event) -> None:
    with BlockingConsumer(
        cluster.name_servers, group="billing", topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        while not is_over.is_set():
            message = consumer.receive(0.5)
            if message is not None:
                message.ack()


def _points(prometheus: Prometheus, panel: Panel, line: Line, began_s: float) -> Points:
    series = prometheus.query_range(panel.expr, began_s, began_s + END_S, STEP_S)
    for one in series:
        if line.labels.items() <= one["metric"].items():
            return [(at - began_s, float(value)) for at, value in one["values"] if not math.isnan(float(value))]
    return []


def outage_s(found: Sequence[Sequence[Points]]) -> float:
    """Return the time from the kill until another member of broker-a is its master."""
    masters = found[[panel.title for panel in PANELS].index(MASTERS)]
    taken = [at for points in masters for at, value in points if value and at > KILL_S + 2 * STEP_S]
    return min(taken, default=math.inf) - KILL_S


# The drawing.

TITLE = "kill -9 of the master of broker-a, as Prometheus sees it"
_LEFT, _WIDTH, _RIGHT = 60, 720, 20
_HEIGHT, _GAP, _HEAD = 110, 46, 64


def chart(found: Sequence[Sequence[Points]]) -> str:
    """Return the chart as SVG."""
    height = _HEAD + len(PANELS) * (_HEIGHT + _GAP) + 10
    width = _LEFT + _WIDTH + _RIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15" font-weight="600">{TITLE}</text>',
        f'<text x="{_x(KILL_S):.1f}" y="48" font-size="11" text-anchor="middle">kill -9</text>',
        f'<text x="{_x(RETURN_S):.1f}" y="48" font-size="11" text-anchor="middle">started again</text>',
    ]
    for number, (panel, lines) in enumerate(zip(PANELS, found, strict=True)):
        parts += _panel(panel, lines, _HEAD + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _x(seconds: float) -> float:
    return _LEFT + _WIDTH * seconds / END_S


def _panel(panel: Panel, lines: Sequence[Points], y: int) -> Iterator[str]:
    highest = max([panel.top, *(value * 1.1 for points in lines for _, value in points)]) or 1
    base = y + 18 + _HEIGHT - 18

    def at(value: float) -> float:
        return base - (_HEIGHT - 18) * value / highest

    yield f'<text x="{_LEFT}" y="{y + 8}" font-size="12" font-weight="600">{escape(panel.title)}</text>'
    if len(panel.lines) > 1:
        for number, line in enumerate(panel.lines):
            x = _LEFT + 300 + number * 145
            yield f'<rect x="{x}" y="{y}" width="10" height="10" fill="{line.colour}"/>'
            yield f'<text x="{x + 14}" y="{y + 9}" font-size="11">{escape(line.name)}</text>'
    for tick in _ticks(highest):
        yield f'<line x1="{_LEFT}" y1="{at(tick):.1f}" x2="{_LEFT + _WIDTH}" y2="{at(tick):.1f}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 6}" y="{at(tick) + 3:.1f}" font-size="10" text-anchor="end">{tick:,.0f}</text>'
    for seconds in range(0, int(END_S) + 1, 5):
        yield f'<text x="{_x(seconds):.1f}" y="{base + 14}" font-size="10" text-anchor="middle">{seconds} s</text>'
    for moment in (KILL_S, RETURN_S):
        mark = f"{_x(moment):.1f}"
        yield f'<line x1="{mark}" y1="{y + 14}" x2="{mark}" y2="{base}" stroke="#6b7280" stroke-dasharray="3 3"/>'
    for line, points in zip(panel.lines, lines, strict=True):
        for part in _unbroken(points):
            path = " ".join(f"{_x(seconds):.1f},{at(value):.1f}" for seconds, value in part)
            yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="1.8"/>'


def _ticks(highest: float) -> list[float]:
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000) if highest / step <= 5)
    return [float(one) for one in range(0, int(highest) + 1, step)]


def _unbroken(points: Points) -> Iterator[Points]:
    """Yield the parts of a line between which Prometheus has no values."""
    part: Points = []
    for point in points:
        if part and point[0] - part[-1][0] > 1.5 * STEP_S:
            yield part
            part = []
        part.append(point)
    if part:
        yield part


def main(arguments: list[str] | None = None) -> int:
    """Run, and write the chart; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kill_chart", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT, help="the chart")
    parser.add_argument("--keep", type=Path, help="keep stores, logs and Prometheus' data in this directory")
    args = parser.parse_args(arguments)
    directory = args.keep or Path(tempfile.mkdtemp(prefix="kill-chart-"))
    try:
        found = record(directory)
    finally:
        if args.keep is None:
            shutil.rmtree(directory, ignore_errors=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(chart(found), encoding="utf-8")
    print(f"{args.out}: {args.out.stat().st_size:,} bytes")
    print(f"broker-a had no master for {outage_s(found):.1f} s, to the {STEP_S} s between two scrapes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
