"""Timed messages on one broker: taking, delivery, delete requests, recall, limits, and every refusal."""

from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Now, Turn
from tandemq.broker.features.timers import service
from tandemq.broker.features.timers.pending import PendingTimers, RollTask
from tandemq.broker.features.timers.service import DELIVERY_US, TimedMessages
from tandemq.broker.kernel import moves
from tandemq.broker.kernel.log_queue import SCAN_MS
from tandemq.codec.record.record import BatchPart, decode_messages, encode_batch
from tandemq.codec.remoting.recall_handle import decode_handle, encode_handle
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import StoredMessage, encode_properties
from tandemq.model.topic import TIMER_DONE_TOPIC, TIMER_TOPIC
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
from tests.unit.broker.features.waiting_tables import pending_timers
from tests.unit.broker.harness import START_WALL_MS, Harness, messages_in, send_fields

OK = ResponseCode.SUCCESS
SECOND = 1_000


def ready(path: Path | SimDisk, **changes: Any) -> Harness:
    """Return a broker that has read its timed messages, at a full second."""
    broker = Harness(path, now=Now(SECOND, START_WALL_MS), **changes)
    broker.pass_time(SECOND)
    return broker


def timed(broker: Harness, body: bytes = b"body", topic: str = "TopicA", **properties: str) -> Command:
    """Send a message with properties."""
    return broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, 1, properties), body)


def delivered(broker: Harness, topic: str = "TopicA", queue_id: int = 1) -> list[StoredMessage]:
    queue = broker.node.store.queues.get((topic, queue_id))
    if queue is None:
        return []
    found: list[StoredMessage] = []
    for at in range(queue.max_offset):
        record = broker.node.store.record_of(queue, at)
        assert record is not None
        found += decode_messages(record[1])
    return found


def bodies(broker: Harness, topic: str = "TopicA", queue_id: int = 1) -> list[bytes]:
    return [message.body for message in delivered(broker, topic, queue_id)]


def waiting(broker: Harness) -> int:
    return len(pending_timers(broker))


