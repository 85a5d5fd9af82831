"""Held pulls on messages that may not be shown yet: when their queues are tried."""

from pathlib import Path
from random import Random

from tandemq.broker.features.pulls.processor import PullPath
from tandemq.broker.features.pulls.unseen import UnseenQueues
from tandemq.model.codes import ResponseCode
from tandemq.storage.consume_queue import ConsumeQueue
from tests.serving import let
from tests.unit.broker.harness import Harness, messages_in


class Queue:
    """A queue, as far as it matters here: nothing of it does."""


def queues(count: int) -> list[ConsumeQueue]:
    return [Queue() for _ in range(count)]  # type: ignore[misc]


def test_queues_are_tried_when_the_visible_end_reaches_the_part_of_the_log_with_their_messages() -> None:
    a, b, c = queues(3)
    unseen = UnseenQueues()
    unseen.stored(0, 100, [a, b])
    unseen.stored(100, 200, [b, c])
    assert unseen.take_shown(0) == []
    assert unseen.take_shown(50) == [a, b], "some of their messages may be shown"
    assert unseen.take_shown(50) == [], "no more than before"
    assert unseen.take_shown(100) == [a, b]
    assert len(unseen) == 1
    unseen.add(b, 150)
    assert unseen.take_shown(101) == [c, b]
    assert unseen.take_shown(250) == [c, b]
    assert not unseen


def test_queue_is_kept_once_and_where_its_first_message_is() -> None:
    a, b = queues(2)
    unseen = UnseenQueues()
    unseen.stored(0, 100, [a])
    for turn in range(1, 50):
        unseen.stored(100 * turn, 100 * turn + 100, [a])
    assert len(unseen) == 1
    unseen.add(b, 4_950)
    unseen.add(b, 150)
    unseen.add(b, 4_950)
    assert unseen.take_shown(100) == [a]
    assert unseen.take_shown(150) == []
    assert unseen.take_shown(151) == [b]
    assert not unseen


def test_each_queue_is_tried_whenever_one_of_its_messages_can_be_shown() -> None:
    """Compared with messages that are all known, for turns of any size and steps of any length."""
    for seed in range(300):
        random = Random(seed)
        names, unseen, log_end, shown = queues(5), UnseenQueues(), 0, 0
        hidden: dict[ConsumeQueue, list[int]] = {queue: [] for queue in names}
        for _ in range(60):
            if random.random() < 0.6:
                start = log_end
                for _ in range(random.randrange(1, 5)):
                    hidden[random.choice(names)].append(log_end)
                    log_end += random.randrange(1, 50)
                waiting = [queue for queue in names if any(at >= start for at in hidden[queue])]
                held = [queue for queue in waiting if random.random() < 0.7]
                unseen.stored(start, log_end, held)
                for queue in waiting:
                    if queue not in held:  # its pull comes after the message
                        unseen.add(queue, hidden[queue][0])
            else:
                shown = min(log_end, shown + random.randrange(0, 90))
                tried = unseen.take_shown(shown)
                for queue in names:
                    can_be_shown = [at for at in hidden[queue] if at < shown]
                    assert queue in tried or not can_be_shown, f"seed {seed}"
                    del hidden[queue][: len(can_be_shown)]
                    if queue in tried and hidden[queue]:
                        unseen.add(queue, hidden[queue][0])
        unseen.clear()
        assert not unseen


def test_pull_is_answered_when_its_message_may_be_shown_and_queues_without_such_are_not_tried(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    pulls = broker.node.features.find(PullPath)
    ends = [broker.node.store.log.written_end]
    for number in range(6):
        broker.send(f"Topic{number}")
        ends.append(broker.node.store.log.written_end)
    let(broker.node, visible_end=ends[0])
    held = []
    for number in range(6):
        assert broker.pull(f"Topic{number}", wait_ms=15_000) is None
        held.append(broker._opaque)
    tried: list[ConsumeQueue] = []
    wake = pulls.wake

    def note(queue: ConsumeQueue, *, is_last: bool = False) -> None:
        tried.append(queue)
        wake(queue, is_last=is_last)

    pulls.wake = note  # type: ignore[method-assign]
    for number in range(6):
        broker.turn()
        assert not tried, "nothing more may be shown"
        let(broker.node, visible_end=ends[number + 1])
        broker.turn()
        answer = broker.answer_to(held[number])
        assert answer is not None and answer.code == ResponseCode.SUCCESS
        assert len(messages_in(answer)) == 1
        assert [queue.topic for queue in tried] == [f"Topic{number}"]
        tried.clear()


def test_pull_of_a_queue_with_several_messages_is_answered_with_each(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    first = broker.node.store.log.written_end
    let(broker.node, visible_end=first)
    broker.send("TopicA", b"0")
    second = broker.node.store.log.written_end
    broker.send("TopicA", b"1")
    assert broker.pull("TopicA", 0, wait_ms=15_000) is None
    opaque = broker._opaque
    let(broker.node, visible_end=second)
    broker.turn()
    answer = broker.answer_to(opaque)
    assert answer is not None and [message.body for message in messages_in(answer)] == [b"0"]
    assert broker.pull("TopicA", 1, wait_ms=15_000) is None
    opaque = broker._opaque
    let(broker.node, visible_end=1 << 62)
    broker.turn()
    answer = broker.answer_to(opaque)
    assert answer is not None and [message.body for message in messages_in(answer)] == [b"1"]
