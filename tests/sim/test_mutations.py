"""A safety switched off is noticed: the checkers are shown to complain before their silence is believed."""

import pytest

from tandemq.sim.mutations import MUTATIONS
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import quiet

SEEDS_MAX = 30
FIRST = {
    "failed-write-is-acked": 14, "queues-not-cut": 3, "client-sends-to-one-broker": 11, "client-drops-rejected": 6,
    "damage-stays": 30, "repair-unverified": 30,
}  # fmt: skip
"""Where a mutation needs a rare fault: the seed to begin with, so that the test is quick."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation_is_caught(name: str) -> None:
    _, rules = MUTATIONS[name]
    with quiet():
        first = FIRST.get(name, 1)
        for seed in (*range(first, SEEDS_MAX + 1), *range(1, first)):
            result = run_one(seed, name)
            if result.rule:
                assert result.rule in rules, f"seed {seed}: {result.rule} {result.text}"
                assert "TypeError" not in result.text, f"the mutation itself is broken: {result.text}"
                assert "ValueError" not in result.text, f"the mutation itself is broken: {result.text}"
                return
    pytest.fail(f"{name}: not caught within {SEEDS_MAX} seeds")


def test_mutations_end_with_their_context() -> None:
    for name, (switch, _) in MUTATIONS.items():
        with switch():
            pass
        assert switch.__doc__, name
    with quiet():
        assert not run_one(2).rule
