"""Groups with a registry, simulated: seeds for every commit, and safeties switched off that must be noticed."""

import pytest

from tandemq.nameserver import NameServer
from tandemq.registry import NAME_SERVER
from tandemq.sim.group_simulation import APPLICATIONS_GROUP, GroupSimulation
from tandemq.sim.mutations.groups import GROUP_MUTATIONS
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import GROUP_SEEDS, quiet, run_seed

WITH_APPLICATIONS = GROUP_SEEDS + 11
WITH_SECRET = GROUP_SEEDS + 3
SEEDS = range(GROUP_SEEDS + 1, GROUP_SEEDS + 21)


@pytest.mark.parametrize("seed", SEEDS)
def test_seed_violates_nothing(seed: int) -> None:
    with quiet():
        result = run_seed(seed)
    assert not result.rule, f"{result.rule} {result.text}; tandemq sim --seed {seed}"
    assert result.sends
    assert result.given


@pytest.mark.parametrize("seed", [GROUP_SEEDS + 2, WITH_APPLICATIONS])
def test_seed_gives_the_same_history_again(seed: int) -> None:
    with quiet():
        first, again = run_seed(seed), run_seed(seed)
    assert first.digest == again.digest


def test_some_seeds_have_real_clients() -> None:
    simulation = GroupSimulation(WITH_APPLICATIONS)
    with quiet():
        simulation.run()
    assert simulation.applications
    assert simulation.shadow.given_keys[APPLICATIONS_GROUP]


def test_some_seeds_have_a_secret_that_brokers_prove_to_the_registry_of_a_name_server() -> None:
    simulation = GroupSimulation(WITH_SECRET)
    assert simulation.plan.secret
    assert simulation.plan.registry == NAME_SERVER
    with quiet():
        simulation.run()
    node = simulation.cluster.name_servers[simulation.plan.name_servers[0]].node
    assert isinstance(node, NameServer)
    assert node.registry is not None
    assert node.registry._proven


FIRST = {
    "epoch-not-begun": 55,
    "tail-not-cut": 55,
    "promise-always": 36,
    "unsafe-is-shown": 2,
    "ack-alone": 3,
    "ack-when-copies-leave": 49,
    "sent-counts-as-copied": 15,
    "slave-reports-unsynced": 10,
    "hand-over-not-merged": 29,
    "offsets-replaced": 4,
    "refused-pulls-served": 22,
    "refused-commits-served": 21,
    "held-pulls-kept": 2,
    "loss-forgotten": 113,
    "waiting-is-stored": 1025,
    "lease-for-ever": 4,
    "never-gives-back": 4,
    "permission-not-looked-up": 5,
    "taken-out-serves": 47,
    "taken-out-stays-in-sync": 49,
    "anybody-is-elected": 24,
    "taken-out-counts": 41,
    "switch-goes-on": 26,
    "too-few-are-enough": 2,
    "refusal-never-forgotten": 26,
    "master-not-looked-for": 17,
}
"""The seed to begin with, so that the test is quick."""


@pytest.mark.parametrize("name", GROUP_MUTATIONS)
def test_mutation_is_caught(name: str) -> None:
    _, rules = GROUP_MUTATIONS[name]
    first = FIRST.get(name, 1)
    with quiet():
        for seed in range(first, first + 60):
            result = run_one(GROUP_SEEDS + seed, name)
            if result.rule:
                assert result.rule in rules, f"seed {seed}: {result.rule} {result.text}"
                assert "TypeError" not in result.text, f"the mutation itself is broken: {result.text}"
                return
    pytest.fail(f"{name}: not caught within 60 seeds")
