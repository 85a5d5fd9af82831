"""Parser of SQL92 filter expressions.

    or         := and ( OR and )*
    and        := equality ( AND equality )*
    equality   := comparison ( '=' comparison | '<>' comparison | IS [NOT] NULL )*
    comparison := unary ( ('>' | '>=' | '<' | '<=') unary | [NOT] BETWEEN unary AND unary | [NOT] IN '(' texts ')'
                        | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text )*
    unary      := '+' unary | '-' unary | NOT unary | primary
    primary    := text | number | TRUE | FALSE | NULL | name | '(' or ')'

As in RocketMQ, what stands behind a complete expression is ignored if it begins with a token.

Source: docs/reference/filters.md; RocketMQ SelectorParser.
"""

from collections.abc import Callable
from functools import partial

from tandemq.broker.filter.expression import (
    Condition,
    Part,
    Properties,
    between,
    condition_code,
    condition_of,
    constant,
    containing,
    equal,
    is_null,
    joined,
    named_property,
    negation,
    negative,
    one_of,
    ordered,
)
from tandemq.broker.filter.tokens import FilterInvalid, Kind, Tokens
from tandemq.broker.filter.values import Value, fraction, whole
from tandemq.engine import FilterProgram
from tandemq.engine.program import FilterCode, steps_of

EXPRESSION_CHARACTERS_MAX = 16 * 1024
PARTS_MAX = 1000
"""Maximum number of constants and properties: the cost of one evaluation is bounded by it."""
DEPTH_MAX = 64
_LOGICAL: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_SUBSTRING = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_BEFORE_OPERAND = frozenset({"+", "-", "NOT", "("})
_EQUALITY = frozenset({"=", "<>", "IS"})
_COMPARISON = frozenset({">=", "<=", ">", "<", "NOT", "BETWEEN", "IN", *_SUBSTRING})


class SqlFilter:
    """A compiled expression."""

    __slots__ = ("_condition", "names", "parts", "program", "text")

    def __init__(self, text: str, condition: Condition, code: FilterCode, names: frozenset[str], parts: int) -> None:
        """Keep the condition.

        Args:
            text: the expression.
            condition: returns whether properties match, or None if that is unknown.
            code: the same for the engine.
            names: properties that the expression reads.
            parts: number of its constants and properties, which its cost grows with.
        """
        self.text = text
        self._condition = condition
        self.names = names
        self.parts = parts
        self.program = FilterProgram(steps_of(code), parts, partial(_matches, condition))
        """The engine's filter, over stored properties."""

    def matches(self, properties: Properties) -> bool:
        """Return whether a message matches. Unknown is no match, nor is a value that cannot be compared."""
        return _matches(self._condition, properties)


def _matches(condition: Condition, properties: Properties) -> bool:
    try:
        return condition(properties) is True
    except ValueError:
        return False


def compile_filter(expression: str) -> SqlFilter:
    """Compile an expression.

    Raises:
        FilterInvalid: it is not valid, too long, or nested too deeply.
    """
    if len(expression) > EXPRESSION_CHARACTERS_MAX:
        raise FilterInvalid(
            f"the expression has {len(expression)} characters, at most {EXPRESSION_CHARACTERS_MAX} are allowed"
        )
    parser = _Parser(Tokens(expression))
    selector = parser.disjunction()
    condition = condition_of(selector)
    return SqlFilter(expression, condition, condition_code(selector), frozenset(parser.names), parser.parts)


