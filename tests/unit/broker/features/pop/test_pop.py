"""Pops, acknowledgements, and messages that come back."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from tandemq.boundary import Turn
from tandemq.broker.features.pop import processor, waiting
from tandemq.broker.features.pop.families import PopFamilies
from tandemq.broker.features.pop.processor import PopProcessor
from tandemq.broker.features.pop.revive import Revival
from tandemq.broker.features.pop.waiting import WaitingRequest, WaitingRequests
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.pop import TopicKind
from tests.spec import spec
from tests.unit.broker.features.pop.consumer import (
    GROUP,
    TOPIC,
    ack,
    batch_ack,
    bodies,
    pop,
    pop_all,
    pop_fields,
    taken_from,
)
from tests.unit.broker.harness import CLIENT, Harness


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    """Return a broker with a topic, whose pops are answered."""
    broker = Harness(tmp_path)
    broker.create_topic(TOPIC)
    broker.open(7)
    broker.pass_time(2_000)
    return broker


def send(broker: Harness, number: int, first: int = 0) -> list[bytes]:
    """Send messages to all queues, and return their bodies."""
    sent = [b"%03d" % at for at in range(first, first + number)]
    for at, body in enumerate(sent):
        assert broker.send(TOPIC, body, queue_id=at % 4).code == ResponseCode.SUCCESS
    return sent


@spec("K01")
def test_each_message_is_popped_once_from_any_queue(broker: Harness) -> None:
    sent = send(broker, 40)
    first = pop(broker, maxMsgNums=7)
    assert len(first) == 7
    rest = pop_all(broker)
    assert bodies(first + rest) == sent
    assert pop(broker) == []


@spec("K01")
def test_acknowledged_messages_do_not_come_back(broker: Harness) -> None:
    send(broker, 10)
    taken = pop_all(broker)
    for message in taken[:4]:
        assert ack(broker, message).code == ResponseCode.SUCCESS
    assert batch_ack(broker, *taken[4:7]).code == ResponseCode.SUCCESS
    broker.pass_time(15_000)
    back = pop_all(broker)
    assert bodies(back) == bodies(taken[7:])
    assert {message.handle.kind for message in back} == {TopicKind.RETRY_V1}
    assert {message.message.reconsume_times for message in back} == {1}
    assert {message.message.properties["1ST_POP_TIME"] for message in back} == {
        str(message.handle.pop_ms) for message in taken[7:]
    }


@spec("K01")
def test_messages_are_invisible_until_their_time_and_come_back_soon_after(broker: Harness) -> None:
    send(broker, 1)
    (taken,) = pop(broker, invisibleTime=10_000)
    broker.pass_time(9_500)
    assert pop(broker) == []
    broker.pass_time(3_000)
    (back,) = pop(broker)
    assert back.body == taken.body
    assert broker.node.features.find(Revival).revived == {(TOPIC, GROUP): 1}


def test_acknowledgement_of_a_message_that_came_back_ends_it(broker: Harness) -> None:
    send(broker, 3)
    pop_all(broker)
    broker.pass_time(13_000)
    back = pop_all(broker)
    assert len(back) == 3
    for message in back:
        assert ack(broker, message).code == ResponseCode.SUCCESS
    broker.pass_time(30_000)
    assert pop_all(broker) == []


@spec("K04")
def test_late_and_repeated_acknowledgements_succeed_and_change_nothing(broker: Harness) -> None:
    send(broker, 1)
    (taken,) = pop(broker)
    assert [ack(broker, taken).code for _ in range(2)] == [0, 0]
    broker.pass_time(15_000)
    assert ack(broker, taken).code == ResponseCode.SUCCESS
    assert pop_all(broker) == []


def test_time_of_a_message_can_be_changed(broker: Harness) -> None:
    send(broker, 2)
    near, far = pop(broker, invisibleTime=10_000)
    for message, time_ms in ((near, 2_000), (far, 40_000)):
        answer = broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, message.fields | {"invisibleTime": time_ms})
        assert (answer.code, answer.fields["invisibleTime"]) == (ResponseCode.SUCCESS, str(time_ms))
        assert answer.fields["popTime"] == str(broker.now.wall_ms)
    broker.pass_time(5_000)
    assert bodies(pop_all(broker, invisibleTime=600_000)) == [near.body]
    broker.pass_time(20_000)
    assert pop_all(broker) == []
    broker.pass_time(20_000)
    assert bodies(pop_all(broker)) == [far.body]


def test_message_that_was_put_off_comes_back_without_one_more_attempt(broker: Harness) -> None:
    group = b'{"groupName":"%s","retryMaxTimes":0}' % GROUP.encode()
    broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
    send(broker, 1)
    (taken,) = pop(broker)
    put_off = taken.fields | {"invisibleTime": 3_000, "suspend": "true"}
    assert broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, put_off).code == ResponseCode.SUCCESS
    broker.pass_time(6_000)
    (again,) = pop(broker)
    assert (again.message.reconsume_times, again.handle.kind) == (0, TopicKind.RETRY_V1)
    broker.pass_time(13_000)
    assert pop(broker) == [], "no further attempt is allowed"


def test_message_that_was_delayed_comes_back_without_another_delay(broker: Harness) -> None:
    broker.send(TOPIC, b"later", DELAY="5")
    broker.pass_time(61_000)
    (taken,) = pop(broker, invisibleTime=3_000)
    broker.pass_time(6_000)
    (again,) = pop(broker)
    assert (taken.message.properties["DELAY"], again.message.properties["DELAY"]) == ("5", "5")
    assert again.message.reconsume_times == 1


def test_start_says_that_checkpoints_of_a_java_broker_are_in_a_kv_store(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    assert "kvStore" not in caplog.text
    (tmp_path / "kvStore").mkdir()
    (tmp_path / "kvStore" / "CURRENT").touch()
    broker.restart()
    assert "kvStore/ has checkpoints of a Java broker" in caplog.text


@spec("K04")
def test_old_handle_does_not_acknowledge_after_a_change(broker: Harness) -> None:
    send(broker, 1)
    (taken,) = pop(broker)
    broker.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, taken.fields | {"invisibleTime": 20_000})
    assert ack(broker, taken).code == ResponseCode.SUCCESS
    broker.pass_time(25_000)
    assert bodies(pop_all(broker)) == [taken.body]


@spec("K06")
def test_message_becomes_a_dead_letter_after_the_group_s_retries(broker: Harness) -> None:
    config = {"groupName": GROUP, "retryMaxTimes": 2, "retryQueueNums": 1, "consumeEnable": True}
    broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(config).encode())
    send(broker, 1)
    times = []
    for _ in range(5):
        times += [message.message.reconsume_times for message in pop_all(broker, invisibleTime=1_000)]
        broker.pass_time(4_000)
    assert times == [0, 1, 2]
    dead = broker.node.store.queues[f"%DLQ%{GROUP}", 0]
    assert dead.max_offset == 1


@spec("K01")
@pytest.mark.parametrize("clean", [True, False])
def test_restart_forgets_nothing_and_repeats_nothing(broker: Harness, *, clean: bool) -> None:
    sent = send(broker, 20)
    taken = pop_all(broker, maxMsgNums=5)
    for message in taken[:10]:
        ack(broker, message)
    broker = broker.restart(clean=clean)
    broker.pass_time(2_000)
    assert pop(broker) == []
    broker.pass_time(12_000)
    back = pop_all(broker)
    assert bodies(back) == bodies(taken[10:])
    broker = broker.restart(clean=clean)
    broker.pass_time(15_000)
    again = pop_all(broker)
    assert bodies(again) == bodies(back)
    assert len(sent) == 20


def test_messages_that_came_back_before_a_kill_do_not_come_back_twice(broker: Harness) -> None:
    send(broker, 4)
    pop_all(broker, invisibleTime=2_000)
    broker.pass_time(3_300)
    back = pop_all(broker, invisibleTime=60_000)
    assert len(back) == 4
    for message in back:
        ack(broker, message)
    broker = broker.restart(clean=False)
    broker.pass_time(70_000)
    assert pop_all(broker) == []


def test_pop_waits_for_messages(broker: Harness) -> None:
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=15_000), link=7)
    broker.pass_time(5_000)
    assert broker.inbox[7] == []
    assert broker.ask(RequestCode.POLLING_INFO, {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1}).fields == {
        "pollingNum": "1"
    }
    broker.send(TOPIC, b"new")
    broker.pass_time(1)
    (answer,) = broker.inbox[7]
    assert bodies(taken_from(answer)) == [b"new"]


def test_waiting_pop_is_answered_at_its_time(broker: Harness) -> None:
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=3_000), link=7)
    broker.pass_time(3_000)
    (answer,) = broker.inbox[7]
    assert answer.code == ResponseCode.POLLING_TIMEOUT
    assert answer.fields == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


def test_waiting_pops_are_refused_a_part_per_turn(broker: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor, "REFUSED_PER_TURN", 2)
    pops = broker.node.features.find(PopProcessor)
    for _ in range(5):
        broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000), link=7)
    turn, serving = Turn(), broker.node.kernel.turn.serving
    pops.on_serving_change(serving, structs.replace(serving, write="another member serves"), turn, broker.now)
    assert len(turn.sends[7]) == 2
    parts = []
    while broker.node.deadline_ms() == 0:
        broker.turn()
        parts.append([(answer.code, answer.remark) for answer in broker.inbox.pop(7, [])])
    assert parts == [[(ResponseCode.NO_PERMISSION, "another member serves")] * number for number in (2, 1)]
    assert pops.waiting.size == 0


def test_many_answered_pops_behind_one_that_waits_are_forgotten_a_part_per_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "VOID_AT_ONCE", 3)
    requests = WaitingRequests()
    command = Command(RequestCode.POP_MESSAGE)
    made = [WaitingRequest(7, command, TOPIC, GROUP, -1, 1_000 + number) for number in range(10)]
    for request in made:
        assert requests.add(request, most=100, most_of_place=100)
    for request in made[:9]:
        requests.remove(request)
    earliest = []
    for _ in range(3):
        assert requests.due(500, 1) == []
        earliest.append(requests.next_ms())
    assert earliest == [1_004, 1_008, 1_009]
    assert requests.due(1_009, 1) == [made[9]]


def test_message_that_comes_back_wakes_a_waiting_pop(broker: Harness) -> None:
    send(broker, 1)
    pop(broker, invisibleTime=2_000)
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000), link=7)
    broker.pass_time(4_000)
    (answer,) = broker.inbox[7]
    assert bodies(taken_from(answer)) == [b"000"]


def test_notification_says_whether_there_are_messages(broker: Harness) -> None:
    fields = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": -1, "pollTime": 2_000, "bornTime": 0}
    broker.send_request(RequestCode.NOTIFICATION, fields, link=7)
    broker.pass_time(2_500)
    broker.send_request(RequestCode.NOTIFICATION, fields, link=7)
    broker.send(TOPIC, b"new")
    broker.pass_time(10)
    assert [answer.fields["hasMsg"] for answer in broker.inbox[7]] == ["false", "true"]
    assert bodies(pop_all(broker)) == [b"new"]


def test_peek_moves_nothing(broker: Harness) -> None:
    sent = send(broker, 3)
    for _ in range(2):
        answer = broker.ask(RequestCode.PEEK_MESSAGE, pop_fields())
        assert (answer.code, answer.fields["restNum"]) == (ResponseCode.SUCCESS, "3")
    assert bodies(pop_all(broker)) == sent
    assert broker.ask(RequestCode.PEEK_MESSAGE, pop_fields()).code == ResponseCode.PULL_NOT_FOUND


def test_tags_and_expressions_select(tmp_path: Path) -> None:
    broker = Harness(tmp_path, property_filter_enable=True)
    broker.create_topic(TOPIC)
    broker.pass_time(2_000)
    for tag in "ABAB":
        broker.send(TOPIC, tag.encode(), TAGS=tag, n="1" if tag == "A" else "2")
    assert bodies(pop_all(broker, exp="A")) == [b"A", b"A"]
    other = pop_fields(consumerGroup="sql", exp="n = '2'", expType="SQL92")
    assert bodies(taken_from(broker.ask(RequestCode.POP_MESSAGE, other), group="sql")) == [b"B", b"B"]
    broken = broker.ask(RequestCode.POP_MESSAGE, pop_fields(exp="n ==", expType="SQL92"))
    assert broken.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


@pytest.mark.parametrize("v2", [False, True])
def test_retry_topics_have_the_name_of_their_version(tmp_path: Path, *, v2: bool) -> None:
    broker = Harness(tmp_path, retry_topic_v2=v2)
    broker.create_topic(TOPIC)
    broker.pass_time(2_000)
    send(broker, 1)
    pop(broker, invisibleTime=1_000)
    broker.pass_time(4_000)
    (back,) = pop_all(broker)
    assert back.topic == (f"%RETRY%{GROUP}+{TOPIC}" if v2 else f"%RETRY%{GROUP}_{TOPIC}")
    assert ack(broker, back).code == ResponseCode.SUCCESS
    broker = broker.restart(clean=False)
    broker.pass_time(20_000)
    assert pop_all(broker) == []


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"maxMsgNums": 33}, ResponseCode.INVALID_PARAMETER),
        ({"maxMsgNums": 0}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 4}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": -1}, ResponseCode.INVALID_PARAMETER),
        ({"invisibleTime": 365 * 86_400_000}, ResponseCode.INVALID_PARAMETER),
        ({"topic": "absent"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"topic": f"%RETRY%{GROUP}"}, ResponseCode.INVALID_PARAMETER),
        ({"bornTime": 1_000}, ResponseCode.POLLING_TIMEOUT),
    ],
)
def test_pop_that_is_not_possible_is_refused(broker: Harness, changes: dict[str, object], code: int) -> None:
    send(broker, 1)
    answer = broker.ask(RequestCode.POP_MESSAGE, pop_fields(**changes))
    assert answer.code == code
    assert answer.fields["popTime"] == "0"
    assert len(pop_all(broker)) == 1


@spec("K04")
@pytest.mark.parametrize(
    "changes",
    [
        {"extraInfo": ""},
        {"extraInfo": "1 2 3"},
        {"extraInfo": "0 1 1 0 0 broker-b 0 0"},
        {"extraInfo": "0 1 1 9 0 broker-a 0 0"},
        {"extraInfo": "0 1 99999999999999999 0 0 broker-a 0 0"},
        {"extraInfo": "0 x 1 0 0 broker-a 0 0"},
        {"extraInfo": "0 1 1 0 7 broker-a 0 0"},
        {"queueId": 4},
        {"queueId": -1},
        {"offset": 99},
        {"offset": -1},
        {"topic": "absent"},
    ],
)
def test_forged_handles_are_refused(broker: Harness, changes: dict[str, object]) -> None:
    send(broker, 1)
    (taken,) = pop(broker)
    end = broker.node.store.log.end
    assert ack(broker, taken, **changes).code != ResponseCode.SUCCESS
    assert broker.node.store.log.end == end
    broker.pass_time(15_000)
    assert len(pop_all(broker)) == 1


@spec("K04")
def test_handle_of_another_group_acknowledges_nothing(broker: Harness) -> None:
    send(broker, 1)
    (taken,) = pop(broker)
    assert ack(broker, taken, consumerGroup="other").code == ResponseCode.SUCCESS
    broker.pass_time(15_000)
    assert len(pop_all(broker)) == 1


@pytest.mark.parametrize("bits", ["", "!", "/////////w==", "A" * 20_000])
def test_malformed_bits_of_a_batch_are_refused(broker: Harness, bits: str) -> None:
    entry = {"b": bits, "c": GROUP, "it": 1, "pt": 1, "q": 0, "r": "0", "rq": 0, "so": 0, "t": TOPIC}
    answer = broker.ask(RequestCode.BATCH_ACK_MESSAGE, {}, json.dumps({"acks": [entry]}).encode())
    assert answer.code != ResponseCode.SUCCESS


def test_group_without_offset_begins_at_the_end_on_request(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create_topic(TOPIC)
    broker.pass_time(2_000)
    send(broker, 8)
    for queue_id in range(4):
        queue = broker.node.store.queues[TOPIC, queue_id]
        queue.correct_min(queue.plausible_offset(1) or 0)
    assert bodies(pop_all(broker, initMode=1)) == [b"004", b"005", b"006", b"007"]


@pytest.mark.parametrize("is_cleared", [True, False])
def test_deletion_of_a_topic_deletes_its_retry_topics(tmp_path: Path, is_cleared: bool) -> None:
    broker = Harness(tmp_path, clears_retry_topics=is_cleared)
    for topic in (TOPIC, "other"):
        broker.create_topic(topic)
    broker.open(7)
    broker.pass_time(2_000)
    for topic in (TOPIC, "other"):
        assert broker.send(topic, b"1", queue_id=0).code == ResponseCode.SUCCESS
        assert broker.ask(RequestCode.POP_MESSAGE, pop_fields(topic=topic, invisibleTime=2_000)).code == 0
    broker.pass_time(6_000)
    names = [f"%RETRY%{GROUP}_{topic}" for topic in (TOPIC, "other")]
    assert all(broker.node.topics.get(name) is not None for name in names)
    assert broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC}).code == ResponseCode.SUCCESS
    assert [broker.node.topics.get(name) is None for name in names] == [is_cleared, False]
    broker.create_topic(TOPIC)
    assert len(pop_all(broker)) == (0 if is_cleared else 1)


def test_pops_that_match_nothing_do_not_keep_others_from_being_tried(broker: Harness) -> None:
    fields = pop_fields(pollTime=60_000)
    for _ in range(300):
        broker.send_request(RequestCode.POP_MESSAGE, fields | {"exp": "A"}, link=7)
    broker.open(8)
    broker.send_request(RequestCode.POP_MESSAGE, fields | {"consumerGroup": "second"}, link=8)
    broker.send(TOPIC, b"new")
    for _ in range(4):  # each tries as many as a turn has time for
        broker.turn()
    broker.pass_time(1_000)
    assert (len(broker.inbox[7]), len(broker.inbox[8])) == (0, 1)
    due_ms = broker.node.deadline_ms()
    assert due_ms is not None and due_ms > broker.now.mono_ms, "nothing is tried again before a message comes"


def test_pop_of_a_client_that_does_not_read_keeps_no_other_from_messages(broker: Harness) -> None:
    broker.open(8)
    for link in (7, 8):
        broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000), link=link)
    broker.outbox.waiting[7] = 1 << 30
    broker.send(TOPIC, b"new")
    broker.pass_time(1_000)
    assert (len(broker.inbox[7]), len(broker.inbox[8])) == (0, 1)


@pytest.mark.parametrize("order", ["false", "true"])
def test_handle_that_a_message_was_sent_with_does_not_reach_consumers(broker: Harness, order: str) -> None:
    broker.send(TOPIC, b"sent on", POP_CK="0 1795898956739 3000 6 0 broker-b 2 0", KEYS="k")
    broker.send(TOPIC, b"POP_CK\x01 in a body")
    broker.send(TOPIC, b"plain")
    taken = pop(broker, order=order)
    assert [item.body for item in taken] == [b"sent on", b"POP_CK\x01 in a body", b"plain"]
    assert [item.message.properties.get("POP_CK") for item in taken] == [None] * 3
    assert taken[0].message.properties["KEYS"] == "k"
    for item in taken:
        assert item.handle.broker == "broker-a"
        assert ack(broker, item).code == ResponseCode.SUCCESS
    broker.pass_time(15_000)
    assert pop_all(broker, order=order) == []


def test_mode_of_a_new_group_creates_the_group_if_its_settings_allow(broker: Harness) -> None:
    def code_of(group: str) -> int:
        body = {"topic": TOPIC, "consumerGroup": group, "mode": "POP", "popShareQueueNum": 8}
        return broker.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode()).code

    assert code_of("new") == ResponseCode.SUCCESS
    assert "new" in broker.node.kernel.groups.table
    assert code_of("not/valid") == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_metrics_say_what_was_popped_acknowledged_and_came_back(broker: Harness) -> None:
    def values() -> dict[str, dict[tuple[str, ...], float]]:
        batches = broker.node.features.find(PopFamilies).collect(broker.now)
        return {batch.family.name: dict(batch.values) for batch in batches if batch is not None}

    send(broker, 6)
    taken = pop_all(broker)
    for message in taken[:4]:
        ack(broker, message)
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=60_000), link=7)
    found = values()
    assert (found["tandemq_popped_messages_total"], found["tandemq_pop_acknowledged_total"]) == ({(): 6}, {(): 4})
    assert found["tandemq_pops_waiting"] == {(): 1}
    assert found["rocketmq_pop_revive_retry_messages_total"] == {}
    broker.pass_time(9_990)
    assert sum(values()["rocketmq_pop_revive_lag"].values()) > 0
    broker.pass_time(5_000)
    found = values()
    assert found["rocketmq_pop_revive_retry_messages_total"] == {(TOPIC, GROUP): 2}
    assert set(found["rocketmq_pop_revive_lag"].values()) == {0}
    assert set(found["rocketmq_pop_revive_latency"].values()) == {0}
    assert found["tandemq_popped_messages_total"] == {(): 8}


@pytest.mark.parametrize(
    ("code", "fields", "offset"),
    [
        (RequestCode.UPDATE_CONSUMER_OFFSET, {"commitOffset": 0}, 0),
        (RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, {"timestamp": -1, "isForce": True, "offset": 0, "group": GROUP}, 0),
        (RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": GROUP, "cleanOffset": "true"}, None),
    ],
)
def test_offset_that_is_set_behind_a_pop_of_its_turn_stays(
    broker: Harness, code: RequestCode, fields: dict[str, object], offset: int | None
) -> None:
    for number in range(10):
        broker.send(TOPIC, b"%d" % number)
    place = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0}
    broker.ask(RequestCode.POP_MESSAGE, pop_fields(maxMsgNums=3))
    assert broker.node.offsets.get(TOPIC, GROUP, 0) == 3
    frames = [
        encode_command(Command(number, opaque, fields={name: str(value) for name, value in given.items()}))
        for number, opaque, given in (
            (RequestCode.POP_MESSAGE, 9_001, pop_fields(maxMsgNums=3)),
            (code, 9_002, place | fields),
        )
    ]
    broker.turn([(CLIENT, b"".join(frames))])
    answer = broker.answer_to(9_002)
    assert answer is not None
    assert answer.code == ResponseCode.SUCCESS
    assert broker.node.offsets.get(TOPIC, GROUP, 0) == offset


def test_waiting_pop_keeps_nothing_but_the_head_of_its_request(broker: Harness) -> None:
    broker.send_request(RequestCode.POP_MESSAGE, pop_fields(pollTime=15_000), bytes(1_000), link=7)
    (request,) = broker.node.features.find(PopProcessor).waiting._by_link[7]
    assert (request.command.code, request.command.fields, request.command.body) == (RequestCode.POP_MESSAGE, {}, b"")
