"""Properties of sends that ask the broker for something, with values that it cannot follow."""

from pathlib import Path
from typing import Any

import pytest

from tandemq.codec.record.record import BatchPart, encode_batch
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.message import encode_properties
from tandemq.model.topic import HALF_TOPIC, TIMER_TOPIC
from tests.unit.broker.features.waiting_tables import pending_timers
from tests.unit.broker.harness import CLIENT, Harness, send_fields

OK, ILLEGAL = ResponseCode.SUCCESS, ResponseCode.MESSAGE_ILLEGAL
HALF: dict[str, Any] = {"TRAN_MSG": "true", "PGROUP": "tx", "UNIQ_KEY": "K"}
NO_LEVELS = ("abc", "4x", "99999999999", "1.5", " 4", "٤", "--4", "0x4", "9" * 30)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """A broker with one message in its topic, so that the engine takes the next ones."""
    found = Harness(tmp_path, delay_levels="1s 5s")
    found.send("TopicA", b"first")
    return found


def records(broker: Harness) -> int:
    """Return the number of messages in all queues."""
    return sum(queue.max_offset for queue in broker.node.store.queues.values())


def send_batch(broker: Harness, part: dict[str, str], common: dict[str, str] | None = None) -> Command:
    body = encode_batch([BatchPart(0, b"one", b""), BatchPart(0, b"two", encode_properties(part).encode())])
    fields = send_fields("TopicA", 0, common or {}) | {"m": "true"}
    return broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields, body)


@pytest.mark.parametrize("level", NO_LEVELS)
def test_delay_that_is_no_level_is_refused(broker: Harness, level: str) -> None:
    """It would be delivered at once."""
    before = records(broker)
    answer = broker.send("TopicA", b"x", DELAY=level)
    assert (answer.code, "DELAY" in (answer.remark or "")) == (ILLEGAL, True)
    for topic in ("TopicA", "%RETRY%group"):
        delayed = send_fields(topic, 0, {"DELAY": level})
        assert broker.ask(RequestCode.SEND_MESSAGE_V2, delayed, b"x").code == ILLEGAL
    assert send_batch(broker, {}, {"DELAY": level}).code == ILLEGAL
    assert send_batch(broker, {"DELAY": level}).code == ILLEGAL
    fields = {name: str(value) for name, value in send_fields("TopicA", 0, {"DELAY": level}).items()}
    oneway = Command(RequestCode.SEND_MESSAGE_V2, 9, FLAG_ONEWAY, fields=fields)
    broker.turn([(CLIENT, encode_command(oneway))])
    assert records(broker) == before


@pytest.mark.parametrize(
    ("level", "is_delayed"), [("0", False), ("-3", False), ("+1", True), ("01", True), ("7", True)]
)
def test_delay_is_read_as_java_does(broker: Harness, level: str, *, is_delayed: bool) -> None:
    assert broker.send("TopicA", b"x", DELAY=level).code == OK
    queue = broker.node.store.queues["TopicA", 0]
    assert queue.max_offset == (1 if is_delayed else 2)
    broker.pass_time(6_000)
    assert queue.max_offset == 2


@pytest.mark.parametrize("mark", ["yes", "1", "true ", "tru"])
def test_mark_of_a_transaction_that_is_neither_true_nor_false_is_refused(broker: Harness, mark: str) -> None:
    """Consumers would get the message before the transaction ends."""
    before = records(broker)
    answer = broker.send("TopicA", b"x", **HALF | {"TRAN_MSG": mark})
    assert (answer.code, "TRAN_MSG" in (answer.remark or "")) == (ILLEGAL, True)
    assert send_batch(broker, {"TRAN_MSG": mark}).code == ILLEGAL
    assert records(broker) == before
    assert broker.send("TopicA", b"x", TRAN_MSG="False").code == OK


@pytest.mark.parametrize("seconds", ["60s", "abc", "1e3", "9" * 13])
def test_time_without_checks_that_is_no_number_is_refused(broker: Harness, seconds: str) -> None:
    for _ in range(2):  # the second one finds the queue of half messages open
        answer = broker.send("TopicA", b"x", **HALF, CHECK_IMMUNITY_TIME_IN_SECONDS=seconds)
        assert (answer.code, "CHECK_IMMUNITY" in (answer.remark or "")) == (ILLEGAL, True)
        assert broker.send("TopicA", b"x", **HALF, CHECK_IMMUNITY_TIME_IN_SECONDS="+60").code == OK
    assert broker.node.store.queues[HALF_TOPIC, 0].max_offset == 2
    assert broker.send("TopicA", b"x", CHECK_IMMUNITY_TIME_IN_SECONDS=seconds).code == OK, "no half message"


def test_messages_within_a_message_are_refused(broker: Harness) -> None:
    """They need batch consume queues; RocketMQ refuses them for other topics too."""
    before = records(broker)
    assert broker.send("TopicA", b"x", INNER_NUM="2").code == ILLEGAL
    assert send_batch(broker, {"INNER_NUM": "2"}).code == ILLEGAL
    fields = send_fields("TopicA") | {"f": 0x80}
    answer = broker.ask(RequestCode.SEND_MESSAGE_V2, fields, b"x")
    assert (answer.code, "BatchCQ" in (answer.remark or "")) == (ILLEGAL, True)
    assert broker.ask(RequestCode.SEND_BATCH_MESSAGE, fields | {"m": "true"}, b"x").code == ILLEGAL
    assert records(broker) == before


@pytest.mark.parametrize(
    ("part", "code"),
    [
        ({"DELAY": "1"}, ILLEGAL),
        ({"TAGS": "DELAY", "DELAY": "1"}, ILLEGAL),
        ({"TRAN_MSG": "true"}, ILLEGAL),
        ({"TIMER_DELAY_SEC": "5"}, ILLEGAL),
        ({"DELAY": "0", "TRAN_MSG": "false", "KEYS": "DELAY"}, OK),
        ({"MY_DELAY": "abc", "TIMER_OUT_MS": "7"}, OK),
    ],
)
def test_message_of_a_batch_is_neither_delayed_nor_part_of_a_transaction(
    broker: Harness, part: dict[str, str], code: int
) -> None:
    before = records(broker)
    assert send_batch(broker, part).code == code
    assert records(broker) == before + (2 if code == OK else 0)


def test_counts_of_brokers_are_not_those_of_a_producer(broker: Harness) -> None:
    """A message that says it was stored again would replace another one of its key after a failover."""
    broker.pass_time(1_000)
    rolls: dict[str, Any] = {"TIMER_ROLL_TIMES": "3", "TIMER_ENQUEUE_MS": "1", "TIMER_DEQUEUE_MS": "1"}
    for number in range(2):
        assert broker.send("TopicA", b"%d" % number, TIMER_DELAY_SEC="60", UNIQ_KEY="K", **rolls).code == OK
    assert send_batch(broker, {"TIMER_ROLL_TIMES": "3"}, {"TIMER_DELAY_SEC": "60"}).code == ILLEGAL
    again = broker.restart(clean=False)
    again.pass_time(3_000)
    assert len(pending_timers(again)) == again.node.store.queues[TIMER_TOPIC, 0].max_offset == 2
