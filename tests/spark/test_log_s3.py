"""Archived log files on a real S3 server: scrub, audit and removal give the results of the same files on a disk."""

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, LocalError, StoreDamaged, StoreLocked
from tandemq.spark.jobs import removal
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.audit import audit, audit_range
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.removal import remove_from_log
from tandemq.spark.jobs.scrub import scrub, scrub_range
from tandemq.spark.jobs.stats import gather
from tandemq.spark.jobs.tasks import LOST
from tandemq.spark.lake import lease
from tandemq.spark.runtime.location import Location, locate
from tandemq.spark.sources.log import segments
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, log_end, open_log
from tandemq.spark.sources.log.ranges import split
from tandemq.spark.sources.log.segments import RemoteSegment
from tests.spark.lakes import Died, are_same
from tests.spark.logs import LogWriter
from tests.spark.s3 import S3
from tests.spark.s3 import SECRET as PASSWORD
from tests.spark.test_removal import BY_KEY, SECRET, made_log
from tests.spec import spec


def put_log(s3: S3, store: Path, directory: str = "commitlog/") -> Location:
    """Copy the files of a log to the server."""
    place = s3.new_lake()
    for path in (store / "commitlog").iterdir():
        s3.put(place, f"{directory}{path.name}", path.read_bytes())
    return place


def get_log(s3: S3, place: Location, store: Path) -> Path:
    """Copy them back."""
    (store / "commitlog").mkdir(parents=True)
    for name in s3.names(place):
        if name.startswith("commitlog/0"):
            (store / name).write_bytes(s3.get(place, name))
    return store


def damaged_log(store: Path) -> LogWriter:
    """A log of several files, the last one not full, with damage in the middle and a torn record at its end."""
    writer = LogWriter(store)
    writer.write_many(700)
    writer.flip(writer.made[100].log_offset + 100)
    writer.zero(writer.made[300].log_offset, writer.made[303].log_offset)
    writer.zero(writer.made[-1].log_offset + 20, writer.end)
    return writer


@spec("P05", "P37")
def test_scrub_and_audit_of_log_files_on_s3_are_those_of_the_same_files_on_a_disk(
    spark: SparkSession, s3: S3, tmp_path: Path
) -> None:
    sound, harmed = LogWriter(tmp_path / "sound/broker-a"), damaged_log(tmp_path / "harmed/broker-a")
    sound.write_many(800)
    assert len(list((harmed.store / "commitlog").iterdir())) > 2
    places = put_log(s3, sound.store), put_log(s3, harmed.store, directory="")
    ours, theirs = (scrub(spark, place, range_bytes=1 << 14) for place in (harmed.store, places[1]))
    assert (len(ours.damages), ours.torn_tail > 0) == (2, True)
    assert asdict(theirs) == asdict(ours)
    expected = asdict(audit(spark, sound.store, harmed.store, range_bytes=1 << 14))
    assert expected["differences"]
    for pair in ((sound.store, places[1]), places):
        found = asdict(audit(spark, *pair, range_bytes=1 << 14))
        assert found | {"first": 0, "second": 0} == expected | {"first": 0, "second": 0}
    words = ["spark", "audit", str(harmed.store), places[0].url, "--json"]
    words += [word for name, value in s3.options.items() for word in ("--storage-option", f"{name}={value}")]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, PASSWORD in result.output) == (3, False), result.output
    assert json.loads(result.stdout)["diverges_at"] == harmed.made[100].log_offset


@spec("P37")
def test_remote_file_is_read_by_ranges_and_its_end_once(
    s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "AHEAD_BYTES", 1 << 12)
    read: list[int] = []
    fetch = RemoteSegment._fetch

    def counted(self: RemoteSegment, position: int, size: int) -> bytes:
        read.append(size)
        return fetch(self, position, size)

    monkeypatch.setattr(RemoteSegment, "_fetch", counted)
    writer = LogWriter(tmp_path / "broker-a", segment_bytes=1 << 20)
    writer.write_many(200)
    files = open_log(put_log(s3, writer.store))
    assert (files.broker_name, files.segment_bytes) == (files.location.url.split("/")[-2], 1 << 20)
    with LogFileReader(files) as remote, LogFileReader(open_log(writer.store)) as local:
        assert log_end(remote) == log_end(local) == writer.end
        assert sum(read) < 3 << 20, "the zeros of the last file, once, and its records"
        read.clear()
        for made in writer.made:
            assert remote(made.log_offset, made.size) == local(made.log_offset, made.size)
        assert len(read) < writer.end / 2_000, "records are read together"
        assert remote.next_data(writer.end) == writer.end
        assert remote((1 << 20) - 10, 100) == bytes(10)
        assert remote(1 << 20, 100) == b""


@spec("P37")
def test_log_file_that_is_deleted_meanwhile_is_reported_as_lost(s3: S3, tmp_path: Path) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(400)
    files = open_log(put_log(s3, writer.store))
    (wanted, *_) = split(files, files.start, writer.end, 1 << 16)
    files.location.delete(files.name(wanted.start))
    (lost,) = scrub_range(files, wanted)[LOST]
    assert (lost["start"], lost["end"], "deleted" in lost["why"]) == (wanted.start, wanted.end, True)
    (lost,) = audit_range(files, open_log(writer.store), wanted)[LOST]
    assert lost["in"] == ["first"]


