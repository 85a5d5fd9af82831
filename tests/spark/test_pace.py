"""Sources on Spark before 4.2, which passes a reader neither a start offset nor a limit."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from click.testing import CliRunner
from pyspark.sql.datasource import DataSourceStreamReader

from tandemq.cli import main
from tandemq.errors import ConfigError, OffsetGone
from tandemq.model.message import MessageQueue
from tandemq.run.local import LocalCluster
from tandemq.spark.runtime import versions
from tandemq.spark.runtime.client_pool import close_clients
from tandemq.spark.runtime.versions import BEGIN, SelfPacedReader
from tandemq.spark.sources.cluster.options import source_options
from tandemq.spark.sources.cluster.stream_reader import StreamReader
from tandemq.spark.sources.log.options import read_options
from tandemq.spark.sources.log.source import LogStreamReader
from tandemq.spark.sources.schema import message_schema
from tests.spark.logs import LogWriter
from tests.spark.messages import committed, make_topic, numbered, send
from tests.spec import spec

Offset = dict[str, Any]


class OldSpark:
    """The calls of Spark before 4.2 to a reader: record offsets, run tasks, commit. Its offset log survives a
    restart."""

    def __init__(self, make: Callable[[], DataSourceStreamReader]) -> None:
        self._make = make
        self.offsets: list[Offset] = []
        self.commits = 0
        self.batches: list[list[bytes]] = []
        self.start()

    def start(self) -> None:
        """Start a query on the present checkpoint: plans the newest offset first, then repeats an incomplete batch."""
        self.reader = self._make()
        if self.offsets:
            assert list(self.reader.partitions(self.offsets[-1], self.offsets[-1])) == []
        if self.commits < len(self.offsets):
            self._run()

    def trigger(self, *, dies: bool = False) -> None:
        """Run one micro-batch if there is anything to read, or only record it."""
        end = json.loads(json.dumps(self.reader.latestOffset()))  # type: ignore[call-arg]
        if self.offsets and end == self.offsets[-1]:
            return
        self.offsets.append(end)
        if not dies:
            self._run()

    def _run(self) -> None:
        number = self.commits
        before = self.offsets[number - 1] if number else json.loads(json.dumps(self.reader.initialOffset()))
        parts = self.reader.partitions(before, self.offsets[number])
        self.batches.append([body for part in parts for batch in self.reader.read(part) for body in bodies(batch)])
        self.commits += 1
        self.reader.commit(self.offsets[number])

    @property
    def rows(self) -> list[bytes]:
        return [body for batch in self.batches for body in batch]


def bodies(batch: Any) -> list[bytes]:
    return list(batch["body"].to_pylist())


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    return LogWriter(tmp_path / "broker-a")


@pytest.fixture
def names(tandemq_broker: LocalCluster) -> Iterator[str]:
    yield tandemq_broker.name_servers
    close_clients()


def log_reader(writer: LogWriter, **options: str) -> SelfPacedReader:
    return SelfPacedReader(
        LogStreamReader(read_options({"path": str(writer.store), **options}, streams=True), message_schema())
    )


def cluster_reader(names: str, **options: str) -> SelfPacedReader:
    given = {"nameServer": names, "subscribe": "Orders", "startingOffsets": "earliest", **options}
    return SelfPacedReader(StreamReader(source_options(given, streaming=True), message_schema()))


@spec("P01")
@pytest.mark.parametrize("seed", range(4))
def test_log_is_read_once_and_within_the_limit_however_often_the_query_dies(writer: LogWriter, seed: int) -> None:
    random = Random(seed)
    writer.write_many(200)
    spark = OldSpark(lambda: log_reader(writer, maxBytesPerTrigger="4000"))
    for _ in range(60):
        spark.trigger(dies=random.random() < 0.3)
        if spark.commits < len(spark.offsets) or random.random() < 0.2:
            spark.start()
        if random.random() < 0.3:
            writer.write_many(5)
    while spark.offsets[-1]["broker-a"]["offset"] < writer.end:
        spark.trigger()
    assert spark.rows == [made.body for made in writer.made]
    longest = max(made.size for made in writer.made)
    assert max(sum(map(len, batch)) for batch in spark.batches) <= 4000
    ends = [offset["broker-a"]["offset"] for offset in spark.offsets]
    assert max(end - start for start, end in zip([0, *ends], ends, strict=False)) <= 4000 + longest


@spec("P01")
def test_cluster_is_read_once_and_within_the_limit_however_often_the_query_dies(names: str) -> None:
    make_topic(names, "Orders", 3)
    send(names, numbered("Orders", 0, 100))
    spark = OldSpark(lambda: cluster_reader(names, maxOffsetsPerTrigger="30", commitGroup="pipeline"))
    spark.trigger(dies=True)
    assert sum(spark.offsets[0]["Orders"]["broker-a"][name] for name in "012") == 30
    send(names, numbered("Orders", 100, 110))
    spark.start()
    assert [len(batch) for batch in spark.batches] == [30]
    spark.trigger()
    spark.start()
    spark.trigger(dies=True)
    spark.start()
    make_topic(names, "Orders", 4)
    send(names, numbered("Orders", 110, 120), queue=MessageQueue("Orders", "broker-a", 3))
    for _ in range(4):
        spark.trigger()
    assert sorted(int(body) for body in spark.rows) == list(range(120))
    assert [len(batch) for batch in spark.batches] == [30, 30, 30, 20, 10]
    count = len(spark.offsets)
    spark.trigger()
    spark.start()
    spark.trigger()
    assert len(spark.offsets) == count
    assert sum(committed(names, "pipeline", "Orders").values()) == 120


def test_repeated_first_batch_has_the_same_start_although_options_have_changed(names: str, writer: LogWriter) -> None:
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 5))
    spark = OldSpark(lambda: cluster_reader(names, startingOffsets="latest"))
    spark.trigger(dies=True)
    send(names, numbered("Orders", 5, 9))
    spark.start()
    spark.trigger()
    assert spark.rows == [b"5", b"6", b"7", b"8"]
    writer.write_many(900)
    log = OldSpark(lambda: log_reader(writer))
    log.trigger(dies=True)
    writer.path(0).unlink()
    with pytest.raises(OffsetGone, match=r"log offsets \[0, 65536\) are gone"):
        log.start()


def test_checkpoint_of_an_old_spark_is_continued_by_a_new_one(names: str, writer: LogWriter) -> None:
    make_topic(names, "Orders", 1)
    send(names, numbered("Orders", 0, 5))
    writer.write_many(5)
    for reader, begin in (
        (cluster_reader(names), {"Orders": {"broker-a": {"epoch": 1, "0": 0}}}),
        (log_reader(writer), {"broker-a": {"offset": 0, "epoch": 0}}),
    ):
        first = reader.latestOffset()
        assert first[BEGIN] == begin
        new = reader._reader
        elsewhere = first | {BEGIN: {}}  # the start that the options give now
        (part,) = new.partitions(elsewhere, first)
        assert sum(len(bodies(batch)) for batch in new.read(part)) == 5
        assert new.partitions(first, first) == []
        end = {name: value for name, value in first.items() if name != BEGIN}
        assert new.latestOffset(first, versions.ReadAllAvailable()) == end


def test_query_planned_from_a_wrong_offset_is_stopped_before_it_reads(writer: LogWriter) -> None:
    writer.write_many(10)
    spark = OldSpark(lambda: log_reader(writer))
    spark.trigger()
    writer.write_many(10)
    spark.trigger()
    asked_too_early = log_reader(writer)
    planned = asked_too_early.latestOffset()
    with pytest.raises(ConfigError, match="triggerAvailableNowWrapper"):
        asked_too_early.partitions(spark.offsets[-1], planned)
    spark.offsets.append(planned)
    with pytest.raises(ConfigError, match=r"delete the last file in offsets/ of the checkpoint"):
        spark.start()
    spark.offsets.pop()
    spark.start()
    spark.trigger()
    assert len(spark.rows) == 20


def test_jobs_are_refused_on_an_older_spark_before_they_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(versions, "HAS_ADMISSION_CONTROL", False)
    for command in (["stats", str(tmp_path)], ["pipeline", str(tmp_path / "new"), "--store", str(tmp_path)]):
        result = CliRunner().invoke(main, ["spark", *command])
        assert result.exit_code != 0
        assert "needs PySpark 4.2 or newer" in result.output + str(result.exception)
    assert not (tmp_path / "new").exists()
