"""Log offsets that are gone when a task reads them, or that never existed: reported, never silently without rows."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError, OffsetGone, StoreDamaged
from tandemq.spark.jobs.archive import Archive, ArchiveOptions, ArchiveResult, position_mark
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.source import FILES, LogBatchReader, LogStreamReader
from tandemq.spark.sources.schema import message_schema
from tests.spark.logs import LogWriter
from tests.spec import spec

ALL = ReadAllAvailable()


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "broker-a")


def stream_of(writer: LogWriter, schema: StructType | None = None, /, **options: Any) -> LogStreamReader:
    given = read_options({"path": str(writer.store), **options}, streams=True)
    return LogStreamReader(given, schema or message_schema())


def planned(reader: LogStreamReader) -> list[InputPartition]:
    start = begun(reader)
    return reader.partitions(start, reader.latestOffset(start, ALL))


def begun(reader: LogStreamReader) -> dict[str, Any]:
    """Return the start offset of a stream, after the empty micro-batch that records it."""
    start = reader.initialOffset()
    if reader._options.start < 0:
        assert reader.latestOffset(start, ALL) == reader.initialOffset()
    assert reader.partitions(start, start) == []
    return start


def offsets_read(reader: LogStreamReader, parts: list[InputPartition]) -> list[int]:
    return [offset for part in parts for batch in reader.read(part) for offset in batch["commitLogOffset"].to_pylist()]


@spec("P04")
@pytest.mark.parametrize("writes", [False, True])
def test_file_deleted_between_planning_and_reading_is_a_loss_of_its_ranges_only(
    writer: LogWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture, *, writes: bool
) -> None:
    writer.write_many(900)
    schema = FILES if writes else None
    options = {"writeTo": str(tmp_path)} if writes else {"rangeBytes": str(1 << 16)}
    strict, lax = stream_of(writer, schema, **options), stream_of(writer, schema, failOnDataLoss="false", **options)
    parts = planned(strict)
    assert len(parts) == (1 if writes else 3)
    writer.path(0).unlink()
    with pytest.raises(OffsetGone, match=r"log offsets \[0, 65536\) are gone: the log begins at 65536.*failOnDataLoss"):
        list(strict.read(parts[0]))
    assert list(tmp_path.glob("*.parquet")) == []
    kept = [made.log_offset for made in writer.made if made.log_offset >= 65536]
    with caplog.at_level(logging.WARNING):
        if writes:
            (row,) = [batch.to_pylist()[0] for part in parts for batch in lax.read(part)]
            assert (row["rows"], row["start"], row["end"]) == (len(kept), 0, writer.end)
        else:
            assert offsets_read(lax, parts) == kept
    assert "log offsets [0, 65536) are gone" in caplog.text


@spec("P04")
def test_file_deleted_while_its_range_is_read_is_a_loss_of_the_rest(
    writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.write_many(900)
    parts = planned(stream_of(writer, rangeBytes=str(1 << 16)))
    looked = LogStreamReader._open

    def delete_after_a_look(self: LogStreamReader) -> Any:
        files = looked(self)
        writer.path(0).unlink(missing_ok=True)
        return files

    monkeypatch.setattr(LogStreamReader, "_open", delete_after_a_look)
    with pytest.raises(OffsetGone, match=r"log offsets \[0, 65536\) are gone: their file was deleted during the read"):
        list(stream_of(writer).read(parts[0]))


@spec("P04")
def test_file_deleted_between_planning_and_reading_does_not_advance_the_archive(
    spark: SparkSession, writer: LogWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = Archive._commit

    def delete_and_commit(self: Archive, frame: DataFrame, batch: int) -> None:
        writer.path(0).unlink(missing_ok=True)
        commit(self, frame, batch)

    def archive(**options: Any) -> ArchiveResult:
        return Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "lake", **options)).run(spark)

    writer.write_many(100)
    known = archive().end
    writer.write_many(800)
    monkeypatch.setattr(Archive, "_commit", delete_and_commit)
    for _ in range(2):
        with pytest.raises(Exception, match=rf"log offsets \[{known}, 65536\) are gone"):  # Spark wraps errors of tasks
            archive()
        assert DeltaLake(tmp_path / "lake").mark(position_mark("broker-a")) == known
    kept = [made for made in writer.made if made.log_offset >= 65536]
    assert archive(fails_on_loss=False).rows == len(kept) == DeltaLake(tmp_path / "lake").rows() - 100


@spec("P04")
@pytest.mark.parametrize("last", [30, 60, 99])
@pytest.mark.parametrize("range_bytes", [1 << 30, 1000, 100])
def test_tail_gone_at_reading_is_a_loss_for_any_range_boundary(
    writer: LogWriter, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, last: int, range_bytes: int
) -> None:
    monkeypatch.setattr("tandemq.spark.sources.log.options.RANGE_BYTES_MIN", 1)
    writer.write_many(99)
    writer.write(bytes(5000))
    options = {"rangeBytes": str(range_bytes)}
    strict, lax = stream_of(writer, **options), stream_of(writer, failOnDataLoss="false", **options)
    parts = planned(strict)
    assert len(offsets_read(strict, parts)) == 100
    gone = writer.made[last].log_offset
    writer.zero(gone, writer.end)
    with pytest.raises(OffsetGone, match=rf"log offsets \[{gone}, {writer.end}\) no longer exist"):
        offsets_read(strict, parts)
    with caplog.at_level(logging.WARNING):
        assert offsets_read(lax, parts) == [made.log_offset for made in writer.made[:last]]
    assert caplog.text.count("no longer exist") == 1


@spec("P04")
def test_last_files_gone_at_reading_are_a_loss(writer: LogWriter) -> None:
    writer.write_many(900)
    strict, lax = stream_of(writer), stream_of(writer, failOnDataLoss="false")
    parts = planned(strict)
    last = writer.end - writer.end % writer.segment_bytes
    writer.path(last).unlink()
    with pytest.raises(OffsetGone, match=rf"log offsets \[{last}, {writer.end}\) no longer exist"):
        offsets_read(strict, parts)
    assert offsets_read(lax, parts) == [made.log_offset for made in writer.made if made.log_offset < last]


@spec("P04")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_stream_detects_a_log_that_ends_before_its_offset(
    writer: LogWriter, caplog: pytest.LogCaptureFixture, *, is_restarted: bool
) -> None:
    writer.write_many(100)
    strict, lax = stream_of(writer), stream_of(writer, failOnDataLoss="false")
    reached = strict.latestOffset(begun(strict), ALL)
    assert lax.latestOffset(begun(lax), ALL) == reached
    end = writer.made[60].log_offset
    writer.zero(end, writer.end)
    if is_restarted:
        strict, lax = stream_of(writer), stream_of(writer, failOnDataLoss="false")
    message = f"the log ends at {end}, but was read up to {writer.end} already"
    with pytest.raises(StoreDamaged, match=message):
        strict.latestOffset(reached, ALL)
    with caplog.at_level(logging.WARNING):
        assert lax.latestOffset(reached, ALL) == lax.latestOffset(reached, ALL) == reached
    assert caplog.text.count(message) == 1


@spec("P04")
def test_restarted_stream_begins_at_the_recorded_offset(writer: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    writer.write_many(900)
    first = stream_of(writer).initialOffset()
    writer.path(0).unlink()
    # Spark has recorded `first` as the end of the first micro-batch, and plans it again.
    strict, lax = stream_of(writer), stream_of(writer, failOnDataLoss="false")
    for reader in (strict, lax):
        assert reader.partitions(reader.initialOffset(), first) == []
        assert reader.latestOffset(first, ALL) == {"broker-a": {"offset": writer.end, "epoch": 0}}
    with pytest.raises(OffsetGone, match=r"log offsets \[0, 65536\) are gone"):
        strict.partitions(first, strict.latestOffset(first, ALL))
    kept = [made.log_offset for made in writer.made if made.log_offset >= 65536]
    assert offsets_read(lax, lax.partitions(first, lax.latestOffset(first, ALL))) == kept
    assert "log offsets [0, 65536) are gone" in caplog.text


def test_query_can_start_and_end_at_damage(writer: LogWriter) -> None:
    writer.write_many(10)
    damaged = writer.made[4]
    writer.flip(damaged.log_offset + 92)
    given = {"path": str(writer.store), "startingOffsets": str(damaged.log_offset)}
    reader = LogBatchReader(read_options(given, streams=False), message_schema(details=True))
    (part,) = reader.partitions()
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]
    assert [row["commitLogOffset"] for row in rows] == [made.log_offset for made in writer.made[4:]]
    assert [row["verdict"] is None for row in rows] == [False] + 5 * [True]
    (before,) = batch_of(writer, endingOffsets=str(damaged.log_offset))
    assert before.value[0].end == damaged.log_offset
    (behind,) = batch_of(writer, startingOffsets=str(damaged.log_offset + 1))
    assert behind.value[0].start == writer.made[5].log_offset


def test_end_of_the_log_at_planning_is_no_loss(writer: LogWriter) -> None:
    writer.write_many(10)
    reader = stream_of(writer, startingOffsets="latest")
    reader.prepareForTriggerAvailableNow()
    writer.write_many(10)
    start = begun(reader)
    assert reader.latestOffset(start, ALL) == start


def batch_of(writer: LogWriter, **options: str) -> list[InputPartition]:
    given = read_options({"path": str(writer.store), **options}, streams=False)
    return LogBatchReader(given, message_schema()).partitions()


def test_offsets_after_the_end_of_the_log_are_reported(writer: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    writer.write_many(10)
    end = writer.end
    behind = str(end + 1)
    with pytest.raises(ConfigError, match=rf"startingOffsets is {behind}, and the log in .* ends at {end}"):
        batch_of(writer, startingOffsets=behind)
    with pytest.raises(ConfigError, match=rf"startingOffsets is {behind}, and the log in .* ends at {end}"):
        stream_of(writer, startingOffsets=behind).initialOffset()
    with pytest.raises(OffsetGone, match=rf"endingOffsets is {behind}, and the log ends at {end}"):
        batch_of(writer, endingOffsets=behind)
    assert len(batch_of(writer, endingOffsets=behind, failOnDataLoss="false")) == 1
    assert "continuing without" in caplog.text
    assert batch_of(writer, startingOffsets=str(end)) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxBytesPerTrigger": "100"}, "maxBytesPerTrigger is for streaming queries"),
        ({"startingOffsets": "500", "endingOffsets": "100"}, "startingOffsets is 500, behind endingOffsets, 100"),
        ({"startingOffsets": "latest"}, "startingOffsets is latest, so a batch query would read nothing"),
        ({"endingOffsets": "earliest"}, "endingOffsets is earliest, so a batch query would read nothing"),
        ({"rangeBytes": "²"}, "rangeBytes='²' is no whole number"),
        ({"startingOffsets": "²"}, "startingOffsets='²' is neither"),
        ({"startingOffsets": "9" * 5000}, "is neither earliest nor latest nor a log offset"),
    ],
)
def test_options_without_sense_in_a_batch_query_are_named(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_options({"path": "x"} | options, streams=False)
