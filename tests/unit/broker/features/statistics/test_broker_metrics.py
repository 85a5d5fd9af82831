"""Metrics of a broker: they agree with what its clients did."""

from pathlib import Path
from random import Random

import pytest

from tandemq.broker.features.statistics.consumer_metrics import READS_PER_SLICE, ConsumerMetrics
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.telemetry.collection import Collection
from tandemq.telemetry.exposition import TextRenderer
from tests.spec import spec
from tests.unit.broker.ha.group import Group
from tests.unit.broker.harness import Harness
from tests.unit.broker.roles.registry_group import RegistryGroup
from tests.unit.telemetry.pages import samples_in, text_of, value

LAG_NAME = "rocketmq_consumer_lag_messages"
OFFSET = {"consumerGroup": "group", "topic": "TopicA", "queueId": 0, "commitOffset": 1}


def page_of(broker: Harness) -> str:
    """Return the page of a broker."""
    return text_of(broker.node.metrics, broker.now)


@spec("O02")
def test_messages_in_and_out_are_those_of_the_clients(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker = broker.restart()
    for _ in range(5):
        broker.send("TopicA", b"x" * 2_000)
    answer = broker.pull("TopicA", 1, most=3)
    assert answer is not None
    text = page_of(broker)
    assert value(text, "rocketmq_messages_in_total", topic="TopicA", message_type="normal", is_system="false") == 5
    assert value(text, "rocketmq_messages_out_total", topic="TopicA", consumer_group="group") == 3
    assert value(text, "rocketmq_throughput_out_total", topic="TopicA") == len(answer.body)
    broker.pass_time(10_000)
    text = page_of(broker)
    assert value(text, "rocketmq_messages_in_total", topic="TopicA") == 5, "the sample of 10 s changes nothing"
    assert value(text, "rocketmq_message_size_count", topic="TopicA") == 5
    assert value(text, "rocketmq_message_size_bucket", topic="TopicA", le="1024.0") == 0
    assert value(text, "rocketmq_message_size_bucket", topic="TopicA", le="4096.0") == 5
    assert (value(text, "rocketmq_throughput_in_total", topic="TopicA") or 0) > 10_000


@spec("O02")
def test_lag_is_split_into_messages_in_flight_and_ready(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for _ in range(10):
        broker.send("TopicA")
    broker.commit(2)
    assert broker.pull("TopicA", 2, most=3) is not None
    broker.pass_time(7_000)
    text = page_of(broker)
    labels = {"consumer_group": "group", "topic": "TopicA", "is_retry": "false", "is_system": "false"}
    assert value(text, "rocketmq_consumer_lag_messages", **labels) == 8
    assert value(text, "rocketmq_consumer_inflight_messages", **labels) == 3
    assert value(text, "rocketmq_consumer_ready_messages", **labels) == 5
    assert value(text, "rocketmq_consumer_lag_latency_milliseconds", **labels) == 7_000
    assert value(text, "rocketmq_consumer_queueing_latency_milliseconds", **labels) == 7_000
    broker.commit(10)
    text = page_of(broker)
    assert value(text, "rocketmq_consumer_lag_messages", **labels) == 0
    assert value(text, "rocketmq_consumer_lag_latency_milliseconds", **labels) == 0


@spec("O02")
def test_slave_exports_no_lag_because_a_sum_would_count_it_twice(tmp_path: Path) -> None:
    group = Group(tmp_path)
    for _ in range(3):
        group.send(b"one", "TopicA")
    group.settle()
    group.master.commit(1)
    group.tell_master(group.slave)
    group.pass_time(15_000)
    assert group.slave.node.offsets.table, "the slave has a copy of the offsets"
    lags = [value(text_of(one.node.metrics, one.now), LAG_NAME) for one in (group.master, group.slave)]
    assert lags == [2, None]


@spec("O02")
def test_lag_comes_from_the_reader_in_charge_only(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME)
    master, slave = group.brokers[0], group.brokers[1]
    for _ in range(3):
        group.send(master)
    master.ask(Code.UPDATE_CONSUMER_OFFSET, OFFSET)
    group.pass_time(500)
    assert lags_of(group) == {0: 2, 1: None}
    group.kill(0)
    group.pass_time(5_000)
    assert slave.may == "R"
    assert lags_of(group) == {1: 2}
    slave.heartbeat("group", {"TopicA": "*"})  # a consumer whose commits are waited for
    group.start(0)
    for _ in range(30):
        group.pass_time(100)
        assert list(lags_of(group).values()).count(2) <= 1
    assert lags_of(group) == {0: 2, 1: None}


@spec("O02")
def test_master_without_its_lease_exports_no_lag_and_is_no_active_master(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT)
    master = group.serving
    group.send(master)
    group.send(master)
    master.ask(Code.UPDATE_CONSUMER_OFFSET, OFFSET)
    group.pass_time(500)
    text = text_of(master.node.metrics, master.now)
    assert (value(text, LAG_NAME), value(text, "tandemq_broker_master")) == (1, 1)
    group.registry_is_up = False
    group.kill(next(number for number, one in group.brokers.items() if one is not master))
    group.pass_time(10_000)
    text = text_of(master.node.metrics, master.now)
    assert (value(text, LAG_NAME), value(text, "tandemq_broker_master")) == (None, 0)


@spec("O02")
def test_lag_that_is_kept_is_the_lag_counted_anew(tmp_path: Path) -> None:
    random, broker = Random(3), Harness(tmp_path)
    kept = ConsumerMetrics(broker.node.kernel)
    for topic in ("TopicA", "TopicB"):
        broker.create_topic(topic, queues=3)
    for number in range(80):
        topic, queue = random.choice(("TopicA", "TopicB")), random.randrange(3)
        match random.randrange(5):
            case 0 | 1:
                broker.send(topic, queue_id=queue)
            case 2:
                broker.commit(random.randrange(6), topic=topic, queue_id=queue)
            case 3:
                broker.pull(topic, random.randrange(4), queue_id=queue, most=1)
            case _:
                broker.pass_time(1_000)
        assert lag_in(kept, broker) == lag_in(ConsumerMetrics(broker.node.kernel), broker), number


def lag_in(metrics: ConsumerMetrics, broker: Harness) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the values of all families of one collection."""
    return {batch.family.name: dict(batch.values) for batch in metrics.collect(broker.now) if batch is not None}


def lags_of(group: RegistryGroup) -> dict[int, float | None]:
    """Return the sum of each running member's lag series."""
    return {
        number: value(text_of(broker.node.metrics, broker.now), LAG_NAME) for number, broker in group.brokers.items()
    }


@spec("O03")
def test_few_records_are_read_per_slice_and_none_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("TopicA", queues=100)
    for queue_id in range(100):
        broker.send("TopicA", queue_id=queue_id)
        broker.send("TopicA", queue_id=queue_id)
        broker.commit(1, queue_id=queue_id)
    store, reads = broker.node.store, 0
    read = store.stored_ms

    def counted(*where: object) -> int:
        nonlocal reads
        reads += 1
        return read(*where)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "stored_ms", counted)
    collection, most = Collection(broker.node.metrics, TextRenderer(50_000), broker.now), 0
    is_complete = False
    while not is_complete:
        before = reads
        is_complete = collection.step()
        most = max(most, reads - before)
    assert most <= READS_PER_SLICE + 1
    assert reads == 100
    page_of(broker)
    assert reads == 100, "the times of offsets that did not change are kept"


def test_deleted_topics_and_groups_have_no_series_any_more(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    broker.commit(0)
    assert broker.pull("TopicA") is not None
    assert 'topic="TopicA"' in page_of(broker)
    broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    broker.ask(Code.DELETE_SUBSCRIPTIONGROUP, {"groupName": "group", "cleanOffset": "true"})
    names = {name for name, labels, _ in samples_in(page_of(broker)) if labels.get("topic") == "TopicA"}
    assert names <= {"rocketmq_messages_out_total", "rocketmq_throughput_out_total"}, "what was sent stays counted"


def test_clients_are_counted_by_language_and_version(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.heartbeat("group", {"TopicA": "*"}, link=1)
    text = page_of(broker)
    assert value(text, "rocketmq_consumer_connections", consumer_group="group", language="java") == 1


def test_members_are_counted_by_the_way_in_which_they_consume(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for group, kind in (("push", "CONSUME_PASSIVELY"), ("pull", "CONSUME_ACTIVELY"), ("pop", "CONSUME_POP")):
        broker.heartbeat(group, {"TopicA": "*"}, link=1, consume_type=kind)
    text = page_of(broker)
    for group in ("push", "pull", "pop"):
        assert value(text, "rocketmq_consumer_connections", consumer_group=group, consume_mode=group) == 1


def test_requests_are_counted_with_the_duration_of_their_turn(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    for _ in range(3):
        broker.ask(Code.GET_MAX_OFFSET, {"topic": "TopicA", "queueId": 0})
    broker.ask(9_999)
    broker.ask(9_998)
    assert broker.pull("TopicA") is not None
    broker.node.turn_took(2_000_000)
    text = page_of(broker)
    name = "rocketmq_rpc_latency_milliseconds_count"
    assert value(text, name, request_code="get_max_offset", response_code="success") == 3
    assert value(text, name, request_code="unknown") == 2, "codes that clients make up are one series"
    assert value(text, name, request_code="pull_message", response_code="success") == 1
    assert value(text, name, request_code="send_message_v2", response_code="success") == 1
    assert value(text, "tandemq_loop_turn_seconds_count") == 1


def test_master_and_slave_report_both_ends_of_their_connection(tmp_path: Path) -> None:
    group = Group(tmp_path)
    master, slave = group.master, group.slave
    group.send(b"one", "TopicA")
    group.settle()
    text = text_of(master.node.metrics, master.now)
    assert value(text, "tandemq_broker_master", broker="broker-a", broker_id="0") == 1
    assert value(text, "tandemq_replication_connected", peer="1") == 1
    assert value(text, "tandemq_replication_lag_bytes", peer="1") == 0
    assert value(text, "tandemq_group_in_sync_members") == 2
    text = text_of(slave.node.metrics, slave.now)
    assert value(text, "tandemq_broker_master") == 0
    assert value(text, "tandemq_replication_connected", peer="master") == 1
    assert not value(text, "rocketmq_messages_in_total", topic="TopicA"), "it was put at the master"
    slave.pass_time(10_000)
    assert not value(text_of(slave.node.metrics, slave.now), "rocketmq_messages_in_total", topic="TopicA")


@spec("O05")
def test_slave_is_ready_while_it_copies(tmp_path: Path) -> None:
    group = Group(tmp_path)
    assert group.slave.node.not_ready(group.now) == []
    group.refuses = True
    group.cut()
    assert group.slave.node.not_ready(group.now) == ["it has no connection to its master"]


@spec("O05")
def test_master_that_refuses_messages_is_not_ready_and_says_why(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    assert broker.node.not_ready(broker.now) == []
    broker.node.puts.refuse("disk full", "the disk is full")
    assert broker.node.not_ready(broker.now) == ["the disk is full"]
    assert value(page_of(broker), "tandemq_store_refusing") == 1


def test_every_family_appears_once(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    names = [line.split()[2] for line in page_of(broker).splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
