"""JSON bodies of peers as structs, with the conversions of Java's fastjson, on which RocketMQ clients rely.

    field      accepted values                                     read as null
    integer    whole number, text of a whole number                null, "", "null"
    boolean    boolean, number (1 is true), "true" "1" "y" "t" …   null, "", "null"
    text       text, number, boolean, object, list                 null
    enum       name in any case, ordinal of Java's declaration     null, any other text
    list, map  list, map; null entries are skipped                 null

A null in a field that does not allow it counts as missing, so the default applies. Unknown fields are ignored. A value
that cannot be converted is an error that names the field.

Source: docs/internals/remoting.md, "JSON bodies"; fastjson 1.2 TypeUtils, IntegerCodec, BooleanCodec, StringCodec,
EnumDeserializer.
"""

import re
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError
from tandemq.model.java_types import ENUM

_T = TypeVar("_T")
_Coerce = Callable[[Any], Any]
_INTEGER = re.compile(r"([+-]?[0-9]{1,19})(\.0*)?\Z")
_NULLS = frozenset({"", "null", "NULL"})
_TRUE, _FALSE = frozenset({"true", "1", "y", "t"}), frozenset({"false", "0", "n", "f"})


def decode_body(body: bytes, kind: type[_T], what: str) -> _T:
    """Decode a JSON body, strict or in Java's dialect, as `kind`; `what` names it in errors.

    Raises:
        ProtocolError: malformed JSON, a required field is missing, or a value cannot be converted.
    """
    return convert(loads(body), kind, what)


def convert(value: Any, kind: type[_T], what: str) -> _T:
    """Convert a decoded JSON value to `kind`.

    Raises:
        ProtocolError: a required field is missing, or a value cannot be converted.
    """
    try:
        return msgspec.convert(_coercer(cast("Hashable", kind))(value), kind)
    except (msgspec.ValidationError, UnicodeEncodeError, RecursionError) as error:
        raise ProtocolError(f"{what}: {error}") from error


def integer(value: Any, what: str, default: int = 0) -> int:
    """Return a value as a 64-bit integer; `default` for null.

    Raises:
        ProtocolError: the value is not a 64-bit integer.
    """
    number = _integer(value)
    if number is None:
        return default
    if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
        shown = repr(value)[:32] if isinstance(value, (str, int, float)) else type(value).__name__
        raise ProtocolError(f"{what}: an integer is expected, not {shown}")
    return number


# Coercers return a value they cannot convert unchanged; the validation of the struct then raises and names the field.


@lru_cache(maxsize=256)
def _coercer(kind: Hashable) -> _Coerce:
    return _of(inspect.type_info(kind))


def _of(kind: inspect.Type) -> _Coerce:
    """Return the conversion for one type. A conversion returns None for null."""
    if isinstance(kind, inspect.Metadata):
        names = (kind.extra or {}).get(ENUM)
        return partial(_enum, names) if names else _of(kind.type)
    if isinstance(kind, inspect.UnionType):
        present = [present_kind for present_kind in kind.types if not isinstance(present_kind, inspect.NoneType)]
        return _of(present[0]) if len(present) == 1 else _same
    if isinstance(kind, inspect.StructType):
        fields = [(field.encode_name, _of(field.type), _takes_null(field.type)) for field in kind.fields]
        return partial(_struct, fields)
    if isinstance(kind, inspect.ListType):
        return partial(_list, _of(kind.item_type))
    if isinstance(kind, inspect.DictType):
        return partial(_map, _of(kind.value_type))
    return _SCALARS.get(type(kind), _same)


def _takes_null(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.Metadata):
        return _takes_null(kind.type)
    return isinstance(kind, inspect.AnyType) or (
        isinstance(kind, inspect.UnionType) and any(isinstance(member, inspect.NoneType) for member in kind.types)
    )


def _same(value: Any) -> Any:
    return value


def _integer(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        if value in _NULLS:
            return None
        found = _INTEGER.match(value)
        return value if found is None else int(found[1])
    return value


def _boolean(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return value == 1
    if isinstance(value, str):
        if value in _NULLS:
            return None
        word = value.lower()
        return word in _TRUE if word in _TRUE or word in _FALSE else value
    return value


def _text(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    try:
        return dumps(value).decode()
    except (RecursionError, UnicodeEncodeError):  # nested too deep, or a lone surrogate
        return value


def _enum(names: Sequence[str], value: Any) -> Any:
    if isinstance(value, str):
        return next((name for name in names if name == value.upper()), None)
    if isinstance(value, int) and not isinstance(value, bool):
        if not 0 <= value < len(names):
            raise msgspec.ValidationError(f"{value} is the position of no constant; 0 to {len(names) - 1} are")
        return names[value]
    return value


def _list(coerce: _Coerce, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return [item for item in map(coerce, value) if item is not None]


def _map(coerce: _Coerce, value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = ((key, coerce(item)) for key, item in value.items())
    return {key: item for key, item in found if item is not None}


def _struct(fields: Sequence[tuple[str, _Coerce, bool]], value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    found = {}
    for name, coerce, takes_null in fields:
        if name in value:
            item = coerce(value[name])
            if item is not None or takes_null:
                found[name] = item
    return found


_SCALARS: dict[type[inspect.Type], _Coerce] = {
    inspect.IntType: _integer,
    inspect.BoolType: _boolean,
    inspect.StrType: _text,
}
