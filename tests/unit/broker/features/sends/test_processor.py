"""Sends: every response code in the order of the checks; single, delayed, batched and retried messages."""

from pathlib import Path
from random import Random

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Now
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.kernel.context import Machine
from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import encode_command
from tandemq.config.settings import DELAY_LEVELS, parse_delay_levels
from tandemq.errors import DiskFull
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tandemq.storage.json_tables import TableFile
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, messages_in, send_fields

OK = ResponseCode.SUCCESS


def stored(broker: Harness, topic: str, queue_id: int = 0, offset: int = 0) -> list[bytes]:
    found = broker.pull(topic, offset, queue_id=queue_id)
    return [message.body for message in messages_in(found)] if found is not None else []


def test_full_disk_while_the_synced_offset_is_saved_does_not_stop_the_broker() -> None:
    """Found by simulation seed 46."""
    disk = SimDisk(Random(1))
    broker = Harness(disk)
    assert broker.send("TopicA", b"one").code == OK
    disk.fail("pwrite", times=-1, error=DiskFull, prefix="tandemq.marks")
    broker.pass_time(25_000)
    assert broker.send("TopicA", b"two").code == OK
    disk.heal()
    broker.pass_time(25_000)
    assert broker.node.store.marks.synced == broker.node.store.log.written_end


@pytest.mark.parametrize("code", [RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2])
@pytest.mark.parametrize("is_binary", [False, True])
def test_response_has_the_position_of_the_message(tmp_path: Path, code: RequestCode, is_binary: bool) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"first")
    fields = send_fields("TopicA", 0, {"UNIQ_KEY": "0A0B", "TAGS": "t"})
    if code == RequestCode.SEND_MESSAGE:
        names = {
            "a": "producerGroup",
            "b": "topic",
            "c": "defaultTopic",
            "d": "defaultTopicQueueNums",
            "e": "queueId",
            "f": "sysFlag",
            "g": "bornTimestamp",
            "h": "flag",
            "i": "properties",
            "j": "reconsumeTimes",
            "k": "unitMode",
            "m": "batch",
        }
        fields = {names[key]: value for key, value in fields.items()}
    answer = broker.ask(code, fields, b"second", binary=is_binary)
    assert answer.code == OK
    assert answer.binary is is_binary
    assert (answer.fields["queueId"], answer.fields["queueOffset"]) == ("0", "1")
    assert answer.fields["transactionId"] == "0A0B"
    assert (answer.fields["MSG_REGION"], answer.fields["TRACE_ON"]) == ("DefaultRegion", "true")
    offset = int(answer.fields["msgId"][16:], 16)
    record = broker.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": offset})
    (message,) = messages_in(record)
    assert message.body == b"second"
    assert message.offset_message_id == answer.fields["msgId"]
    assert message.properties == {"UNIQ_KEY": "0A0B", "TAGS": "t", "CLUSTER": "DefaultCluster"} | {
        "__CRC32#": message.properties["__CRC32#"]
    }


def test_negative_queue_id_selects_a_random_queue_which_the_response_names(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    seen = {broker.send("TopicA", queue_id=-1).fields["queueId"] for _ in range(50)}
    assert seen == {"0", "1", "2", "3"}


def test_checks_run_in_the_documented_order(tmp_path: Path) -> None:
    broker = Harness(tmp_path, auto_create_topic=False)
    node = broker.node
    node.topics.put(TopicConfig("Plain", 2, 2, 6), 0)
    node.topics.put(TopicConfig("ReadOnly", 2, 2, 4), 0)
    refused = [
        ("bad name!", 0, b"x", ResponseCode.SYSTEM_ERROR),
        ("x" * 128, 0, b"x", ResponseCode.SYSTEM_ERROR),
        ("SCHEDULE_TOPIC_XXXX", 0, b"x", ResponseCode.NO_PERMISSION),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 99, b"x", ResponseCode.NO_PERMISSION),
        ("Unknown", 99, b"x" * 9000, ResponseCode.TOPIC_NOT_EXIST),
        ("ReadOnly", 99, b"x" * 9000, ResponseCode.NO_PERMISSION),
        ("Plain", 2, b"x" * 9000, ResponseCode.SYSTEM_ERROR),
        ("Plain", 1, b"x" * 9000, ResponseCode.MESSAGE_ILLEGAL),
    ]
    for topic, queue_id, body, code in refused:
        answer = broker.send(topic, body, queue_id=queue_id)
        assert (topic, answer.code) == (topic, code)
        assert answer.remark
    node.puts.refuse("disk full", "full")
    node.puts.refuse("slave", "slave")
    node.puts.admit("slave")
    assert broker.send("Unknown").code == ResponseCode.SERVICE_NOT_AVAILABLE
    node.puts.admit("disk full")
    assert node.store.log.written_end == 0
    assert broker.send("Plain", b"", queue_id=1).code == OK


