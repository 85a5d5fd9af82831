"""The independent judge finds nothing in histories of healthy seeds, and what the simulation finds in mutated ones."""

import io
import json
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

SENT = "send", "ok"


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
        ("pop-acks-lost", 9, "I25", "pop-again"),
    ],
)
def test_judge_finds_what_the_simulation_finds(name: str, seed: int, rule: str, found: str) -> None:
    result, verdict = _judged(seed, MUTATIONS[name].patch)
    assert result.rule == rule, result.text
    assert verdict.counts[found]


def _lines(seed: int) -> list[dict[str, Any]]:
    """Return the history of a seed, with its header."""
    file = io.StringIO()
    with quiet():
        run_one(seed, file)
    return [json.loads(line) for line in file.getvalue().splitlines()]


def _verdict(lines: list[dict[str, Any]]) -> Verdict:
    return judge(json.dumps(line) + "\n" for line in lines)


def test_decisions_of_transactions_have_the_times_at_which_they_were_made() -> None:
    lines = _lines(7)
    sends = {(line["p"], line["op"]): line["id"] for line in lines[1:] if line["f"] == "send" and "id" in line}
    stored = {sends[line["p"], line["op"]]: line["t"] for line in lines[1:] if (line["f"], line["type"]) == SENT}
    decided = {line["id"]: line["t"] for line in lines[1:] if line["f"] == "end"}
    later = [decided[name] - at for name, at in stored.items() if name in decided]
    assert len(later) > 50
    assert min(later) >= 0
    assert max(later) > 1_000

    index = next(index for index, line in enumerate(lines[1:], 1) if line["f"] == "end" and line["outcome"] == "commit")
    place = {"group": "early", "q": "Early/broker-a/0", "messages": [[0, lines[index]["id"]]], "unordered": True}
    poll = {"t": lines[index]["t"], "p": "early", "f": "poll", "type": "ok", **place}
    assert "half-read" in _verdict([*lines[:index], poll, *lines[index:]]).counts


def test_committed_offset_that_goes_back_is_found() -> None:
    lines = _lines(1_000_003)
    assert lines[0]["promises"]["offsets"] == "monotonic"
    commits = [line for line in lines[1:] if (line["f"], line["type"]) == ("commit", "invoke")]
    reports = [line for line in lines[1:] if (line["f"], line["type"]) == ("offset", "ok")]
    assert len(commits) > 50
    assert len(reports) > 5

    place = {"p": "watch", "f": "offset", "group": commits[-1]["group"], "q": commits[-1]["q"]}
    ends = [(1, commits[-1]["offset"]), (2, commits[-1]["offset"] - 1)]
    more = [
        {"t": lines[-1]["t"], "op": op, "type": type_, **place, **({"offset": offset} if type_ == "ok" else {})}
        for op, offset in ends
        for type_ in ("invoke", "ok")
    ]
    assert _verdict([*lines[:-1], *more, lines[-1]]).counts == {"offset-back": 1}


def test_command_writes_the_history_of_a_seed(tmp_path: Path) -> None:
    path = tmp_path / "seed.jsonl"
    with quiet():
        done = CliRunner().invoke(main, ["--seed", "11", "--history", str(path), "--json"])
    assert done.exit_code == 0, done.output
    assert judge_main([str(path)]) == 0
    done = CliRunner().invoke(main, ["--history", str(path)])
    assert done.exit_code == 2
    assert "add --seed N" in done.output
