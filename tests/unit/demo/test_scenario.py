"""The whole demo on a small input: real processes, a real SIGKILL, and a result that can fail."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tandemq.demo
from tandemq.coordination.registry.records import Mode
from tandemq.demo import rows, scenario
from tandemq.demo.narration import Narration
from tandemq.errors import ConfigError
from tests.samples import slow

ROWS = 3_000
SPARK_SECONDS_MAX = 240
"""A JVM, Python workers, and a machine that may be busy."""


def small(path: Path) -> Path:
    lines = ["carrier,flight,delay", *(f"C{i % 7},{i},{'' if i % 11 == 0 else i % 50 - 5}" for i in range(ROWS))]
    path.write_text("\n".join(lines) + "\n")
    return path


def means_of(rows: int) -> dict[str, float]:
    """Return the means of `small`, computed independently."""
    found: dict[str, list[int]] = {}
    for i in range(rows):
        found.setdefault(f"C{i % 7}", []).extend([i % 50 - 5] if i % 11 else [])
    return {tag: sum(values) / len(values) for tag, values in found.items()}


@pytest.mark.timeout(SPARK_SECONDS_MAX)
@pytest.mark.slow
def test_demo_on_a_small_file_has_no_faults(tmp_path: Path) -> None:
    words = ["demo", "--input", str(small(tmp_path / "small.csv")), "--value", "delay", "--key", "flight", "--json"]
    done = subprocess.run([sys.executable, "-m", "tandemq", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["sent"], found["acknowledged"], found["delivered"]) == (ROWS, ROWS, ROWS)
    assert (found["missing"], found["faults"], found["replica_differences"]) == (0, [], [])
    assert found["slave_was_read"]
    assert found["consumed_meanwhile"] > 0
    assert found["replica_bytes"] > 0
    assert len(found["tags"]) == 7
    assert all(row["equal"] and row["gold_equal"] for row in found["tags"].values())
    assert {tag: row["gold_mean"] for tag, row in found["tags"].items()} == means_of(ROWS)
    pipeline = found["pipeline"]
    assert pipeline["rows"] >= ROWS
    assert pipeline["audited_bytes"] == pipeline["log_bytes"] > 0
    assert set(pipeline["divergences"]) == {"broker-a", "broker-b"}
    assert not any(count for counts in pipeline["divergences"].values() for count in counts.values())
    for line in (
        "SIGKILL to the master of broker-a",
        "reads continue from its slave",
        "is back",
        "byte by byte",
        "archived the logs of 2 masters",
        "audited the logs of masters and slaves",
        "the gold table's figures of 7 tags equal",
    ):
        assert line in done.stderr


@pytest.mark.parametrize("mode", [slow(Mode.STATIC), Mode.SLAVE_CONSUME, slow(Mode.ELECT)])
@pytest.mark.system
def test_demo_has_no_faults_in_each_mode_and_without_pipeline_needs_no_spark(tmp_path: Path, mode: Mode) -> None:
    source = rows.from_file(small(tmp_path / "small.csv"), rows.ColumnChoice(value="delay"))
    options = scenario.DemoOptions(source, tmp_path / "data", has_pipeline=False, mode=mode)
    outcome = scenario.run(options, Narration(to_error=True))
    assert (outcome.pipeline, outcome.faults, outcome.missing) == (None, [], 0)
    assert outcome.mode == mode.value
    assert outcome.seconds_without_delivery >= 0
    assert outcome.seconds_without_writes >= 0
    written = outcome.seconds_without_writes_of_killed_group
    assert (written is not None and written > 1) if mode is Mode.ELECT else written is None
    assert not (tmp_path / "data" / "lake").exists()


def test_demo_does_not_start_without_spark_for_its_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = rows.from_file(small(tmp_path / "small.csv"), rows.ColumnChoice(value="delay"))
    monkeypatch.delattr(tandemq.demo, "pipeline", raising=False)
    monkeypatch.setitem(sys.modules, "tandemq.demo.pipeline", None)
    with pytest.raises(ConfigError, match=r"Spark is not installed.*--no-pipeline"):
        scenario.run(scenario.DemoOptions(source, tmp_path / "data"), Narration(to_error=True))
    assert not (tmp_path / "data").exists()


@pytest.mark.system
def test_unreadable_input_is_an_error_with_exit_code_1(tmp_path: Path) -> None:
    words = ["demo", "--input", str(tmp_path / "none.csv")]
    done = subprocess.run([sys.executable, "-m", "tandemq", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "none.csv cannot be read" in done.stderr
