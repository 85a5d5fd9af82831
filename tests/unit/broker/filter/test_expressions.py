"""SQL92 expressions: which compile, and which messages match; as measured on RocketMQ 4.9.8 and 5.3.3."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.broker.filter.parser import DEPTH_MAX, EXPRESSION_CHARACTERS_MAX, PARTS_MAX, compile_filter
from tandemq.broker.filter.tokens import FilterInvalid
from tests.spec import spec

PROPERTIES = {"a": "5", "d": "5.5", "s": "abc", "t": "true", "z": "05", "f": "5.0", "e": ""}
ERROR = "error"
REFUSED = "refused"

VALUES: dict[bool | str | None, tuple[str, ...]] = {
    True: (
        "a > 3",
        "a>3",
        "a >= 5",
        "a <= 5",
        "a < 6",
        "3 < a",
        "z = 5",
        "a = 5.0",
        "5 = a",
        "5.0 = f",
        "d > 5.0",
        "d < 5.6E0",
        "a > 4L",
        "a < 3000000000",
        "a > .5",
        "a > 4.",
        "a > -1",
        "a > - 1",
        "a > + 1",
        "a > - - 1",
        "-1 < a",
        "a = '5'",
        "'5' = a",
        "'5' = 5",
        "a <> '05'",
        "s = 'abc'",
        "s <> 'ab'",
        "s <> 'it''s'",
        "x = y",
        "s <> x",
        "a <> s",
        "t = TRUE",
        "t = true",
        "s = false",
        "a = FALSE",
        "t <> FALSE",
        "TRUE",
        "1 = 1",
        "1 = 1.0",
        "1 < 2L",
        "2147483648 > 2147483647",
        "TRUE = TRUE",
        "TRUE <> FALSE",
        "NOT t",
        "NOT s",
        "NOT (a > 9)",
        "NOT NOT TRUE",
        "NOT NOT (a > 3)",
        "NOT FALSE",
        "x IS NULL",
        "e IS NOT NULL",
        "a is not null",
        "(x = 5) IS NULL",
        "NULL IS NULL",
        "TAGS IS NULL",
        "s IN ('abc')",
        "s IN ('x', 'abc')",
        "s NOT IN ('x')",
        "e IN ('')",
        "a IN ('1','2','3','4','5','6')",
        "a BETWEEN 1 AND 9",
        "a BETWEEN 5 AND 5",
        "a NOT BETWEEN 6 AND 9",
        "d BETWEEN 1.0 AND 9.0",
        "a BETWEEN 1 AND 9.5",
        "5 BETWEEN 1 AND 9",
        "a BETWEEN -9 AND -(-9)",
        "a BETWEEN a AND f",
        "s CONTAINS 'b'",
        "s STARTSWITH 'ab'",
        "s ENDSWITH 'bc'",
        "s NOT CONTAINS 'x'",
        "s NOT STARTSWITH 'b'",
        "s not endswith 'b'",
        "a > 3 AND s = 'abc'",
        "a > 9 OR s = 'abc'",
        "a > 3 or s > 3",
        "a > 9 AND s = 'x' OR t = TRUE",
        "t = TRUE OR a > 9 AND s = 'x'",
        "x > 3 OR a > 3",
        "a > 3 OR x > 3",
        "(a > 3)",
        "((a) > (3))",
        "a = z OR a = 5",
        "a > 3 garbage",
        "a > 3 )",
        "a > 0x3",
        "a > 3 1 2 3 ;",
        "a > 3 --",
        "-- comment\na > 3",
        "a /* * ** */ > 3",
        "a\t>\r\n\f3",
        "a > 3 a > 9",
        "1 = 1 = TRUE",
        "a = 5 = TRUE",
        "(a > 3) = TRUE",
        "a IS NULL = FALSE",
        "a > d OR d > a",
        "d > a",
    ),
    False: (
        "a > 5",
        "not a = 9",
        "a = 6",
        "a = '05'",
        "s = x",
        "a >= d",
        "t",
        "s",
        "a + 1 > 3",
        "s LIKE 'a%'",
        "FALSE",
        "1 = 2",
        "1 = TRUE",
        "'x' = TRUE",
        "e IS NULL",
        "a IS NULL",
        "x IS NOT NULL",
        "x CONTAINS 'b'",
        "x NOT CONTAINS 'b'",
        "s CONTAINS ''",
        "s NOT CONTAINS ''",
        "s CONTAINS 'B'",
        "5 CONTAINS '5'",
        "a = 05",
        "a BETWEEN 6 AND 9",
        "a NOT BETWEEN 1 AND 9",
        "x = 5 AND FALSE",
        "FALSE AND s > 3",
        "s IN ('abcd')",
        "5 = x",
        "t = FALSE",
        "NOT TRUE",
        "t AND a > 3",
        "1 = 1 = FALSE",
        "TRUE = FALSE",
        "a = 5 AND NOT (z = 5)",
    ),
    None: (
        "x > 3",
        "x = 'y'",
        "x <> 'y'",
        "x = 5",
        "x NOT IN ('y')",
        "x IN ('y')",
        "x NOT BETWEEN 1 AND 5",
        "NOT (x > 3)",
        "x <> s",
        "S = 'abc' OR FALSE AND x = 1",
        "a > 3 AND x",
        "-a = -5",
        "-a < 5",
        "NULL",
        "x",
        "NOT x",
        "x AND a > 3",
        "a > 3 AND x > 3",
        "a > 9 OR x > 3",
        "x > y",
        "3 < x",
        "-'x' = 5",
        "A > 3",
        "NULL AND TRUE",
        "x = 5 = TRUE",
        "- TRUE = 5",
    ),
    ERROR: (
        "d > 5",
        "f = 5",
        "d BETWEEN 1 AND 9",
        "s = 5",
        "s <> 5",
        "a > e",
        "TRUE = t",
        "s > 3 OR a > 3",
        "e = 0",
        "s > 1.5",
        "a > s",
        "FALSE OR s > 3",
        "s > 3 AND FALSE",
        "'x' = 5",
        "a = 5 AND d = 5",
    ),
    REFUSED: (
        "",
        " ",
        "1",
        "'x'",
        "1.5",
        "-a",
        "-1",
        "a > 3 ;",
        "a > 3 NOT ;",
        "a NOT foo",
        "a > 3 NOT",
        "a == 5",
        "a * 2",
        "a != 5",
        'a = "5"',
        "a >",
        "> 3",
        "a = NULL",
        "a <> NULL",
        "NULL = a",
        "a < 'x'",
        "'x' < a",
        "a < TRUE",
        "a > NULL",
        "(a > 3) < 5",
        "5 > (a > 3)",
        "not a > 9",
        "a < 5 < 6",
        "TRUE = 5",
        "TRUE <> 'x'",
        "1 IN ('a')",
        "(a = 1) IN ('a')",
        "a IN (1)",
        "a IN ()",
        "a IN ('a'",
        "a IN ('a',)",
        "a BETWEEN 9 AND 1",
        "a BETWEEN 1",
        "a BETWEEN 1 OR 2",
        "a BETWEEN '1' AND '9'",
        "a BETWEEN NULL AND 1",
        "a NOT BETWEEN NULL AND 1",
        "a > 0.0",
        "a > 1e400",
        "a > 1e-400",
        "a > 99999999999999999999",
        "a > -9223372036854775808",
        "a IS foo",
        "a IS",
        "(a > 3",
        "()",
        "NOT",
        "NOT 1",
        "NOT 'x'",
        "a AND 1",
        "1 OR a",
        "a > 3 AND",
        "AND a",
        "s CONTAINS b",
        "s CONTAINS 5",
        "s = 'abc",
        "a > #",
        "é = 1",
        "a.b = 1 AND .",
        "- (a > 3)",
    ),
}


def stored(properties: dict[str, str]) -> bytes:
    """Return properties as records have them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


