"""Messages that clients name by a log offset; bytes in a body that look like a record are none."""

from pathlib import Path

import pytest

from tandemq.broker.kernel.connection import pack_host
from tandemq.codec.record.record import HEAD_V4, encode_record, message_id
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tandemq.storage.store import FIRST_READ_BYTES
from tests.unit.broker.features.transactions.producer import COMMIT, end, half
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness, messages_in, send_fields

CONSUMER = 7
HOST = pack_host("127.0.0.1:10911")


def view(broker: Harness, log_offset: int) -> bytes | None:
    """Return the body of the message at a log offset as the broker shows it; None if there is none."""
    answer = broker.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": log_offset})
    if answer.code == ResponseCode.SUCCESS:
        (message,) = messages_in(answer)
        return message.body
    assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {log_offset}")
    return None


def forge(broker: Harness, topic: str = "TopicA", queue_id: int = 0, queue_offset: int = 0) -> int:
    """Send a message whose body is a whole record of another one; return its offset, at which a record parses."""
    log_offset = broker.node.store.log.written_end + HEAD_V4.size
    body = encode_record(
        topic=topic.encode(),
        queue_id=queue_id,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=b"forged",
        properties=b"",
        flag=0,
        sys_flag=0,
        born_ms=broker.now.wall_ms,
        born_host=HOST,
        store_ms=broker.now.wall_ms,
        store_host=HOST,
    )
    assert broker.ask(Code.SEND_MESSAGE_V2, send_fields("TopicA", 1), body).code == ResponseCode.SUCCESS
    assert broker.node.store.record_at(log_offset) is not None
    return log_offset


QUEUE_POSITIONS = [
    ("TopicA", 0, 0),  # of a message that exists
    ("TopicA", 1, 0),
    ("TopicA", 0, 1),
    ("TopicA", 0, -1),
    ("TopicA", 0, (1 << 63) - 1),
    ("TopicA", 0, -(1 << 63)),
    ("TopicA", -1, 0),
    ("TopicA", (1 << 31) - 1, 0),
    ("TopicB", 0, 0),  # no such topic
    ("../../config", 0, 0),
    ("", 0, 0),
    (SCHEDULE_TOPIC, 2, 0),
    ("%RETRY%group", 0, 0),
]


def test_forged_record_in_a_body_does_not_exist(tmp_path: Path) -> None:
    """It can be neither shown nor sent back, nor given to a consumer, whatever queue it states."""
    broker = Harness(tmp_path)
    broker.open(CONSUMER)
    broker.heartbeat("group", {"TopicA": "*"}, link=CONSUMER, client_id="client-7")
    broker.send("TopicA", b"honest")
    broker.send("TopicA", b"delayed", DELAY="3")
    forged = [forge(broker, *position) for position in QUEUE_POSITIONS]
    end_before = broker.node.store.log.written_end
    for log_offset, position in zip(forged, QUEUE_POSITIONS, strict=True):
        assert view(broker, log_offset) is None, position
        back = broker.ask(Code.CONSUMER_SEND_MSG_BACK, {"offset": log_offset, "group": "group", "delayLevel": -1})
        assert (back.code, back.remark) == (1, f"look message by offset failed, {log_offset}"), position
        fields = {"consumerGroup": "group", "clientId": "client-7", "msgId": message_id(HOST, log_offset)}
        directly = broker.ask(Code.CONSUME_MESSAGE_DIRECTLY, fields)
        assert (directly.code, "there is no message" in (directly.remark or "")) == (1, True), position
    assert broker.take_requests(Code.CONSUME_MESSAGE_DIRECTLY, link=CONSUMER) == []
    assert broker.node.store.log.written_end == end_before


