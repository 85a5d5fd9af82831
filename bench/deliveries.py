"""Deliveries of delayed and timed messages while messages of the same kind are sent as fast as the broker takes them.

    sends ─► level of 1 s, or time in 2 s ─► topic        counted there, while the sends go on

A broker that sends fast and delivers slowly has a low figure: what waits in the end is in the details. So is how late
messages are when half as many are sent: the time from a send to the delivery, less the delay, of samples.
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
from tandemq.client.connection import BlockingConnection
from tandemq.client.core.operations import request
from tandemq.codec.record.record import decode_messages
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode

_PULLED = 32  # Messages per pull.
_SAMPLES = 64  # Pulls per queue.
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
    rate = (last - first) / seconds
    detail = {"sends_per_s": sent["messages_per_s"], "waiting": waiting, "drained_s": round(drained_s, 2), **shares}
    return round(rate), detail | _lateness(bench, group, load, rate / 2)


def _lateness(bench: Bench, group: BrokerGroup, load: DeliverLoad, rate: float) -> dict[str, Any]:
    """Send at a rate, and return how late messages were delivered meanwhile, ms; nothing at a rate of 0."""
    if rate < 1:
        return {}
    seconds = load.delay_s + bench.pace.settle_s + bench.pace.measure_s
    begins = _ends(group, load)
    run_load("produce", group.master.address, **load.options, seconds=seconds, warmup=0, rate=rate)
    _drain(group, load)
    late: list[float] = []
    with connect(group.master.address, 30) as broker:
        for queue_id, (begin, end) in enumerate(zip(begins, _ends(group, load), strict=True)):
            # The first second is that in which the broker wakes up.
            first = begin + round((end - begin) / seconds)
            for offset in range(first, end - _PULLED, max(_PULLED, (end - first) // _SAMPLES)):
                late += _late_ms(broker, load, queue_id, offset)
    late.sort()
    if not late:
        raise LoadFailed("no delivered message could be read")
    return {
        "half_load_per_s": round(rate),
        "late_p50_ms": late[len(late) // 2],
        "late_p99_ms": late[len(late) * 99 // 100],
        "late_max_ms": late[-1],
        "late_samples": len(late),
    }


def _late_ms(broker: BlockingConnection, load: DeliverLoad, queue_id: int, offset: int) -> list[float]:
    pull = request(
        RequestCode.PULL_MESSAGE,
        consumerGroup="bench-deliver",
        topic=load.topic,
        queueId=queue_id,
        queueOffset=offset,
        maxMsgNums=_PULLED,
        sysFlag=4,
        commitOffset=0,
        suspendTimeoutMillis=0,
        subscription="*",
        subVersion=0,
        expressionType="TAG",
    )
    answer = broker.request(pull)
    if answer.code != 0:
        raise LoadFailed(f"a pull of {load.topic} is answered {answer.code}: {answer.remark}")
    found = decode_messages(answer.body)
    return [message.store_ms - message.born_ms - 1000 * load.delay_s for message in found]


def _ends(group: BrokerGroup, load: DeliverLoad) -> list[int]:
    """Return the end of each queue of the topic."""
    ends: list[int] = []
    with connect(group.master.address, 30) as broker:
        for queue_id in range(int(load.options["queues"])):
            answer = broker.request(request(RequestCode.GET_MAX_OFFSET, topic=load.topic, queueId=queue_id))
            ends.append(int(answer.fields.get("offset", 0)))
    return ends


def _delivered(group: BrokerGroup, load: DeliverLoad) -> int:
    """Return how many messages are in the topic."""
    return sum(_ends(group, load))


def _drain(group: BrokerGroup, load: DeliverLoad) -> None:
    """Wait until nothing is delivered any more."""
    before, deadline = -1, time.monotonic() + _DRAIN_S
    while (now := _delivered(group, load)) != before:
        if time.monotonic() > deadline:
            raise LoadFailed(f"messages are still delivered {_DRAIN_S:.0f} s after the last send")
        before = now
        time.sleep(max(_QUIET_S, load.delay_s + 0.5) if now == 0 else _QUIET_S)
