"""Messages with priorities: the queues they go to, and the order in which POP consumers get them."""

from pathlib import Path

import pytest

from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import DELAY, PRIORITY, SHARDING_KEY
from tandemq.model.pop import TopicKind, pop_retry_topic
from tests.request_fields import topic_fields
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import GROUP, TOPIC, ack, bodies, pop
from tests.unit.broker.harness import Harness, send_fields

RETRIES = pop_retry_topic(GROUP, TOPIC, TopicKind.RETRY_V1)


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Return a broker with a topic of 4 priorities."""
    broker = Harness(tmp_path)
    create(broker, 4)
    broker.open(7)
    broker.pass_time(2_000)
    return broker


def create(broker: Harness, queues: int, message_type: str = "PRIORITY") -> None:
    fields = topic_fields(TOPIC, queues) | {"attributes": f"+message.type={message_type}"}
    answer = broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def send_with(broker: Harness, properties: dict[str, str], body: bytes = b"x") -> Command:
    """Send a message to queue 1, unless its properties say another."""
    return broker.ask(RequestCode.SEND_MESSAGE_V2, send_fields(TOPIC, 1, properties), body)


def send(broker: Harness, *priorities: int) -> None:
    """Send messages with these priorities, which are their bodies."""
    for priority in priorities:
        answer = send_with(broker, {PRIORITY: str(priority)}, b"%d" % priority)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def set_factor(broker: Harness, factor: str) -> None:
    body = b'{"groupName":"%s","attributes":{"+priority.factor":"%s"}}' % (GROUP.encode(), factor.encode())
    answer = broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark


def one_by_one(broker: Harness, number: int) -> list[bytes]:
    """Pop messages one by one, and return their bodies."""
    return [pop(broker, maxMsgNums=1)[0].body for _ in range(number)]


@spec("K05")
def test_higher_priorities_are_popped_first_whatever_the_order_of_sends(broker: Harness) -> None:
    send(broker, 0, 3, 1, 2, 3, 0, 9)
    assert one_by_one(broker, 7) == [b"3", b"3", b"9", b"2", b"1", b"0", b"0"]
    assert pop(broker) == []


def test_one_pop_takes_the_highest_priorities_first(broker: Harness) -> None:
    send(broker, 0, 0, 1, 2, 3, 3)
    assert {message.body for message in pop(broker, maxMsgNums=3)} == {b"3", b"2"}
    assert {message.body for message in pop(broker, maxMsgNums=3)} == {b"1", b"0"}


@spec("K05")
def test_message_that_comes_back_keeps_its_priority(broker: Harness) -> None:
    send(broker, 3, 1)
    assert one_by_one(broker, 2) == [b"3", b"1"]
    broker.pass_time(15_000)
    send(broker, 2, 3, 0)
    back = [pop(broker, maxMsgNums=1)[0] for _ in range(5)]
    assert [(one.body, one.message.reconsume_times) for one in back] == [
        (b"3", 1), (b"3", 0), (b"2", 0), (b"1", 1), (b"0", 0),
    ]  # fmt: skip
    assert broker.node.topics.table[RETRIES].config.read_queue_nums == 4
    for one in back:
        assert ack(broker, one).code == ResponseCode.SUCCESS
    broker.pass_time(15_000)
    assert pop(broker) == []


def test_message_that_comes_back_twice_keeps_its_priority(broker: Harness) -> None:
    send(broker, 2)
    for times in range(3):
        (message,) = pop(broker)
        assert (message.message.reconsume_times, message.handle.queue_id) == (times, 2)
        broker.pass_time(15_000)


def test_retry_topic_grows_with_its_topic(broker: Harness) -> None:
    create(broker, 4, "NORMAL")
    broker.send(TOPIC, b"old", queue_id=3)
    assert bodies(pop(broker)) == [b"old"]
    broker.pass_time(15_000)
    assert broker.node.topics.table[RETRIES].config.write_queue_nums == 1
    create(broker, 8)
    send(broker, 7)
    assert one_by_one(broker, 2) == [b"7", b"old"]
    broker.pass_time(15_000)
    assert broker.node.topics.table[RETRIES].config.write_queue_nums == 8
    assert one_by_one(broker, 2) == [b"7", b"old"]


def test_order_is_that_of_other_topics_for_a_group_with_factor_0(broker: Harness) -> None:
    set_factor(broker, "0")
    for _ in range(20):
        send(broker, 0, 1, 2, 3)
    taken = one_by_one(broker, 80)
    assert sorted(taken) == sorted([b"0", b"1", b"2", b"3"] * 20)
    assert taken[:20] != [b"3"] * 20


def test_the_lowest_queue_is_first_if_the_settings_say_so(tmp_path: Path) -> None:
    broker = Harness(tmp_path, priority_ascends=False)
    create(broker, 4)
    broker.pass_time(2_000)
    send(broker, 2, 0, 3, 1)
    assert one_by_one(broker, 4) == [b"0", b"1", b"2", b"3"]


def test_pops_of_one_queue_read_it_alone(broker: Harness) -> None:
    send(broker, 0, 3)
    assert bodies(pop(broker, queueId=0)) == [b"0"]


@pytest.mark.parametrize("properties", [{SHARDING_KEY: "a"}, {DELAY: "1"}, {"TRAN_MSG": "true", "PGROUP": "g"}])
def test_a_message_of_another_type_loses_its_priority(broker: Harness, properties: dict[str, str]) -> None:
    create(broker, 4, "UNSPECIFIED")
    answer = send_with(broker, properties | {PRIORITY: "3"})
    assert (answer.code, answer.fields["queueId"]) == (ResponseCode.SUCCESS, "1")
    log = broker.node.store.log
    assert PRIORITY.encode() not in broker.node.store.record_at_raw(log.start)


def test_priority_chooses_the_queue_in_topics_of_every_type(broker: Harness) -> None:
    create(broker, 4, "NORMAL")
    for text in ("2", "+2", "002"):
        assert send_with(broker, {PRIORITY: text}).fields["queueId"] == "2"


def test_topic_of_this_type_takes_these_messages_alone_if_types_are_checked(tmp_path: Path) -> None:
    broker = Harness(tmp_path, message_type_check=True)
    create(broker, 4)
    assert send_with(broker, {PRIORITY: "2"}).code == ResponseCode.SUCCESS
    refused = send_with(broker, {})
    assert (refused.code, "takes PRIORITY messages" in str(refused.remark)) == (ResponseCode.MESSAGE_ILLEGAL, True)
