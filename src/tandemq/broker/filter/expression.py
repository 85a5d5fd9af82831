"""Parts of compiled SQL92 filter expressions: functions from the properties of a message to a value, and their code.

The functions say what an expression means. The code is the same for the compiled engine, which evaluates it over stored
properties and leaves to the functions what is unusual (docs/decisions/0018-sql-filters-in-the-engine.md).

Unknown (None) is neither true nor false: a message matches only if the whole is true. Checks at the time of compilation
are those of RocketMQ, so that an expression is refused here exactly if it is refused there.

Source: docs/reference/filters.md; RocketMQ ComparisonExpression, LogicExpression, UnaryExpression.
"""

from collections.abc import Callable, Mapping
from enum import Enum, auto
from operator import ge, gt, le, lt

from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.broker.filter.values import Int32, Int64, Value, compare, compare_as_numbers, negated
from tandemq.engine.program import LESS, MORE, NEGATES, PREFIX, SAME, SUFFIX, FilterCode, FilterOperation, ValueKind

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Value]
Condition = Callable[[Properties], bool | None]
_TEXT_MAX = 80
_KINDS: dict[type, ValueKind] = {
    type(None): ValueKind.UNKNOWN,
    bool: ValueKind.LOGICAL,
    str: ValueKind.TEXT,
    Int32: ValueKind.INT32,
    Int64: ValueKind.INT64,
    float: ValueKind.DOUBLE,
}


class Nature(Enum):
    """Kind of a part, as far as it is known when the expression is compiled."""

    CONSTANT = auto()
    PROPERTY = auto()
    CONDITION = auto()
    """True, false or unknown; TRUE, FALSE and NULL are constants all the same."""
    NUMBER = auto()
    """The negative of something."""


class Part:
    """A part of an expression."""

    __slots__ = ("code", "depth", "evaluate", "name", "nature", "text", "value")

    def __init__(
        self,
        nature: Nature,
        evaluate: Evaluate,
        code: FilterCode,
        text: str,
        *parts: "Part",
        value: Value = None,
        name: str = "",
    ) -> None:
        """Keep what the parts around it need.

        Args:
            nature: what the part is.
            evaluate: returns its value for the properties of a message.
            code: the same for the engine.
            text: the part for error messages.
            parts: what it consists of.
            value: of a constant.
            name: of a property.
        """
        self.nature = nature
        self.evaluate = evaluate
        self.code = code
        self.text = text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…"
        self.value = value
        self.name = name
        self.depth: int = 1 + max((part.depth for part in parts), default=0)

    @property
    def is_logical_constant(self) -> bool:
        """Whether it is TRUE, FALSE or NULL."""
        return self.nature is Nature.CONSTANT and (self.value is None or isinstance(self.value, bool))


def constant(value: Value, text: str) -> Part:
    """A constant."""
    code = FilterCode(FilterOperation.CONSTANT, option=_KINDS[type(value)], value=value)
    return Part(Nature.CONSTANT, lambda _: value, code, text, value=value)


def named_property(name: str) -> Part:
    """A property, unknown if the message has none of this name."""
    code = FilterCode(FilterOperation.PROPERTY, value=name)
    return Part(Nature.PROPERTY, lambda properties: properties.get(name), code, name, name=name)


def negative(part: Part) -> Part:
    """The negative of a number; unknown for everything else, also for properties."""
    evaluate = part.evaluate
    code = FilterCode(FilterOperation.NEGATIVE, (part.code,))
    return Part(Nature.NUMBER, lambda properties: negated(evaluate(properties)), code, f"-{part.text}", part)


def condition_of(part: Part) -> Condition:
    """Return a part as a condition.

    Raises:
        FilterInvalid: it is neither a condition nor a property.
    """
    evaluate = part.evaluate
    if part.nature is Nature.PROPERTY:
        return lambda properties: None if evaluate(properties) is None else False
    if part.nature is Nature.CONDITION or part.is_logical_constant:
        return evaluate  # type: ignore[return-value]
    raise FilterInvalid(f"{part.text} is neither true nor false")


