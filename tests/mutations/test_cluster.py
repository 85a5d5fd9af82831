"""Each mutation of brokers with fixed roles is noticed by a rule that it names."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import lab.sim
from lab.sim.runner import run_one
from lab.sim.simulation import quiet
from tests.mutations.access import ACCESS_MUTATIONS, ACCESS_SEEDS, LIMIT_MUTATIONS, LIMIT_SEEDS, SEEDS_OF_LIMITS
from tests.mutations.cluster import MUTATIONS
from tests.mutations.groups import GROUP_MUTATIONS
from tests.mutations.patch import Mutation
from tests.mutations.pops import POP_MUTATIONS, POP_SEEDS
from tests.mutations.static_topics import STATIC_TOPIC_MUTATIONS, STATIC_TOPIC_SEEDS
from tests.mutations.test_groups import RARE as RARE_OF_GROUPS
from tests.mutations.transactions import TRANSACTION_MUTATIONS, TRANSACTION_SEEDS
from tests.samples import slow

SEEDS_MAX = 60
pytestmark = pytest.mark.timeout(1_800)  # so many seeds, on a slow and busy machine
FIRST = {
    "failed-write-is-acked": 14,
    "queues-not-cut": 3,
    "deletion-not-followed": 36,
    "tail-cut": 3,
    "client-sends-to-one-broker": 11,
    "client-drops-rejected": 6,
    "damage-stays": 18,
    "repair-unverified": 37,
    "copies-never-compared": 8,
    "decision-forgotten": 27,
    "recalls-ignored": 18,
    "recalls-lost": 24,
    "timers-early": 18,
    "timers-again": 24,
    "timers-forgotten": 29,
    "offsets-go-back": 2,
    "order-reversed": 2,
    "stored-twice": 2,
    "pops-forgotten": 144,
    "pops-never-return": 9,
    "pops-return-twice": 144,
    "commit-never-confirmed": 107,
    "filters-let-pass": 11,
    "filters-drop-unknown": 11,
    "replies-get-lost": 3,
    "client-mixes-up-replies": 3,
    "segments-have-no-end": 8,
    "late-messages-taken": 8,
    "mapping-not-saved": 37,
    "older-segments-skipped": 10,
    "older-offsets-not-found": 10,
    "delay-twice": 3,
    "restart-forgets-transactions": 38,
    "restart-reopens-transactions": 8,
    "deny-after-allow": 85,
    "waiting-batch-is-one": 87,
}
"""First seed to run, for mutations that need a rare fault, or that pops of seed 1 would show first."""
RARE = {
    "flush-covers-later-writes",
    "failed-write-is-acked",
    "no-checksums",
    "queues-not-cut",
    "refused-and-stored",
    "slave-never-returns",
    "client-denies-the-unknown",
    "client-commits-ahead",
    "client-drops-rejected",
    "client-skips-messages",
    "client-waits-for-its-master",
    "commit-never-confirmed",
}
"""Mutations that need several seeds or long ones: they run in `make soak`."""
OF_GROUPS = {"I6", "I19"}
"""Rules that apply to groups with a registry only."""


@pytest.mark.parametrize("name", [slow(name) if name in RARE else name for name in MUTATIONS])
def test_mutation_is_caught(name: str) -> None:
    patch, rules = MUTATIONS[name]
    with quiet(), patch():
        first = FIRST.get(name, 1)
        seeds: Sequence[int] = range(1, SEEDS_MAX + 1)
        if name in TRANSACTION_MUTATIONS:
            seeds = TRANSACTION_SEEDS
        if name in POP_MUTATIONS:
            seeds = POP_SEEDS
        if name in STATIC_TOPIC_MUTATIONS:
            seeds = STATIC_TOPIC_SEEDS
        if name in ACCESS_MUTATIONS:
            seeds = ACCESS_SEEDS
        if name in LIMIT_MUTATIONS:
            seeds = SEEDS_OF_LIMITS.get(name, LIMIT_SEEDS)
        for seed in sorted(seeds, key=lambda seed: (seed < first, seed)):
            result = run_one(seed)
            if result.rule:
                assert result.rule in rules, f"seed {seed}: {result.rule} {result.text}"
                assert "TypeError" not in result.text, f"the mutation itself is broken: {result.text}"
                assert "ValueError" not in result.text, f"the mutation itself is broken: {result.text}"
                return
    pytest.fail(f"{name}: not caught within {SEEDS_MAX} seeds")


def test_every_rule_alone_notices_some_mutation() -> None:
    """Every rule is the only one that may notice some mutation: with several rules only the first to fail is proven."""
    sources = [path.read_text(encoding="utf-8") for path in Path(lab.sim.__file__).parent.rglob("*.py")]
    raised = {rule for text in sources for rule in re.findall(r'Violation\(\s*"(\w+)"', text)}
    assert len(raised) > 15
    assert alone(MUTATIONS) == raised - OF_GROUPS
    assert alone(MUTATIONS | GROUP_MUTATIONS) == raised
    frequent = (MUTATIONS | GROUP_MUTATIONS).items()
    assert alone({name: mutation for name, mutation in frequent if name not in RARE | RARE_OF_GROUPS}) == raised


def alone(mutations: Mapping[str, Mutation]) -> set[str]:
    return {rule for mutation in mutations.values() for rule in mutation.rules if len(mutation.rules) == 1}


def test_mutations_end_with_their_context() -> None:
    for name, mutation in (MUTATIONS | GROUP_MUTATIONS).items():
        with mutation.patch():
            pass
        assert mutation.patch.__doc__, name
    with quiet():
        assert not run_one(2).rule
