"""Resetting offsets: by time, by offset, per queue and per group, online and offline, and from group to group."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.groups.reset_offset import NOTICE_GAP_MS
from tandemq.broker.state.pending_resets import FOLLOW_MS, PENDING_MAX, PendingResets
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.request_fields import pull_fields
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, messages_in


def key(queue_id: int) -> str:
    return f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"TopicA"}}'


def commit(broker: Harness, queue_id: int, offset: int, group: str = "group", topic: str = "TopicA") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset}
    assert broker.ask(Code.UPDATE_CONSUMER_OFFSET, fields).code == ResponseCode.SUCCESS


def stored(broker: Harness, queue_id: int, group: str = "group") -> int | None:
    return broker.node.offsets.get("TopicA", group, queue_id)


def reset(broker: Harness, timestamp: int, **fields: object) -> Command:
    language = str(fields.pop("language", "JAVA"))
    wanted = {"topic": "TopicA", "group": "group", "timestamp": timestamp, "isForce": True} | fields
    return broker.ask(Code.INVOKE_BROKER_TO_RESET_OFFSET, wanted, language=language)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Queues 0 and 1 of TopicA with five messages each, one per second; the group has read three of each."""
    broker = Harness(tmp_path)
    broker.start_ms = broker.now.wall_ms  # type: ignore[attr-defined]
    for _ in range(5):
        for queue_id in (0, 1):
            broker.send("TopicA", queue_id=queue_id)
        broker.pass_time(1_000)
    config = broker.node.topics.table["TopicA"].config
    config.write_queue_nums = config.read_queue_nums = 2
    for queue_id in (0, 1):
        commit(broker, queue_id, 3)
    return broker


def at(broker: Harness, seconds: int) -> int:
    start: int = broker.start_ms  # type: ignore[attr-defined]
    return start + seconds * 1_000


@spec("G12")
@pytest.mark.parametrize(("seconds", "force", "expected"), [(1, True, 1), (4, True, 4), (4, False, 3), (1, False, 1)])
def test_online_group_is_notified_of_its_offsets_by_time(
    broker: Harness, seconds: int, force: bool, expected: int
) -> None:
    for link in (7, 8):
        broker.open(link)
        broker.heartbeat("group", {"TopicA": "*"}, link=link, client_id=f"client-{link}")
    answer = reset(broker, at(broker, seconds), isForce=force)
    assert loads(answer.body) == {"offsetTable": {key(0): expected, key(1): expected}}
    for link in (7, 8):
        [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET, link=link)
        assert notice.is_oneway
        assert notice.fields == {
            "topic": "TopicA",
            "group": "group",
            "timestamp": str(at(broker, seconds)),
            "isForce": str(force).lower(),
        }
        assert notice.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:')
        assert loads(notice.body) == {"offsetTable": {key(0): expected, key(1): expected}}
    assert stored(broker, 0) == expected, "a member that gets the queue now begins there"


