"""`tandemq demo`: exit codes. The demo itself is tested in tests/unit/demo."""

import json
from pathlib import Path

import pytest

from tandemq.demo import scenario
from tandemq.demo.narration import Narration
from tests.unit.cli.conftest import Run


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["1 acknowledged messages are missing"], 3)])
def test_exit_code_is_3_if_a_check_failed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[str], code: int
) -> None:
    def end_at_once(options: scenario.DemoOptions, narration: Narration) -> scenario.DemoResult:
        return scenario.DemoResult(options.mode.value, faults=faults)

    monkeypatch.setattr(scenario, "run", end_at_once)
    (tmp_path / "rows.csv").write_text("tag,delay\nT,1\n")
    printed = run("demo", "--input", tmp_path / "rows.csv", "--json", code=code)
    assert json.loads(printed.stdout)["faults"] == faults
