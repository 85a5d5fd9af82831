"""`tandemq demo`: what it exits with. The story itself is tested in tests/demo."""

import json
from pathlib import Path

import pytest

from tandemq.demo import play
from tandemq.demo.tale import Tale
from tests.cli.conftest import Run


@pytest.mark.parametrize(("faults", "code"), [([], 0), (["1 acknowledged messages are missing"], 3)])
def test_exit_code_tells_whether_all_held(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faults: list[str], code: int
) -> None:
    def end_at_once(stage: play.Stage, tale: Tale) -> play.Reckoning:
        return play.Reckoning(stage.mode.value, faults=faults)

    monkeypatch.setattr(play, "run", end_at_once)
    (tmp_path / "rows.csv").write_text("tag,delay\nT,1\n")
    told = run("demo", "--input", tmp_path / "rows.csv", "--json", code=code)
    assert json.loads(told.stdout)["faults"] == faults