def test_every_honest_message_is_found_by_its_offset(tmp_path: Path) -> None:
    """In memory, in the files, and after a restart: of topics of users and of the broker."""
    broker = Harness(tmp_path)
    kept = [int(broker.send("TopicA", b"one", TAGS="a").fields["msgId"][16:], 16)]
    half(broker)
    broker.send("TopicA", b"delayed", DELAY="3")
    broker.send("TopicA", b"timed", TIMER_DELAY_SEC="30")
    for level in (1, -1):
        back = {"offset": kept[0], "group": "group", "delayLevel": level}
        assert broker.ask(Code.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SUCCESS
    assert end(broker, 0, COMMIT).code == ResponseCode.SUCCESS
    broker.pass_time(60_000)
    topics = {topic for topic, _ in broker.node.store.queues}
    assert {HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, "%RETRY%group", "%DLQ%group"} <= topics
    for at in (broker, broker.restart(clean=False), broker.restart()):
        _assert_all_are_found(at)


def _assert_all_are_found(broker: Harness) -> None:
    store = broker.node.store
    for queue in store.queues.values():
        for entry in store.entries(queue, queue.min_offset, queue.max_offset):
            answer = broker.ask(Code.VIEW_MESSAGE_BY_ID, {"offset": entry[0]})
            assert answer.body == store.log.read(entry[0], entry[1]), queue.topic


def test_slave_finds_messages_by_offset_and_no_forged_one(tmp_path: Path) -> None:
    group = Group(tmp_path, role="ASYNC_MASTER")
    group.send(b"honest")
    forged = forge(group.master)
    group.settle()
    assert (view(group.slave, 0), view(group.slave, forged)) == (b"honest", None)


@pytest.mark.parametrize("log_offset", [-1, -(1 << 63), (1 << 63) - 1, 1, 1 << 40])
def test_offset_at_which_no_message_begins_is_answered_so(tmp_path: Path, log_offset: int) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    assert view(broker, log_offset) is None


def test_message_of_a_deleted_topic_is_not_found_by_its_offset(tmp_path: Path) -> None:
    """Nothing confirms it any more, nor does the message that has its place in a topic of the same name."""
    broker = Harness(tmp_path)
    sent = int(broker.send("TopicA", b"old").fields["msgId"][16:], 16)
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
    assert view(broker, sent) is None
    renewed = int(broker.send("TopicA", b"new").fields["msgId"][16:], 16)
    assert (view(broker, sent), view(broker, renewed)) == (None, b"new")


def test_messages_behind_removed_queue_files_are_found(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    offsets = [int(broker.send("TopicA", bytes([at]) * 1500).fields["msgId"][16:], 16) for at in range(40)]
    broker.pass_time(2_000)
    store = broker.node.store
    while len(store.log.segment_starts) > 1:
        store.drop_first_segment()
    assert store.queues["TopicA", 0].min_offset > 20
    found = [at for at in offsets if view(broker, at) is not None]
    assert found == [at for at in offsets if at >= store.log.start] != []


@pytest.mark.parametrize("damage", ["zeroes", "another", "short"])
def test_damaged_queue_entry_confirms_no_message(tmp_path: Path, damage: str) -> None:
    broker = Harness(tmp_path)
    offsets = [int(broker.send("TopicA", b"x").fields["msgId"][16:], 16) for _ in range(3)]
    queue = broker.node.store.queues["TopicA", 0]
    if damage == "short":
        broker.pass_time(2_000)
        (file,) = (tmp_path / "consumequeue" / "TopicA" / "0").iterdir()
        with file.open("r+b") as opened:
            opened.truncate(25)
    else:
        queue.rewrite(1, bytes(20) if damage == "zeroes" else queue.read(2, 1))
    assert [view(broker, at) is not None for at in offsets] == [True, False, damage != "short"]


def test_request_reads_no_more_than_the_record_that_it_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four bytes of a body, read as a size, could have the rest of a log file read into memory."""
    broker = Harness(tmp_path)
    store = broker.node.store
    start = store.log.written_end
    forged = bytearray(HEAD_V4.size)
    forged[:8] = (30_000).to_bytes(4) + (0xDAA320A7).to_bytes(4)
    forged[28:36] = (start + HEAD_V4.size).to_bytes(8)
    forged[84:88] = (29_000).to_bytes(4)
    broker.send("TopicA", bytes(forged) + (20_000).to_bytes(4) * 100)
    while store.log.written_end < 31_000:
        broker.send("TopicA", b"x" * 1_500)
    sizes: list[int] = []
    read = store.log.read

    def counted(offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(offset, size)

    monkeypatch.setattr(store.log, "read", counted)
    for within in (HEAD_V4.size, 2 * HEAD_V4.size, 2 * HEAD_V4.size + 4):
        assert view(broker, start + within) is None
    assert 0 < max(sizes) <= FIRST_READ_BYTES
    assert view(broker, start) is not None
