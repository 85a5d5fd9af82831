"""Tokens of SQL92 filter expressions.

Tokens are read one by one, as RocketMQ's parser reads them: what stands behind the last token that the parser looks at
is never judged.

Source: docs/reference/filters.md; RocketMQ SelectorParser.
"""

import re
from enum import Enum, auto
from typing import NamedTuple


class FilterInvalid(ValueError):
    """An expression that does not compile; the message says what is wrong, and where."""


class Kind(Enum):
    """Kinds of tokens."""

    WORD = auto()
    """A reserved word, in upper case."""
    NAME = auto()
    """Name of a property."""
    TEXT = auto()
    """A string constant, without its quotes."""
    WHOLE = auto()
    """A whole number."""
    FRACTION = auto()
    """A number with a point or an exponent."""
    SIGN = auto()
    """An operator, a parenthesis or a comma."""
    END = auto()


class Token(NamedTuple):
    """One token."""

    kind: Kind
    text: str
    position: int
    """Position in the expression, characters."""

    def __str__(self) -> str:
        """Return the token as error messages name it."""
        return "the end" if self.kind is Kind.END else f"'{self.text[:40]}' at character {self.position + 1}"


RESERVED = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH"}
)
_SKIPPED = re.compile(r"(?:[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*[^*]*\*+(?:[^*/][^*]*\*+)*/)*")
_TOKEN = re.compile(
    r"(?P<FRACTION>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)"
    r"|(?P<WHOLE>0|[1-9][0-9]*[lL]?)"
    r"|(?P<TEXT>'(?:''|[^'])*')"
    r"|(?P<NAME>[A-Za-z_$][A-Za-z0-9_$]*)"
    r"|(?P<SIGN><>|<=|>=|[=<>(),+-])"
)


class Tokens:
    """The tokens of an expression, with a look ahead of two."""

    def __init__(self, expression: str) -> None:
        """Begin before the first token."""
        self._expression = expression
        self._position = 0
        self._ahead: list[Token] = []

    def peek(self, distance: int = 0) -> Token:
        """Return the next token, or one behind it, without taking it.

        Raises:
            FilterInvalid: there is none, because of a character that begins no token.
        """
        while len(self._ahead) <= distance:
            self._ahead.append(self._read())
        return self._ahead[distance]

    def take(self) -> Token:
        """Take the next token. Raises as `peek`."""
        token = self.peek()
        del self._ahead[0]
        return token

    def is_next(self, texts: frozenset[str]) -> bool:
        """Whether the next token is one of these words and signs."""
        token = self._ahead[0] if self._ahead else self.peek()
        return token.text in texts and token.kind in (Kind.WORD, Kind.SIGN)

    def take_if(self, *texts: str) -> bool:
        """Take the next tokens if they are these words or signs."""
        for distance, text in enumerate(texts):
            token = self.peek(distance)
            if token.text != text or token.kind not in (Kind.WORD, Kind.SIGN):
                return False
        del self._ahead[: len(texts)]
        return True

    def expect(self, text: str) -> None:
        """Take a word or a sign.

        Raises:
            FilterInvalid: something else is next.
        """
        if not self.take_if(text):
            raise FilterInvalid(f"expected {text} instead of {self.peek()}")

    def _read(self) -> Token:
        skipped = _SKIPPED.match(self._expression, self._position)
        position = skipped.end() if skipped else self._position
        if position == len(self._expression):
            self._position = position
            return Token(Kind.END, "", position)
        found = _TOKEN.match(self._expression, position)
        if found is None:
            raise FilterInvalid(f"the character {self._expression[position]!r} at {position + 1} begins no token")
        self._position = found.end()
        kind, text = Kind[found.lastgroup or "END"], found.group()
        if kind is Kind.NAME and text.upper() in RESERVED:
            kind, text = Kind.WORD, text.upper()
        elif kind is Kind.TEXT:
            text = text[1:-1].replace("''", "'")
        return Token(kind, text, position)
