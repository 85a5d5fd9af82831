"""Acknowledgements of popped messages by users, many of which the engine takes."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.pop.acks import Acks
from tandemq.codec.record.record import decode_messages
from tandemq.codec.remoting.pops import PopAnswer, PopQuery, ack_request, pop_request
from tandemq.engine import NAME
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.unit.broker.features.access.test_access import ALICE, ROOT, Guarded

BOB = Credentials("bob", "bob-key")
NO = ResponseCode.NO_PERMISSION


@pytest.fixture
def broker(tmp_path: Path) -> Guarded:
    """A broker with messages that ALICE may pop; BOB may pop as another group."""
    broker = Guarded(tmp_path)
    fields = {"topic": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "defaultTopic": "TBW102"}
    assert broker.as_user(ROOT, Code.UPDATE_AND_CREATE_TOPIC, fields).code == 0
    for user, group in ((ALICE, "g"), (BOB, "h")):
        broker.create(user)
        for resource in ("Topic:T", f"Group:{group}"):
            assert broker.allow(user, resource, "Sub").code == 0
    assert broker.allow(ALICE, "Topic:T", "Pub", "Sub").code == 0
    broker.pass_time(2_000)
    for _ in range(12):
        assert broker.send_as(ALICE) == 0
    return broker


def popped(broker: Guarded, most: int) -> list[Command]:
    """Return the acknowledgements of messages that ALICE pops."""
    request = pop_request(PopQuery("g", "T", most, 60_000, "*", "TAG", starts_at_end=False), 0)
    answer = broker.as_user(ALICE, request.code, request.fields)
    assert answer.code == 0
    made = PopAnswer("broker-a", answer)
    return [ack_request(made.handle(message), "g", "T") for message in decode_messages(answer.body)]


def acked_as(broker: Guarded, user: Credentials | None, request: Command) -> int:
    """Return the code of the answer to an acknowledgement."""
    return broker.as_user(user, request.code, request.fields).code


def test_users_acknowledge_what_their_groups_have_popped(broker: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *rest = popped(broker, 12)
    assert acked_as(broker, ALICE, first) == 0
    decoded: list[int] = []
    with monkeypatch.context() as patch:
        check = Acks._problem

        def counting(*args: Any, **named: Any) -> Any:
            decoded.append(1)
            return check(*args, **named)

        patch.setattr(Acks, "_problem", counting)
        assert [acked_as(broker, ALICE, request) for request in rest[:4]] == [0] * 4
    assert len(decoded) == (4 if NAME == "python" else 0)
    for user in (BOB, Credentials("alice", "wrong"), Credentials("nobody", "x"), None):
        assert acked_as(broker, user, rest[5]) == NO
    assert acked_as(broker, ALICE, rest[5]) == 0
    assert broker.node.features.find(Acks).acked == 6


def test_withdrawn_right_counts_with_the_next_acknowledgement(broker: Guarded) -> None:
    requests = popped(broker, 6)
    assert [acked_as(broker, ALICE, request) for request in requests[:2]] == [0, 0]
    assert broker.allow(ALICE, "Group:g", "Sub", decision="Deny").code == 0
    assert acked_as(broker, ALICE, requests[2]) == NO
    assert broker.allow(ALICE, "Group:g", "Sub").code == 0
    assert [acked_as(broker, ALICE, request) for request in requests[2:5]] == [0, 0, 0]
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": "alice"}).code == 0
    assert acked_as(broker, ALICE, requests[5]) == NO
    assert broker.node.features.find(Acks).acked == 5
