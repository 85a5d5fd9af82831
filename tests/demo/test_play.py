"""The whole story on a small input: real processes, a real SIGKILL, and a reckoning that can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tandemq.demo import play, rows
from tandemq.demo.tale import Tale
from tandemq.run.children import ChildCluster

ROWS = 3_000


def small(path: Path) -> Path:
    lines = ["carrier,flight,delay", *(f"C{i % 7},{i},{'' if i % 11 == 0 else i % 50 - 5}" for i in range(ROWS))]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_story_on_a_small_file_holds(tmp_path: Path) -> None:
    words = ["demo", "--input", str(small(tmp_path / "small.csv")), "--value", "delay", "--key", "flight", "--json"]
    done = subprocess.run([sys.executable, "-m", "tandemq", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["acknowledged"], found["delivered"]) == (ROWS, ROWS, ROWS)
    assert (found["missing"], found["faults"], found["twins_differences"]) == (0, [], [])
    assert found["slave_was_read"]
    assert found["consumed_meanwhile"] > 0
    assert found["twins_bytes"] > 0
    assert len(found["tags"]) == 7
    assert all(row["equal"] for row in found["tags"].values())
    for line in ("SIGKILL to the master of broker-a", "reading goes on from its slave", "is back", "byte by byte"):
        assert line in done.stderr


def test_story_does_not_hold_if_a_twin_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows.from_file(small(tmp_path / "small.csv"), rows.Columns(value="delay"))
    original = ChildCluster.close

    def close_and_damage(cluster: ChildCluster) -> None:
        original(cluster)
        [path] = (cluster.broker("broker-b", 1).store / "commitlog").iterdir()
        with path.open("r+b") as file:
            file.seek(100)
            file.write(b"!")

    monkeypatch.setattr(ChildCluster, "close", close_and_damage)
    outcome = play.run(play.Stage(source, tmp_path / "data"), Tale(to_error=True))
    assert outcome.twins_differences == ["broker-b: commitlog/00000000000000000000 differs at byte 100"]
    assert any("twins" in fault for fault in outcome.faults)
    assert (tmp_path / "data" / "broker-a-0.log").is_file()


def test_input_that_cannot_be_read_is_told_with_exit_code_1(tmp_path: Path) -> None:
    words = ["demo", "--input", str(tmp_path / "none.csv")]
    done = subprocess.run([sys.executable, "-m", "tandemq", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.csv cannot be read" in done.stderr
