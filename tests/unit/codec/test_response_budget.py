"""What a turn answers: bounded, first for those who ask for most."""

from tandemq.codec.remoting.response_budget import LINK_PARTS, TURN_BYTES_MAX, ResponseBudget


def test_link_that_had_much_gets_no_more_and_others_do() -> None:
    answered = ResponseBudget()
    answered.note(1, TURN_BYTES_MAX // (LINK_PARTS + 1) + LINK_PARTS)
    assert "ask again" in (answered.refusal(1) or "")
    assert answered.refusal(2) is None
    answered.begin_turn()
    assert answered.refusal(1) is None


def test_answers_of_a_turn_are_bounded_however_many_links_ask() -> None:
    answered, size, total = ResponseBudget(), 1 << 20, 0
    for link in range(1_000):
        while answered.refusal(link) is None:
            answered.note(link, size)
            total += size
    assert TURN_BYTES_MAX - size <= total <= TURN_BYTES_MAX + size


def test_single_answer_is_given_however_large_it_is() -> None:
    answered = ResponseBudget()
    assert answered.refusal(1) is None
    answered.note(1, 2 * TURN_BYTES_MAX)
    assert answered.refusal(2) is not None, "the turn is full"
