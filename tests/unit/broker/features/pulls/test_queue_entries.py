"""Requests for the entries of a queue, and for messages without their bodies."""

import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from tandemq.broker.features.pulls import queue_entries
from tandemq.codec.record.entries import HOLE_SIZE_MAX, QUEUE_ENTRY
from tandemq.codec.record.record import decode_messages, parse_record, record_fault
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import SysFlag
from tests.serving import let
from tests.unit.broker.features.pulls.test_device_reads import Uncached
from tests.unit.broker.harness import Harness, messages_in, send_fields

OK = ResponseCode.SUCCESS


def fields_of(index: int = 0, count: int = 100, topic: str = "TopicA", queue_id: int = 1) -> dict[str, object]:
    return {"topic": topic, "queueId": queue_id, "index": index, "count": count}


def ask(broker: Harness, index: int = 0, count: int = 100, topic: str = "TopicA", queue_id: int = 1) -> Command:
    return broker.ask(RequestCode.TANDEM_QUEUE_ENTRIES, fields_of(index, count, topic, queue_id))


def entries_in(answer: Command) -> list[tuple[int, int, int]]:
    assert answer.code == OK, answer.remark
    return list(QUEUE_ENTRY.iter_unpack(answer.body))


def test_entries_are_those_that_operators_see(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for size in (10, 200, 3):
        broker.send("TopicA", b"x" * size, queue_id=1)
    shown = loads(broker.ask(RequestCode.QUERY_CONSUME_QUEUE, fields_of()).body)["queueData"]
    answer = ask(broker)
    assert entries_in(answer) == [(one["physicOffset"], one["physicSize"], one["tagsCode"]) for one in shown]
    assert (answer.fields["minOffset"], answer.fields["maxOffset"]) == ("0", "3")
    assert entries_in(ask(broker, 1, 1)) == entries_in(answer)[1:2]
    assert entries_in(ask(broker, 2)) == entries_in(answer)[2:]


def test_response_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    for _ in range(9):
        broker.send("TopicA", queue_id=1)
    monkeypatch.setattr(queue_entries, "ENTRIES_MAX", 4)
    assert [len(entries_in(ask(broker, 0, count))) for count in (-5, 0, 3, 4, 5, (1 << 31) - 1)] == [1, 1, 3, 4, 4, 4]


def test_entries_of_messages_that_may_not_be_read_yet_are_not_returned(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", queue_id=1)
    end = broker.node.store.log.written_end
    broker.send("TopicA", queue_id=1)
    let(broker.node, visible_end=end)
    assert len(entries_in(ask(broker))) == 1
    moved = ask(broker, 1)
    assert (moved.code, moved.fields["maxOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")


def test_refusals_are_those_of_pulls(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", queue_id=1)
    for index in (-1, 1, 1 << 62):
        assert ask(broker, index).code == ResponseCode.PULL_OFFSET_MOVED
    assert ask(broker, queue_id=900).code == ResponseCode.PULL_OFFSET_MOVED
    assert ask(broker, topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
    assert broker.ask(RequestCode.TANDEM_QUEUE_ENTRIES, {"topic": "TopicA"}).code == ResponseCode.SYSTEM_ERROR
    broker.node.topics.table["TopicA"].config.perm = 2
    assert ask(broker).code == ResponseCode.NO_PERMISSION


def test_entries_that_are_not_in_the_page_cache_are_read_by_a_thread() -> None:
    broker = Uncached()
    broker.forget()
    opaque = broker.broker.send_request(RequestCode.TANDEM_QUEUE_ENTRIES, fields_of(0, 1_000, queue_id=0))
    assert broker.broker.answer_to(opaque) is None
    broker.run_reads()
    assert len(entries_in(broker.answer(opaque))) == 40


def heads(broker: Harness, index: int = 0, count: int = 100, topic: str = "TopicA", queue_id: int = 1) -> Command:
    return broker.ask(RequestCode.TANDEM_QUEUE_HEADS, fields_of(index, count, topic, queue_id))


def test_messages_are_returned_without_their_bodies(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    bodies = (b"", b"x" * 9, zlib.compress(bytes(5_000)), b"y" * 8_000)
    for number, body in enumerate(bodies):
        fields = send_fields("TopicA", 1, {"KEYS": f"k{number}", "TAGS": "t"})
        fields["f"] = int(SysFlag.COMPRESSED) if number == 2 else 0
        assert broker.ask(RequestCode.SEND_MESSAGE_V2, fields, body).code == OK
    whole = decode_messages(messages_of(broker))
    answer = heads(broker)
    assert answer.code == OK
    assert [answer.fields[name] for name in ("minOffset", "nextBeginOffset", "maxOffset")] == ["0", "4", "4"]
    assert len(answer.body) < 1_000
    found = messages_in(answer)
    assert [message.body for message in found] == [b""] * len(bodies)
    for one, other in zip(found, whole, strict=True):
        assert one.properties.keys() == other.properties.keys()
        assert replace(one, body=other.body, size=other.size, sys_flag=other.sys_flag, properties={}) == replace(
            other, properties={}
        )
    at = 0
    while at < len(answer.body):
        record = parse_record(answer.body, at, len(answer.body))
        assert not isinstance(record, str)
        assert record_fault(answer.body, at, record.size, record.body_start, record.body_end, record.body_crc) is None
        at += record.size
    assert [message.queue_offset for message in messages_in(heads(broker, 2, 1))] == [2]


def messages_of(broker: Harness) -> bytes:
    pulled = broker.pull("TopicA", queue_id=1)
    assert pulled is not None
    return pulled.body


def test_damaged_and_lost_messages_are_left_to_pulls(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for _ in range(3):
        broker.send("TopicA", b"body", queue_id=1)
    broker.node.store.queues["TopicA", 1].correct(1, 5, HOLE_SIZE_MAX, 0)
    assert [message.queue_offset for message in messages_in(heads(broker))] == [0, 2]
    assert heads(broker, 1, 1).code == ResponseCode.PULL_RETRY_IMMEDIATELY


def test_refusals_of_requests_for_heads_are_those_of_pulls(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", queue_id=1)
    for index in (-1, 1, 1 << 62):
        assert heads(broker, index).code == ResponseCode.PULL_OFFSET_MOVED
    assert heads(broker, topic="Unknown").code == ResponseCode.TOPIC_NOT_EXIST
    let(broker.node, visible_end=0)
    assert heads(broker).code == ResponseCode.PULL_OFFSET_MOVED
    broker.node.topics.table["TopicA"].config.perm = 2
    assert heads(broker).code == ResponseCode.NO_PERMISSION


def test_heads_that_are_not_in_the_page_cache_are_read_by_a_thread() -> None:
    broker = Uncached()
    broker.forget()
    opaque = broker.broker.send_request(RequestCode.TANDEM_QUEUE_HEADS, fields_of(0, 1_000, queue_id=0))
    assert broker.broker.answer_to(opaque) is None
    broker.run_reads()
    assert len(messages_in(broker.answer(opaque))) == 40
