"""Scrub and audit: find all faults with their positions, and no others."""

import gc
import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError, LocalError
from tandemq.spark.jobs.audit import audit, audit_range
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.jobs.tasks import RangeJob, Result, run_tasks
from tandemq.spark.sources.log.files import open_log
from tandemq.spark.sources.log.ranges import LogRange, split
from tests.spark.logs import HOST_V6, LogWriter
from tests.spec import spec

RANGE_BYTES = 1 << 16


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "master", segment_bytes=1 << 20)
    made.write_many(3000)
    return made


@pytest.fixture
def replica(writer: LogWriter, tmp_path: Path) -> LogWriter:
    shutil.copytree(writer.store, tmp_path / "slave")
    return LogWriter(tmp_path / "slave", segment_bytes=1 << 20)


def test_scrub_counts_records_and_reports_damage_and_torn_tail(spark: SparkSession, writer: LogWriter) -> None:
    harmed, last = writer.made[700], writer.made[-1]
    writer.flip(harmed.log_offset + 92)
    writer.flip(last.log_offset + 92)
    found = scrub(spark, writer.store, range_bytes=RANGE_BYTES)
    assert found.records == len(writer.made) - 2
    assert [one["commitLogOffset"] for one in found.damages] == [harmed.log_offset]
    assert found.damages[0]["topic"] == harmed.topic
    assert (found.end, found.torn_tail) == (last.log_offset, last.size)


