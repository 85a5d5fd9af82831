"""Configuration of a broker, kept with its archived log, and restored with it."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq import Message
from tandemq.broker.state.consumer_offsets import ConsumerOffsets, parse_offsets
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.persistence import Saver
from tandemq.cli import main
from tandemq.cli.spark.config_of import config_of_broker, read_config
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ConfigError, NotConnected, StoreDamaged
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.real.disk import RealDisk
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.restored_config import ConfigWriter, RestoredQueue, queues_of
from tandemq.spark.jobs.saved_config import (
    KEPT,
    ConfigKeeper,
    SavedConfig,
    config_of_files,
    config_place,
    kept_config,
    offsets_of_files,
    tables_of_responses,
)
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.runtime.location import Location
from tests.spark.logs import LogWriter
from tests.spark.messages import committed, make_topic, numbered, send, set_offsets
from tests.spark.s3 import S3
from tests.spec import spec

SEGMENT_BYTES = 1 << 16
SMALL = {"mappedFileSizeCommitLog": SEGMENT_BYTES}
QUEUE = MessageQueue("Orders", "broker-a", 0)
VERSION = {"counter": 7, "stateVersion": 0, "timestamp": 1_000}


def run(*words: object, code: int = 0) -> Any:
    shown = CliRunner().invoke(main, ["spark", *map(str, words)])
    assert shown.exit_code == code, shown.output
    return shown


def names_of(store: Path, table: str, key: str) -> dict[str, Any]:
    entries = json.loads((store / "config" / table).read_text())[key]
    assert isinstance(entries, dict)
    return entries


@spec("P07")
def test_store_made_from_an_archive_has_topics_groups_and_offsets_of_the_broker(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert spark is not None
    lake, again = tmp_path / "lake", tmp_path / "again" / "broker-a-0"
    with LocalCluster(tmp_path / "first", settings=SMALL) as cluster:
        names, broker = cluster.name_servers, cluster.broker()
        make_topic(names, "Orders", 2)
        make_topic(names, "Empty", 3)
        send(names, numbered("Orders", 0, 100), queue=QUEUE)
        send(names, [Message("Orders", b"later", delay_level=18)])
        set_offsets(names, "billing", {QUEUE: 60})
        archived = json.loads(
            run(
                "archive", broker.store, lake, "--broker-name", "broker-a", "--config-of", broker.address, "--json"
            ).stdout
        )
        assert time.time() * 1000 - archived["config_ms"] < 600_000
        restore = ("replay", lake, "--to-store", again, "--segment-bytes", SEGMENT_BYTES)
        # Of the living broker: later than the log in the lake.
        send(names, numbered("Orders", 100, 150), queue=QUEUE)
        set_offsets(names, "billing", {QUEUE: 140})
        live = json.loads(run(*restore, "--config-of", broker.address, "--json").stdout)["config"]
        assert (live["from"], live["clamped"], live["delayProgress"]) == (broker.address, 1, False)
        offsets = names_of(again, "consumerOffset.json", "offsetTable")
        assert offsets["Orders@billing"] == {"0": 100}
    run("vacuum", lake, "--hours", 0)
    shown = json.loads(run(*restore, "--json").stdout)
    kept = shown["config"]
    assert (kept["made"], kept["clamped"], kept["delayProgress"]) == (archived["config_ms"], 0, True)
    assert {"Orders", "Empty"} <= set(shown["topics"])
    assert "delayOffset.json" in {path.name for path in (again / "config").iterdir()}
    with LocalCluster(tmp_path / "again", settings=SMALL) as cluster:
        node = cluster.broker().node
        assert node.topics.table["Empty"].config.write_queue_nums == 3
        assert "billing" in node.groups.table
        assert committed(cluster.name_servers, "billing", "Orders")[QUEUE] == 60


@spec("P06")
def test_rebuilt_store_has_the_configuration_in_the_files_of_the_old_one(spark: SparkSession, tmp_path: Path) -> None:
    assert spark is not None
    with LocalCluster(tmp_path / "first", settings=SMALL) as cluster:
        names, broker = cluster.name_servers, cluster.broker()
        make_topic(names, "Orders", 1)
        make_topic(names, "Empty", 3)
        send(names, numbered("Orders", 0, 1_200))
        set_offsets(names, "billing", {QUEUE: 1_200})
        store = broker.store
    files = sorted((store / "commitlog").iterdir())
    files[-1].unlink()
    again = tmp_path / "again" / "broker-a-0"
    sizes = ("--queue-file-bytes", 60_000, "--slots", 5_000, "--entries", 20_000)
    facts = json.loads(run("rebuild", store, again, "--allow-loss", *sizes, "--json", code=3).stdout)
    assert (facts["config"]["from"], facts["config"]["clamped"]) == (str(store), 1)
    with LocalCluster(tmp_path / "again", settings=SMALL) as cluster:
        node = cluster.broker().node
        end = node.store.queues["Orders", 0].max_offset
        assert 0 < end < 1_200
        assert committed(cluster.name_servers, "billing", "Orders")[QUEUE] == end
        assert node.topics.table["Empty"].config.write_queue_nums == 3


def saved(made_ms: int = 1, log_end: int | None = 500, **tables: Any) -> SavedConfig:
    return SavedConfig(made_ms, "127.0.0.1:1", log_end, {f"{name}.json": table for name, table in tables.items()})


def topic(name: str, queues: int = 4) -> dict[str, Any]:
    return {"topicName": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6}


def test_offsets_and_delay_progress_are_limited_to_the_end_of_their_queues(tmp_path: Path) -> None:
    offsets = {"Orders@billing": {0: 60, 1: 900}, "Gone@billing": {0: 5}}
    config = saved(
        consumerOffset={"dataVersion": VERSION, "offsetTable": offsets, "tandemChanges": 3},
        delayOffset={"offsetTable": {"1": 4, "3": 90}, "waitingTable": {"3": [10, 80]}},
    )
    queues = {
        ("Orders", 0): RestoredQueue(70, 400),
        ("Orders", 1): RestoredQueue(80, 450),
        ("SCHEDULE_TOPIC_XXXX", 2): RestoredQueue(50, 1),
    }
    done = ConfigWriter(tmp_path, queues).write(config, 500)
    assert (done.offsets, done.clamped, done.has_delays) == (3, 2, True)
    table = json.loads((tmp_path / "config/consumerOffset.json").read_text())
    assert table["dataVersion"] == VERSION
    assert parse_offsets(table) == {"Orders@billing": {0: 60, 1: 80}, "Gone@billing": {0: 0}}
    assert "tandemChanges" not in table
    delays = json.loads((tmp_path / "config/delayOffset.json").read_text())
    assert delays == {"offsetTable": {"1": 0, "3": 50}, "waitingTable": {"3": [10]}}


def test_delay_progress_that_is_newer_than_the_log_is_left_out(tmp_path: Path) -> None:
    config = saved(log_end=501, delayOffset={"offsetTable": {"1": 4}})
    assert not ConfigWriter(tmp_path, {}).write(config, 500).has_delays
    assert not (tmp_path / "config/delayOffset.json").exists()
    assert ConfigWriter(tmp_path, {}).write(saved(log_end=None, delayOffset={"offsetTable": {"1": 4}}), 500).has_delays


def test_topic_deleted_before_the_configuration_was_read_is_not_restored(tmp_path: Path) -> None:
    config = saved(topics={"dataVersion": VERSION, "topicConfigTable": {"Orders": topic("Orders", 2)}})
    queues = {
        ("Orders", 5): RestoredQueue(1, 10),
        ("Deleted", 0): RestoredQueue(1, 400),
        ("Later", 1): RestoredQueue(1, 600),
    }
    assert ConfigWriter(tmp_path, queues).write(config, 700).topics == ["Later", "Orders"]
    table = json.loads((tmp_path / "config/topics.json").read_text())
    assert table["dataVersion"] == VERSION
    assert {name: entry["readQueueNums"] for name, entry in table["topicConfigTable"].items()} == {
        "Orders": 2,
        "Later": 2,
    }


def test_queues_end_behind_their_last_sound_or_removed_record(spark: SparkSession) -> None:
    rows = [
        ("Orders", 0, 5, 100, None),
        ("Orders", 0, 6, 200, "removed"),
        ("Orders", 0, 9, 300, "wrong checksum"),
        ("Orders", 1, 0, 50, None),
        (None, None, None, 400, "torn"),
    ]
    frame = spark.createDataFrame(
        rows, "topic string, queueId int, queueOffset long, commitLogOffset long, verdict string"
    )
    assert queues_of(frame) == {("Orders", 0): (7, 200), ("Orders", 1): (1, 50)}


def save(saver: Saver) -> None:
    """Write what is due."""
    job = saver.begin(lambda *_: None)
    assert job is not None
    job.run()
    saver.job_done(None)


def test_tables_in_the_files_of_a_store_include_their_changes(tmp_path: Path) -> None:
    store = Location(str(tmp_path))
    assert config_of_files(store) is None
    disk = RealDisk(tmp_path)
    saver = Saver(disk)
    groups = Groups(saver, BrokerConfig(), 1_000)
    groups.put(SubscriptionGroupConfig("billing"), 1_000)
    save(saver)
    groups.put(SubscriptionGroupConfig("shipping"), 1_001)
    groups.remove("billing", 1_002)
    save(saver)
    assert any(path.name.startswith("subscriptionGroup.changes-") for path in (tmp_path / "config").iterdir())
    found = config_of_files(store)
    assert found is not None
    names = set(found.tables["subscriptionGroup.json"]["subscriptionGroupTable"])
    assert {"billing", "shipping"} & names == {"shipping"}
    (tmp_path / "config/consumerOffset.json").write_text("{}")
    with pytest.raises(StoreDamaged, match="consumerOffset"):
        config_of_files(store)


def test_offsets_in_the_files_of_a_store_include_their_changes(tmp_path: Path) -> None:
    store = Location(str(tmp_path))
    assert offsets_of_files(store) == {}
    saver = Saver(RealDisk(tmp_path))
    offsets = ConsumerOffsets(saver, 1_000)
    offsets.commit("T", "billing", 0, 5)
    offsets.note(json.dumps({"offsetTable": {"T@billing": {"0": 5}}}).encode())
    offsets.save()
    save(saver)
    offsets.note(json.dumps({"offsetTable": {"T@billing": {"0": 9}, "T@shipping": {"1": 3}}}).encode())
    expected = {"T@billing": {0: 9}, "T@shipping": {1: 3}}
    assert offsets_of_files(store) == expected
    found = config_of_files(store)
    assert found is not None
    assert parse_offsets(found.tables["consumerOffset.json"]) == expected
    assert parse_offsets(SavedConfig.decode(found.encode(), "x").tables["consumerOffset.json"]) == expected


def test_static_topics_beside_the_topics_of_a_response_become_a_table_of_their_own() -> None:
    mapping = {"T": {"topic": "T", "bname": "broker-a", "totalQueues": 1, "epoch": 1, "hostedQueues": {}}}
    response = {"topicConfigTable": {}, "mappingDataVersion": VERSION, "topicQueueMappingDetailMap": mapping}
    tables = tables_of_responses(response, None, None, None)
    assert tables["topics.json"] == {"topicConfigTable": {}}
    assert tables["topicQueueMapping.json"] == {"dataVersion": VERSION, "topicQueueMappingInfoMap": mapping}


def test_configuration_is_kept_when_the_archive_has_reached_the_end_it_had_and_old_ones_are_deleted(
    tmp_path: Path,
) -> None:
    lake, made = Location(str(tmp_path)), iter(range(1_000, 2_000))
    keeper = ConfigKeeper(lake, "broker-a", lake, lambda: saved(next(made), 500))
    place = config_place(lake, "broker-a")
    keeper.take(lambda: 0)
    keeper.reached(499, lambda: 0)
    assert place.files() == []
    keeper.reached(500, lambda: 0)
    assert keeper.kept_ms == 1_000
    for _ in range(KEPT + 3):
        keeper.take(lambda: 0)
        keeper.finish(600)
    assert len(place.files()) == KEPT
    # A document that is newer than the log is used only if there is no other one.
    other = ConfigKeeper(lake, "broker-a", lake, lambda: saved(5_000, 900))
    other.take(lambda: 0)
    other.finish(600)
    found = [kept_config(lake, "broker-a", end) for end in (900, 600, 100)]
    assert [config and config.made_ms for config in found] == [5_000, 1_000 + KEPT + 3, 5_000]
    assert kept_config(lake, "broker-b", 900) is None
    (tmp_path / "_tandemq_config/broker-a/9.json").write_text("[]")
    with pytest.raises(StoreDamaged, match=r"9\.json is no configuration of a broker.*delete it"):
        kept_config(lake, "broker-a", 900)


def test_archive_keeps_the_files_of_a_store_and_survives_damaged_ones(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = LogWriter(tmp_path / "broker-a")
    made.write_many(10)
    table = made.store / "config/consumerOffset.json"
    table.parent.mkdir()
    table.write_text('{"offsetTable":{"T0@g":{0:3}}}')  # as RocketMQ writes it
    options = ArchiveOptions(store=made.store, lake=tmp_path / "lake")
    done = Archive(options).run(spark)
    assert done.config_ms is not None
    found = kept_config(DeltaLake(tmp_path / "lake").location, "broker-a", made.end)
    assert found is not None
    assert (found.made_ms, found.log_end, found.origin) == (done.config_ms, made.end, str(made.store))
    table.write_text("{}")
    made.write_many(1)
    assert Archive(options).run(spark).config_ms is None
    assert "the configuration is not kept: " in caplog.text


def test_archive_that_continues_reads_the_configuration_again_and_goes_on_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lake, answers = Location(str(tmp_path)), [saved(1_000, 500), saved(2_000, 700)]

    def source() -> SavedConfig:
        if not answers:
            raise StoreDamaged("offsets of 127.0.0.1:1 are malformed")
        return answers.pop(0)

    keeper = ConfigKeeper(lake, "broker-a", lake, source)
    keeper.take(lambda: 0)
    keeper.reached(600, lambda: 0)
    assert (keeper.kept_ms, len(answers)) == (1_000, 1)  # five minutes have not passed
    monkeypatch.setattr("tandemq.spark.jobs.saved_config.EVERY_S", 0.0)
    keeper.reached(600, lambda: 0)
    assert (keeper.kept_ms, answers) == (1_000, [])
    keeper.reached(700, lambda: 0)
    assert keeper.kept_ms == 2_000
    assert "the configuration is not kept now: offsets of 127.0.0.1:1 are malformed" in caplog.text


def test_configuration_is_kept_in_a_lake_on_s3(s3: S3) -> None:
    lake = s3.new_lake()
    for made_ms in range(1_000, 1_002 + KEPT):
        keeper = ConfigKeeper(lake, "broker-a", lake, partial(saved, made_ms))
        keeper.take(lambda: 0)
        keeper.finish(500)
    names = s3.names(config_place(lake, "broker-a"))
    assert len(names) == KEPT
    found = kept_config(lake, "broker-a", 500)
    assert found == saved(1_001 + KEPT)


def test_broker_that_does_not_answer_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(NotConnected):
        read_config("127.0.0.1:1")
    with pytest.raises(ConfigError, match=r"--config-of: .*leave the option out"):
        config_of_broker("127.0.0.1:1")
    (tmp_path / "lake").mkdir()
    for words, says in (
        (
            ("replay", tmp_path / "lake", "--to-topic", "T", "--config-of", "127.0.0.1:1"),
            "--config-of needs --to-store",
        ),
        (
            ("rebuild", tmp_path / "lake", tmp_path / "new", "--config-of", "127.0.0.1:1"),
            "--config-of needs --allow-loss",
        ),
    ):
        assert says in run(*words, code=2).output
