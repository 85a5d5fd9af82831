"""Consume runs: every message is counted once per pass, and a response that does not fit its request is an error."""

from __future__ import annotations

import socket

import pytest

from tandemq.load import ConsumeOptions, LoadError, consume
from tandemq.load.wire.records import count_records
from tests.unit.load.fake_broker import FakeBroker, record, running


@pytest.mark.parametrize("connections", [1, 3, 16])
def test_one_pass_counts_every_message_of_every_queue(connections: int) -> None:
    with running(FakeBroker(queue_count=4)) as broker:
        broker.fill(101, b"x" * 1000)
        result = consume(ConsumeOptions(broker.address, "t", 4, connections, seconds=0))
    assert (result.messages, result.passes, result.pulls) == (404, 1, 16)


def test_queues_take_turns_in_a_window_of_pulls() -> None:
    with running(FakeBroker(queue_count=4, keep_requests=True)) as broker:
        broker.fill(96, b"x")
        result = consume(ConsumeOptions(broker.address, "t", 4, 1, seconds=0, window=2))
    assert result.messages == 4 * 96
    asked = [int(request["extFields"]["queueId"]) for request in broker.requests]
    assert asked == [0, 1, 2, 3] * 3


def test_filter_counts_matching_messages_and_goes_on_without_any() -> None:
    """A response without a match (20) has the offset at which to continue."""
    broker = FakeBroker(queue_count=1)
    broker.fill(10, b"x")

    def answer(connection: socket.socket, opaque: int, queue_id: int, queue_offset: int, *, hold: bool) -> None:
        fields = {"nextBeginOffset": str(queue_offset + 5), "minOffset": "0", "maxOffset": "10"}
        code, body = (20, b"") if queue_offset == 0 else (0, broker.queues[0][7])
        broker.reply(connection, opaque, code, fields, body)

    broker.answer_pull = answer  # type: ignore[method-assign]
    with running(broker):
        result = consume(ConsumeOptions(broker.address, "t", 1, 1, seconds=0, expression="rare"))
    assert (result.messages, result.offsets) == (1, 10)


def test_responses_larger_than_the_buffer_are_read() -> None:
    with running(FakeBroker(queue_count=1)) as broker:
        broker.fill(40, b"x" * 200_000)
        result = consume(ConsumeOptions(broker.address, "t", 1, 1, seconds=0))
    assert result.messages == 40


def test_run_longer_than_the_log_reads_it_again() -> None:
    with running(FakeBroker(queue_count=2)) as broker:
        broker.fill(10, b"x")
        result = consume(ConsumeOptions(broker.address, "t", 2, 2, seconds=0.3, warmup_s=0.05))
    assert result.passes > 1
    assert result.messages > 20


def test_empty_topic_is_an_error() -> None:
    with running(FakeBroker(queue_count=2)) as broker, pytest.raises(LoadError, match="has no messages"):
        consume(ConsumeOptions(broker.address, "t", 2, 2, seconds=1))


def test_message_at_another_offset_than_requested_is_an_error() -> None:
    with running(FakeBroker(queue_count=1)) as broker:
        broker.fill(3, b"x")
        broker.queues[0][0] = record(0, 17, 0, b"x")
        with pytest.raises(LoadError, match="asked for offset 0"):
            consume(ConsumeOptions(broker.address, "t", 1, 1, seconds=0))


def test_next_offset_that_skips_a_message_is_an_error() -> None:
    broker = FakeBroker(queue_count=1)
    broker.fill(3, b"x")
    fields = {"nextBeginOffset": "4", "minOffset": "0", "maxOffset": "9"}
    broker.answer_pull = lambda connection, opaque, *_, **__: broker.reply(  # type: ignore[method-assign]
        connection, opaque, 0, fields, b"".join(broker.queues[0])
    )
    with running(broker), pytest.raises(LoadError, match="3 messages, but the next offset is 4"):
        consume(ConsumeOptions(broker.address, "t", 1, 1, seconds=0))


def test_refused_pull_ends_the_run_with_its_remark() -> None:
    broker = FakeBroker(queue_count=1)
    broker.answer_pull = lambda connection, opaque, *_, **__: broker.reply(  # type: ignore[method-assign]
        connection, opaque, 17, {}, remark="topic not exist"
    )
    with running(broker), pytest.raises(LoadError, match="code 17: topic not exist"):
        consume(ConsumeOptions(broker.address, "t", 1, 1, seconds=0))


@pytest.mark.parametrize("cut", [1, 90, 91, 100])
def test_records_that_do_not_add_up_are_an_error(cut: int) -> None:
    data = record(0, 0, 0, b"abc") + record(0, 1, 94, b"defg")
    assert count_records(data, 0, len(data)) == 2
    with pytest.raises(LoadError):
        count_records(data, 0, len(data) - (cut if cut != 95 else 1))
