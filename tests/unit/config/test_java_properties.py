"""Parser of Java's properties files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.config.java_properties import Property, parse_properties
from tandemq.errors import ConfigError


def read(text: str) -> dict[str, str]:
    return {item.key: item.value for item in parse_properties(text)}


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a : b", "a", "b"),
        ("a b c", "a", "b c"),
        ("  \t a\t=\t b ", "a", "b"),
        ("a==b", "a", "=b"),
        ("a=", "a", ""),
        ("a", "a", ""),
        ("=b", "", "b"),
        ("a=b # no comment", "a", "b # no comment"),
        ("a\\ b\\=c=d", "a b=c", "d"),
        ("a=\\u00e9\\t\\n\\q\\\\", "a", "é\t\nq\\"),
        ("\\u0061=1", "a", "1"),
        ("path=C:\\\\store", "path", "C:\\store"),
    ],
)
def test_key_and_value_are_split_as_in_java(line: str, key: str, value: str) -> None:
    assert parse_properties(line) == [Property(key, value, 1)]


def test_comments_blank_lines_and_all_line_endings() -> None:
    text = "\ufeff# a\r\n! b\r\n\r\n  # c\rone=1\r\n\n two = 2 \n#three=3"
    assert parse_properties(text) == [Property("one", "1", 5), Property("two", "2", 7)]


def test_continued_lines_are_joined_under_their_first_line_number() -> None:
    text = "a=1,\\\n   2,\\\n\t3\nb=x\\\\\nc=\\"
    assert parse_properties(text) == [Property("a", "1,2,3", 1), Property("b", "x\\", 4), Property("c", "", 5)]


def test_comment_sign_on_a_continued_line_is_part_of_the_value() -> None:
    assert read("a=1\\\n#2") == {"a": "1#2"}


@pytest.mark.parametrize("text", ["\n\na=\\u12", "\n\na=\\uzzzz", "\n\na=\\u", "\n\na=\\u+123"])
def test_malformed_escape_is_reported_with_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"line 3.*four hexadecimal digits"):
        parse_properties(text)


@given(st.text(max_size=200))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        found = parse_properties(text)
    except ConfigError:
        return
    assert all(item.line >= 1 for item in found)


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        st.text(st.characters(codec="utf-8", categories=["L", "N"]), max_size=8),
        max_size=5,
    )
)
def test_plain_settings_are_parsed_as_written(settings: dict[str, str]) -> None:
    assert read("".join(f"{key}={value}\n" for key, value in settings.items())) == settings
