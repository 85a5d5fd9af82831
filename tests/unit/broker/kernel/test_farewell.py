"""A broker that stops sends clients away: GO_AWAY to those that understand it, closed connections to the others."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import LinkKind
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import GO_AWAY_REMARK, VERSION_SPOKEN, Command
from tests.request_fields import pull_fields
from tests.unit.broker.harness import Harness, send_fields

NEW, OLD = 7, 8
JAVA_5_3_1, JAVA_5_3_2_SNAPSHOT, JAVA_5_5_0 = 475, 476, 513


def stopped(path: Path) -> Harness:
    """Return a broker that stops, with a new and an old client, each with a held pull."""
    broker = Harness(path)
    for link in (NEW, OLD):
        broker.open(link)
    broker.send("TopicA")
    broker.heartbeat("group", {"TopicA": "*"}, link=NEW, version=JAVA_5_5_0)
    broker.heartbeat("group", {"TopicA": "*"}, link=OLD, version=JAVA_5_3_1, client_id="client-2")
    for link in (NEW, OLD):
        assert broker.pull("TopicA", 1, link=link, wait_ms=15_000) is None
    broker.inbox.clear()
    broker._take(broker.node.stop(broker.now))
    return broker


def send(broker: Harness, link: int, **header: Any) -> Command | None:
    fields = send_fields("TopicA", 0, {})
    return broker.answer_to(
        broker.send_request(RequestCode.SEND_MESSAGE_V2, fields, b"x", link=link, **header), link=link
    )


def test_held_pulls_of_new_clients_are_answered_at_once(tmp_path: Path) -> None:
    broker = stopped(tmp_path)
    (answer,) = broker.inbox[NEW]
    assert (answer.code, answer.remark, broker.inbox[OLD]) == (ResponseCode.GO_AWAY, GO_AWAY_REMARK, [])
    assert broker.node.is_left, "the old client is not waited for"


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("version", "language"), [(JAVA_5_3_2_SNAPSHOT, "JAVA"), (JAVA_5_5_0, "GO"), (VERSION_SPOKEN, "PYTHON")]
)
def test_requests_of_new_clients_are_refused_and_change_nothing(
    version: int, language: str, tmp_path: Path, *, binary: bool
) -> None:
    broker = stopped(tmp_path)
    end = broker.node.store.log.end
    for _ in range(2):
        answer = send(broker, NEW, version=version, language=language, binary=binary)
        assert answer is not None and (answer.code, answer.remark) == (ResponseCode.GO_AWAY, GO_AWAY_REMARK)
    pull = broker.send_request(RequestCode.PULL_MESSAGE, pull_fields(), link=NEW, version=version, language=language)
    answer = broker.answer_to(pull, link=NEW)
    assert answer is not None and answer.code == ResponseCode.GO_AWAY
    assert broker.node.store.log.end == end and not broker.closes


def test_connection_of_an_old_client_is_closed_with_its_next_request(tmp_path: Path) -> None:
    broker = stopped(tmp_path)
    assert send(broker, OLD, version=JAVA_5_3_1) is None
    assert broker.closes == [(OLD, "the broker is stopping")]


def test_oneway_requests_are_not_answered_and_malformed_bytes_close_their_connection(tmp_path: Path) -> None:
    broker = stopped(tmp_path)
    broker.inbox.clear()
    offset = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1}
    broker.send_request(RequestCode.UPDATE_CONSUMER_OFFSET, offset, link=NEW, is_oneway=True, version=JAVA_5_5_0)
    assert not broker.inbox[NEW] and not broker.closes
    broker.turn([(NEW, b"\0\0\0\4\xff\xff\xff\xff")])
    assert [link for link, _ in broker.closes] == [NEW]


def test_stop_waits_for_new_clients_until_they_are_told_or_gone(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for link in (NEW, OLD):
        broker.open(link)
        broker.heartbeat("", producers=["p"], link=link, version=JAVA_5_5_0, client_id=f"client-{link}")
    broker.node.stop(broker.now)
    assert not broker.node.is_left and broker.node.deadline_ms() is None
    send(broker, NEW, version=JAVA_5_5_0)
    assert not broker.node.is_left
    broker.close(OLD)
    assert broker.node.is_left


def test_connection_that_opens_late_is_ignored(tmp_path: Path) -> None:
    broker = stopped(tmp_path)
    broker.open(9, LinkKind.REMOTING)
    assert send(broker, 9, version=JAVA_5_5_0) is None
    broker.node.close()