class _Parser:
    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._depth = 0
        self.names: set[str] = set()
        self.parts = 0

    def disjunction(self) -> Part:
        parts = self._list("OR", self._conjunction)
        return parts[0] if len(parts) == 1 else joined(parts, decides=True)

    def _conjunction(self) -> Part:
        parts = self._list("AND", self._equality)
        return parts[0] if len(parts) == 1 else joined(parts, decides=False)

    def _list(self, word: str, parse: Callable[[], Part]) -> list[Part]:
        parts = [parse()]
        while self._tokens.take_if(word):
            parts.append(parse())
        return parts

    def _equality(self) -> Part:
        left = self._comparison()
        tokens = self._tokens
        while tokens.is_next(_EQUALITY):
            if tokens.take_if("="):
                left = equal(left, self._comparison())
            elif tokens.take_if("<>"):
                left = equal(left, self._comparison(), negates=True)
            else:
                tokens.expect("IS")
                negates = tokens.take_if("NOT")
                tokens.expect("NULL")
                left = is_null(left, negates=negates)
            self._check_depth(left.depth)
        return left

    def _comparison(self) -> Part:
        left = self._unary()
        while self._tokens.is_next(_COMPARISON):
            left = self._comparison_with(left)
            self._check_depth(left.depth)
        return left

    def _comparison_with(self, left: Part) -> Part:
        tokens = self._tokens
        for sign in (">=", "<=", ">", "<"):
            if tokens.take_if(sign):
                return ordered(left, sign, self._unary())
        negates = tokens.take_if("NOT")
        for word in ("BETWEEN", "IN", *_SUBSTRING):
            if tokens.take_if(word):
                return self._tested(left, word, negates=negates)
        raise FilterInvalid(f"expected BETWEEN, IN, {', '.join(_SUBSTRING)} behind NOT instead of {tokens.peek()}")

    def _tested(self, left: Part, word: str, *, negates: bool) -> Part:
        """Parse what follows BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH."""
        tokens = self._tokens
        if word == "BETWEEN":
            low = self._unary()
            tokens.expect("AND")
            return between(left, low, self._unary(), negates=negates)
        if word in _SUBSTRING:
            return containing(left, word, self._text(), negates=negates)
        tokens.expect("(")
        texts = [self._text()]
        while tokens.take_if(","):
            texts.append(self._text())
        tokens.expect(")")
        return one_of(left, frozenset(texts), negates=negates)

    def _unary(self) -> Part:
        tokens = self._tokens
        if not tokens.is_next(_BEFORE_OPERAND):
            self._check_depth(self._depth + 1)
            return self._primary()
        self._depth += 1
        self._check_depth(self._depth)
        try:
            if tokens.take_if("+"):
                return self._unary()
            if tokens.take_if("-"):
                return negative(self._unary())
            if tokens.take_if("NOT"):
                return negation(self._unary())
            tokens.expect("(")
            inner = self.disjunction()
            tokens.expect(")")
            return inner
        finally:
            self._depth -= 1

    def _primary(self) -> Part:
        token = self._tokens.take()
        self._count_part()
        try:
            if token.kind is Kind.NAME:
                self.names.add(token.text)
                return named_property(token.text)
            if token.kind is Kind.TEXT:
                return constant(token.text, f"'{token.text[:40]}'")
            if token.kind is Kind.WHOLE:
                return constant(whole(token.text), token.text[:40])
            if token.kind is Kind.FRACTION:
                return constant(fraction(token.text), token.text[:40])
        except ValueError as error:
            raise FilterInvalid(str(error)) from error
        if token.kind is Kind.WORD and token.text in _LOGICAL:
            return constant(_LOGICAL[token.text], token.text)
        raise FilterInvalid(f"expected a property or a constant instead of {token}")

    def _text(self) -> str:
        token = self._tokens.take()
        if token.kind is not Kind.TEXT:
            raise FilterInvalid(f"expected a string constant instead of {token}")
        self._count_part()
        return token.text

    def _count_part(self) -> None:
        self.parts += 1
        if self.parts > PARTS_MAX:
            raise FilterInvalid(f"the expression has more than {PARTS_MAX} constants and properties")

    def _check_depth(self, depth: int) -> None:
        if depth > DEPTH_MAX:
            raise FilterInvalid(f"the expression is nested deeper than {DEPTH_MAX}")
