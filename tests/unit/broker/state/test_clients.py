"""Membership and queue locks: limits, and cost that does not grow with the groups of other connections."""

from pathlib import Path

import pytest

from tandemq.boundary import LinkKind
from tandemq.broker.state import clients, consumer_offsets
from tandemq.broker.state.clients import Clients, Member
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.group import ConsumerData, HeartbeatData, ProducerData, SubscriptionData
from tests.unit.broker.harness import Harness


def member(link: int, client_id: str = "c") -> Member:
    return Member(link, client_id, "127.0.0.1:1", "JAVA", 1, 0)


def consumers(*names: str, subscriptions: list[SubscriptionData] | None = None) -> HeartbeatData:
    listed = [ConsumerData(name, subscription_data_set=subscriptions or []) for name in names]
    return HeartbeatData("c", consumers=listed)


def producers(*names: str) -> HeartbeatData:
    return HeartbeatData("c", producers=[ProducerData(name) for name in names])


class NotIterable(dict[str, object]):
    """A table that fails when it is iterated."""

    def values(self) -> object:  # type: ignore[override]
        raise AssertionError("all groups were looked at")

    items = __iter__ = values  # type: ignore[assignment]


def test_cost_of_closing_a_connection_depends_on_its_own_groups_only() -> None:
    known = Clients()
    for link in range(1, 400):
        known.heartbeat(consumers(*(f"g{link}_{number}" for number in range(10))), member(link))
        known.heartbeat(producers(f"p{link}"), member(link))
    known.heartbeat(consumers("g1_0"), member(1_000))
    known.consumers = NotIterable(known.consumers)  # type: ignore[assignment]
    known.producers = NotIterable(known.producers)  # type: ignore[assignment]
    assert known.link_closed(1) == [f"g1_{number}" for number in range(10)]
    assert known.link_closed(1) == []
    assert "p1" not in known.producers
    assert "g1_1" not in known.consumers
    assert list(known.consumers["g1_0"].members) == [1_000]


def test_memory_counts_are_zero_after_all_clients_have_left() -> None:
    known = Clients()
    for link in (1, 2):
        for text in ("a", "a || b", "c" * 100):
            known.heartbeat(
                consumers("g", "h", subscriptions=[SubscriptionData("T", text, sub_version=link)]), member(link)
            )
        known.heartbeat(producers("p"), member(link))
    assert known._memberships == 6
    assert known._subscription_bytes > 0
    known.leave(1, "c", "p", "g")
    assert known._memberships == 4
    for link in (1, 2):
        known.link_closed(link)
    assert (known._memberships, known._member_bytes, known._subscription_bytes) == (0, 0, 0)
    assert not known._producing
    assert not known._consuming


@pytest.mark.parametrize(
    ("beat", "reason"),
    [
        (consumers("g" * 256), "at most 255"),
        (producers("a b"), "illegal characters"),
        (consumers(*(f"g{number}" for number in range(clients.GROUPS_PER_LINK_MAX + 1))), "on one connection"),
        (HeartbeatData("c" * 1_025), "client id"),
        (consumers("g", subscriptions=[SubscriptionData("T", "x" * 65_537)]), "at most 65536"),
        (consumers("g", subscriptions=[SubscriptionData("T" * 65_537)]), "at most 65536"),
        (consumers("g", subscriptions=[SubscriptionData("T", expression_type="x" * 65_537)]), "at most 65536"),
        (consumers("g", subscriptions=[SubscriptionData("T", tags_set=["x"] * 2_049)]), "2048 tags"),
        (consumers("g", subscriptions=[SubscriptionData("T", code_set=[1] * 2_049)]), "2048 tags"),
        (consumers("g", subscriptions=[SubscriptionData(f"T{n}") for n in range(2_001)]), "2000 topics"),
    ],
)
def test_heartbeat_beyond_a_limit_is_refused_completely(beat: HeartbeatData, reason: str) -> None:
    known = Clients()
    with pytest.raises(ProtocolError, match=reason):
        known.heartbeat(beat, member(1))
    assert not known.consumers
    assert not known.producers


