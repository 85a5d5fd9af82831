"""Members under random faults, thousands of schedules a minute; each disabled safety check must be detected."""

import pytest

from tests.mutations.coordination import MUTATIONS, Mutation
from tests.samples import first
from tests.spec import spec
from tests.unit.coordination.faults import Schedule
from tests.unit.coordination.world import Violation

SEEDS = 300
SEEDS_OF_A_MUTATION = 160


@spec("F09", "F15", "F16", "F18", "F24", "F25", "F33", "R11", "M07")
@pytest.mark.parametrize("first_seed", first(1, range(0, SEEDS, 50)))
def test_group_survives_random_faults(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 50):
        Schedule(seed).run()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_disabled_safety_check_is_detected(mutation: Mutation) -> None:
    with mutation.applied():
        for seed in range(mutation.first_seed, mutation.first_seed + SEEDS_OF_A_MUTATION):
            try:
                Schedule(seed).run()
            except (Violation, AssertionError):
                return
    pytest.fail(f"{mutation.name}: {SEEDS_OF_A_MUTATION} schedules saw nothing")