@spec("S05")
@pytest.mark.parametrize(
    ("expected", "text"), [(expected, text) for expected, texts in VALUES.items() for text in texts]
)
def test_value_of_an_expression(expected: bool | str | None, text: str) -> None:
    if expected == REFUSED:
        with pytest.raises(FilterInvalid):
            compile_filter(text)
        return
    compiled = compile_filter(text)
    assert compiled.matches(PROPERTIES) is (expected is True)
    if not re.search(r"\be\b", text):  # stored properties have values
        assert compiled.program.matches(stored(PROPERTIES)) is (expected is True)
    if expected == ERROR:
        with pytest.raises(ValueError, match=r"."):
            compiled._condition(PROPERTIES)
    else:
        assert compiled._condition(PROPERTIES) is expected


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("+5", True),
        ("5", True),
        ("٥", True),
        (" 5", False),
        ("5 ", False),
        ("5L", False),
        ("", False),
        ("1" * 5000, False),
        ("2147483648", False),
        ("-2147483648", True),
        ("1_0", False),
        ("0x5", False),
    ],
)
def test_texts_that_are_read_as_32_bits(text: str, matches: bool) -> None:
    compiled = compile_filter("a < 9999")
    assert compiled.matches({"a": text}) is matches
    assert compiled.program.matches(stored({"a": text})) is matches


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        (" 5.5\n", True),
        ("5d", True),
        ("5.F", True),
        (".5", True),
        ("1e3", True),
        ("-Infinity", True),
        ("NaN", False),
        ("Infinity", False),
        ("nan", False),
        ("inf", False),
        ("0x1p3", True),
        ("0x1.8P0d", True),
        ("0x1", False),
        ("1_0", False),
        ("1e", False),
        ("٥", False),
        ("9" * 500, False),
        ("0x1p-99999999", True),
        ("0x1p99999999", False),
        ("", False),
    ],
)
def test_texts_that_are_read_as_doubles(text: str, matches: bool) -> None:
    compiled = compile_filter("a < 9999.0")
    assert compiled.matches({"a": text}) is matches
    assert compiled.program.matches(stored({"a": text})) is matches


