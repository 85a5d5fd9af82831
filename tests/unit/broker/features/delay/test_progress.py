"""Progress of delay levels: states of two members together, and tables that cannot be right."""

from itertools import product

import pytest

from tandemq.broker.features.delay.progress import (
    NOTHING,
    WAITING_MAX,
    LevelProgress,
    delivered_by_both,
    delivered_by_either,
    progress_as_json,
    progress_in,
)
from tandemq.errors import StoreDamaged

ENTRIES = range(5)
STATES = [
    LevelProgress(offset, tuple(at for at in range(offset) if waiting >> at & 1))
    for offset in ENTRIES
    for waiting in range(1 << offset)
]


def delivered(progress: LevelProgress) -> set[int]:
    return {at for at in ENTRIES if progress.has_delivered(at)}


def test_states_of_two_members_are_united_and_intersected_entry_by_entry() -> None:
    for one, other in product(STATES, STATES):
        either, both = delivered_by_either(one, other), delivered_by_both(one, other)
        assert delivered(either) == delivered(one) | delivered(other), (one, other)
        assert delivered(both) == delivered(one) & delivered(other), (one, other)
        for found in (either, both):
            assert list(found.waiting) == sorted(set(found.waiting))
            assert all(at < found.offset for at in found.waiting)


def test_entry_is_put_apart_delivered_later_and_cut_with_its_queue() -> None:
    progress = NOTHING.advanced(3).put_apart(3).advanced(7).put_apart(9)
    assert progress == LevelProgress(10, (3, 9)), "7 and 8 were holes"
    assert progress.settled(3) == LevelProgress(10, (9,))
    assert progress.cut(9) == LevelProgress(9, (3,))


def test_table_survives_its_form_and_has_no_second_part_unless_messages_wait() -> None:
    table = {1: LevelProgress(4), 18: LevelProgress(9, (2, 5))}
    written = progress_as_json(table)
    assert written == {"offsetTable": {1: 4, 18: 9}, "waitingTable": {18: [2, 5]}}
    assert (
        progress_in({key: {str(level): each for level, each in part.items()} for key, part in written.items()}) == table
    )
    assert progress_as_json({1: LevelProgress(4)}) == {"offsetTable": {1: 4}}


def test_waiting_messages_that_the_offsets_contradict_are_dropped() -> None:
    raw = {"offsetTable": {"2": 5}, "waitingTable": {"2": [7, 3, 3, -1], "9": [1]}}
    assert progress_in(raw) == {2: LevelProgress(5, (3,))}


@pytest.mark.parametrize(
    "raw",
    [
        {"offsetTable": [1]},
        {"offsetTable": {"x": 1}},
        {"offsetTable": {"1": "x"}},
        {"waitingTable": {"1": 3}},
        {"waitingTable": {"1": ["x"]}},
        {"waitingTable": [1]},
        {"offsetTable": {"1": 9_999}, "waitingTable": {"1": list(range(WAITING_MAX + 1))}},
    ],
)
def test_table_that_cannot_be_read_is_refused(raw: dict[str, object]) -> None:
    with pytest.raises(StoreDamaged, match="delay offsets"):
        progress_in(raw)
