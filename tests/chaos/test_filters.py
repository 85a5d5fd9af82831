"""The checks of SQL92 filters in `make chaos`, on histories made by hand."""

from collections.abc import Callable

import pytest

from chaos.filters import EXPRESSION, FilterHistory, matches, properties_of
from chaos.history import Place, Stored
from tandemq.broker.filter.parser import compile_filter
from tests.spec import spec

Change = Callable[[FilterHistory, list[Stored]], None]
MATCHING, OTHER = [body for body in map("a-{}".format, range(1, 200)) if matches(body)][:5], "a-1"


def good() -> tuple[FilterHistory, list[Stored]]:
    """Five that match and one that does not, in a queue; the last one has not been delivered yet."""
    bodies = [*MATCHING[:2], OTHER, *MATCHING[2:]]
    log = [Stored(Place(0, offset), body, "a", body, f"key of {body}") for offset, body in enumerate(bodies)]
    history = FilterHistory()
    for record in log[:-1]:
        if record.body != OTHER:
            history.received(record.body, record.place)
    return history, log


def found(change: Change) -> list[str]:
    history, log = good()
    change(history, log)
    return history.check(record.body for record in log[:-1]) + history.check_log("broker-a-0", log)


def test_valid_history_passes_and_is_counted() -> None:
    history, log = good()
    assert not matches(OTHER)
    assert history.check([*MATCHING[:4], OTHER]) == history.check_log("broker-a-0", log) == []
    assert history.missing(MATCHING) == {MATCHING[4]}
    assert history.report() == {"delivered": 4, "places": 4}


def one_that_does_not_match_is_delivered(history: FilterHistory, _log: list[Stored]) -> None:
    history.received(OTHER, Place(0, 2))


def one_that_matches_is_not_delivered(history: FilterHistory, log: list[Stored]) -> None:
    history.bodies.discard(log[3].body)


def one_that_matches_is_passed_over(history: FilterHistory, log: list[Stored]) -> None:
    del history.delivered[log[3].place]


def delivered_is_not_in_the_log(_history: FilterHistory, log: list[Stored]) -> None:
    log[1] = log[1]._replace(body=MATCHING[3])


def place_names_two_messages(history: FilterHistory, log: list[Stored]) -> None:
    history.received(MATCHING[0], log[1].place)


@spec("S05")
@pytest.mark.parametrize(
    ("change", "text"),
    [
        (one_that_does_not_match_is_delivered, "I21: 'a-1', given at (0, 2), does not match"),
        (one_that_matches_is_not_delivered, "I21: 1 matching and never delivered"),
        (one_that_matches_is_passed_over, "I21: 1 matching and passed over, in the log of broker-a-0"),
        (delivered_is_not_in_the_log, "I19: 1 delivered by an expression, not in the log of broker-a-0"),
        (place_names_two_messages, "I5: (0, 1) was "),
    ],
)
def test_violation_is_found(change: Change, text: str) -> None:
    (violation,) = found(change)
    assert violation.startswith(text)


def test_messages_that_must_match_are_those_that_the_broker_selects() -> None:
    compiled = compile_filter(EXPRESSION)
    selected = {number for number in range(2_000) if compiled.matches(properties_of(f"a-{number}"))}
    assert selected == {number for number in range(2_000) if matches(f"a-{number}")}
    assert 400 < len(selected) < 1_000
