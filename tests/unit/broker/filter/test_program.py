"""Filters in the engine: over stored properties they match what the functions in Python match."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.broker.filter.parser import compile_filter
from tandemq.engine import NAME, FilterProgram
from tandemq.engine.program import FilterCode, FilterOperation, FilterStep, steps_of
from tandemq.model.message import decode_properties
from tests.fuzz.filters import expression, program_steps, properties
from tests.spec import spec


def matches_in_python(text: str, stored: bytes) -> bool:
    return compile_filter(text).matches(decode_properties(stored.decode("utf-8", "replace")))


@spec("S05")
@given(st.integers(0, 1 << 60))
def test_any_expression_matches_the_same_messages(seed: int) -> None:
    random = Random(seed)
    text = expression(random)
    program = compile_filter(text).program
    for _ in range(12):
        stored = properties(random)
        assert program.matches(stored) is matches_in_python(text, stored), (text, stored)


@given(st.text(max_size=9), st.text(max_size=9), st.binary(max_size=30))
def test_any_text(wanted: str, value: str, raw: bytes) -> None:
    quoted = wanted.replace("'", "''")
    stored = f"a\x01{value}\x02".encode() + raw
    for test in (f"a = '{quoted}'", f"a CONTAINS '{quoted}'", f"a IN ('{quoted}', 'x')", f"a NOT ENDSWITH '{quoted}'"):
        assert compile_filter(test).program.matches(stored) is matches_in_python(test, stored)


@given(st.floats().map(repr) | st.integers().map(str) | st.from_regex(r"[ +-]?[0-9.]{0,20}([eE][+-]?[0-9]{1,3})?[fd]?"))
def test_any_number(value: str) -> None:
    stored = f"a\x01{value}\x02b\x010.1\x02".encode()
    for test in ("a = 0.1", "a > 1", "a < b", "a >= -3000000000", "a = 123456789012345678", "a <> b"):
        assert compile_filter(test).program.matches(stored) is matches_in_python(test, stored), (test, value)


@pytest.mark.parametrize(
    ("stored", "matches"),
    [
        (b"a\x015", True),
        (b"a\x019\x02a\x015\x02", True),
        (b"a\x015\x02a\x019\x02", False),
        (b"a\x015\x02a\x01\x02", True),
        (b"\x02\x02\x01x\x02a\x015\x02", True),
        (b"a\x015\x01\x02", False),
        (b"A\x015\x02", False),
        (b"a", False),
        (b"", False),
    ],
)
def test_last_value_of_a_property_counts_and_pairs_without_a_name_or_a_value_are_dropped(
    stored: bytes, *, matches: bool
) -> None:
    assert compile_filter("a = '5'").program.matches(stored) is matches
    assert matches_in_python("a = '5'", stored) is matches


def test_many_names_of_all_lengths_are_found() -> None:
    names = [name * length for length in (1, 2, 62, 63, 64, 200) for name in ("a", "b", "m", "z")]
    program = compile_filter(" AND ".join(f"{name} = '{number}'" for number, name in enumerate(names))).program
    pairs = [f"{name}\x01{number}\x02" for number, name in enumerate(names)]
    assert program.matches("".join(pairs).encode())
    for left_out in range(len(pairs)):
        assert not program.matches("".join(pairs[:left_out] + pairs[left_out + 1 :]).encode())


def test_unusual_values_are_left_to_python() -> None:
    """Digits of other scripts, hexadecimal doubles and bytes that are not UTF-8, and nothing else."""
    asked: list[dict[str, str]] = []

    def matches(given: dict[str, str]) -> bool:
        asked.append(given)
        return False

    whole = compile_filter("a > 1 AND b = 'x'")
    program = FilterProgram(program_steps("a > 1 AND b = 'x'"), whole.parts, matches)
    for stored, is_unusual in (
        (b"a\x015\x02b\x01x\x02", False),
        ("a\x015\x02b\x01é\x02".encode(), False),
        ("a\x01٥\x02b\x01x\x02".encode(), True),
        (b"a\x015\x02b\x01\xff\x02", True),
        (b"a\x010\x02b\x01\xff\x02", False),
    ):
        asked.clear()
        program.matches(stored)
        assert bool(asked) is (is_unusual or NAME == "python"), stored


def test_steps_stand_behind_their_parts() -> None:
    code = FilterCode(
        FilterOperation.NOT,
        (
            FilterCode(
                FilterOperation.EQUAL,
                (FilterCode(FilterOperation.PROPERTY, value="a"), FilterCode(FilterOperation.CONSTANT)),
            ),
        ),
    )
    assert [(step.operation, step.parts) for step in steps_of(code)] == [(1, ()), (0, ()), (7, (0, 1)), (4, (2,))]


@pytest.mark.parametrize(
    "steps",
    [
        [],
        [FilterStep(4, 0, None, (0,))],
        [FilterStep(4, 0, None, (-1,))],
        [FilterStep(0, 0, None, ()), FilterStep(4, 0, None, ())],
        [FilterStep(0, 0, None, ()), FilterStep(7, 0, None, (0,))],
        [FilterStep(11, 0, None, ())],
        [FilterStep(-1, 0, None, ())],
    ],
)
def test_steps_that_are_no_program_are_refused(steps: list[FilterStep]) -> None:
    if NAME == "compiled":
        with pytest.raises(ValueError, match="step"):
            FilterProgram(steps, 1, lambda _: False)
