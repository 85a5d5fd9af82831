"""A safety switched off is noticed: the checkers are shown to complain before their silence is believed."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import tandemq.sim
from tandemq.sim.mutations.cluster import MUTATIONS
from tandemq.sim.mutations.groups import GROUP_MUTATIONS
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import quiet

SEEDS_MAX = 30
FIRST = {
    "failed-write-is-acked": 14,
    "queues-not-cut": 3,
    "client-sends-to-one-broker": 11,
    "client-drops-rejected": 6,
    "damage-stays": 30,
    "repair-unverified": 30,
    "copies-never-compared": 5,
}
"""Where a mutation needs a rare fault: the seed to begin with, so that the test is quick."""
OF_GROUPS = {"I6", "I19"}
"""Rules of groups with a registry."""


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


def test_every_rule_alone_notices_some_mutation() -> None:
    """A mutation that may be noticed by several rules proves only the one that speaks first."""
    sources = [path.read_text(encoding="utf-8") for path in Path(tandemq.sim.__file__).parent.rglob("*.py")]
    raised = {rule for text in sources for rule in re.findall(r'Violation\(\s*"(\w+)"', text)}
    assert len(raised) > 15
    assert alone(MUTATIONS) == raised - OF_GROUPS
    assert alone(MUTATIONS | GROUP_MUTATIONS) == raised


def alone(mutations: Mapping[str, tuple[object, frozenset[str]]]) -> set[str]:
    return {rule for _, rules in mutations.values() for rule in rules if len(rules) == 1}


def test_mutations_end_with_their_context() -> None:
    for name, (switch, _) in MUTATIONS.items():
        with switch():
            pass
        assert switch.__doc__, name
    with quiet():
        assert not run_one(2).rule