@spec("S01")
def test_message_waits_in_the_wheel_topic_and_comes_after_its_time(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    now_ms = broker.now.wall_ms
    answer = timed(broker, b"one", UNIQ_KEY="K1", TAGS="t", KEYS="k", TIMER_DELIVER_MS=str(now_ms + 5_400))
    assert (answer.code, answer.fields["queueId"], answer.fields["queueOffset"]) == (OK, "1", "0")
    (stored,) = delivered(broker, TIMER_TOPIC, 0)
    assert stored.properties["TIMER_OUT_MS"] == str(now_ms + 5_000)
    assert (stored.properties["REAL_TOPIC"], stored.properties["REAL_QID"]) == ("TopicA", "1")

    broker.pass_time(5_999)
    assert bodies(broker) == []
    broker.pass_time(101)
    (message,) = delivered(broker)
    assert (message.body, message.tags, message.keys, message.unique_key) == (b"one", "t", ["k"], "K1")
    assert (message.born_ms, message.born_host) == (stored.born_ms, stored.born_host)
    assert message.properties["TIMER_ENQUEUE_MS"] == str(now_ms)
    assert int(message.properties["TIMER_DEQUEUE_MS"]) == message.store_ms >= now_ms + 5_400
    for kept in ("TIMER_OUT_MS", "TIMER_DELIVER_MS", "REAL_TOPIC", "REAL_QID"):
        assert message.properties[kept] == stored.properties[kept]
    found = broker.pull("TopicA", queue_id=1)
    assert found is not None
    assert [one.body for one in messages_in(found)] == [b"one"]
    assert waiting(broker) == 0


@spec("S01")
@pytest.mark.parametrize(
    ("offset_ms", "out_ms"), [(5_000, 4_000), (5_001, 5_000), (5_999, 5_000), (6_000, 5_000), (1, 0), (999, 0)]
)
def test_time_is_rounded_as_rocketmq_does_and_the_message_never_early(
    tmp_path: Path, offset_ms: int, out_ms: int
) -> None:
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    timed(broker, TIMER_DELIVER_MS=str(start_ms + offset_ms))
    assert delivered(broker, TIMER_TOPIC, 0)[0].properties["TIMER_OUT_MS"] == str(start_ms + out_ms)
    broker.pass_time(8_000)
    (message,) = delivered(broker)
    assert offset_ms <= message.store_ms - start_ms <= offset_ms + 1_000 + 101


@pytest.mark.parametrize("precision_ms", [100, 200, 500, 1_000, 777])
def test_precision(tmp_path: Path, precision_ms: int) -> None:
    broker = ready(tmp_path, timer_precision_ms=precision_ms)
    start_ms = broker.now.wall_ms
    for number in range(40):
        timed(broker, b"%d" % number, TIMER_DELAY_MS=str(3_000 + 37 * number))
    broker.pass_time(8_000)
    found = {int(message.body): message.store_ms - start_ms for message in delivered(broker)}
    assert len(found) == 40
    for number, at_ms in found.items():
        asked = 3_000 + 37 * number
        assert asked <= at_ms <= asked + precision_ms + 101


@pytest.mark.parametrize(
    ("properties", "after_ms"),
    [
        ({"TIMER_DELAY_SEC": "5"}, 5_000),
        ({"TIMER_DELAY_MS": "5000"}, 5_000),
        ({"TIMER_DELAY_SEC": "5", "TIMER_DELAY_MS": "1", "TIMER_DELIVER_MS": "1"}, 5_000),
        ({"TIMER_DELAY_MS": "+5000", "TIMER_DELIVER_MS": "1"}, 5_000),
        ({"TIMER_DELAY_SEC": "-5"}, 0),
        ({"TIMER_DELAY_MS": "0"}, 0),
        ({"TIMER_DELAY_MS": "-9223372036854775807"}, 0),
        ({"TIMER_DELIVER_MS": "1600000000000"}, 0),
        ({"TIMER_DELAY_SEC": "5", "TIMER_OUT_MS": "1600000000000"}, 0),
        ({"TIMER_DEL_UNIQKEY": "TopicA+K"}, 0),
    ],
)
def test_which_property_counts(tmp_path: Path, properties: dict[str, str], after_ms: int) -> None:
    """As in 5.3.3: seconds, then ms, then the absolute time; a time that has come makes an ordinary message."""
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    assert timed(broker, b"body", "TopicA", **properties).code == OK
    if not after_ms:
        (message,) = delivered(broker)
        assert set(properties.items()) <= set(message.properties.items())
        return
    broker.pass_time(8_000)
    (message,) = delivered(broker)
    assert after_ms <= message.store_ms - start_ms <= after_ms + 1_100


@spec("S03")
@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ({"TIMER_DELAY_SEC": "soon"}, "is no number"),
        ({"TIMER_DELAY_MS": "5.0"}, "is no number"),
        ({"TIMER_DELAY_MS": "٥"}, "is no number"),
        ({"TIMER_DELIVER_MS": "9" * 19}, "is no number"),
        ({"TIMER_DELIVER_MS": "1" * 500}, "is no number"),
        ({"TIMER_DELAY_SEC": "259201"}, "timerMaxDelaySec"),
        ({"TIMER_DELAY_SEC": "9223372036854775807"}, "timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": "9223372036854775807"}, "timerMaxDelaySec"),
        ({"TIMER_DELAY_SEC": "0", "TIMER_DEL_UNIQKEY": "TopicA+K"}, "TIMER_DEL_UNIQKEY"),
    ],
)
def test_illegal_time_is_refused(tmp_path: Path, properties: dict[str, str], remark: str) -> None:
    broker = ready(tmp_path)
    answer = timed(broker, b"body", "TopicA", **properties)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert (answer.remark or "").startswith("timer message illegal, ")
    assert remark in (answer.remark or "")
    assert len(answer.remark or "") < 250
    assert (TIMER_TOPIC, 0) not in broker.node.store.queues


