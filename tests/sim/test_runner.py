"""Many seeds on many processes: each of them is run, once, in order."""

from tandemq.sim.runner import SEEDS_PER_TASK, run_many


def test_every_seed_is_run_also_where_one_task_ends_and_the_next_begins() -> None:
    seeds = range(1, SEEDS_PER_TASK * 2 + 2)
    results = list(run_many(seeds, jobs=2))
    assert [result.seed for result in results] == list(seeds)
    assert not [result.text for result in results if result.rule]
