"""Lakes on a real S3 server: each message once, with concurrent writers and after failures."""

import filecmp
import re
from collections.abc import Iterator
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
from tandemq.spark.jobs.collect import Collect, CollectOptions
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.stats import gather
from tandemq.spark.lake.delta import DataFile, DeltaLake
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.errors import translate_errors
from tandemq.spark.runtime.location import Location, locate
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spark.s3 import S3, SECRET, expiring_proxy, s3_server

WRITERS = 6


class Died(Exception):
    """The driver died between the two commits."""


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    with s3_server() as server:
        yield server


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "broker-a")


def archive(spark: SparkSession, writer: LogWriter, lake: Location, **options: Any) -> ArchiveResult:
    with translate_errors():
        return Archive(ArchiveOptions(store=writer.store, lake=lake, **options)).run(spark)


def offsets_in(spark: SparkSession, lake: Location) -> list[int]:
    table = DeltaLake(lake)
    return sorted(row[0] for row in read_files(spark, table, table.data_files(), ["commitLogOffset"]).collect())


def test_archive_on_s3_continues_compacts_and_restores_the_same_log(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path
) -> None:
    lake = s3.new_lake()
    writer.write_many(300)

    def die(_batch: int) -> None:
        raise Died

    options = ArchiveOptions(store=writer.store, lake=lake, bytes_max=40_000)
    with pytest.raises(Exception, match="Died"):  # Spark wraps what foreachBatch raises
        Archive(options, after_commit=die).run(spark)
    assert archive(spark, writer, lake, bytes_max=40_000).end == writer.end
    writer.write_many(50)
    assert archive(spark, writer, lake).rows == 50
    made = [one.log_offset for one in writer.made]
    assert offsets_in(spark, lake) == made
    table = DeltaLake(lake)
    files = len(table.data_files())
    assert table.compact() == {"filesAdded": 1, "filesRemoved": files}
    assert len(table.vacuum(0)) == files
    assert offsets_in(spark, lake) == made
    assert sum(row["messages"] for row in gather(spark, lake).topics) == len(made)
    store = tmp_path / "restored"
    replay_to_store(spark, lake, "broker-a", store, segment_bytes=writer.segment_bytes)
    names = [one.name for one in (writer.store / "commitlog").iterdir()]
    found = filecmp.cmpfiles(writer.store / "commitlog", store / "commitlog", names, shallow=False)
    assert (sorted(found[0]), found[1:]) == (sorted(names), ([], []))


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


def test_of_concurrent_commits_of_one_mark_exactly_one_succeeds(s3: S3) -> None:
    lake = s3.new_lake()
    DeltaLake(lake, create=True)
    file = DataFile("part-x.parquet", 1, 1, '{"numRecords": 1}')

    def commit(table: DeltaLake, name: str) -> bool:
        try:
            table.commit([file], {name: 1})
        except LocalError:
            return False
        return True

    for same in (True, False):
        tables = [DeltaLake(lake) for _ in range(WRITERS)]
        names = ["mark" if same else f"mark-{number}" for number in range(WRITERS)]
        with ThreadPoolExecutor(WRITERS) as pool:
            done = list(pool.map(commit, tables, names))
        assert sum(done) == (1 if same else WRITERS)
        assert {name for name, succeeded in zip(names, done, strict=True) if succeeded} == {
            name for name in names if DeltaLake(lake).mark(name) == 1
        }
    listed = s3.request("GET", f"/lakes?list-type=2&prefix={lake.url[11:]}/_delta_log/")
    assert len(re.findall(rb"\d{20}\.json", listed)) == 2 + WRITERS


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


def test_credentials_that_expire_stop_the_archive_with_one_line_and_lose_nothing(
    spark: SparkSession, s3: S3, writer: LogWriter
) -> None:
    writer.write_many(300)
    with expiring_proxy(s3, 2) as (expiring, process):
        lake = expiring.new_lake()
        with pytest.raises(LocalError, match=r"the credentials have expired.*repeat the command") as caught:
            archive(spark, writer, lake, bytes_max=20_000)
        assert "\n" not in str(caught.value)
        assert SECRET not in str(caught.value)
        assert process.stdin is not None and process.stdout is not None
        print("renew", file=process.stdin, flush=True)
        assert process.stdout.readline() == "renewed\n"
        rows = DeltaLake(lake).rows()
        assert 0 < rows < 300
        assert archive(spark, writer, lake, bytes_max=20_000).rows == 300 - rows
        assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]


def test_collect_into_s3_and_replay_from_it(
    spark: SparkSession, s3: S3, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, s3.new_lake()
    make_topic(names, "Orders", 2)
    make_topic(names, "Again", 2)
    send(names, numbered("Orders", 0, 50))
    source = {"nameServer": names, "subscribe": "Orders", "maxOffsetsPerTrigger": "20"}
    with pytest.raises(ConfigError, match=r"--checkpoint DIRECTORY"):
        Collect(CollectOptions(source=source, lake=lake))

    def die(_batch: int) -> None:
        raise Died

    options = CollectOptions(source=source, lake=lake, checkpoint=tmp_path / "checkpoint")
    with pytest.raises(Exception, match="Died"):
        Collect(options, after_commit=die).run(spark)
    Collect(options).run(spark)
    table = DeltaLake(lake)
    rows = read_files(spark, table, table.data_files()).collect()
    assert sorted(int(row.body) for row in rows) == list(range(50))
    assert replay_to_topic(spark, lake, {"nameServer": names, "topic": "Again"}, noted=tmp_path / "note").rows == 50
    again = spark.read.format("rocketmq").option("nameServer", names).option("subscribe", "Again").load()
    assert sorted(int(row.body) for row in again.select("body").collect()) == list(range(50))


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
