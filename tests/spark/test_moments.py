"""Search by store time with pulls from slaves only."""

import random
from bisect import bisect_left
from typing import cast

import pytest

from tandemq.client.core.operations import Invoke
from tandemq.client.core.routes import Routes
from tandemq.codec.record.record import encode_record
from tandemq.errors import NotConnected
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.lookups import find_offset_at
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.options import ReadFrom
from tests.spark.logs import HOST_V4

QUEUE = MessageQueue("T", "a", 0)
LAYOUT = QueueLayout((QUEUE,), {"a": {0: "master", 1: "dead", 2: "lags", 3: "slave"}})
START = 100
"""Start of the queue: earlier messages are deleted."""


def record(offset: int, store_ms: int) -> bytes:
    return encode_record(
        topic=b"T",
        queue_id=0,
        queue_offset=offset,
        log_offset=offset * 200,
        body=b"x",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=store_ms,
        born_host=HOST_V4,
        store_ms=store_ms,
        store_host=HOST_V4,
        reconsume_times=0,
    )


def answer(ask: Invoke, times: list[int]) -> Command:
    """Response of a lagging slave, or of a complete slave in a group with a registry."""
    if ask.address == "slave" and ask.command.code == RequestCode.PULL_MESSAGE:
        return Command(ResponseCode.NO_PERMISSION)
    assert ask.address in ("slave", "lags")
    offset = int(ask.command.fields["queueOffset"])
    end = START + (len(times) if ask.address == "slave" else len(times) // 2)
    if offset < START:
        return Command(ResponseCode.PULL_OFFSET_MOVED, fields={"nextBeginOffset": str(START)})
    if offset >= end:
        return Command(ResponseCode.PULL_NOT_FOUND, fields={"nextBeginOffset": str(end)})
    return Command(ResponseCode.SUCCESS, body=record(offset, times[offset - START]))


def found(wall_ms: int, start: int, end: int, times: list[int], addresses: dict[int, str]) -> int:
    layout = QueueLayout(LAYOUT.queues, {"a": addresses})
    steps = find_offset_at(cast(Routes, None), layout, QUEUE, wall_ms, start, end, ReadFrom.SLAVE)
    try:
        step = next(steps)
        while True:
            assert isinstance(step, Invoke)
            if step.address == "dead":
                step = steps.throw(NotConnected("dead"))
            else:
                step = steps.send(answer(step, times))
    except StopIteration as over:
        return int(over.value)


@pytest.mark.parametrize("seed", range(20))
def test_offset_by_time_is_found_with_pulls_although_slaves_lag_or_are_dead(seed: int) -> None:
    dice = random.Random(seed)
    times = sorted(dice.randrange(1_000, 1_060) for _ in range(dice.randrange(1, 80)))
    end = START + len(times)
    for wall_ms in range(995, 1_065):
        expected = START + bisect_left(times, wall_ms)
        assert found(wall_ms, START, end, times, dict(LAYOUT.members["a"])) == expected
        assert found(wall_ms, START - 7, end, times, {0: "master", 2: "lags", 3: "slave"}) in (expected, START - 7)


def test_search_by_time_without_an_answering_slave_is_an_error() -> None:
    with pytest.raises(NotConnected):
        found(5, 0, 10, [], {0: "master", 1: "dead"})
