"""Commit logs with a file that is missing or cut off: the rest is read, and what is missing is named."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.errors import OffsetGone
from tandemq.real.disk import RealDisk
from tandemq.spark.jobs.archive import Archive, ArchiveOptions, position_mark
from tandemq.spark.jobs.audit import overlap
from tandemq.spark.jobs.rebuild import RebuildOptions, _start_or_resume
from tandemq.spark.jobs.scrub import scrub_range
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.gaps import log_bounds
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.ranges import DecodeOptions, read_planned, split
from tandemq.spark.sources.log.source import LogBatchReader, LogStreamReader
from tandemq.spark.sources.schema import message_schema
from tandemq.storage.checkpoint import Marks, open_marks, write_marks
from tests.spark.logs import SEGMENT_BYTES, LogWriter
from tests.spec import spec

MIDDLE = "00000000000000065536"
MISSING = f"are missing: there is no file {MIDDLE}"
CUT = f"are missing: {MIDDLE} has 30000 of 65536 bytes"
Harm = Callable[[LogWriter], tuple[int, int, str]]


def remove(writer: LogWriter) -> tuple[int, int, str]:
    """Delete the second file; returns the gap."""
    writer.path(SEGMENT_BYTES).unlink()
    return SEGMENT_BYTES, 2 * SEGMENT_BYTES, MISSING


def shorten(writer: LogWriter) -> tuple[int, int, str]:
    """Cut off the second file; returns the gap."""
    with open(writer.path(SEGMENT_BYTES), "r+b") as file:
        file.truncate(30_000)
    return SEGMENT_BYTES + 30_000, 2 * SEGMENT_BYTES, CUT


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(900)
    assert 2 * SEGMENT_BYTES < made.end < 3 * SEGMENT_BYTES
    return made


@pytest.fixture
def replica(writer: LogWriter, tmp_path: Path) -> LogWriter:
    shutil.copytree(writer.store, tmp_path / "replica")
    return LogWriter(tmp_path / "replica")


def left_of(writer: LogWriter, start: int, end: int) -> list[int]:
    """Return the log offsets of records without a byte in a gap."""
    return [made.log_offset for made in writer.made if made.log_offset + made.size <= start or made.log_offset >= end]


def reader_of(writer: LogWriter, **options: str) -> LogBatchReader:
    return LogBatchReader(read_options({"path": str(writer.store), **options}, streams=False), message_schema())


def offsets_of(reader: LogBatchReader | LogStreamReader, parts: list[Any]) -> list[int]:
    return [offset for part in parts for batch in reader.read(part) for offset in batch["commitLogOffset"].to_pylist()]


@spec("P04")
@pytest.mark.parametrize("harm", [remove, shorten])
@pytest.mark.parametrize("range_bytes", [1 << 16, 1 << 30])
def test_log_with_a_gap_is_read_without_it_if_loss_is_allowed(
    writer: LogWriter, caplog: pytest.LogCaptureFixture, harm: Harm, range_bytes: int
) -> None:
    start, end, why = harm(writer)
    with pytest.raises(OffsetGone) as caught:
        reader_of(writer).partitions()
    assert f"log offsets [{start}, {end}) {why}" in str(caught.value)
    lax = reader_of(writer, failOnDataLoss="false", rangeBytes=str(range_bytes))
    with caplog.at_level(logging.WARNING):
        assert offsets_of(lax, lax.partitions()) == left_of(writer, start, end)
    assert f"log offsets [{start}, {end}) {why}" in caplog.text


@spec("P04")
@pytest.mark.parametrize("harm", [remove, shorten])
@pytest.mark.parametrize("is_planned", [False, True])
def test_stream_reports_a_gap_and_continues_if_loss_is_allowed(
    writer: LogWriter, caplog: pytest.LogCaptureFixture, harm: Harm, *, is_planned: bool
) -> None:
    readers = [
        LogStreamReader(read_options({"path": str(writer.store)} | more, streams=True), message_schema())
        for more in ({"startingOffsets": "0"}, {"startingOffsets": "0", "failOnDataLoss": "false"})
    ]
    span = readers[0].initialOffset(), {"broker-a": {"offset": writer.end, "epoch": 0}}
    plans = [reader.partitions(*span) for reader in readers] if is_planned else []
    start, end, why = harm(writer)
    strict, lax = readers
    with pytest.raises(OffsetGone, match=rf"\[{start}, {end}\) are missing"):
        offsets_of(strict, plans[0] if plans else strict.partitions(*span))
    with caplog.at_level(logging.WARNING):
        assert offsets_of(lax, plans[1] if plans else lax.partitions(*span)) == left_of(writer, start, end)
    assert f"log offsets [{start}, {end}) {why}" in caplog.text


def test_query_beside_a_gap_reads_all(writer: LogWriter) -> None:
    _, end, _ = remove(writer)
    reader = reader_of(writer, startingOffsets=str(end))
    assert offsets_of(reader, reader.partitions()) == [one.log_offset for one in writer.made if one.log_offset >= end]


@spec("P04")
def test_file_cut_off_between_planning_and_reading_is_a_loss(writer: LogWriter) -> None:
    files, lost = open_log(writer.store), list[tuple[int, int, str]]()
    ranges = split(files, 0, writer.end)
    shorten(writer)
    result = [scrub_range(files, one) for one in ranges]
    cut = next(one for one in writer.made if one.log_offset + one.size > SEGMENT_BYTES + 30_000)
    assert [one["commitLogOffset"] for one in result[1]["damages"]] in ([], [cut.log_offset])
    assert result[1]["damages"] or result[1]["lost"]
    reading = DecodeOptions(("commitLogOffset",), fails_on_damage=False)
    list(read_planned(open_log(writer.store), reading, ranges, lambda *one: lost.append(one)))
    assert lost == [(SEGMENT_BYTES + 30_000, 2 * SEGMENT_BYTES, CUT)]


@pytest.mark.parametrize("is_cut_in_record", [False, True])
def test_last_file_that_was_cut_off_is_missing_its_end(writer: LogWriter, *, is_cut_in_record: bool) -> None:
    last = writer.made[-5]
    size = last.log_offset % SEGMENT_BYTES + (20 if is_cut_in_record else 0)
    with open(writer.path(last.log_offset), "r+b") as file:
        file.truncate(size)
    (gap,) = log_bounds(open_log(writer.store)).gaps
    begin = 2 * SEGMENT_BYTES
    assert gap.end == 3 * SEGMENT_BYTES
    assert gap.start == (begin + size)
    assert gap.why.endswith(f"has {size} of 65536 bytes")


def test_short_copy_of_a_last_file_with_the_zeros_behind_its_records_is_whole(writer: LogWriter) -> None:
    with open(writer.path(writer.end), "r+b") as file:
        file.truncate(writer.end % SEGMENT_BYTES + 100)
    assert log_bounds(open_log(writer.store)) == (writer.end, [])


def test_log_that_ends_before_its_marks_is_missing_its_end(writer: LogWriter) -> None:
    disk = RealDisk(writer.store)
    file = open_marks(disk)
    write_marks(file, Marks(synced=writer.end, written=writer.end + 500))
    file.close()
    assert log_bounds(open_log(writer.store)).gaps == []
    writer.path(2 * SEGMENT_BYTES).unlink()
    end, (gap,) = log_bounds(open_log(writer.store))
    assert gap == (end, writer.end, f"are missing: tandemq.marks has the log up to {writer.end}")


def test_log_that_grew_into_another_file_since_its_files_were_listed_misses_nothing(writer: LogWriter) -> None:
    files, end = open_log(writer.store), writer.end
    writer.write_many(300)
    assert writer.path(writer.end) != writer.path(end)
    file = open_marks(RealDisk(writer.store))
    write_marks(file, Marks(synced=writer.end, written=writer.end))
    file.close()
    assert log_bounds(files) == (3 * SEGMENT_BYTES, [])


def lose_end(writer: LogWriter) -> str:
    """Delete the last file of a store that was stopped; returns what is missing."""
    file = open_marks(RealDisk(writer.store))
    write_marks(file, Marks(synced=writer.end, written=writer.end, clean=True))
    file.close()
    writer.path(writer.end).unlink()
    return f"log offsets [{2 * SEGMENT_BYTES}, {writer.end}) are missing: tandemq.marks has the log up to {writer.end}"


def cut_end(writer: LogWriter) -> str:
    """Cut off the last file; returns what is missing."""
    with open(writer.path(writer.end), "r+b") as file:
        file.truncate(30_000)
    start, end = 2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES
    return f"log offsets [{start + 30_000}, {end}) are missing: {start:020d} has 30000 of {SEGMENT_BYTES} bytes"


@spec("P04")
@pytest.mark.parametrize("harm", [lose_end, cut_end])
@pytest.mark.parametrize("available_now", [False, True])
def test_stream_reports_a_missing_end_and_continues_if_loss_is_allowed(
    writer: LogWriter, caplog: pytest.LogCaptureFixture, harm: Callable[[LogWriter], str], *, available_now: bool
) -> None:
    lost = harm(writer)
    options = {"path": str(writer.store), "startingOffsets": "earliest"}
    for allowed in (False, True):
        more = {"failOnDataLoss": "false"} if allowed else {}
        reader = LogStreamReader(read_options(options | more, streams=True), message_schema())
        if available_now:
            reader.prepareForTriggerAvailableNow()
        limit = reader.getDefaultReadLimit()
        start = reader.initialOffset()
        assert reader.latestOffset(start, limit) == start
        if not allowed:
            with pytest.raises(OffsetGone, match=re.escape(lost)):
                reader.latestOffset(start, limit)
            continue
        end = reader.latestOffset(start, limit)
        assert reader.latestOffset(end, limit) == end
        there = left_of(writer, log_bounds(open_log(writer.store)).end, writer.end)
        assert offsets_of(reader, reader.partitions(start, end)) == there
    assert caplog.text.count(lost) == 1


@spec("P04")
@pytest.mark.parametrize("harm", [lose_end, cut_end])
def test_archive_of_a_log_without_its_end_is_refused_unless_loss_is_allowed(
    writer: LogWriter, tmp_path: Path, harm: Callable[[LogWriter], str]
) -> None:
    lost = harm(writer)
    options = ArchiveOptions(store=writer.store, lake=tmp_path / "lake")
    with pytest.raises(OffsetGone, match=f"{re.escape(lost)}.*--allow-loss"):
        Archive(options)
    assert Archive(replace(options, fails_on_loss=False)).done.start == 0


@pytest.mark.parametrize("harm", [remove, shorten, lambda writer: writer.path(writer.end).unlink()])
def test_rebuild_that_lost_a_file_between_two_runs_is_refused(
    writer: LogWriter, tmp_path: Path, harm: Callable[[LogWriter], object]
) -> None:
    options = RebuildOptions(store=writer.store, output=tmp_path / "made")
    assert _start_or_resume(open_log(writer.store), options, options.output) == writer.end
    end = writer.end
    writer.write_many(10)
    assert _start_or_resume(open_log(writer.store), options, options.output) == end
    harm(writer)
    with pytest.raises(OffsetGone, match=r"are missing: .*put back the files"):
        _start_or_resume(open_log(writer.store), options, options.output)


def queue_files(writer: LogWriter, per_file: int) -> None:
    """Write the consume queues of a log."""
    for made in writer.made:
        path = writer.store / f"consumequeue/{made.topic}/{made.queue_id}/{made.queue_offset // per_file:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "ab") as file:
            file.write(QUEUE_ENTRY.pack(made.log_offset, made.size, 0))


def test_queue_files_that_retention_would_have_deleted_show_a_missing_start(writer: LogWriter, tmp_path: Path) -> None:
    queue_files(writer, per_file=20)
    writer.path(0).unlink()
    (gap,) = log_bounds(open_log(writer.store)).gaps
    assert gap[:2] == (0, SEGMENT_BYTES)
    assert "are missing: retention would have deleted" in gap.why
    assert "consumequeue/T0/0/00000000000000000000" in gap.why
    with pytest.raises(OffsetGone, match="retention would have deleted"):
        reader_of(writer).partitions()
    options = ArchiveOptions(store=writer.store, lake=tmp_path / "lake")
    with pytest.raises(OffsetGone, match=r"retention would have deleted.*--allow-loss"):
        Archive(options)
    assert Archive(replace(options, fails_on_loss=False)).done.start == SEGMENT_BYTES
    # A lake that has the missing part needs it no more.
    DeltaLake(tmp_path / "lake").commit([], {position_mark("broker-a"): SEGMENT_BYTES})
    assert Archive(options).done.start == SEGMENT_BYTES
    for queue in (writer.store / "consumequeue").glob("*/*"):
        for path in sorted(queue.iterdir())[:-1]:
            (last, _, _) = QUEUE_ENTRY.unpack(path.read_bytes()[-20:])
            if last < SEGMENT_BYTES:
                path.unlink()
    assert log_bounds(open_log(writer.store)).gaps == []


@spec("P05")
@pytest.mark.parametrize("side", ["first", "second"])
def test_audit_names_what_only_one_log_has(writer: LogWriter, replica: LogWriter, side: str) -> None:
    harmed = writer if side == "first" else replica
    harmed.path(0).unlink()
    why = "are not compared: the log begins at 65536, by retention or because files are missing"
    lost = [{"start": 0, "end": SEGMENT_BYTES, "why": why, "in": [side]}]
    assert overlap(writer.store, replica.store).result.lost == lost
    assert overlap(writer.store, replica.store, allow_retention=True).result.lost == []
    harmed.made = writer.made
    queue_files(harmed, per_file=20)
    (evident,) = overlap(writer.store, replica.store, allow_retention=True).result.lost
    assert (evident["start"], evident["end"], evident["in"]) == (0, SEGMENT_BYTES, [side])


@spec("P04", "P05")
@pytest.mark.parametrize("harm", [remove, shorten])
def test_commands_read_the_rest_of_a_log_with_a_gap_and_end_with_exit_code_3(
    spark: SparkSession, writer: LogWriter, replica: LogWriter, tmp_path: Path, harm: Harm
) -> None:
    assert spark is not None
    start, end, why = harm(writer)
    gap, kept = {"start": start, "end": end, "why": why}, len(left_of(writer, start, end))

    def run(*words: object, code: int = 3) -> Any:
        shown = CliRunner().invoke(main, ["spark", *map(str, words)])
        assert shown.exit_code == code, shown.output
        return shown

    assert f"lost: log offsets [{start}, {end}) {why}\n" in run("scrub", writer.store).stdout
    scrubbed = json.loads(run("scrub", writer.store, "--json").stdout)
    assert (scrubbed["records"], scrubbed["lost"]) == (kept, [gap])
    counted = json.loads(run("stats", writer.store, "--json").stdout)
    assert (sum(one["messages"] for one in counted["topics"]), counted["lost"]) == (kept, [gap])
    for words, side in (((writer.store, replica.store), "first"), ((replica.store, writer.store), "second")):
        audited = json.loads(run("audit", *words, "--json").stdout)
        assert (audited["lost"], audited["bytes_equal"]) == ([gap | {"in": [side]}], writer.end - (end - start))
        assert not audited["differences"]
    refused = run("rebuild", writer.store, tmp_path / "made", code=1)
    assert f"log offsets [{start}, {end}) {why}" in refused.stderr
    assert "--allow-loss" in run("archive", writer.store, tmp_path / "lake", code=1).stderr
    archived = json.loads(run("archive", writer.store, tmp_path / "lake", "--allow-loss", "--json", code=0).stdout)
    assert archived["rows"] - archived["damaged"] == kept
