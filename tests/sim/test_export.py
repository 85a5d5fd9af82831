"""The independent judge finds nothing in histories of healthy seeds, and what the simulation finds in mutated ones."""

import io
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from judge.__main__ import main as judge_main
from judge.verdict import Verdict, judge
from lab.sim.__main__ import main
from lab.sim.result import Result
from lab.sim.runner import run_one
from lab.sim.simulation import quiet
from tests.mutations.cluster import MUTATIONS
from tests.samples import first, slow


def _judged(seed: int, patch: Callable[[], AbstractContextManager[Any]] = nullcontext) -> tuple[Result, Verdict]:
    file = io.StringIO()
    with quiet(), patch():
        result = run_one(seed, file)
    return result, judge(file.getvalue().splitlines(keepends=True))


@pytest.mark.parametrize("seed", first(2, [11, 1_000_005, 18, 1_000_016, *range(19, 40), *range(1_000_017, 1_000_040)]))
def test_healthy_seed_has_no_anomaly(seed: int) -> None:
    result, verdict = _judged(seed)
    assert not result.rule, result.text
    assert not verdict.anomalies
    assert not verdict.not_judged
    assert verdict.operations["send ok"] > 50
    assert verdict.operations["read ok"]


@pytest.mark.parametrize(
    ("name", "seed", "rule", "found"),
    [
        ("tail-cut", 8, "I1", "vanished"),
        ("queue-offset-reused", 1, "I5", "diverging"),
        ("stored-twice", 2, "I3", "duplicate"),
        slow(("timers-forgotten", 29, "I12", "unseen")),
        slow(("delay-early", 1, "I12", "early")),
        slow(("recalls-ignored", 18, "I12", "recalled-read")),
        ("rollback-commits", 7, "I11", "aborted-read"),
        ("body-changed", 1, "I2", "corrupt"),
        ("pop-acks-lost", 1, "I25", "pop-again"),
    ],
)
def test_judge_finds_what_the_simulation_finds(name: str, seed: int, rule: str, found: str) -> None:
    result, verdict = _judged(seed, MUTATIONS[name].patch)
    assert result.rule == rule, result.text
    assert verdict.counts[found]


def test_command_writes_the_history_of_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "seed.jsonl"
    with quiet():
        done = CliRunner().invoke(main, ["--seed", "11", "--history", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert judge_main([str(path)]) == 0
    done = CliRunner().invoke(main, ["--history", str(path)])
    assert done.exit_code == 2
    assert "add --seed N" in done.output
