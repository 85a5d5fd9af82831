"""Allocation of queues: all members compute the same, and together they cover all queues."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.model.allocation import allocate_averagely
from tandemq.model.message import MessageQueue


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", "a", number) for number in range(count)]


@pytest.mark.parametrize(
    ("count", "members", "allocations"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 3, [[0], [1], []]),
        (5, 1, [[0, 1, 2, 3, 4]]),
        (7, 4, [[0, 1], [2, 3], [4, 5], [6]]),
        (0, 2, [[], []]),
    ],
)
def test_allocation_equals_that_of_java_members(count: int, members: int, allocations: list[list[int]]) -> None:
    ids = [f"c{n}" for n in range(members)]
    assert [
        [q.queue_id for q in allocate_averagely(one, reversed(ids), reversed(queues(count)))] for one in ids
    ] == allocations


@given(st.integers(0, 40), st.sets(st.text("aB#é€😀", min_size=1, max_size=4), min_size=1, max_size=12))
def test_allocations_cover_all_queues_without_overlap(count: int, ids: set[str]) -> None:
    allocations = [allocate_averagely(one, ids, queues(count)) for one in ids]
    assert sorted(queue for allocation in allocations for queue in allocation) == queues(count)
    assert max(map(len, allocations)) - min(map(len, allocations)) <= 1


def test_client_that_is_not_a_member_gets_no_queue() -> None:
    assert allocate_averagely("x", ["a", "b"], queues(4)) == []


def test_queues_are_sorted_by_topic_broker_and_number() -> None:
    mixed = [MessageQueue("T", "b", 0), MessageQueue("T", "a", 10), MessageQueue("T", "a", 9)]
    assert allocate_averagely("x", ["x", "y"], mixed) == [MessageQueue("T", "a", 9), MessageQueue("T", "a", 10)]
