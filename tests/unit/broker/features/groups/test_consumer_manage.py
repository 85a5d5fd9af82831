"""Offsets, membership and queue locks of consumers."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tandemq.boundary import Closed
from tandemq.broker.features.groups import consumer_manage, membership
from tandemq.broker.features.groups.consumer_manage import ConsumerManageProcessor
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tests.serving import let
from tests.spec import spec
from tests.unit.broker.harness import Harness

OK = ResponseCode.SUCCESS


def offset_of(broker: Harness, group: str = "group", **fields: object) -> tuple[int, str | None]:
    asked = {"consumerGroup": group, "topic": "TopicA", "queueId": 0} | fields
    answer = broker.ask(RequestCode.QUERY_CONSUMER_OFFSET, asked)
    return answer.code, answer.fields.get("offset")


def test_offset_never_committed_is_0_if_the_queue_is_read_from_its_start_and_not_found_otherwise(
    tmp_path: Path,
) -> None:
    broker = Harness(tmp_path)
    assert offset_of(broker) == (OK, "0")
    for _ in range(60):
        broker.send("TopicA", b"x" * 1000)
    assert offset_of(broker) == (OK, "0")
    assert offset_of(broker, setZeroIfNotFound=False)[0] == ResponseCode.QUERY_NOT_FOUND
    broker.node.store.drop_first_segment()
    assert offset_of(broker)[0] == ResponseCode.QUERY_NOT_FOUND


@spec("G12")
def test_offset_may_go_back_and_survives_a_kill_after_its_period(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for _ in range(9):
        broker.send("TopicA")
    for offset in (5, 9, 3):
        broker.commit(offset)
    assert offset_of(broker) == (OK, "3")
    broker.pass_time(broker.config.offsets_persist_ms)
    assert offset_of(broker.restart(clean=False)) == (OK, "3")


@spec("G12")
def test_offsets_by_time_and_at_both_ends(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    times = []
    for _ in range(5):
        times.append(broker.now.wall_ms)
        broker.send("TopicA")
        broker.pass_time(1_000)
    queue = {"topic": "TopicA", "queueId": 0}
    assert broker.ask(RequestCode.GET_MAX_OFFSET, queue).fields["offset"] == "5"
    assert broker.ask(RequestCode.GET_MIN_OFFSET, queue).fields["offset"] == "0"
    assert broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, queue).fields["timestamp"] == str(times[0])
    for wall_ms, expected in ((0, 0), (times[2], 2), (times[2] + 1, 3), (times[4] + 1, 5)):
        found = broker.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, queue | {"timestamp": wall_ms})
        assert found.fields["offset"] == str(expected)
    nothing = {"topic": "TopicA", "queueId": 3}
    assert broker.ask(RequestCode.GET_MAX_OFFSET, nothing).fields["offset"] == "0"
    assert broker.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, nothing).fields["timestamp"] == "-1"


# Membership.


def members(broker: Harness) -> list[str]:
    answer = broker.ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "group"})
    found: list[str] = loads(answer.body)["consumerIdList"] if answer.code == OK else []
    return found


@spec("G04")
def test_heartbeat_is_answered_and_creates_the_retry_topic(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    assert broker.heartbeat("group", {"TopicA": "*"}).code == OK
    config = broker.node.topics.table["%RETRY%group"].config
    assert (config.read_queue_nums, config.perm) == (1, 6)
    assert members(broker) == ["client-1"]


def test_members_are_notified_when_a_member_joins_leaves_or_changes_its_subscription(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.heartbeat("group", {"TopicA": "*"})
    broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)
    broker.open(5)
    broker.heartbeat("group", {"TopicA": "*"}, client_id="client-2", link=5)
    assert len(broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)) == 1
    broker.heartbeat("group", {"TopicA": "*"})
    assert broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED) == []
    broker.pass_time(1)
    broker.heartbeat("group", {"TopicA": "tag"})
    assert len(broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)) == 1
    broker.close(5)
    assert len(broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED)) == 1
    assert members(broker) == ["client-1"]
    leave = {"clientID": "client-1", "consumerGroup": "group", "producerGroup": ""}
    assert broker.ask(RequestCode.UNREGISTER_CLIENT, leave).code == OK
    assert members(broker) == []


def notices(broker: Harness, links: Sequence[int]) -> int:
    """Return the number of notices to these connections since the last call."""
    return sum(len(broker.take_requests(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, link=link)) for link in links)


def many_members(broker: Harness, count: int) -> range:
    """Have clients join the group, each on a connection of its own, and be notified."""
    links = range(10, 10 + count)
    for link in links:
        broker.open(link)
        broker.heartbeat("group", {"TopicA": "*"}, client_id=f"client-{link}", link=link)
    broker.pass_time(1_000)
    notices(broker, links)
    return links


def test_members_of_a_large_group_are_notified_a_part_per_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    links = many_members(broker, 10)
    monkeypatch.setattr(membership, "NOTIFIED_AT_ONCE", 4)
    broker.close(links[0])
    parts = [notices(broker, links)]
    for _ in range(3):
        assert broker.send("TopicA").code == OK
        assert notices(broker, links) == 0
        broker.pass_time(membership.PAUSE_MS)
        parts.append(notices(broker, links))
    assert parts == [4, 4, 1, 0]


def test_a_change_while_members_are_notified_notifies_all_that_are_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    links = many_members(broker, 10)
    monkeypatch.setattr(membership, "NOTIFIED_AT_ONCE", 4)
    broker.close(links[0])
    assert notices(broker, links) == 4
    broker.close(links[9])
    broker.pass_time(1_000)
    assert [notices(broker, [link]) for link in links] == [0, 1, 1, 1, 1, 2, 2, 2, 2, 0]


def test_several_changes_of_a_group_in_one_turn_notify_each_member_once(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    links = many_members(broker, 10)
    broker.turn([], [Closed(link, "the peer closed it") for link in links[:6]])
    assert [notices(broker, [link]) for link in links] == [0] * 6 + [1] * 4


@spec("G03", "G04")
def test_member_without_heartbeats_is_closed_after_120s_despite_other_requests(tmp_path: Path) -> None:
    """Other traffic of a connection does not prove that its consumer is alive."""
    assert BrokerConfig().client_expiry_ms == 120_000
    broker = Harness(tmp_path)
    broker.open(5)
    broker.heartbeat("group", {"TopicA": "*"}, link=5)
    for _ in range(14):
        broker.pass_time(10_000)
        if not broker.closes:
            broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0}, link=5)
            broker.heartbeat("other")
    assert {link for link, _ in broker.closes} == {5}


# Locks.


def lock(broker: Harness, client: str, code: int = RequestCode.LOCK_BATCH_MQ) -> int:
    queues = [{"brokerName": "broker-a", "queueId": queue_id, "topic": "TopicA"} for queue_id in (0, 1)]
    body = dumps({"clientId": client, "consumerGroup": "group", "mqSet": queues, "onlyThisBroker": False})
    answer = broker.ask(code, None, body)
    assert answer.code == OK
    return len(loads(answer.body)["lockOKMQSet"]) if answer.body else 0


def test_queue_lock_has_one_owner_until_it_is_released_or_not_renewed_for_60s(tmp_path: Path) -> None:
    assert BrokerConfig().lock_live_ms == 60_000
    broker = Harness(tmp_path)
    broker.create_topic("TopicA")
    assert lock(broker, "one") == 2
    assert lock(broker, "two") == 0
    broker.pass_time(59_999)
    assert lock(broker, "two") == 0
    assert lock(broker, "one") == 2
    broker.pass_time(59_999)
    assert lock(broker, "two") == 0
    broker.pass_time(1)
    assert lock(broker, "two") == 2
    lock(broker, "one", RequestCode.UNLOCK_BATCH_MQ)
    assert lock(broker, "one") == 0
    lock(broker, "two", RequestCode.UNLOCK_BATCH_MQ)
    assert lock(broker, "one") == 2


def test_locks_that_are_not_renewed_are_removed(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    lock(broker, "one")
    broker.pass_time(80_000)
    assert broker.node.features.find(ConsumerManageProcessor)._locks._held == {}


# Ends of many queues.


def ends_of(broker: Harness, *topics: str) -> list[list[int] | None]:
    answer = broker.ask(RequestCode.TANDEM_QUEUE_BOUNDS, body=dumps({"topics": list(topics)}))
    assert answer.code == OK, answer.remark
    found: list[list[int] | None] = loads(answer.body)["ends"]
    assert [None if of_topic is None else [0] * len(of_topic) for of_topic in found] == loads(answer.body)["starts"]
    return found


def test_ends_of_topics_are_those_of_their_queues_one_by_one(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for queue_id, count in ((0, 3), (2, 1)):
        for _ in range(count):
            broker.send("TopicA", queue_id=queue_id)
    broker.send("TopicB")
    one_by_one = [
        int(broker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": at}).fields["offset"])
        for at in range(len(ends_of(broker, "TopicA")[0] or ()))
    ]
    assert one_by_one[:3] == [3, 0, 1]
    ends = ends_of(broker, "TopicA", "Unknown", "TopicB")
    assert ends[:2] == [one_by_one, None]
    assert (ends[2] or [])[0] == 1
    assert ends_of(broker) == []


def test_starts_are_those_of_queues_whose_first_messages_are_deleted_also_on_a_slave_without_consumers(
    tmp_path: Path,
) -> None:
    broker = Harness(tmp_path)
    for _ in range(5):
        broker.send("TopicA", queue_id=1)
    broker.node.store.queues["TopicA", 1].min_offset = 3
    one = broker.ask(RequestCode.GET_MIN_OFFSET, {"topic": "TopicA", "queueId": 1}).fields["offset"]
    for reason in (None, "this slave serves no consumers"):
        let(broker.node, read=reason)
        body = loads(broker.ask(RequestCode.TANDEM_QUEUE_BOUNDS, body=dumps({"topics": ["TopicA"]})).body)
        assert body["starts"][0][:2] == [0, int(one)] == [0, 3]
        assert (body["ends"] is None) is (reason is not None)


def test_ends_are_told_for_as_many_queues_as_one_turn_may_look_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    for topic in ("TopicA", "TopicB", "TopicC"):
        broker.send(topic)
    queues = len(ends_of(broker, "TopicA")[0] or ())
    monkeypatch.setattr(consumer_manage, "BOUNDS_MAX", 2 * queues)
    assert len(ends_of(broker, "TopicA", "TopicB", "TopicC")) == 2
    assert len(ends_of(broker, "TopicA", "Unknown", "TopicB", "Unknown")) == 4
    monkeypatch.setattr(consumer_manage, "BOUNDS_MAX", queues - 1)
    assert ends_of(broker, "TopicA") == [None], "the queues of such a topic are asked for one by one"
    refused = broker.ask(RequestCode.TANDEM_QUEUE_BOUNDS, body=dumps({"topics": ["T" * 100] * 700}))
    assert refused.code == ResponseCode.SYSTEM_ERROR and "at most 65536" in (refused.remark or "")
    for body in (b"", b"[]", b'{"topics":3}', b"{}"):
        assert broker.ask(RequestCode.TANDEM_QUEUE_BOUNDS, body=body).code == ResponseCode.SYSTEM_ERROR
