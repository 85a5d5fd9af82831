"""What may be committed."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.codec.record.record import decode_message
from tandemq.model.message import MessageQueue, StoredMessage
from tests.unit.client.world import World

QUEUE = MessageQueue("T", "a", 0)


def make_message() -> StoredMessage:
    world = World()
    broker = world.broker("a")
    broker.store("T", 0, b"body")
    record = broker.group.queues["T", 0].records[0][0]
    return decode_message(record, 0, len(record))


MESSAGE = make_message()


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.permutations(range(n)))))
def test_committable_is_the_lowest_not_acknowledged_in_any_order(case: tuple[int, list[int]]) -> None:
    count, order = case
    window = ProcessQueue(QUEUE, 1_000, 1 << 20)
    for offset in range(count):
        window.add(replace(MESSAGE, queue_offset=offset))
    window.next_offset = count
    waiting = set(range(count))
    for offset in order:
        assert window.committable == min(waiting)
        window.ack(offset)
        waiting.discard(offset)
    assert window.committable == count
    assert (window.count, window.bytes_held) == (0, 0)


def test_window_is_full_by_count_or_bytes() -> None:
    by_count, by_bytes = ProcessQueue(QUEUE, 2, 1 << 20), ProcessQueue(QUEUE, 100, MESSAGE.size * 2)
    for window in (by_count, by_bytes):
        for offset in range(2):
            assert window.has_room
            window.add(replace(MESSAGE, queue_offset=offset))
        assert not window.has_room
        window.ack(0)
        assert window.has_room


def test_second_acknowledgement_is_harmless() -> None:
    window = ProcessQueue(QUEUE, 10, 1 << 20)
    window.add(MESSAGE)
    window.ack(0)
    window.ack(0)
    assert window.bytes_held == 0


def test_reset_forgets_and_begins_a_new_generation() -> None:
    window = ProcessQueue(QUEUE, 10, 1 << 20)
    window.add(MESSAGE)
    before = window.generation
    window.reset(7)
    assert (window.committable, window.next_offset, window.count) == (7, 7, 0)
    assert window.generation != before
