"""Parser of Java's properties files, the format of RocketMQ's settings.

    # a comment; lines that start with ! are comments too
    key=value        key:value        key value        white space around the separator is ignored
    key=one \\
        line         a backslash at the end joins the next line, whose leading white space is dropped
    \\u00e9 \\t \\n      escapes; a backslash before anything else is dropped

One difference from Java: trailing white space of a value is dropped, because it is invisible.
Source: the documentation of java.util.Properties.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from tandemq.errors import ConfigError

_BLANKS = " \t\f"
_SEPARATORS = "=:"
_HEXADECIMAL = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One setting. `line`: number of its first line, from 1."""

    key: str
    value: str
    line: int


def parse_properties(text: str) -> list[Property]:
    """Parse all settings of a text, in order; a key may occur more than once.

    Raises:
        ConfigError: a \\u escape is not followed by four hexadecimal digits; the text names the line.
    """
    return [_split(line, number) for number, line in _logical_lines(text)]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, text) of each line with a setting; continued lines are joined."""
    joined, start = "", 0
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for number, line in enumerate(lines, start=1):
        part = line.lstrip(_BLANKS)
        if not start:
            if not part or part[0] in "#!":
                continue
            start = number
        continued = (len(part) - len(part.rstrip("\\"))) % 2 == 1
        joined += part[:-1] if continued else part
        if not continued:
            yield start, joined
            joined, start = "", 0
    if start and joined:
        yield start, joined


def _split(line: str, number: int) -> Property:
    end = 0
    while end < len(line) and line[end] not in _BLANKS and line[end] not in _SEPARATORS:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANKS)
    if rest and rest[0] in _SEPARATORS:
        rest = rest[1:].lstrip(_BLANKS)
    return Property(_unescape(line[:end], number), _unescape(rest, number).rstrip(), number)


def _unescape(text: str, number: int) -> str:
    if "\\" not in text:
        return text
    pieces: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            pieces.append(character)
            continue
        escaped = next(characters, "")
        if escaped == "u":
            digits = "".join(next(characters, "") for _ in range(4))
            if not _HEXADECIMAL.fullmatch(digits):
                raise ConfigError(
                    f"line {number}: \\u{digits} is not a character",
                    hint="write four hexadecimal digits after \\u; a plain backslash is written twice",
                )
            pieces.append(chr(int(digits, 16)))
        else:
            pieces.append(_ESCAPES.get(escaped, escaped))
    return "".join(pieces)
