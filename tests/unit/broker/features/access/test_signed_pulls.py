"""Pulls of users that the engine answers itself: the same verdicts as request by request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.pulls.processor import PullPath
from tandemq.engine import NAME
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.request_fields import pull_fields
from tests.unit.broker.features.access.test_access import ALICE, ROOT, Guarded

NO = ResponseCode.NO_PERMISSION


def pull_as(broker: Guarded, user: Credentials | None, topic: str = "T", group: str = "g") -> int:
    return broker.as_user(user, Code.PULL_MESSAGE, pull_fields(topic, consumerGroup=group)).code


@pytest.fixture
def broker(tmp_path: Path) -> Guarded:
    """A broker on which ALICE has pulled T in the group g, so that the engine answers her next pulls."""
    broker = Guarded(tmp_path)
    broker.create(ALICE)
    for topic in ("T", "U"):
        assert broker.send_as(ROOT, topic) == 0
    assert broker.allow(ALICE, "Topic:T", "Sub").code == 0
    assert broker.allow(ALICE, "Group:g", "Sub").code == 0
    assert pull_as(broker, ALICE) == 0
    return broker


def answered_by_engine(broker: Guarded, act: Callable[[], object]) -> int:
    """Return how many pulls the engine answered; `act` sends one at a time."""
    count = 0
    path = broker.node.features.find(PullPath)
    take = path.take_ordinary

    def counting(link: Any, data: bytes, position: int, *others: Any) -> int:
        nonlocal count
        after = take(link, data, position, *others)
        count += after > position
        return after

    vars(path)["take_ordinary"] = counting
    act()
    del vars(path)["take_ordinary"]
    return count


def test_engine_answers_pulls_of_the_user_that_has_pulled_before(broker: Guarded) -> None:
    if NAME == "python":
        return
    assert answered_by_engine(broker, lambda: [pull_as(broker, ALICE) for _ in range(3)]) == 3


def test_wrong_signature_after_right_ones_is_refused(broker: Guarded) -> None:
    for user in (Credentials("alice", "alice-keY"), Credentials("alicf", ALICE.secret_key), None):
        assert answered_by_engine(broker, lambda user=user: pull_as(broker, user)) == 0  # type: ignore[misc]
        assert pull_as(broker, user) == NO


def test_other_topics_and_groups_are_refused(broker: Guarded) -> None:
    assert pull_as(broker, ROOT, "U") == 0
    assert pull_as(broker, ROOT, group="h") == 0
    assert pull_as(broker, ROOT, "U") == 0  # the engine knows them now
    assert pull_as(broker, ALICE, "U") == NO
    assert pull_as(broker, ALICE, group="h") == NO


def test_right_that_was_withdrawn_counts_at_once(broker: Guarded) -> None:
    assert pull_as(broker, ALICE) == 0
    fields = {"subject": "User:alice", "resource": "Topic:T"}
    assert broker.as_user(ROOT, Code.AUTH_DELETE_ACL, fields).code == 0
    assert pull_as(broker, ALICE) == NO
