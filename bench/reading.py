"""Reads of a full store: pulls over each layout, tag filters, a classic slave."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from bench.clocks import Clocks
from bench.loads import run_load
from bench.matrix import LARGE, LAYOUTS, LENGTHS, PULL_LOADS, PullLoad, store_options, topic
from bench.probe import first_record_end, log_end
from bench.servers import BrokerGroup
from bench.setting import Bench, Figure
from tandemq.load import SendShape
from tandemq.load.wire.probe import max_offset
from tandemq.load.wire.sockets import connect
from tests.interop.java import wait_until

_RECORD_BYTES = 200  # Of a record in the log, besides its body.
_VARIED_BYTES = 600  # Of a varied record, all.
_DISPATCH_S = 120.0
_FOR_SLAVE = PullLoad("1k", "4q", 4)  # What is stored for a classic slave alone.


def read(bench: Bench) -> Iterator[Figure]:
    """Measure reads; each layout is filled once."""
    loads = [(cell.name, PULL_LOADS[cell.name]) for cell in bench.cells if cell.name in PULL_LOADS]
    loads.sort(key=lambda one: (one[1].lengths, one[1].layout, one[1].filter))
    filled: list[tuple[str, str]] = []
    with bench.group({"enablePropertyFilter": "true"}) as group:
        group.start_master()
        for name, load in loads or [("", _FOR_SLAVE)]:
            store = (load.lengths, load.layout)
            if store not in filled:
                fill(bench, group, *store, bench.pace.read_bytes)
                if not filled:
                    bench.say("warm-up, pulls")
                    _pull(bench, group, load, bench.warmup_s)
                filled.append(store)
            if name:
                bench.say(name)
                result = _pull(bench, group, load, bench.pace.measure_s)
                yield bench.figure(name, result["messages_per_s"], result)
        if bench.wants("ha"):
            yield _raw_slave(bench, group, *filled[0])


def fill(bench: Bench, group: BrokerGroup, lengths: str, layout: str, size: int, batch: int = 1) -> None:
    """Write about that many bytes of log, and let the disk settle."""
    bench.say(f"filling {size / (1 << 30):.2g} GiB, {lengths}, {layout}")
    record = _VARIED_BYTES if lengths == "varied" else LENGTHS[lengths] + _RECORD_BYTES
    large = lengths in LARGE
    options = store_options(lengths, layout)
    filled = run_load(
        "produce",
        group.master.address,
        **options,
        batch=batch,
        connections=4 if large else 16,
        window=4 if large or batch > 1 else 32,
        count=math.ceil(size / record),
    )
    _wait_for_queues(group, lengths, layout, int(filled["messages"]))
    os.sync()


def _wait_for_queues(group: BrokerGroup, lengths: str, layout: str, count: int) -> None:
    """Wait until the queues have all messages: RocketMQ adds them later than it acknowledges them."""
    topics, queues = LAYOUTS[layout]
    names = SendShape(topic(lengths, layout), topics=topics).topic_names()
    with connect(group.master.address, _DISPATCH_S) as broker:
        wait_until(
            lambda: sum(max_offset(broker, name, queue_id) for name in names for queue_id in range(queues)) >= count,
            what=f"{count:,} messages in the queues",
            within_s=_DISPATCH_S,
            every_s=0.2,
        )


def _pull(bench: Bench, group: BrokerGroup, load: PullLoad, seconds: float) -> dict[str, Any]:
    with Clocks(group.pids) as clocks:
        result = run_load(
            "consume",
            group.master.address,
            **load.options,
            seconds=seconds,
            warmup=bench.pace.settle_s,
        )
    return {**result, **clocks.shares(result, seconds)}


def _raw_slave(bench: Bench, group: BrokerGroup, lengths: str, layout: str) -> Figure:
    bench.say("HA catch-up")
    address = group.master.address
    topics, queues = LAYOUTS[layout]
    first_topic = SendShape(topic(lengths, layout), topics=topics).topic_name(0)
    start = first_record_end(address, first_topic, queues)
    with connect(address) as broker:
        end = log_end(broker)
    ha_address = f"127.0.0.1:{group.master.ha_port}"
    runs = [run_load("replicate", ha_address, start=start, end=end, seconds=30.0) for _ in range(bench.pace.replays)]
    runs.sort(key=lambda run: float(run["mb_per_s"]))
    return bench.figure("ha", runs[len(runs) // 2]["mb_per_s"], {"runs": runs, "log_bytes": end - start})
