"""The checks of POP consumption in `make chaos`, on histories made by hand."""

import pytest

from chaos.history import Place
from chaos.pops import PopHistory, is_returned

DUE = [f"a-{number}" for number in range(1, 6)]
NOW_S = 1_790_000_000.0


def good(*, elects: bool = True) -> PopHistory:
    """Five messages of a queue, popped and acknowledged; the third one came back first."""
    history = PopHistory(elects=elects)
    for offset, body in enumerate(DUE):
        history.received(body, Place(0, offset), NOW_S)
        if offset != 2:
            history.acknowledged(body, Place(0, offset))
    history.received(DUE[2], None, NOW_S)
    history.acknowledged(DUE[2], None)
    return history


def test_valid_history_passes_and_is_counted() -> None:
    history = good()
    assert history.missing(DUE) == set()
    assert history.check(DUE) == []
    assert history.report() == {"acknowledged": 5, "came_back": 1, "unknown": 0, "repeated": 0}


def test_message_that_is_never_acknowledged_is_a_violation() -> None:
    assert good().missing([*DUE, "a-6"]) == {"a-6"}
    (violation,) = good().check([*DUE, "a-6"])
    assert violation.startswith("I25: 1 never popped and acknowledged by chaos-pop, first ['a-6']")


def test_run_waits_for_a_message_that_was_sent_back_though_nobody_knows_whether_it_was_stored() -> None:
    history = good()
    history.received("b-1", Place(0, 5), NOW_S)
    assert history.awaited(DUE) == {"b-1"}
    assert history.check(DUE) == []
    history.received("b-1", None, NOW_S)
    history.acknowledged("b-1", None)
    assert history.awaited(DUE) == set()


@pytest.mark.parametrize("elects", [True, False])
def test_message_popped_again_after_its_acknowledgement_is_a_violation_in_groups_that_elect(*, elects: bool) -> None:
    history = good(elects=elects)
    history.received(DUE[0], Place(0, 0), NOW_S)
    history.acknowledged(DUE[0], Place(0, 0))
    assert [text[:4] for text in history.check(DUE)] == ["I25:"] * elects
    assert history.report()["repeated"] == 1


def test_message_whose_acknowledgement_was_not_confirmed_may_be_missing() -> None:
    history = good()
    history.unknown.add("a-6")
    assert history.missing([*DUE, "a-6"]) == set()
    assert history.report()["unknown"] == 1


def test_message_popped_again_before_its_acknowledgement_is_none() -> None:
    history = good()
    history.received(DUE[2], Place(0, 2), NOW_S)
    assert history.missing(DUE) == {DUE[2]}, "each delivery is to be acknowledged"
    history.acknowledged(DUE[2], Place(0, 2))
    assert history.check(DUE) == []


def test_two_messages_at_one_place_are_a_violation() -> None:
    history = good()
    history.received("a-9", Place(0, 2), NOW_S)
    assert any(text.startswith("I5:") for text in history.check(DUE))


def test_some_messages_are_sent_back() -> None:
    assert [number for number in range(1, 130) if is_returned(f"a-{number}")] == [41, 82, 123]
    assert not is_returned("first")
