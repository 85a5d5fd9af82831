"""The recipes of docs/guides/pipeline-schedulers.md, each with its scheduler in an environment of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest

from tandemq.spark.lake.delta import DeltaLake
from tests.interop.grpc_clients import installed
from tests.pages import Page
from tests.spark.installed import ROOT
from tests.spark.logs import LogWriter
from tests.spec import spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_400)]
RECORDS = 300
_PAGE = Page("docs/guides/pipeline-schedulers.md")
RUN_AIRFLOW = """
import json
from lake import lake

run = lake.test()
print(json.dumps({one.task_id: one.state for one in run.get_task_instances()}))
"""
RUN_DAGSTER = """
import json
from dagster import materialize
from lake import lake, sound

done = materialize([lake, sound])
(checked,) = done.get_asset_check_evaluations()
(made,) = done.asset_materializations_for_node("lake")
print(json.dumps({"success": done.success, "rows": made.metadata["rows"].value, "sound": checked.passed}))
"""
DBT = "from dbt.cli.main import cli; cli()"
READ_TOPICS = """
import json, sys
import duckdb

rows = duckdb.connect(sys.argv[1], read_only=True).execute("select topic, messages from topics order by topic")
print(json.dumps(rows.fetchall()))
"""


def environment(name: str) -> Path:
    """Return the Python of a scheduler's environment, in the versions of its lock file."""
    lock = ROOT / f"requirements-{name}.lock"
    install = ["{}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "--no-deps"]
    make = [sys.executable, "-m", "venv", "{}"]
    return installed(f"recipe-{name}", [lock], make, [*install, "-r", str(lock)]) / "bin" / "python"


def snippet(section: str, kind: str, directory: Path, store: Path | None = None) -> list[str]:
    """Return blocks of the page with the paths of a test."""
    values: dict[str, object] = {"/data/": f"{directory}/", "/opt/tandemq/bin/": f"{Path(sys.executable).parent}/"}
    if store is not None:
        values["/var/lib/tandemq/broker-a"] = store
    return [_PAGE.replaced(text, values) for text in _PAGE.blocks(section, kind)]


def run(*words: object, cwd: Path, **environ: str) -> str:
    """Run a command that must succeed; returns its output."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "AIRFLOW", "DAGSTER"))}
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=own | environ, capture_output=True, text=True, timeout=1_200, check=False
    )
    assert done.returncode == 0, f"{done.stdout[-4_000:]}\n{done.stderr[-4_000:]}"
    return done.stdout


def last_line(output: str) -> Any:
    """Return the last line of an output, which is JSON."""
    return json.loads(output.strip().splitlines()[-1])


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(RECORDS)
    return writer


def rows(lake: Path) -> int:
    """Return the number of rows of a lake."""
    return int(ds.dataset(DeltaLake(lake).data_files()).count_rows())


def test_airflow_archives_and_notices_damage(writer: LogWriter, tmp_path: Path) -> None:
    python, home = environment("airflow"), tmp_path / "airflow"
    dags = home / "dags"
    dags.mkdir(parents=True)
    (dags / "lake.py").write_text(snippet("Airflow", "python", tmp_path, writer.store)[0])
    environ = {"AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "false", "PYTHONPATH": str(ROOT / "src")}
    run(python, "-m", "airflow", "db", "migrate", cwd=dags, **environ)

    def states() -> Any:
        return last_line(run(python, "-c", RUN_AIRFLOW, cwd=dags, **environ))

    assert states() == {"archive": "success", "check": "success"}
    assert rows(tmp_path / "lake") == RECORDS
    writer.write_many(10)
    writer.flip(writer.made[7].log_offset + 90)
    assert states() == {"archive": "success", "check": "failed"}
    assert rows(tmp_path / "lake") == RECORDS + 10


def test_dagster_materializes_the_lake_and_notices_damage(writer: LogWriter, tmp_path: Path) -> None:
    python = environment("dagster")
    (tmp_path / "lake.py").write_text(snippet("Dagster", "python", tmp_path, writer.store)[0])
    environ = {"DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src"), "DAGSTER_DISABLE_TELEMETRY": "1"}

    def result() -> Any:
        return last_line(run(python, "-c", RUN_DAGSTER, cwd=tmp_path, **environ))

    assert result() == {"success": True, "rows": RECORDS, "sound": True}
    writer.write_many(10)
    writer.flip(writer.made[7].log_offset + 90)
    assert result() == {"success": True, "rows": 10, "sound": False}


@spec("P42")
def test_dbt_builds_and_tests_a_table_of_the_lake(writer: LogWriter, tmp_path: Path) -> None:
    python, project = environment("dbt"), tmp_path / "project"
    tandemq = Path(sys.executable).parent / "tandemq"
    run(tandemq, "spark", "archive", writer.store, tmp_path / "lake", cwd=tmp_path, PYTHONPATH=str(ROOT / "src"))
    (project / "models").mkdir(parents=True)
    texts = snippet("dbt", "yaml", tmp_path)
    for name, text in zip(("dbt_project.yml", "profiles.yml", "models/schema.yml"), texts, strict=True):
        (project / name).write_text(text)
    (project / "models" / "topics.sql").write_text(snippet("dbt", "sql", tmp_path)[0])
    environ = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "PYTHONPATH": ""}
    output = run(python, "-c", DBT, "build", cwd=project, **environ)
    assert "PASS=3 WARN=0 ERROR=0" in output
    found = last_line(run(python, "-c", READ_TOPICS, tmp_path / "shop.duckdb", cwd=project, **environ))
    expected = {made.topic: 0 for made in writer.made}
    for made in writer.made:
        expected[made.topic] += 1
    assert found == [list(one) for one in sorted(expected.items())]
