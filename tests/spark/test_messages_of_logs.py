"""State and replay of logs that are in no lake: the same messages as from a lake."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli import main
from tandemq.errors import ConfigError, OffsetGone
from tandemq.model.message import SysFlag
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.messages import LakeMessages, LogMessages, open_messages
from tandemq.spark.jobs.moments import TimeSpan
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.state import topic_state
from tandemq.spark.runtime.location import locate
from tests.spark.logs import BORN_MS, SEGMENT_BYTES, LogWriter
from tests.spark.messages import make_topic
from tests.spec import spec


def run(*words: object, code: int = 0) -> Any:
    shown = CliRunner().invoke(main, ["spark", *map(str, words)])
    assert shown.exit_code == code, shown.output
    return shown


@pytest.fixture
def made(tmp_path: Path) -> LogWriter:
    """A log with keys, deletions, and a damaged record."""
    writer = LogWriter(tmp_path / "broker-a")
    for number in range(900):
        keys = b"KEYS\x01k%d\x02" % (number % 7) if number % 11 else b""
        body = b"" if number == 890 else b"%d" % number * 20
        writer.write(body, topic="Orders" if number % 3 else "Other", properties=keys)
    assert writer.end > 2 * SEGMENT_BYTES
    writer.flip(writer.made[100].log_offset + 100)
    return writer


def answers(spark: SparkSession, source: Path) -> list[list[Any]]:
    spans: tuple[dict[str, Any], ...] = (
        {},
        {"span": TimeSpan(BORN_MS + 500, BORN_MS + 5_000)},
        {"latest_by_key": True},
    )
    return [
        sorted(topic_state(spark, source, ["Orders"], **given).collect(), key=lambda row: int(row.commitLogOffset))
        for given in spans
    ]


@spec("P24")
def test_state_of_a_log_is_that_of_its_lake(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    Archive(ArchiveOptions(store=made.store, lake=lake)).run(spark)
    everything, span, latest = answers(spark, made.store)
    assert [everything, span, latest] == answers(spark, lake)
    assert len(everything) == 599
    assert 0 < len(span) < 599
    assert len(latest) == 6
    assert isinstance(open_messages(lake), LakeMessages)
    # Log files in a directory of their own.
    assert topic_state(spark, made.store / "commitlog", ["Orders"]).count() == 599
    shown = json.loads(run("state", made.store, "Orders", "--json").stdout)
    assert (shown["messages"], shown["lost"]) == (599, [])
    with pytest.raises(ConfigError, match="is a log, which has no versions"):
        topic_state(spark, made.store, ["Orders"], version=3)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError):
        open_messages(tmp_path / "empty")


def test_records_written_after_a_log_was_opened_are_not_read(spark: SparkSession, made: LogWriter) -> None:
    opened = open_messages(made.store)
    made.write_many(5)
    rows = opened.rows(spark)
    assert rows is not None
    assert rows.count() == 900
    within = opened.rows_within(spark, made.made[899].log_offset, made.end)
    assert within is not None
    assert within.count() == 1
    assert opened.rows_within(spark, made.made[900].log_offset, made.end) is None


def test_missing_bytes_of_a_log_are_refused_or_listed(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    assert spark is not None
    made.path(SEGMENT_BYTES).unlink()
    gap = f"log offsets [{SEGMENT_BYTES}, {2 * SEGMENT_BYTES}) are missing"
    refused = run("state", made.store, "Orders", code=1)
    assert isinstance(refused.exception, SystemExit)
    assert gap in refused.stderr
    assert "--allow-loss" in refused.stderr
    shown = json.loads(run("state", made.store, "Orders", "--allow-loss", "--json", code=3).stdout)
    assert [(lost["start"], lost["end"]) for lost in shown["lost"]] == [(SEGMENT_BYTES, 2 * SEGMENT_BYTES)]
    kept = [
        one for one in made.made if one.topic == "Orders" and one.log_offset // SEGMENT_BYTES != 1 and one.number != 100
    ]
    assert shown["messages"] == len(kept)
    assert f"lost: {gap}" in run("state", made.store, "Orders", "--allow-loss", code=3).stdout


def bodies(spark: SparkSession, name_servers: str, topic: str) -> list[bytes]:
    rows = spark.read.format("rocketmq").options(nameServer=name_servers, subscribe=topic).load().collect()
    return sorted(bytes(row.body) for row in rows)


@spec("P13")
def test_log_is_sent_to_a_topic_once_while_it_grows(
    spark: SparkSession, tandemq_broker: LocalCluster, made: LogWriter, tmp_path: Path
) -> None:
    names, note = tandemq_broker.name_servers, tmp_path / "note"
    make_topic(names, "Again", 2)
    plain = b"compressed " * 30
    made.write(zlib.compress(plain), topic="Orders", sys_flag=int(SysFlag.COMPRESSED), properties=b"")
    orders = [one.body for one in made.made[:900] if one.topic == "Orders" and one.body and one.number != 100]
    words = (
        "replay",
        made.store,
        "--to-topic",
        "Again",
        "--namesrv",
        names,
        "--where",
        "topic = 'Orders' AND size > 0",
    )
    sent = json.loads(run(*words, "--note", note, "--json").stdout)
    assert (sent["rows"], sent["skipped"], sent["lost"]) == (600, 0, [])
    assert bodies(spark, names, "Again") == sorted([*orders, b"", plain])
    made.write(b"grown", topic="Orders")
    sent = json.loads(run(*words, "--note", note, "--json").stdout)
    assert sent["rows"] == 1
    # What was not sent before the log's start was deleted is a loss.
    reached = json.loads(note.read_text())
    reached["done"]["broker-a"] = 1_000
    note.write_text(json.dumps(reached))
    made.path(0).unlink()
    gone = f"log offsets [1000, {SEGMENT_BYTES}) are gone"
    assert gone in run(*words, "--note", note, code=1).stderr
    assert f"\nlost: {gone}" in run(*words, "--note", note, "--allow-loss", code=3).stdout


def test_time_span_of_a_log_is_sent(spark: SparkSession, tandemq_broker: LocalCluster, made: LogWriter) -> None:
    make_topic(tandemq_broker.name_servers, "Again", 1)
    options = {"nameServer": tandemq_broker.name_servers, "topic": "Again"}
    span = TimeSpan(BORN_MS + 5_000, BORN_MS + 6_000)
    assert replay_to_topic(spark, made.store, options, span=span, broker_name="broker-z").rows == 100


def test_log_is_not_restored_as_a_log(spark: SparkSession, made: LogWriter, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is a log already, not a lake .*rebuild --allow-loss"):
        replay_to_store(spark, made.store, "broker-a", tmp_path / "again")


def test_log_that_begins_after_a_position_has_lost_what_was_not_read(tmp_path: Path) -> None:
    made = LogWriter(tmp_path / "broker-a", start=SEGMENT_BYTES)
    made.write_many(3)
    place = locate(made.store, "the log")
    LogMessages(place).check_has(SEGMENT_BYTES)
    with pytest.raises(OffsetGone, match=r"log offsets \[10, 65536\) are gone: the log begins at 65536"):
        LogMessages(place).check_has(10)
    lax = LogMessages(place, allows_loss=True)
    lax.check_has(10)
    assert [gap[:2] for gap in lax.lost] == [(10, SEGMENT_BYTES)]
