"""Rates, by both engines."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq import engine
from tandemq.engine import python

BUDGETS = sorted({engine.Budget, python.Budget}, key=lambda kind: kind.__module__)


@pytest.mark.parametrize("kind", BUDGETS)
def test_a_second_may_be_used_at_once_and_the_rest_waits(kind: Any) -> None:
    budget = kind("topic T", 10, 0)
    budget.wait_ms(5_000)
    budget.use(10, 1 << 30)
    assert budget.wait_ms(5_000) == 1
    assert budget.wait_ms(5_001) == 0
    budget.use(5, 0)
    assert budget.wait_ms(5_001) == 500
    assert budget.wait_ms(5_500) == 1
    assert budget.wait_ms(5_501) == 0


@pytest.mark.parametrize("kind", BUDGETS)
def test_bytes_beyond_a_second_are_a_debt(kind: Any) -> None:
    budget = kind("topic T", 0, 1_000)
    budget.wait_ms(0)
    budget.use(1, 4_000)
    assert budget.wait_ms(0) == 3_001
    assert budget.wait_ms(3_000) == 1
    assert budget.wait_ms(3_001) == 0


@pytest.mark.parametrize("kind", BUDGETS)
def test_unused_time_is_not_saved_up_and_a_clock_that_goes_back_gives_nothing(kind: Any) -> None:
    budget = kind("topic T", 10, 0)
    budget.wait_ms(1_000_000)
    budget.use(10, 0)
    assert budget.wait_ms(900_000) == 1
    budget = kind("topic T", 10, 0)
    budget.wait_ms(0)
    assert budget.wait_ms(1_000_000) == 0
    budget.use(11, 0)
    assert budget.wait_ms(1_000_000) == 101


@pytest.mark.parametrize("kind", BUDGETS)
def test_the_highest_rates_do_not_overflow(kind: Any) -> None:
    budget = kind("topic T", 10**12, 10**12)
    for now_ms in (0, 10**9, 10**15):
        assert budget.wait_ms(now_ms) == 0
        budget.use(10**6, 1 << 31)


@given(
    st.integers(0, 50),
    st.integers(0, 5_000),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 20), st.integers(0, 3_000)), max_size=40),
)
def test_both_engines_allow_the_same(messages: int, size: int, steps: list[tuple[int, int, int]]) -> None:
    results = []
    for kind in BUDGETS:
        budget, now_ms, waits = kind("x", messages, size), 0, []
        for passed, used, used_bytes in steps:
            now_ms += passed
            waits.append(budget.wait_ms(now_ms))
            if not waits[-1]:
                budget.use(used, used_bytes)
        results.append(waits)
    assert all(waits == results[0] for waits in results)
