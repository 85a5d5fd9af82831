"""Headers in both forms: round trips, what must be tolerated, what must be refused."""

import json
from struct import pack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting.header import FORM_BINARY, FORM_JSON, LANGUAGES, decode_header, encode_header, with_code
from tandemq.errors import ProtocolError
from tandemq.model.command import Command

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
COMMANDS = st.builds(
    Command,
    code=st.integers(-(1 << 15), (1 << 15) - 1),
    opaque=INT32,
    flag=st.integers(0, 3),
    remark=st.none() | TEXT,
    fields=st.dictionaries(TEXT, TEXT, max_size=6),
    body=st.binary(max_size=9),
    language=st.sampled_from(LANGUAGES),
    version=st.integers(0, 612),
    binary=st.booleans(),
)


@given(COMMANDS)
def test_header_round_trip(command: Command) -> None:
    form = FORM_BINARY if command.binary else FORM_JSON
    assert decode_header(form, encode_header(command), command.body) == command


@given(COMMANDS, st.integers(0, 1000))
def test_response_with_another_code_is_what_would_have_been_encoded(command: Command, code: int) -> None:
    form = FORM_BINARY if command.binary else FORM_JSON
    command.code = 0
    found = with_code(form, encode_header(command), code)
    command.code = code
    assert found == encode_header(command)


def test_json_header_is_compact_sorted_and_all_fields_are_strings() -> None:
    raw = encode_header(Command(10, 7, fields={"queueId": "0"}, language="JAVA", version=409))
    assert raw == (
        b'{"code":10,"extFields":{"queueId":"0"},"flag":0,"language":"JAVA","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":409}'
    )


def test_binary_header_has_the_documented_layout() -> None:
    raw = encode_header(Command(10, 7, 2, "r", {"k": "vv"}, b"", "GO", 409, binary=True))
    assert raw == pack(">hBhiii", 10, 9, 409, 7, 2, 1) + b"r" + pack(">i", 9) + b"\0\1k" + pack(">i", 2) + b"vv"
    assert len(encode_header(Command(10, binary=True))) == 21


def test_binary_code_beyond_16_bits_is_truncated_as_in_java() -> None:
    raw = encode_header(Command(200050, binary=True))
    assert decode_header(FORM_BINARY, raw, b"").code == 3442


@pytest.mark.parametrize(
    ("value", "expected"),
    [("7", "7"), (7, "7"), (-1, "-1"), (True, "true"), (False, "false"), (1.5, "1.5"), ("", "")],
)
def test_json_field_of_any_scalar_becomes_text(value: object, expected: str) -> None:
    raw = json.dumps({"code": 1, "extFields": {"a": value, "gone": None}}).encode()
    assert decode_header(FORM_JSON, raw, b"").fields == {"a": expected}


@pytest.mark.parametrize(
    "text",
    [
        '{"code":"10"}',
        '{"code":10,"extFields":null}',
        '{"code":10,"unknown":{"a":[1,2,{"b":null}]},"remark":null}',
        ' { "code" : 10 , "language" : "COBOL" } ',
        '{"code":10,"language":null}',
    ],
)
def test_json_header_is_read_leniently(text: str) -> None:
    command = decode_header(FORM_JSON, text.encode(), b"")
    assert command.code == 10
    assert command.fields == {}
    assert command.remark is None


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":99999999999}',
        b'{"code":1,"opaque":2147483648}',
        b'{"code":1,"remark":"\xff"}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"x":' + b"[" * 100_000,
        b'{"code":1,"x":' + b'{"a":' * 100_000,
        b'{"code":1} x',
    ],
)
def test_malformed_json_header_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_header(FORM_JSON, raw, b"")


def test_unknown_form_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="form 2"):
        decode_header(2, b"{}", b"")


@given(st.binary(max_size=120), st.integers(0, 3))
def test_garbage_raises_nothing_but_protocol_errors(raw: bytes, form: int) -> None:
    try:
        decode_header(form, raw, b"")
    except ProtocolError:
        pass


@given(COMMANDS, st.data())
def test_damaged_header_raises_nothing_but_protocol_errors(command: Command, data: st.DataObject) -> None:
    raw = bytearray(encode_header(command))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(raw)))
    for piece in (bytes(raw), bytes(raw[:cut])):
        try:
            decode_header(FORM_BINARY if command.binary else FORM_JSON, piece, b"")
        except ProtocolError:
            pass


@pytest.mark.parametrize(
    "fields",
    [
        pack(">H", 5) + b"k",
        pack(">H", 1) + b"k",
        pack(">H", 1) + b"k" + pack(">i", -1),
        pack(">H", 1) + b"k" + pack(">i", 9) + b"v",
        b"\0",
        pack(">H", 1) + b"\xff" + pack(">i", 1) + b"v",
    ],
)
def test_binary_lengths_beyond_their_frame_are_protocol_errors(fields: bytes) -> None:
    raw = pack(">hBhiii", 10, 0, 409, 7, 0, 0) + pack(">i", len(fields)) + fields
    with pytest.raises(ProtocolError):
        decode_header(FORM_BINARY, raw, b"")


def test_binary_fields_without_key_or_value_are_absent() -> None:
    fields = pack(">H", 0) + pack(">i", 1) + b"v" + pack(">H", 1) + b"k" + pack(">i", 0)
    raw = pack(">hBhiii", 10, 0, 409, 7, 0, 0) + pack(">i", len(fields)) + fields
    assert decode_header(FORM_BINARY, raw, b"").fields == {}
    unknown = pack(">hBhiii", 10, 99, 409, 7, 0, 0) + pack(">i", 0)
    assert decode_header(FORM_BINARY, unknown, b"").language == "OTHER"
