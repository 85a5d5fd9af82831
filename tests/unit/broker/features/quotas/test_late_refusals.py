"""Refusals of sends beyond a limit wait, so that producers that repeat at once do not keep the broker busy."""

from pathlib import Path

import pytest

from tandemq.broker.features.sends import slowed
from tandemq.codec.remoting.fastjson import dumps
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.harness import Harness, send_fields

BUSY = ResponseCode.SYSTEM_BUSY
LAST_MS = slowed.REFUSAL_MS_MIN + slowed.REFUSAL_MS_SPREAD


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """A broker whose topic T takes ten messages per second."""
    broker = Harness(tmp_path)
    broker.create_topic("T")
    body = dumps({"quotas": [{"kind": "topic", "name": "T", "messagesPerSecond": 10}]})
    assert broker.ask(RequestCode.TANDEM_SET_QUOTAS, body=body).code == ResponseCode.SUCCESS
    broker.open(7)
    return broker


def ask(broker: Harness, number: int, *, link: int = 7, is_oneway: bool = False) -> list[int]:
    fields = send_fields("T")
    return [
        broker.send_request(RequestCode.SEND_MESSAGE_V2, fields, b"x", link=link, is_oneway=is_oneway)
        for _ in range(number)
    ]


def answers(broker: Harness, asked: list[int]) -> list[Command]:
    found = [broker.answer_to(one, link=7) for one in asked]
    return [answer for answer in found if answer is not None]


def test_refusals_come_later_and_not_all_at_once(broker: Harness) -> None:
    asked = ask(broker, 40)
    assert [answer.code for answer in answers(broker, asked)] == [ResponseCode.SUCCESS] * 10
    broker.pass_time(slowed.REFUSAL_MS_MIN - 1)
    assert not answers(broker, asked)
    numbers = []
    for _ in range(6):
        broker.pass_time(slowed.REFUSAL_MS_SPREAD // 6 + 1)
        found = answers(broker, asked)
        assert {answer.code for answer in found} <= {BUSY}
        numbers.append(len(found))
    assert sum(numbers) == 30
    assert all(0 < number < 15 for number in numbers)
    assert broker.node.store.queues["T", 0].max_offset == 10
    assert broker.node.deadline_ms() is not None


def test_refused_sends_keep_no_memory_of_their_bodies_and_are_bounded(
    broker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slowed, "SENDS_MAX", 5)
    asked = ask(broker, 20)
    assert [answer.code for answer in answers(broker, asked)] == [ResponseCode.SUCCESS] * 10 + [BUSY] * 5
    broker.pass_time(LAST_MS)
    assert [answer.code for answer in answers(broker, asked)] == [BUSY] * 5


def test_refused_oneway_sends_are_not_answered(broker: Harness) -> None:
    ask(broker, 10)
    oneway = ask(broker, 3, is_oneway=True)
    broker.pass_time(LAST_MS)
    assert not answers(broker, oneway)
    assert broker.node.faults == 0
    assert broker.node.store.queues["T", 0].max_offset == 10
