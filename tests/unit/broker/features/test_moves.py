"""Delayed and timed messages that the engine delivers have the bytes of those that Python delivers."""

from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel import moves
from tandemq.engine import NAME, move_records, python
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.storage import store
from tests.unit.broker.harness import Harness, send_fields

MESSAGES = 400
TOPICS = ("T", "U", "Long" * 31, "Long" * 31 + "er")
FILES = ("commitlog/", "consumequeue/", "index/")


def properties_of(random: Random, number: int) -> dict[str, str]:
    """Return properties of which the engine knows most, some with a level."""
    found = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"k{number} k{number % 7}", "TAGS": random.choice(("A", "B", "ünï"))}
    when = random.random()
    if when < 0.4:
        found["DELAY"] = str(random.randrange(1, 4))
    elif when < 0.8:
        found["TIMER_DELAY_SEC"] = str(random.randrange(1, 6))
    for name in random.sample(("a", "b", "c", "very-long" * 5), random.randrange(4)):
        found[name] = random.choice(("v", "ü" * 9, "x" * 200, "1\x01 2"))
    return found


def delivered(seed: int, **changes: Any) -> tuple[dict[str, bytes | None], int]:
    """Return the files of a broker that has delivered random messages, and how many they were."""
    random, disk = Random(seed), SimDisk(Random(seed))
    broker = Harness(disk, **changes)
    for topic in TOPICS:
        broker.create_topic(topic)
    for number in range(MESSAGES):
        topic = random.choice(("T", *TOPICS))
        body = random.randbytes(random.choice((0, 1, 100, 3_000)))
        fields = send_fields(topic, random.randrange(4), properties_of(random, number))
        sent = broker.ask(RequestCode.SEND_MESSAGE_V2, fields, body)
        assert sent.code == ResponseCode.SUCCESS
        if random.random() < 0.02:
            broker.pass_time(random.randrange(3_000))
    broker.pass_time(30_000)
    assert all(broker.node.features.find(DelayedMessages).is_drained(level) for level in range(1, 4))
    assert not broker.node.features.find(TimedMessages).table
    count = broker.node.features.find(DelayedMessages).delivered + sum(
        broker.node.features.find(TimedMessages).metrics.dequeued_total.values()
    )
    broker.node.close()
    return {path: disk.read(path) for path in disk.paths() if path.startswith(FILES)}, count


@pytest.mark.parametrize("seed", range(4))
def test_delivered_messages_are_the_same_bytes_with_and_without_the_engine(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    moved: list[int] = []

    def move(*arguments: Any) -> Any:
        found = move_records(*arguments)
        moved.append(found.messages)
        return found

    changes = {"segment_bytes": 1 << (16 + seed % 2), "queue_file_bytes": 20 * 64}
    monkeypatch.setattr(moves, "move_records", move)
    by_engine, count = delivered(seed, **changes)
    if NAME == "compiled":
        assert sum(moved) > count / 2, "some find no room in the file"
    monkeypatch.setattr(moves, "move_records", python.move_records)
    monkeypatch.setattr(store, "copy_record", python.copy_record)
    assert delivered(seed, **changes) == (by_engine, count)
