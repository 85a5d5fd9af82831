"""Seeds with access control and limits: requests are allowed and refused, limits are reached, both change."""

import pytest

from lab.sim.group_simulation import GroupSimulation
from lab.sim.simulation import Simulation, quiet
from lab.sim.world.plan import GROUP_SEEDS


@pytest.mark.parametrize("seed", [1085, GROUP_SEEDS + 1084])
def test_seed_reaches_rights_and_limits(seed: int) -> None:
    simulation = GroupSimulation(seed) if seed >= GROUP_SEEDS else Simulation(seed)
    with quiet():
        simulation.run()
    access, limits = simulation.final_checks.access, simulation.final_checks.limits
    assert access is not None
    assert limits is not None
    assert min(access.allowed, access.refused) >= 10
    assert access.changes >= 5
    assert min(limits.accepted, limits.refused, limits.popped, limits.delivered) >= 10
    assert limits.changes >= 2
