"""Reader and writer for the JSON dialect of RocketMQ's Java side (fastjson 1.x).

fastjson leaves numeric map keys unquoted, writes objects as map keys, and replaces repeated objects by
`{"$ref": path}`. `loads` accepts all of that and strict JSON: it quotes the keys and runs the strict decoder; what that
rejects, for instance single quotes, is read by the slower `_Reader`. `dumps` writes strict JSON, `dumps_java` the
dialect.

Source: docs/internals/remoting.md, "JSON bodies".
"""

import json
import re
from math import isfinite
from typing import Any

import msgspec

from tandemq.errors import ProtocolError

_strict = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
DIALECT_BYTES_MAX = 256 << 10
_STRING = rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_QUOTABLE = re.compile(
    _STRING + rb"|([{,][ \t\r\n]*+)(?:(-?\d++)|(\{(?:[^{}\"]++|" + _STRING + rb")*+\}))(?=[ \t\r\n]*+:)", re.DOTALL
)
"""Matches strings, which are skipped, and keys that are numbers or flat objects. Linear in the length of the text."""
_SPACE = " \t\r\n"
_DEPTH_MAX = 64
_COPIES_MAX = 200_000
"""Maximum number of values copied for references: nested references in few bytes could otherwise create billions."""


def loads(data: bytes, *, is_trusted: bool = False) -> Any:
    """Decode strict JSON or Java's dialect.

    Unquoted numeric keys become strings; an object used as a key becomes its own canonical JSON text
    (sorted names, no spaces), which `loads` reads again.

    Args:
        is_trusted: the data comes from a file or a broker. Otherwise the dialect is accepted in bodies of up to
            `DIALECT_BYTES_MAX` only, because reading it takes up to a microsecond per byte; strict JSON of any size is.

    Raises:
        ProtocolError: malformed, or the dialect or references with a nesting deeper than 64.
    """
    value: Any
    try:
        value = _strict(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    else:
        return _resolved(value, data, is_trusted=is_trusted) if b'"$ref"' in data else value
    if not is_trusted and len(data) > DIALECT_BYTES_MAX:
        raise ProtocolError(
            f"a JSON body of {len(data)} bytes is not strict JSON, which is required above {DIALECT_BYTES_MAX} bytes"
        )
    try:
        value = _strict(_QUOTABLE.sub(_quoted, data))
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        pass
    else:
        return _resolved(value, data, is_trusted=is_trusted) if b'"$ref"' in data else value
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"a JSON body is not UTF-8: {error}") from error
    reader = _Reader(text)
    value = reader.document()
    return _resolved(value, data, is_trusted=is_trusted) if reader.references else value


def _resolved(value: Any, data: bytes, *, is_trusted: bool) -> Any:
    if not is_trusted and len(data) > DIALECT_BYTES_MAX:
        raise ProtocolError(
            f"a JSON body of {len(data)} bytes has references, which are refused above {DIALECT_BYTES_MAX} bytes"
        )
    return _Resolver(value).resolve(value, 0)


def _quoted(found: re.Match[bytes]) -> bytes:
    """Return a matched key, a number or an object, as a quoted string, and a matched string unchanged."""
    before, number, key = found.groups()
    if number is not None:
        return b'%b"%b"' % (before, number)
    if key is not None:
        return before + _encode(_encode_sorted(_strict(key)).decode())
    return found[0]


def dumps(value: object) -> bytes:
    """Encode as strict, compact JSON; int keys are quoted."""
    return _encode(value)


def key_text(value: object) -> str:
    """Return the canonical JSON text of an object that is a map key."""
    return _encode_sorted(value).decode()


class Raw(str):
    """An encoded key or value, which `dumps_java` writes unchanged."""

    __slots__ = ()


def dumps_java(value: object) -> bytes:
    """Encode as fastjson does: int keys and `Raw` keys unquoted, no white space."""
    pieces: list[str] = []
    _write(value, pieces)
    return "".join(pieces).encode()


def _write(value: object, pieces: list[str]) -> None:
    if isinstance(value, dict):
        pieces.append("{")
        for position, (key, item) in enumerate(value.items()):
            if position:
                pieces.append(",")
            pieces.append(str(key) if isinstance(key, (int, Raw)) else json.dumps(key, ensure_ascii=False))
            pieces.append(":")
            _write(item, pieces)
        pieces.append("}")
    elif isinstance(value, (list, tuple)):
        pieces.append("[")
        for position, item in enumerate(value):
            if position:
                pieces.append(",")
            _write(item, pieces)
        pieces.append("]")
    elif isinstance(value, Raw):
        pieces.append(value)
    else:
        pieces.append(_encode(value).decode())


