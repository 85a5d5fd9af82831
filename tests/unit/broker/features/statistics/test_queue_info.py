"""Requests of operators about queues, groups and counters."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.statistics import queue_info
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tests.unit.broker.harness import START_WALL_MS, Harness


def key(topic: str, queue_id: int) -> str:
    return f'{{"brokerName":"broker-a","queueId":{queue_id},"topic":"{topic}"}}'


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """TopicA with two queues: three messages in queue 0, one second apart, none in queue 1; group has read two."""
    broker = Harness(tmp_path)
    fields = {"topic": "TopicA", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    broker.ask(Code.UPDATE_AND_CREATE_TOPIC, fields)
    for _ in range(3):
        broker.send("TopicA", b"12345", TAGS="a")
        broker.pass_time(1_000)
    commit(broker, "group", 2)
    return broker


def commit(broker: Harness, group: str, offset: int, topic: str = "TopicA") -> None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "commitOffset": offset}
    broker.ask(Code.UPDATE_CONSUMER_OFFSET, fields)


def test_topic_status_has_bounds_and_last_time_of_every_queue_in_javas_json(broker: Harness) -> None:
    answer = broker.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "TopicA"})
    assert answer.body.startswith(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicA"}:{"')
    assert loads(answer.body)["offsetTable"] == {
        key("TopicA", 0): {"lastUpdateTimestamp": START_WALL_MS + 2_000, "maxOffset": 3, "minOffset": 0},
        key("TopicA", 1): {"lastUpdateTimestamp": 0, "maxOffset": 0, "minOffset": 0},
    }
    assert broker.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "missing"}).code == ResponseCode.TOPIC_NOT_EXIST


def progress(broker: Harness, group: str = "group", **fields: object) -> Any:
    return broker.json(Code.GET_CONSUME_STATS, {"consumerGroup": group} | fields)["offsetTable"]


def test_progress_has_the_offset_of_a_group_in_every_queue(broker: Harness) -> None:
    assert progress(broker) == {
        key("TopicA", 0): {
            "brokerOffset": 3,
            "consumerOffset": 2,
            "lastTimestamp": START_WALL_MS + 1_000,
            "pullOffset": 2,
        },
        key("TopicA", 1): {"brokerOffset": 0, "consumerOffset": 0, "lastTimestamp": 0, "pullOffset": 0},
    }
    assert progress(broker, "missing") == {}


def test_pull_offset_is_behind_the_last_sent_message_and_at_least_the_committed_offset(broker: Harness) -> None:
    def offsets() -> tuple[int, int]:
        queue = progress(broker)[key("TopicA", 0)]
        return queue["pullOffset"], queue["consumerOffset"]

    broker.pull("TopicA", 0)
    assert offsets() == (3, 2)
    broker.pull("TopicA", 0, most=1)
    assert offsets() == (2, 2), "the committed offset counts where fewer messages were sent"
    commit(broker, "group", 3)
    assert offsets() == (3, 3)


def test_progress_of_an_online_group_excludes_topics_without_a_subscription(broker: Harness) -> None:
    broker.send("TopicB")
    commit(broker, "group", 1, "TopicB")
    broker.heartbeat("group", {"TopicB": "*"})
    assert all("TopicB" in queue for queue in progress(broker))
    assert progress(broker, topic="TopicA") == {}
    listed = progress(broker, topicList="TopicA;missing")
    assert set(listed) == {key("TopicA", 0), key("TopicA", 1)}, "listed topics are included in any case"


def test_progress_of_all_groups_sums_their_lag(broker: Harness) -> None:
    commit(broker, "slow", 0)
    for group in ("group", "slow"):
        broker.pull("TopicA", group=group)
    found = broker.json(Code.GET_BROKER_CONSUME_STATS, {"isOrder": False})
    assert found["totalDiff"] == 1 + 3
    tables = {group: stats for entry in found["consumeStatsList"] for group, stats in entry.items() if stats}
    assert set(tables) == {"group", "slow"}
    assert tables["slow"][0]["offsetTable"][key("TopicA", 0)]["brokerOffset"] == 3
    ordered = broker.json(Code.GET_BROKER_CONSUME_STATS, {"isOrder": True})
    assert ordered["totalDiff"] == 0


MANY = {"isOrder": False}


@pytest.fixture
def many(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A broker with 20 more groups, two queues each, of which four fit in a slice."""
    monkeypatch.setattr(queue_info, "QUEUES_PER_SLICE", 4)
    for number in range(20):
        commit(broker, f"group-{number:02}", 1)
        broker.pull("TopicA", group=f"group-{number:02}")  # the group exists from now on
    return broker


def test_progress_of_many_groups_is_built_in_slices_between_other_requests(many: Harness) -> None:
    opaque = many.send_request(Code.GET_BROKER_CONSUME_STATS, MANY)
    turns = 0
    while (answer := many.answer_to(opaque)) is None:
        assert many.send("TopicA").code == ResponseCode.SUCCESS, "answered while the response is being built"
        many.pass_time(1)
        turns += 1
    assert turns >= 42 // 4
    found = loads(answer.body)
    tables = {group: stats for entry in found["consumeStatsList"] for group, stats in entry.items() if stats}
    assert len(tables) == 20
    assert tables["group-07"][0]["offsetTable"][key("TopicA", 0)]["consumerOffset"] == 1