def test_longest_delay_is_taken(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    assert timed(broker, TIMER_DELAY_SEC="259200").code == OK
    assert waiting(broker) == 1


def test_switched_off_by_the_setting(tmp_path: Path) -> None:
    broker = ready(tmp_path, timer_enable=False)
    answer = timed(broker, TIMER_DELAY_SEC="5")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "accurate timer message is not enabled" in (answer.remark or "")
    assert delivered(broker) == []


def test_delay_level_takes_precedence_and_removes_the_time(tmp_path: Path) -> None:
    broker = ready(tmp_path, delay_levels="1s 5s")
    timed(broker, DELAY="1", TIMER_DELAY_SEC="60", TIMER_DELIVER_MS="7")
    broker.pass_time(2_500)
    (message,) = delivered(broker)
    assert not {"TIMER_DELAY_SEC", "TIMER_DELIVER_MS"} & set(message.properties)


def test_clients_cannot_write_into_the_broker_s_topics(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for topic in (TIMER_TOPIC, TIMER_DONE_TOPIC):
        assert broker.send(topic, TIMER_OUT_MS="1", REAL_TOPIC="TopicA").code == ResponseCode.NO_PERMISSION


def test_properties_must_leave_room_for_those_of_the_delivery(tmp_path: Path) -> None:
    broker = ready(tmp_path, message_bytes_max=16 * 1024, segment_bytes=128 * 1024)
    assert timed(broker, K="v" * 32_000, TIMER_DELAY_SEC="1").code == OK
    answer = timed(broker, K="v" * 32_500, TIMER_DELAY_SEC="1")
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    broker.pass_time(3_000)
    assert len(delivered(broker)) == 1


def batch(*texts: bytes, properties: bytes = b"TAGS\x01t\x02") -> bytes:
    return encode_batch([BatchPart(7, text, properties) for text in texts])


def test_time_of_a_batch_is_that_of_all_its_messages(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    fields = send_fields("TopicA", 1, {"TIMER_DELAY_SEC": "2"}) | {"m": "true"}
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch(b"one", b"two"))
    assert (answer.code, answer.fields["queueId"], "recallHandle" in answer.fields) == (OK, "1", False)
    assert bodies(broker) == []
    broker.pass_time(3_500)
    assert [(message.body, message.tags, message.flag) for message in delivered(broker)] == [
        (b"one", "t", 7),
        (b"two", "t", 7),
    ]


def test_message_in_a_batch_with_a_time_of_its_own_is_refused(tmp_path: Path) -> None:
    """A Java broker would deliver it at once."""
    broker = ready(tmp_path)
    own = encode_properties({"UNIQ_KEY": "K", "TIMER_DELAY_SEC": "5"}).encode()
    fields = send_fields("TopicA", 1) | {"m": "true"}
    answer = broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch(b"one") + batch(b"two", properties=own))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "batch" in (answer.remark or "")
    assert bodies(broker) == []


def test_deleted_topic_is_created_again_for_its_message(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    broker.create_topic("TopicA")
    timed(broker, b"one", TIMER_DELAY_SEC="2")
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"}).code == OK
    broker.pass_time(4_000)
    assert bodies(broker) == [b"one"]


def test_failed_write_delivers_nothing_and_is_tried_again(tmp_path: Path) -> None:
    disk = SimDisk(Random(1))
    broker = ready(disk)
    for number in range(5):
        timed(broker, b"%d" % number, TIMER_DELAY_SEC="2")
    disk.fail("pwrite", times=1, error=DiskFull, prefix="commitlog")
    broker.pass_time(3_100)
    broker.pass_time(20_000)
    disk.heal()
    broker.pass_time(20_000)
    assert bodies(broker) == [b"0", b"1", b"2", b"3", b"4"]
    assert waiting(broker) == 0


def test_many_messages_of_one_time_take_several_turns(tmp_path: Path) -> None:
    broker = ready(tmp_path, segment_bytes=1 << 20)
    for number in range(700):
        timed(broker, b"%d" % number, TIMER_DELAY_SEC="60")
    broker.pass_time(61_100)
    assert sorted(map(int, bodies(broker))) == list(range(700))
    table = broker.node.features.find(TimedMessages).table
    assert table is not None
    assert (len(table), table.slots, table.lowest()) == (0, {}, None)


@spec("S01")
def test_clock_that_goes_back_delivers_nothing_early_or_twice(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    timed(broker, b"before", TIMER_DELAY_SEC="10")
    timed(broker, b"far", TIMER_DELAY_SEC="100")
    broker.pass_time(12_000)
    broker.now = Now(broker.now.mono_ms, broker.now.wall_ms - 150_000)
    asked_ms = broker.now.wall_ms + 20_000
    timed(broker, b"after", TIMER_DELIVER_MS=str(asked_ms))
    broker.pass_time(19_900)
    assert bodies(broker) == [b"before"]
    broker.pass_time(2_000)
    assert bodies(broker) == [b"before", b"after"]
    broker = broker.restart(clean=False)
    broker.pass_time(250_000)
    assert bodies(broker) == [b"before", b"after", b"far"]


# Delete requests and recall.


@spec("S02")
def test_delete_request_of_the_same_time_drops_a_message(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for key in "ABCD":
        timed(broker, key.encode(), UNIQ_KEY=key, TIMER_DELAY_SEC="5")
    timed(broker, b"other topic", topic="TopicB", UNIQ_KEY="A", TIMER_DELAY_SEC="5")
    timed(broker, b"-", UNIQ_KEY="x", TIMER_DELAY_SEC="5", TIMER_DEL_UNIQKEY="TopicA+A")
    timed(broker, b"-", UNIQ_KEY="y", TIMER_DELAY_SEC="5", TIMER_DEL_UNIQKEY="B")  # as before 5.3.2
    timed(broker, b"-", UNIQ_KEY="z", TIMER_DELAY_SEC="9", TIMER_DEL_UNIQKEY="TopicA+C")  # another time
    timed(broker, b"-", topic="TopicB", UNIQ_KEY="w", TIMER_DELAY_SEC="5", TIMER_DEL_UNIQKEY="TopicA+D")  # not its own
    broker.pass_time(12_000)
    assert bodies(broker) == [b"C", b"D"]
    assert bodies(broker, "TopicB") == [b"other topic"]
    assert waiting(broker) == 0
    broker = broker.restart(clean=False)
    broker.pass_time(5_000)
    assert bodies(broker) == [b"C", b"D"]


@spec("S02")
def test_delete_requests_of_two_topics_with_one_name(tmp_path: Path) -> None:
    """Clients before 5.3.2 name the key alone."""
    broker = ready(tmp_path)
    out_ms = str(broker.now.wall_ms + 5_000)
    for topic in ("TopicA", "TopicB"):
        timed(broker, b"body", topic, UNIQ_KEY="K", TIMER_DELIVER_MS=out_ms)
        timed(broker, b"-", topic, UNIQ_KEY="R", TIMER_DELIVER_MS=out_ms, TIMER_DEL_UNIQKEY="K")
    broker.pass_time(7_000)
    assert bodies(broker, "TopicA") == bodies(broker, "TopicB") == []


@spec("S02")
def test_count_is_right_after_recalls_that_are_repeated_or_name_nothing(tmp_path: Path) -> None:
    """Of two times that are handled in one turn."""
    broker = ready(tmp_path)
    start_ms = broker.now.wall_ms
    timed(broker, b"body", UNIQ_KEY="K", TIMER_DELIVER_MS=str(start_ms + 5_000))
    for out_ms in (start_ms + 5_000, start_ms + 8_000):
        for name in ("TopicA+K", "TopicA+K", "TopicA+none"):
            timed(broker, b"-", UNIQ_KEY="R", TIMER_DELIVER_MS=str(out_ms), TIMER_DEL_UNIQKEY=name)
    broker.pass_time(2_000)
    assert broker.node.features.find(TimedMessages).metrics.by_topic() == {"TopicA": 1}
    broker.now = Now(broker.now.mono_ms + 10_000, start_ms + 12_000)
    broker.pass_time(SECOND)
    assert (bodies(broker), waiting(broker), pending_timers(broker).counts["TopicA"]) == (
        [],
        0,
        0,
    )


@spec("S02")
def test_repeated_recalls_of_one_message_do_not_hide_those_that_wait(tmp_path: Path) -> None:
    broker = ready(tmp_path, recall_enable=True)
    handle, *_ = [timed(broker, UNIQ_KEY=key, TIMER_DELAY_SEC="5").fields["recallHandle"] for key in "ABCD"]
    for _ in range(4):
        assert recall(broker, handle).code == OK
    broker.pass_time(2_000)
    assert broker.node.features.find(TimedMessages).metrics.by_topic() == {
        "TopicA": 4
    }  # the recalled one counts until its time
    assert TableFile("timermetrics").load(broker.disk)["timingCount"]["TopicA"]["count"] == 4
    again = broker.restart(clean=False)
    again.pass_time(2_000)
    assert again.node.features.find(TimedMessages).metrics.by_topic() == {"TopicA": 4}
    again.pass_time(5_000)
    assert (len(bodies(again)), again.node.features.find(TimedMessages).metrics.by_topic()) == (3, {})


def test_counts_are_kept_by_topic(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    for key in "ABC":
        timed(broker, UNIQ_KEY=key, TIMER_DELAY_SEC="60")
    timed(broker, topic="TopicB", UNIQ_KEY="D", TIMER_DELAY_SEC="60")
    timed(broker, UNIQ_KEY="x", TIMER_DELAY_SEC="60", TIMER_DEL_UNIQKEY="TopicA+A")
    timed(broker, UNIQ_KEY="y", TIMER_DELAY_SEC="2", TIMER_DEL_UNIQKEY="TopicA+unknown")
    broker.pass_time(1_000)
    assert broker.node.features.find(TimedMessages).metrics.by_topic() == {"TopicA": 3, "TopicB": 1}
    broker.pass_time(3_000)
    counts = TableFile("timermetrics").load(broker.disk)["timingCount"]
    assert {topic: entry["count"] for topic, entry in counts.items()} == {"TopicA": 3, "TopicB": 1}
    assert broker.json(RequestCode.GET_TIMER_METRICS)["timingCount"].keys() == {"TopicA", "TopicB"}
    broker.pass_time(60_000)
    assert broker.node.features.find(TimedMessages).metrics.by_topic() == {}


def test_messages_taken_before_the_table_is_read_are_counted(tmp_path: Path) -> None:
    broker = Harness(tmp_path, now=Now(SECOND, START_WALL_MS))
    timed(broker, TIMER_DELAY_SEC="60")
    assert broker.node.features.find(TimedMessages).table is None
    metrics = broker.node.features.find(TimedMessages).metrics
    assert metrics.enqueued_total == {"TopicA": 1}
    assert metrics.delays["TopicA"].counts[0] == 1
    broker.pass_time(2 * SECOND)
    assert metrics.by_topic() == metrics.enqueued_total == {"TopicA": 1}


def recall(broker: Harness, handle: str, topic: str = "TopicA", group: str = "producers") -> Command:
    fields = {"producerGroup": group, "topic": topic, "recallHandle": handle}
    return broker.ask(RequestCode.RECALL_MESSAGE, fields)


@spec("S02")
def test_recalled_message_is_not_delivered(tmp_path: Path) -> None:
    broker = ready(tmp_path, recall_enable=True)
    handle = timed(broker, b"one", UNIQ_KEY="K1", TIMER_DELAY_MS="5300").fields["recallHandle"]
    timed(broker, b"two", UNIQ_KEY="K2", TIMER_DELAY_MS="5300")
    named = decode_handle(handle)
    assert (named.topic, named.broker_name, named.unique_key) == ("TopicA", "broker-a", "K1")
    assert handle.startswith("djEg")
    answer = recall(broker, handle)
    assert (answer.code, answer.fields["msgId"]) == (OK, "K1")
    request = delivered(broker, TIMER_TOPIC, 0)[-1]
    assert (request.body, request.tags, request.properties["TIMER_DEL_UNIQKEY"]) == (b"0", "_RECALL_TAG_", "TopicA+K1")
    broker.pass_time(8_000)
    assert bodies(broker) == [b"two"]
    assert recall(broker, handle).code == ResponseCode.ILLEGAL_OPERATION  # its time is over


def test_stored_recall_is_a_success_although_the_slave_is_absent(tmp_path: Path) -> None:
    broker = ready(tmp_path, recall_enable=True, role="SYNC_MASTER")
    answer = timed(broker, b"one", UNIQ_KEY="K1", TIMER_DELAY_MS="5300")
    assert answer.code == ResponseCode.SLAVE_NOT_AVAILABLE
    answer = recall(broker, answer.fields["recallHandle"])
    assert (answer.code, answer.fields["msgId"]) == (OK, "K1")


@spec("S02")
def test_recall_that_cannot_be_is_refused(tmp_path: Path) -> None:
    broker = ready(tmp_path, recall_enable=True)
    timed(broker, UNIQ_KEY="K1", TIMER_DELAY_SEC="5")
    out_ms = broker.now.wall_ms + 5_000
    for handle, topic, code in (
        (encode_handle("TopicA", "broker-a", out_ms, "K1"), "TopicX", ResponseCode.TOPIC_NOT_EXIST),
        ("%%%", "TopicA", ResponseCode.ILLEGAL_OPERATION),
        ("", "TopicA", ResponseCode.ILLEGAL_OPERATION),
        ("x" * 5_000, "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicB", "broker-a", out_ms, "K1"), "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicA", "broker-b", out_ms, "K1"), "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicA", "broker-a", out_ms, ""), "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicA", "broker-a", broker.now.wall_ms - 1, "K1"), "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicA", "broker-a", out_ms + 259_200_000, "K"), "TopicA", ResponseCode.ILLEGAL_OPERATION),
        (encode_handle("TopicA", "broker-a", out_ms, "K1\x02REAL_QID\x017"), "TopicA", ResponseCode.ILLEGAL_OPERATION),
    ):
        assert recall(broker, handle, topic).code == code, handle
    assert recall(broker, encode_handle("TopicA", "broker-a", out_ms, "K1"), group="p\x02REAL_QID\x017").code == (
        ResponseCode.ILLEGAL_OPERATION
    )
    broker.pass_time(7_000)
    assert len(delivered(broker)) == 1


