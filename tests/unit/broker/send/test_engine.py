"""Sends through the engine: the same log, queues, index, responses and errors as by decoding each of them."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tandemq.broker.send.processor import SendPath
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.engine import NAME
from tandemq.errors import DiskFailed, DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tandemq.model.topic import TopicConfig
from tests.fuzz.frames import ODD_TEXTS, STYLES, Frames, Sent, Turns, frame_of
from tests.fuzz.reduction import reduced
from tests.golden import GOLDEN
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields
from tests.unit.broker.send.comparison import (
    BIG,
    LINKS,
    TOPICS,
    Recorder,
    compare,
    compare_turns,
    difference,
    run_script,
)
from tests.unit.engine.modules import compiled_engine

OK = ResponseCode.SUCCESS
SMALL: dict[str, Any] = {"segment_bytes": 32 * 1024, "message_bytes_max": 8 * 1024}
V6: dict[str, Any] = {"address": "[fe80::1]:10911", "peers": {1: "[fe80::2]:500", 2: "1.2.3.4:5", 3: "[::1]:70"}}
CHANGES: tuple[dict[str, Any], ...] = (
    {}, SMALL, V6, SMALL | V6, {"opens_queues": False}, {"flush_type": "SYNC_FLUSH"}, {"role": "SYNC_MASTER"},
    {"index_enable": False}, {"auto_create_topic": False}, {"region": 'r"egion é'}, {"cluster": "Other"},
)  # fmt: skip


class Count:
    """Messages that the engine took."""

    def __init__(self) -> None:
        self.messages = 0

    def expect(self, least: int) -> None:
        """Assert that the engine took at least so many since the last call, if it is the compiled one."""
        assert self.messages >= least or NAME == "python", f"{self.messages} of {least}"
        self.messages = 0


@pytest.fixture(autouse=True)
def by_engine() -> Iterator[Count]:
    compiled_engine()
    count = Count()
    with pytest.MonkeyPatch.context() as patch:
        store = SendPath.store_waiting

        def counting(self: SendPath) -> None:
            count.messages += self._engine.count
            store(self)

        patch.setattr(SendPath, "store_waiting", counting)
        yield count


def send(
    number: int,
    *,
    queue: int = 0,
    topic: str = "T",
    size: int = 40,
    flag: int = 0,
    properties: str = "WAIT\x01true\x02TAGS\x01t\x02",
    opaque: int = 1_000_000,
    body: bytes | None = None,
    code: int = RequestCode.SEND_MESSAGE_V2,
    **changes: Any,
) -> bytes:
    """Encode a message whose body contains its number."""
    fields = {key: str(value) for key, value in send_fields(topic, queue).items()}
    fields["i"] = f"UNIQ_KEY\x017F01{number:08d}\x02{properties}"
    body = (b"%d." % number * size)[:size] if body is None else body
    is_binary = changes.pop("binary", False)
    return encode_command(Command(code, opaque + number, flag, fields=fields | changes, body=body, binary=is_binary))


def stream(count: int, first: int = 0, **more: Any) -> bytes:
    return b"".join([send(first + number, queue=number % 4, **more) for number in range(count)])


def batch(number: int, parts: Sequence[BatchPart] | bytes, *, properties: str = "", **changes: Any) -> bytes:
    """Encode a batch."""
    body = parts if isinstance(parts, bytes) else encode_batch(list(parts))
    return send(number, body=body, code=RequestCode.SEND_BATCH_MESSAGE, **({"m": "true", "i": properties} | changes))


def parts_of(first: int, count: int = 8, *, size: int = 40, more: bytes = b"TAGS\x01t\x02") -> list[BatchPart]:
    return [
        BatchPart(number, (b"%d." % number * size)[:size], b"UNIQ_KEY\x017F01%06d\x02" % number + more)
        for number in range(first, first + count)
    ]


def codes(broker: Harness, link: int = CLIENT) -> list[int]:
    return [answer.code for answer in broker.inbox[link]]


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
    "code": 310, "flag": 0, "language": "JAVA", "opaque": 7, "serializeTypeCurrentRPC": "JSON", "version": 407,
    "extFields": {key: str(value) for key, value in send_fields("T", 1, {"UNIQ_KEY": "0A", "TAGS": "t"}).items()},
}  # fmt: skip


def json_frame(header: bytes | dict[str, Any], body: bytes = b"body") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header, separators=(",", ":")).encode()
    return frame_of(0, raw, body)


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
    for name in [*HEADER, "remark", "x"]:
        for value in values:
            compare_turns([[(1, json_frame(HEADER | {name: value}))]], links=(1,))
        compare_turns([[(1, json_frame({key: value for key, value in HEADER.items() if key != name}))]], links=(1,))
    fields: dict[str, Any] = HEADER["extFields"]  # type: ignore[assignment]
    for name in [*fields, "l", "n", "topic", "properties", "x", ""]:
        headers = [HEADER | {"extFields": fields | {name: value}} for value in values]
        headers.append(HEADER | {"extFields": {key: value for key, value in fields.items() if key != name}})
        compare_turns([[(1, json_frame(header))] for header in headers], links=(1,))


def test_texts_with_any_escape_and_any_byte() -> None:
    plain = json.dumps(HEADER, separators=(",", ":")).encode()
    for place in (b'"0A', b'"i":"', b'"b":"T', b'"a":"', b'"JAVA', b'"co', b'"e', b'"UNIQ_KEY\\u00010'):
        for text in [*ODD_TEXTS, *[bytes([byte]) for byte in range(256)]]:
            if place in plain:
                at = plain.index(place) + len(place)
                compare_turns([[(1, json_frame(plain[:at] + text + plain[at:]))]], links=(1,))


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
    names = (
        "WAIT", "DELAY", "KEYS", "TAGS", "UNIQ_KEY", "CLUSTER", "REAL_TOPIC", "REAL_QID", "__CRC32#", "TRAN_MSG",
        "TIMER_X", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS", "TIMER_OUT_MS", "RETRY_TOPIC", "",
        "a", "é", "PGROUP",
    )  # fmt: skip
    for name in names:
        frames = [send(1, properties=f"{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [send(2, i=f"{name}\x01{value}", binary=is_binary) for value in values]
        frames += [send(3, i=f"{name}\x01x\x02A\x01b\x02{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [batch(4, parts_of(1, 2), properties=f"{name}\x01{value}\x02", binary=is_binary) for value in values]
        frames += [batch(5, parts_of(1, 2, more=f"{name}\x01{value}".encode()), binary=is_binary) for value in values]
        compare_turns([[(1, frame)] for frame in frames])


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


# Order and turns.


@pytest.mark.parametrize(
    "odd",
    [
        send(77, queue=11),
        send(77, queue=12),
        send(77, queue=-1),
        send(77, topic="Other"),
        send(77, topic="New"),
        send(77, size=0),
        send(77, flag=FLAG_ONEWAY),
        send(77, flag=FLAG_RESPONSE),
        send(77, properties="WAIT\x01false\x02"),
        send(77, properties="KEYS\x01a b\x02"),
        send(77, properties="DELAY\x013\x02"),
        send(77, properties="DELAY\x01x\x02"),
        send(77).replace(b"7F01", b"7F\xc3\xa9"),
        send(77).replace(b'"T"', b'"X"'),
        send(77, topic="%RETRY%group", j="99"),
        batch(77, parts_of(9)),
        encode_command(Command(RequestCode.GET_MAX_OFFSET, 5, fields={"topic": "T", "queueId": "0"})),
    ],
)
def test_one_message_of_another_kind_among_many(by_engine: Count, odd: bytes) -> None:
    for place in (0, 1, 30, 60):
        compare_turns([[(CLIENT, stream(place, 50_000) + odd + stream(60 - place, 60_000)), (2, stream(8, 70_000))]])
    by_engine.expect(4 * 60)


@pytest.mark.parametrize("by", [1, -1, 255])
def test_border_between_header_and_body_at_the_wrong_place(by: int) -> None:
    frame = send(7)
    moved = frame[:4] + (int.from_bytes(frame[4:8]) + by).to_bytes(4) + frame[8:]
    broker = compare_turns([[(CLIENT, stream(4) + moved + stream(4)), (2, stream(4, 50))]])
    assert codes(broker, 2) == [OK] * 4
    assert [link for link, _ in broker.closes] == [CLIENT]


def test_frames_split_at_any_byte() -> None:
    data = stream(4, 50_000) + send(5, binary=True) + batch(6, parts_of(3, 3))
    for cut in range(1, len(data), 13):
        compare_turns([[(CLIENT, data[:cut]), (2, stream(2))], [(CLIENT, data[cut:])]])
    for cut in (1, 7, 9, 200):
        compare_turns([[(CLIENT, data[:cut]), (2, send(80_000)), (CLIENT, data[cut:]), (CLIENT, send(70_000))]])
    places = [*range(0, len(data), 7), len(data)]
    compare_turns([[(CLIENT, data[first:last])] for first, last in pairwise(places)])


def test_many_connections_with_one_message_each(by_engine: Count) -> None:
    many = range(1, 41)
    turns = [[(link, send(1000 * turn + link, queue=link % 4)) for link in many] for turn in range(8)]
    broker = compare_turns(turns, links=many)
    assert all(len(broker.inbox[link]) == 8 for link in many)
    by_engine.expect(320)


def test_end_of_a_file_within_a_turn(by_engine: Count) -> None:
    for changes in (SMALL, SMALL | V6):
        sizes = Random(3)
        turns = [
            [(link, b"".join([send(n, size=sizes.randrange(1, 3000)) for n in range(20)])) for link in LINKS]
            for _ in range(6)
        ]
        compare_turns(turns, **changes)
    by_engine.expect(600)


def test_record_that_fits_the_rest_of_a_file_to_the_byte() -> None:
    def script(broker: Recorder) -> None:
        log = broker.node.store.log
        broker.receive([(CLIENT, send(1))])
        record_bytes = log.end - 40
        for spare in range(-3, 12):
            while (room := log.room) > 9_000:
                broker.receive([(CLIENT, send(2, size=7_000))])
            broker.receive([(CLIENT, send(3, size=room - record_bytes - spare) + send(4))])
        assert log.end > 14 * 32 * 1024

    compare(script, **(SMALL | {"message_bytes_max": 9_000}))


def test_topic_created_again_between_and_within_turns() -> None:
    delete = encode_command(Command(RequestCode.DELETE_TOPIC_IN_BROKER, 7, fields={"topic": "T"}))
    turns = [
        [(CLIENT, stream(20)), (2, delete), (CLIENT, stream(20, 100)), (3, stream(5, 200) + delete + stream(5, 300))]
    ]
    turns += [
        [(2, delete)],
        [(CLIENT, stream(20, 400))],
        [(CLIENT, stream(9, 500) + delete)],
        [(CLIENT, stream(9, 600))],
    ]
    broker = compare_turns(turns)
    assert [answer.code for answer in broker.inbox[CLIENT]] == [OK] * 79
    found = broker.pull("T", 0)
    assert found is not None
    assert messages_in(found)[0].body.startswith(b"600.")
    assert broker.node.topics.table["T"].config.write_queue_nums != 12


def test_smaller_limit_takes_effect_within_the_turn() -> None:
    less = encode_command(Command(RequestCode.UPDATE_BROKER_CONFIG, 7, body=b"maxMessageSize=1024"))
    broker = compare_turns([[(2, stream(4, size=1_100) + less), (CLIENT, stream(40, 50_000, size=1_100))]])
    assert codes(broker) == [ResponseCode.MESSAGE_ILLEGAL] * 40
    assert codes(broker, 2) == [OK] * 5


def test_changed_permission_of_a_topic_takes_effect_within_the_turn() -> None:
    fields = {
        "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "2", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
    }  # fmt: skip
    for change, code in (({}, OK), ({"perm": "4"}, ResponseCode.NO_PERMISSION), ({"writeQueueNums": "12"}, OK)):
        update = encode_command(Command(RequestCode.UPDATE_AND_CREATE_TOPIC, 7, fields=fields | change))
        broker = compare_turns([[(CLIENT, stream(8) + update + stream(8, 50)), (2, send(90))]])
        assert codes(broker, 2) == [code]


def test_broker_that_accepts_no_messages() -> None:
    close = encode_command(Command(RequestCode.UPDATE_BROKER_CONFIG, 7, body=b"brokerPermission=4"))
    broker = compare_turns([[(CLIENT, stream(4) + close + stream(4, 50))], [(2, stream(4, 90))]])
    assert codes(broker).count(OK) >= 5

    def refusing(broker: Recorder) -> None:
        broker.receive([(CLIENT, stream(4))])
        broker.node.send.refuse("test", "not now")
        broker.receive([(CLIENT, stream(4, 50))])
        broker.node.send.admit("test")
        broker.receive([(CLIENT, stream(4, 90))])

    broker = compare(refusing)
    assert codes(broker) == [OK] * 4 + [ResponseCode.SERVICE_NOT_AVAILABLE] * 4 + [OK] * 4


@pytest.mark.parametrize("error", [DiskFull, DiskFailed])
def test_failed_write_is_an_error_for_every_sender_and_nothing_is_stored(error: type[Exception]) -> None:
    def script(broker: Recorder) -> None:
        sent = [
            (link, stream(5, 100 * link) + batch(link, parts_of(link)) + send(9, flag=FLAG_ONEWAY)) for link in LINKS
        ]
        broker.receive(sent)
        end = broker.node.store.log.written_end
        broker.inbox.clear()
        broker.disk_in_memory.fail("pwrite", times=1, error=error, prefix="commitlog")  # type: ignore[arg-type]
        broker.receive(sent)
        for link in LINKS:
            assert codes(broker, link) == [ResponseCode.SERVICE_NOT_AVAILABLE] * 6
        assert broker.node.store.log.written_end == end
        assert broker.node.acknowledgements.failed_puts == 3 * 14
        broker.disk_in_memory.heal()
        broker.receive(sent)
        assert (broker.node.store.log.written_end > end) is (error is DiskFull)

    compare(script)


def test_one_way_sends_are_stored_and_not_answered(by_engine: Count) -> None:
    sent = (
        stream(20, flag=FLAG_ONEWAY)
        + batch(3, parts_of(7), flag=FLAG_ONEWAY)
        + stream(20, flag=FLAG_ONEWAY, binary=True)
    )
    broker = compare_turns([[(CLIENT, sent), (2, stream(3) + sent + stream(3))]])
    assert not broker.inbox[CLIENT]
    assert codes(broker, 2) == [OK] * 6
    assert broker.node.send.count == 2 * 48 + 6
    by_engine.expect(2 * 48 + 6)


def test_held_pulls_get_messages_of_the_engine(by_engine: Count) -> None:
    def script(broker: Recorder) -> None:
        for queue in range(4):
            assert broker.pull("T", 0, queue_id=queue, wait_ms=10_000, link=2) is None
        broker.receive([(CLIENT, stream(8))])
        assert [len(messages_in(answer)) for answer in broker.inbox[2]] == [2] * 4

    compare(script)
    by_engine.expect(8)


def test_restarted_broker_goes_on_with_messages_of_the_engine() -> None:
    def script(broker: Recorder) -> None:
        broker.receive([(CLIENT, stream(40, properties="KEYS\x01a b\x02")), (2, batch(2, parts_of(5)))])

    broker = run_script(script, uses_engine=True)
    again = broker.restart(clean=False)
    (message,) = messages_in(again.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": 0}))
    assert message.body.startswith(b"0.")
    assert len(messages_in(again.ask(RequestCode.QUERY_MESSAGE, _query("a")))) == 40
    assert len(messages_in(again.ask(RequestCode.QUERY_MESSAGE, _query("7F01000007")))) == 1
    again.node.close()


def _query(key: str) -> dict[str, object]:
    return {"topic": "T", "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": 1 << 62}


# Batches.


def test_batches_of_any_content(by_engine: Count) -> None:
    mores = (
        b"",
        b"WAIT\x01true\x02KEYS\x01one two\x02",
        b"TAGS\x01t",
        b"A\x01\x02TAGS\x01t\x02",
        b"DELAY\x013\x02",
        b"x\x02",
        b"\xff\x01\xfe\x02",
        b"__CRC32#\x010123456789\x02",
        b"UNIQ_KEY\x01second\x02",
        b"TIMER_DELAY_MS\x015\x02",
        b"TIMER_X\x015\x02",
        b"KEYS\x01\xff\xc3\x02TAGS\x01\xff\x02",
        b"TAGS\x01\x02",
    )
    sent = [(LINKS[number % 3], batch(number, parts_of(100 * number, more=more))) for number, more in enumerate(mores)]
    compare_turns([sent, [(1, b"".join([frame for _, frame in sent]))]])
    by_engine.expect(2 * 80)


def test_batches_of_any_size(by_engine: Count) -> None:
    bodies = (
        b"", bytes(42), bytes(22), (22).to_bytes(4) + bytes(18), encode_batch([BatchPart(0, b"x" * 30, b"")] * 20),
        encode_batch(parts_of(0, 1, size=8000)), encode_batch(parts_of(0, 900)), encode_batch(parts_of(0, 8, size=0)),
        encode_batch(parts_of(0, 3))[:-1], encode_batch(parts_of(0, 3)) + b"\0",
        encode_batch([BatchPart(0, b"", b"")] * 4097),
    )  # fmt: skip
    for changes in ({}, {"message_bytes_max": 512 * 1024, "frame_bytes_max": 1 << 20}):
        compare_turns(
            [[(1, batch(number, body)), (2, batch(9, parts_of(1)))] for number, body in enumerate(bodies)], **changes
        )
    by_engine.expect(1000)


@given(st.data())
def test_damaged_batches(data: st.DataObject) -> None:
    sent = [bytearray(encode_batch(parts_of(number * 1000))) for number in range(8)]
    for _ in range(data.draw(st.integers(1, 3))):
        raw = sent[data.draw(st.integers(0, 7))]
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    compare_turns([[(LINKS[number % 3], batch(number, bytes(raw))) for number, raw in enumerate(sent)]])


@pytest.mark.parametrize("more", [b"", b"A\x01b", b"A\x01b\x02"])
@pytest.mark.parametrize("changes", [{}, V6])
def test_batch_lies_in_one_file_and_all_are_there_across_many_files(changes: dict[str, Any], more: bytes) -> None:
    small = {"segment_bytes": 8192, "message_bytes_max": 4096}
    turns = [[(link, batch(link, [BatchPart(0, 20 * b"x", more)] * count)) for link in LINKS] for count in range(1, 40)]
    broker = compare_turns(turns, **(small | changes))
    for answer in [answer for link in LINKS for answer in broker.inbox[link]]:
        assert answer.code == OK
        offsets = [int(text[-16:], 16) for text in answer.fields["msgId"].split(",")]
        assert len({offset // 8192 for offset in offsets}) == 1
    again = broker.restart(clean=False)
    assert again.node.store.log.end == broker.node.store.log.end
    again.node.close()


@pytest.mark.parametrize("changes", [SMALL, SMALL | V6])
def test_batch_that_fits_the_rest_of_a_file_to_the_byte(changes: dict[str, Any]) -> None:
    frame = batch(9, [BatchPart(0, 20 * b"x", b"A\x01b")] * 20)

    def script(broker: Recorder) -> None:
        log = broker.node.store.log
        broker.receive([(CLIENT, send(1))])
        record_bytes = log.end - 40
        broker.receive([(CLIENT, frame)])
        batch_bytes = log.end - record_bytes - 40
        for spare in range(-10, 60):
            while not 2_000 <= (room := log.room) - batch_bytes <= 9_000:
                broker.receive([(CLIENT, send(2, size=6_000))])
            size = room - batch_bytes - record_bytes - spare
            broker.receive(
                [(CLIENT, b"".join([send(3, size=size // 2), send(4, size=size - size // 2 - record_bytes)]))]
            )
            assert log.room == batch_bytes + spare
            broker.receive([(CLIENT, frame)])
            offsets = [int(text[-16:], 16) for text in broker.inbox[CLIENT][-1].fields["msgId"].split(",")]
            assert len({offset // (32 * 1024) for offset in offsets}) == 1

    again = compare(script, **changes).restart(clean=False)
    assert again.node.store.log.end > 32 * 1024
    again.node.close()


def test_batch_that_fits_into_no_file_is_refused_and_the_others_stored() -> None:
    broker = compare_turns(
        [[(1, batch(1, parts_of(0, 200, size=1))), (2, batch(2, parts_of(1)))]],
        **(SMALL | {"message_bytes_max": 16_000}),
    )
    assert codes(broker) == [ResponseCode.MESSAGE_ILLEGAL]
    assert codes(broker, 2) == [OK]


def test_topics_of_the_comparison_exist() -> None:
    broker = run_script(lambda _: None, uses_engine=True)
    assert {topic.topic_name for topic in TOPICS} <= set(broker.node.topics.table)
    assert broker.config.message_bytes_max == BIG["message_bytes_max"]
    broker.node.close()
