"""tools/tested.py: the page of tests has the numbers and versions of this commit."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec import ROOT
from tools import tested


def test_all_targets_that_run_tests_are_on_the_page() -> None:
    targets: set[str] = set()
    name = ""
    for line in tested.makefile().splitlines():
        head = re.match(r"([a-z-]+):", line)
        name = head[1] if head is not None else name
        if "$(PYTEST)" in line and line.startswith("\t"):
            targets.add(name)
    kinds = {kind.target for kind in tested.KINDS}
    assert targets - {"screenshots"} == {kind.target for kind in tested.KINDS if kind.below}
    assert kinds <= set(re.findall(r"^([a-z-]+):", tested.makefile(), re.MULTILINE))


def test_each_test_function_is_of_some_kind() -> None:
    known = {test[:2] for kind in tested.KINDS for test in tested.tests_of(kind)}
    assert (
        not {test[:2] for test in tested.all_tests()}
        - known
        - {test[:2] for test in tested.all_tests() if test.path.count("/") == 1}
    )


@pytest.mark.parametrize("place", ["tests/unit/cli", "tests/unit/console", "tests/mutations"])
def test_numbers_are_those_of_pytest(place: str) -> None:
    words = ["--collect-only", "--quiet", place, "-m", "not slow and not system and not services"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, capture_output=True, text=True, check=True
    )
    found = {line.partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
    counted = [test for test in tested.all_tests() if test.path.startswith(f"{place}/") and not test.markers]
    assert len(found) == len(counted) > 0


def test_table_of_versions_has_those_of_the_tests() -> None:
    compatibility = (ROOT / "docs" / "reference" / "compatibility.md").read_text(encoding="utf-8")
    rows: dict[str, str] = dict(re.findall(r"^\| ([^|]+?) \| ([^|]+?) \|", compatibility, re.MULTILINE))
    for peer, versions in tested.peers().items():
        named = rows[peer.partition(",")[0] if peer.startswith(("gRPC", "Kafka")) else peer]
        assert all(version in named for version in versions), f"{peer}: {versions}, the page has {named}"


def test_outcomes_of_runs_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "tested.json"
    record.write_text('{"sim": {"passed": 300, "failed": 0, "seconds": 9, "date": "2026-01-01"}}')
    outcome = {"passed": 1_234, "failed": 1, "seconds": 60, "date": "2026-01-02"}
    (tmp_path / "test.json").write_text(json.dumps(outcome))
    (tmp_path / "other.json").write_text("{}")
    monkeypatch.setattr(tested, "RECORD", record)
    monkeypatch.setattr(tested, "OUTCOMES", tmp_path)
    assert tested.main(["--record"]) == 0
    assert tested.record()["test"] == outcome
    capsys.readouterr()
    assert tested.main([]) == 0
    shown = capsys.readouterr().out
    assert "1,234 passed, 1 failed in 60 s, 2026-01-02" in shown
    assert "300 passed in 9 s, 2026-01-01" in shown
