"""The part of YAML that `plain_acl.yml` needs, and nothing else, so that each file is read in bounded time and memory.

    accounts:                    mappings and sequences in lines, by indentation
    - accessKey: shop            sequences may stand at the indentation of their key
      admin: false
      topicPerms: [a=PUB, "b"]   of scalars also in one line, in brackets or braces

Scalars are plain, or in single or double quotes. Anchors, aliases, tags, block scalars, values over several lines and
several documents are refused with their line. Errors show no values, since these may be secrets.

Source: docs/reference/access.md; YAML 1.1, which Java's reader (SnakeYAML) follows.
"""

import re
from typing import NamedTuple

from tandemq.errors import ConfigError

FILE_BYTES_MAX = 1 << 20
DEPTH_MAX = 8
_KEY = re.compile(r"([A-Za-z_][A-Za-z0-9_.-]*)[ ]*:(?=[ ]|$)")
_QUOTED = re.compile(r"'((?:[^']|'')*)'|\"((?:[^\"\\]|\\[\\\"/])*)\"")
_ESCAPE = re.compile(r"\\(.)")
_COMMENT = re.compile(r"[ ]*(?:[ ]#.*)?")
_FLOW_PLAIN = re.compile(r"[^\s,\[\]{}'\"#&*!|>%@`][^,\[\]{}#]*")
_INDICATORS = frozenset("&*!|>%@`[]{},#?'\"")
_SPECIAL = re.compile(
    r"~|null|yes|no|on|off|true|false|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[T ].*)?|[-+]?(?:0b[01_]+|0x[0-9a-f_]+"
    r"|[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|\.[0-9_]+(?:e[-+]?[0-9]+)?|\.inf|\.nan)",
    re.IGNORECASE,
)
"""What YAML takes for a value of another type than text."""
_DECIMAL = re.compile(r"0|[1-9][0-9]{0,17}")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)


class Scalar(NamedTuple):
    """One value."""

    line: int
    raw: str
    is_plain: bool

    @property
    def is_null(self) -> bool:
        """Whether there is no value."""
        return self.is_plain and self.raw in _NULLS

    def text(self) -> str:
        """Return it as a text.

        Raises:
            ConfigError: YAML takes it for a number, a date or another type, so that its text is not certain.
        """
        if self.is_plain and _SPECIAL.fullmatch(self.raw) and not _DECIMAL.fullmatch(self.raw):
            raise wrong(self.line, "YAML does not take this value for a text", "put it in quotes")
        return self.raw

    def boolean(self) -> bool:
        """Return it as true or false. Raises ConfigError."""
        found = _BOOLEANS.get(self.raw.lower())
        if found is None:
            raise wrong(self.line, "true or false is expected")
        return found


class Sequence(NamedTuple):
    """Values in order."""

    line: int
    items: list["Node"]


class Mapping(NamedTuple):
    """Values by key."""

    line: int
    entries: dict[str, "Node"]


Node = Scalar | Sequence | Mapping


class _Line(NamedTuple):
    number: int
    indent: int
    text: str


def wrong(line: int, what: str, hint: str = "") -> ConfigError:
    """Return an error about a line."""
    return ConfigError(f"line {line}: {what}", hint=hint)


def parse_yaml(data: bytes) -> Mapping:
    """Return the mapping in a file; an empty one if it has only comments.

    Raises:
        ConfigError: it is too large, malformed, or has parts of YAML that are not read here. The text names the line.
    """
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"it has {len(data)} bytes; the maximum is {FILE_BYTES_MAX}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise wrong(data.count(b"\n", 0, error.start) + 1, "it is not UTF-8 text") from error
    lines = _significant(text)
    if not lines:
        return Mapping(1, {})
    reader = _Reader(lines)
    found = reader.block(lines[0].indent, 1)
    if reader.present is not None:
        raise wrong(reader.present.number, "its indentation fits no line above")
    if not isinstance(found, Mapping):
        raise wrong(found.line, "lines `key: value` are expected")
    return found


def _significant(text: str) -> list[_Line]:
    """Return the lines that have more than a comment."""
    found: list[_Line] = []
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.rstrip(" \r")
        if not line.replace("\t", " ").isprintable():
            raise wrong(number, "it has unprintable characters")
        content = line.lstrip(" ")
        if not content or content.startswith("#") or (line == "---" and not found):
            continue
        if content.startswith("\t"):
            raise wrong(number, "it is indented with a tab", "use spaces")
        found.append(_Line(number, len(line) - len(content), content))
    return found


