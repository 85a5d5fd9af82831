"""Limits of users, topics and groups: what exceeds them is refused, or waits."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.quotas import table
from tandemq.broker.features.sends import slowed
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.signature import ON_BEHALF_OF, signed
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import GROUP as POPPING
from tests.unit.broker.features.pop.consumer import TOPIC as POPPED
from tests.unit.broker.features.pop.consumer import ack, bodies, pop, pop_fields
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields

BUSY, OK = ResponseCode.SYSTEM_BUSY, ResponseCode.SUCCESS
ALICE = Credentials("alice", "alice-key")


@pytest.fixture(autouse=True)
def refuses_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slowed, "REFUSAL_MS_MIN", 0)
    monkeypatch.setattr(slowed, "REFUSAL_MS_SPREAD", 1)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    broker = Harness(tmp_path)
    broker.create_topic("T")
    broker.open(7)
    broker.pass_time(5_000)
    return broker


def limit(broker: Harness, kind: str, name: str, **values: Any) -> None:
    answer = broker.ask(RequestCode.TANDEM_SET_QUOTAS, body=dumps({"quotas": [{"kind": kind, "name": name} | values]}))
    assert answer.code == OK, answer.remark


def counts(broker: Harness) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = broker.json(RequestCode.TANDEM_QUOTAS)["exceeded"]
    return found


def many(broker: Harness, number: int, topic: str = "T", **more: Any) -> list[int]:
    """Send messages, and return the codes of the responses."""
    return [broker.send(topic, b"%d" % at, **more).code for at in range(number)]


def pulled(broker: Harness, **more: Any) -> list[bytes]:
    """Pull the first messages of the topic."""
    answer = broker.pull("T", **more)
    assert answer is not None
    return [message.body for message in messages_in(answer)]


# Topics.


@spec("Q01")
def test_sends_to_a_topic_beyond_its_rate_are_refused_until_it_allows_them_again(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=10)
    codes = many(broker, 15)
    assert codes == [OK] * 10 + [BUSY] * 5
    assert "topic T exceeds its limit, try again in 1 ms" in str(broker.send("T").remark)
    assert many(broker, 3, "Other") == [OK] * 3
    broker.pass_time(500)
    assert many(broker, 8) == [OK] * 5 + [BUSY] * 3
    assert counts(broker) == [{"kind": "topic", "name": "T", "refused": 9, "slowed": 0}]


def test_bytes_count_too_also_of_sends_that_the_engine_leaves(broker: Harness) -> None:
    limit(broker, "topic", "T", bytesPerSecond=1_000)
    assert broker.send("T", bytes(900), TAGS="a").code == OK
    assert broker.send("T", bytes(900), REAL_TOPIC="x").code == OK, "what is left of a second allows one more"
    assert broker.send("T", b"x").code == BUSY
    broker.pass_time(801)
    assert broker.send("T", b"x").code == OK


def test_limit_of_each_holds_for_topics_that_come_later_and_not_for_those_of_the_broker(broker: Harness) -> None:
    limit(broker, "topic", "*", messagesPerSecond=1)
    limit(broker, "topic", "T", messagesPerSecond=3)
    broker.create_topic("Later")
    assert many(broker, 2, "Later") == [OK, BUSY]
    assert many(broker, 4) == [OK] * 3 + [BUSY]
    broker.heartbeat("g", {"T": "*"}, link=7)
    assert many(broker, 3, "%RETRY%g") == [OK] * 3


def test_a_changed_topic_keeps_its_limit_and_a_deleted_limit_holds_no_more(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=1)
    broker.create_topic("T", 8)
    assert many(broker, 2) == [OK, BUSY]
    limit(broker, "topic", "T")
    assert many(broker, 5) == [OK] * 5
    assert broker.json(RequestCode.TANDEM_QUOTAS)["quotas"] == []


@spec("Q03")
def test_limits_survive_a_restart(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=2)
    after = broker.restart()
    assert many(after, 3) == [OK, OK, BUSY]


@spec("Q01")
def test_slowed_sends_are_answered_in_their_order_once_the_rate_allows_them(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=10, slows=True)
    asked = [broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"%02d" % at) for at in range(15)]
    assert [broker.answer_to(one) is not None for one in asked] == [True] * 10 + [False] * 5
    broker.pass_time(150)
    assert [broker.answer_to(one) is not None for one in asked[10:]] == [True] * 2 + [False] * 3
    broker.pass_time(1_000)
    assert [broker.answer_to(one) is not None for one in asked[12:]] == [True] * 3
    assert pulled(broker) == [b"%02d" % at for at in range(15)]
    assert counts(broker) == [{"kind": "topic", "name": "T", "refused": 0, "slowed": 5}]


@spec("Q01")
@pytest.mark.parametrize("rate", [0, 1_000], ids=["removed", "raised"])
def test_no_send_of_a_connection_overtakes_those_that_wait_when_their_limit_is_changed(
    broker: Harness, rate: int
) -> None:
    def send(topic: str, body: int, link: int = CLIENT) -> int:
        return broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"%02d" % body, link=link)

    limit(broker, "topic", "T", messagesPerSecond=10, slows=True)
    asked = [send("T", at) for at in range(15)]
    limit(broker, "topic", "T", **({"messagesPerSecond": rate, "slows": True} if rate else {}))
    asked += [send("T", at) for at in range(15, 20)]
    assert [broker.answer_to(one) is not None for one in asked] == [True] * 10 + [False] * 10
    assert broker.answer_to(send("Other", 0)) is not None
    broker.pass_time(1_000)
    assert all(broker.answer_to(one) for one in asked[10:])
    assert pulled(broker) == [b"%02d" % at for at in range(20)]
    assert broker.answer_to(send("T", 20)) is not None


def test_sends_that_would_wait_for_more_than_a_second_are_refused(broker: Harness) -> None:
    limit(broker, "topic", "T", bytesPerSecond=1_000, slows=True)
    assert broker.send("T", bytes(3_000)).code == OK
    assert broker.send("T", b"x").code == BUSY


@spec("Q02")
def test_waiting_sends_are_bounded_by_the_time_that_they_would_wait(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=10, slows=True)
    asked = [broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x") for _ in range(40)]
    answers = [broker.answer_to(one) for one in asked]
    assert [answer.code if answer else 0 for answer in answers] == [OK] * 10 + [0] * 10 + [BUSY] * 20
    broker.pass_time(1_001)
    assert broker.node.store.queues["T", 0].max_offset == 20


def test_slowed_sends_of_a_closed_connection_are_stored(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=10, slows=True)
    for _ in range(15):
        broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x", link=7)
    broker.close(7)
    broker.pass_time(1_000)
    assert broker.node.store.queues["T", 0].max_offset == 15


def test_a_batch_that_waits_uses_the_rate_for_all_of_its_messages(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=10, slows=True)
    batch = encode_batch([BatchPart(0, b"x", b"")] * 5)
    fields = send_fields("T") | {"m": "true"}
    asked = [broker.send_request(RequestCode.SEND_BATCH_MESSAGE, fields, batch) for _ in range(6)]
    answers = [broker.answer_to(one) for one in asked]
    assert [answer.code if answer else 0 for answer in answers] == [OK, OK, 0, 0, BUSY, BUSY]
    broker.pass_time(400)
    assert broker.node.store.queues["T", 0].max_offset == 15
    broker.pass_time(600)
    assert broker.node.store.queues["T", 0].max_offset == 20


def test_a_malformed_batch_does_not_wait(broker: Harness) -> None:
    limit(broker, "topic", "T", messagesPerSecond=1, slows=True)
    assert broker.send("T").code == OK
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, b"none")
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_the_send_that_creates_a_topic_counts(broker: Harness) -> None:
    limit(broker, "topic", "*", messagesPerSecond=2)
    codes = many(broker, 3, "New")
    assert codes == [OK, OK, BUSY]


# Groups.


@spec("Q01")
def test_pulls_of_a_group_beyond_its_rate_wait(broker: Harness) -> None:
    many(broker, 40)
    limit(broker, "group", "group", messagesPerSecond=10)
    assert len(pulled(broker, most=10)) == 10
    assert broker.pull("T", 10, most=10, wait_ms=20_000) is None, "it is held"
    assert len(pulled(broker, group="other")) == 32
    broker.pass_time(100)
    (held,) = [command for command in broker.inbox[CLIENT] if command.is_response]
    assert len(messages_in(held)) == 10
    assert counts(broker)[0]["slowed"] >= 1


def test_pulls_that_are_not_to_be_held_are_to_be_repeated(broker: Harness) -> None:
    many(broker, 40)
    limit(broker, "group", "group", messagesPerSecond=10)
    broker.pull("T", most=20)
    answer = broker.pull("T", 20, most=10)
    assert answer is not None
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "20")


@spec("Q01")
def test_pops_of_a_group_beyond_its_rate_wait(broker: Harness) -> None:
    broker.create_topic(POPPED, 1)
    many(broker, 30, POPPED)
    limit(broker, "group", POPPING, messagesPerSecond=10)
    assert len(pop(broker, maxMsgNums=20)) == 20
    asked = broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000, maxMsgNums=10))
    broker.pass_time(900)
    assert broker.answer_to(asked) is None
    broker.pass_time(200)
    answer = broker.answer_to(asked)
    assert answer is not None
    assert len(messages_in(answer)) == 10


@spec("Q02")
def test_a_group_has_at_most_so_many_messages_in_flight(broker: Harness) -> None:
    broker.create_topic(POPPED, 1)
    many(broker, 30, POPPED)
    limit(broker, "group", POPPING, inFlight=5)
    taken = pop(broker, maxMsgNums=3) + pop(broker, maxMsgNums=32)
    assert bodies(taken) == [b"%d" % at for at in range(5)]
    asked = broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=20_000))
    for message in taken[:2]:
        assert broker.answer_to(asked) is None
        assert ack(broker, message).code == OK
    broker.pass_time(1)
    answer = broker.answer_to(asked)
    assert answer is not None, "an acknowledgement makes room"
    assert len(messages_in(answer)) >= 1


def test_messages_whose_time_is_over_are_not_in_flight_any_more(broker: Harness) -> None:
    broker.create_topic(POPPED, 1)
    many(broker, 30, POPPED)
    limit(broker, "group", POPPING, inFlight=5)
    assert len(pop(broker)) == 5
    asked = broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000))
    broker.pass_time(9_900)
    assert broker.answer_to(asked) is None
    broker.pass_time(200)
    answer = broker.answer_to(asked)
    assert answer is not None
    assert len(messages_in(answer)) == 5


def test_pops_that_wait_for_their_limit_do_not_keep_a_broker_busy_that_stores_nothing(broker: Harness) -> None:
    broker.create_topic(POPPED, 1)
    many(broker, 30, POPPED)
    limit(broker, "group", POPPING, inFlight=5)
    assert len(pop(broker)) == 5
    asked = broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000))
    broker.node.puts.refuse("disk", "the disk is full")
    broker.pass_time(20_000)
    assert broker.answer_to(asked) is None
    broker.node.puts.admit("disk")
    broker.pass_time(1_000)
    assert broker.answer_to(asked) is not None


# Users.


class Guarded(Harness):
    """A broker that knows one user, who may do everything."""

    def __init__(self, path: Path, **changes: Any) -> None:
        user = dumps({"username": ALICE.access_key, "password": ALICE.secret_key}).decode()
        super().__init__(path, authentication_enable=True, init_user=user, **changes)

    def as_alice(self, code: int, fields: dict[str, object], body: bytes = b"", *, link: int = CLIENT) -> int:
        texts = {name: str(value) for name, value in fields.items()}
        return self.ask(code, signed(texts, body, ALICE), body, link=link).code

    def limit(self, **values: Any) -> None:
        body = dumps({"quotas": [{"kind": "user", "name": ALICE.access_key} | values]})
        assert self.as_alice(RequestCode.TANDEM_SET_QUOTAS, {}, body) == OK


@spec("Q01")
def test_sends_of_a_user_beyond_its_rate_are_refused_whatever_the_topic(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    broker.limit(messagesPerSecond=3)
    codes = [broker.as_alice(RequestCode.SEND_MESSAGE_V2, send_fields(topic), b"x") for topic in "ABABC"]
    assert codes == [OK] * 3 + [BUSY] * 2
    broker.limit()
    assert broker.as_alice(RequestCode.SEND_MESSAGE_V2, send_fields("A"), b"x") == OK


@spec("Q02")
def test_a_user_has_at_most_so_many_connections(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    for link in (7, 8, 9):
        broker.open(link)
    broker.limit(connections=2)
    asked = [broker.as_alice(RequestCode.GET_BROKER_RUNTIME_INFO, {}, link=link) for link in (7, 8, 9, 7)]
    assert asked == [OK, OK, ResponseCode.NO_PERMISSION, OK]
    broker.close(7)
    assert broker.as_alice(RequestCode.GET_BROKER_RUNTIME_INFO, {}, link=9) == OK


@pytest.mark.parametrize("quota", [{"messagesPerSecond": 1}, {"connections": 1}])
def test_open_connections_are_free_of_limits_of_users_without_access_control(tmp_path: Path, quota: Any) -> None:
    broker = Guarded(tmp_path, config_black_list=())
    broker.open(7)
    broker.limit(**quota)
    for link in (CLIENT, 7):
        broker.as_alice(RequestCode.SEND_MESSAGE_V2, send_fields("A"), b"x", link=link)
    assert broker.as_alice(RequestCode.SEND_MESSAGE_V2, send_fields("A"), b"x", link=7) != OK
    for is_on in ("false", "true"):
        change = f"authenticationEnabled={is_on}".encode()
        assert broker.as_alice(RequestCode.UPDATE_BROKER_CONFIG, {}, change) == OK
        sent = broker.as_alice(RequestCode.SEND_MESSAGE_V2, send_fields("A"), b"x", link=7)
        assert (sent == OK) is (is_on == "false" or "connections" in quota)


def test_super_users_send_on_behalf_of_others_and_nobody_else_does(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    carol = Credentials("carol", "carol-key")
    user = dumps({"username": carol.access_key, "password": carol.secret_key})
    assert broker.as_alice(RequestCode.AUTH_CREATE_USER, {"username": "carol"}, user) == OK
    for name in ("bob", "carol"):
        body = dumps({"quotas": [{"kind": "user", "name": name, "messagesPerSecond": 2}]})
        assert broker.as_alice(RequestCode.TANDEM_SET_QUOTAS, {}, body) == OK

    def send(who: Credentials, sender: str) -> int:
        fields = {name: str(value) for name, value in (send_fields("T") | {ON_BEHALF_OF: sender}).items()}
        return broker.ask(RequestCode.SEND_MESSAGE_V2, signed(fields, b"x", who), b"x").code

    assert [send(ALICE, "bob") for _ in range(4)] == [OK, OK, BUSY, BUSY]
    assert [send(ALICE, sender) for sender in ("eve", "", "eve", "")] == [OK] * 4
    assert [send(carol, "eve") for _ in range(4)] == [OK, OK, BUSY, BUSY], "carol's own limit counts"
    assert send(ALICE, "bob") == BUSY
    for name, expected in (("bob", ["bob"]), ("eve", [])):
        fields = signed({"kind": "user", "name": name}, b"", ALICE)
        assert [quota["name"] for quota in broker.json(RequestCode.TANDEM_QUOTAS, fields)["quotas"]] == expected


# Bad input.


@spec("Q03")
@pytest.mark.parametrize(
    ("quota", "why"),
    [
        ({"kind": "topic", "name": "a b", "messagesPerSecond": 1}, "topic"),
        ({"kind": "topic", "name": "", "messagesPerSecond": 1}, "1 to 255"),
        ({"kind": "user", "name": "u" * 256, "messagesPerSecond": 1}, "1 to 255"),
        ({"kind": "topic", "name": "T", "connections": 1}, "only users"),
        ({"kind": "topic", "name": "T", "inFlight": 1}, "only groups"),
        ({"kind": "group", "name": "g", "messagesPerSecond": 1, "slows": True}, "always wait"),
        ({"kind": "topic", "name": "T", "messagesPerSecond": -1}, "quotas"),
        ({"kind": "topic", "name": "T", "bytesPerSecond": 1 << 62}, "quotas"),
        ({"kind": "cluster", "name": "T"}, "quotas"),
        ("T", "quotas"),
    ],
)
def test_malformed_limits_are_refused_with_the_reason(broker: Harness, quota: Any, why: str) -> None:
    answer = broker.ask(RequestCode.TANDEM_SET_QUOTAS, body=dumps({"quotas": [quota]}))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert why in str(answer.remark)
    assert broker.json(RequestCode.TANDEM_QUOTAS)["quotas"] == []


def test_there_is_a_maximum_of_limits(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "QUOTAS_MAX", 2)
    limit(broker, "topic", "A", messagesPerSecond=1)
    limit(broker, "topic", "B", messagesPerSecond=1)
    limit(broker, "topic", "B", messagesPerSecond=2)
    body = dumps({"quotas": [{"kind": "topic", "name": "C", "messagesPerSecond": 1}]})
    answer = broker.ask(RequestCode.TANDEM_SET_QUOTAS, body=body)
    assert (answer.code, "at most 2 are allowed" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
