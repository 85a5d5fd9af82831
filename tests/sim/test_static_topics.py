"""Seeds with a static topic move its queues, and use every request that is about logical queues."""

from tandemq.model.codes import RequestCode as Code
from tandemq.sim.runner import run_one
from tandemq.sim.simulation import Simulation, quiet
from tandemq.sim.world.plan import has_static_topic
from tests.spec import spec

SEED = 37


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
