"""Runs the commands of docs/guides/pipeline-project.md as written, on one data set, and looks at what they leave."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tandemq.cli.spark.pipeline import pipeline
from tandemq.console.query_files import ENDED, read_project
from tandemq.run.local import LocalCluster
from tandemq.spark.pipelines.orders.produce import make_hour
from tests.spark.messages import make_topic
from tests.spark.shop import FIELDS, assert_equal, declared_tables, expected, tables
from tests.spec import spec

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "pipeline-project.md"
ELSEWHERE = ("pip install ", "tandemq up ", "tandemq console ")
"""Commands that install, or run until they are stopped: tests/blackbox and tests/browser run these."""
SECONDS_MAX = 900


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if not line.startswith(ELSEWHERE)]


def words_of(line: str, name_servers: str) -> list[str]:
    program, *words = shlex.split(line.replace("127.0.0.1:9876", name_servers))
    return [sys.executable, *(["-m", "tandemq"] if program == "tandemq" else []), *words]


def test_page_has_the_commands_of_the_whole_way() -> None:
    assert [line.split(" --namesrv")[0] for line in commands()] == [
        "tandemq spark pipeline ./shop --example orders",
        "python shop/produce.py",
        "python shop/streaming.py",
        "tandemq spark pipeline ./shop --run",
    ]


def test_example_is_created_once_and_needs_a_cluster(tmp_path: Path) -> None:
    runner, home = CliRunner(), tmp_path / "shop"
    for wrong in ([], ["--namesrv", "127.0.0.1:1", "--subscribe", "x"], ["--store", str(tmp_path)]):
        refused = runner.invoke(pipeline, [str(home), "--example", "orders", *wrong])
        assert refused.exit_code == 2
        assert "give --namesrv only" in refused.output
    assert not home.exists()
    created = runner.invoke(pipeline, [str(home), "--example", "orders", "--namesrv", "127.0.0.1:1"])
    assert created.exit_code == 0, created.output
    files = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
    transformations = {f"transformations/{name}" for name in ("bronze.py", "silver.py", "gold.sql")}
    settings = {"spark-pipeline.yml", "conf/spark-defaults.conf"}
    assert files == {"produce.py", "streaming.py", *transformations, *settings}
    again = runner.invoke(pipeline, [str(home), "--example", "orders", "--namesrv", "127.0.0.1:1"])
    assert again.exit_code == 2
    assert "already contains a project" in again.output


@spec("P18", "C11")
@pytest.mark.slow
@pytest.mark.timeout(3 * SECONDS_MAX)
def test_commands_of_the_page_lead_from_topics_to_tables(
    tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for topic in FIELDS:
        make_topic(tandemq_broker.name_servers, topic, 2)
    for line in commands():
        words = words_of(line, tandemq_broker.name_servers)
        done = subprocess.run(words, cwd=tmp_path, timeout=SECONDS_MAX, capture_output=True, text=True)
        assert done.returncode == 0, (line, done.stderr[-3_000:])
    home, wanted = tmp_path / "shop", expected([make_hour(0)])
    assert_equal(tables(home), wanted)
    assert_equal(declared_tables(home), wanted.with_final_minutes())
    monkeypatch.chdir(tmp_path)
    (program,) = re.findall(r"^```python\n(from deltalake .*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(program, {})
    queries = read_project(home).queries
    assert [query.error for query in queries] == [""] * 13
    assert {query.state for query in queries if not query.is_declarative} == {ENDED}
    assert sum(query.is_declarative for query in queries) == 6
