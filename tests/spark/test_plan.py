"""Planning of offset ranges and their distribution over tasks."""

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.offsets import Position, parse_offsets
from tandemq.spark.sources.cluster.plan import SHARED_MESSAGES, QueueRange, limit_rows, make_ranges, make_tasks

QUEUES = [MessageQueue("Orders", name, number) for name in ("a", "b") for number in range(3)]
sizes = st.lists(st.integers(0, 50_000), min_size=len(QUEUES), max_size=len(QUEUES))


def ranges_of(lengths: list[int]) -> list[QueueRange]:
    start = dict.fromkeys(QUEUES, 7)
    end = {queue: 7 + length for queue, length in zip(QUEUES, lengths, strict=True)}
    return make_ranges(start, end)


@given(sizes, st.integers(1, 100_000))
def test_limit_is_used_completely_and_starves_no_queue(lengths: list[int], most: int) -> None:
    start = dict.fromkeys(QUEUES, 7)
    end = {queue: 7 + length for queue, length in zip(QUEUES, lengths, strict=True)}
    limited = limit_rows(start, end, most)
    given_out = {queue: limited[queue] - 7 for queue in QUEUES}
    assert sum(given_out.values()) == min(most, sum(lengths))
    assert all(0 <= given_out[queue] <= end[queue] - 7 for queue in QUEUES)
    if most >= len(QUEUES):
        assert all(given_out[queue] for queue in QUEUES if end[queue] > 7)


def test_limit_does_not_advance_an_empty_queue() -> None:
    a, b, c = QUEUES[:3]
    assert limit_rows({a: 5, b: 9, c: 9}, {a: 100, b: 9, c: 8}, 10) == {a: 15, b: 9, c: 8}


@given(sizes, st.none() | st.integers(1, 40))
def test_tasks_contain_every_offset_once_and_reach_the_minimum_number(lengths: list[int], least: int | None) -> None:
    ranges = ranges_of(lengths)
    tasks = make_tasks(ranges, len(ranges), least)
    pieces = sorted((one for task in tasks for one in task), key=lambda one: (one.queue, one.start))
    joined: list[QueueRange] = []
    for piece in pieces:
        assert piece.size > 0
        if joined and joined[-1].queue == piece.queue:
            assert joined[-1].end == piece.start
            piece = QueueRange(piece.queue, joined.pop().start, piece.end)
        joined.append(piece)
    assert joined == sorted(ranges, key=lambda one: one.queue)
    if least is not None:
        assert len(tasks) >= min(least, sum(lengths))
    else:
        assert all(sum(one.size for one in task) <= SHARED_MESSAGES for task in tasks if len(task) > 1)


@given(sizes, st.integers(1, 200))
def test_largest_part_is_split_first(lengths: list[int], least: int) -> None:
    ranges = ranges_of(lengths)
    parts = {one.queue: 1 for one in ranges}
    for _ in range(min(least, sum(lengths)) - len(parts)):
        able = [one for one in ranges if parts[one.queue] < one.size]
        parts[max(able, key=lambda one: one.size / parts[one.queue]).queue] += 1
    found = Counter(one.queue for task in make_tasks(ranges, len(ranges), least) for one in task)
    assert found == parts


class Counted(MessageQueue, frozen=True):
    """A queue that counts how often it is looked up."""

    lookups: ClassVar[int] = 0

    def __hash__(self) -> int:
        Counted.lookups += 1
        return super().__hash__()


def test_twenty_thousand_tasks_on_two_thousand_queues_need_few_lookups() -> None:
    ranges = [QueueRange(Counted(f"T{number}", "a", 0), 0, 1_000 + number) for number in range(2_000)]
    Counted.lookups = 0
    assert len(make_tasks(ranges, len(ranges), 20_000)) == 20_000
    assert Counted.lookups <= 10 * (2_000 + 20_000)


def test_small_ranges_share_a_task() -> None:
    tasks = make_tasks(ranges_of([10, 20, 30, 0, 5, 50_000]), 6)
    assert [len(task) for task in tasks] == [1, 4]


def test_position_survives_a_round_trip_through_json() -> None:
    position = Position({QUEUES[0]: 5, QUEUES[5]: 0}, {"a": 2})
    assert position.to_json() == {"Orders": {"a": {"epoch": 2, "0": 5}, "b": {"2": 0}}}
    assert parse_offsets('{"Orders": {"a": {"epoch": 2, "0": 5}, "b": {"2": 0}}}', "x") == position


@pytest.mark.parametrize(
    ("sizes", "queues", "parts"),
    [
        ([10_000_000], 1, [1]),  # nothing to share
        ([4_000_000, 4_000_000], 2, [1, 1]),
        ([4_000_000, 4_000_000], 8, [2, 2]),  # six queues are empty
        ([800_000, 1, 1, 1], 4, [2, 1, 1, 1]),
        ([10_000_000, *[100_000] * 99], 100, [26, *[1] * 99]),
        ([100_000, 10, 10, 10], 4, [1, 1, 1, 1]),  # small
    ],
)
def test_queue_that_has_far_more_than_the_others_is_split(sizes: list[int], queues: int, parts: list[int]) -> None:
    ranges = [QueueRange(MessageQueue("Orders", "a", at), 7, 7 + size) for at, size in enumerate(sizes)]
    tasks = make_tasks(ranges, queues)
    found = Counter(piece.queue for task in tasks for piece in task)
    assert [found[one.queue] for one in ranges] == parts
    assert sum(piece.size for task in tasks for piece in task) == sum(sizes)
    assert make_tasks(ranges, queues) == tasks
