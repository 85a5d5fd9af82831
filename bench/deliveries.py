"""Deliveries of delayed and timed messages while messages of the same kind are sent as fast as the broker takes them.

    sends ─► level of 1 s, or time in 2 s ─► topic        counted there, while the sends go on

A broker that sends fast and delivers slowly has a low figure: what waits in the end is in the details.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from bench.clocks import Clocks
from bench.loads import LoadFailed, run_load
from bench.matrix import DELIVERIES, DeliverLoad
from bench.servers import BrokerGroup
from bench.setting import Bench, Figure
from tandemq.load.wire.sockets import ask, connect

_GET_MAX_OFFSET = 30
_BEGIN_S = 1.5  # What the generator takes to start, at most.
_DRAIN_S = 60.0
_QUIET_S = 1.5


def deliver(bench: Bench) -> Iterator[Figure]:
    """Measure deliveries of one asynchronous master."""
    with bench.group() as group:
        group.start_master()
        for cell in bench.cells:
            load = DELIVERIES[cell.name]
            bench.say(f"warm-up, {cell.title}")
            run_load("produce", group.master.address, **load.options, seconds=bench.warmup_s / 2, warmup=0)
            _drain(group, load)
            bench.say(cell.title)
            value, detail = _measure(bench, group, load)
            yield bench.figure(cell.name, value, detail)


def _measure(bench: Bench, group: BrokerGroup, load: DeliverLoad) -> tuple[float, dict[str, Any]]:
    lead_s = _BEGIN_S + load.delay_s + bench.pace.settle_s
    measure_s = bench.pace.measure_s
    sent: dict[str, Any] = {}
    failure: list[LoadFailed] = []

    def send() -> None:
        try:
            sent.update(run_load("produce", group.master.address, **load.options, seconds=lead_s + measure_s, warmup=0))
        except LoadFailed as error:
            failure.append(error)

    before = _delivered(group, load)
    thread = threading.Thread(target=send)
    thread.start()
    time.sleep(lead_s)
    with Clocks(group.pids) as clocks:
        first, began = _delivered(group, load), time.perf_counter()
        time.sleep(measure_s)
        last, seconds = _delivered(group, load), time.perf_counter() - began
    thread.join()
    if failure:
        raise failure[0]
    shares = clocks.shares(sent, seconds)
    waiting = sent["messages"] - (_delivered(group, load) - before)
    ended = time.perf_counter()
    _drain(group, load)
    drained_s = time.perf_counter() - ended - _QUIET_S
    detail = {"sends_per_s": sent["messages_per_s"], "waiting": waiting, "drained_s": round(drained_s, 2), **shares}
    return round((last - first) / seconds), detail


def _delivered(group: BrokerGroup, load: DeliverLoad) -> int:
    """Return how many messages are in the topic."""
    total = 0
    with connect(group.master.address, 30) as broker:
        for queue_id in range(int(load.options["queues"])):
            answer = ask(broker, _GET_MAX_OFFSET, {"topic": f"{load.topic}", "queueId": str(queue_id)})
            total += int(answer.field("offset") or 0)
    return total


def _drain(group: BrokerGroup, load: DeliverLoad) -> None:
    """Wait until nothing is delivered any more."""
    before, deadline = -1, time.monotonic() + _DRAIN_S
    while (now := _delivered(group, load)) != before:
        if time.monotonic() > deadline:
            raise LoadFailed(f"messages are still delivered {_DRAIN_S:.0f} s after the last send")
        before = now
        time.sleep(max(_QUIET_S, load.delay_s + 0.5) if now == 0 else _QUIET_S)
