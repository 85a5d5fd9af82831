"""Long searches in two parts: each change is tested with a sample of the cases, `make soak` runs the others."""

from collections.abc import Iterable
from typing import Any

import pytest


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters of a test; all but every step-th of them carry the marker `slow`."""
    return [case if number % step == 0 else slow(case) for number, case in enumerate(cases)]


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Return the cases as parameters of a test; all but the first ones carry the marker `slow`."""
    return [case if number < count else slow(case) for number, case in enumerate(cases)]


def slow(case: Any) -> Any:
    """Return a case that runs in `make soak` only; a tuple has one value for each argument of the test."""
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
