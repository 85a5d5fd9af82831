"""Lakes on a real S3 server: each message once, with concurrent writers and after failures."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions, ArchiveResult
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.errors import translate_errors
from tandemq.spark.runtime.location import Location, locate
from tests.spark.lakes import check_archive, check_collect_and_replay, check_concurrent_commits, offsets_in
from tests.spark.logs import LogWriter
from tests.spark.s3 import S3, SECRET
from tests.spec import spec


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "broker-a")


def archive(spark: SparkSession, writer: LogWriter, lake: Location, **options: Any) -> ArchiveResult:
    with translate_errors():
        return Archive(ArchiveOptions(store=writer.store, lake=lake, **options)).run(spark)


@spec("P37")
def test_archive_on_s3_continues_compacts_and_restores_the_same_log(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path
) -> None:
    check_archive(spark, writer, s3.new_lake(), tmp_path)


def test_two_archives_at_once_lose_and_duplicate_nothing(spark: SparkSession, s3: S3, writer: LogWriter) -> None:
    lake = s3.new_lake()
    writer.write_many(300)
    DeltaLake(lake, create=True)

    def run(_number: int) -> str:
        try:
            archive(spark, writer, lake, bytes_max=20_000)
        except LocalError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(run, range(2)))
    assert all(error == "" or "the commit failed" in error or "another process" in error for error in errors), errors
    archive(spark, writer, lake)
    assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]


@spec("P37")
def test_of_concurrent_commits_of_one_mark_exactly_one_succeeds(s3: S3) -> None:
    check_concurrent_commits(s3.new_lake())


def test_of_two_compactions_at_once_one_is_refused_and_nothing_is_duplicated(
    spark: SparkSession, s3: S3, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = s3.new_lake()
    writer.write_many(60)
    archive(spark, writer, lake, bytes_max=4_000)
    one, other = DeltaLake(lake), DeltaLake(lake)
    merge = other._merged

    def merged_later(*arguments: Any) -> Any:
        row = merge(*arguments)
        assert one.compact()["filesAdded"] == 1
        return row

    monkeypatch.setattr(other, "_merged", merged_later)
    with pytest.raises(StoreLocked, match="by another process"):
        other.compact()
    assert offsets_in(spark, lake) == [made.log_offset for made in writer.made]
    assert len([name for name in lake.names() if name in one.data_files()[0]]) == 1


@spec("P17", "P37")
def test_collect_into_s3_and_replay_from_it(
    spark: SparkSession, s3: S3, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    check_collect_and_replay(spark, tandemq_broker.name_servers, s3.new_lake(), tmp_path)


def test_secret_is_neither_in_the_lake_nor_in_checkpoint_plan_and_progress(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lake = s3.new_lake()
    writer.write_many(20)
    job = Archive(ArchiveOptions(store=writer.store, lake=lake, checkpoint=tmp_path / "checkpoint"))
    query = job.start(spark)
    query.awaitTermination()
    shown = [str(query.recentProgress), str(query._jsq.explainInternal(True)), repr(lake), repr(job._options)]
    shown += [str(one) for one in spark.sparkContext.getConf().getAll()]
    shown += list(capfd.readouterr())
    assert not [text for text in shown if SECRET in text]
    kept = [one.read_bytes() for one in (tmp_path / "checkpoint").rglob("*") if one.is_file()]
    kept += [s3.get(lake, name) for name in (*lake.names(), f"_delta_log/{1:020}.json", f"_delta_log/{2:020}.json")]
    assert len(kept) > 5
    assert not [body for body in kept if SECRET.encode() in body]


def test_prefix_with_files_of_another_tool_is_refused_and_unchanged(s3: S3) -> None:
    lake = s3.new_lake()
    s3.put(lake, "part-0.parquet", b"mine")
    with pytest.raises(ConfigError, match="holds other files and no Delta table"):
        DeltaLake(lake, create=True)
    assert lake.names() == ["part-0.parquet"]


def test_half_written_commit_and_missing_file_are_clear_errors(spark: SparkSession, s3: S3, writer: LogWriter) -> None:
    lake = s3.new_lake()
    writer.write_many(20)
    archive(spark, writer, lake)
    table = DeltaLake(lake)
    (name,) = (table.name_of(path) for path in table.data_files())
    body = s3.get(lake, name)
    lake.delete(name)
    with pytest.raises(LocalError, match=f"{name} is missing"), translate_errors():
        offsets_in(spark, lake)
    s3.put(lake, name, body)
    assert len(offsets_in(spark, lake)) == 20
    s3.put(lake, f"_delta_log/{3:020}.json", b'{"add": {"path": "part-')
    for call in (lambda: DeltaLake(lake), lambda: table.mark("x")):
        with pytest.raises(LocalError, match="another tool has written half of it") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"aws_endpoint_url": "http://127.0.0.1:1", "max_retries": "1"}, r"does not respond.*check the endpoint"),
        ({"aws_allow_http": "false"}, r"has no TLS.*allow_http=true"),
        ({"bucket": "nothing"}, r"there is no such bucket"),
    ],
)
def test_unreachable_store_is_an_error_of_one_line(s3: S3, options: dict[str, str], what: str) -> None:
    url = f"s3://{options.pop('bucket', 'lakes')}/lake"
    with pytest.raises(LocalError, match=what) as caught:
        DeltaLake(locate(url, "the lake", s3.options | options), create=True)
    assert str(caught.value).startswith(url)
    assert "\n" not in str(caught.value)


def test_commands_take_options_of_the_store_from_words_and_environment(
    s3: S3, writer: LogWriter, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = s3.new_lake()
    writer.write_many(20)
    archive(spark, writer, lake, bytes_max=2_000)
    for name in ("aws_access_key_id", "aws_secret_access_key", "aws_region", "aws_allow_http"):
        monkeypatch.setenv(name.upper(), s3.options[name])
    words = ["spark", "compact", lake.url.replace("s3:", "s3a:"), "--json", "--storage-option"]
    result = CliRunner().invoke(main, [*words, f"aws_endpoint_url={s3.options['aws_endpoint_url']}"])
    assert result.exit_code == 0, result.output
    assert '"rows": 20' in result.output
    refused = CliRunner().invoke(main, [*words, f"={SECRET}"])
    assert refused.exit_code != 0
    assert "NAME=VALUE" in f"{refused.output} {refused.exception}"
    assert SECRET not in f"{refused.output} {refused.exception}"
