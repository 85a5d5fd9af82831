"""Paths of lakes, stores and related files must be local: a URL is refused before anything is created."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.collect import Collect, CollectOptions
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.pipelines.projects import Project, write_project
from tandemq.spark.runtime.local_paths import local_path, scheme_of
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.options import read_options
from tests.spark.logs import LogWriter

URLS = ("s3://bucket/lake", "s3a://bucket/lake", "gs://b/l", "hdfs://host:9000/l", "abfss://c@a/l", "file:///tmp/lake")
NO_SESSION = cast(SparkSession, None)
"""A session that fails on use: the path must be refused first."""


@pytest.mark.parametrize("url", URLS)
def test_url_has_a_scheme_also_as_a_path_object(url: str) -> None:
    assert scheme_of(url) == scheme_of(Path(url)) == url.partition(":")[0]


@pytest.mark.parametrize("path", ["lake", "/data/s3:/x", "a:b", "./x:y/z", "C", "2024:/x", "_s3://x", ""])
def test_path_has_no_scheme(path: str) -> None:
    assert scheme_of(path) is None
    assert local_path(path, "the lake") == Path(path)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store; relative paths are within `tmp_path/here`, which is empty."""
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(5)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return writer.store


COMMANDS = (
    ("spark", "archive", "STORE", "URL"),
    ("spark", "archive", "URL", "lake"),
    ("spark", "archive", "STORE", "lake", "--checkpoint", "URL"),
    ("spark", "collect", "URL", "--subscribe", "T"),
    ("spark", "collect", "lake", "--subscribe", "T", "--checkpoint", "URL"),
    ("spark", "compact", "URL"),
    ("spark", "vacuum", "URL"),
    ("spark", "scrub", "URL"),
    ("spark", "scrub", "STORE", "--state", "URL"),
    ("spark", "audit", "STORE", "URL"),
    ("spark", "rebuild", "STORE", "URL"),
    ("spark", "stats", "URL"),
    ("spark", "report", "URL", "page.html"),
    ("spark", "report", "STORE", "URL"),
    ("spark", "replay", "URL", "--to-topic", "T"),
    ("spark", "replay", "STORE", "--to-store", "URL"),
    ("spark", "replay", "STORE", "--to-topic", "T", "--note", "URL"),
    ("spark", "pipeline", "URL"),
    ("spark", "pipeline", "project", "--store", "URL"),
    ("log", "verify", "URL"),
    ("up", "--data", "URL"),
)


@pytest.mark.parametrize("url", ["s3://bucket/lake", "file:///tmp/lake"])
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_command_refuses_a_url_as_wrong_usage_and_creates_no_file(
    words: tuple[str, ...], url: str, store: Path
) -> None:
    given = [{"STORE": str(store), "URL": url}.get(word, word) for word in words]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2, result.output
    assert url in result.output.replace("\n", "")
    assert "only local paths are supported" in " ".join(result.output.split())
    assert list(Path.cwd().iterdir()) == []


FUNCTIONS: dict[str, Callable[[Path, Any], object]] = {
    "lake": lambda _store, url: DeltaLake(url, create=True),
    "log": lambda _store, url: open_log(url),
    "archive": lambda store, url: Archive(ArchiveOptions(store=store, lake=url)),
    "archive's checkpoint": lambda store, url: Archive(ArchiveOptions(store=store, lake=Path("l"), checkpoint=url)),
    "collect": lambda _store, url: Collect(CollectOptions(source={}, lake=url)),
    "collect's checkpoint": lambda _store, url: Collect(CollectOptions(source={}, lake=Path("l"), checkpoint=url)),
    "rebuild": lambda store, url: rebuild(NO_SESSION, RebuildOptions(store=store, output=url)),
    "scrub": lambda _store, url: scrub(NO_SESSION, url),
    "scrub's state": lambda store, url: scrub(NO_SESSION, store, state=url),
    "audit": lambda store, url: audit(NO_SESSION, store, url),
    "statistics": lambda _store, url: gather(NO_SESSION, url),
    "replay": lambda _store, url: replay_to_topic(NO_SESSION, url, {"topic": "T"}),
    "replay to a store": lambda _store, url: replay_to_store(
        NO_SESSION, DeltaLake("lake", create=True).path, "broker-a", url
    ),
    "format's path": lambda _store, url: read_options({"path": str(url)}),
    "format's files": lambda store, url: read_options({"path": str(store), "writeTo": str(url)}),
    "project": lambda _store, url: write_project(url, Project("rocketmq", {})),
}


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_refuses_a_url_and_creates_no_file(name: str, kind: type[Any], store: Path) -> None:
    call = partial(FUNCTIONS[name], store)
    with pytest.raises(ConfigError, match="only local paths are supported"):
        call(kind("s3://bucket/x"))
    assert {one.name for one in Path.cwd().iterdir()} <= {"lake"}, "but the lake that the test made"
