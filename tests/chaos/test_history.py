"""The checks of `make chaos` on histories made by hand: a valid one passes, each kind of violation is found."""

from collections.abc import Callable

import pytest

from chaos.history import History, Place, Stored

Change = Callable[[History, list[Stored]], None]


def sent(history: History, body: str, place: Place) -> Stored:
    """Record a message that was sent, acknowledged and delivered; return its log record."""
    tag = body.partition("-")[0]
    history.sending(body, tag)
    history.answered(body, "SEND_OK", place, is_ok=True)
    history.received(body, tag, body, place)
    return Stored(place, body, tag, body, f"key of {body}")


def good() -> tuple[History, list[Stored]]:
    """Two producers, two queues; a failed send that is stored twice nevertheless; a redelivery; commits."""
    history = History()
    log = [sent(history, "a-1", Place(0, 0)), sent(history, "b-1", Place(0, 1)), sent(history, "a-2", Place(1, 0))]
    history.sending("a-3", "a")
    history.refused("OutcomeUnknown: no answer")
    log += [Stored(Place(0, 2), "a-3", "a", "a-3", "key of a-3"), Stored(Place(0, 3), "a-3", "a", "a-3", "key of a-3")]
    for place in (Place(0, 2), Place(0, 3)):
        history.received("a-3", "a", "a-3", place)
    log.append(sent(history, "a-4", Place(0, 4)))
    for body, place in (("b-1", Place(0, 1)), ("a-3", Place(0, 2))):
        history.received(body, body[0], body, place)
    for offset in (0, 2, 2, 5):
        history.offset_reported(0, offset, "broker-a-0", may_be_behind=False)
    history.offset_reported(0, 5, "broker-a-1", may_be_behind=False)
    return history, log


def violations_after(change: Change) -> list[str]:
    """Return the violations in the valid history after a change."""
    history, log = good()
    change(history, log)
    history.check_clients()
    history.check_log("broker-a-0", log)
    return history.violations


def test_valid_history_passes_and_is_counted() -> None:
    history, log = good()
    history.check_clients()
    history.check_log("broker-a-0", log)
    assert history.violations == []
    figures = history.report()
    assert (figures["acknowledged"], figures["delivered"], figures["duplicates"], figures["failed"]) == (4, 5, 3, 1)
    assert figures["statuses"] == {"SEND_OK": 4}


def never_delivered(history: History, log: list[Stored]) -> None:
    history.sending("a-5", "a")
    history.answered("a-5", "SEND_OK", Place(0, 5), is_ok=True)
    log.append(Stored(Place(0, 5), "a-5", "a", "a-5", "key"))


def acknowledged_elsewhere(history: History, _log: list[Stored]) -> None:
    history.answered("a-4", "SEND_OK", Place(0, 9), is_ok=True)


def acknowledged_at_one_place(history: History, _log: list[Stored]) -> None:
    history.sending("b-2", "b")
    history.answered("b-2", "SEND_OK", Place(0, 4), is_ok=True)


def put(place: Place, body: str, tag: str = "a", key: str = "") -> Change:
    """Add this record to the log."""
    return lambda _history, log: log.append(Stored(place, body, tag, key or body, f"key of {body}"))


def given(body: str, place: Place, tag: str = "a", key: str = "") -> Change:
    """Add this delivery."""
    return lambda history, _log: history.received(body, tag, key or body, place)


def cut_log(_history: History, log: list[Stored]) -> None:
    del log[0]


def cut_unacknowledged(_history: History, log: list[Stored]) -> None:
    """No acknowledged message is missing, but a delivered one."""
    del log[3]


def two_keys(_history: History, log: list[Stored]) -> None:
    log.append(Stored(Place(0, 5), "a-3", "a", "a-3", "another key"))


def sent_later_lies_before(history: History, log: list[Stored]) -> None:
    log += [sent(history, "b-3", Place(1, 2)), Stored(Place(1, 1), "b-4", "b", "b-4", "key")]
    history.sending("b-4", "b")
    history.answered("b-4", "SEND_OK", Place(1, 1), is_ok=True)


def offset_back(history: History, _log: list[Stored]) -> None:
    history.offset_reported(0, 4, "broker-a-1", may_be_behind=False)


def offset_back_at_one_broker(history: History, _log: list[Stored]) -> None:
    history.offset_reported(0, 4, "broker-a-1", may_be_behind=True)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (never_delivered, ["I1: 1 acknowledged and never delivered"]),
        (acknowledged_elsewhere, ["I1: 1 acknowledged and not in the log of broker-a-0, first [('a-4', (0, 9))]"]),
        (cut_log, ["I1: 1 acknowledged and not in the log", "I19: 1 delivered and not in the log"]),
        (cut_unacknowledged, ["I19: 1 delivered and not in the log of broker-a-0, first [('a-3', (0, 2))]"]),
        (given("a-99", Place(0, 5)), ["I2: 'a-99', given at (0, 5), was never sent", "I19"]),
        (given("a-2", Place(1, 0), tag="b"), ["I2: a-2, given at (1, 0), has tag 'b'"]),
        (given("a-2", Place(1, 0), key="k"), ["I2: a-2, given at (1, 0), has tag 'a' and key 'k'"]),
        (put(Place(0, 5), "c-1"), ["I2: 'c-1', in the log of broker-a-0 at (0, 5), was never sent"]),
        (put(Place(0, 5), "a-3", tag="x"), ["I2: a-3, in the log of broker-a-0"]),
        (two_keys, ["I3: a-3 is in the log of broker-a-0 under two unique keys"]),
        (sent_later_lies_before, ["I1: 1 acknowledged and never", "I4: b-4 was sent after b-3 and lies before it"]),
        (given("a-2", Place(0, 0)), ["I5: queue 0 offset 0 was a-1, then a-2", "I5: a-1 was acknowledged at", "I19"]),
        (acknowledged_at_one_place, ["I1", "I5: b-2 was acknowledged at", "I5: a-4 and b-2 were both", "I1"]),
        (put(Place(0, 0), "a-2"), ["I5: (0, 0) is a-1 and a-2 in the log"]),
        (offset_back, ["I7: queue 0 went back from 5 to 4 at broker-a-1"]),
        (offset_back_at_one_broker, ["I7: queue 0 went back from 5 to 4 at broker-a-1"]),
    ],
)
def test_violation_is_found(change: Change, found: list[str]) -> None:
    violations = violations_after(change)
    assert len(violations) == len(found), violations
    for text, start in zip(violations, found, strict=True):
        assert text.startswith(start)