def condition_code(part: Part) -> FilterCode:
    """Return the engine's code of a part as a condition, for parts that `condition_of` accepts."""
    return FilterCode(FilterOperation.TRUTH, (part.code,)) if part.nature is Nature.PROPERTY else part.code


def negation(part: Part) -> Part:
    """NOT. Raises as `condition_of`."""
    return _not(condition_of(part), condition_code(part), f"NOT {part.text}", part)


def _not(condition: Condition, code: FilterCode, text: str, *parts: Part) -> Part:
    def evaluate(properties: Properties) -> Value:
        found = condition(properties)
        return None if found is None else not found

    return Part(Nature.CONDITION, evaluate, FilterCode(FilterOperation.NOT, (code,)), text, *parts)


def joined(parts: list[Part], *, decides: bool) -> Part:
    """AND (`decides`: False) or OR (`decides`: True) of two conditions and more, evaluated from left to right.

    The first condition that decides ends the evaluation. Raises as `condition_of`.
    """
    conditions = [condition_of(part) for part in parts]

    def evaluate(properties: Properties) -> Value:
        is_known = True
        for condition in conditions:
            found = condition(properties)
            if found is None:
                is_known = False
            elif found is decides:
                return decides
        return (not decides) if is_known else None

    code = FilterCode(FilterOperation.ANY if decides else FilterOperation.ALL, tuple(map(condition_code, parts)))
    text = (" OR " if decides else " AND ").join(part.text for part in parts)
    return Part(Nature.CONDITION, evaluate, code, text, *parts)


def equal(left: Part, right: Part, *, negates: bool = False) -> Part:
    """`=`, or `<>` (`negates`).

    Raises:
        FilterInvalid: a side is NULL, or a boolean constant is compared with another kind of constant.
    """
    for part in (left, right):
        if part.nature is Nature.CONSTANT and part.value is None:
            raise FilterInvalid(f"{part.text} cannot be compared; write IS NULL")
    both_constant = left.nature is right.nature is Nature.CONSTANT
    if both_constant and left.is_logical_constant and not right.is_logical_constant:
        raise FilterInvalid(f"{left.text} cannot be compared with {right.text}")
    return _equal(left, right, negates=negates)


def is_null(part: Part, *, negates: bool = False) -> Part:
    """IS NULL, or IS NOT NULL (`negates`)."""
    return _equal(part, constant(None, "NULL"), negates=negates)


def _equal(left: Part, right: Part, *, negates: bool) -> Part:
    text = f"{left.text} {'<>' if negates else '='} {right.text}"
    code = FilterCode(FilterOperation.EQUAL, (left.code, right.code))
    direct = _of_property(left, right, negates=negates)
    if direct is not None:
        code = FilterCode(FilterOperation.NOT, (code,)) if negates else code
        return Part(Nature.CONDITION, direct, code, text, left, right)
    left_of, right_of = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        left_value, right_value = left_of(properties), right_of(properties)
        if left_value is None:
            return True if right_value is None else None
        return right_value is not None and compare(left_value, right_value) == 0

    if negates:
        return _not(evaluate, code, text, left, right)
    return Part(Nature.CONDITION, evaluate, code, text, left, right)


