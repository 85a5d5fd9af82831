"""End-to-end latency with a broker in memory."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from bench.latency_load import LatencyOptions, LatencyResult, measure_latency
from bench.loads import run_load
from tandemq.load import LoadError
from tests.unit.load.fake_broker import FakeBroker, running

pytestmark = pytest.mark.system


def test_every_message_sent_is_received_and_its_age_recorded() -> None:
    with running(FakeBroker(queue_count=4)) as broker:
        result = measure_latency(LatencyOptions(broker.address, "t", rate=500, seconds=0.6, warmup_s=0.2))
    assert result.sent == result.received == 400
    assert result.latency.count == 300
    assert 0 < result.latency.p50_ms <= result.latency.p99_ms <= result.latency.p999_ms
    assert result.acknowledged.count > 0


def test_messages_due_in_the_warm_up_and_sent_late_are_not_measured() -> None:
    with running(FakeBroker(queue_count=4)) as broker:
        options = LatencyOptions(broker.address, "t", rate=50_000, seconds=0.02, warmup_s=0.02)
        result = measure_latency(options)
    assert result.sent == result.received == 2000
    assert result.latency.count == 1000


def test_run_with_only_refusals_ends_with_their_reason() -> None:
    with running(FakeBroker(code=14)) as broker, pytest.raises(LoadError, match="code 14"):
        measure_latency(LatencyOptions(broker.address, "t", rate=100, seconds=0.1))


def test_refused_sends_among_others_are_counted() -> None:
    with running(FakeBroker(queue_count=1, busy_at=frozenset({5, 6}))) as broker:
        result = measure_latency(LatencyOptions(broker.address, "t", rate=200, seconds=0.2, warmup_s=0, queue_count=1))
    assert (result.sent, result.refused, result.received) == (40, 2, 38)


def test_groups_in_a_process_of_their_own_each_receive_every_message() -> None:
    """The producer alone runs beside them; both measure from the same clock."""
    seconds = 2.0
    sent, received = send_beside_groups(3, seconds)
    while received.received < 3 * 80 and seconds < 60:  # a busy machine sent when they had ended
        seconds *= 3
        sent, received = send_beside_groups(3, seconds)
    assert (sent.sent, sent.received, sent.acknowledged.count) == (80, 0, 80)
    assert received.received == 3 * 80
    assert received.latency.count == 3 * 80


def send_beside_groups(groups: int, seconds: float) -> tuple[LatencyResult, LatencyResult]:
    """Send 80 messages while the long polls of some groups are open, which end after so many seconds."""
    opened = threading.Event()
    with running(FakeBroker(queue_count=1)) as broker, ThreadPoolExecutor(1) as pool:
        send = LatencyOptions(broker.address, "t", rate=200, seconds=0.4, warmup_s=0, queue_count=1, groups=0)
        follow = replace(send, rate=0, seconds=seconds, groups=groups)
        following = pool.submit(measure_latency, follow, when_open=opened.set)
        assert opened.wait(60)
        return measure_latency(send), following.result()


def test_process_prints_its_result() -> None:
    with running(FakeBroker(queue_count=1)) as broker:
        options: dict[str, str | float] = {"topic": "t", "rate": 100, "seconds": 0.3, "warmup": 0.0, "queues": 1}
        result = run_load("latency", broker.address, **options, lengths="varied")
    assert (result["sent"], result["received"]) == (30, 30)
    assert result["acknowledged"]["count"] > 0
