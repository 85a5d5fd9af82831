"""Registries of `make chaos` that go back to an older copy: the operator's choice, and what the group must not do."""

from pathlib import Path
from random import Random

import pytest

from chaos import brokers
from chaos.registries import REFUSES, chosen, refusing
from chaos.registry_faults import RegistryFaults
from chaos.world import World
from tandemq.coordination.registry.records import Mode

OLDER = f"the registry has the group's record of epoch 1, {REFUSES} that this broker has seen"


def test_operator_waits_until_all_members_answer_and_one_refuses() -> None:
    assert chosen({0: "", 1: OLDER}, [], Random(1)) is None
    assert chosen({0: "serves", 1: "slave"}, [0], Random(1)) is None
    assert chosen({0: OLDER, 1: "slave"}, [], Random(1)) == 0
    assert {chosen({0: OLDER, 1: OLDER, 2: "slave"}, [], Random(seed)) for seed in range(20)} == {0, 1}


def test_member_that_serves_by_the_older_record_is_the_only_choice() -> None:
    assert {chosen({0: "serves", 1: OLDER, 2: OLDER}, [0], Random(seed)) for seed in range(20)} == {0}


def test_members_that_refuse_are_known_by_their_reasons() -> None:
    assert refusing({0: OLDER, 1: "slave of broker 0", 2: OLDER}) == [0, 2]


class _Always(Random):
    """Draws that make the record change, and leave the members running."""

    def choice(self, seq):  # type: ignore[no-untyped-def]
        return "switch" if "switch" in seq else super().choice(seq)

    def random(self) -> float:
        return 0.9


def _restore_older(directory: Path) -> tuple[dict[str, object], list[str]]:
    """Replace a group's registry by an older copy; return the details, and what was found."""
    found: list[str] = []
    with World(directory, mode=Mode.ELECT, members=2) as world:
        return RegistryFaults(world, found).older(world.brokers[0], 0.0, _Always(1)), found


@pytest.mark.system
def test_group_waits_for_its_operator_after_its_registry_went_back(tmp_path: Path) -> None:
    details, found = _restore_older(tmp_path)
    assert found == []
    assert details["epochs"] == [1, 2]
    assert details["forced"] in (0, 1)


@pytest.mark.system
def test_group_that_believes_an_older_registry_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brokers, "PROGRAM", ("-m", "tests.chaos.planted", "believes-older-registry"))
    _, found = _restore_older(tmp_path)
    assert found == ["I1: broker 0 serves by epoch 1; all have seen epoch 2"]
