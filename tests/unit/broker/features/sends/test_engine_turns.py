"""Turns with sends through the engine: order, ends of files, changes within a turn, failed writes, batches."""

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting import response_budget
from tandemq.codec.remoting.frame import encode_command
from tandemq.errors import DiskFailed, DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tests.unit.broker.features.sends.comparison import (
    BIG,
    LINKS,
    TOPICS,
    Recorder,
    compare,
    compare_turns,
    run_script,
)
from tests.unit.broker.features.sends.messages import SMALL, V6, Count, batch, codes, parts_of, send, stream
from tests.unit.broker.harness import CLIENT, messages_in

pytestmark = pytest.mark.usefixtures("by_engine")
OK = ResponseCode.SUCCESS
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
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
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
        broker.node.puts.refuse("test", "not now")
        broker.receive([(CLIENT, stream(4, 50))])
        broker.node.puts.admit("test")
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
        assert broker.node.puts.failures == 3 * 14
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
    assert broker.node.puts.count == 2 * 48 + 6
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


def test_sends_behind_large_responses_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget for responses of a turn is for tables and lists: sends have limits of their own."""
    monkeypatch.setattr(response_budget, "TURN_BYTES_MAX", 1_000)
    tables = encode_command(Command(RequestCode.GET_ALL_TOPIC_CONFIG, 7))
    broker = compare_turns([[(CLIENT, stream(2) + tables + tables + stream(2) + send(5, code=10))]])
    assert codes(broker) == [OK, ResponseCode.SYSTEM_BUSY, OK, OK, OK, OK, ResponseCode.SYSTEM_ERROR]


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
        b"",
        bytes(42),
        bytes(22),
        (22).to_bytes(4) + bytes(18),
        encode_batch([BatchPart(0, b"x" * 30, b"")] * 20),
        encode_batch(parts_of(0, 1, size=8000)),
        encode_batch(parts_of(0, 900)),
        encode_batch(parts_of(0, 8, size=0)),
        encode_batch(parts_of(0, 3))[:-1],
        encode_batch(parts_of(0, 3)) + b"\0",
        encode_batch([BatchPart(0, b"", b"")] * 4097),
    )
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