@spec("G12")
def test_time_before_all_messages_and_no_time_select_the_ends_of_the_queue(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    assert loads(reset(broker, 0).body)["offsetTable"][key(0)] == 0
    assert loads(reset(broker, -1).body)["offsetTable"][key(0)] == 5


def test_cpp_tool_has_members_notified_with_a_list(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, 0, language="CPP")
    [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert loads(notice.body) == {
        "offsetTable": [
            {"brokerName": "broker-a", "offset": 0, "queueId": queue_id, "topic": "TopicA"} for queue_id in (0, 1)
        ]
    }


def test_cpp_member_is_notified_with_a_list_for_any_tool(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"}, language="CPP")
    reset(broker, 0)
    [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert [item["offset"] for item in loads(notice.body)["offsetTable"]] == [0, 0]


@spec("G12")
def test_reset_of_an_offline_group_is_refused_so_that_tools_set_offsets_one_by_one(broker: Harness) -> None:
    assert reset(broker, 0).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert stored(broker, 0) == 3
    commit(broker, 0, 1)
    assert (stored(broker, 0), stored(broker, 1)) == (1, 3)


@spec("G12")
def test_one_queue_of_an_offline_group_is_set_to_an_offset(broker: Harness) -> None:
    broker.pull("TopicA", group="group")
    answer = reset(broker, 0, queueId=1, offset=2)
    assert loads(answer.body) == {"offsetTable": {key(1): 2}}
    assert (stored(broker, 0), stored(broker, 1)) == (3, 2)


@spec("G12")
def test_one_queue_of_an_online_group_is_set_by_time(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    answer = reset(broker, at(broker, 2), queueId=0)
    assert loads(answer.body) == {"offsetTable": {key(0): 2}}
    [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert loads(notice.body) == {"offsetTable": {key(0): 2}}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "missing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 6}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": -7}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 1, "group": "missing"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_invalid_reset_changes_nothing(broker: Harness, fields: dict[str, object], code: int) -> None:
    broker.pull("TopicA", group="group")
    answer = reset(broker, 0, **fields)
    assert answer.code == code
    assert answer.remark
    assert (stored(broker, 0), stored(broker, 1)) == (3, 3)


@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize(("timestamp", "expected"), [(0, [1, 0]), (-1, [5, 5])])
def test_queue_without_a_committed_offset_begins_at_its_minimum_or_maximum(
    broker: Harness, timestamp: int, expected: list[int], force: bool
) -> None:
    broker.heartbeat("other", {"TopicA": "*"})
    commit(broker, 1, 5, group="other")
    broker.node.store.queues["TopicA", 0].min_offset = 1
    assert reset(broker, timestamp, group="other", isForce=force).code == ResponseCode.SUCCESS
    assert [stored(broker, queue_id, "other") for queue_id in (0, 1)] == expected
    [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert loads(notice.body) == {"offsetTable": {key(0): expected[0], key(1): expected[1]}}


# Until the consumer has applied the reset.


def pulled(broker: Harness, offset: int, *, link: int = CLIENT, wait_ms: int = 0, commit: int | None = None) -> Command:
    answer = broker.pull("TopicA", offset, link=link, wait_ms=wait_ms, commit=commit)
    assert answer is not None
    return answer


@spec("G12")
def test_pull_after_a_reset_is_answered_with_the_new_offset_once(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, at(broker, 1))
    moved = pulled(broker, 3)
    assert (moved.code, moved.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert moved.fields["nextBeginOffset"] == "1"
    assert pulled(broker, 3).code == ResponseCode.SUCCESS, "a client that does not apply the reset gets messages again"
    assert [message.queue_offset for message in messages_in(pulled(broker, 1))] == [1, 2, 3, 4]


def test_pull_from_the_new_offset_ends_the_reset(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, at(broker, 1))
    assert pulled(broker, 1, commit=1).code == ResponseCode.SUCCESS
    assert pulled(broker, 5, commit=4).code == ResponseCode.PULL_NOT_FOUND
    assert stored(broker, 0) == 4
    assert len(broker.node.offsets.pending) == 1, "the reset of queue 1 is still pending"


@pytest.mark.parametrize("how", ["commit", "pull"])
def test_commits_are_ignored_until_the_consumer_has_applied_the_reset(broker: Harness, how: str) -> None:
    def commit_as_member(offset: int) -> None:
        if how == "pull":
            pulled(broker, 4, commit=offset)
        else:
            commit(broker, 0, offset)

    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, at(broker, 1))
    commit_as_member(4)
    pulled(broker, 4)  # answered with the new offset unless an earlier pull was
    commit_as_member(4)
    assert stored(broker, 0) == 1
    pulled(broker, 1)
    commit_as_member(4)
    assert stored(broker, 0) == 4


def test_reset_that_no_consumer_applies_ends_after_a_minute(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, at(broker, 1))
    broker.pass_time(FOLLOW_MS - 1)
    commit(broker, 0, 4)
    assert stored(broker, 0) == 1
    broker.pass_time(1)
    commit(broker, 0, 4)
    assert stored(broker, 0) == 4
    assert pulled(broker, 4).code == ResponseCode.SUCCESS


def test_commit_of_an_operator_overrides_a_reset(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"}, link=CLIENT)
    reset(broker, at(broker, 1))
    broker.open(7)
    fields = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 2}
    broker.ask(Code.UPDATE_CONSUMER_OFFSET, fields, link=7)
    assert stored(broker, 0) == 2
    assert pulled(broker, 3).code == ResponseCode.SUCCESS


def test_reset_ends_when_another_broker_serves_consumers(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, 0)
    broker.node.offsets.follow({"offsetTable": {"TopicA@group": {"0": 4}}}, b"{}")
    assert len(broker.node.offsets.pending) == 0


def test_reset_ends_with_its_topic(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, 0)
    assert broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
    assert len(broker.node.offsets.pending) == 0


@spec("G12")
def test_resets_of_queues_one_by_one_notify_a_member_once_and_move_its_held_pulls(broker: Harness) -> None:
    broker.open(7)
    for link in (CLIENT, 7):
        broker.heartbeat("group", {"TopicA": "*"}, link=link, client_id=f"client-{link}")
    opaques = [
        broker.send_request(Code.PULL_MESSAGE, held_pull(queue_id, group), link=link)
        for queue_id, group, link in ((0, "group", 7), (1, "group", 7), (1, "other", 7))
    ]
    for queue_id in (0, 1):
        assert reset(broker, -1, queueId=queue_id, offset=2).code == ResponseCode.SUCCESS
    for link in (CLIENT, 7):
        [notice] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET, link=link)
        assert loads(notice.body) == {"offsetTable": {key(0): 2}}
    first, second, others = (broker.answer_to(opaque, link=7) for opaque in opaques)
    assert first is None, "its member was notified"
    assert second is not None
    assert (second.code, second.fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    assert others is None
    broker.pass_time(NOTICE_GAP_MS)
    reset(broker, -1, queueId=1, offset=3)
    assert broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET, link=7)


def held_pull(queue_id: int, group: str) -> dict[str, object]:
    return pull_fields("TopicA", 5, consumerGroup=group, queueId=queue_id, sysFlag=6, suspendTimeoutMillis=60_000)


def test_pending_resets_are_bounded_and_the_oldest_is_dropped() -> None:
    pending = PendingResets()
    for number in range(PENDING_MAX + 1):
        pending.add("T", "g", number, 1, 0)
    assert len(pending) == PENDING_MAX
    assert not pending.ignores_commit("T", "g", 0, 0)
    assert pending.ignores_commit("T", "g", PENDING_MAX, 0)


def test_slave_does_not_reset(tmp_path: Path) -> None:
    slave = Harness(tmp_path, role="SLAVE", broker_id=1)
    assert reset(slave, 0).code == ResponseCode.SYSTEM_ERROR


# From group to group.


@pytest.mark.parametrize("fields", [{"topic": "TopicA"}, {}])
def test_cloned_group_has_offsets_of_its_own(broker: Harness, fields: dict[str, object]) -> None:
    wanted = {"srcGroup": "group", "destGroup": "clone", "offline": True} | fields
    assert broker.ask(Code.CLONE_GROUP_OFFSET, wanted).code == ResponseCode.SUCCESS
    assert stored(broker, 1, "clone") == 3
    commit(broker, 1, 5, group="clone")
    assert stored(broker, 1, "group") == 3


def test_cloning_an_online_group_excludes_topics_without_a_subscription(broker: Harness) -> None:
    broker.send("TopicB")
    commit(broker, 0, 1, topic="TopicB")
    broker.heartbeat("group", {"TopicB": "*"})
    broker.ask(Code.CLONE_GROUP_OFFSET, {"srcGroup": "group", "destGroup": "clone"})
    assert broker.node.offsets.topics_of("clone") == ["TopicB"]


def test_cloning_to_an_invalid_name_is_refused(broker: Harness) -> None:
    answer = broker.ask(Code.CLONE_GROUP_OFFSET, {"srcGroup": "group", "destGroup": "bad!"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def correction(broker: Harness, **fields: object) -> Any:
    wanted = {"topic": "TopicA", "compareGroup": "missing"} | fields
    return broker.json(Code.QUERY_CORRECTION_OFFSET, wanted)["correctionOffsets"]


def test_correction_returns_the_lowest_offset_of_all_groups(broker: Harness) -> None:
    commit(broker, 0, 2, group="slow")
    assert correction(broker) == {"0": 2, "1": 3}
    broker.node.store.queues["TopicA", 0].min_offset = 3
    assert correction(broker) == {"0": 3, "1": 3}, "offsets of deleted messages do not count"
    assert correction(broker, filterGroups="slow,other") == {"0": 3, "1": 3}
    assert correction(broker, filterGroups="slow", compareGroup="slow") == {"0": (1 << 63) - 1, "1": 3}
