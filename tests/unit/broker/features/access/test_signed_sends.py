"""Sends of users that the engine checks itself: the same verdicts as request by request."""

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from tandemq.broker.features.sends.processor import SendPath
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.signature import is_signed, signed
from tandemq.engine import NAME, QueueTail, SendEngine, SigningUser, TopicTarget
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.fuzz.frames import Frames, command_in, signed_frame
from tests.unit.broker.features.access.test_access import ALICE, ROOT, Guarded
from tests.unit.engine.modules import compiled_engine

NO = ResponseCode.NO_PERMISSION


@pytest.fixture
def broker(tmp_path: Path) -> Guarded:
    """A broker on which ALICE has sent to T and U, so that the engine takes her next sends."""
    broker = Guarded(tmp_path, auto_create_topic=False)
    for topic in ("T", "U", "V"):
        fields = {"topic": topic, "readQueueNums": 4, "writeQueueNums": 4, "perm": 6, "defaultTopic": "TBW102"}
        assert broker.as_user(ROOT, Code.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    broker.create(ALICE)
    assert broker.allow(ALICE, "Topic:T", "Pub").code == 0
    assert broker.allow(ALICE, "Topic:U", "Pub").code == 0
    assert [broker.send_as(ALICE, topic) for topic in "TU"] == [0, 0]
    return broker


def taken_by_engine(broker: Guarded, act: Callable[[], object]) -> int:
    """Return how many requests the engine took."""
    counts = [0]
    path = broker.node.features.find(SendPath)
    take = path.take_ordinary

    def counting(*args: object) -> int:
        before = path._engine.count
        try:
            return take(*args)  # type: ignore[arg-type]
        finally:
            if len(args) == 5:
                counts[0] += path._engine.count - before

    path.take_ordinary = counting  # type: ignore[method-assign, assignment]
    act()
    path.take_ordinary = take  # type: ignore[method-assign]
    return counts[0]


def test_engine_takes_sends_of_the_user_that_has_sent_before(broker: Guarded) -> None:
    if NAME == "python":
        return
    assert taken_by_engine(broker, lambda: [broker.send_as(ALICE, topic) for topic in "TUTU"]) == 4
    assert taken_by_engine(broker, lambda: broker.send_as(ALICE, "V")) == 0
    assert taken_by_engine(broker, lambda: broker.send_as(None, "T")) == 0


def test_wrong_signature_after_right_ones_is_refused(broker: Guarded) -> None:
    stored = broker.node.store.log.end
    for credentials in (
        Credentials("alice", "alice-keY"),
        Credentials("alice", ""),
        Credentials("alicf", ALICE.secret_key),
        Credentials("", ALICE.secret_key),
        None,
    ):
        assert broker.send_as(credentials) == NO
    assert broker.node.store.log.end == stored
    assert broker.send_as(ALICE) == 0


def test_changed_field_or_body_is_refused(broker: Guarded) -> None:
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    own = signed(fields, b"body", ALICE)
    assert broker.ask(Code.SEND_MESSAGE_V2, own, b"body").code == 0
    assert broker.ask(Code.SEND_MESSAGE_V2, own, b"bodY").code == NO
    for name in fields:
        assert broker.ask(Code.SEND_MESSAGE_V2, {**own, name: own[name] + "1"}, b"body").code == NO
    assert broker.ask(Code.SEND_MESSAGE_V2, {**own, "b": "U"}, b"body").code == NO
    assert broker.ask(Code.SEND_MESSAGE_V2, {**own, "k": "false"}, b"body").code == NO
    assert broker.ask(Code.SEND_MESSAGE_V2, own, b"body").code == 0


def test_topic_without_a_right_is_refused(broker: Guarded) -> None:
    assert broker.send_as(ALICE, "V") == NO
    assert broker.send_as(ALICE, "T") == 0


def test_change_is_in_force_with_the_next_send(broker: Guarded) -> None:
    assert broker.allow(ALICE, "Topic:T", "Pub", decision="Deny").code == 0
    assert [broker.send_as(ALICE, topic) for topic in "TU"] == [NO, 0]
    fields = {"subject": "User:alice", "resource": "Topic:U", "policyType": "Custom"}
    assert broker.as_user(ROOT, Code.AUTH_DELETE_ACL, fields).code == 0
    assert broker.send_as(ALICE, "U") == NO
    assert broker.allow(ALICE, "*", "All").code == 0
    assert [broker.send_as(ALICE, topic) for topic in "UV"] == [0, 0]
    fresh = Credentials("alice", "another-key")
    body = b'{"password":"another-key"}'
    assert broker.as_user(ROOT, Code.AUTH_UPDATE_USER, {"username": "alice"}, body).code == 0
    assert [broker.send_as(user, "V") for user in (ALICE, fresh, fresh)] == [NO, 0, 0]
    body = b'{"userStatus":"disable"}'
    assert broker.as_user(ROOT, Code.AUTH_UPDATE_USER, {"username": "alice"}, body).code == 0
    assert broker.send_as(fresh, "V") == NO


def test_deleted_user_is_refused(broker: Guarded) -> None:
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": "alice"}).code == 0
    assert broker.send_as(ALICE) == NO


# The engine alone.

HOST = bytes(8)
KEYS = st.one_of(
    st.text(st.characters(codec="utf-8"), max_size=100), st.sampled_from(("", "k" * 63, "k" * 64, "k" * 65))
)


def takes(data: bytes, sender: SigningUser | None) -> bool:
    """Whether a new engine takes a frame."""
    topics = {name: TopicTarget(name, 16, takes_plain=True) for name in ("T", "Other")}
    for target in topics.values():
        target.queues = {queue_id: QueueTail() for queue_id in range(16)}
    engine = SendEngine(topics)
    engine.configure(
        store_host=HOST,
        region="",
        trace_on="true",
        common_pairs=b"",
        frame_bytes_max=1 << 24,
        body_bytes_max=1 << 20,
        delays_ms=(),
        broker_name="b",
        timer_precision_ms=0,
        timer_delay_max_ms=0,
    )
    engine.begin(0, 1 << 24, 0, 0)
    return engine.take(1, HOST, data, 0, sender) == len(data)


@given(st.integers(0, 1 << 32), KEYS, st.sampled_from((0.0, 0.0, 0.02)))
@example(4156, "", 0.02)  # code 10 with a field "b"
@settings(max_examples=300, deadline=None)
def test_engine_takes_what_is_signed_and_allowed_and_nothing_else(seed: int, key: str, oddness: float) -> None:
    compiled_engine()
    if NAME == "python":
        return
    random = Random(seed)
    user, frames = Credentials("alice", key), Frames(random, oddness, body_bytes_max=300)
    sender = SigningUser("alice", key, None, None, None)
    for _ in range(6):
        frame = signed_frame(frames.send(), user, random)
        if frame is None:
            continue
        command = command_in(frame)
        assert command is not None
        is_allowed = is_signed(command.fields, command.body, command.version, key)
        assert is_allowed or "_UNIQUE_KEY_QUERY" in command.fields
        if "".join(command.fields).isascii():
            assert takes(frame, sender) == takes(frame, None)
        else:
            assert not takes(frame, sender)
        topic = command.fields.get("topic" if command.code == Code.SEND_MESSAGE else "b", "")
        assert takes(frame, SigningUser("alice", key, {topic}, None, None)) == takes(frame, sender)
        assert not takes(frame, SigningUser("alice", key, {topic + "x", "Other" if topic == "T" else "T"}, None, None))
        assert not takes(frame, SigningUser("bob", key, None, None, None))
        assert not takes(frame, SigningUser("alice", key + "x", None, None, None))
        changed = bytearray(frame)
        changed[random.randrange(8, len(frame))] ^= 1 << random.randrange(8)
        if takes(bytes(changed), sender):
            command = command_in(bytes(changed))
            assert command is not None
            assert is_signed(command.fields, command.body, command.version, key)


@pytest.mark.parametrize("size", [1, 54, 55, 56, 63, 64, 65, 119, 120, 128, 5_000, 100_000])
def test_signature_over_bodies_of_all_lengths(size: int) -> None:
    if NAME == "python":
        return
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    sender = SigningUser("alice", ALICE.secret_key, {"T"}, None, None)
    for more in range(64):
        body = bytes(range(256)) * (size // 256 + 2)
        body = body[: size + more]
        command = Command(Code.SEND_MESSAGE_V2, 1, fields=signed(fields, body, ALICE), body=body)
        assert takes(encode_command(command), sender)
        assert not takes(encode_command(structs.replace(command, body=body[:-1] + bytes([body[-1] ^ 1]))), sender)


def test_repeated_and_too_many_fields_are_left_to_the_decoder() -> None:
    if NAME == "python":
        return
    fields = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "i": "", "j": "0"}
    sender = SigningUser("alice", ALICE.secret_key, {"T"}, None, None)
    for count, is_taken in ((5, True), (100, False)):
        more = fields | {f"x{number}": "1" for number in range(count)}
        assert takes(encode_command(Command(310, 1, fields=signed(more, b"b", ALICE), body=b"b")), sender) is is_taken
    frame = encode_command(Command(310, 1, fields=signed(fields | {"x": "1"}, b"b", ALICE), body=b"b"))
    repeated = frame.replace(b'"x":"1"', b'"x":"1","x":"1"')
    grown = len(repeated) - len(frame)
    sizes = (int.from_bytes(frame[:4]) + grown).to_bytes(4) + (int.from_bytes(frame[4:8]) + grown).to_bytes(4)
    assert takes(frame, sender)
    assert not takes(sizes + repeated[8:], sender)
