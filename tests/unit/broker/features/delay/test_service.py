from pathlib import Path

import pytest

from tandemq.boundary import Now
from tandemq.broker.features.delay import service
from tests.unit.broker.harness import Harness


def test_message_is_delivered_when_it_is_due_and_not_at_the_next_look(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.create_topic("T")
    broker.pass_time(1_500)
    for step in range(60):
        broker.send("T", b"%d" % step, DELAY="1")
        broker.pass_time(37)
    queue = broker.node.store.queues["T", 0]
    broker.pass_time(2_000)
    assert queue.max_offset == 60
    delayed = broker.node.store.queues["SCHEDULE_TOPIC_XXXX", 0]
    late = [broker.node.store.stored_ms(queue, at) - delayed.entry(at).tags_code for at in range(60)]
    assert min(late) >= 0
    assert max(late) <= service.NEAR_MS


def test_broker_does_not_look_more_often_while_a_message_waits_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    deliver = service.DelayedMessages.deliver

    def look(self: service.DelayedMessages, now: Now) -> None:
        looks.append(now.mono_ms)
        deliver(self, now)

    monkeypatch.setattr(service.DelayedMessages, "deliver", look)
    broker = Harness(tmp_path)
    broker.create_topic("T")
    broker.send("T", DELAY="5")  # a minute
    broker.pass_time(10_000)
    assert len(looks) == 10_000 // service.SCAN_MS - 9, "from one second on"
