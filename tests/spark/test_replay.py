"""Replay of a lake to a topic, and to the store of a new slave."""

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli.spark.replay import epochs_of_broker, replay
from tandemq.errors import ConfigError, StoreDamaged, StoreError
from tandemq.model.message import UNIQ_KEY, Message
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.replay import ReplayResult, replay_to_store, replay_to_topic
from tandemq.spark.lake.delta import DeltaLake
from tests.spark.logs import LogWriter
from tests.spark.messages import make_topic, numbered, send
from tests.spec import spec

SEGMENT_BYTES = 65_536
SMALL = {"mappedFileSizeCommitLog": SEGMENT_BYTES}


def archive(spark: SparkSession, store: Path, lake: Path) -> None:
    run = Archive(ArchiveOptions(store=store, lake=lake, broker_name="broker-a"))
    run.start(spark).awaitTermination()


@pytest.mark.tandemq(**SMALL)
def test_lake_becomes_the_store_of_a_fresh_slave_that_copies_only_the_rest(
    spark: SparkSession, tandemq_pair: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_pair.name_servers, tmp_path / "lake"
    master, slave = tandemq_pair.broker(), tandemq_pair.broker(broker_id=1)
    make_topic(names, "Orders", 2)
    send(names, [Message("Orders", bytes(range(200)) * 100, "a", ["big"]), *numbered("Orders", 0, 700, "b")])
    tandemq_pair.wait_in_sync()
    slave.kill()
    archive(spark, master.store, lake)
    shutil.rmtree(slave.store)
    done = replay_to_store(spark, lake, "broker-a", slave.store, segment_bytes=SEGMENT_BYTES)
    log_end = master.node.store.log.written_end
    assert (done.log_start, done.log_end, done.done) == (0, log_end, done.total)
    assert done.total > 2
    assert done.epochs == epochs_of_broker(master.address) == [(1, 0)]
    for path in (slave.store / "commitlog").iterdir():
        assert path.read_bytes() == (master.store / "commitlog" / path.name).read_bytes()
    again = replay_to_store(spark, lake, "broker-a", slave.store, segment_bytes=SEGMENT_BYTES)
    assert again.skipped == again.total == done.total
    send(names, numbered("Orders", 700, 720))
    copied_bytes = master.node.store.log.written_end - log_end
    slave.start()
    tandemq_pair.wait_until(slave.is_registered)
    tandemq_pair.wait_in_sync()
    assert 0 < copied_bytes < SEGMENT_BYTES
    assert slave.node.store.log.start == 0
    assert slave.node.store.queues["Orders", 0].max_offset == master.node.store.queues["Orders", 0].max_offset
    assert slave.node.store.queues["Orders", 0].min_offset == 0
    with pytest.raises(ConfigError, match="is a store in use"):
        replay_to_store(spark, lake, "broker-a", slave.store, segment_bytes=SEGMENT_BYTES)


@pytest.mark.tandemq(**SMALL)
def test_lake_with_missing_records_is_written_to_no_store(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "lake"
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 700))
    archive(spark, tandemq_broker.broker().store, lake)
    with pytest.raises(ConfigError, match="has no messages of the broker group 'broker-z'"):
        replay_to_store(spark, lake, "broker-z", tmp_path / "none")
    table = DeltaLake(lake)
    table._table.delete("commitLogOffset > 20000 and commitLogOffset < 21000")
    with pytest.raises(StoreDamaged, match="of Orders queue 0, offsets 0 to 699, the lake holds 69"):
        replay_to_store(spark, lake, "broker-a", tmp_path / "store", segment_bytes=SEGMENT_BYTES)
    assert not list((tmp_path / "store").rglob("0*"))