def test_order_topic_is_refused_when_the_broker_lacks_write_permission(tmp_path: Path) -> None:
    broker = Harness(tmp_path, permission=4)
    broker.node.topics.put(TopicConfig("Ordered", 2, 2, 6, order=True), 0)
    assert broker.send("Ordered").code == ResponseCode.NO_PERMISSION
    assert broker.send("TopicA").code == OK


def test_topic_is_created_from_its_template_with_the_producers_number_of_queues(tmp_path: Path) -> None:
    broker = Harness(tmp_path, default_queue_nums=8)
    for asked, made in ((4, 4), (100, 8), (0, 1), (-3, 1)):
        name = f"New{asked}".replace("-", "m")
        assert broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields(name) | {"d": asked}, b"x").code == OK
        config = broker.node.topics.table[name].config
        assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (made, made, 6)


def test_one_way_send_is_stored_and_not_answered(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    before = len(broker.inbox[CLIENT])
    broker.send_request(RequestCode.SEND_MESSAGE_V2, send_fields("TopicA"), b"quiet", is_oneway=True)
    assert len(broker.inbox[CLIENT]) == before
    assert stored(broker, "TopicA") == [b"body", b"quiet"]


def test_many_sends_in_one_segment_are_answered_each_with_its_opaque(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    fields = {key: str(value) for key, value in send_fields("TopicA").items()}
    frames = [
        encode_command(Command(RequestCode.SEND_MESSAGE_V2, 500 + n, fields=fields, body=b"%d" % n)) for n in range(40)
    ]
    data, at, dice = b"".join(frames), 0, Random(3)
    while at < len(data):
        size = dice.randrange(1, 900)
        broker.turn([(CLIENT, data[at : at + size])])
        at += size
    answers = [answer for answer in broker.inbox[CLIENT] if answer.opaque >= 500]
    assert [answer.opaque for answer in answers] == list(range(500, 540))
    assert [int(answer.fields["queueOffset"]) for answer in answers] == list(range(1, 41))


def test_message_on_the_fast_path_is_stored_like_a_decoded_one(tmp_path: Path) -> None:
    """From the third message on headers are matched by a pattern; queue, key and response differ per message."""
    broker = Harness(tmp_path)
    broker.send("TopicA")
    opaque, asked = 1000, []
    for number in range(24):
        tag, queue_id = "ABB"[number // 8], number % 3
        fields = send_fields("TopicA", queue_id=queue_id, properties={"UNIQ_KEY": f"K{number}", "TAGS": tag})
        asked.append((queue_id, f"K{number}", tag, b"%d" % number))
        command = Command(
            RequestCode.SEND_MESSAGE_V2,
            opaque + number,
            fields={k: str(v) for k, v in fields.items()},
            body=b"%d" % number,
        )
        broker.turn([(CLIENT, encode_command(command))])
    answers = [answer for answer in broker.inbox[CLIENT] if answer.opaque >= opaque]
    assert [answer.opaque for answer in answers] == list(range(opaque, opaque + 24))
    assert [answer.fields["transactionId"] for answer in answers] == [key for _, key, _, _ in asked]
    found = []
    for queue_id in range(3):
        pulled = broker.pull("TopicA", 0, queue_id=queue_id)
        assert pulled is not None
        found += [
            (m.queue_id, m.properties["UNIQ_KEY"], m.properties["TAGS"], m.body)
            for m in messages_in(pulled)
            if "UNIQ_KEY" in m.properties
        ]
    assert sorted(found) == sorted(asked)


def test_header_pattern_does_not_bypass_a_changed_permission_of_its_topic(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.node.topics.put(TopicConfig("TopicB", 4, 4), 0)
    for _ in range(4):
        assert broker.send("TopicB", UNIQ_KEY="K").code == OK
    broker.node.topics.put(TopicConfig("TopicB", 4, 4, perm=4), 0)
    assert broker.send("TopicB", UNIQ_KEY="K").code == ResponseCode.NO_PERMISSION


def test_failed_write_is_an_error_for_every_sender_of_the_turn_and_stores_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"before")
    end = broker.node.store.log.written_end

    def refuse(*_: object) -> None:
        raise DiskFull("no space")

    with monkeypatch.context() as patch:
        patch.setattr(broker.node.store.log, "_write_pieces", refuse)
        for _ in range(2):
            answer = broker.send("TopicA", b"lost")
            assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert broker.node.store.log.written_end == end
    assert broker.send("TopicA", b"after").fields["queueOffset"] == "1"
    assert stored(broker, "TopicA") == [b"before", b"after"]


# Batches.


def batch_of(*bodies: bytes, properties: bytes = b"TAGS\x01t\x02") -> bytes:
    return encode_batch([BatchPart(7, body, properties) for body in bodies])


@pytest.mark.parametrize("code", [RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_MESSAGE_V2])
def test_batch_is_stored_as_messages_one_behind_the_other(tmp_path: Path, code: RequestCode) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"zero")
    fields = send_fields("TopicA", 0, {"WAIT": "true", "K": "v"}) | {"m": "true"}
    answer = broker.ask(code, fields, batch_of(b"one", b"two", b""))
    assert answer.code == OK
    assert answer.fields["queueOffset"] == "1"
    ids = answer.fields["msgId"].split(",")
    found = broker.pull("TopicA", 1)
    assert found is not None
    messages = messages_in(found)
    assert [(message.body, message.queue_offset, message.flag) for message in messages] == [
        (b"one", 1, 7),
        (b"two", 2, 7),
        (b"", 3, 7),
    ]
    assert [message.offset_message_id for message in messages] == ids
    assert {message.tags for message in messages} == {"t"}
    assert {message.properties["K"] for message in messages} == {"v"}


def test_code_320_without_the_batch_mark_is_one_message(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    body = batch_of(b"one", b"two")
    assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields("TopicA"), body).code == OK
    assert stored(broker, "TopicA") == [body]


@pytest.mark.parametrize(
    ("topic", "properties", "body", "code"),
    [
        ("TopicA", {"DELAY": "1"}, batch_of(b"x"), ResponseCode.MESSAGE_ILLEGAL),
        ("%RETRY%group", {}, batch_of(b"x"), ResponseCode.MESSAGE_ILLEGAL),
        ("TopicA", {}, b"", ResponseCode.SYSTEM_ERROR),
        ("TopicA", {}, batch_of(b"x")[:-1], ResponseCode.SYSTEM_ERROR),
        (
            "TopicA",
            {},
            batch_of(b"good") + batch_of(b"x", properties=b"A\x01" + b"b" * 32_750),
            ResponseCode.MESSAGE_ILLEGAL,
        ),
    ],
)
def test_batch_with_an_invalid_message_is_refused_completely(
    tmp_path: Path, topic: str, properties: dict[str, str], body: bytes, code: ResponseCode
) -> None:
    broker = Harness(tmp_path, message_bytes_max=60_000, segment_bytes=128 * 1024)
    broker.send("TopicA", b"zero")
    fields = send_fields(topic, 0, properties) | {"m": "true"}
    assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body).code == code
    assert stored(broker, "TopicA") == [b"zero"]


@pytest.mark.parametrize("sys_flag", [0x4, 0x8, 0xC])
def test_batch_marked_as_part_of_a_transaction_is_refused(tmp_path: Path, sys_flag: int) -> None:
    """Stored with such a mark its messages would be confirmed, and never found."""
    broker = Harness(tmp_path)
    broker.send("TopicA", b"zero")
    fields = send_fields("TopicA") | {"m": "true", "f": sys_flag}
    assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch_of(b"x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(broker, "TopicA") == [b"zero"]


def test_batch_of_half_messages_is_refused(tmp_path: Path) -> None:
    """Their consumers would see them before the commit."""
    broker = Harness(tmp_path)
    broker.send("TopicA", b"zero")
    fields = send_fields("TopicA", 0, {"TRAN_MSG": "true", "PGROUP": "tx"}) | {"m": "true"}
    assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, batch_of(b"x")).code == ResponseCode.MESSAGE_ILLEGAL
    assert stored(broker, "TopicA") == [b"zero"]


# Timed messages (5.x); see tests/unit/broker/features/timers.


def test_delay_level_takes_precedence_over_a_time_and_an_elapsed_time_is_ignored(tmp_path: Path) -> None:
    """As in 5.x brokers: such properties occur in retries and in copies of delivered messages."""
    broker = Harness(tmp_path, delay_levels="1s 5s")
    broker.send("TopicA", b"now")
    assert broker.send("TopicA", b"later", DELAY="1", TIMER_DELAY_SEC="5").code == OK
    assert broker.send("TopicA", b"again", TIMER_DELAY_SEC="5", TIMER_OUT_MS="1600000000000").code == OK
    assert stored(broker, "TopicA") == [b"now", b"again"]
    broker.pass_time(2_000)
    assert stored(broker, "TopicA") == [b"now", b"again", b"later"]


# Delay.


@spec("G13")
def test_delay_levels_are_those_of_rocketmq() -> None:
    assert DELAY_LEVELS == "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    assert len(parse_delay_levels(DELAY_LEVELS)) == 18


@spec("G13")
@pytest.mark.parametrize(
    ("level", "delay_ms"), [("1", 1_000), ("3", 10_000), ("4", 30_000), ("5", 30_000), ("999", 30_000)]
)
def test_delayed_message_is_delivered_at_its_time_and_never_before(tmp_path: Path, level: str, delay_ms: int) -> None:
    """A level above the last counts as the last."""
    broker = Harness(tmp_path, delay_levels="1s 5s 10s 30s")
    broker.send("TopicA", b"now")
    answer = broker.send("TopicA", b"later", queue_id=2, DELAY=level, TAGS="t", KEYS="k")
    assert (answer.code, answer.fields["queueId"]) == (OK, "2")
    broker.pass_time(delay_ms - 1)
    assert stored(broker, "TopicA", 2) == []
    broker.pass_time(200)
    found = broker.pull("TopicA", queue_id=2)
    assert found is not None
    (message,) = messages_in(found)
    assert (message.body, message.topic, message.queue_id, message.tags) == (b"later", "TopicA", 2, "t")
    assert message.properties["DELAY"] == str(min(int(level), 4)), "as at Java brokers"


@pytest.mark.parametrize("level", ["0", "-1", ""])
def test_delay_level_below_one_means_no_delay(tmp_path: Path, level: str) -> None:
    broker = Harness(tmp_path)
    assert broker.send("TopicA", b"now", DELAY=level).code == OK
    assert stored(broker, "TopicA") == [b"now"]


def test_delayed_messages_survive_a_kill_and_are_delivered_once(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    for number in range(5):
        broker.send("TopicA", b"%d" % number, DELAY="2")
    broker.pass_time(2_000)
    broker = broker.restart(clean=False)
    assert stored(broker, "TopicA") == []
    broker.pass_time(20_000)
    assert stored(broker, "TopicA") == [b"0", b"1", b"2", b"3", b"4"]
    broker = broker.restart()
    broker.pass_time(20_000)
    assert len(stored(broker, "TopicA")) == 5


def test_many_messages_due_at_once_do_not_wait_for_the_next_scan(tmp_path: Path) -> None:
    """Regression: 256 were delivered per 100 ms, so a burst of ten thousand came four seconds late."""
    broker = Harness(tmp_path)
    for number in range(1_000):
        broker.send("TopicA", b"%d" % number, DELAY="1" if number % 2 else "2")
    assert ("TopicA", 0) not in broker.node.store.queues
    broker.pass_time(1_150)
    assert broker.node.store.queues["TopicA", 0].max_offset == 500
    broker.pass_time(4_000)
    assert broker.node.store.queues["TopicA", 0].max_offset == 1_000


def test_delayed_message_survives_a_power_loss_after_an_unsynced_delivery() -> None:
    """Regression: the progress of the level was synced before the delivered message, which was lost."""
    lost = 0
    for seed in range(10):
        disk = SimDisk(Random(seed))
        broker = Harness(disk)
        broker.send("TopicA", b"later", DELAY="3")
        broker.pass_time(9_900)
        broker.run_jobs = False
        broker.pass_time(1_500)
        assert broker.node.features.find(DelayedMessages).delivered == 1
        broker.node.features.find(DelayedMessages).save()
        broker.turn()
        [save] = [job for job in broker.jobs if job.name == "save tables"]
        save.run()
        disk.crash()
        broker = Harness(disk, machine=Machine("boot-2", 8 << 30), now=broker.now)
        lost += not stored(broker, "TopicA")
        broker.pass_time(20_000)
        assert set(stored(broker, "TopicA")) == {b"later"}
    assert lost


def test_progress_of_a_delay_level_is_saved_after_its_deliveries_are_synced(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA", b"later", DELAY="1")
    broker.pass_time(30_000)
    assert TableFile("delayOffset.json").load(broker.disk)["offsetTable"] == {"1": 1}


def test_calendar_clock_that_goes_back_makes_delayed_messages_late_never_early(tmp_path: Path) -> None:
    """Found by simulation seed 256: messages due later than their delay from now were delivered at once."""
    broker = Harness(tmp_path)
    broker.send("TopicA", b"later", DELAY="3")
    broker.now = Now(broker.now.mono_ms, broker.now.wall_ms - 3_600_000)
    broker.pass_time(9_900)
    assert stored(broker, "TopicA") == []
    broker.pass_time(10_200)
    assert stored(broker, "TopicA") == [b"later"]


# Messages sent back by consumers.


def send_back(broker: Harness, offset: int, level: int = 0, **fields: object) -> Command:
    asked = {"offset": offset, "group": "group", "delayLevel": level} | fields
    return broker.ask(RequestCode.CONSUMER_SEND_MSG_BACK, asked)


@spec("G13")
def test_message_sent_back_is_retried_and_finally_a_dead_letter(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    sent = broker.send("TopicA", b"hard", TAGS="t", KEYS="k")
    log_offset = int(sent.fields["msgId"][16:], 16)
    origin = sent.fields["msgId"]
    delays = [10, 30, 60]
    for times, seconds in enumerate(delays, start=1):
        assert send_back(broker, log_offset, maxReconsumeTimes=3).code == OK
        broker.pass_time(seconds * 1_000 - 1)
        assert len(stored(broker, "%RETRY%group")) == times - 1
        broker.pass_time(300)
        found = broker.pull("%RETRY%group", times - 1)
        assert found is not None
        (message,) = messages_in(found)
        assert (message.body, message.tags, message.reconsume_times) == (b"hard", "t", times)
        assert message.properties["RETRY_TOPIC"] == "TopicA"
        assert message.properties["ORIGIN_MESSAGE_ID"] == origin
        log_offset = message.log_offset
    assert send_back(broker, log_offset, maxReconsumeTimes=3).code == OK
    assert stored(broker, "%DLQ%group") == [b"hard"]
    config = broker.node.topics.table["%DLQ%group"].config
    assert (config.read_queue_nums, config.perm) == (1, 6)


def test_send_back_is_refused_in_the_documented_order(tmp_path: Path) -> None:
    broker = Harness(tmp_path, auto_create_group=False)
    sent = broker.send("TopicA")
    log_offset = int(sent.fields["msgId"][16:], 16)
    assert send_back(broker, log_offset).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    broker = broker.restart(auto_create_group=True)
    assert send_back(broker, 12_345).code == ResponseCode.SYSTEM_ERROR
    assert send_back(broker, log_offset, -1).code == OK
    assert stored(broker, "%DLQ%group") == [b"body"]
    group = broker.node.groups.find("group", 0)
    assert group is not None
    group.retry_queue_nums = 0
    end = broker.node.store.log.written_end
    assert send_back(broker, log_offset).code == OK
    assert broker.node.store.log.written_end == end


def test_consumers_own_retry_becomes_a_dead_letter_after_too_many_attempts(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    fields = send_fields("%RETRY%group")
    assert broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 2, "l": 3}, b"again").code == OK
    assert broker.ask(RequestCode.SEND_MESSAGE_V2, fields | {"j": 3, "l": 3}, b"dead").code == OK
    assert stored(broker, "%RETRY%group") == [b"again"]
    assert stored(broker, "%DLQ%group") == [b"dead"]
