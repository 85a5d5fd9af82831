"""Refused peers: always counted, logged once per minute and address."""

from tandemq.refusals import ADDRESSES_MAX, Refusals


def test_first_refusal_of_an_address_is_logged_and_the_rest_of_the_minute_is_not() -> None:
    refusals = Refusals()
    assert [refusals.note("a", at) for at in (0, 5_000, 59_999)] == [1, 0, 0]
    assert refusals.note("b", 5_000) == 1, "each address has log lines of its own"
    assert refusals.note("a", 60_000) == 3
    assert refusals.count == 5


def test_addresses_beyond_the_limit_are_counted_only_until_a_minute_is_over() -> None:
    refusals = Refusals()
    told = [refusals.note(f"10.0.{n // 256}.{n % 256}", n) for n in range(ADDRESSES_MAX + 500)]
    assert told == [1] * ADDRESSES_MAX + [0] * 500
    assert refusals.note("late", 60_000) == 1
    assert refusals.note("later", 60_000) == 0
    assert refusals.count == ADDRESSES_MAX + 502
