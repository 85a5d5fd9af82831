"""SQL92 expressions that compile, and stored properties, usual and unusual."""

from random import Random
from unittest.mock import patch

from tandemq.broker.filter.parser import compile_filter
from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.engine.program import FilterStep

NAMES = ("a", "b", "TAGS", "order_id", "x" * 70)
_TEXTS = ("", "x", "abc", "5", "true", "TRUE", "中文", "é", "it''s", "\ud800", "0.5")
_NUMBERS = (
    "0",
    "5",
    "05",
    "7L",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "0.5",
    "5.0",
    "1e3",
    ".5",
    "4.9E-324",
)
_VALUES = (
    "5",
    "-5",
    "+5",
    "05",
    "5.0",
    "5.5",
    "0.5",
    "-0.0",
    "0.0",
    "1e3",
    "1E400",
    "NaN",
    "-Infinity",
    "0x1p3",
    "5f",
    " 5 ",
    "2147483647",
    "2147483648",
    "-2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775809",
    "123456789012345",
    "1234567890123456",
    "0.1234567890123456789",
    "true",
    "True",
    "abc",
    "x",
    "中文",
    "é",
    "٥",
    "",
    "5\x01",
    "9" * 401,
    "0" * 400,
    "1_0",
    "e5",
    ".",
    "+",
)
_RAW = (b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"abc\xe4\xb8", b"5\xff")


def expression(random: Random) -> str:
    """Return an expression that compiles."""
    while True:
        text = _condition(random, random.randrange(4))
        try:
            compile_filter(text)
        except FilterInvalid:
            continue
        return text


def _condition(random: Random, depth: int) -> str:
    if depth and random.random() < 0.7:
        left, right = _condition(random, depth - 1), _condition(random, depth - 1)
        form = random.choice(
            ("({}) AND ({})", "({}) OR ({})", "NOT ({0})", "({}) = ({})", "({0}) IS NULL", "({0}) = TRUE")
        )
        return form.format(left, right)
    name, operand = random.choice(NAMES), _operand(random)
    text, other = (f"'{random.choice(_TEXTS)}'" for _ in range(2))
    negates = random.choice(("", "", "NOT "))
    return random.choice(
        (
            f"{_operand(random)} {random.choice(('=', '<>', '<', '<=', '>', '>='))} {operand}",
            f"{name} {random.choice(('=', '<>'))} {text}",
            f"{name} IS {negates}NULL",
            f"{name} {negates}IN ({text}, {other})",
            f"{_operand(random)} {negates}BETWEEN {_operand(random)} AND {operand}",
            f"{operand} {negates}{random.choice(('CONTAINS', 'STARTSWITH', 'ENDSWITH'))} {text}",
            random.choice((name, "TRUE", "FALSE", "NULL")),
        )
    )


def _operand(random: Random) -> str:
    kind = random.randrange(8)
    if kind < 4:
        return random.choice(NAMES)
    if kind < 6:
        return random.choice(("", "", "-", "- -")) + random.choice(_NUMBERS)
    return random.choice((f"'{random.choice(_TEXTS)}'", "TRUE", "FALSE", f"-{random.choice(NAMES)}", "+5"))


def program_steps(text: str) -> list[FilterStep]:
    """Return what the engine gets of an expression."""
    with patch("tandemq.broker.filter.parser.FilterProgram") as program:
        compile_filter(text)
    found: list[FilterStep] = program.call_args.args[0]
    return found


def properties(random: Random) -> bytes:
    """Return stored properties."""
    found = b""
    for name in random.choices((*NAMES, "other"), k=random.randrange(7)):
        raw = random.choice(_RAW) if random.random() < 0.1 else random.choice(_VALUES).encode()
        found += name.encode() + b"\x01" + raw + b"\x02"
    return found[:-1] if found and random.random() < 0.2 else found