def test_groups_and_topics_deleted_meanwhile_are_left_out(many: Harness) -> None:
    opaque = many.send_request(Code.GET_BROKER_CONSUME_STATS, MANY)
    many.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    many.pass_time(50)
    answer = many.answer_to(opaque)
    assert answer is not None and answer.code == ResponseCode.SUCCESS
    assert len([stats for entry in loads(answer.body)["consumeStatsList"] for stats in entry.values() if stats]) <= 3


def test_number_of_responses_being_built_is_limited_and_closed_connections_are_dropped(many: Harness) -> None:
    many.open(9)
    begun = [many.send_request(Code.GET_BROKER_CONSUME_STATS, MANY, link=9) for _ in range(8)]
    assert many.ask(Code.GET_BROKER_CONSUME_STATS, MANY).code == ResponseCode.SYSTEM_BUSY
    many.close(9)
    many.pass_time(50)
    assert [many.answer_to(opaque, link=9) for opaque in begun] == [None] * 8
    opaque = many.send_request(Code.GET_BROKER_CONSUME_STATS, MANY)
    many.pass_time(50)
    assert many.answer_to(opaque) is not None


def test_groups_of_a_topic_are_subscribers_and_owners_of_offsets(broker: Harness) -> None:
    broker.heartbeat("online", {"TopicA": "*"})
    assert broker.json(Code.QUERY_TOPIC_CONSUME_BY_WHO, {"topic": "TopicA"}) == {"groupList": ["group", "online"]}


def test_time_span_shows_since_when_messages_wait(broker: Harness) -> None:
    spans = broker.json(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "TopicA", "group": "group"})["consumeTimeSpanSet"]
    assert spans[0] == {
        "consumeTimeStamp": START_WALL_MS + 1_000,
        "delayTime": 1_000,
        "maxTimeStamp": START_WALL_MS + 2_000,
        "messageQueue": {"brokerName": "broker-a", "queueId": 0, "topic": "TopicA"},
        "minTimeStamp": START_WALL_MS,
    }
    assert (spans[1]["minTimeStamp"], spans[1]["delayTime"]) == (-1, 0)
    commit(broker, "group", 3)
    read = broker.json(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "TopicA", "group": "group"})["consumeTimeSpanSet"]
    assert read[0]["delayTime"] == 0
    unknown = broker.ask(Code.QUERY_CONSUME_TIME_SPAN, {"topic": "missing", "group": "group"})
    assert unknown.code == ResponseCode.TOPIC_NOT_EXIST


def entries(broker: Harness, index: int, count: int = 10, **fields: object) -> Any:
    wanted = {"topic": "TopicA", "queueId": 0, "index": index, "count": count} | fields
    return broker.json(Code.QUERY_CONSUME_QUEUE, wanted)


def test_entries_of_a_queue_are_shown(broker: Harness) -> None:
    found = entries(broker, 1, 1)
    assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
    [entry] = found["queueData"]
    assert entry["tagsCode"] == ord("a")
    assert entry["physicOffset"] == entry["physicSize"] > 0
    assert len(entries(broker, 0, 1 << 30)["queueData"]) == 3
    assert "queueData" not in entries(broker, 3)
    assert "not online" in entries(broker, 0, consumerGroup="group")["filterData"]
    broker.heartbeat("group", {"TopicA": "a || b"})
    assert entries(broker, 0, consumerGroup="group")["subscriptionData"]["subString"] == "a || b"
    missing = broker.ask(Code.QUERY_CONSUME_QUEUE, {"topic": "TopicA", "queueId": 9, "index": 0, "count": 1})
    assert missing.code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (Code.GET_TOPIC_STATS_INFO, {}),
        (Code.GET_CONSUME_STATS, {}),
        (Code.QUERY_CONSUME_QUEUE, {"topic": "TopicA", "queueId": "x", "index": 0, "count": 1}),
        (Code.QUERY_CONSUME_QUEUE, {"topic": "TopicA", "queueId": 0, "index": -1, "count": -1}),
        (Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS"}),
        (Code.QUERY_CONSUME_TIME_SPAN, {"topic": "TopicA"}),
    ],
)
def test_request_with_wrong_fields_is_answered(broker: Harness, code: Code, fields: dict[str, object]) -> None:
    assert broker.ask(code, fields).remark


@pytest.mark.parametrize(
    ("code", "table", "queues"),
    [
        (Code.GET_TOPIC_STATS_INFO, "offsetTable", 10),
        (Code.GET_CONSUME_STATS, "offsetTable", 10),
        (Code.QUERY_CONSUME_TIME_SPAN, "consumeTimeSpanSet", 10),
    ],
)
def test_facts_about_many_queues_are_built_in_slices_between_other_requests(
    many: Harness, code: Code, table: str, queues: int
) -> None:
    """Records are read for each queue; a topic may have thousands."""
    fields = {"topic": "TopicA", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
    many.ask(Code.UPDATE_AND_CREATE_TOPIC, fields)
    opaque = many.send_request(code, {"topic": "TopicA", "group": "group", "consumerGroup": "group"})
    turns = 0
    while (answer := many.answer_to(opaque)) is None:
        assert many.send("TopicA").code == ResponseCode.SUCCESS
        many.pass_time(1)
        turns += 1
    assert turns == 2, "four queues at once"
    assert len(loads(answer.body)[table]) == queues


def test_response_of_one_slice_is_given_while_many_are_being_built(many: Harness) -> None:
    many.open(9)
    for _ in range(8):
        many.send_request(Code.GET_BROKER_CONSUME_STATS, MANY, link=9)
    assert many.ask(Code.GET_TOPIC_STATS_INFO, {"topic": "TopicA"}).code == ResponseCode.SUCCESS
