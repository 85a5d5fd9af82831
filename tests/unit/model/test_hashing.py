"""Java's String.hashCode, against values that Java gives and against its definition."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.model.java_hash import cached_java_hash, java_hash, java_hashes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("TagA", 2598919),
        ("Hello, World!", 1498789909),
        ("polygenelubricants", -(1 << 31)),
        ("é", 233),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
    ],
)
def test_hash_is_javas(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert cached_java_hash(text) == expected


def by_definition(text: str) -> int:
    raw = text.encode("utf-16-be", "surrogatepass")
    units = [int.from_bytes(raw[i : i + 2]) for i in range(0, len(raw), 2)]
    value = 0
    for place, unit in enumerate(units):
        value += unit * pow(31, len(units) - 1 - place, 1 << 32)
    value %= 1 << 32
    return value - (1 << 32) if value >= 1 << 31 else value


@given(st.text(max_size=50))
def test_hash_follows_its_definition_for_any_text(text: str) -> None:
    assert java_hash(text) == by_definition(text)


@given(st.lists(st.text(min_size=1, max_size=50), max_size=9))
def test_hashes_of_many_texts_equal_single_hashes(texts: list[str]) -> None:
    assert java_hashes(texts) == [java_hash(text) for text in texts]


def test_hash_of_a_long_text_equals_its_single_hash() -> None:
    assert java_hashes(["xyz" * 30_000]) == [java_hash("xyz" * 30_000)]
