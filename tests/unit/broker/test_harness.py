"""The test harness itself."""

from pathlib import Path

import pytest

from tandemq.model.codes import RequestCode, ResponseCode
from tests.unit.broker.harness import Harness, messages_in


def test_sent_message_is_pulled_and_survives_a_restart(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    assert broker.send("TopicA", b"one", TAGS="a").code == ResponseCode.SUCCESS
    broker = broker.restart()
    answer = broker.pull("TopicA")
    assert answer is not None
    assert [(found.body, found.tags) for found in messages_in(answer)] == [(b"one", "a")]


def test_request_without_a_response_is_an_error(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    with pytest.raises(AssertionError, match="no response"):
        broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, {"consumerGroup": "g"}, link=99)


def test_held_pull_is_answered_at_its_deadline(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    assert broker.pull("TopicA", 1, wait_ms=5_000) is None
    broker.pass_time(5_000)
    assert [command.code for command in broker.inbox[1]] == [ResponseCode.PULL_NOT_FOUND]
