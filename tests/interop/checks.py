"""Checks on what Java clients report, and the proof that each of them can fail.

A check is a function that raises AssertionError if a result is not as it must be. `prove` runs it on the real result
and then on damaged copies of it: each kind of damage that the check is there for must be noticed.
"""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tests.interop.driver import Event

Result = TypeVar("Result")
Events = list[Event]


def prove(check: Callable[[Result], None], result: Result, *damages: Callable[[Result], object]) -> None:
    """Run a check on a result, and on a copy per damage, which it must refuse.

    Args:
        damages: functions that change the copy in place; at least one.
    Raises:
        AssertionError: the result is wrong, or the check did not notice a damage.
    """
    assert damages, "a check that never failed proves nothing"
    check(result)
    for damage in damages:
        damaged = copy.deepcopy(result)
        damage(damaged)
        try:
            check(damaged)
        except AssertionError:
            continue
        raise AssertionError(f"the check did not notice {damage.__name__}")


def messages(events: Iterable[Event]) -> Events:
    """The deliveries among events."""
    return [event for event in events if event["event"] == "message"]


def sent(events: Iterable[Event]) -> Events:
    """The answers to sends among events."""
    return [event for event in events if event["event"] == "sent"]


def bodies(events: Iterable[Event]) -> list[str]:
    """The bodies of deliveries, in order, without padding."""
    return [str(event["body"]).rstrip(".") for event in messages(events)]


# ----------------------------------------------------------------------------------------------------------- checks


def all_sent_ok(count: int) -> Callable[[Events], None]:
    """`count` sends, each answered with SEND_OK, with an id and a place of its own."""

    def check(events: Events) -> None:
        answers = sent(events)
        assert not [event for event in events if event["event"] == "failed"], events
        assert [answer["status"] for answer in answers] == ["SEND_OK"] * count
        assert len({answer["msgId"] for answer in answers}) == count
        assert len({answer["offsetMsgId"] for answer in answers}) == count
        assert len({(answer["broker"], answer["queueId"], answer["queueOffset"]) for answer in answers}) == count

    return check


def exactly(expected: Sequence[str]) -> Callable[[Events], None]:
    """Each expected body delivered once, nothing else, in any order."""

    def check(events: Events) -> None:
        found, wanted = Counter(bodies(events)), Counter(expected)
        assert found == wanted, f"too often: {dict(found - wanted)}, missing: {dict(wanted - found)}"

    return check


def at_least_once(expected: Sequence[str]) -> Callable[[Events], None]:
    """Each expected body delivered, nothing else, in any order and perhaps repeatedly."""

    def check(events: Events) -> None:
        assert set(bodies(events)) == set(expected)

    return check


def in_queue_order(events: Events) -> None:
    """Per queue, deliveries come in the order of their offsets; a repetition may follow its first delivery."""
    last: dict[tuple[str, int], int] = {}
    assert messages(events), "nothing to judge"
    for event in messages(events):
        queue = (event["topic"], event["queueId"])
        assert event["queueOffset"] in {last.get(queue, -1), last.get(queue, -1) + 1}, event
        last[queue] = event["queueOffset"]


def agrees_with(answers: Events) -> Callable[[Events], None]:
    """What is read stands where the answers to the sends said it would, under the id that they gave."""
    where = {answer["msgId"]: (answer["queueId"], answer["queueOffset"]) for answer in answers}

    def check(events: Events) -> None:
        found = {event["msgId"]: (event["queueId"], event["queueOffset"]) for event in messages(events)}
        assert {key: found.get(key) for key in where} == where

    return check


_LOG_ENTRY = re.compile(
    r"^\d\d:\d\d:\d\d\.\d{3} (?:INFO|WARN|ERROR) .*\n?"
    r"(?:^(?:\s+at |\s+\.\.\.|Caused by|org\.apache\.rocketmq\.remoting\.exception\.|java\.).*\n?)*",
    re.MULTILINE,
)


def without_log(printed: str) -> str:
    """What a command printed, without what other clients of the same JVM log meanwhile."""
    return _LOG_ENTRY.sub("", printed)


def contains(*words: str) -> Callable[[list[str]], None]:
    """All words stand in one printed text (the only item of the list)."""

    def check(texts: list[str]) -> None:
        [text] = texts
        assert "Exception" not in text, text
        for word in words:
            assert word in text, f"{word!r} is not in:\n{text}"

    return check


# ---------------------------------------------------------------------------------------------------------- damages


def lose_one(events: Events) -> None:
    """The last delivery or answer never came."""
    events.remove([event for event in events if event["event"] in {"message", "sent"}][-1])


def repeat_one(events: Events) -> None:
    """The first delivery or answer came twice."""
    events.append(next(event for event in events if event["event"] in {"message", "sent"}))


def invent_one(events: Events) -> None:
    """A delivery that nobody sent."""
    events.append({**messages(events)[0], "body": "stranger-0", "msgId": "stranger"})


def change_body(events: Events) -> None:
    """A body was damaged."""
    messages(events)[-1]["body"] += "x"


def swap_two(events: Events) -> None:
    """Two deliveries of one queue changed places."""
    first = messages(events)[0]
    second = next(
        event
        for event in messages(events)[1:]
        if event["queueId"] == first["queueId"] and event["queueOffset"] != first["queueOffset"]
    )
    here, there = events.index(first), events.index(second)
    events[here], events[there] = second, first


def move_one(events: Events) -> None:
    """A message stands elsewhere than was said."""
    messages(events)[0]["queueOffset"] += 1


def fail_one(events: Events) -> None:
    """A send was answered with an error."""
    sent(events)[0]["status"] = "FLUSH_SLAVE_TIMEOUT"
