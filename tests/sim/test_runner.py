"""Many seeds on many processes: each of them is run, once, in order; and no more once nobody wants them."""

from contextlib import closing
from itertools import count

import pytest

from tandemq.sim.runner import run_many


@pytest.fixture(autouse=True)
def _small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tandemq.sim.runner.SEEDS_PER_TASK", 2)


def test_every_seed_is_run_also_where_one_task_ends_and_the_next_begins() -> None:
    seeds = range(1, 6)
    results = list(run_many(seeds, jobs=2))
    assert [result.seed for result in results] == list(seeds)
    assert not [result.text for result in results if result.rule]


def test_seeds_without_end_end_when_nobody_wants_more() -> None:
    with closing(run_many(count(1), jobs=2)) as results:
        assert next(results).seed == 1