def _of_property(left: Part, right: Part, *, negates: bool) -> Evaluate | None:
    """Return a shorter way to compare a property with a text or with NULL, which most expressions do; else None."""
    name, wanted = left.name, right.value
    if left.nature is not Nature.PROPERTY or right.nature is not Nature.CONSTANT:
        return None
    if wanted is None:
        return (lambda properties: name in properties) if negates else (lambda properties: name not in properties)
    if not isinstance(wanted, str):
        return None

    def is_equal(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else value == wanted

    def is_other(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else value != wanted

    return is_other if negates else is_equal


_ORDERS: dict[str, Callable[[int, int], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_ORDER_OPTIONS = {"<": LESS, "<=": LESS | SAME, ">": MORE, ">=": MORE | SAME}


def ordered(left: Part, sign: str, right: Part) -> Part:
    """`<`, `<=`, `>` or `>=`.

    Raises:
        FilterInvalid: a side is a condition, or a constant that is no number.
    """
    for part in (left, right):
        is_number = isinstance(part.value, int | float) and not isinstance(part.value, bool)
        if part.nature is Nature.CONDITION or (part.nature is Nature.CONSTANT and not is_number):
            raise FilterInvalid(f"{part.text} cannot be compared by {sign}")
    left_of, right_of, order = left.evaluate, right.evaluate, _ORDERS[sign]

    def evaluate(properties: Properties) -> bool | None:
        left_value = left_of(properties)
        if left_value is None or (right_value := right_of(properties)) is None:
            return None
        if isinstance(left_value, str) and isinstance(right_value, str):
            return order(compare_as_numbers(left_value, right_value), 0)
        return order(compare(left_value, right_value), 0)

    code = FilterCode(FilterOperation.ORDER, (left.code, right.code), _ORDER_OPTIONS[sign])
    return Part(Nature.CONDITION, evaluate, code, f"{left.text} {sign} {right.text}", left, right)


def between(part: Part, low: Part, high: Part, *, negates: bool = False) -> Part:
    """BETWEEN, both ends included, or NOT BETWEEN (`negates`).

    Raises:
        FilterInvalid: as `ordered`, or the ends are constants in the wrong order.
    """
    if not negates and low.nature is high.nature is Nature.CONSTANT:
        if low.value is None or high.value is None:
            raise FilterInvalid("an end of BETWEEN is NULL")
        if compare_constants(high, low) < 0:
            raise FilterInvalid(f"BETWEEN {low.text} AND {high.text}: the first end is larger than the second")
    if negates:
        return joined([ordered(part, "<", low), ordered(part, ">", high)], decides=True)
    return joined([ordered(part, ">=", low), ordered(part, "<=", high)], decides=False)


def compare_constants(left: Part, right: Part) -> int:
    """Compare two constants.

    Raises:
        FilterInvalid: they cannot be compared.
    """
    try:
        return compare(left.value, right.value)
    except ValueError as error:
        raise FilterInvalid(str(error)) from error


def one_of(part: Part, texts: frozenset[str], *, negates: bool = False) -> Part:
    """IN, or NOT IN (`negates`).

    Raises:
        FilterInvalid: the left side is no property.
    """
    if part.nature is not Nature.PROPERTY:
        raise FilterInvalid(f"{part.text} IN: only a property can be on the left side")
    name = part.name

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in texts) is not negates

    wanted = (constant(text, "").code for text in sorted(texts))
    code = FilterCode(FilterOperation.IN, (part.code, *wanted), NEGATES if negates else 0)
    return Part(Nature.CONDITION, evaluate, code, f"{part.text} IN", part)


_CONTAINS: dict[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}
_CONTAINS_OPTIONS = {"CONTAINS": 0, "STARTSWITH": PREFIX, "ENDSWITH": SUFFIX}


def containing(part: Part, word: str, text: str, *, negates: bool = False) -> Part:
    """CONTAINS, STARTSWITH, ENDSWITH, or NOT and one of them (`negates`).

    False, never unknown, for what is no text and for an empty `text`; so is NOT.
    """
    value_of, contains = part.evaluate, _CONTAINS[word]

    def evaluate(properties: Properties) -> bool:
        value = value_of(properties)
        return bool(text) and isinstance(value, str) and contains(value, text) is not negates

    option = _CONTAINS_OPTIONS[word] | (NEGATES if negates else 0)
    code = FilterCode(FilterOperation.CONTAINS, (part.code, constant(text, "").code), option)
    return Part(Nature.CONDITION, evaluate, code, f"{part.text} {word}", part)
