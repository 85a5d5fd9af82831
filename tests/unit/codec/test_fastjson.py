"""Java's JSON dialect is read; malformed JSON is refused in bounded time."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting import fastjson
from tandemq.codec.remoting.fastjson import DIALECT_BYTES_MAX, Raw, dumps, dumps_java, key_text, loads
from tandemq.errors import ProtocolError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 60), 1 << 60) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT.filter(lambda t: t != "$ref"), inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_strict_json_is_read(value: Any) -> None:
    assert loads(json.dumps(value).encode()) == value
    assert loads(dumps(value)) == value


@given(VALUES)
def test_java_dialect_round_trip(value: Any) -> None:
    assert loads(dumps_java(value)) == value
    assert loads(dumps_java({1: value, "x": [value]})) == {"1": value, "x": [value]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        ("{-5:1}", {"-5": 1}),
        ('{"offsetTable":{"T@g":{0:12,1:45}}}', {"offsetTable": {"T@g": {"0": 12, "1": 45}}}),
        ('{\n\t0 : 1 ,\r\n "b" : [ 1 , 2 ]\n}', {"0": 1, "b": [1, 2]}),
        ("{'a':'it\\'s \"x\"'}", {"a": 'it\'s "x"'}),
        ('{0:"\\u00e9\\n\\\\"}', {"0": "é\n\\"}),
        ("{0:true,1:false,2:null,3:1.5,4:-2e3}", {"0": True, "1": False, "2": None, "3": 1.5, "4": -2000.0}),
        ("{}", {}),
        ("[]", []),
    ],
)
def test_dialect_is_read(text: str, expected: Any) -> None:
    assert loads(text.encode()) == expected


def test_objects_as_keys_become_their_canonical_text() -> None:
    raw = b'{"offsetTable":{{"topic":"t","brokerName":"b","queueId":0}:{"maxOffset":3},{"queueId":1}:{}}}'
    table = loads(raw)["offsetTable"]
    assert table == {'{"brokerName":"b","queueId":0,"topic":"t"}': {"maxOffset": 3}, '{"queueId":1}': {}}
    assert key_text({"topic": "t", "brokerName": "b", "queueId": 0}) in table
    assert all(loads(key.encode()) for key in table)


def test_raw_keys_and_ints_are_written_unquoted() -> None:
    value = {Raw(key_text({"queueId": 0})): {"a": 1}, 3: [Raw("{0:1}")], "é": None}
    assert dumps_java(value).decode() == '{{"queueId":0}:{"a":1},3:[{0:1}],"é":null}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('{0:{"x":1},"b":[{"$ref":"$.0"}]}', {"0": {"x": 1}, "b": [{"x": 1}]}),
        ('{"a":[7,{"x":[8,9]}],"b":{"$ref":"$.a[1].x[0]"}}', {"a": [7, {"x": [8, 9]}], "b": 8}),
        ('{"t":{"T@g":{"x":1}},"b":{"$ref":"$.t.T\\\\@g"}}', {"t": {"T@g": {"x": 1}}, "b": {"x": 1}}),
        ('{"a":1,"b":{"$ref":"$.c"},"c":{"$ref":"$.a"}}', {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_references_are_followed(text: str, expected: Any) -> None:
    assert loads(text.encode()) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$.missing"}}',
        '{"a":{"$ref":"$[0]"}}',
        '{"a":{"$ref":"@"}}',
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":"$"},"b":{"$ref":"$"}}',
        '{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"}}',
        '{"a":[1],"b":{"$ref":"$.a.x"}}',
    ],
)
def test_dangling_and_circular_references_are_errors(text: str) -> None:
    with pytest.raises(ProtocolError):
        loads(text.encode())


def test_nested_references_are_limited() -> None:
    steps = ",".join(f'{n}:[{{"$ref":"$.{n - 1}"}},{{"$ref":"$.{n - 1}"}}]' for n in range(1, 50))
    with pytest.raises(ProtocolError):
        loads(f"{{0:[1,1],{steps}}}".encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b" ",
        b"{",
        b"}",
        b"{0",
        b"{0:",
        b"{0:1",
        b"{0:1 2:3}",
        b"{:1}",
        b"{0:}",
        b"[1",
        b"[1 2]",
        b"'",
        b'"x',
        b"x",
        b"{0:x}",
        b"{0:1}x",
        b"[,]",
        b"\xff\xfe",
        b'{0:"\xff"}',
        b'{0:"\\x"}',
        b'{0:"\\u12"}',
        b"NaN",
        b"{0:NaN}",
        b"{0:Infinity}",
        b"{0:1e999}",
        b"{0:" + b"9" * 5000 + b"}",
        b"{[1]:2}",
        b'{{"a":"\\ud800"}:1}',
        b"nul",
    ],
)
def test_malformed_json_is_a_protocol_error(raw: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(raw)


@pytest.mark.parametrize("opening", [b"[", b"{0:", b"{{", b'{"a":', b"[{0:"])
def test_too_deep_nesting_is_a_protocol_error(opening: bytes) -> None:
    with pytest.raises(ProtocolError):
        loads(opening * 100_000)


def test_nested_objects_as_keys_are_limited() -> None:
    with pytest.raises(ProtocolError):
        loads(b"{" * 50 + b'"a":1' + b"}:1" * 49 + b"}")


@given(st.text(alphabet="{}[]:,\"'\\$ref01ae.tu \n-", max_size=60))
def test_garbage_raises_nothing_but_protocol_errors(text: str) -> None:
    try:
        loads(text.encode())
    except ProtocolError:
        pass


@given(st.binary(max_size=60))
def test_garbage_bytes_raise_nothing_but_protocol_errors(raw: bytes) -> None:
    try:
        loads(raw)
    except ProtocolError:
        pass


KEYS = (
    TEXT.filter(lambda t: t != "$ref")
    | st.integers(-99, 99)
    | st.builds(
        lambda value: Raw(key_text(value)),
        st.dictionaries(TEXT.filter(lambda t: t != "$ref"), st.integers() | TEXT, max_size=2),
    )
)
DIALECT = st.recursive(
    st.none() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(DIALECT, st.booleans())
def test_quoting_keys_and_the_slow_reader_give_the_same_value(value: Any, spaces: bool) -> None:
    text = dumps_java(value)
    if spaces:
        text = text.replace(b"{", b"{ ").replace(b":", b" : ")
    assert loads(text) == fastjson._Reader(text.decode()).document()


@given(st.text(alphabet='{}[]:,"\\01a- ', max_size=30))
def test_text_readable_after_quoting_is_read_the_same_by_the_slow_reader(text: str) -> None:
    try:
        found = loads(text.encode())
    except ProtocolError:
        return
    assert found == fastjson._Reader(text).document()


OTHERS = [b'{0:"%s"}', b"{'a':'%s'}", b'[{"$ref":"$[1]"},"%s"]']


@pytest.mark.parametrize("form", OTHERS)
def test_untrusted_peers_may_use_the_dialect_in_small_bodies_only(form: bytes) -> None:
    room = DIALECT_BYTES_MAX - len(form % b"")
    assert loads(form % (b"x" * room))
    with pytest.raises(ProtocolError, match="above 262144 bytes"):
        loads(form % (b"x" * (room + 1)))
    assert loads(form % (b"x" * (room + 1)), is_trusted=True)
    assert loads(b'["%s"]' % (b"x" * 1_000_000)), "strict JSON has no limit here"


@pytest.mark.parametrize(
    "piece",
    [b"[],", b"[{", b',{"', b',{"a",', b'"",{', b"\\", b"-", b'\\"', b",{ ", b"0:0,", b'{"a":1}:1,', b" ", b"'',"],
)
def test_reading_time_is_linear(piece: bytes) -> None:
    """The pattern reads each byte only a few times. In quadratic time each text would take minutes: the test would not
    end within its timeout."""
    for opening in (b"", b"[", b"{", b'["'):
        text = (opening + piece * DIALECT_BYTES_MAX)[: DIALECT_BYTES_MAX - 1]
        with pytest.raises(ProtocolError):
            loads(text + b"x")