class _Reader:
    """Reads blocks of lines."""

    def __init__(self, lines: list[_Line]) -> None:
        self._lines = lines
        self._position = 0

    @property
    def present(self) -> _Line | None:
        return self._lines[self._position] if self._position < len(self._lines) else None

    def _at(self, indent: int) -> _Line | None:
        """Return the present line if it has an indentation."""
        line = self.present
        return line if line is not None and line.indent == indent else None

    def block(self, indent: int, depth: int) -> Node:
        """Read the mapping or sequence that begins at the present line."""
        line = self.present
        assert line is not None
        if depth > DEPTH_MAX:
            raise wrong(line.number, f"it is nested more than {DEPTH_MAX} times")
        return self._sequence(indent, depth) if _is_item(line) else self._mapping(indent, depth)

    def _sequence(self, indent: int, depth: int) -> Sequence:
        items: list[Node] = []
        first = self.present
        assert first is not None
        while (line := self._at(indent)) is not None and _is_item(line):
            rest = line.text[1:].lstrip(" ")
            within = _Line(line.number, indent + len(line.text) - len(rest), rest)
            if rest and (_KEY.match(rest) or _is_item(within)):
                self._lines[self._position] = within  # as if it stood in a line of its own
                items.append(self.block(within.indent, depth + 1))
            else:
                self._position += 1
                items.append(self._value(line.number, rest, indent, depth))
        return Sequence(first.number, items)

    def _mapping(self, indent: int, depth: int) -> Mapping:
        entries: dict[str, Node] = {}
        first = self.present
        assert first is not None
        while (line := self._at(indent)) is not None and not _is_item(line):
            found = _KEY.match(line.text)
            if found is None:
                raise wrong(line.number, "a line `key: value` is expected", "values over several lines are not read")
            key = found[1]
            if key in entries:
                raise wrong(line.number, f"{key} is there twice")
            self._position += 1
            rest = line.text[found.end() :].lstrip(" ")
            if _is_empty(rest) and (item := self._at(indent)) is not None and _is_item(item):
                entries[key] = self.block(indent, depth + 1)
            else:
                entries[key] = self._value(line.number, rest, indent, depth)
        return Mapping(first.number, entries)

    def _value(self, number: int, text: str, indent: int, depth: int) -> Node:
        """Return the value behind a key or a dash: in the same line, or the block below it."""
        following = self.present
        is_deeper = following is not None and following.indent > indent
        if following is not None and is_deeper and _is_empty(text):
            return self.block(following.indent, depth + 1)
        if following is not None and is_deeper:
            raise wrong(
                following.number, "its indentation fits no line above", "values over several lines are not read"
            )
        return _inline(number, text)


def _is_item(line: _Line) -> bool:
    return line.text == "-" or line.text.startswith("- ")


def _is_empty(text: str) -> bool:
    return not text or text.startswith("#")


def _inline(number: int, text: str) -> Node:
    """Return a value that is written in one line."""
    if _is_empty(text):
        return Scalar(number, "", is_plain=True)
    if text[0] in "[{":
        return _flow(number, text)
    if text[0] in "'\"":
        quoted, end = _quoted(number, text, 0)
        _refuse_rest(number, text, end)
        return quoted
    plain = text.partition(" #")[0].rstrip(" ")
    if (
        plain[0] in _INDICATORS
        or plain.startswith(("- ", ": "))
        or ": " in plain
        or plain.endswith(":")
        or "\t" in plain
    ):
        raise wrong(number, "this value has a meaning in YAML that is not read here", "put it in quotes")
    return Scalar(number, plain, is_plain=True)


def _quoted(number: int, text: str, begin: int) -> tuple[Scalar, int]:
    """Return the scalar in quotes at a position, and where it ends."""
    found = _QUOTED.match(text, begin)
    if found is None:
        raise wrong(number, 'a quote is not closed, or has an escape other than \\\\, \\" and \\/')
    single, double = found.groups()
    raw = single.replace("''", "'") if single is not None else _ESCAPE.sub(r"\1", double)
    return Scalar(number, raw, is_plain=False), found.end()


def _refuse_rest(number: int, text: str, end: int) -> None:
    if not _COMMENT.fullmatch(text, end):
        raise wrong(number, "there is more behind the end of the value")


def _flow(number: int, text: str) -> Node:
    """Return a sequence or mapping of scalars in brackets or braces."""
    is_mapping, close = text[0] == "{", "}" if text[0] == "{" else "]"
    items: list[Node] = []
    entries: dict[str, Node] = {}
    end = _skipped(text, 1)
    while text[end : end + 1] != close:
        key = _KEY.match(text, end) if is_mapping else None
        if is_mapping and (key is None or key[1] in entries):
            raise wrong(number, "braces have `key: value` pairs, each key once")
        end = _skipped(text, key.end() if key is not None else end)
        value, end = _flow_scalar(number, text, end)
        items.append(value)
        if key is not None:
            entries[key[1]] = value
        end = _skipped(text, end)
        if text[end : end + 1] == ",":
            end = _skipped(text, end + 1)
        elif text[end : end + 1] != close:
            raise wrong(number, f"the {close!r} is missing", "lists in brackets have one line, and texts only")
    _refuse_rest(number, text, end + 1)
    return Mapping(number, entries) if is_mapping else Sequence(number, items)


def _flow_scalar(number: int, text: str, begin: int) -> tuple[Scalar, int]:
    if text[begin : begin + 1] in ("'", '"'):
        return _quoted(number, text, begin)
    found = _FLOW_PLAIN.match(text, begin)
    if found is None or ": " in found[0]:
        raise wrong(number, "a value in brackets or braces is malformed", "put it in quotes")
    return Scalar(number, found[0].rstrip(" "), is_plain=True), found.end()


def _skipped(text: str, begin: int) -> int:
    while text[begin : begin + 1] == " ":
        begin += 1
    return begin