class _Reader:
    """Recursive-descent reader of the dialect."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.references = False
        self._within_key = False

    def document(self) -> Any:
        value = self._value(0)
        self._space()
        if self.position < len(self.text):
            raise self._error("text after the end")
        return value

    def _error(self, what: str) -> ProtocolError:
        around = self.text[max(0, self.position - 20) : self.position + 20]
        return ProtocolError(f"JSON body: {what} at character {self.position}, near {around!r}")

    def _space(self) -> None:
        while self.position < len(self.text) and self.text[self.position] in _SPACE:
            self.position += 1

    def _peek(self) -> str:
        self._space()
        if self.position >= len(self.text):
            raise self._error("it ends too early")
        return self.text[self.position]

    def _value(self, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise self._error(f"nested deeper than {_DEPTH_MAX}")
        first = self._peek()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in "\"'":
            return self._string(first)
        return self._literal()

    def _object(self, depth: int) -> dict[str, Any]:
        self.position += 1
        result: dict[str, Any] = {}
        while self._peek() != "}":
            key = self._key(depth)
            if self._peek() != ":":
                raise self._error("a colon is missing")
            self.position += 1
            result[key] = self._value(depth + 1)
            if self._peek() == ",":
                self.position += 1
            elif self._peek() != "}":
                raise self._error("a comma is missing")
        self.position += 1
        if "$ref" in result:
            self.references = True
        return result

    def _key(self, depth: int) -> str:
        first = self._peek()
        if first in "\"'":
            return self._string(first)
        if first == "{":
            return self._object_key(depth)
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in ":,}] \t\r\n":
            self.position += 1
        if start == self.position:
            raise self._error("a key is missing")
        return self.text[start : self.position]

    def _object_key(self, depth: int) -> str:
        if self._within_key:  # each level would double the length of the text, and no peer sends this
            raise self._error("an object within a key has an object as a key")
        self._within_key = True
        try:
            return key_text(self._value(depth + 1))
        except UnicodeEncodeError as error:
            raise self._error(f"a key is not text ({error})") from error
        finally:
            self._within_key = False

    def _array(self, depth: int) -> list[Any]:
        self.position += 1
        result: list[Any] = []
        while self._peek() != "]":
            result.append(self._value(depth + 1))
            if self._peek() == ",":
                self.position += 1
            elif self._peek() != "]":
                raise self._error("a comma is missing")
        self.position += 1
        return result

    def _string(self, quote: str) -> str:
        start = self.position + 1
        end = start
        while True:
            end = self.text.find(quote, end)
            if end < 0:
                raise self._error("a string does not end")
            backslashes = 0
            while self.text[end - 1 - backslashes] == "\\":
                backslashes += 1
            if backslashes % 2 == 0:
                break
            end += 1
        raw = self.text[start:end]
        self.position = end + 1
        if "\\" not in raw:
            return raw
        inner = raw
        if quote == "'":
            inner = raw.replace("\\'", "'").replace('\\"', '"').replace('"', '\\"')
        try:
            return str(json.loads(f'"{inner}"', strict=False))
        except ValueError as error:
            raise self._error(f"a bad escape ({error})") from error

    def _literal(self) -> Any:
        start = self.position
        while self.position < len(self.text) and self.text[self.position] not in ":,}] \t\r\n":
            self.position += 1
        word = self.text[start : self.position]
        try:
            value = json.loads(word)
        except ValueError as error:
            raise self._error(f"{word[:32]!r} is not a JSON value") from error
        if isinstance(value, float) and not isfinite(value):
            raise self._error(f"{word[:32]!r} is not a number")
        return value


class _Resolver:
    """Replaces references by copies of the values they refer to."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._copies = 0

    def resolve(self, value: Any, depth: int, *, is_copy: bool = False) -> Any:
        if depth > _DEPTH_MAX:
            raise ProtocolError(f"JSON with references nests deeper than {_DEPTH_MAX}")
        if is_copy:
            self._copies += 1
            if self._copies > _COPIES_MAX:
                raise ProtocolError(f"JSON references bring in more than {_COPIES_MAX} values")
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(value.get("$ref"), str):
                return self.resolve(_follow(value["$ref"], self._root), depth + 1, is_copy=True)
            return {key: self.resolve(item, depth + 1, is_copy=is_copy) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item, depth + 1, is_copy=is_copy) for item in value]
        return value


def _follow(path: str, root: Any) -> Any:
    """Return the value at a path such as `$.a.b[0]`; special characters in a name are escaped by a backslash."""
    if not path.startswith("$"):
        raise ProtocolError(f"JSON reference {path[:64]!r} is not absolute")
    value = root
    for step in _steps(path[1:]):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, ValueError, IndexError, TypeError) as error:
            raise ProtocolError(f"JSON reference {path[:64]!r} leads nowhere") from error
    return value


def _steps(path: str) -> list[str]:
    steps: list[str] = []
    word = ""
    characters = iter(path)
    for character in characters:
        if character == "\\":
            word += next(characters, "")
        elif character in ".[]":
            if word:
                steps.append(word)
            word = ""
        else:
            word += character
    return [*steps, word] if word else steps


def queue_key(topic: str, broker_name: str, queue_id: int) -> Raw:
    """Return a message queue as the key of a map, in the form that Java writes."""
    return Raw(key_text({"brokerName": broker_name, "queueId": queue_id, "topic": topic}))
