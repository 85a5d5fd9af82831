"""Paths of stores and related files must be local; lakes may be at URLs. Others are refused before any file exists."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.collect import Collect, CollectOptions
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.pipelines.projects import Project, write_project
from tandemq.spark.runtime.local_paths import local_path, scheme_of
from tandemq.spark.runtime.location import locate, parse_storage_options
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


LAKE_COMMANDS = (
    ("spark", "archive", "STORE", "URL"),
    ("spark", "archive", "URL", "lake"),
    ("spark", "rebuild", "URL", "rebuilt"),
    ("spark", "report", "STORE", "page.html", "--replica", "URL"),
    ("spark", "pipeline", "project", "--store", "URL"),
    ("spark", "archive", "STORE", "lake", "--checkpoint", "URL"),
    ("spark", "collect", "URL", "--subscribe", "T"),
    ("spark", "compact", "URL"),
    ("spark", "vacuum", "URL"),
    ("spark", "stats", "URL"),
    ("spark", "report", "URL", "page.html"),
    ("spark", "replay", "URL", "--to-topic", "T"),
    ("spark", "remove", "--lake", "URL", "--key", "K"),
    ("spark", "remove", "--log", "URL", "--key", "K"),
    ("spark", "scrub", "URL"),
    ("spark", "audit", "STORE", "URL"),
    ("spark", "expire", "URL", "--older-than", "1d"),
    ("spark", "state", "URL", "T"),
)
COMMANDS = (
    ("spark", "scrub", "STORE", "--state", "URL"),
    ("spark", "rebuild", "STORE", "URL"),
    ("spark", "report", "STORE", "URL"),
    ("spark", "replay", "STORE", "--to-store", "URL"),
    ("spark", "replay", "STORE", "--to-topic", "T", "--note", "URL"),
    ("spark", "pipeline", "URL"),
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


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/lake", "ftp:// is not supported"),
        ("s3://bucket", "names no directory"),
        ("s3:///lake", "names no bucket"),
        ("s3://key:" + "secret@bucket/lake", "credentials do not belong into a URL"),
        ("s3://bucket/my%20lake", "must not contain"),
        ("file://host/lake", "names the host"),
    ],
)
@pytest.mark.parametrize("words", LAKE_COMMANDS, ids=" ".join)
def test_command_refuses_a_lake_at_a_wrong_url_and_creates_no_file(
    words: tuple[str, ...], url: str, why: str, store: Path
) -> None:
    given = [{"STORE": str(store), "URL": url}.get(word, word) for word in words]
    result = CliRunner().invoke(main, given)
    assert result.exit_code == 2, result.output
    assert why in " ".join(result.output.replace("│", "").split())
    assert "secret" not in result.output
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("form", ["file://{}", "file://localhost{}", "file:{}"])
def test_lake_at_a_file_url_is_the_local_lake(form: str, tmp_path: Path) -> None:
    lake = DeltaLake(form.format(tmp_path / "my lake"), create=True)
    assert (lake.path, lake.location.is_local) == (tmp_path / "my lake", True)
    assert DeltaLake(tmp_path / "my lake").identity() == lake.identity()


@pytest.mark.parametrize("url", ["s3://bucket/a/lake/", "hdfs://host:9000/lake", "abfss://c@a.host/lake", "gs://b/l"])
def test_lake_at_a_url_is_remote_also_as_a_path_object(url: str) -> None:
    found = locate(url, "the lake", {"AWS_Secret_access_key": "secret"})
    assert locate(Path(url), "the lake", {"AWS_Secret_access_key": "secret"}) == found
    assert (found.url, found.is_local, "secret" in repr(found)) == (url.rstrip("/"), False, False)
    with pytest.raises(ConfigError, match="is not a local directory"):
        _ = found.path


@pytest.mark.parametrize("host", ["127.0.0.1:1", "no-such-host.invalid:8020"])
def test_name_node_that_does_not_respond_is_an_error_of_one_line(host: str) -> None:
    with pytest.raises(LocalError, match=r"the store does not respond.*check the endpoint") as caught:
        DeltaLake(f"hdfs://{host}/lake", create=True)
    assert "\n" not in str(caught.value)


def test_options_of_the_store_come_from_words_then_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "from-environment")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "from-environment")
    monkeypatch.setenv("AWS_PROFILE", "of-this-machine")
    given = parse_storage_options(("access_key_id=from-words", "aws_endpoint_url=http://x?a=b"))
    assert dict(locate("s3://b/l", "the lake", given).options) == {
        "access_key_id": "from-words",
        "aws_endpoint_url": "http://x?a=b",
        "aws_region": "from-environment",
        "aws_conditional_put": "etag",
        "retry_timeout": "60s",
    }
    assert dict(locate("hdfs://h/l", "the lake", {}).options) == {}
    with pytest.raises(ConfigError, match="concurrent writers"):
        locate("s3://b/l", "the lake", {"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})


FUNCTIONS: dict[str, Callable[[Path, Any], object]] = {
    "rebuild": lambda store, url: rebuild(NO_SESSION, RebuildOptions(store=store, output=url)),
    "scrub's state": lambda store, url: scrub(NO_SESSION, store, state=url),
    "replay to a store": lambda _store, url: replay_to_store(
        NO_SESSION, DeltaLake("lake", create=True).path, "broker-a", url
    ),
    "project": lambda _store, url: write_project(url, Project("rocketmq", {})),
}


def test_checkpoint_in_an_object_store_is_refused(store: Path) -> None:
    for make in (
        lambda: Archive(ArchiveOptions(store=store, lake=Path("lake"), checkpoint="s3://bucket/x")),
        lambda: Collect(CollectOptions(source={}, lake=Path("lake"), checkpoint="gs://bucket/x")),
    ):
        with pytest.raises(ConfigError, match="keeps no checkpoints in object stores"):
            make()
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_log_at_a_url_is_remote_and_a_wrong_scheme_is_refused(kind: type[Any], store: Path) -> None:
    assert read_options({"path": str(kind("s3://bucket/x"))}).path.url == "s3://bucket/x"
    assert open_log(kind(f"file://{store}")).directory == str(store / "commitlog")
    for call in (
        lambda: open_log(kind("ftp://host/x")),
        lambda: read_options({"path": "ftp://host/x"}),
        lambda: Archive(ArchiveOptions(store=kind("ftp://host/x"), lake=Path("lake"))),
    ):
        with pytest.raises(ConfigError, match="ftp:// is not supported"):
            call()
    assert list(Path.cwd().iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_refuses_a_url_and_creates_no_file(name: str, kind: type[Any], store: Path) -> None:
    call = partial(FUNCTIONS[name], store)
    with pytest.raises(ConfigError, match="only local paths are supported"):
        call(kind("s3://bucket/x"))
    assert {one.name for one in Path.cwd().iterdir()} <= {"lake"}, "but the lake that the test made"