def test_limits_over_all_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MEMBERS_PER_GROUP_MAX", 3)
    monkeypatch.setattr(clients, "MEMBERSHIPS_MAX", 5)
    monkeypatch.setattr(clients, "SUBSCRIPTION_BYTES_MAX", 4_000)
    known = Clients()
    for link in (1, 2, 3):
        known.heartbeat(consumers("g"), member(link))
    with pytest.raises(ProtocolError, match="has 3 members already"):
        known.heartbeat(consumers("g"), member(4))
    known.heartbeat(consumers("g"), member(3))
    with pytest.raises(ProtocolError, match="take more than 4000 bytes"):
        known.heartbeat(consumers("g", subscriptions=[SubscriptionData("T", "x" * 2_000)]), member(3))
    known.heartbeat(producers("p", "q"), member(4))
    with pytest.raises(ProtocolError, match="more than 5 members"):
        known.heartbeat(producers("r"), member(5))
    known.link_closed(4)
    known.heartbeat(producers("r"), member(5))


def test_groups_that_are_online_have_a_memory_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MEMBERSHIP_BYTES_MAX", 5_000)
    known = Clients()
    names = [f"p{number}".ljust(200, "x") for number in range(10)]
    for name in names[:4]:
        known.heartbeat(producers(name), member(1))
    for beat in (producers(*names), consumers(*names)):
        with pytest.raises(ProtocolError, match="take more than 5000 bytes"):
            known.heartbeat(beat, member(2))
    known.heartbeat(producers(*names[:4]), member(2))
    known.link_closed(1)
    known.link_closed(2)
    known.heartbeat(producers(*names[4:8]), member(3))


def commit(broker: Harness, **changes: object) -> int:
    fields = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1} | changes
    return broker.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields).code


def test_offsets_are_accepted_for_existing_queues_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("TopicA", queues=4)
    assert commit(broker, queueId=3) == ResponseCode.SUCCESS
    for queue_id in (-5, 4, 1 << 30):
        assert commit(broker, queueId=queue_id) == ResponseCode.TOPIC_NOT_EXIST
    assert commit(broker, topic="Nothing") == ResponseCode.TOPIC_NOT_EXIST
    assert commit(broker, commitOffset=-7) == ResponseCode.SYSTEM_ERROR
    assert commit(broker, consumerGroup="a b") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert broker.node.offsets.table == {"TopicA@group": {3: 1}}
    assert commit(broker, queueId=2) == ResponseCode.SUCCESS
    monkeypatch.setattr(consumer_offsets, "OFFSET_BYTES_MAX", 1)
    assert commit(broker, consumerGroup="other") == ResponseCode.SYSTEM_ERROR
    assert commit(broker, queueId=1) == ResponseCode.SYSTEM_ERROR
    assert commit(broker, queueId=2) == ResponseCode.SUCCESS
    clone = {"srcGroup": "group", "destGroup": "other", "topic": "TopicA", "offline": True}
    assert broker.ask(RequestCode.CLONE_GROUP_OFFSET, clone).code == ResponseCode.SYSTEM_ERROR
    pull = {
        "consumerGroup": "other",
        "topic": "TopicA",
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 1,
        "sysFlag": 5,
        "commitOffset": 7,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 0,
    }
    for changed in ({}, {"consumerGroup": "group", "commitOffset": -1}):
        broker.ask(RequestCode.PULL_MESSAGE, pull | changed)
    assert broker.node.offsets.table == {"TopicA@group": {2: 1, 3: 1}}


def lock(broker: Harness, topic: str, queue_ids: range, group: str = "group") -> tuple[int, int]:
    queues = [{"brokerName": "broker-a", "queueId": queue_id, "topic": topic} for queue_id in queue_ids]
    answer = broker.ask(
        RequestCode.LOCK_BATCH_MQ, None, dumps({"clientId": "c", "consumerGroup": group, "mqSet": queues})
    )
    return answer.code, len(loads(answer.body)["lockOKMQSet"]) if answer.body else 0


