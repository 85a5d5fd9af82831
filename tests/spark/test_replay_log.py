"""Replay of a lake to a log: the same bytes."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tandemq.broker.state.topics import parse_topics
from tandemq.errors import ConfigError
from tandemq.real.disk import RealDisk
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.replay import replay_to_store
from tandemq.spark.jobs.restored_config import ConfigWriter, RestoredQueue
from tandemq.spark.lake.delta import DeltaLake
from tandemq.storage.json_tables import DataVersion, TableFile
from tests.golden import unpack
from tests.spark.logs import HOST_V6, LogWriter
from tests.spec import spec


def archived(spark: SparkSession, store: Path, lake: Path, broker_name: str = "broker-a") -> int:
    return Archive(ArchiveOptions(store=store, lake=lake, broker_name=broker_name)).run(spark).end


def log_bytes(store: Path, end: int) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir()))[:end]


@spec("P07")
def test_log_is_restored_byte_for_byte_including_damage_and_epochs(spark: SparkSession, tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "store")
    for _ in range(200):
        made.write()
        made.write(born_host=HOST_V6)
        made.write(topic="L" * 200, is_java=True)
        made.write(properties=b"A\x01\xff\x02")
    made.flip(made.made[300].log_offset + 120)
    made.zero(made.made[500].log_offset, made.made[502].log_offset)
    epochs = f"2\n0\n1-0\n4-{made.made[100].log_offset}\n"
    (made.store / "epochFileCheckpoint").write_text(epochs)
    end = archived(spark, made.store, tmp_path / "lake")
    DeltaLake(tmp_path / "lake").compact()
    done = replay_to_store(spark, tmp_path / "lake", "broker-a", tmp_path / "again", segment_bytes=made.segment_bytes)
    assert (done.log_start, done.log_end, done.done) == (0, end, len(list((made.store / "commitlog").iterdir())))
    assert log_bytes(tmp_path / "again", end) == log_bytes(made.store, end)
    assert (tmp_path / "again" / "epochFileCheckpoint").read_text().split("\n")[2:] == epochs.split("\n")[2:]


def test_log_of_a_java_broker_is_restored_byte_for_byte(spark: SparkSession, tmp_path: Path) -> None:
    unpack("store-4.9.7-clean", tmp_path)
    end = archived(spark, tmp_path / "store", tmp_path / "lake")
    size = next((tmp_path / "store" / "commitlog").iterdir()).stat().st_size
    replay_to_store(spark, tmp_path / "lake", "broker-a", tmp_path / "again", segment_bytes=size)
    assert log_bytes(tmp_path / "again", end) == log_bytes(tmp_path / "store", end)


@spec("P07")
def test_log_of_a_lake_that_grew_is_completed(spark: SparkSession, tmp_path: Path) -> None:
    made, lake, again = LogWriter(tmp_path / "store"), tmp_path / "lake", tmp_path / "again"
    found = []
    for count in (300, 10, 600, 0):  # into the last file, then beyond it
        made.write_many(count)
        archived(spark, made.store, lake)
        done = replay_to_store(spark, lake, "broker-a", again, segment_bytes=made.segment_bytes)
        assert log_bytes(again, made.end) == log_bytes(made.store, made.end)
        found.append((done.total, done.skipped))
    (again / "commitlog" / f"{0:020d}").unlink()
    (again / f"replay-{0:020d}-0123456789ab").write_bytes(b"of a task that was killed")
    done = replay_to_store(spark, lake, "broker-a", again, segment_bytes=made.segment_bytes)
    assert log_bytes(again, made.end) == log_bytes(made.store, made.end)
    assert {path.name for path in again.iterdir()} == {"commitlog", "config", "replay.json"}
    assert [*found, (done.total, done.skipped)] == [(1, 0), (1, 0), (3, 0), (3, 3), (3, 2)]


@spec("P07")
def test_topics_of_the_log_are_restored_unless_the_store_has_a_table(tmp_path: Path) -> None:
    places = [
        ("Orders", 0),
        ("Orders", 2),
        ("SCHEDULE_TOPIC_XXXX", 3),
        ("%RETRY%billing", 1),
        ("rmq_sys_wheel_timer", 0),
    ]

    notes: list[dict[str, int]] = [{}]

    def restored(*more: tuple[str, int]) -> list[str] | None:
        queues = {place: RestoredQueue(10, 1_000) for place in (*places, *more)}
        noted = dict(notes[-1])
        return ConfigWriter(tmp_path, queues, noted, lambda: notes.append(dict(noted))).write(None, 2_000).topics

    def table() -> dict[str, Any]:
        return TableFile("topics.json").load(RealDisk(tmp_path))

    def put(content: dict[str, Any]) -> None:
        TableFile("topics.json").save(RealDisk(tmp_path), content)

    assert restored() == ["%RETRY%billing", "Orders"]
    found = {one.topic_name: one.write_queue_nums for one in parse_topics(table())}
    assert found == {"%RETRY%billing": 2, "Orders": 3}
    own = table()
    grown = ["%RETRY%billing", "Orders", "Payments"]
    assert restored(("Payments", 0)) == grown
    # A run that died before it wrote the table has noted it.
    put(own)
    assert restored(("Payments", 0)) == grown
    assert restored(("Payments", 0)) == grown
    own = table()
    # Tables that a broker, an operator or a tool without versions has changed or made.
    orders = {"topicName": "Orders", "readQueueNums": 8, "writeQueueNums": 8, "perm": 4}
    for other in (
        own | {"dataVersion": DataVersion(1, 1).as_json()},
        own | {"topicConfigTable": own["topicConfigTable"] | {"Orders": orders}},
        {"topicConfigTable": {"Orders": orders}},
        {},
    ):
        put(other)
        assert restored(("Refunds", 0)) is None
        assert table() == other
    (tmp_path / "config/topics.json").rename(tmp_path / "config/topics.json.bak")
    assert restored(("Refunds", 0)) is None
    (tmp_path / "config/topics.json.bak").unlink()
    assert restored(("Refunds", 0)) == ["%RETRY%billing", "Orders", "Refunds"]


@spec("P07")
def test_directory_with_another_log_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    again = tmp_path / "again"
    for lake, name in (("lake", "broker-a"), ("lake", "broker-b"), ("other", "broker-a")):
        made = LogWriter(tmp_path / lake / name)
        made.write_many(10)
        archived(spark, made.store, tmp_path / f"{lake}.delta", name)
    replay_to_store(spark, tmp_path / "lake.delta", "broker-a", again, segment_bytes=1 << 16)
    whole = log_bytes(again, 1 << 16)
    for lake, name, size, says in (
        ("lake", "broker-b", 1 << 16, 'its brokerName is "broker-a", not "broker-b"'),
        ("other", "broker-a", 1 << 16, "its lake is "),
        ("lake", "broker-a", 1 << 17, "its segmentBytes is 65536, not 131072"),
    ):
        with pytest.raises(ConfigError, match=f"is the note of another replay: {says}"):
            replay_to_store(spark, tmp_path / f"{lake}.delta", name, again, segment_bytes=size)
    (tmp_path / "lake.delta").rename(tmp_path / "gone")
    (tmp_path / "other.delta").rename(tmp_path / "lake.delta")
    with pytest.raises(ConfigError, match="is the note of another replay: its table is "):
        replay_to_store(spark, tmp_path / "lake.delta", "broker-a", again, segment_bytes=1 << 16)
    assert log_bytes(again, 1 << 16) == whole
    (again / "replay.json").unlink()
    with pytest.raises(ConfigError, match="contains a log that does not come from a replay"):
        replay_to_store(spark, tmp_path / "gone", "broker-a", again, segment_bytes=1 << 16)


def test_one_of_several_groups_is_chosen(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    DeltaLake(lake, create=True)
    with pytest.raises(ConfigError, match="holds no messages yet"):
        replay_to_store(spark, lake, "broker-b", tmp_path / "again", segment_bytes=1 << 16)
    groups = {name: LogWriter(tmp_path / name) for name in ("broker-a", "broker-b")}
    for count, (name, made) in enumerate(groups.items(), 10):
        made.write_many(count)
        archived(spark, made.store, lake, name)
    made = groups["broker-b"]
    done = replay_to_store(spark, lake, "broker-b", tmp_path / "again", segment_bytes=1 << 16)
    assert done.rows == 11
    assert log_bytes(tmp_path / "again", made.end) == log_bytes(made.store, made.end)
