"""A safety switched off is noticed: the checkers are shown to complain before their silence is believed."""

import pytest

from tandemq.sim.mutations import MUTATIONS
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import quiet

SEEDS_MAX = 24


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name: str) -> None:
    _, rules = MUTATIONS[name]
    with quiet():
        for seed in range(1, SEEDS_MAX + 1):
            result = run_one(seed, name)
            if result.rule:
                assert result.rule in rules, f"seed {seed}: {result.rule} {result.text}"
                return
    pytest.fail(f"{name}: not caught within {SEEDS_MAX} seeds")


def test_mutations_end_with_their_context() -> None:
    for name, (switch, _) in MUTATIONS.items():
        with switch():
            pass
        assert switch.__doc__, name
    with quiet():
        assert not run_one(2).rule