def test_scrub_resumes_from_its_state_file(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    state, reported = tmp_path / "state", list[int]()
    whole = scrub(spark, writer.store, range_bytes=RANGE_BYTES, state=state)
    lines = state.read_text().splitlines(keepends=True)
    state.write_text("".join(lines[:4]) + lines[4][:20])
    again = scrub(
        spark, writer.store, range_bytes=RANGE_BYTES, state=state, progress=lambda done, _: reported.append(done)
    )
    assert again == whole
    assert reported[0] == 3 * RANGE_BYTES
    with pytest.raises(ConfigError, match="is not the state of this job"):
        scrub(spark, writer.store, range_bytes=2 * RANGE_BYTES, state=state)


def test_finished_check_is_repeated_with_its_state_file(
    spark: SparkSession, writer: LogWriter, replica: LogWriter, tmp_path: Path
) -> None:
    scrubbed, audited = tmp_path / "scrub", tmp_path / "audit"

    def check() -> tuple[int, int | None]:
        damages = scrub(spark, writer.store, range_bytes=RANGE_BYTES, state=scrubbed).damages
        return len(damages), audit(
            spark, writer.store, replica.store, range_bytes=RANGE_BYTES, state=audited
        ).diverges_at

    assert check() == (0, None)
    kept = scrubbed.read_text(), audited.read_text()
    assert check() == (0, None)
    assert (scrubbed.read_text(), audited.read_text()) == kept
    harmed = writer.made[100].log_offset
    writer.flip(harmed + 92)
    assert check() == (1, harmed)


def test_audit_of_logs_with_nothing_in_common_fails(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    later = LogWriter(tmp_path / "later", segment_bytes=1 << 20, start=4 << 20)
    later.write_many(10)
    with pytest.raises(
        LocalError, match=r"no log offsets in common to compare: .*\[0, \d+\), .*later.*\[4194304, \d+\)"
    ):
        audit(spark, writer.store, later.store)


def frozen(_wanted: LogRange) -> Result:
    return {"frozen": gc.get_freeze_count()}


def test_worker_freezes_modules_after_a_task(spark: SparkSession, writer: LogWriter) -> None:
    ranges = split(open_log(writer.store), 0, writer.end, RANGE_BYTES)
    found = run_tasks(spark, ranges, RangeJob("frozen", frozen))
    assert len(found) > 2 * spark.sparkContext.defaultParallelism
    assert found[-1]["frozen"]


def test_audit_of_equal_replicas_finds_no_difference_and_reports_the_lag(
    spark: SparkSession, writer: LogWriter, replica: LogWriter
) -> None:
    end = writer.end
    writer.write_many(10)
    found = audit(spark, writer.store, replica.store, range_bytes=RANGE_BYTES)
    assert found.diverges_at is None
    assert (found.start, found.end, found.bytes_equal) == (0, end, end)
    assert (found.first_end, found.second_end) == (writer.end, end)


@spec("P05")
def test_audit_names_corrupt_missing_extra_and_different_records(
    spark: SparkSession, writer: LogWriter, replica: LogWriter
) -> None:
    corrupt, gone, added = writer.made[100], writer.made[1500], writer.made[2000]
    replica.flip(corrupt.log_offset + 92)
    replica.zero(gone.log_offset, gone.log_offset + gone.size)
    writer.zero(added.log_offset - writer.made[1999].size, added.log_offset + added.size)
    lost = writer.made[2200]
    replica.zero(lost.log_offset - writer.made[2199].size, lost.log_offset + lost.size)
    other = LogWriter(replica.store.parent / "other", segment_bytes=1 << 20)
    for made in writer.made[:2500]:
        other.write(made.body)
    changed = other.write(writer.made[2500].body.replace(b"body", b"BODY"))
    start, end = changed.log_offset, changed.log_offset + changed.size
    with open(replica.path(start), "r+b") as file:
        file.seek(start % (1 << 20))
        file.write(other.path(start).read_bytes()[start % (1 << 20) : end % (1 << 20)])
    found = audit(spark, writer.store, replica.store, range_bytes=RANGE_BYTES)
    reported = [(one["kind"], one["commitLogOffset"], one.get("in")) for one in found.differences]
    assert reported == [
        ("corrupt", corrupt.log_offset, ["second"]),
        ("corrupt", gone.log_offset, ["second"]),
        ("corrupt", writer.made[1999].log_offset, ["first"]),
        ("extra", added.log_offset, None),
        ("corrupt", writer.made[2199].log_offset, ["second"]),
        ("missing", lost.log_offset, None),
        ("different", changed.log_offset, None),
    ]
    assert found.counts == {"corrupt": 4, "extra": 1, "missing": 1, "different": 1, "removed": 0}
    assert found.diverges_at == corrupt.log_offset


def test_audit_reports_each_difference_once_for_any_range_boundary(writer: LogWriter, replica: LogWriter) -> None:
    harmed = writer.made[1000]
    replica.flip(harmed.log_offset + harmed.size - 30)
    files = open_log(writer.store), open_log(replica.store)
    for cut in range(harmed.log_offset - 3, harmed.log_offset + harmed.size + 3, 7):
        ranges = [*split(files[0], 0, cut, 1 << 30), *split(files[0], cut, writer.end, 1 << 30)]
        ranges[1:] = [type(one)(one.start, one.end, one.start == 0, one.checks_end, one.log_end) for one in ranges[1:]]
        found = [one for wanted in ranges for one in audit_range(*files, wanted)["differences"]]
        assert [(one["kind"], one["commitLogOffset"]) for one in found] == [("corrupt", harmed.log_offset)], cut


def test_audit_counts_filler_at_the_end_of_files_separately(spark: SparkSession, tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "a")
    made.write_many(1000)
    shutil.copytree(made.store, tmp_path / "b")
    blank = max(one.log_offset + one.size for one in made.made if one.log_offset < made.segment_bytes)
    LogWriter(tmp_path / "b").flip(blank + 20)
    found = audit(spark, made.store, tmp_path / "b")
    assert found.diverges_at is None
    assert found.filler > 0


def test_audit_reads_records_of_every_kind(spark: SparkSession, tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "a")
    for _ in range(100):
        made.write()
        made.write(born_host=HOST_V6)
    shutil.copytree(made.store, tmp_path / "b")
    harmed = made.made[31]
    LogWriter(tmp_path / "b").flip(harmed.log_offset + 130)
    found = audit(spark, made.store, tmp_path / "b")
    assert [(one["kind"], one["commitLogOffset"]) for one in found.differences] == [("corrupt", harmed.log_offset)]
