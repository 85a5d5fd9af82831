"""A change of rights ends requests that wait for messages, so that the next ones are judged by the new rights."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tandemq.broker.features.access.control import ENDED_PER_TURN
from tandemq.codec.remoting.signature import signed
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.request_fields import pull_fields
from tests.spec import spec
from tests.unit.broker.features.access.test_access import ALICE, ROOT, Guarded
from tests.unit.broker.features.pop.consumer import pop_fields

BOB = Credentials("bob", "bob-key")
WAITS_MS = 20_000
ASKED = {
    Code.PULL_MESSAGE: pull_fields("T", sysFlag=6, suspendTimeoutMillis=WAITS_MS, consumerGroup="G"),
    Code.POP_MESSAGE: pop_fields(topic="T", consumerGroup="G", pollTime=WAITS_MS),
}
EMPTY = {Code.PULL_MESSAGE: ResponseCode.PULL_NOT_FOUND, Code.POP_MESSAGE: ResponseCode.POLLING_TIMEOUT}
"""The response to a request that waited in vain."""


@pytest.fixture
def broker(tmp_path: Path) -> Guarded:
    """A broker with a topic without messages, which two users may read."""
    broker = Guarded(tmp_path)
    topic = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}
    more = {"topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false"}
    assert broker.as_user(ROOT, Code.UPDATE_AND_CREATE_TOPIC, topic | more).code == 0
    for user in (ALICE, BOB):
        broker.create(user)
        broker.allow(user, "Topic:T", "Sub")
        broker.allow(user, "Group:G", "Sub")
    broker.pass_time(1_000)  # Pops begin once the messages in flight before the start are known.
    return broker


def ask_later(broker: Guarded, user: Credentials, code: Code, link: int) -> int:
    """Send a request that waits, on a new connection; return its opaque."""
    broker.open(link)
    texts: Mapping[str, str] = {name: str(value) for name, value in ASKED[code].items()}
    opaque = broker.send_request(code, signed(texts, b"", user), link=link)
    assert broker.answer_to(opaque, link=link) is None
    return opaque


def code_of(broker: Guarded, opaque: int, link: int) -> int | None:
    answer = broker.answer_to(opaque, link=link)
    return None if answer is None else answer.code


@spec("A01")
@pytest.mark.parametrize("code", ASKED)
def test_request_of_a_user_that_loses_its_rights_ends_before_the_next_message(broker: Guarded, code: Code) -> None:
    alices, bobs = ask_later(broker, ALICE, code, link=50), ask_later(broker, BOB, code, link=51)
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": ALICE.access_key}).code == 0
    broker.pass_time(1)
    assert (code_of(broker, alices, 50), code_of(broker, bobs, 51)) == (EMPTY[code], None)
    assert broker.as_user(ALICE, code, ASKED[code]).code == ResponseCode.NO_PERMISSION
    assert broker.send_as(ROOT) == 0
    broker.pass_time(1)
    assert code_of(broker, bobs, 51) == ResponseCode.SUCCESS, "another user's request waits on"


@pytest.mark.parametrize("code", ASKED)
def test_request_ends_when_policies_change(broker: Guarded, code: Code) -> None:
    waiting = ask_later(broker, ALICE, code, link=50)
    broker.allow(BOB, "Topic:Other", "Sub")
    broker.pass_time(1)
    assert code_of(broker, waiting, 50) is None
    broker.allow(ALICE, "Topic:T", "Sub", decision="Deny")
    broker.pass_time(1)
    assert code_of(broker, waiting, 50) == EMPTY[code]


@pytest.mark.parametrize("code", ASKED)
def test_request_without_a_user_ends_when_access_control_is_switched_on(tmp_path: Path, code: Code) -> None:
    off = {"authentication_enable": False, "authorization_enable": False, "config_black_list": ("configBlackList",)}
    broker = Guarded(tmp_path, **off)
    assert broker.send_as(None) == 0
    broker.open(50)
    offset = {"queueOffset": 1} if code == Code.PULL_MESSAGE else {}
    opaque = broker.send_request(code, {**ASKED[code], **offset}, link=50)
    changes = b"authenticationEnabled=true\nauthorizationEnabled=true"
    assert broker.ask(Code.UPDATE_BROKER_CONFIG, body=changes).code == 0
    broker.pass_time(1)
    answer = broker.answer_to(opaque, link=50)
    assert answer is not None
    assert broker.send_as(ROOT) == 0
    assert broker.ask(code, {**ASKED[code], **offset}, link=50).code == ResponseCode.NO_PERMISSION


def test_many_connections_end_over_several_turns(broker: Guarded) -> None:
    links = range(1_000, 1_000 + 3 * ENDED_PER_TURN)
    waiting = {link: ask_later(broker, ALICE, Code.PULL_MESSAGE, link) for link in links}
    body = json.dumps({"password": ALICE.secret_key, "userType": "Normal", "userStatus": "disable"}).encode()
    assert broker.as_user(ROOT, Code.AUTH_UPDATE_USER, {"username": ALICE.access_key}, body).code == 0
    ended = {link for link, opaque in waiting.items() if code_of(broker, opaque, link) is not None}
    assert len(ended) <= ENDED_PER_TURN
    broker.pass_time(1)
    assert all(code_of(broker, opaque, link) is not None for link, opaque in waiting.items() if link not in ended)
