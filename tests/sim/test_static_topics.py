"""Seeds with a static topic move its queues, and use every request that is about logical queues."""

from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.sim.group_simulation import GroupSimulation
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import GROUP_SEEDS, Simulation, quiet
from tandemq.sim.world.groups import mode_of
from tandemq.sim.world.plan import has_static_topic
from tests.spec import spec

SEED = 37
OF_STATIC_GROUPS = GROUP_SEEDS + 93


@spec("L02", "L04")
def test_seed_with_a_static_topic_moves_queues_and_violates_nothing() -> None:
    assert has_static_topic(SEED)
    with quiet():
        result = run_one(SEED)
    assert not result.rule, result.text
    for code in (Code.UPDATE_AND_CREATE_STATIC_TOPIC, Code.GET_TOPIC_CONFIG, Code.GET_TOPIC_STATS_INFO):
        assert result.requests[code] >= 3, code


def test_seed_without_a_static_topic_has_no_clients_of_one() -> None:
    assert not has_static_topic(1)
    simulation = Simulation(1)
    assert simulation.moving is None
    assert simulation.checks.logical is None


@spec("L02", "L04")
def test_seed_of_a_group_with_a_registry_and_fixed_roles_moves_queues_and_violates_nothing() -> None:
    simulation = GroupSimulation(OF_STATIC_GROUPS)
    assert {mode_of(group) for group in simulation.plan.groups} == {Mode.STATIC}
    assert simulation.moving is not None
    with quiet():
        result = run_one(OF_STATIC_GROUPS)
    assert not result.rule, result.text
    assert result.requests[Code.UPDATE_AND_CREATE_STATIC_TOPIC] >= 3
