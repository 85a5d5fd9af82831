"""Stores rebuilt from logs with missing bytes: brokers open them, and serve what is left."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.codec.record.entries import BLANK, BLANK_MAGIC
from tandemq.errors import ConfigError, StoreDamaged
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.salvage import _epochs, _Plan, _plan
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.gaps import Gap, log_bounds
from tests.spark.logs import SEGMENT_BYTES, LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spark.s3 import S3
from tests.spec import spec

SMALL = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
SIZES = ("--queue-file-bytes", "60000", "--slots", "5000", "--entries", "20000")


def cut(path: Path, size: int) -> None:
    with open(path, "r+b") as file:
        file.truncate(size)


def record_end(made: LogWriter, before: int) -> int:
    """Return the end of the last whole record before a log offset."""
    return max(one.log_offset + one.size for one in made.made if one.log_offset + one.size <= before)


def read(spark: SparkSession, name_servers: str) -> list[int]:
    options = {"nameServer": name_servers, "subscribe": "Orders", "failOnDataLoss": "false"}
    rows = spark.read.format("rocketmq").options(**options).load().select("body").collect()
    return sorted(int(row.body) for row in rows)


@spec("P06")
def test_broker_and_a_new_slave_serve_a_store_rebuilt_from_a_log_with_gaps(spark: SparkSession, tmp_path: Path) -> None:
    with LocalCluster(tmp_path / "lost", settings=SMALL) as cluster:
        make_topic(cluster.name_servers, "Orders", 2)
        send(cluster.name_servers, numbered("Orders", 0, 1_500))
        log = Path(shutil.copytree(cluster.broker().store / "commitlog", tmp_path / "archived"))
    names = sorted(path.name for path in log.iterdir())
    assert len(names) > 4
    (log / names[1]).unlink()
    cut(log / names[3], 30_000)
    kept = [
        int(row.body)
        for row in spark.read.format("rocketmq-log").option("failOnDataLoss", "false").load(str(log)).collect()
        if row.topic == "Orders"
    ]
    again = tmp_path / "again" / "broker-a-0"
    words = ["spark", "rebuild", str(log), str(again), "--allow-loss", *SIZES, "--json"]
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 3, shown.output
    facts = json.loads(shown.stdout)
    first, second = facts["lost"]
    assert first == {
        "start": SEGMENT_BYTES,
        "end": 2 * SEGMENT_BYTES,
        "why": f"are missing: there is no file {names[1]}",
    }
    assert 3 * SEGMENT_BYTES + 29_000 < second["start"] <= 3 * SEGMENT_BYTES + 30_000 < second["end"]
    assert second["why"] == f"are missing: {names[3]} has 30000 of {SEGMENT_BYTES} bytes"
    holes = [hole for hole in facts["holes"] if hole["topic"] == "Orders"]
    assert sum(hole["end"] - hole["start"] for hole in holes) == 1_500 - len(kept) > 500
    with LocalCluster(tmp_path / "again", slaves=1, settings=SMALL) as cluster:
        assert cluster.broker().node.store.damaged == []
        assert read(spark, cluster.name_servers) == sorted(kept)
        (sent,) = send(
            cluster.name_servers, numbered("Orders", 1_500, 1_501), queue=MessageQueue("Orders", "broker-a", 0)
        )
        assert sent.queue_offset == 750
        cluster.wait_in_sync()
        stores = [broker.node.store for broker in cluster.brokers]
        assert stores[0].log.written_end == stores[1].log.written_end
        assert stores[0].queues["Orders", 0].max_offset == stores[1].queues["Orders", 0].max_offset == 751
        for path in (again / "commitlog").iterdir():
            assert (tmp_path / "again/broker-a-1/commitlog" / path.name).read_bytes() == path.read_bytes()


@pytest.fixture
def made(tmp_path: Path) -> LogWriter:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(1_500)
    assert writer.end > 4 * SEGMENT_BYTES
    return writer


def plan_of(made: LogWriter) -> _Plan:
    return _plan(open_log(made.store))


def test_missing_bytes_of_a_file_begin_behind_its_last_whole_record(made: LogWriter) -> None:
    cut(made.path(SEGMENT_BYTES), 30_000)
    made.path(2 * SEGMENT_BYTES).unlink()
    made.path(3 * SEGMENT_BYTES).unlink()
    end = record_end(made, SEGMENT_BYTES + 30_000)
    assert end < SEGMENT_BYTES + 30_000
    first, second = plan_of(made).blanks
    assert first[:2] == (end, 2 * SEGMENT_BYTES)
    names = f"{2 * SEGMENT_BYTES:020d} to {3 * SEGMENT_BYTES:020d}"
    assert second == (2 * SEGMENT_BYTES, 4 * SEGMENT_BYTES, f"are missing: there is no file {names}")
    # Damage before the cut stays.
    broken = next(one for one in made.made if one.log_offset > SEGMENT_BYTES + 10_000)
    made.flip(broken.log_offset + 100)
    assert plan_of(made).blanks == [first, second]


def test_file_without_the_zeros_behind_its_blank_is_whole(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    end = record_end(made, SEGMENT_BYTES)
    whole = made.path(0).read_bytes()
    assert whole[end : end + 8] == BLANK.pack(SEGMENT_BYTES - end, BLANK_MAGIC)
    cut(made.path(0), end + 8)
    assert plan_of(made) == (made.end, [], [])
    done = rebuild(spark, RebuildOptions(store=made.store, output=tmp_path / "new", allows_loss=True))
    assert (done.entries, done.lost, done.holes) == (1_500, [], [])
    assert (tmp_path / "new/commitlog" / made.path(0).name).read_bytes() == whole
    cut(made.path(0), end + 4)
    assert [gap[:2] for gap in plan_of(made).blanks] == [(end, SEGMENT_BYTES)]


def test_missing_end_is_reported_and_gets_no_blank(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    size = made.end % SEGMENT_BYTES - 10
    cut(made.path(made.end), size)
    end = made.made[-1].log_offset
    done = rebuild(spark, RebuildOptions(store=made.store, output=tmp_path / "new", allows_loss=True))
    (lost,) = done.lost
    assert (lost["start"], lost["end"]) == (made.end - 10, made.end - size - 10 + SEGMENT_BYTES)
    assert done.entries == 1_499
    files = open_log(tmp_path / "new")
    assert log_bounds(files) == (end, [])
    with LogFileReader(files) as read:
        assert read(end, 1_000) == bytes(1_000)
    found = sorted(path.name for path in (tmp_path / "new").iterdir())
    assert found == ["commitlog", "config", "consumequeue", "index"]


def test_epoch_that_began_in_missing_bytes_begins_behind_them() -> None:
    plan = _Plan(900, [Gap(100, 200, ""), Gap(400, 500, "")], [])
    assert _epochs([(1, 0), (2, 100), (3, 150), (5, 200), (6, 300), (7, 499)], plan) == [
        (1, 0),
        (2, 100),
        (5, 200),
        (6, 300),
        (7, 500),
    ]
    assert _epochs([], plan) == []


class Stopped(Exception):
    """An interruption by the user."""


def test_interrupted_copy_resumes_and_others_are_refused(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    made.path(SEGMENT_BYTES).unlink()
    (made.store / "epochFileCheckpoint").write_text("1\n0\n1-0\n")
    output = tmp_path / "new"
    options = RebuildOptions(store=made.store, output=output, allows_loss=True)

    def stop(done: int, _total: int) -> None:
        if done:
            raise Stopped

    with pytest.raises(Stopped):
        rebuild(spark, options, progress=stop)
    copied = {path: path.stat().st_mtime_ns for path in (output / "commitlog").iterdir()}
    assert copied
    other = LogWriter(tmp_path / "other")
    other.write_many(10)
    with pytest.raises(ConfigError, match=r"contains an unfinished copy of .*broker-a/commitlog, not of .*other"):
        rebuild(spark, RebuildOptions(store=other.store, output=output, allows_loss=True))
    with pytest.raises(ConfigError, match="is not empty"):
        rebuild(spark, RebuildOptions(store=made.store, output=output))
    end = made.end
    made.write_many(50)  # as a running broker does
    seen: list[Any] = []
    done = rebuild(spark, options, seen.append)
    assert seen == ["log", "scan", "consume queues", "key index"]
    assert [lost["start"] for lost in done.lost] == [SEGMENT_BYTES]
    assert {path: path.stat().st_mtime_ns for path in copied} == copied
    files = open_log(output)
    assert files.epochs == ((1, 0),)
    with LogFileReader(files) as read:
        assert log_end(read) == end
    with pytest.raises(ConfigError, match="is not empty"):
        rebuild(spark, options)


def test_log_without_a_sound_record_is_refused(made: LogWriter, tmp_path: Path) -> None:
    store = tmp_path / "empty"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / made.path(0).name).write_bytes(bytes(SEGMENT_BYTES))
    with pytest.raises(StoreDamaged, match="has no sound record"):
        _plan(open_log(store))


@spec("P06")
def test_log_with_a_gap_on_s3_becomes_the_same_store_as_on_a_disk(
    spark: SparkSession, s3: S3, made: LogWriter, tmp_path: Path
) -> None:
    cut(made.path(0), 30_000)
    made.path(2 * SEGMENT_BYTES).unlink()
    place = s3.new_lake()
    offsets = b'{"offsetTable": {"T0@billing": {"0": 9000}}}'
    s3.put(place, "config/consumerOffset.json", offsets)
    (made.store / "config").mkdir()
    (made.store / "config/consumerOffset.json").write_bytes(offsets)
    for path in (made.store / "commitlog").iterdir():
        s3.put(place, f"commitlog/{path.name}", path.read_bytes())
    sizes: dict[str, Any] = {"queue_file_bytes": 2_000, "index": False, "allows_loss": True}
    results = [
        rebuild(spark, RebuildOptions(store=source, output=tmp_path / name, **sizes))
        for name, source in (("disk", made.store), ("s3", place))
    ]
    assert results[0].holes == results[1].holes != []
    assert [lost["start"] for lost in results[0].lost] == [lost["start"] for lost in results[1].lost]
    assert results[1].config is not None
    assert (results[1].config.origin, results[1].config.clamped) == (place.url, 1)
    found = [
        {
            str(path.relative_to(tmp_path / name)): path.read_bytes()
            for path in (tmp_path / name).rglob("0*")
            if path.is_file()
        }
        for name in ("disk", "s3")
    ]
    assert found[0] == found[1] != {}
