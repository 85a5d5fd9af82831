"""Counters by name and key: sums, rates, and averages per step."""

from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.statistics import stats
from tandemq.broker.features.statistics.stats import SAMPLE_US, Stats
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.storage.consume_queue import ConsumeQueue
from tests.serving import let
from tests.spec import spec
from tests.unit.broker.harness import Harness, messages_in, send_fields


def counter(broker: Harness, name: str, key: str) -> Any:
    return broker.json(Code.VIEW_BROKER_STATS_DATA, {"statsName": name, "statsKey": key})


def test_puts_of_a_topic_are_counted_with_their_bytes(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker = broker.restart()
    for queue_id in (0, 1, 1):
        broker.send("TopicA", queue_id=queue_id)
    size = broker.node.store.log.written_end // 4
    broker.pass_time(10_000)
    minute = counter(broker, "TOPIC_PUT_NUMS", "TopicA")["statsMinute"]
    assert (minute["sum"], minute["avgpt"]) == (3, 1.0), "messages from before the start do not count"
    assert abs(minute["tps"] - 0.3) < 0.01
    assert abs(counter(broker, "TOPIC_PUT_SIZE", "TopicA")["statsMinute"]["sum"] - 3 * size) < 3
    assert counter(broker, "BROKER_PUT_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 3


def test_gets_of_a_group_are_counted_by_topic(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for _ in range(4):
        broker.send("TopicA")
    answer = broker.pull("TopicA", most=3)
    assert answer is not None
    broker.pull("TopicA", 3)
    broker.pass_time(10_000)
    nums = counter(broker, "GROUP_GET_NUMS", "TopicA@group")["statsMinute"]
    assert (nums["sum"], nums["avgpt"]) == (4, 2.0)
    assert counter(broker, "GROUP_GET_SIZE", "TopicA@group")["statsMinute"]["sum"] > len(answer.body)
    assert counter(broker, "BROKER_GET_NUMS", "DefaultCluster")["statsMinute"]["sum"] == 4
    rate = broker.json(Code.GET_CONSUME_STATS, {"consumerGroup": "group", "topic": "TopicA"})["consumeTps"]
    assert abs(rate - 0.4) < 0.01


def test_messages_sent_back_are_counted(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    answer = broker.pull("TopicA")
    assert answer is not None
    [message] = messages_in(answer)
    fields = {
        "offset": message.log_offset,
        "group": "group",
        "delayLevel": 0,
        "originMsgId": "",
        "originTopic": "TopicA",
    }
    assert broker.ask(Code.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    broker.pass_time(10_000)
    assert counter(broker, "SNDBCK_PUT_NUMS", "TopicA@group")["statsMinute"]["sum"] == 1


def test_send_back_is_counted_for_the_real_topic_not_for_a_property_of_the_producer(tmp_path: Path) -> None:
    """RETRY_TOPIC may be 30 KiB long and differ in each message, so counters by it would take unlimited memory."""
    broker = Harness(tmp_path)
    sent = broker.ask(Code.SEND_MESSAGE_V2, send_fields("TopicA", properties={"RETRY_TOPIC": "x" * 30_000}), b"one")
    fields = {"offset": int(sent.fields["msgId"][16:], 16), "group": "group", "delayLevel": 0, "originMsgId": ""}
    assert broker.ask(Code.CONSUMER_SEND_MSG_BACK, fields).code == ResponseCode.SUCCESS
    assert broker.node.features.find(Stats).total("SNDBCK_PUT_NUMS", "TopicA@group") == 1


def test_minute_hour_and_day_are_summed_separately(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.pass_time(10_000)
    first = counter(broker, "TOPIC_PUT_NUMS", "TopicA")
    assert [first[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [1, 0, 0]
    broker.pass_time(600_000)
    broker.send("TopicA")
    broker.pass_time(10_000)
    later = counter(broker, "TOPIC_PUT_NUMS", "TopicA")
    assert [later[span]["sum"] for span in ("statsMinute", "statsHour", "statsDay")] == [1, 1, 0]


def test_unknown_counter_is_refused(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    answer = broker.ask(Code.VIEW_BROKER_STATS_DATA, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "missing"})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_counters_of_deleted_topics_and_groups_are_removed(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.pull("TopicA")
    broker.pass_time(10_000)
    broker.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "group"})
    assert broker.node.features.find(Stats).summaries("GROUP_GET_NUMS", "TopicA@group") is None
    broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    assert broker.node.features.find(Stats).summaries("TOPIC_PUT_NUMS", "TopicA") is None
    broker.send("TopicA")
    broker.pass_time(10_000)
    assert counter(broker, "TOPIC_PUT_NUMS", "TopicA")["statsMinute"]["sum"] == 1


def test_sizes_beyond_the_newest_entries_are_estimated_by_their_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stats, "SIZES_READ_MAX", 2)
    broker = Harness(tmp_path)
    sizes = []
    for length in (500, 100, 300):
        before = broker.node.store.log.written_end
        broker.send("TopicA", bytes(length))
        sizes.append(broker.node.store.log.written_end - before)
    broker.pass_time(10_000)
    assert counter(broker, "TOPIC_PUT_SIZE", "TopicA")["statsMinute"]["sum"] == sum(sizes[1:]) * 3 // 2


def test_slave_does_not_count_replicated_messages(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.node.close()
    slave = Harness(broker.disk, role="SLAVE", broker_id=1)
    slave.node.store.queues["TopicA", 0].max_offset += 1
    slave.pass_time(10_000)
    assert slave.node.features.find(Stats).summaries("TOPIC_PUT_NUMS", "TopicA") is None


@spec("O02")
def test_role_change_loses_no_count_of_a_master_and_counts_no_copy_of_a_slave(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    counters = broker.node.features.find(Stats)

    def counted() -> int:
        return counters.total("TOPIC_PUT_NUMS", "TopicA") + counters.uncounted(queues)["TopicA"]

    broker.send("TopicA")
    broker.send("TopicA")
    queues = [broker.node.store.queues["TopicA", 0]]
    assert counted() == 2
    let(broker.node, is_master=False, sends=None)
    broker.send("TopicA")  # for the counters, a message copied from the master
    broker.send("TopicA")
    assert counted() == 2, "not even before the next sample"
    let(broker.node, is_master=True)
    broker.send("TopicA")
    assert counted() == 3
    broker.pass_time(10_000)
    assert counted() == 3


def test_sample_of_many_queues_is_taken_between_requests(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    counters = broker.node.features.find(Stats)
    topics = [f"Topic{number:02}" for number in range(40)]
    for topic in topics:
        broker.send(topic)
        broker.send(topic, bytes(2_000))
    queues = list(broker.node.store.queues.values())
    broker.outbox.look_us = SAMPLE_US  # the time of a turn is over at the first look
    broker.pass_time(10_000)
    counted = {topic for topic in topics if counters.total("TOPIC_PUT_NUMS", topic)}
    assert len(counted) < len(topics)
    assert all(found == 2 for topic, found in known(counters, queues).items() if topic in topics)
    broker.send(topics[0])
    assert known(counters, queues)[topics[0]] == 3, "counted with the next sample"
    broker.pass_time(100)
    assert {counters.total("TOPIC_PUT_NUMS", topic) for topic in topics} == {2}
    assert counters.total("TOPIC_PUT_SIZE", topics[1]) > 2_000
    assert counters.sizes[topics[1]][:2] == [1, 1]
    broker.pass_time(10_000)
    assert known(counters, queues)[topics[0]] == counters.total("TOPIC_PUT_NUMS", topics[0]) == 3


def known(counters: Stats, queues: list[ConsumeQueue]) -> dict[str, int]:
    return {topic: counters.total("TOPIC_PUT_NUMS", topic) + more for topic, more in counters.uncounted(queues).items()}


def test_topic_deleted_during_a_sample_is_not_counted(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    counters = broker.node.features.find(Stats)
    for number in range(40):
        broker.send(f"Topic{number:02}")
    broker.outbox.look_us = SAMPLE_US
    broker.pass_time(10_000)
    broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Topic39"})
    broker.pass_time(100)
    assert counters.summaries("TOPIC_PUT_NUMS", "Topic39") is None
    assert counters.total("TOPIC_PUT_NUMS", "Topic38") == 1
    broker.send("Topic39")
    broker.pass_time(10_100)
    assert counters.total("TOPIC_PUT_NUMS", "Topic39") == 1


def test_sizes_that_the_page_cache_lacks_are_estimated_by_those_before() -> None:
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    counters = broker.node.features.find(Stats)
    broker.send("TopicA", bytes(500))
    broker.pass_time(10_000)
    size = counters.total("TOPIC_PUT_SIZE", "TopicA")
    assert size > 500
    assert broker.send("TopicA", bytes(2_000)).code == ResponseCode.SUCCESS
    broker.pass_time(2_000)  # the entry is in the file only
    disk.uncached = 1.0
    broker.pass_time(8_000)
    assert counters.total("TOPIC_PUT_NUMS", "TopicA") == 2
    assert counters.total("TOPIC_PUT_SIZE", "TopicA") == 2 * size
