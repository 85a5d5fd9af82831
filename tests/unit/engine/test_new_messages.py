"""Properties and batch parts of new messages: the compiled engine and the one in Python judge and encode alike."""

from dataclasses import fields
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer import encoder
from tandemq.codec.record.record import BatchPart, decode_batch
from tandemq.codec.remoting.frame import FrameDecoder, decode_command
from tandemq.engine import SENT_PROPERTIES_MAX, python
from tandemq.errors import RecordTooLarge
from tandemq.model.message import Message, decode_properties
from tests.unit.engine.modules import compiled_engine

_NAMES = ("", "KEYS", "PRIORITY", "_SYS_MSG_PRIORITY_", "TIMER_DELAY_MS", "MSG_TYPE", "UNIQ_KEY", "a", "é")
TEXTS = st.one_of(
    st.sampled_from((*_NAMES, "paid", " paid", "a b", "a|b", "x\x01", "\x02", "\x1c", "支付", "支付\u3000", "\ud800")),
    st.text(max_size=8),
)
ODD: st.SearchStrategy[Any] = st.sampled_from((None, 0, 1, b"bytes", "text", ["k"], ("k", 1), {"n": 1}, {1: "v"}, True))
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "topic": st.sampled_from(("T", "a-1", "%RETRY%g", "rmq_sys_wheel_timer", "a b", "", "x" * 127, "x" * 128, "é")),
    "body": st.one_of(st.binary(max_size=40), st.just(b"x" * 2000), st.just(bytearray(b"ab"))),
    "tags": TEXTS,
    "keys": st.one_of(st.just(()), st.lists(TEXTS, max_size=3).map(tuple), st.just(["k"]), st.just("k")),
    "properties": st.one_of(st.just({}), st.dictionaries(TEXTS, TEXTS, max_size=3), st.just({"n": "v" * 40_000})),
    "delay_level": st.sampled_from((0, 0, 3, -1)),
    "flag": st.sampled_from((0, 7, -1, 2**31 - 1, -(2**31), 2**31, -(2**31) - 1, 2**70)),
    "wait_store_ok": st.booleans(),
    "delay": st.sampled_from((None, None, 5.0)),
    "deliver_at": st.sampled_from((None, None, 5.0)),
    "priority": st.sampled_from((None, None, 0)),
}
USUAL: dict[str, Any] = {"topic": "T", "body": b"42", "tags": "paid", "keys": ("k",), "properties": {"n": "v"}}
CHANGES = st.dictionaries(st.sampled_from([one.name for one in fields(Message)]), st.none(), max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: st.one_of(FIELDS[name], FIELDS[name], ODD) for name in names})
)


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_engine()


def changed(changes: dict[str, Any]) -> Message:
    """Return a message whose fields were changed after it was made, as an application may do."""
    message = Message(**USUAL)
    for name, value in changes.items():
        setattr(message, name, value)
    return message


@settings(max_examples=600, deadline=None)
@given(CHANGES, st.one_of(st.just("0A" * 16), TEXTS, ODD), st.sampled_from((0, 2, 1000, 1 << 22)))
@example({"properties": {"n": "v" * (SENT_PROPERTIES_MAX - 70)}}, "K", 10)
def test_both_engines_make_the_same_of_a_message(
    compiled: ModuleType, changes: dict[str, Any], key: Any, body_bytes_max: int
) -> None:
    message = changed(changes)
    text = python.plain_properties(message, key, body_bytes_max)
    part = python.batch_part(message, key, body_bytes_max)
    assert compiled.plain_properties(message, key, body_bytes_max) == text
    assert compiled.batch_part(message, key, body_bytes_max) == part
    assert (text is None) == (part is None)
    if text is not None and part is not None:
        assert decode_batch(part) == [BatchPart(message.flag, message.body, text.encode())]


