"""Setting offsets: by time, by offset, per queue and per group, online and offline, and from group to group."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.codec.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.broker.harness import Harness
from tests.spec import spec


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
def test_online_group_is_told_its_offsets_by_time(broker: Harness, seconds: int, force: bool, expected: int) -> None:
    for link in (7, 8):
        broker.open(link)
        broker.heartbeat("group", {"TopicA": "*"}, link=link, client_id=f"client-{link}")
    answer = reset(broker, at(broker, seconds), isForce=force)
    assert loads(answer.body) == {"offsetTable": {key(0): expected, key(1): expected}}
    for link in (7, 8):
        [told] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET, link=link)
        assert told.is_oneway
        assert told.fields == {
            "topic": "TopicA", "group": "group", "timestamp": str(at(broker, seconds)), "isForce": str(force).lower(),
        }  # fmt: skip
        assert told.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:')
        assert loads(told.body) == {"offsetTable": {key(0): expected, key(1): expected}}
    assert stored(broker, 0) == expected, "a member that takes the queue over now begins there"


@spec("G12")
def test_time_before_all_and_no_time_mean_the_ends(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    assert loads(reset(broker, 0).body)["offsetTable"][key(0)] == 0
    assert loads(reset(broker, -1).body)["offsetTable"][key(0)] == 5


def test_cpp_tool_gets_members_told_by_a_list(broker: Harness) -> None:
    broker.heartbeat("group", {"TopicA": "*"})
    reset(broker, 0, language="CPP")
    [told] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert loads(told.body) == {
        "offsetTable": [
            {"brokerName": "broker-a", "offset": 0, "queueId": queue_id, "topic": "TopicA"} for queue_id in (0, 1)
        ]
    }


@spec("G12")
def test_offline_group_is_left_to_the_tools_which_set_offsets_one_by_one(broker: Harness) -> None:
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
    [told] = broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET)
    assert loads(told.body) == {"offsetTable": {key(0): 2}}


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "nobody"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"queueId": 2}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 6}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": -7}, ResponseCode.SYSTEM_ERROR),
        ({"queueId": 0, "offset": 1, "group": "nobody"}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_reset_that_cannot_be_changes_nothing(broker: Harness, fields: dict[str, object], code: int) -> None:
    broker.pull("TopicA", group="group")
    answer = reset(broker, 0, **fields)
    assert answer.code == code
    assert answer.remark
    assert (stored(broker, 0), stored(broker, 1)) == (3, 3)


def test_group_without_an_offset_in_some_queue_is_not_reset(broker: Harness) -> None:
    broker.heartbeat("other", {"TopicA": "*"})
    commit(broker, 0, 1, group="other")
    assert reset(broker, 0, group="other").code == ResponseCode.SYSTEM_ERROR
    assert broker.take_requests(Code.RESET_CONSUMER_CLIENT_OFFSET) == []


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


def test_cloning_an_online_group_leaves_out_what_it_does_not_subscribe_to(broker: Harness) -> None:
    broker.send("TopicB")
    commit(broker, 0, 1, topic="TopicB")
    broker.heartbeat("group", {"TopicB": "*"})
    broker.ask(Code.CLONE_GROUP_OFFSET, {"srcGroup": "group", "destGroup": "clone"})
    assert broker.node.offsets.topics_of("clone") == ["TopicB"]


def test_cloning_to_a_name_that_is_none_is_refused(broker: Harness) -> None:
    answer = broker.ask(Code.CLONE_GROUP_OFFSET, {"srcGroup": "group", "destGroup": "bad!"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def correction(broker: Harness, **fields: object) -> Any:
    wanted = {"topic": "TopicA", "compareGroup": "nobody"} | fields
    return broker.json(Code.QUERY_CORRECTION_OFFSET, wanted)["correctionOffsets"]


def test_correction_tells_the_lowest_offset_of_all_groups(broker: Harness) -> None:
    commit(broker, 0, 2, group="slow")
    assert correction(broker) == {"0": 2, "1": 3}
    broker.node.store.queues["TopicA", 0].min_offset = 3
    assert correction(broker) == {"0": 3, "1": 3}, "what is gone from the log does not count"
    assert correction(broker, filterGroups="slow,other") == {"0": 3, "1": 3}
    assert correction(broker, filterGroups="slow", compareGroup="slow") == {"0": (1 << 63) - 1, "1": 3}