def test_recall_is_off_unless_the_setting_allows_it(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    handle = timed(broker, UNIQ_KEY="K1", TIMER_DELAY_SEC="5").fields["recallHandle"]
    assert recall(broker, handle).code == ResponseCode.NO_PERMISSION


def test_slave_recalls_nothing_and_delivers_nothing(tmp_path: Path) -> None:
    broker = ready(tmp_path, role="SLAVE", broker_id=1, recall_enable=True)
    assert recall(broker, encode_handle("TopicA", "broker-a", 1, "K")).code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert broker.node.features.find(TimedMessages).table is None
    assert broker.ask(RequestCode.GET_TIMER_CHECK_POINT).code == ResponseCode.SYSTEM_ERROR


# Limits.


@spec("S03")
def test_congested_time_is_refused_at_random_then_always(tmp_path: Path) -> None:
    broker = ready(tmp_path, timer_congest_max=20)
    answers = [timed(broker, TIMER_DELAY_SEC="60") for _ in range(200)]
    refused = [at for at, answer in enumerate(answers) if answer.code != OK]
    assert waiting(broker) == 40
    assert 20 < refused[0] < 40
    assert {answers[at].code for at in refused} == {ResponseCode.SYSTEM_ERROR}
    assert "timer message is under flow control" in (answers[-1].remark or "")
    assert timed(broker, TIMER_DELAY_SEC="120").code == OK


@spec("S03")
def test_more_messages_than_the_limit_are_refused(tmp_path: Path) -> None:
    broker = ready(tmp_path, timers_max=3)
    for _ in range(3):
        assert timed(broker, TIMER_DELAY_SEC="2").code == OK
    answer = timed(broker, TIMER_DELAY_SEC="2")
    assert (answer.code, "timersMax" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    broker.pass_time(4_000)
    assert timed(broker, TIMER_DELAY_SEC="2").code == OK


# Far times.


def test_message_with_a_far_time_is_stored_again_and_comes_once(tmp_path: Path) -> None:
    broker = ready(tmp_path, timer_roll_window=10, recall_enable=True)
    start_ms = broker.now.wall_ms
    handle = timed(broker, b"gone", UNIQ_KEY="K0", TIMER_DELAY_SEC="35").fields["recallHandle"]
    timed(broker, b"one", UNIQ_KEY="K1", TIMER_DELAY_SEC="35")
    timed(broker, b"near", UNIQ_KEY="K2", TIMER_DELAY_SEC="12")
    broker.pass_time(6_500)
    assert delivered(broker, TIMER_TOPIC, 0)[-1].body == b"near"  # half the window: 12 s are less than 4/3 of it
    broker.pass_time(10_000)
    assert recall(broker, handle).code == OK
    broker = broker.restart(clean=False)
    broker.pass_time(22_000)
    assert bodies(broker) == [b"near", b"one"]
    (_, message) = delivered(broker)
    assert int(message.properties["TIMER_ROLL_TIMES"]) >= 2
    assert message.store_ms - start_ms >= 35_000
    assert waiting(broker) == 0
    broker = broker.restart(clean=False)
    broker.pass_time(5_000)
    assert bodies(broker) == [b"near", b"one"]


def test_far_times_that_were_read_are_planned_a_part_per_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = ready(tmp_path, timer_roll_window=10)
    for number in range(6):
        timed(broker, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC="35")
    broker = broker.restart(clean=False)
    planned: list[tuple[int, int]] = []

    def roll_later(table: PendingTimers, task: RollTask, roll_ms: int) -> None:
        planned.append((task.queue_offset, broker.now.mono_ms))
        plan(table, task, roll_ms)

    plan = PendingTimers.roll_later
    monkeypatch.setattr(PendingTimers, "roll_later", roll_later)
    monkeypatch.setattr(service, "PLANNED_AT_ONCE", 1)
    broker.outbox.look_us = service.PLAN_US  # the time of a turn is over at the first look
    while len(planned) < 3:
        broker.pass_time(1)
    timed(broker, b"6", UNIQ_KEY="K6", TIMER_DELAY_SEC="35")
    broker.pass_time(1_000)
    assert sorted(queue_offset for queue_offset, _ in planned) == list(range(7))
    read = [at_ms for queue_offset, at_ms in planned if queue_offset < 6]
    assert len(set(read)) == 6
    broker.outbox.look_us = 0
    broker.pass_time(40_000)
    assert sorted(bodies(broker)) == [b"%d" % number for number in range(7)]


def test_messages_that_a_turn_has_no_time_to_store_again_are_stored_later(tmp_path: Path) -> None:
    """Otherwise their files of the log could not be deleted until their time."""
    broker = ready(tmp_path, timer_roll_window=10)
    for number in range(6):
        timed(broker, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC="35")
    broker.outbox.look_us = service.DELIVERY_US // 2 + 1  # at the second look in a turn the time is over
    broker.pass_time(30_000)
    broker.outbox.look_us = 0
    broker.pass_time(10_000)
    found = delivered(broker)
    assert sorted(message.body for message in found) == [b"%d" % number for number in range(6)]
    assert {int(message.properties["TIMER_ROLL_TIMES"]) >= 2 for message in found} == {True}


def test_retention_keeps_the_log_from_the_oldest_waiting_message_on(tmp_path: Path) -> None:
    broker = ready(tmp_path)
    broker.send("TopicB", b"x" * 4_000)
    timed(broker, TIMER_DELAY_SEC="60")
    offset = delivered(broker, TIMER_TOPIC, 0)[0].log_offset
    assert broker.node.features.find(TimedMessages).keeps_log_from() == offset
    again = broker.restart(clean=False)
    assert again.node.features.find(TimedMessages).keeps_log_from() == offset  # also before it has read them
    again.pass_time(70_000)
    assert again.node.features.find(TimedMessages).keeps_log_from() is None


def test_message_that_became_due_before_it_was_stored_again_comes_once(tmp_path: Path) -> None:
    """The broker had no turn from before that moment until after its time."""
    broker = ready(tmp_path, timer_roll_window=4)
    timed(broker, b"one", TIMER_DELAY_SEC="6")
    broker.now = Now(broker.now.mono_ms + 20_000, broker.now.wall_ms + 20_000)
    broker.pass_time(3_000)
    assert bodies(broker) == [b"one"]


@pytest.mark.parametrize("clean", [True, False])
def test_message_of_the_turn_in_which_the_table_is_read_is_delivered(tmp_path: Path, clean: bool) -> None:
    """Regression: the first run after a start forgot what the same turn had appended."""
    broker = ready(tmp_path)
    for name in ("one", "two", "three"):
        timed(broker, name.encode(), UNIQ_KEY=name, TIMER_DELAY_SEC="1")
        broker.pass_time(3 * SECOND)
    broker = broker.restart(clean=clean)
    assert broker.node.features.find(TimedMessages).table is None
    broker.now = Now(broker.now.mono_ms + SCAN_MS, broker.now.wall_ms + SCAN_MS)
    timed(broker, b"late", UNIQ_KEY="late", TIMER_DELAY_SEC="1")
    broker.pass_time(3 * SECOND)
    assert bodies(broker) == [b"one", b"two", b"three", b"late"]


def test_deliveries_of_a_turn_end_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each may wait for the device, and leases and clients wait with it."""
    monkeypatch.setattr(moves, "READ_BYTES_MAX", 1)  # a read for each message
    broker = ready(tmp_path)
    for number in range(40):
        timed(broker, b"%02d" % number, TIMER_DELAY_MS=str(2_000 + 1_000 * (number // 20)))
    broker.outbox.look_us = DELIVERY_US // 4
    ends = [0]
    turn = broker.turn

    def noted(*given: Any) -> Turn:
        done = turn(*given)
        ends.append(len(bodies(broker)))
        return done

    monkeypatch.setattr(broker, "turn", noted)
    broker.now.wall_ms += 5_000  # both times are over
    broker.pass_time(2_000)
    assert bodies(broker) == [b"%02d" % number for number in range(40)]
    assert max(after - before for before, after in pairwise(ends)) <= 5