@settings(max_examples=300, deadline=None)
@given(CHANGES)
def test_ordinary_message_is_one_that_the_encoder_accepts_with_the_same_properties(
    compiled: ModuleType, changes: dict[str, Any]
) -> None:
    options = ProducerOptions(group="g")
    message = changed(changes)
    text = compiled.plain_properties(message, "KEY", encoder.plain_bytes_max(options))
    try:
        general = encoder.general_properties(message, "KEY", options)
    except (TypeError, ValueError, RecordTooLarge):
        assert text is None
    else:
        assert text is None or text == general
        assert decode_properties(general)["UNIQ_KEY"] == "KEY"


def test_limits_of_sizes(compiled: ModuleType) -> None:
    rest = len(python.plain_properties(Message("T", b"", properties={"n": "v"}), "K", 0) or "") - 1
    for engine in (compiled, python):
        for size, is_plain in ((SENT_PROPERTIES_MAX - rest, True), (SENT_PROPERTIES_MAX - rest + 1, False)):
            message = Message("T", b"four", properties={"n": "v" * size})
            assert (engine.plain_properties(message, "K", 4) is not None) == is_plain
            assert engine.batch_part(message, "K", 3) is None
        assert engine.plain_properties(object(), "K", 4) is None


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=8),
    st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 4),
    st.one_of(TEXTS, st.text()),
    st.integers(0, 2**31 - 1),
    st.binary(max_size=2000),
    st.booleans(),
)
@example(b"{", (0, 0, 0, 0), "".join(map(chr, range(256))), 0, b"", False)
def test_frames_of_sends(  # what hypothesis gives
    compiled: ModuleType,
    head: bytes,
    numbers: tuple[int, int, int, int],
    properties: str,
    opaque: int,
    body: bytes,
    oneway: bool,
) -> None:
    sys_flag, wall_ms, flag, reconsume_times = numbers
    made = []
    for engine in (python, compiled):
        try:
            fields = engine.send_fields(head, sys_flag, wall_ms, flag, properties, reconsume_times)
        except UnicodeEncodeError:
            made.append(b"")
        else:
            made.append(engine.json_frame(fields, opaque, body, oneway=oneway))
    assert made[0] == made[1]
    assert made[0] or not is_unicode(properties)


@settings(max_examples=300, deadline=None)
@given(
    CHANGES,
    st.one_of(st.just("0A" * 16), TEXTS, ODD),
    st.sampled_from((0, 2, 1000, 1 << 22)),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**31 - 1),
)
@example({}, "K", 10, 0, 0)
def test_whole_frame_is_that_of_its_parts(
    compiled: ModuleType, changes: dict[str, Any], key: Any, body_bytes_max: int, wall_ms: int, opaque: int
) -> None:
    head = b'{"code":310,"extFields":{"a":"g"'
    message = changed(changes)
    text = python.plain_properties(message, key, body_bytes_max)
    frame = compiled.plain_frame(message, key, body_bytes_max, head, wall_ms, opaque)
    assert frame == python.plain_frame(message, key, body_bytes_max, head, wall_ms, opaque)
    assert (frame is None) == (text is None)
    if frame is not None:
        command = decode_command(FrameDecoder().feed(frame)[0])
        assert (command.opaque, command.body) == (opaque, message.body)
        numbers = {"f": "0", "g": str(wall_ms), "h": str(message.flag), "j": "0"}
        assert command.fields == {"a": "g", "i": text, **numbers}


def is_unicode(text: str) -> bool:
    """Whether a text has no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


@given(st.integers(-(2**40), 2**40), st.integers(0, 2**16 - 1))
def test_unique_keys(compiled: ModuleType, ms: int, count: int) -> None:
    key = python.unique_key("HEAD", ms, count)
    assert compiled.unique_key("HEAD", ms, count) == key
    assert len(key) == 16
    assert (int(key[4:12], 16), int(key[12:], 16)) == (ms & 0xFFFFFFFF, count)