def test_locks_are_granted_for_existing_queues_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("TopicA", queues=4)
    assert lock(broker, "TopicA", range(-2, 9)) == (ResponseCode.SUCCESS, 4)
    assert lock(broker, "Nothing", range(1000)) == (ResponseCode.SUCCESS, 0)
    assert lock(broker, "TopicA", range(1), group="g" * 300)[0] == ResponseCode.SYSTEM_ERROR
    monkeypatch.setattr(clients, "LOCKS_MAX", 4)
    assert lock(broker, "TopicA", range(1), group="other")[0] == ResponseCode.SYSTEM_ERROR
    assert lock(broker, "TopicA", range(4)) == (ResponseCode.SUCCESS, 4)


def test_number_of_groups_is_limited_by_the_setting(tmp_path: Path) -> None:
    broker = Harness(tmp_path, groups_max=100)
    broker.send("TopicA")
    number = 0
    while len(broker.node.groups.table) < 100:
        broker.pull("TopicA", group=f"g{number}")
        number += 1
    answer = broker.pull("TopicA", group="one_more")
    assert answer is not None
    assert (answer.code, "maxSubscriptionGroups is 100" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    refused = broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": "one_more"}))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    broker.open(5, LinkKind.REMOTING)
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "one_more"}], "producerDataSet": []}
    assert broker.ask(RequestCode.HEART_BEAT, None, dumps(beat), link=5).code == ResponseCode.SYSTEM_ERROR
    known = broker.pull("TopicA", group="g0")
    assert known is not None
    assert known.code == ResponseCode.SUCCESS


def test_memory_of_offsets_is_counted_when_they_are_added_and_removed(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    offsets = broker.node.offsets
    assert offsets.has_room("TopicA", "group", 0)
    empty = offsets._bytes
    for queue_id in range(3):
        offsets.commit("TopicA", "group", queue_id, 1)
        offsets.commit("TopicA", "group", queue_id, 2)
    grown = offsets._bytes
    offsets._bytes = None
    assert offsets.has_room("TopicA", "other", 0)
    assert offsets._bytes == grown
    offsets.remove_group("group")
    assert offsets.has_room("TopicA", "group", 0)
    assert offsets._bytes == empty


def test_heartbeat_with_a_group_beyond_the_limit_is_refused_completely(tmp_path: Path) -> None:
    broker = Harness(tmp_path, groups_max=100)
    known = len(broker.node.groups.table)
    groups = [{"groupName": f"g{number}"} for number in range(100 - known + 1)]
    beat = {"clientID": "c", "consumerDataSet": groups, "producerDataSet": [{"groupName": "prod"}]}
    answer = broker.ask(RequestCode.HEART_BEAT, None, dumps(beat))
    assert (answer.code, "maxSubscriptionGroups is 100" in str(answer.remark)) == (ResponseCode.SYSTEM_ERROR, True)
    assert not broker.node.clients.consumers
    assert not broker.node.clients.producers
    assert len(broker.node.groups.table) == known


def test_unknown_language_of_a_client_is_replaced(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.heartbeat("group", language="GO")
    assert [member.language for member in broker.node.clients.consumers["group"].members.values()] == ["GO"]
    broker.heartbeat("group", language="x" * 100_000)
    assert [member.language for member in broker.node.clients.consumers["group"].members.values()] == ["OTHER"]


@pytest.mark.parametrize("field", ["consume_type", "message_model", "consume_from_where"])
def test_way_of_consuming_is_a_short_name(field: str) -> None:
    """It is kept per group, where it could take as much as the largest frame."""
    known = Clients()
    for length, is_taken in ((64, True), (65, False)):
        beat = HeartbeatData("c", consumers=[ConsumerData("g", **{field: "X" * length})])  # type: ignore[arg-type]
        if is_taken:
            known.heartbeat(beat, member(1))
            continue
        with pytest.raises(ProtocolError, match="at most 64 characters"):
            known.heartbeat(beat, member(1))
    assert getattr(known.consumers["g"], field) == "X" * 64
