"""Trace records before they are in the trace topic."""

import logging

import pytest

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.trace_dispatcher import (
    HELD_MAX,
    KEYS_BYTES_MAX,
    LINGER_MS,
    LOG_MS,
    PAUSE_MS,
    RECORDS_PER_MESSAGE,
    TraceDispatcher,
)
from tandemq.codec.message_trace import TraceKind, TraceRecord, decode_traces
from tandemq.errors import ClosedError, NoRoute
from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus

STORED = SendResult(SendStatus.SEND_OK, "", "", MessageQueue("TRACES", "a", 0), 0)


class Sender:
    """Takes messages, answers when told to, and drives the timers."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.timers = Timers()
        self.messages: list[Message] = []
        self.tickets: list[Ticket[SendResult]] = []
        self.error: ClosedError | None = None
        self.dispatcher = TraceDispatcher("TRACES", self.send, self.timers)

    @property
    def now(self) -> Now:
        return Now(self.now_ms, 1_000_000 + self.now_ms)

    def send(self, message: Message, _now: Now) -> Ticket[SendResult]:
        if self.error is not None:
            raise self.error
        self.messages.append(message)
        self.tickets.append(Ticket())
        return self.tickets[-1]

    def append(self, count: int) -> None:
        for number in range(count):
            self.dispatcher.append(TraceRecord(kind=TraceKind.PUB, message_id=f"ID{number}"), self.now)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.timers.run(self.now)
        self.timers.run(self.now)

    def answer(self, error: NoRoute | None = None) -> None:
        for ticket in self.tickets:
            if not ticket.done and error is not None:
                ticket.fail(error)
            elif not ticket.done:
                ticket.settle(STORED)
        self.wait(0)

    def records(self) -> list[int]:
        return [len(decode_traces(message.body.decode()).records) for message in self.messages]


@pytest.fixture
def sender() -> Sender:
    return Sender()


def test_ten_records_are_one_message_and_the_rest_waits_half_a_second(sender: Sender) -> None:
    sender.append(RECORDS_PER_MESSAGE + 3)
    assert sender.records() == [RECORDS_PER_MESSAGE]
    sender.wait(LINGER_MS - 1)
    assert len(sender.messages) == 1
    sender.wait(1)
    assert sender.records() == [RECORDS_PER_MESSAGE, 3]
    assert sender.messages[1].topic == "TRACES"
    assert list(sender.messages[1].keys) == ["ID10", "ID11", "ID12"]


def test_records_beyond_the_limit_are_dropped_counted_and_logged_once_a_minute(
    sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    sender.append(HELD_MAX + 5)
    assert (sender.dispatcher.held, sender.dispatcher.dropped) == (HELD_MAX, 5)
    assert [record.getMessage() for record in caplog.records] == [
        f"message traces dropped topic=TRACES records=1 reason={HELD_MAX} records are held already"
    ]
    sender.now_ms += LOG_MS
    sender.append(1)
    assert "records=5 " in caplog.records[-1].getMessage()
    sender.answer()
    sender.append(1)
    assert sender.dispatcher.dropped == 6


def test_failed_message_is_dropped_and_followed_by_growing_pauses(sender: Sender) -> None:
    sender.append(3 * RECORDS_PER_MESSAGE)
    sender.answer(NoRoute("no such topic"))
    assert sender.dispatcher.dropped == 3 * RECORDS_PER_MESSAGE
    sender.append(2 * RECORDS_PER_MESSAGE)
    sender.wait(PAUSE_MS - 1)
    assert len(sender.messages) == 3, "nothing is sent in the pause, which several failures at once make no longer"
    sender.wait(1)
    assert len(sender.messages) == 4, "one message tries"
    sender.answer(NoRoute("no such topic"))
    sender.wait(2 * PAUSE_MS - 1)
    assert len(sender.messages) == 4
    sender.wait(1)
    assert len(sender.messages) == 5
    sender.answer()
    sender.append(RECORDS_PER_MESSAGE)
    assert len(sender.messages) == 6
    assert sender.dispatcher.held == RECORDS_PER_MESSAGE


def test_records_that_waited_through_a_pause_are_all_sent_after_it(sender: Sender) -> None:
    sender.append(RECORDS_PER_MESSAGE)
    sender.answer(NoRoute("no such topic"))
    sender.append(5 * RECORDS_PER_MESSAGE)
    sender.wait(PAUSE_MS)
    sender.answer()
    assert sender.records() == [RECORDS_PER_MESSAGE] * 6
    sender.answer()
    assert sender.dispatcher.held == 0


def test_error_of_the_send_itself_reaches_nobody(sender: Sender) -> None:
    sender.error = ClosedError("the producer is closed")
    sender.append(RECORDS_PER_MESSAGE)
    assert (sender.dispatcher.held, sender.dispatcher.dropped) == (0, RECORDS_PER_MESSAGE)


def test_flush_sends_what_waits_and_drops_it_if_the_topic_is_away(sender: Sender) -> None:
    sender.append(4)
    sender.dispatcher.flush(sender.now)
    assert sender.records() == [4]
    sender.answer(NoRoute("no such topic"))
    sender.append(4)
    sender.dispatcher.flush(sender.now)
    assert (sender.records(), sender.dispatcher.held, sender.dispatcher.dropped) == ([4], 0, 8)


def test_keys_that_do_not_fit_are_left_out_and_odd_texts_are_replaced(sender: Sender) -> None:
    sender.dispatcher.append(TraceRecord(kind=TraceKind.PUB, message_id="ID", keys="\ud800 a\x01b"), sender.now)
    sender.dispatcher.append(TraceRecord(kind=TraceKind.PUB, message_id="ID2", keys="k" * KEYS_BYTES_MAX), sender.now)
    sender.dispatcher.flush(sender.now)
    [message] = sender.messages
    assert list(message.keys) == ["ID", "?", "a", "b", "ID2"]
    assert decode_traces(message.body.decode()).records[0].keys == "? a b"
    assert sender.records() == [2]
