"""Headers of commands, in JSON and in binary form.

Binary form:

    code 2 · language 1 · version 2 · opaque 4 · flag 4 · remark length 4 · remark · fields length 4 · fields
    field: key length 2 · key · value length 4 · value

Source: docs/internals/remoting.md, "header"; RocketMQ RocketMQSerializable.
"""

from struct import Struct
from struct import error as StructError
from typing import Annotated

import msgspec

from tandemq.codec.remoting.bodies import convert
from tandemq.errors import ProtocolError
from tandemq.model.command import Command
from tandemq.model.java_types import ENUM, Int32

FORM_JSON = 0
FORM_BINARY = 1
LANGUAGES = (
    "JAVA",
    "CPP",
    "DOTNET",
    "PYTHON",
    "DELPHI",
    "ERLANG",
    "RUBY",
    "OTHER",
    "HTTP",
    "GO",
    "PHP",
    "OMS",
    "RUST",
    "NODE_JS",
)
_LANGUAGE_CODES = {name: code for code, name in enumerate(LANGUAGES)}
_FIXED = Struct(">hBhiii")
_LENGTH = Struct(">i")
_SHORT = Struct(">H")
UNKNOWN_LANGUAGE = "OTHER"
_CODE_0 = b'{"code":0,'

_Scalar = str | int | float | bool | None


class _JsonHeader(msgspec.Struct, gc=False):
    code: Int32
    flag: Int32 = 0
    opaque: Int32 = 0
    version: Int32 = 0
    remark: str | None = None
    language: str | None = None
    extFields: dict[str, _Scalar] | None = None  # noqa: N815  # the name on the wire


class _PlainHeader(_JsonHeader, gc=False):
    """A header whose fields are all text, as clients and brokers write them."""

    extFields: dict[str, str] | None = None  # type: ignore[assignment]  # noqa: N815


class _UnusualHeader(_JsonHeader, gc=False):
    """A header that needs the conversions of `codec.remoting.bodies`: null for a number, a language as its ordinal."""

    language: Annotated[str | None, msgspec.Meta(extra={ENUM: LANGUAGES})] = None
    extFields: dict[str, str] | None = None  # type: ignore[assignment]  # noqa: N815


_decode_plain = msgspec.json.Decoder(_PlainHeader, strict=False).decode
_decode_json = msgspec.json.Decoder(_JsonHeader, strict=False).decode
_encode_json = msgspec.json.Encoder().encode


def decode_header(form: int, header: bytes, body: bytes) -> Command:
    """Decode a header and return the command with its body.

    Raises:
        ProtocolError: the form is unknown, or the header is malformed.
    """
    try:
        if form == FORM_JSON:
            return _from_json(header, body)
        if form == FORM_BINARY:
            return _from_binary(header, body)
    except (msgspec.DecodeError, StructError, UnicodeDecodeError, IndexError, RecursionError) as error:
        raise ProtocolError(f"unreadable header: {error}") from error
    raise ProtocolError(f"unknown header form {form}; 0 is JSON, 1 is binary")


def encode_header(command: Command) -> bytes:
    """Encode the header of a command, in the form given by `command.binary`."""
    return _to_binary(command) if command.binary else _to_json(command)


def with_code(form: int, header: bytes, code: int) -> bytes:
    """Return the header of a response with code 0, as `encode_header` writes it, with another code."""
    if form == FORM_BINARY:
        return _SHORT.pack(code) + header[2:]
    assert header.startswith(_CODE_0), header
    return b'{"code":%d,' % code + header[len(_CODE_0) :]


def _from_json(header: bytes, body: bytes) -> Command:
    raw: _JsonHeader
    try:
        raw = _decode_plain(header)
        fields = raw.extFields or {}
    except msgspec.ValidationError:
        raw = _from_other_json(header)
        fields = {key: _text(value) for key, value in (raw.extFields or {}).items() if value is not None}
    return Command(
        raw.code,
        raw.opaque,
        raw.flag,
        raw.remark or None,
        fields,
        body,
        raw.language or UNKNOWN_LANGUAGE,
        raw.version,
    )


def _from_other_json(header: bytes) -> _JsonHeader:
    try:
        return _decode_json(header)
    except msgspec.ValidationError:
        return convert(msgspec.json.decode(header), _UnusualHeader, "header")


def _text(value: _Scalar) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _to_json(command: Command) -> bytes:
    header: dict[str, object] = {"code": command.code}
    if command.fields:
        header["extFields"] = command.fields
    header["flag"] = command.flag
    header["language"] = command.language
    header["opaque"] = command.opaque
    if command.remark is not None:
        header["remark"] = command.remark
    header["serializeTypeCurrentRPC"] = "JSON"
    header["version"] = command.version
    return _encode_json(header)


def _from_binary(header: bytes, body: bytes) -> Command:
    code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header, 0)
    position = _FIXED.size
    remark = None
    if remark_length > 0:
        remark = _slice(header, position, remark_length).decode()
        position += remark_length
    (fields_length,) = _LENGTH.unpack_from(header, position)
    position += 4
    fields = _binary_fields(_slice(header, position, fields_length)) if fields_length > 0 else {}
    name = LANGUAGES[language] if language < len(LANGUAGES) else UNKNOWN_LANGUAGE
    return Command(code, opaque, flag, remark, fields, body, name, version, binary=True)


def _slice(data: bytes, position: int, length: int) -> bytes:
    if length < 0 or position + length > len(data):
        raise ProtocolError(f"a length of {length} bytes, but {len(data) - position} bytes are left")
    return data[position : position + length]


def _binary_fields(data: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    while position < len(data):
        (key_length,) = _SHORT.unpack_from(data, position)
        key = _slice(data, position + 2, key_length).decode()
        position += 2 + key_length
        (value_length,) = _LENGTH.unpack_from(data, position)
        value = _slice(data, position + 4, value_length).decode()
        position += 4 + value_length
        if key and value:
            fields[key] = value
    return fields


def _to_binary(command: Command) -> bytes:
    remark = (command.remark or "").encode()
    fields = b"".join(
        b"".join((_SHORT.pack(len(key)), key, _LENGTH.pack(len(value)), value))
        for key, value in ((k.encode(), v.encode()) for k, v in command.fields.items())
        if key and value
    )
    language = _LANGUAGE_CODES.get(command.language, _LANGUAGE_CODES[UNKNOWN_LANGUAGE])
    code = (command.code + 0x8000 & 0xFFFF) - 0x8000
    fixed = _FIXED.pack(code, language, command.version, command.opaque, command.flag, len(remark))
    return b"".join((fixed, remark, _LENGTH.pack(len(fields)), fields))