@spec("P22", "P37")
def test_messages_are_removed_from_log_files_on_s3(spark: SparkSession, s3: S3, tmp_path: Path) -> None:
    writer, secret = made_log(tmp_path / "broker-a")
    place, before = put_log(s3, writer.store), tmp_path / "before"
    shutil.copytree(writer.store, before)
    assert remove_from_log(spark, place, BY_KEY, dry_run=True).messages == len(secret)
    assert are_same(before, get_log(s3, place, tmp_path / "untouched"))
    page = tmp_path / "report.json"
    words = ["spark", "remove", "--log", place.url, "--key", SECRET, "--report", str(page)]
    words += [word for name, value in s3.options.items() for word in ("--storage-option", f"{name}={value}")]
    result = CliRunner().invoke(main, words)
    assert (result.exit_code, PASSWORD in result.output) == (0, False), f"{result.output} {result.exception}"
    (found,) = json.loads(page.read_text())["results"]
    assert (found["messages"], found["foundAfter"], found["path"]) == (len(secret), 0, place.child("commitlog"))
    remove_from_log(spark, writer.store, BY_KEY)
    assert are_same(writer.store, get_log(s3, place, tmp_path / "after"))
    assert not [name for name in s3.names(place) if f"{SECRET} ".encode() in s3.get(place, name)]


@spec("P22", "P37")
def test_removal_that_is_stopped_leaves_each_file_whole_and_is_finished_by_the_next(
    spark: SparkSession, s3: S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "REPLACED_BYTES", 1000)  # records extend over several parts
    writer, secret = made_log(tmp_path / "broker-a")
    place = put_log(s3, writer.store)
    files = open_log(place)
    renewed: list[int] = []

    class Killed(lease.DirectoryLease):
        """Ends without a release, after the first file."""

        def renew(self) -> None:
            renewed.append(1)
            if len(renewed) == 2:
                raise Died
            super().renew()

        def release(self) -> None:
            pass

    monkeypatch.setattr(removal, "DirectoryLease", Killed)
    with pytest.raises(Died):
        remove_from_log(spark, place, BY_KEY)
    monkeypatch.setattr(removal, "DirectoryLease", lease.DirectoryLease)
    first = writer.path(0).name
    assert changed(s3, files, writer) == [first]
    with pytest.raises(StoreLocked, match=r"another process changes the files.*repeat the command in \d+ s"):
        remove_from_log(spark, place, BY_KEY)
    later = time.time_ns() + (lease.HELD_MS + 1) * 1_000_000
    monkeypatch.setattr("tandemq.spark.lake.lease.time.time_ns", lambda: later)
    done = remove_from_log(spark, place, BY_KEY)
    assert 0 < done.messages < len(secret)
    assert (done.found_after, done.is_complete) == (0, True)
    remove_from_log(spark, writer.store, BY_KEY)
    assert changed(s3, files, writer) == []


def changed(s3: S3, files: LogFiles, writer: LogWriter) -> list[str]:
    """Files that are not the same as on the disk."""
    names = [files.name(start) for start in files.starts]
    return [name for name in names if s3.get(files.location, name) != (writer.store / "commitlog" / name).read_bytes()]


@spec("P37")
def test_lease_is_held_by_one_process_and_lost_to_the_next(s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    place = s3.new_lake()
    held = lease.DirectoryLease(place)
    held.renew()
    with pytest.raises(StoreLocked, match="another process changes the files"):
        lease.DirectoryLease(place)
    later = time.time_ns() + (lease.HELD_MS + 1) * 1_000_000
    monkeypatch.setattr("tandemq.spark.lake.lease.time.time_ns", lambda: later)
    other = lease.DirectoryLease(place)
    with pytest.raises(StoreLocked, match="this one has stopped before its next change"):
        held.renew()
    held.release()
    other.renew()
    other.release()
    lease.DirectoryLease(place).release()


@spec("P15", "P37")
@pytest.mark.parametrize(
    ("url", "options", "what"),
    [
        ("s3://nothing/log", {}, "there is no such bucket"),
        ("s3://lakes/mistyped", {}, "holds no commit log"),
        (
            "s3://lakes/log",
            {"aws_endpoint_url": "http://127.0.0.1:1", "max_retries": "0"},
            "the store does not respond",
        ),
        ("s3://lakes/log", {"aws_allow_http": "false"}, "has no TLS"),
        ("ftp://host/log", {}, "ftp:// is not supported"),
    ],
)
def test_wrong_location_of_a_log_is_an_error_of_one_line(
    spark: SparkSession, s3: S3, tmp_path: Path, url: str, options: dict[str, str], what: str
) -> None:
    def place() -> Location:
        return locate(url, "the log", s3.options | options)

    jobs: tuple[Callable[[], Any], ...] = (
        lambda: scrub(spark, place()),
        lambda: audit(spark, place(), tmp_path),
        lambda: remove_from_log(spark, place(), BY_KEY),
        lambda: gather(spark, place()),
        lambda: rebuild(spark, RebuildOptions(store=place(), output=tmp_path / "rebuilt")),
        lambda: Archive(ArchiveOptions(store=place(), lake=tmp_path / "lake")),
    )
    for job in jobs:
        with pytest.raises((ConfigError, LocalError, StoreDamaged), match=what) as caught:
            job()
        assert "\n" not in str(caught.value)
