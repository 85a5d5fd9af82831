"""Queue tails: any sequence of operations has the same result on both engines."""

from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.record.entries import QUEUE_ENTRY
from tests.fuzz.tails import TailPair
from tests.unit.engine.modules import compiled_engine


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_engine()


@given(st.integers(0, 1 << 40))
def test_any_sequence_of_operations(compiled: ModuleType, seed: int) -> None:
    random = Random(seed)
    pair = TailPair(compiled)
    pair.check()
    if random.random() < 0.3:
        for tail in pair.tails:
            tail.held = object()
    for _ in range(60):
        pair.step(random)


def test_entries_of_many_messages(compiled: ModuleType) -> None:
    pair = TailPair(compiled)
    pair.call("start_tail", 7)
    for number in range(5_000):
        assert pair.call("stage_entry", number, 91, number) is (number == 0)
    pair.commit()
    assert pair.call("tail", 5_006, 5_007) == QUEUE_ENTRY.pack(4_999, 91, 4_999)
    pair.call("advance_tail", 5_000)
    pair.call("stage_packed", b"")
    assert pair.call("stage_entry", 1, 2, 3) is True
    pair.call("drop_staged")
    assert pair.tails[0].next_offset == 5_007


def test_subclass_with_slots(compiled: ModuleType) -> None:
    """As `ConsumeQueue` is."""

    class Queue(compiled.QueueTail):  # type: ignore[name-defined,misc]
        __slots__ = ("topic",)

    queue = Queue()
    queue.topic = "T"
    queue.start_tail(3)
    assert (queue.topic, queue.next_offset, queue.held) == ("T", 3, None)
