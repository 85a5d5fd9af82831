"""Metrics of timed messages."""

from pathlib import Path

from tandemq.broker.features.timers.families import TimedMessageMetrics
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel.labels import LOCAL_DISK
from tandemq.model.codes import RequestCode
from tests.unit.broker.features.timers.test_timed_messages import ready, timed
from tests.unit.broker.harness import Harness


def values(broker: Harness) -> dict[str, dict[tuple[str, ...], float]]:
    batches = TimedMessageMetrics(broker.node.features.find(TimedMessages)).collect(broker.now)
    return {batch.family.name: dict(batch.values) for batch in batches if batch is not None}


def test_what_waits_by_topic_and_by_time(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for seconds in ("2", "30", "4000"):
        timed(broker, UNIQ_KEY=seconds, TIMER_DELAY_SEC=seconds)
    timed(broker, topic="TopicB", UNIQ_KEY="B", TIMER_DELAY_SEC="30")
    timed(broker, UNIQ_KEY="x", TIMER_DELAY_SEC="4000", TIMER_DEL_UNIQKEY="TopicA+4000")
    found = values(broker)
    assert found["rocketmq_timing_messages"] == {("TopicA", *LOCAL_DISK): 3, ("TopicB", *LOCAL_DISK): 1}
    assert found["rocketmq_timer_message_snapshot"][("5", *LOCAL_DISK)] == 1
    assert found["rocketmq_timer_message_snapshot"][("60", *LOCAL_DISK)] == 2
    assert found["rocketmq_timer_message_snapshot"][("3600", *LOCAL_DISK)] == 0
    assert found["rocketmq_timer_message_snapshot"][("14400", *LOCAL_DISK)] == 2
    assert found["rocketmq_timer_enqueue_latency_milliseconds"] == {LOCAL_DISK: 0}
    assert found["rocketmq_timer_enqueue_total"] == {("TopicA", *LOCAL_DISK): 4, ("TopicB", *LOCAL_DISK): 1}
    assert found["rocketmq_timer_dequeue_lag"] == {LOCAL_DISK: 0}
    broker.pass_time(3_500)
    found = values(broker)
    assert found["rocketmq_timer_dequeue_total"] == {("TopicA", *LOCAL_DISK): 1}
    assert found["rocketmq_timing_messages"] == {("TopicA", *LOCAL_DISK): 2, ("TopicB", *LOCAL_DISK): 1}
    table = broker.json(RequestCode.GET_BROKER_RUNTIME_INFO)["table"]
    assert (table["timerReadBehind"], table["timerOffsetBehind"], table["timerCongestNum"]) == ("0", "0", "4")


def test_deleted_topic_is_forgotten_unless_messages_of_it_wait(tmp_path: Path) -> None:
    """A broker on which topics come and go would keep their names in memory, in its metrics and in its file."""
    broker = ready(tmp_path)
    timed(broker, UNIQ_KEY="a", TIMER_DELAY_SEC="2")
    timed(broker, topic="TopicB", UNIQ_KEY="b", TIMER_DELAY_SEC="2")
    timed(broker, topic="TopicB", UNIQ_KEY="c", TIMER_DELAY_SEC="30")
    broker.pass_time(3_500)
    for topic in ("TopicA", "TopicB"):
        assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == 0
    found = values(broker)
    assert found["rocketmq_timing_messages"] == {("TopicB", *LOCAL_DISK): 1}
    assert found["rocketmq_timer_enqueue_total"] == found["rocketmq_timer_dequeue_total"] == {}
    assert broker.node.features.find(TimedMessages).metrics.delays == {}
    assert set(broker.json(RequestCode.GET_TIMER_METRICS)["timingCount"]) == {"TopicB"}
    broker.pass_time(30_000)
    assert values(broker)["rocketmq_timer_dequeue_total"] == {}
    assert broker.json(RequestCode.GET_TIMER_METRICS)["timingCount"] == {}
    timed(broker, UNIQ_KEY="d", TIMER_DELAY_SEC="30")
    assert values(broker)["rocketmq_timing_messages"] == {("TopicA", *LOCAL_DISK): 1}


def test_recall_that_waits_survives_the_deletion_of_its_topic(tmp_path: Path) -> None:
    """It counts no message less, neither before nor after its time."""
    broker = ready(tmp_path)
    broker.create_topic("TopicA")
    timed(broker, UNIQ_KEY="x", TIMER_DELAY_SEC="4", TIMER_DEL_UNIQKEY="TopicA+nothing")
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == 0
    broker.create_topic("TopicA")
    broker.pass_time(6_000)
    assert values(broker)["rocketmq_timing_messages"] == {}


def test_messages_that_are_due_and_refused_by_the_disk_are_lag(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    timed(broker, TIMER_DELAY_SEC="2")
    broker.node.puts.refuse("a test", "the disk is full")
    broker.pass_time(9_000)
    found = values(broker)
    assert found["rocketmq_timer_dequeue_lag"] == {LOCAL_DISK: 1}
    assert found["rocketmq_timer_dequeue_latency_milliseconds"] == {LOCAL_DISK: 7_000}
    broker.node.puts.admit("a test")
    broker.pass_time(200)
    assert values(broker)["rocketmq_timer_dequeue_lag"] == {LOCAL_DISK: 0}


def test_delays_are_counted_by_rocketmqs_bounds(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for seconds in ("2", "70", "700", "5000"):
        timed(broker, UNIQ_KEY=seconds, TIMER_DELAY_SEC=seconds)
    batches = {
        one.family.name: one
        for one in TimedMessageMetrics(broker.node.features.find(TimedMessages)).collect(broker.now)
        if one
    }
    found = batches["rocketmq_delay_message_latency_seconds"]
    assert found.family.bounds == (60, 600, 3_600, 43_200, 86_400, 259_200)
    delays = found.distributions["TopicA", *LOCAL_DISK]
    assert [*delays.counts] == [1, 1, 1, 1, 0, 0, 0]
    assert 5_768 <= delays.sum <= 5_772, "broker time, rounded down to the precision"


def test_messages_that_were_not_read_yet_have_a_number_and_an_age(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    timed(broker, TIMER_DELAY_SEC="4000")
    timers = broker.node.features.find(TimedMessages)
    timers.table = None  # as after a failover, until the wheel topic was read
    broker.now.wall_ms += 7_000
    assert (timers.unread(), timers.unread_ms(broker.now)) == (1, 7_000)
    found = values(broker)
    assert found["rocketmq_timer_enqueue_lag"] == {LOCAL_DISK: 1}
    assert found["rocketmq_timer_enqueue_latency_milliseconds"] == {LOCAL_DISK: 7_000}


def test_slave_has_no_figures_of_what_waits(tmp_path: Path) -> None:
    broker = ready(tmp_path, role="SLAVE", broker_id=1)
    assert "rocketmq_timing_messages" not in values(broker)
