"""Traces read from a topic to which any client may write."""

from collections.abc import Iterator
from typing import Any, cast

import pytest

from tandemq.client.admin import traces
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.codec.message_trace import TraceKind, TraceRecord, encode_trace
from tandemq.model.message import StoredMessage
from tandemq.model.topic import TRACE_TOPIC
from tests.unit.console.fakes import stored

KEY = "order-1"


def sent(message_id: str | None, time_ms: int = 1_000, keys: str = KEY) -> str:
    return encode_trace(TraceRecord(kind=TraceKind.PUB, message_id=message_id, time_ms=time_ms, keys=keys, topic="T"))


class TraceTopic:
    """The messages of the trace topic; `asked`: the keys that were searched for."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.asked: list[str] = []

    def messages_by_key(self, _routes: Routes, _topic: str, key: str, *_: Any) -> Steps[list[StoredMessage]]:
        self.asked.append(key)
        yield from ()
        return [stored(TRACE_TOPIC, at, body) for at, body in enumerate(self.bodies) if key.encode() in body]

    def find(self, key: str = KEY) -> traces.FoundTraces:
        steps: Iterator[Any] = traces.message_traces(cast("Routes", None), key)
        try:
            next(steps)
        except StopIteration as end:
            found: traces.FoundTraces = end.value
            return found
        raise AssertionError("no broker is asked")


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> TraceTopic:
    def topic_route(_routes: Routes, _topic: str) -> Steps[None]:
        yield from ()

    found = TraceTopic()
    monkeypatch.setattr(traces, "messages_by_key", found.messages_by_key)
    monkeypatch.setattr(traces, "topic_route", topic_route)
    return found


def test_messages_of_a_key_are_found_with_their_lines_without_keys(topic: TraceTopic) -> None:
    topic.bodies = [(sent("A", 2_000) + sent("B")).encode(), sent("A", 3_000, keys="other").encode()]
    found = topic.find()
    assert [(one.message_id, [step.time_ms for step in one.steps]) for one in found.traces] == [
        ("B", [1_000]),
        ("A", [2_000, 3_000]),
    ]
    assert (found.is_cut, found.unreadable, topic.asked) == (False, 0, [KEY, "A", "B"])


def test_line_without_a_message_is_unreadable_and_hides_no_other(topic: TraceTopic) -> None:
    topic.bodies = [(sent(None) + sent("A")).encode()]
    found = topic.find()
    assert ([one.message_id for one in found.traces], found.unreadable) == (["A"], 1)


@pytest.mark.parametrize("number", [str(1 << 63), "-" + str((1 << 63) + 1), "9" * 20])
def test_number_beyond_64_bits_is_unreadable(topic: TraceTopic, number: str) -> None:
    topic.bodies = [sent("A", 111_111).replace("111111", number).encode() + sent("A").encode()]
    found = topic.find()
    assert ([step.time_ms for one in found.traces for step in one.steps], found.unreadable) == ([1_000], 1)


def test_traces_of_very_many_messages_are_cut(topic: TraceTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work grows with the lines, not with their square: as many as fit are each looked at a few times."""
    looked = 0
    trace = traces._trace

    def counting(message_id: str, lines: list[Any]) -> traces.MessageTrace:
        nonlocal looked
        looked += len(lines)
        return trace(message_id, lines)

    monkeypatch.setattr(traces, "_trace", counting)
    topic.bodies = ["".join([sent(f"M{number}") for number in range(traces.LINES_MAX + 5)]).encode()]
    found = topic.find()
    assert (len(found.traces), looked, found.is_cut) == (traces.LINES_MAX, traces.LINES_MAX, True)
    assert len(topic.asked) == 1 + traces.MESSAGES_MAX


def test_bodies_beyond_the_budget_of_a_search_are_not_read(topic: TraceTopic, monkeypatch: pytest.MonkeyPatch) -> None:
    line = sent("A").encode()
    monkeypatch.setattr(traces, "BODY_BYTES_MAX", 3 * len(line) + 7)
    topic.bodies = [sent("A", time_ms).encode() for time_ms in range(1_000, 1_006)]
    found = topic.find()
    assert ([step.time_ms for one in found.traces for step in one.steps], found.is_cut) == ([1_000, 1_001, 1_002], True)
    assert found.unreadable == 0
