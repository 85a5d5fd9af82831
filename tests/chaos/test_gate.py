"""The release gate: pieces, what is read from its parts, the page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from chaos.gate import __main__ as gate
from chaos.gate.page import PAGE, README, SECTION, page_of, write_pages
from chaos.gate.parts import PARTS, SEED_BEGIN, Part, read_clients, read_runs, read_seeds, read_steady, read_tests
from chaos.gate.pieces import Piece, Violation, append_piece, read_pieces

DONE = subprocess.CompletedProcess(["python"], 0, "", "")


def piece(part: str = "simulation", first: int = 7) -> Piece:
    return Piece(part, "2026-01-02T03:04:05+00:00", "abc1234", 10.0, first)


def seed(number: int, *, rule: str = "", requests: tuple[str, ...] = ()) -> str:
    return json.dumps(
        {"seed": number, "rule": rule, "text": "why", "faults": {"kill": 2}, "requests": dict.fromkeys(requests, 3)}
    )


def test_seeds_are_counted_by_fault_with_the_features_in_use(tmp_path: Path) -> None:
    lines = [seed(7, requests=("POP_MESSAGE", "END_TRANSACTION")), seed(8, rule="I1", requests=("POP_MESSAGE",))]
    (tmp_path / "seeds.jsonl").write_text("\n".join(lines))
    found = piece()
    read_seeds(found, tmp_path, DONE)
    count = found.faults["kill"]
    assert (found.runs, count.runs, count.times, count.violations) == (2, 2, 4, 1)
    assert count.features == {"POP": 2, "transactions": 1}
    assert found.violations == [Violation("python -m lab.sim --seed 8", "I1 why")]


def test_runs_with_real_processes_are_counted(tmp_path: Path) -> None:
    faults = [{"fault": "kill", "broker": 0}, {"fault": "kill", "broker": 1}, {"fault": "eio", "broker": 0}]
    report = {"seed": 7, "faults": faults, "violations": ["I1: lost", "I8: differ"], "acknowledged": 40, "static": {}}
    (tmp_path / "7.json").write_text(json.dumps(report))
    found = piece("processes")
    read_runs(found, tmp_path, DONE)
    assert {name: (count.runs, count.times) for name, count in found.faults.items()} == {"kill": (1, 2), "eio": (1, 1)}
    assert "static topics" in found.faults["kill"].features
    assert found.violations == [Violation("python -m chaos.run --runs 1 --seed 7 --at-once 2", "I1: lost")]
    assert found.figures == {"SEND_OK": 40}


def test_client_run_without_a_report_is_a_violation(tmp_path: Path) -> None:
    found = piece("clients")
    read_clients(found, tmp_path, subprocess.CompletedProcess(["python"], 2, "", "no Maven"))
    assert found.runs == 1
    assert "no Maven" in found.violations[0].text


@pytest.mark.parametrize(
    ("output", "code", "violations"),
    [
        ("3 passed in 2 s", 0, 0),
        ("FAILED tests/judge/test_x.py::test_y - assert 1\n1 failed, 2 passed", 1, 1),
        ("port 10911 error\nFAILED tests/judge/test_x.py::test_y[a b] - assert 1\n1 failed, 2 passed", 1, 1),
        ("killed", 137, 1),
    ],
)
def test_tests_are_counted_and_a_failed_command_is_a_violation(
    tmp_path: Path, output: str, code: int, violations: int
) -> None:
    found = piece("planted")
    read_tests(found, tmp_path, subprocess.CompletedProcess(["python"], code, output, ""))
    assert (found.runs, len(found.violations)) == (3 if "passed" in output else 0, violations)


def test_failover_without_a_kill_is_a_violation(tmp_path: Path) -> None:
    groups = [{"session_ms": 500, "failovers": 1, "failed": 0, "stored": 9, "gap": 0.756}]
    found = piece("steady")
    read_steady(found, tmp_path, subprocess.CompletedProcess(["python"], 1, json.dumps(groups), ""))
    assert found.figures == {"failovers, session of 500 ms": 1, "longest gap, session of 500 ms": 0.76}
    assert len(found.violations) == 1


def part(name: str, share: float, code: int = 0) -> Part:
    """Return a part whose command prints, and exits."""

    def read(found: Piece, _directory: Path, done: subprocess.CompletedProcess[str]) -> None:
        found.add_run({"kill": 1}, ["POP"], is_bad=bool(done.returncode))
        if done.returncode:
            found.violations.append(Violation("python -m x", done.stdout))

    words = [sys.executable, "-c", f"print('lost'); raise SystemExit({code})"]
    return Part(name, name, share, lambda *_: words, read, step=1)


@pytest.mark.system
def test_gate_runs_each_part_and_goes_on_with_the_next_seeds(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    for _ in range(2):
        gate.run_gate([part("planted", 0), part("simulation", 1)], 0, results, Console(quiet=True))
    found = read_pieces(results)
    assert [one.part for one in found].count("planted") == 2
    simulated = [one.first for one in found if one.part == "simulation"]
    assert simulated == [SEED_BEGIN, SEED_BEGIN + 1]


@pytest.mark.system
def test_violation_is_open_until_it_has_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results.jsonl"
    gate.run_gate([part("planted", 0, code=3)], 0, results, Console(quiet=True))
    (tmp_path / "docs/internals").mkdir(parents=True)
    (tmp_path / README).write_text(f"# X\n\n{SECTION}\nold\n\n## Y\n\nmore\n")
    monkeypatch.setattr(gate, "ROOT", tmp_path)
    words = ["--results", str(results)]
    assert gate.main([*words, "report"]) == gate.EXIT_VIOLATION
    assert "**open**" in (tmp_path / PAGE).read_text()
    assert gate.main([*words, "note", "python -m x", "mended"]) == 0
    assert gate.main([*words, "report"]) == 0
    page, readme = (tmp_path / PAGE).read_text(), (tmp_path / README).read_text()
    assert "| mended |" in page
    assert "old" not in readme and readme.endswith("|\n\n## Y\n\nmore\n") and "1, 1 explained" in readme
    with pytest.raises(SystemExit):
        gate.main([*words, "note", "python -m y", "mended"])


def test_page_adds_up_pieces_by_fault_and_kind_of_cluster(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    for name in ("simulation", "simulation", "processes"):
        one = piece(name)
        one.add_run({"kill": 3}, ["POP"], is_bad=False)
        append_piece(results, one)
    page = page_of(read_pieces(results))
    assert "| kill | real | 1 | 3 | POP 1 | 0 |" in page
    assert "| kill | simulated | 2 | 6 | POP 2 | 0 |" in page
    assert "None." in page


def test_readme_without_the_section_is_refused(tmp_path: Path) -> None:
    (tmp_path / "docs/internals").mkdir(parents=True)
    (tmp_path / README).write_text("# X\n")
    with pytest.raises(ValueError, match="lacks the section"):
        write_pages([piece()], tmp_path)


def test_parts_have_names_of_their_own_and_shares_of_one_night() -> None:
    assert len({one.name for one in PARTS}) == len(PARTS)
    assert sum(one.share for one in PARTS) == pytest.approx(1)
