"""Response budget of a turn: limited in total and per connection."""

from tandemq.codec.remoting.response_budget import LINK_PARTS, TURN_BYTES_MAX, ResponseBudget


def test_connection_with_large_responses_is_refused_and_others_are_not() -> None:
    budget = ResponseBudget()
    budget.note(1, TURN_BYTES_MAX // (LINK_PARTS + 1) + LINK_PARTS)
    assert "ask again" in (budget.refusal(1) or "")
    assert budget.refusal(2) is None
    budget.begin_turn()
    assert budget.refusal(1) is None


def test_responses_of_a_turn_are_limited_for_any_number_of_connections() -> None:
    budget, size, total = ResponseBudget(), 1 << 20, 0
    for link in range(1_000):
        while budget.refusal(link) is None:
            budget.note(link, size)
            total += size
    assert TURN_BYTES_MAX - size <= total <= TURN_BYTES_MAX + size


def test_a_single_response_may_have_any_size() -> None:
    budget = ResponseBudget()
    assert budget.refusal(1) is None
    budget.note(1, 2 * TURN_BYTES_MAX)
    assert budget.refusal(2) is not None, "the turn is full"
