"""Groups with a registry, simulated: seeds for every commit."""

import pytest

from tandemq.sim.simulation import GROUP_SEEDS, quiet, run_seed

SEEDS = range(GROUP_SEEDS + 1, GROUP_SEEDS + 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_violates_nothing(seed: int) -> None:
    with quiet():
        result = run_seed(seed)
    assert not result.rule, f"{result.rule} {result.text}; tandemq sim --seed {seed}"
    assert result.sends
    assert result.given


def test_seed_gives_the_same_history_again() -> None:
    with quiet():
        first, again = run_seed(GROUP_SEEDS + 2), run_seed(GROUP_SEEDS + 2)
    assert first.digest == again.digest
