"""Timed messages of groups whose master fails, returns or hands over: each is delivered once, and not early."""

from collections import Counter
from pathlib import Path
from shutil import rmtree

import pytest

from tandemq.broker.features.timers.service import TimedMessages
from tandemq.codec.record.record import decode_messages
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.topic import TIMER_TOPIC
from tests.spec import spec
from tests.unit.broker.features.timers.test_timed_messages import bodies, delivered, timed, waiting
from tests.unit.broker.roles.registry_group import Broker, RegistryGroup

OK = ResponseCode.SUCCESS
DELAY_S = 6


def pair(path: Path, mode: Mode = Mode.ELECT, **changes: object) -> RegistryGroup:
    """Return a group at a full second, whose master 0 has read its timed messages."""
    group = RegistryGroup(path, mode, **changes)  # type: ignore[arg-type]
    group.pass_time(2_000 - group.now.wall_ms % 1_000)
    assert group.serving is group.brokers[0]
    return group


def send_timed(group: RegistryGroup, count: int, *, seconds: int = DELAY_S, start: int = 0) -> list[str]:
    """Send timed messages to the active member, one a second; return their recall handles."""
    handles = []
    for number in range(start, start + count):
        answer = timed(group.serving, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELAY_SEC=str(seconds))
        assert answer.code == OK, answer.remark
        handles.append(answer.fields.get("recallHandle", ""))
        group.pass_time(1_000)
    return handles


def assert_once(broker: Broker, count: int) -> None:
    """Assert that all messages are in the topic once, none before its time."""
    assert Counter(bodies(broker)) == Counter(b"%d" % number for number in range(count))
    for message in delivered(broker):
        assert message.store_ms >= int(message.properties["TIMER_OUT_MS"]) + 1_000
    assert waiting(broker) == 0


def assert_same_logs(group: RegistryGroup) -> None:
    logs = [broker.log_bytes() for broker in group.brokers.values()]
    assert all(log == logs[0] for log in logs)


def switch(group: RegistryGroup, target: int) -> None:
    """Move the master role as an operator."""
    asked = group.serving.send_request(RequestCode.TANDEM_SWITCH, {"target": target})
    group.pass_time(2_000)
    answer = group.brokers[1 - target].answer_to(asked)
    assert answer is not None and answer.code == OK, answer
    assert group.serving is group.brokers[target]


@spec("S01")
@pytest.mark.parametrize("killed_after_ms", [0, 2_900, 3_000, 3_100, 4_500, 8_000])
def test_elected_master_delivers_what_the_killed_one_has_not(tmp_path: Path, killed_after_ms: int) -> None:
    """Killed before, at and after the time of the first message."""
    group = pair(tmp_path)
    send_timed(group, 3)
    group.pass_time(killed_after_ms)
    before = bodies(group.serving)
    group.kill(0)
    group.pass_time(6_000)
    assert group.serving is group.brokers[1]
    assert bodies(group.serving)[: len(before)] == before
    group.pass_time(6_000)
    assert_once(group.brokers[1], 3)
    group.start(0)
    group.pass_time(6_000)
    switch(group, 0)
    group.pass_time(3_000)
    assert_once(group.brokers[0], 3)
    assert_same_logs(group)


@pytest.mark.parametrize(
    ("apart_ms", "who_has_it"), [(-320, ()), (-200, (0,)), (-100, (0,)), (-20, (0,)), (120, (0, 1))]
)
def test_delivery_that_only_the_killed_master_has_is_made_again(
    tmp_path: Path, apart_ms: int, who_has_it: tuple[int, ...]
) -> None:
    """The connection between the members breaks shortly before or after the delivery, then the master dies."""
    group = pair(tmp_path)
    send_timed(group, 1)
    group.pass_time((DELAY_S - 1) * 1_000 + apart_ms)
    group.apart.add(1)
    group.pass_time(300)
    assert tuple(number for number, broker in group.brokers.items() if bodies(broker)) == who_has_it
    group.kill(0)
    group.apart.clear()
    group.pass_time(6_000)
    assert group.serving is group.brokers[1]
    assert_once(group.brokers[1], 1)
    group.start(0)
    group.pass_time(6_000)
    switch(group, 0)
    group.pass_time(2_000)
    assert_once(group.brokers[0], 1)
    assert_same_logs(group)


@pytest.mark.parametrize("down_ms", [1_000, 3_000, 9_000])
@pytest.mark.parametrize("killed_after_ms", [0, 3_000, 3_100, 8_000])
def test_returned_master_delivers_what_became_due_while_it_was_down(
    tmp_path: Path, killed_after_ms: int, down_ms: int
) -> None:
    """Its slave, which serves reads meanwhile, delivers nothing."""
    group = pair(tmp_path, Mode.SLAVE_CONSUME)
    send_timed(group, 3)
    group.pass_time(killed_after_ms)
    before = bodies(group.serving)
    group.kill(0)
    group.pass_time(down_ms)
    assert bodies(group.brokers[1]) == before
    group.start(0)
    group.pass_time(12_000)
    assert group.serving is group.brokers[0]
    assert_once(group.brokers[0], 3)
    assert_same_logs(group)


