"""The checks of timed messages and recalls in `make chaos`, on logs made by hand."""

from collections.abc import Callable

import pytest

from chaos.history import History, Place, Stored
from chaos.timers import TimerFigures, check_log, delay_of, is_recalled, is_request
from tandemq.model.message import TIMER_DELETE, TIMER_OUT
from tests.spec import spec

Logs = dict[str, list[Stored]]
Change = Callable[[Logs], None]


def record(log_offset: int, body: str, unique_key: str = "", **properties: str) -> Stored:
    key = unique_key or f"key of {body}"
    return Stored(Place(0, log_offset), body, "a", body, key, log_offset, properties)


def waiting(log_offset: int, body: str) -> Stored:
    return record(log_offset, body, **{TIMER_OUT: "1000"})


def request(log_offset: int, body: str) -> Stored:
    return record(log_offset, "recall", "key of the request", **{TIMER_DELETE: f"Chaos+key of {body}"})


def good() -> Logs:
    """One sent twice and delivered twice, one recalled, one recalled in vain, one without a time."""
    return {
        "timers": [waiting(1, "a-23"), waiting(2, "a-23"), waiting(3, "a-46"), request(4, "a-46"), waiting(6, "a-69")],
        "messages": [record(5, "a-1"), waiting(7, "a-23"), waiting(8, "a-69"), waiting(9, "a-23")],
    }


def checked(logs: Logs, figures: TimerFigures | None = None) -> list[str]:
    return check_log("broker-a-0", logs["messages"], logs["timers"], figures)


def found(change: Change) -> list[str]:
    logs = good()
    change(logs)
    return checked(logs)


def test_valid_log_passes_and_is_counted() -> None:
    figures = TimerFigures()
    assert checked(good(), figures) == []
    assert (figures.waiting, figures.deliveries, figures.requests) == (4, 3, 1)
    logs = good()
    assert [is_request(one) for one in logs["timers"]] == [False, False, False, True, False]
    # Delivered before the request; and a copy that was stored behind it.
    logs["timers"][3] = request(10, "a-46")
    logs["messages"].append(waiting(9, "a-46"))
    assert checked(logs) == []
    logs["timers"].append(waiting(11, "a-46"))
    logs["messages"].append(waiting(12, "a-46"))
    assert checked(logs) == []


def delivered_twice(logs: Logs) -> None:
    logs["messages"].append(waiting(10, "a-69"))


def forgotten(logs: Logs) -> None:
    del logs["messages"][2]


def one_copy_is_forgotten(logs: Logs) -> None:
    del logs["messages"][1]


def from_nowhere(logs: Logs) -> None:
    logs["messages"].append(waiting(10, "a-92"))


def recalled_is_delivered(logs: Logs) -> None:
    logs["messages"].append(waiting(10, "a-46"))


@spec("S01", "S02")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (delivered_twice, "first (body, deliveries, copies) [('a-69', 2, 1)]"),
        (forgotten, "first (body, deliveries, copies) [('a-69', 0, 1)]"),
        (one_copy_is_forgotten, "first (body, deliveries, copies) [('a-23', 1, 2)]"),
        (from_nowhere, "first (body, deliveries, copies) [('a-92', 1, 0)]"),
        (recalled_is_delivered, "1 delivered in the log of broker-a-0 behind their recall, first ['a-46']"),
    ],
)
def test_violation_is_found(change: Change, text: str) -> None:
    (violation,) = found(change)
    assert violation.startswith("I12: 1 ")
    assert text in violation


def sent(delay_s: float) -> History:
    """A timed message that was acknowledged at 10 s."""
    history = History()
    history.sending("a-23", "a", due=10 + delay_s, is_timed=True)
    history.answered("a-23", "SEND_OK", Place(0, 4), is_ok=True)
    return history


def test_timed_message_is_awaited_unless_it_was_recalled_and_must_not_come_early() -> None:
    history = sent(2.0)
    assert history.awaited == {"a-23"}
    history.received("a-23", "a", "a-23", Place(1, 7), at=12.5)
    assert (history.awaited, history.violations, history.report()["latest_timed_s"]) == (set(), [], 0.5)
    history = sent(2.0)
    history.received("a-23", "a", "a-23", Place(1, 7), at=11.9)
    assert history.violations == ["I12: a-23 came 0.100 s before its time"]
    history = sent(2.0)
    history.recalled.add("a-23")
    assert history.awaited == set()
    history.check_aside("broker-a-0", [], [], [])
    assert history.violations == ["I1: 1 acknowledged and not in the log of broker-a-0, first [('a-23', (0, 4))]"]


def test_timed_message_whose_time_had_come_is_checked_as_an_ordinary_one() -> None:
    history = History()
    history.sending("a-23", "a", due=10, is_timed=True)
    history.answered("a-23", "SEND_OK", Place(2, 5), is_ok=True, was_due=True)
    assert history.acknowledged == {"a-23": Place(2, 5)}
    assert history.awaited == {"a-23"}


def test_every_delay_occurs_recalled_and_not() -> None:
    drawn = {(delay_of(number), is_recalled(number)) for number in range(1, 1_000) if delay_of(number)}
    assert drawn == {(delay, recalled) for delay in (1.0, 2.0, 3.0) for recalled in (True, False)}
