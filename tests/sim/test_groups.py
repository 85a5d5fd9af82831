"""Simulated seeds of groups with a registry."""

import pytest

from lab.sim.group_simulation import APPLICATIONS_GROUP, GroupSimulation
from lab.sim.simulation import quiet, run_seed
from lab.sim.world.plan import GROUP_SEEDS
from tandemq.nameserver import NameServer
from tandemq.registry import NAME_SERVER
from tests.samples import first

WITH_APPLICATIONS = GROUP_SEEDS + 11
WITH_SECRET = GROUP_SEEDS + 3
SEEDS = range(GROUP_SEEDS + 1, GROUP_SEEDS + 21)


@pytest.mark.parametrize("seed", first(4, SEEDS))
def test_seed_violates_nothing(seed: int) -> None:
    with quiet():
        result = run_seed(seed)
    assert not result.rule, f"{result.rule} {result.text}; python -m lab.sim --seed {seed}"
    assert result.sends
    assert result.given


@pytest.mark.parametrize("seed", first(1, [WITH_APPLICATIONS, GROUP_SEEDS + 2]))
def test_seed_repeats_its_history(seed: int) -> None:
    with quiet():
        first, again = run_seed(seed), run_seed(seed)
    assert first.digest == again.digest


def test_some_seeds_have_real_clients() -> None:
    simulation = GroupSimulation(WITH_APPLICATIONS)
    with quiet():
        simulation.run()
    assert simulation.applications
    assert simulation.expected.delivered_keys[APPLICATIONS_GROUP]


def test_some_seeds_have_a_secret_for_authentication_at_the_registry_of_a_name_server() -> None:
    simulation = GroupSimulation(WITH_SECRET)
    assert simulation.plan.secret
    assert simulation.plan.registry == NAME_SERVER
    with quiet():
        simulation.run()
    node = simulation.cluster.name_servers[simulation.plan.name_servers[0]].node
    assert isinstance(node, NameServer)
    assert node.registry is not None
    assert node.registry._proven
