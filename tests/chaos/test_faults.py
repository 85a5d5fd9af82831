"""Faults that happen at once, and losses beyond what a group is made for."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from chaos.beyond import of_safety
from chaos.faults import ALONE, KINDS, LOSSES, ONCE, Drawn, Faults
from chaos.world import World
from tandemq.coordination.registry.records import Mode

MEMBERS = 3


def world() -> World:
    """Return what faults draw from: three members, of which the first one is active, and two proxies."""
    brokers = [SimpleNamespace(broker_id=number, name=f"broker-a-{number}") for number in range(MEMBERS)]
    proxies = [SimpleNamespace(name=f"proxy-{number}") for number in range(2)]
    found = SimpleNamespace(
        brokers=brokers, proxies=proxies, neighbour=None, shard=None, mode=Mode.ELECT, may_lag=False, master=brokers[0]
    )
    return cast("World", found)


def drawn(seed: int, **options: Any) -> list[list[Drawn]]:
    """Return what is drawn in 30 turns."""
    faults = Faults(world(), Random(seed), **options)
    return [faults._draw_some() for _ in range(30)]


def test_one_fault_at_a_time_by_default() -> None:
    assert all(len(found) == 1 for seed in range(20) for found in drawn(seed))


@pytest.mark.parametrize("is_beyond", [False, True])
def test_faults_at_once_strike_different_processes(*, is_beyond: bool) -> None:
    turns = [found for seed in range(40) for found in drawn(seed, at_once=3, is_beyond=is_beyond)]
    for found in turns:
        assert len({one.place for one in found}) == len(found)
        kinds = [one.kind for one in found]
        assert len(found) == 1 or not set(kinds) & set(ALONE)
        assert all(kinds.count(kind) <= 1 for kind in ONCE)
    assert {len(found) for found in turns} == ({2, 3} if is_beyond else {1, 2, 3})


def test_same_seed_draws_the_same_faults() -> None:
    def names(turns: list[list[Drawn]]) -> list[list[tuple[str, int | str]]]:
        return [[(one.kind, one.place) for one in found] for found in turns]

    assert names(drawn(7, at_once=3)) == names(drawn(7, at_once=3))
    assert names(drawn(7, at_once=3)) != names(drawn(8, at_once=3))


def test_losses_are_drawn_only_if_asked_for_and_every_kind_is_known() -> None:
    tolerated = {one.kind for seed in range(60) for found in drawn(seed) for one in found}
    beyond = {one.kind for seed in range(60) for found in drawn(seed, is_beyond=True) for one in found}
    assert not tolerated & set(LOSSES)
    assert set(LOSSES) <= beyond
    assert not beyond & set(ALONE)
    assert tolerated | beyond <= {*KINDS, "restart"}


def test_error_of_one_of_the_faults_is_raised_after_all_have_ended(tmp_path: Path) -> None:
    faults = Faults(world(), Random(1), at_once=2)
    ended = tmp_path / "ended"

    def fail(_seconds: float, _random: Random) -> None:
        raise OSError("planted")

    def end(_seconds: float, _random: Random) -> None:
        ended.touch()

    with pytest.raises(OSError, match="planted"):
        faults.inject([Drawn("kill", 0, fail), Drawn("kill", 1, end)])
    assert ended.exists()
    assert [one["broker"] for one in faults.done] == [1]


def test_only_rules_of_safety_count_beyond_tolerance() -> None:
    safety = [
        "I2: 'x', given at (0, 1), was never sent",
        "I6: broker-a-0 and broker-a-1 could be written at once for 3 ms from mono_ms=5 on",
        "I11: 1 delivered and not committed, first ['t-1']",
        "I11: 1 in the log of broker-a-0 and not committed, first ['t-1']",
        "I14: producer a died, its traceback is in the output",
        "I16: broker-a-0 ended by itself: Killed",
        "judge: 1 corrupt, first: a-1 differs, lines (1, 2) of the history",
        "judge: 2 half-read, first: t-1 was read before its transaction was decided, lines (1, 2) of the history",
    ]
    others = [
        "I1: 3 acknowledged and never delivered, first ['a-1']",
        "I11: 1 committed and never delivered, first ['t-1']",
        "I14: consumer does not end",
        "judge: 1 lost, first: a-1, lines (1, 2) of the history",
    ]
    assert of_safety([*others, *safety]) == safety
