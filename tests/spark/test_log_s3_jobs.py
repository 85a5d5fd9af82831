"""Archived log files on a real S3 server: archive, rebuild, statistics and the format read them as files on a disk."""

import filecmp
import json
from dataclasses import asdict
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.spark import register
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.stats import gather
from tandemq.spark.runtime.location import Location, locate
from tandemq.spark.sources.log import source
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.segments import RemoteSegment
from tandemq.spark.sources.log.source import LogStreamReader
from tandemq.spark.sources.schema import message_schema
from tests.spark.lakes import offsets_in
from tests.spark.logs import LogWriter
from tests.spark.s3 import S3, SECRET
from tests.spark.test_log_s3 import put_log
from tests.spec import spec


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(400)
    return made


def words_for(s3: S3) -> list[str]:
    return [word for name, value in s3.options.items() for word in ("--storage-option", f"{name}={value}")]


def put_again(s3: S3, writer: LogWriter, place: Location) -> None:
    """Copy the files of a log that has grown."""
    for path in (writer.store / "commitlog").iterdir():
        s3.put(place, f"commitlog/{path.name}", path.read_bytes())


@spec("P01", "P37")
@pytest.mark.parametrize("is_remote", [False, True])
def test_archive_of_log_files_on_s3_has_each_record_once(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path, is_remote: bool
) -> None:
    place = put_log(s3, writer.store)
    lake = s3.new_lake() if is_remote else locate(tmp_path / "lake", "the lake")
    words = ["spark", "archive", place.url, lake.url, "--batch-bytes", "50000", "--json", *words_for(s3)]
    for rows in (400, 100, 0):
        result = CliRunner().invoke(main, words)
        assert (result.exit_code, SECRET in result.output) == (0, False), f"{result.output} {result.exception}"
        assert json.loads(result.stdout)["rows"] == rows
        assert offsets_in(spark, lake) == [one.log_offset for one in writer.made]
        if rows == 400:
            writer.write_many(100)
            put_again(s3, writer, place)


@spec("P37")
def test_rebuild_of_log_files_on_s3_makes_the_files_of_the_same_log_on_a_disk(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path
) -> None:
    place = put_log(s3, writer.store)
    for store, output in ((writer.store, "ours"), (place, "theirs")):
        options = RebuildOptions(
            store=store, output=tmp_path / output, queue_file_bytes=4000, slots=100, entries=2000, range_bytes=1 << 16
        )
        done = rebuild(spark, options)
        assert (done.queues, done.entries, done.keys) == (4, 400, 800)
    names = sorted(str(one.relative_to(tmp_path / "ours")) for one in (tmp_path / "ours").rglob("*") if one.is_file())
    queues = [name for name in names if name.startswith("consumequeue/")]
    assert len(queues) >= 4
    assert filecmp.cmpfiles(tmp_path / "ours", tmp_path / "theirs", queues, shallow=False) == (queues, [], [])


@spec("P37")
def test_statistics_of_log_files_on_s3_are_those_of_the_store_with_its_groups(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path
) -> None:
    place = put_log(s3, writer.store)
    kept = json.dumps({"offsetTable": {"T0@readers": {0: 10, 2: 20}}}).encode()
    (writer.store / "config").mkdir()
    (writer.store / "config" / "consumerOffset.json").write_bytes(kept)
    assert gather(spark, place).groups == []
    s3.put(place, "config/consumerOffset.json", kept)
    ours, theirs = gather(spark, writer.store), gather(spark, place)
    assert (len(ours.topics), ours.groups[0]["committed"]) == (2, 30)
    renamed = place.name, "broker-a"
    assert json.loads(json.dumps(asdict(theirs)).replace(*renamed)) == json.loads(json.dumps(asdict(ours)))
    page = tmp_path / "page.html"
    words = ["spark", "report", place.url, str(page), "--replica", str(writer.store), "--json", *words_for(s3)]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, SECRET in result.output + page.read_text()) == (0, False), result.output
    assert json.loads(result.stdout)["diverging"] == 0


@spec("P37")
def test_format_reads_log_files_on_s3_in_batches_and_streams(
    spark: SparkSession, s3: S3, writer: LogWriter, tmp_path: Path
) -> None:
    place = put_log(s3, writer.store)
    register(spark, storage=s3.options)
    try:
        rows = spark.read.format("rocketmq-log").load(place.url)
        assert sorted(row[0] for row in rows.select("commitLogOffset").collect()) == [
            one.log_offset for one in writer.made
        ]
        for expected in (400, 450):
            stream = spark.readStream.format("rocketmq-log").option("maxBytesPerTrigger", 60_000).load(place.url)
            query = (
                stream.select("commitLogOffset")
                .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
                .option("path", str(tmp_path / "out"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            assert SECRET not in str(query.recentProgress)
            found = spark.read.parquet(str(tmp_path / "out")).collect()
            assert sorted(row[0] for row in found) == [one.log_offset for one in writer.made[:expected]]
            writer.write_many(50)
            put_again(s3, writer, place)
    finally:
        register(spark)


@spec("P37")
def test_stream_reads_the_end_of_unchanged_log_files_on_s3_once(
    s3: S3, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "SETTLED_S", -3600)  # as if the files had been there for an hour
    read: list[int] = []
    fetch = RemoteSegment._fetch

    def counted(self: RemoteSegment, position: int, size: int) -> bytes:
        read.append(size)
        return fetch(self, position, size)

    monkeypatch.setattr(RemoteSegment, "_fetch", counted)
    place = put_log(s3, writer.store)
    options = read_options({"path": place.url}, streams=True, storage={"path": s3.options})
    reader = LogStreamReader(options, message_schema())
    start = reader.initialOffset()
    assert read
    read.clear()
    assert reader.reportLatestOffset()[place.name]["offset"] == writer.end
    assert read == []
    before = writer.path(writer.end).name
    while writer.path(writer.end).name == before:
        writer.write_many(50)
    put_again(s3, writer, place)
    assert reader.reportLatestOffset()[place.name]["offset"] == writer.end > start[place.name]["offset"]
