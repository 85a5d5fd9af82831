"""Offsets that may be committed, and limits of prefetching."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

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
    process_queue = ProcessQueue(QUEUE, 1_000, 1 << 20)
    for offset in range(count):
        process_queue.add([replace(MESSAGE, queue_offset=offset)])
    process_queue.next_offset = count
    waiting = set(range(count))
    for offset in order:
        assert process_queue.committable == min(waiting)
        process_queue.ack(offset)
        waiting.discard(offset)
    assert process_queue.committable == count
    assert (process_queue.count, process_queue.bytes_held) == (0, 0)


def test_process_queue_is_full_by_count_or_bytes() -> None:
    by_count, by_bytes = ProcessQueue(QUEUE, 2, 1 << 20), ProcessQueue(QUEUE, 100, MESSAGE.size * 2)
    for process_queue in (by_count, by_bytes):
        for offset in range(2):
            assert process_queue.has_room
            process_queue.add([replace(MESSAGE, queue_offset=offset)])
        assert not process_queue.has_room
        process_queue.ack(0)
        assert process_queue.has_room


def test_second_acknowledgement_is_harmless() -> None:
    process_queue = ProcessQueue(QUEUE, 10, 1 << 20)
    process_queue.add([MESSAGE])
    process_queue.ack(0)
    process_queue.ack(0)
    assert process_queue.bytes_held == 0


def test_reset_drops_messages_and_starts_a_new_generation() -> None:
    process_queue = ProcessQueue(QUEUE, 10, 1 << 20)
    process_queue.add([MESSAGE])
    before = process_queue.generation
    process_queue.reset(7)
    assert (process_queue.committable, process_queue.next_offset, process_queue.count) == (7, 7, 0)
    assert process_queue.generation != before


@given(st.lists(st.tuples(st.integers(0, 199), st.booleans()), max_size=300))
def test_noted_acknowledgements_have_the_same_effect_as_others(acks: list[tuple[int, bool]]) -> None:
    one, other = (ProcessQueue(QUEUE, 150, 1 << 20) for _ in range(2))
    for process_queue in (one, other):
        process_queue.add([replace(MESSAGE, queue_offset=offset) for offset in range(200)])
        process_queue.next_offset = 200
    for offset, is_asked in acks:
        one.ack(offset)
        other.note(offset)
        if is_asked:
            assert state_of(other) == state_of(one)
    assert other.has_room == one.has_room
    assert state_of(other) == state_of(one)


def test_noted_acknowledgement_is_void_after_a_reset() -> None:
    process_queue = ProcessQueue(QUEUE, 150, 1 << 20)
    process_queue.add([MESSAGE])
    process_queue.note(MESSAGE.queue_offset)
    process_queue.reset(MESSAGE.queue_offset)
    process_queue.add([MESSAGE])
    assert process_queue.committable == MESSAGE.queue_offset
    assert process_queue.count == 1


def state_of(process_queue: ProcessQueue) -> tuple[int, list[int], int, int]:
    overtaken = [message.queue_offset for message in process_queue.overtaken()]
    return process_queue.committable, overtaken, process_queue.count, process_queue.bytes_left
