"""Each mutation of groups with a registry is noticed by a rule that it names."""

from collections.abc import Sequence

import pytest

from lab.sim.runner import run_one
from lab.sim.simulation import quiet
from lab.sim.world.plan import GROUP_SEEDS
from tests.mutations.access import (
    ACCESS_GROUP_MUTATIONS,
    ACCESS_GROUP_SEEDS,
    LIMIT_GROUP_MUTATIONS,
    LIMIT_GROUP_SEEDS,
)
from tests.mutations.groups import GROUP_MUTATIONS
from tests.mutations.transactions import TRANSACTION_GROUP_MUTATIONS, TRANSACTION_SEEDS
from tests.samples import slow

FIRST = {
    "damage-not-awaited": 5_000_159,
    "epoch-not-begun": 55,
    "new-master-reopens-transactions": 28,  # in seeds before it pops notice it first
    "new-master-forgets-transactions": 8,
    "mapping-confirmed-without-slaves": 8,
    "master-not-looked-for": 67,
    "older-record-taken": 21,
    "tail-not-cut": 55,
    "promise-always": 36,
    "unsafe-is-shown": 2,
    "unsafe-entries-are-shown": 3,
    "ack-alone": 3,
    "ack-when-copies-leave": 49,
    "sent-counts-as-copied": 15,
    "slave-reports-unsynced": 10,
    "hand-over-not-merged": 29,
    "offsets-replaced": 4,
    "refused-pulls-served": 22,
    "refused-commits-served": 31,
    "held-pulls-kept": 4,
    "loss-forgotten": 123,
    "waiting-is-stored": 187,
    "lease-for-ever": 4,
    "never-gives-back": 4,
    "permission-not-looked-up": 5,
    "taken-out-serves": 474,
    "taken-out-stays-in-sync": 49,
    "anybody-is-elected": 45,
    "taken-out-counts": 70,
    "switch-goes-on": 640,
    "too-few-are-enough": 5,
    "refusal-never-forgotten": 26,
    "copies-not-merged": 139,
    "last-slave-leaves": 9,
    "stale-slave-reads": 82,
    "stale-slave-helps": 27,
    "configured-master-waits": 42,
    "slave-consume-does-not-wait": 4,
}
"""First seed to run, so that the test is quick."""
RARE = {
    "epoch-not-begun",
    "tail-not-cut",
    "promise-always",
    "ack-when-copies-leave",
    "slave-reports-unsynced",
    "hand-over-not-merged",
    "never-gives-back",
    "refusal-never-forgotten",
    "master-not-looked-for",
}
"""Mutations that need several seeds or long ones: they run in `make soak`."""
pytestmark = pytest.mark.timeout(1_800)  # 60 seeds, on a slow and busy machine


@pytest.mark.parametrize("name", [slow(name) if name in RARE else name for name in GROUP_MUTATIONS])
def test_mutation_is_caught(name: str) -> None:
    patch, rules = GROUP_MUTATIONS[name]
    first = FIRST.get(name, 1)
    with quiet(), patch():
        seeds: Sequence[int] = range(first, first + 60)
        if name in TRANSACTION_GROUP_MUTATIONS:
            seeds = [seed for seed in TRANSACTION_SEEDS if seed >= first]
        if name in ACCESS_GROUP_MUTATIONS:
            seeds = [seed for seed in ACCESS_GROUP_SEEDS if seed >= first]
        if name in LIMIT_GROUP_MUTATIONS:
            seeds = [seed for seed in LIMIT_GROUP_SEEDS if seed >= first]
        for seed in seeds:
            result = run_one(GROUP_SEEDS + seed)
            if result.rule:
                assert result.rule in rules, f"seed {seed}: {result.rule} {result.text}"
                assert "TypeError" not in result.text, f"the mutation itself is broken: {result.text}"
                return
    pytest.fail(f"{name}: not caught within 60 seeds")
