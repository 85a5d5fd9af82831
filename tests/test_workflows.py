"""The workflows and hooks of the repository: valid, and made of commands that exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def steps_of(path: Path) -> list[str]:
    """Return the commands that a workflow runs."""
    return re.findall(r"^ +- run: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflow_runs_make_targets_that_exist_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\t" not in text
    assert steps_of(path)
    for step in steps_of(path):
        make, target, *_ = step.split()
        assert (make, target in TARGETS) == ("make", True), f"{path.name}: {step}"


def test_nightly_workflow_runs_what_make_test_leaves_out() -> None:
    steps = steps_of(ROOT / ".github" / "workflows" / "nightly.yml")
    assert [step for step in steps if step.startswith("make soak seeds=")], "without seeds it would not end"
    assert "make chaos" in steps


def test_pre_commit_hooks_use_the_tools_of_the_environment() -> None:
    text = (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8")
    entries = re.findall(r"^ +entry: (.+)$", text, re.MULTILINE)
    assert entries
    assert all(entry.startswith(".venv/bin/python -m ") for entry in entries)
    assert re.findall(r"repo: (\S+)", text) == ["local"]
