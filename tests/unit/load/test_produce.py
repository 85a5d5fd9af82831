"""Produce runs: counts, refusals, and the generator's own cost per frame."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.client.credentials import ACCESS_KEY, SECRET_KEY
from tandemq.codec.remoting.signature import signed
from tandemq.errors import NotConnected
from tandemq.load import LoadError, ProduceOptions, SendShape, produce
from tandemq.load.results.report import LoadProgress
from tandemq.load.wire.frames import SendFrames, body_text
from tandemq.load.wire.responses import ResponseCounter
from tandemq.model.access import Credentials
from tests.unit.load.echo_server import responses
from tests.unit.load.fake_broker import FakeBroker, running

pytestmark = pytest.mark.system


@contextlib.contextmanager
def echo_server(code: int = 0) -> Iterator[str]:
    command = [sys.executable, str(Path(__file__).with_name("echo_server.py")), str(code)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def test_count_sends_exactly_that_many_and_waits_for_all_responses() -> None:
    with running(FakeBroker(queue_count=4)) as broker:
        result = produce(ProduceOptions(broker.address, SendShape("t", 16, 4), 3, 5, count=300))
    assert (result.messages, result.unanswered, result.refused) == (300, 0, {})
    assert sum(map(len, broker.queues)) == 300
    assert {len(queue) for queue in broker.queues} == {75}


def test_every_request_of_a_run_has_its_own_key_over_all_connections() -> None:
    with running(FakeBroker(queue_count=2, keep_requests=True)) as broker:
        produce(ProduceOptions(broker.address, SendShape("t", 16, 2), 4, 8, count=600))
    keys = {request["extFields"]["i"] for request in broker.requests}
    assert len(keys) == len(broker.requests) == 600


def test_requests_are_signed_if_the_environment_has_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    user = Credentials("sender", "secret")
    monkeypatch.setenv(ACCESS_KEY, user.access_key)
    monkeypatch.setenv(SECRET_KEY, user.secret_key)
    with running(FakeBroker(queue_count=2, keep_requests=True)) as broker:
        produce(ProduceOptions(broker.address, SendShape("t", 16, 2), 2, 8, count=40))
    assert len(broker.requests) == 40
    for request in broker.requests:
        fields = request["extFields"]
        assert fields == signed(fields, body_text(16), user)


def test_each_half_message_is_committed_and_counts_once_its_commit_is_acknowledged() -> None:
    with running(FakeBroker(queue_count=4)) as broker:
        shape = SendShape("t", queue_count=4, varied=True, topics=3, group="P", half=True)
        result = produce(ProduceOptions(broker.address, shape, 3, 5, count=300))
    assert (result.messages, result.unanswered, result.refused) == (300, 0, {})
    assert len(broker.halves) == len(broker.commits) == 300
    assert {commit["tranStateTableOffset"] for commit in broker.commits} == {str(number) for number in range(300)}
    for commit in broker.commits:
        assert int(commit["commitLogOffset"]) == 512 * int(commit["tranStateTableOffset"])
        assert (commit["producerGroup"], commit["commitOrRollback"]) == ("P", "8")
        assert commit["msgId"] == commit["transactionId"] == f"7F00000100002A9F{int(commit['commitLogOffset']):016X}"
    assert {fields["b"] for fields in broker.halves.values()} == {"t-0", "t-1", "t-2"}
    assert all("PGROUP\x01P\x02" in fields["i"] for fields in broker.halves.values())
    assert result.latency.count > 0


def test_refused_commits_are_counted_by_code_and_not_as_transactions() -> None:
    with running(FakeBroker(end_code=604)) as broker:
        result = produce(ProduceOptions(broker.address, SendShape("t", half=True), 1, 4, count=100))
    assert (result.messages, result.refused, len(broker.commits)) == (0, {604: 100}, 100)


def test_refused_half_messages_are_not_committed() -> None:
    with running(FakeBroker(code=16)) as broker:
        result = produce(ProduceOptions(broker.address, SendShape("t", half=True), 2, 4, count=100))
    assert (result.messages, result.refused, broker.commits) == (0, {16: 100}, [])


def test_timed_run_measures_rate_latency_and_cpu_share() -> None:
    seen: list[LoadProgress] = []
    with echo_server() as address:
        result = produce(ProduceOptions(address, SendShape("t"), 4, 8, seconds=0.8, warmup_s=0.2), seen.append)
    assert result.messages > 0
    assert result.messages_per_s == pytest.approx(result.messages / result.seconds, rel=0.01)
    assert 0 < result.latency.p50_ms <= result.latency.p99_ms <= result.latency.max_ms
    assert 0 < result.cpu_share <= 1.1
    assert result.unanswered == 0
    assert seen
    assert seen[-1].done > 0


def test_run_at_a_rate_sends_no_more_than_that_and_all_of_a_count() -> None:
    began = time.perf_counter()
    with running(FakeBroker(queue_count=4)) as broker:
        result = produce(ProduceOptions(broker.address, SendShape("t", 16, 4), 4, 8, count=200, rate=1_000))
    assert (result.messages, result.refused) == (200, {})
    assert time.perf_counter() - began >= 0.2, "the last one is not due before"


def test_run_with_only_refusals_ends_with_their_reason() -> None:
    with echo_server(14) as address, pytest.raises(LoadError, match="every send is refused; code 14"):
        produce(ProduceOptions(address, SendShape("t"), 4, 32, seconds=30))


def test_refused_messages_are_counted_by_code_and_not_as_sent() -> None:
    with running(FakeBroker(code=11)) as broker:
        result = produce(ProduceOptions(broker.address, SendShape("t"), 1, 4, count=100))
    assert (result.messages, result.refused) == (0, {11: 100})
    assert "code 11" in result.first_refusal


def test_refused_connection_is_an_error() -> None:
    with FakeBroker().listener as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with pytest.raises(NotConnected, match="no process answers"):
        produce(ProduceOptions(address, SendShape("t"), 1, 1, seconds=0.1))


def test_batch_counts_messages_not_frames() -> None:
    with echo_server() as address:
        result = produce(ProduceOptions(address, SendShape("t", batch=32), 2, 2, count=3200))
    assert result.messages == 3200


def test_frames_and_responses_cost_the_generator_as_many_calls_however_many_they_are() -> None:
    """So a frame costs a small part of a microsecond; with a loop in Python it would cost several."""
    assert calls_of(32) == calls_of(256) <= 20


def calls_of(count: int) -> int:
    """Return how many functions, of Python and of C, are called to make frames and to read their responses."""
    frames, counter, reply = (
        SendFrames(SendShape("t", varied=True), identity=1, wall_ms=0),
        ResponseCounter(),
        responses(count),
    )
    frames.take(count, 0)
    calls = 0

    def note(_frame: object, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        frames.take(count, 0)
        counter.feed(reply)
    finally:
        sys.setprofile(None)
    return calls
