"""Requests for the entries of a queue without its messages."""

from pathlib import Path

import pytest

from tandemq.broker.features.pulls import queue_entries
from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.serving import let
from tests.unit.broker.features.pulls.test_device_reads import Uncached
from tests.unit.broker.harness import Harness

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