def test_doubles_are_ordered_as_in_java() -> None:
    assert compile_filter("a = b").matches({"a": "NaN", "b": "NaN"})
    assert compile_filter("a < b").matches({"a": "-0.0", "b": "0.0"})
    assert compile_filter("a > 1E308").matches({"a": "NaN"})


def test_names_are_those_that_the_expression_reads() -> None:
    assert compile_filter("a > 3 AND (b IN ('x') OR c$_1 IS NULL) garbage").names == {"a", "b", "c$_1"}


@spec("S06")
@pytest.mark.parametrize(
    "text",
    [
        "a = 1" + " " * EXPRESSION_CHARACTERS_MAX,
        " OR ".join(["a=1"] * (PARTS_MAX // 2 + 1)),
        "(" * (DEPTH_MAX + 1) + "a = 1" + ")" * (DEPTH_MAX + 1),
        "NOT " * (DEPTH_MAX + 1) + "a = 1",
        "a > " + "-" * 5000 + "1",
        "a = 1" + " = TRUE" * (DEPTH_MAX + 1),
        "a IN ('" + "','".join(map(str, range(PARTS_MAX + 1))) + "')",
        "'" * 5001,
    ],
)
def test_cost_of_an_expression_is_limited(text: str) -> None:
    with pytest.raises(FilterInvalid):
        compile_filter(text)


PIECES = [
    "a",
    "x",
    "5",
    "1.5",
    "'x'",
    "''",
    "(",
    ")",
    ",",
    "=",
    "<>",
    "<",
    ">=",
    "+",
    "-",
    "NOT",
    "AND",
    "OR",
    "IN",
    "BETWEEN",
    "IS",
    "NULL",
    "TRUE",
    "CONTAINS",
    "/*",
    "*/",
    "--",
    "\n",
    ";",
    "9" * 30,
]


@spec("S06")
@given(st.lists(st.sampled_from(PIECES), max_size=25).map(" ".join) | st.text(max_size=60))
def test_any_text_compiles_or_is_refused_and_never_matches_without_reason(text: str) -> None:
    with contextlib.suppress(FilterInvalid):
        assert compile_filter(text).matches(PROPERTIES) in (True, False)


@pytest.mark.parametrize("value", [None, "", "5", "abc"])
@pytest.mark.parametrize("wanted", ["''", "'5'", "'abc'", "NULL"])
def test_comparison_of_a_property_is_the_same_in_parentheses_and_without(value: str | None, wanted: str) -> None:
    """With a comparison around it, the general way is taken."""
    properties = {} if value is None else {"p": value}
    text = None if wanted == "NULL" else wanted[1:-1]
    is_signs = ("IS", "IS NOT") if text is None else ("=", "<>")
    for sign, expected in zip(is_signs, (value == text, value != text), strict=True):
        unknown = value is None and text is not None
        found = compile_filter(f"p {sign} {wanted}").matches(properties)
        assert found == (expected and not unknown), (value, sign, wanted)
        is_null = compile_filter(f"(p {sign} {wanted}) IS NULL").matches(properties)
        assert is_null == unknown