@spec("P13")
def test_replay_to_a_topic_resumes_from_its_progress_file(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake, note = tandemq_broker.name_servers, tmp_path / "lake", tmp_path / "note.json"
    make_topic(names, "Orders", 2)
    big = bytes(range(200)) * 100
    sent = send(names, [Message("Orders", big, "t", ["k"], {"who": "me"}), *numbered("Orders", 0, 50)])
    archive(spark, tandemq_broker.broker().store, lake)
    options = {"nameServer": names, "topic": "Again"}
    done = replay_to_topic(spark, lake, options, where="topic = 'Orders'", noted=note)
    assert (done.rows, done.skipped) == (51, 0)
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Again", propertiesAs="map").load()
    rows = source.collect()
    assert {row.properties[UNIQ_KEY] for row in rows} == {result.unique_key for result in sent}
    (first,) = [row for row in rows if row.tags == "t"]
    assert (first.body, first.key, first.properties["who"]) == (big, "k", "me")
    again = replay_to_topic(spark, lake, options, where="topic = 'Orders'", noted=note)
    assert (again.rows, again.skipped, again.total) == (0, done.total, done.total)
    for other_options, condition, reason in (
        ({"nameServer": names, "topic": "Other"}, "topic = 'Orders'", 'its topic is "Again", not "Other"'),
        ({"nameServer": names}, "topic = 'Orders'", 'its topic is "Again", not null'),
        (options, None, "its where is \"topic = 'Orders'\", not null"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"{note} is the note of another replay: {reason}")):
            replay_to_topic(spark, lake, other_options, where=condition, noted=note)
    note.write_text(json.dumps({"lake": "elsewhere", "sent": []}))
    with pytest.raises(ConfigError, match="is not the note of a replay"):
        replay_to_topic(spark, lake, options, noted=note)


def test_message_without_a_unique_key_gets_the_same_key_at_every_replay(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "lake"
    writer = LogWriter(tmp_path / "broker-a")
    for number in range(20):
        writer.write(b"%d" % number, properties=b"KEYS\x01k\x02")
    archive(spark, writer.store, lake)
    make_topic(names, "Again", 2)
    for _ in range(2):
        assert replay_to_topic(spark, lake, {"nameServer": names, "topic": "Again"}).rows == 20
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Again", propertiesAs="map").load()
    keys = {(row.properties[UNIQ_KEY], bytes(row.body)) for row in source.collect()}
    assert len(keys) == len({key for key, _ in keys}) == 20


def test_unwritable_progress_file_is_an_error_before_anything_is_sent(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "lake"
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(5)
    archive(spark, writer.store, lake)
    make_topic(names, "Again", 1)
    options = {"nameServer": names, "topic": "Again"}
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(StoreError, match=r"the note.*cannot be made"):
        replay_to_topic(spark, lake, options, noted=tmp_path / "file" / "note.json")
    assert bodies(spark, names, "Again") == []
    note = tmp_path / "new" / "note.json"
    assert replay_to_topic(spark, lake, options, noted=note).rows == 5
    assert replay_to_topic(spark, lake, options, noted=note).rows == 0


@spec("P13")
@pytest.mark.tandemq(messageDelayLevel="1s 1s")
def test_lake_of_delayed_messages_that_grows_and_is_compacted_is_sent_once(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.spark.jobs.replay.PIECE_BYTES", 2_000)
    names, broker = tandemq_broker.name_servers, tandemq_broker.broker()
    lake, note, where = tmp_path / "lake", tmp_path / "note.json", "topic <> 'Again'"
    for topic in ("Orders", "%RETRY%g"):
        make_topic(names, topic, 1)
    send(names, [*numbered("Orders", 0, 10), Message("Orders", b"10", delay_level=1), Message("%RETRY%g", b"3")])
    tandemq_broker.wait_until(lambda: broker.node.store.queues["Orders", 0].max_offset == 11)
    archive(spark, broker.store, lake)
    options = {"nameServer": names, "topic": "Again"}

    def interrupt(done: ReplayResult) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        replay_to_topic(spark, lake, options, where=where, noted=note, progress=interrupt)
    first = replay_to_topic(spark, lake, options, where=where, noted=note)
    assert 0 < first.skipped < first.total
    send(names, numbered("Orders", 11, 20))
    archive(spark, broker.store, lake)
    assert DeltaLake(lake).compact()["filesRemoved"] == 2
    second = replay_to_topic(spark, lake, options, where=where, noted=note)
    assert second.skipped == first.total
    assert second.rows == 9
    assert bodies(spark, names, "Again") == list(range(20))


def test_system_topics_are_excluded_and_counted_unless_requested(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path
) -> None:
    names, lake = tandemq_broker.name_servers, tmp_path / "lake"
    for topic in ("Orders", "%RETRY%g"):
        make_topic(names, topic, 1)
    send(names, [*numbered("Orders", 0, 5), Message("Orders", b"5", delay_level=18), Message("%RETRY%g", b"3")])
    archive(spark, tandemq_broker.broker().store, lake)
    to_same_topics = replay_to_topic(spark, lake, {"nameServer": names})
    assert (to_same_topics.rows, to_same_topics.left_out) == (6, {SCHEDULE_TOPIC: 1})
    assert bodies(spark, names, "Orders") == sorted([*range(5), *range(5)])
    to_one_topic = replay_to_topic(spark, lake, {"nameServer": names, "topic": "One"})
    assert (to_one_topic.rows, to_one_topic.left_out) == (5, {SCHEDULE_TOPIC: 1, "%RETRY%g": 1})
    with_system_topics = replay_to_topic(
        spark, lake, {"nameServer": names, "topic": "All"}, also=[SCHEDULE_TOPIC, "%RETRY%g"]
    )
    assert (with_system_topics.rows, with_system_topics.left_out) == (7, {})
    assert bodies(spark, names, "All") == [0, 1, 2, 3, 3, 4, 5]
    with pytest.raises(ConfigError, match="brokers accept no messages for SCHEDULE_TOPIC_XXXX"):
        replay_to_topic(spark, lake, {"nameServer": names}, also=[SCHEDULE_TOPIC])


def bodies(spark: SparkSession, names: str, topic: str) -> list[int]:
    rows = spark.read.format("rocketmq").options(nameServer=names, subscribe=topic).load()
    return sorted(int(row.body) for row in rows.select("body").collect())


def test_command_refuses_contradicting_options(tmp_path: Path) -> None:
    runner = CliRunner()
    for arguments, reason in (
        ([], "give one of --to-topic, --to-same-topics and --to-store"),
        (["--to-topic", "T", "--to-store", "d"], "give one of"),
        (["--to-store", "d", "--where", "x"], "a log is written completely"),
        (["--to-store", "d", "--also", "x"], "a log is written completely"),
    ):
        result = runner.invoke(replay, [str(tmp_path), *arguments])
        assert result.exit_code == 2
        assert reason in result.output


def test_broker_without_epochs_is_named_before_spark_starts(tmp_path: Path) -> None:
    arguments = [str(tmp_path), "--to-store", str(tmp_path / "d"), "--epochs-of", "127.0.0.1:1"]
    result = CliRunner().invoke(replay, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "--epochs-of: no process answers at 127.0.0.1:1" in str(result.exception)
