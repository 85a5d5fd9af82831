"""Sends through the engine: the same log, queues, index, responses and errors as by decoding each of them."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.codec.record.record import BatchPart
from tandemq.codec.remoting.frame import FrameDecoder
from tandemq.engine import NAME
from tandemq.model.codes import ResponseCode
from tandemq.model.property_rules import MEANINGS
from tandemq.model.topic import TopicConfig
from tests.fuzz.frames import Frames, Sent, Turns, frame_of
from tests.fuzz.reduction import reduced
from tests.fuzz.values import ODD_TEXTS, STYLES
from tests.golden import GOLDEN
from tests.unit.broker.features.sends.comparison import (
    LINKS,
    Recorder,
    compare,
    compare_turns,
    difference,
    run_script,
)
from tests.unit.broker.features.sends.messages import SMALL, V6, Count, batch, codes, parts_of, send, stream
from tests.unit.broker.features.waiting_tables import pending_timers
from tests.unit.broker.harness import CLIENT, START_WALL_MS, send_fields

pytestmark = pytest.mark.usefixtures("by_engine")
OK = ResponseCode.SUCCESS
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    SMALL,
    V6,
    SMALL | V6,
    {"opens_queues": False},
    {"flush_type": "SYNC_FLUSH"},
    {"role": "SYNC_MASTER"},
    {"index_enable": False},
    {"auto_create_topic": False},
    {"region": 'r"egion é'},
    {"trace_topic_enable": True, "trace_on": False},
    {"trace_topic_enable": True, "region": "é"},
    {"trace_topic_enable": True, "region": ""},
    {"cluster": "Other"},
    {"step_ms": 700},
    SMALL | {"step_ms": 40_000},
    {"step_ms": 250, "timers_max": 4},
    {"step_ms": 250, "timer_precision_ms": 100, "flush_type": "SYNC_FLUSH"},
    {"step_ms": 250, "timer_congest_max": 2},
    {"step_ms": 250, "timer_enable": False},
    {"step_ms": 700, "timer_delay_max_s": 30, "timer_roll_window": 3},
)


# Everything at random.


def fault_of(turns: Turns, **changes: Any) -> str:
    """Return what differs with and without the engine, "" if nothing."""

    def script(broker: Recorder) -> None:
        for sent in turns:
            broker.receive(sent)

    first = run_script(script, uses_engine=True, **changes)
    found = difference(first, run_script(script, uses_engine=False, **changes))
    return found or "an exception ended a connection" * (first.node.faults > 0)


def assert_same(turns: Turns, **changes: Any) -> None:
    if fault_of(turns, **changes):
        turns = reduced(turns, lambda fewer: fault_of(fewer, **changes) != "")
        pytest.fail(f"{fault_of(turns, **changes)}\nwith {changes} and {turns}")


@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.01, 0.05, 0.3)), st.sampled_from(CHANGES))
def test_any_traffic_has_the_same_result(seed: int, oddness: float, changes: dict[str, Any]) -> None:
    random = Random(seed)
    frames = Frames(random, oddness)
    assert_same(frames.turns(LINKS, random.randrange(1, 5), 20, others=random.choice((0.0, 0.1, 0.4))), **changes)


@pytest.mark.slow
@pytest.mark.timeout(3_000)
@settings(max_examples=20_000)
@given(st.integers(0, 1 << 40), st.sampled_from((0.0, 0.01, 0.05, 0.3)), st.sampled_from(CHANGES))
def test_more_traffic_has_the_same_result(seed: int, oddness: float, changes: dict[str, Any]) -> None:
    random = Random(seed)
    assert_same(Frames(random, oddness).turns(LINKS, random.randrange(1, 5), 30, others=0.1), **changes)


@given(st.randoms(use_true_random=False), st.sampled_from(STYLES), st.sampled_from((0.02, 0.2)))
def test_any_send_has_the_same_result(random: Random, style: str, oddness: float) -> None:
    frame = Frames(random, oddness).send(style)
    assert_same([[Sent(1, frame)], [Sent(1, send(1))]])


def test_ordinary_sends_of_every_client_are_taken_by_the_engine(by_engine: Count) -> None:
    for style in STYLES:
        frames = Frames(Random(1))
        sent = [[Sent(1, frames.send(style, is_batch=number % 4 == 0)) for number in range(40)]]
        compare_turns(sent)
        by_engine.expect(40)


def test_frames_of_java_clients_are_taken_by_the_engine(by_engine: Count) -> None:
    for path in sorted((GOLDEN / "frames").glob("client-*send_*.bin")):
        if "answer" in path.name or "back" in path.name:
            continue
        raw = path.read_bytes()
        (decoded,) = FrameDecoder().feed(raw)
        fields = decoded[1]

        def script(broker: Recorder, raw: bytes = raw, fields: bytes = fields) -> None:
            for name in ("GoldenOrders", "GoldenPayments"):
                broker.node.topics.put(TopicConfig(name, 8, 8), broker.now.wall_ms)
            for _ in range(2):  # the first one opens its queue
                broker.receive([(CLIENT, raw)])
            assert codes(broker) == [OK, OK], fields

        compare(script)
        by_engine.expect(1)


# Headers.

HEADER = {
    "code": 310,
    "flag": 0,
    "language": "JAVA",
    "opaque": 7,
    "serializeTypeCurrentRPC": "JSON",
    "version": 407,
    "extFields": {key: str(value) for key, value in send_fields("T", 1, {"UNIQ_KEY": "0A", "TAGS": "t"}).items()},
}


def json_frame(header: bytes | dict[str, Any], body: bytes = b"body") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return frame_of(0, raw, body)


def assert_same_on_own_links(frames: list[bytes]) -> None:
    """Compare frames that may end their connections; each has one."""
    compare_turns([list(enumerate(frames, start=1))], links=range(1, len(frames) + 1))


def test_fields_of_any_type_and_missing_ones() -> None:
    values: list[Any] = [
        None,
        True,
        False,
        0,
        1,
        -1,
        1.5,
        1e300,
        "",
        "x",
        "0",
        "00",
        " 0",
        [],
        {},
        [1],
        {"a": 1},
        2**31,
        2**63,
        -(2**31),
    ]
    headers: list[dict[str, Any]] = []
    for name in [*HEADER, "remark", "x"]:
        headers += [HEADER | {name: value} for value in values]
        headers.append({key: value for key, value in HEADER.items() if key != name})
    fields: dict[str, Any] = HEADER["extFields"]  # type: ignore[assignment]
    for name in [*fields, "l", "n", "topic", "properties", "x", ""]:
        headers += [HEADER | {"extFields": fields | {name: value}} for value in values]
        headers.append(HEADER | {"extFields": {key: value for key, value in fields.items() if key != name}})
    assert_same_on_own_links([json_frame(header) for header in headers])


def test_texts_with_any_escape_and_any_byte() -> None:
    plain = json.dumps(HEADER, separators=(",", ":")).encode()
    for place in (
        b"UNIQ_KEY\\u0001",
        b'"i":"',
        b'"b":"T',
        b'"a":"',
        b'"JAVA',
        b'"co',
        b'"e',
        b"UNIQ",
        b"TAGS\\u0001t",
        b'{"',
        b'"}',
    ):
        at = plain.index(place) + len(place)
        texts = [*ODD_TEXTS, *[bytes([byte]) for byte in range(256)]]
        assert_same_on_own_links([json_frame(plain[:at] + text + plain[at:]) for text in texts])


@pytest.mark.parametrize("is_binary", [False, True])
def test_unusual_properties(*, is_binary: bool) -> None:
    values = (
        "",
        "x",
        "true",
        "false",
        "FALSE",
        "False",
        "falsE ",
        "0",
        "1",
        "03",
        "18",
        "19",
        "+4",
        "4x",
        "99999999999",
        "-1",
        "3",
        " ",
        "a b",
        "  a  b  ",
        "é",
        "\U0001f600",
        "\x7f",
        '"',
        "\\",
        "\x00",
        "\n",
        "a\x01b",
    )
    for name in (*MEANINGS, "TIMER_X", "RETRY_TOPIC", "", "a", "é"):
        frames = [send(1, properties=f"{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [send(2, i=f"{name}\x01{value}", binary=is_binary) for value in values]
        frames += [send(3, i=f"{name}\x01x\x02A\x01b\x02{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [send(6, properties=f"DELAY\x013\x02{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [batch(4, parts_of(1, 2), properties=f"{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [batch(5, parts_of(1, 2, more=f"{name}\x01{value}".encode()), binary=is_binary) for value in values]
        compare_turns([[(1, frame)] for frame in frames])


def test_any_two_properties_have_the_meaning_of_the_table_in_the_engine_and_in_the_decoded_path() -> None:
    names = (*MEANINGS, "TIMER_X", "plain")
    pairs = [(one, other) for one in names for other in names if one != other]
    sent: list[bytes] = []
    for one, other in pairs:
        for value in ("true", "3"):
            asked = f"{one}\x01{value}\x02{other}\x01{value}\x02"
            sent += [send(1, properties=asked), batch(2, parts_of(1, 2, more=asked.encode()))]
    compare_turns([[(1, b"".join(sent[at : at + 64]))] for at in range(0, len(sent), 64)], segment_bytes=1 << 24)


def test_separators_that_are_missing_or_superfluous() -> None:
    texts = [
        "",
        "\x01",
        "\x02",
        "\x01\x02",
        "a",
        "a\x02",
        "a\x01",
        "a\x01\x02",
        "\x01b\x02",
        "a\x01b",
        "\x02a\x01b",
        "a\x01b\x02\x02",
        "a\x01\x01\x02",
        "ab\x02c\x01d",
        "\x01\x01\x02",
        "a\x01b\x02c",
    ]
    frames = [
        frame
        for text in texts
        for frame in (send(1, i=text), send(2, i=text + "\x02UNIQ_KEY\x01k"), batch(3, parts_of(1, 2), properties=text))
    ]
    frames += [batch(4, [BatchPart(0, b"x", text.encode())] * 2) for text in texts]
    compare_turns([[(1, frame)] for frame in frames])


def test_properties_near_the_limit(by_engine: Count) -> None:
    for size in range(32_600, 32_768, 5):
        for is_binary in (False, True):
            more = "big\x01" + size * "b"
            frames = [send(1, i=more, binary=is_binary), send(2, i=more, DELAY="x", binary=is_binary)]
            frames += [batch(3, [BatchPart(0, b"x", more.encode())], binary=is_binary)]
            frames += [batch(4, parts_of(1, 1), properties=more, binary=is_binary)]
            compare_turns([[(1, frame)] for frame in frames])
    by_engine.expect(60)


def test_properties_of_any_length_in_binary_headers(by_engine: Count) -> None:
    turns = [[(1, send(number, i="a\x01" + number * "b", binary=True))] for number in range(1, 700)]
    compare_turns(turns)
    by_engine.expect(699)


def test_bodies_around_the_limits() -> None:
    limits = (0, 1, 63, 64, 65, 8191, 8192, 8193, 16_383, 16_384, 16_385, 20_000)
    for changes in ({}, SMALL, SMALL | {"message_bytes_max": 16 * 1024 - 1}):
        compare_turns([[(1, send(size, size=size))] for size in limits], **changes)


def test_opaque_and_numbers_of_every_length() -> None:
    opaques = (0, 9, 10, -1, -10, 2**31 - 1, -(2**31))
    for is_binary in (False, True):
        compare_turns(
            [[(1, send(0, opaque=opaque, queue=queue, binary=is_binary))] for opaque in opaques for queue in (0, 11)]
        )
    compare_turns([[(1, stream(300, 300 * turn, opaque=9_500))] for turn in range(6)])


# Timed messages.


@pytest.mark.parametrize("binary", [False, True])
def test_engine_takes_timed_messages_with_handle_and_room(by_engine: Count, *, binary: bool) -> None:
    times = (
        ("TIMER_DELAY_SEC", 5),
        ("TIMER_DELAY_MS", 5001),
        ("TIMER_DELIVER_MS", START_WALL_MS + 5000),
        ("TIMER_DELAY_MS", 0),
    )
    properties = [f"{name}\x01{value}\x02" for name, value in times]

    def turn(first: int) -> list[tuple[int, bytes]]:
        sends = [send(first + n, queue=n % 4, properties=one, binary=binary) for n, one in enumerate(properties * 2)]
        return [(CLIENT, b"".join(sends))]

    def script(broker: Recorder) -> None:
        broker.pass_time(1_000)
        for number in range(4):
            broker.receive(turn(10 * number))
        broker.pass_time(10_000)

    broker = compare(script, timers_max=15)
    by_engine.expect(12)
    assert codes(broker).count(OK) >= 16
    assert broker.sent[CLIENT].count(b"recallHandle") == 15
    assert broker.node.store.queues["rmq_sys_wheel_timer", 0].max_offset == 15
    assert len(pending_timers(broker)) == 0
    assert sum(broker.node.store.queues["T", number].max_offset for number in range(4)) == 15 + 8


@pytest.mark.parametrize(
    ("properties", "is_taken"),
    [
        ("TIMER_DELAY_SEC\x015\x02", True),
        ("TIMER_DELAY_SEC\x01259200\x02", True),
        ("TIMER_DELAY_SEC\x01259201\x02", False),
        ("TIMER_DELAY_MS\x01-1\x02", False),
        ("TIMER_DELAY_MS\x0105\x02", False),
        ("TIMER_DELAY_SEC\x015\x02TIMER_DELAY_MS\x017000\x02", False),
        ("TIMER_DELAY_SEC\x015\x02DELAY\x011\x02", False),
        ("TIMER_DELAY_SEC\x015\x02TIMER_DEL_UNIQKEY\x01T+x\x02", False),
        ("TIMER_DELAY_SEC\x015\x02TIMER_OUT_MS\x017\x02", False),
        (f"TIMER_DELAY_SEC\x015\x02big\x01{32_500 * 'b'}\x02", False),
    ],
)
def test_unusual_times_are_left_to_the_decoded_path(by_engine: Count, properties: str, *, is_taken: bool) -> None:
    compare_turns([[(CLIENT, send(1, properties=properties) + send(2))]])
    if NAME != "python":
        assert by_engine.messages == 1 + is_taken


# Priorities.


@pytest.mark.parametrize(
    ("properties", "queue_id", "is_taken"),
    [
        ("_SYS_MSG_PRIORITY_\x010\x02", 0, True),
        ("_SYS_MSG_PRIORITY_\x013\x02", 3, True),
        ("_SYS_MSG_PRIORITY_\x0111\x02", 11, True),
        ("_SYS_MSG_PRIORITY_\x0112\x02", 11, True),
        ("_SYS_MSG_PRIORITY_\x012147483647\x02", 11, True),
        ("_SYS_MSG_PRIORITY_\x012147483648\x02", 5, False),
        ("_SYS_MSG_PRIORITY_\x01-1\x02", 5, False),
        ("_SYS_MSG_PRIORITY_\x01high\x02", 5, False),
        ("_SYS_MSG_PRIORITY_\x013\x02__SHARDINGKEY\x01a\x02", 5, False),
    ],
)
def test_priority_chooses_the_queue(by_engine: Count, properties: str, queue_id: int, *, is_taken: bool) -> None:
    def script(broker: Recorder) -> None:
        broker.receive([(CLIENT, send(1, queue=5, properties=properties))])

    broker = compare(script)
    assert codes(broker) == [OK]
    assert b'"queueId":"%d"' % queue_id in broker.sent[CLIENT]
    assert broker.node.store.queues["T", queue_id].max_offset == 1
    if NAME != "python":
        assert by_engine.messages == is_taken