def test_first_delivery_below_a_later_offset_is_out_of_order() -> None:
    history = History()
    for body, place in (("a-1", Place(0, 0)), ("a-3", Place(0, 2)), ("a-2", Place(0, 1))):
        history.sending(body, "a")
        history.received(body, "a", body, place)
    assert history.violations == ["I4: queue 0 gave offset 1 for the first time after 2"]


def test_slave_that_was_cut_off_may_start_with_older_offsets_and_is_counted() -> None:
    history = History()
    for offset, broker in ((7, "broker-a-0"), (5, "broker-a-1"), (6, "broker-a-1")):
        history.offset_reported(0, offset, broker, may_be_behind=True)
    assert history.violations == []
    assert history.offsets_behind == 1


def test_awaited_are_the_acknowledged_and_undelivered() -> None:
    history = History()
    sent(history, "a-1", Place(0, 0))
    history.sending("a-2", "a")
    history.answered("a-2", "SEND_OK", Place(0, 1), is_ok=True)
    history.sending("a-3", "a")
    history.answered("a-3", "FLUSH_SLAVE_TIMEOUT", Place(0, 2), is_ok=False)
    assert history.awaited == {"a-2"}


# Delayed and rejected messages.


def delayed(history: History, body: str, place: Place, *, due: float = 10.0) -> Stored:
    """Record a delayed message with its place among the delayed ones."""
    tag = body.partition("-")[0]
    history.sending(body, tag, due=due)
    history.answered(body, "SEND_OK", place, is_ok=True)
    return Stored(place, body, tag, body, f"key of {body}")


def test_delayed_message_delivered_when_due_passes() -> None:
    history = History()
    waiting = delayed(history, "a-1", Place(0, 7))
    assert history.awaited == {"a-1"}
    history.received("a-1", "a", "a-1", Place(2, 0), at=10.4)
    history.check_clients()
    history.check_aside("broker-a-0", [waiting], [])
    history.check_log("broker-a-0", [Stored(Place(2, 0), "a-1", "a", "a-1", "key of a-1")])
    assert history.violations == []
    assert (history.report()["delayed"], history.report()["latest_delayed_s"]) == (1, 0.4)


def test_delayed_message_delivered_early_is_found() -> None:
    history = History()
    delayed(history, "a-1", Place(0, 7))
    history.received("a-1", "a", "a-1", Place(2, 0), at=9.9)
    assert history.violations == ["I12: a-1 came 0.100 s before its time"]


def test_delayed_message_that_is_lost_is_found() -> None:
    history = History()
    delayed(history, "a-1", Place(0, 7))
    history.check_clients()
    history.check_aside("broker-a-0", [], [])
    assert [text.partition(",")[0] for text in history.violations] == [
        "I1: 1 acknowledged and never delivered",
        "I1: 1 acknowledged and not in the log of broker-a-0",
    ]


def test_redelivery_of_a_rejected_message_is_no_duplicate() -> None:
    history = History()
    record = sent(history, "a-1", Place(0, 0))
    history.sent_back("a-1")
    assert history.awaited == {"a-1"}
    history.received("a-1", "a", "a-1", Place(0, 0), is_retry=True)
    history.check_clients()
    history.check_log("broker-a-0", [record])
    history.check_aside("broker-a-0", [], [record])
    assert history.violations == []
    figures = history.report()
    assert (figures["rejected"], figures["redelivered"], figures["from_retry_topic"], figures["duplicates"]) == (
        1,
        1,
        1,
        0,
    )


def test_rejected_message_without_redelivery_is_found() -> None:
    history = History()
    sent(history, "a-1", Place(0, 0))
    history.sent_back("a-1")
    history.check_clients()
    assert history.violations == ["I13: 1 rejected and never delivered again, first ['a-1']"]


def test_place_of_the_retry_topic_has_one_message_and_the_log_has_it() -> None:
    history = History()
    for body, place in (("a-1", Place(0, 0)), ("a-2", Place(0, 1))):
        sent(history, body, place)
        history.sent_back(body)
        history.received(body, "a", body, Place(0, 5), is_retry=True)
    history.check_aside("broker-a-0", [], [])
    assert history.violations == [
        "I5: retry queue 0 offset 5 was a-1, then a-2",
        "I19: 1 delivered and not in the log of broker-a-0, first [('a-2', (0, 5))]",
    ]
