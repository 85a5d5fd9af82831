"""SQL92 filters in the form that the compiled engine evaluates: steps, each with the numbers of those it needs.

The semantics are those of `tandemq.broker.filter.expression`, which builds the code.
"""

from enum import IntEnum
from typing import NamedTuple


class FilterOperation(IntEnum):
    """What a step does with the values of its parts; `engine/filters.pxi` has the same numbers."""

    CONSTANT = 0
    """`option`: its kind."""
    PROPERTY = 1
    """`value`: its name."""
    NEGATIVE = 2
    TRUTH = 3
    """A property as a condition: unknown or false."""
    NOT = 4
    ALL = 5
    ANY = 6
    EQUAL = 7
    ORDER = 8
    """`option`: a sum of LESS, SAME and MORE."""
    IN = 9
    """A property, then the texts; `option`: NEGATES or 0."""
    CONTAINS = 10
    """A value and a text; `option`: 0, PREFIX or SUFFIX, and NEGATES."""


class ValueKind(IntEnum):
    """Kinds of values."""

    UNKNOWN = 0
    LOGICAL = 1
    TEXT = 2
    INT32 = 3
    INT64 = 4
    DOUBLE = 5


LESS, SAME, MORE = 1, 2, 4
PREFIX, SUFFIX, NEGATES = 1, 2, 4


class FilterCode(NamedTuple):
    """A part of an expression."""

    operation: FilterOperation
    parts: "tuple[FilterCode, ...]" = ()
    option: int = 0
    value: bool | int | float | str | None = None


class FilterStep(NamedTuple):
    """A part of an expression, behind those that it consists of."""

    operation: int
    option: int
    value: bool | int | float | str | None
    parts: tuple[int, ...]


def steps_of(code: FilterCode) -> list[FilterStep]:
    """Return the steps of an expression; the last one is the whole."""
    steps: list[FilterStep] = []

    def add(part: FilterCode) -> int:
        numbers = tuple(map(add, part.parts))
        steps.append(FilterStep(int(part.operation), part.option, part.value, numbers))
        return len(steps) - 1

    add(code)
    return steps
