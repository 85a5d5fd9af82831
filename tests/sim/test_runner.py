"""Many seeds on many processes: each runs once, in order, and none after the results are closed."""

from contextlib import closing
from itertools import count

import pytest

from lab.sim.runner import run_many

pytestmark = pytest.mark.system


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lab.sim.runner.SEEDS_PER_TASK", 2)


def test_every_seed_runs_once_across_task_boundaries() -> None:
    seeds = range(1, 6)
    results = list(run_many(seeds, jobs=2))
    assert [result.seed for result in results] == list(seeds)
    assert not [result.text for result in results if result.rule]


def test_endless_seeds_stop_when_results_are_closed() -> None:
    with closing(run_many(count(1), jobs=2)) as results:
        assert next(results).seed == 1
