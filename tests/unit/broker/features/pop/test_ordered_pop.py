"""Ordered pops: one batch of a queue at a time, offsets that acknowledgements move, attempts, restarts."""

from pathlib import Path

import pytest

from tandemq.broker.features.pop import orders
from tandemq.broker.features.pop.orders import Orders
from tandemq.codec.remoting.fastjson import loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.pop import Handle, TopicKind
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import GROUP, TOPIC, Taken, ack, batch_ack, pop_fields, taken_from
from tests.unit.broker.harness import Harness, run_job


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Return a broker with six messages in one queue."""
    broker = Harness(tmp_path)
    broker.create_topic(TOPIC, queues=1)
    broker.open(7)
    broker.pass_time(2_000)
    for number in range(6):
        broker.send(TOPIC, b"%d" % number)
    return broker


def pop(broker: Harness, **changes: object) -> tuple[list[Taken], str]:
    """Pop in order; returns the messages, and how often they were handed out before."""
    answer = broker.ask(RequestCode.POP_MESSAGE, pop_fields(order="true", **{"maxMsgNums": 3} | changes))
    if answer.code == ResponseCode.POLLING_TIMEOUT:
        return [], ""
    assert answer.fields["reviveQid"] == "999"
    return taken_from(answer), answer.fields["orderCountInfo"]


def bodies(taken: list[Taken]) -> list[bytes]:
    return [item.body for item in taken]


def committed(broker: Harness) -> int | None:
    return broker.node.kernel.offsets.get(TOPIC, GROUP, 0)


@spec("K03")
def test_queue_is_blocked_until_all_messages_of_a_batch_are_acknowledged(broker: Harness) -> None:
    taken, counts = pop(broker)
    assert (bodies(taken), counts) == ([b"0", b"1", b"2"], "0 0 0")
    assert pop(broker) == ([], "")
    for message in (taken[1], taken[0]):  # in any order
        assert ack(broker, message).code == ResponseCode.SUCCESS
    assert committed(broker) == 2
    assert pop(broker) == ([], "")
    ack(broker, taken[2])
    assert committed(broker) == 3
    assert bodies(pop(broker)[0]) == [b"3", b"4", b"5"]


def test_acknowledgement_out_of_order_moves_no_offset(broker: Harness) -> None:
    taken, _ = pop(broker)
    ack(broker, taken[1])
    assert committed(broker) == 0


def test_batch_is_handed_out_again_after_its_time_and_counts_one_more_attempt(broker: Harness) -> None:
    taken, _ = pop(broker)
    ack(broker, taken[0])
    broker.pass_time(10_000)
    again, counts = pop(broker)
    assert bodies(again) == [b"1", b"2", b"3"]
    assert counts == "0 qo0%1 1;0 qo0%2 1;0 0 0"
    assert ack(broker, taken[1]).code == ResponseCode.SUCCESS  # of the batch before
    assert committed(broker) == 1
    broker.pass_time(10_000)
    assert pop(broker)[1] == "0 qo0%1 2;0 qo0%2 2;0 qo0%3 1;0 0 1"


def test_same_attempt_gets_its_batch_again_and_counts_once(broker: Harness) -> None:
    first, _ = pop(broker, attemptId="a")
    assert pop(broker, attemptId="b") == ([], "")
    again, counts = pop(broker, attemptId="a")
    assert (bodies(again), counts) == (bodies(first), "0 0 0")
    broker.pass_time(10_000)
    assert pop(broker, attemptId="c")[1] == "0 qo0%0 1;0 qo0%1 1;0 qo0%2 1;0 0 1"


def test_time_of_a_message_of_a_batch_can_be_changed(broker: Harness) -> None:
    taken, _ = pop(broker)
    broker.pass_time(1_000)
    answer = broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, taken[0].fields | {"invisibleTime": 20_000})
    assert answer.fields["popTime"] == str(taken[0].handle.pop_ms)
    assert answer.fields["invisibleTime"] == "21000"
    broker.pass_time(12_000)
    assert pop(broker) == ([], "")
    broker.pass_time(9_000)
    assert bodies(pop(broker)[0]) == [b"0", b"1", b"2"]


def test_waiting_pop_is_woken_when_the_batch_is_acknowledged_or_its_time_is_over(broker: Harness) -> None:
    taken, _ = pop(broker)
    fields = pop_fields(order="true", maxMsgNums=3, pollTime=60_000)
    broker.send_request(RequestCode.POP_MESSAGE, fields, link=7)
    broker.pass_time(1_000)
    assert broker.inbox[7] == []
    assert batch_ack(broker, *taken).code == ResponseCode.SUCCESS
    broker.pass_time(1)
    (answer,) = broker.inbox[7]
    assert bodies(taken_from(answer)) == [b"3", b"4", b"5"]
    broker.send_request(RequestCode.POP_MESSAGE, fields, link=7)
    broker.pass_time(11_000)
    assert bodies(taken_from(broker.inbox[7][1])) == [b"3", b"4", b"5"]


def test_waiting_pop_is_woken_at_a_time_that_was_brought_forward(broker: Harness) -> None:
    taken, _ = pop(broker, invisibleTime=60_000)
    for message in taken[::2]:
        ack(broker, message)
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(order="true", pollTime=60_000), link=7)
    broker.pass_time(1_000)
    for time_ms in (5_000, 4_000, 3_000):
        broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, taken[1].fields | {"invisibleTime": time_ms})
    broker.pass_time(2_900)
    assert broker.inbox[7] == []
    broker.pass_time(1_200)
    assert [item.body for item in taken_from(broker.inbox[7][0])] == [b"1", b"2", b"3", b"4", b"5"]


def test_waiting_pop_is_woken_when_the_time_of_the_batch_was_shortened(broker: Harness) -> None:
    taken, _ = pop(broker)
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(order="true", maxMsgNums=3, pollTime=60_000), link=7)
    for message in taken:
        broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message.fields | {"invisibleTime": 1_000})
    broker.pass_time(900)
    assert broker.inbox[7] == []
    broker.pass_time(500)
    (answer,) = broker.inbox[7]
    assert bodies(taken_from(answer)) == bodies(taken)


@spec("K03")
@pytest.mark.parametrize("clean", [True, False])
def test_restart_knows_what_is_handed_out(broker: Harness, *, clean: bool) -> None:
    taken, _ = pop(broker, invisibleTime=60_000)
    ack(broker, taken[0])
    broker.pass_time(12_000)
    broker = broker.restart(clean=clean)
    broker.pass_time(2_000)
    assert pop(broker) == ([], "")
    for message in taken[1:]:
        ack(broker, message)
    assert bodies(pop(broker)[0]) == [b"3", b"4", b"5"]


def test_file_has_the_form_of_java_brokers(broker: Harness) -> None:
    taken, _ = pop(broker, attemptId="a3")
    ack(broker, taken[2])
    broker.node.close()
    (batch,) = loads(broker.disk.read("config/consumerOrderInfo.json") or b"")["table"][f"{TOPIC}@{GROUP}"].values()
    assert {name: batch[name] for name in ("a", "cm", "i", "o", "popTime")} == {
        "a": "a3",
        "cm": 4,
        "i": 10_000,
        "o": [0, 1, 1 + 1],
        "popTime": taken[0].handle.pop_ms,
    }


def stored_batch(broker: Harness) -> dict[str, object]:
    """Return the only batch in the file."""
    (of_place,) = loads(broker.disk.read("config/consumerOrderInfo.json") or b"")["table"].values()
    (batch,) = of_place.values()
    assert isinstance(batch, dict)
    return batch


def test_file_is_encoded_by_its_job_and_has_the_batches_of_the_turn_that_began_it(broker: Harness) -> None:
    taken, _ = pop(broker)
    broker.run_jobs = False
    broker.node.features.find(Orders).save_tables()
    broker.turn()
    (saving,) = [job for job in broker.jobs if job.name == "save tables"]
    ack(broker, taken[0])
    after = run_job(saving)
    assert stored_batch(broker)["cm"] == 0
    broker.run_jobs = True
    broker.turn([], [after])
    broker.pass_time(orders.SAVE_MS)
    assert stored_batch(broker)["cm"] == 1


def test_batches_that_nobody_pops_are_forgotten_a_part_per_turn(
    broker: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "FORGOTTEN_AT_ONCE", 4)
    monkeypatch.setattr(orders, "FORGET_MS", 3 * orders.SAVE_MS)
    broker.pass_time(orders.SAVE_MS)
    table = broker.node.features.find(Orders)
    for queue_id in range(10):
        table.popped((TOPIC, GROUP, queue_id), [0], "", 60_000, broker.now)
    left: dict[int, None] = {}
    for _ in range(6):
        broker.pass_time(orders.SAVE_MS)
        left[len(table.table)] = None
    assert list(left) == [10, 6, 2, 0]


def test_acknowledgement_after_an_operator_has_set_the_offset_moves_nothing(broker: Harness) -> None:
    taken, _ = pop(broker)
    broker.node.kernel.offsets.reset(TOPIC, GROUP, 0, 5)
    ack(broker, taken[0])
    assert committed(broker) == 5
    assert bodies(pop(broker)[0]) == [b"5"]


def test_offset_outside_the_batch_is_refused(broker: Harness) -> None:
    taken, _ = pop(broker)
    handle = Handle(0, taken[0].handle.pop_ms, 10_000, 999, TopicKind.NORMAL, "broker-a", 0, 5)
    assert ack(broker, Taken(taken[0].message, handle, TOPIC)).code == ResponseCode.MESSAGE_ILLEGAL
    assert committed(broker) == 0


def test_notification_does_not_count_blocked_queues(broker: Harness) -> None:
    pop(broker)
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "pollTime": 0, "bornTime": 0}
    assert broker.ask(RequestCode.NOTIFICATION, fields | {"order": "true"}).fields["hasMsg"] == "false"
    assert broker.ask(RequestCode.NOTIFICATION, fields).fields["hasMsg"] == "true"
