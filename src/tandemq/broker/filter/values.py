"""Values of SQL92 filter expressions, compared as Java compares them.

A value is None (unknown), a boolean, a text, an `Int32`, an `Int64` or a float. Properties are texts; beside a number
they are read as a number of the same kind.

Source: docs/reference/filters.md; RocketMQ ComparisonExpression.
"""

import math
import re
from typing import Any

_INT32 = range(-(1 << 31), 1 << 31)
_INT64 = range(-(1 << 63), 1 << 63)
DOUBLE_MIN = 5e-324
_WHOLE = re.compile(r"[+-]?\d+")
_DOUBLE = re.compile(r"[+-]?(?:NaN|Infinity|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII)
_HEX_DOUBLE = re.compile(r"[+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?", re.ASCII)
_DIGITS_MAX = 400
"""Longest text that is read as a number: no double needs more to be exact, and reading costs the square of it."""


class Unequal(ValueError):
    """A comparison of values that cannot be compared: the message does not match."""


class Int32(int):
    """A whole number that fits into 32 bits."""


class Int64(int):
    """A whole number that fits into 64 bits, and not into 32."""


Value = None | bool | str | Int32 | Int64 | float


def whole(text: str) -> Value:
    """Return the value of a whole number, which may end in l or L.

    Raises:
        ValueError: it does not fit into 64 bits.
    """
    digits = text.rstrip("lL")
    if len(digits) > len(str(_INT64.stop)) or int(digits) not in _INT64:
        raise ValueError(f"{text[:40]} does not fit into 64 bits")
    number = int(digits)
    return Int32(number) if number in _INT32 else Int64(number)


def fraction(text: str) -> Value:
    """Return the value of a number with a point or an exponent.

    Raises:
        ValueError: it is smaller than the smallest positive double, or larger than the largest.
    """
    number = float(text)
    if not DOUBLE_MIN <= number < math.inf:
        raise ValueError(f"{text[:40]} is no positive double")
    return number


def negated(value: Value) -> Value:
    """Return the negative of a number; None for everything else."""
    if isinstance(value, Int32):
        return Int32(-value)
    if isinstance(value, Int64):
        return Int64(-value)
    return -value if isinstance(value, float) else None


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1, also for values of kinds that have no order (then -1).

    Raises:
        Unequal: a text is not what the other side asks for.
    """
    if type(left) is type(right):
        return _ordered(left, right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise Unequal("a boolean constant cannot be on the left side of a property")
        return -1
    if isinstance(left, str):
        if isinstance(right, bool):
            return _ordered(left.lower() == "true", right)
        return _ordered(_as(right, left), right)
    if isinstance(right, str):
        return _ordered(left, _as(left, right))
    if isinstance(right, bool):
        return -1
    return _ordered(left, right)


def compare_as_numbers(left: str, right: str) -> int:
    """Compare two properties by value. Raises as `compare`."""
    return _ordered(double_of(left), double_of(right))


def _as(number: Value, text: str) -> Value:
    """Read a text as a number of the kind of another one."""
    return (
        double_of(text)
        if isinstance(number, float)
        else _whole_of(text, _INT32 if isinstance(number, Int32) else _INT64)
    )


def _whole_of(text: str, allowed: range) -> int:
    if len(text) > _DIGITS_MAX or not _WHOLE.fullmatch(text) or (number := int(text)) not in allowed:
        raise Unequal(f"{text[:40]!r} is no whole number of {32 if allowed is _INT32 else 64} bits")
    return number


def double_of(text: str) -> float:
    """Return a text as a double, written as Java's Double.valueOf allows. Raises `Unequal`."""
    stripped = text.strip("".join(map(chr, range(33))))
    if len(stripped) <= _DIGITS_MAX:
        if _DOUBLE.fullmatch(stripped):
            return float(stripped if stripped.endswith(("NaN", "Infinity")) else stripped.rstrip("fFdD"))
        if _HEX_DOUBLE.fullmatch(stripped):
            try:
                return float.fromhex(stripped.rstrip("fFdD"))
            except OverflowError:
                return -math.inf if stripped.startswith("-") else math.inf
    raise Unequal(f"{text[:40]!r} is no number")


def _ordered(left: Any, right: Any) -> int:
    if isinstance(left, float) or isinstance(right, float):
        return _doubles_ordered(float(left), float(right))
    return int(left > right) - int(left < right)


def _doubles_ordered(left: float, right: float) -> int:
    """Order doubles as Double.compareTo: -0.0 before 0.0, NaN behind all others and equal to itself."""
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) - math.isnan(right)
    if left == right == 0.0:
        return int((math.copysign(1.0, left) - math.copysign(1.0, right)) / 2)
    return (left > right) - (left < right)
