"""Isolation of slow and failed brokers."""

import pytest

from tandemq.client.producer.latency import FAILURE_MS, LatencyFaultTolerance


@pytest.mark.parametrize(("took", "isolated"), [(0, 0), (549, 0), (550, 10_000), (1_000, 30_000), (5_000, 60_000)])
def test_slow_answer_isolates_for_longer_the_slower_it_was(took: int, isolated: int) -> None:
    latency = LatencyFaultTolerance()
    latency.record_latency("a", took, 1_000)
    assert latency.is_available("a", 1_000 + isolated)
    assert latency.is_available("a", 1_000 + isolated - 1) == (isolated == 0)


def test_failure_isolates_until_the_broker_responds_again() -> None:
    latency = LatencyFaultTolerance()
    latency.record_failure("a", 0)
    assert not latency.is_available("a", FAILURE_MS - 1)
    latency.clear_failure("a")
    assert latency.is_available("a", 1)


def test_response_does_not_end_the_isolation_of_a_slow_broker() -> None:
    latency = LatencyFaultTolerance()
    latency.record_latency("a", 1_000, 0)
    latency.clear_failure("a")
    assert not latency.is_available("a", 1)


def test_end_of_isolation_orders_brokers() -> None:
    latency = LatencyFaultTolerance()
    latency.record_failure("a", 0)
    latency.record_latency("b", 600, 0)
    assert latency.isolated_until_ms("c") < latency.isolated_until_ms("b") < latency.isolated_until_ms("a")