@spec("S01")
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_master_by_a_switch_goes_on(tmp_path: Path, mode: Mode) -> None:
    """There and back while messages wait, become due, and new ones come."""
    group = pair(tmp_path, mode)
    sent = 0
    for target in (1, 0, 1, 0):
        send_timed(group, 2, start=sent)
        sent += 2
        group.pass_time(1_500)
        switch(group, target)
    group.pass_time(10_000)
    assert_once(group.serving, sent)
    assert_same_logs(group)


@spec("S02")
@pytest.mark.parametrize("ends", ["delete request", "recall"])
@pytest.mark.parametrize("mode", [Mode.ELECT, Mode.SLAVE_CONSUME])
def test_deleted_message_stays_deleted_after_a_takeover(tmp_path: Path, mode: Mode, ends: str) -> None:
    group = pair(tmp_path, mode, recall_enable=True)
    out = str(group.now.wall_ms + 8_000)
    handles = [
        timed(group.serving, b"%d" % number, UNIQ_KEY=f"K{number}", TIMER_DELIVER_MS=out).fields["recallHandle"]
        for number in range(2)
    ]
    if ends == "recall":
        fields = {"producerGroup": "producers", "topic": "TopicA", "recallHandle": handles[1]}
        assert group.serving.ask(RequestCode.RECALL_MESSAGE, fields).code == OK
    else:
        request = {"TIMER_DEL_UNIQKEY": "TopicA+K1", "TIMER_DELIVER_MS": out}
        assert timed(group.serving, b"-", UNIQ_KEY="D", **request).code == OK
    group.pass_time(1_000)
    group.kill(0)
    group.pass_time(5_000)
    if mode is Mode.SLAVE_CONSUME:
        assert group.brokers[1].may == "R"
        group.start(0)
    group.pass_time(8_000)
    assert_once(group.serving, 1)
    assert len(delivered(group.serving, TIMER_TOPIC, 0)) == 3
    if mode is Mode.ELECT:
        group.start(0)
        group.pass_time(6_000)
    switch(group, 1 - int(group.serving is group.brokers[1]))
    group.pass_time(3_000)
    assert_once(group.serving, 1)
    assert_same_logs(group)


def test_slave_that_copied_a_log_without_its_begin_takes_over(tmp_path: Path) -> None:
    """Messages were delivered, deleted and stored again, and old files deleted, before the slave exists; some wait."""
    group = pair(tmp_path, segment_bytes=4_096, message_bytes_max=1_024, timer_roll_window=9)
    group.kill(1)
    rmtree(tmp_path / "b1")
    group.pass_time(6_000)
    master = group.serving
    for _ in range(12):
        master.send("TopicB", bytes(700))
    out = str(group.now.wall_ms + 25_000)
    for number in range(12):
        properties = {"TIMER_DELAY_SEC": "2"} if number < 9 else {"TIMER_DELIVER_MS": out}
        timed(master, b"%d" % number, UNIQ_KEY=f"K{number}", **properties)
    timed(master, b"-", UNIQ_KEY="D", TIMER_DEL_UNIQKEY="TopicA+K11", TIMER_DELIVER_MS=out)
    group.pass_time(14_000)
    assert bodies(master) == [b"%d" % number for number in range(9)]
    store, needed = master.node.store, master.node.features.find(TimedMessages).keeps_log_from()
    assert needed is not None
    while store.log.segment_starts[1] <= needed:
        store.drop_first_segment()
    assert store.log.start > 0
    group.start(1)
    group.pass_time(5_000)
    assert group.record.in_sync == (0, 1)
    assert group.brokers[1].node.store.log.start == store.log.start
    group.kill(0)
    group.pass_time(20_000)
    assert group.serving is group.brokers[1]
    assert sorted(later(group.serving)) == [b"10", b"9"]
    assert waiting(group.serving) == 0
    group.start(0)
    group.pass_time(6_000)
    switch(group, 0)
    group.pass_time(2_000)
    assert sorted(later(group.serving)) == [b"10", b"9"]


def later(broker: Broker) -> list[bytes]:
    """Return the bodies of messages 9 and above in the topic."""
    queue = broker.node.store.queues["TopicA", 1]
    records = [broker.node.store.record_of(queue, at) for at in range(max(9, queue.min_offset), queue.max_offset)]
    return [message.body for record in records if record is not None for message in decode_messages(record[1])]
