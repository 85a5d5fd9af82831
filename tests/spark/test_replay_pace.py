"""Replay of a time span at a limited rate: which messages, how fast, and what a stopped one sends again."""

from pathlib import Path

import pyarrow as pa
import pytest
from click import UsageError
from click.testing import CliRunner
from pyspark.sql import SparkSession

from tandemq.cli.spark.replay import replay
from tandemq.cli.support.durations import duration_text, parse_byte_rate, parse_rate
from tandemq.errors import ConfigError
from tandemq.model.message import UNIQ_KEY
from tandemq.run.local import LocalCluster
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.moments import TimeSpan
from tandemq.spark.jobs.pace import Rate, paced
from tandemq.spark.jobs.replay import ReplayResult, replay_to_topic
from tests.spark.logs import BORN_MS, LogWriter
from tests.spark.messages import make_topic
from tests.spec import spec


def batch(bodies: list[bytes]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {"body": pa.array(bodies, pa.binary()), "properties": pa.array([""] * len(bodies))}
    )


class Clock:
    """A clock that sleeping moves; `send` is the time that sending a slice takes."""

    def __init__(self, send: float = 0.0) -> None:
        self.now = 100.0
        self.send = send

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, batches: list[pa.RecordBatch], rate: Rate) -> list[tuple[float, int, int]]:
        """Return (time, messages, bytes) of each slice."""
        found = []
        for part in paced(batches, rate, clock=self, sleep=self.sleep):
            found.append((self.now - 100, part.num_rows, sum(map(len, part.column("body").to_pylist()))))
            self.now += self.send
        return found


def most_in_a_second(found: list[tuple[float, int, int]], at: int) -> float:
    return max(sum(one[at] for one in found if start <= one[0] < start + 1) for start, *_ in found)


def test_no_second_has_more_than_the_rate_and_one_slice() -> None:
    bodies = [bytes(10 + number % 90) for number in range(2000)]
    batches = [batch(bodies[at : at + 300]) for at in range(0, 2000, 300)]
    for rate, at, limit in ((Rate(400), 1, 400), (Rate(None, 9_000), 2, 9_000), (Rate(400, 9_000), 2, 9_000)):
        for send in (0.0, 0.01, 0.5):
            clock = Clock(send)
            found = clock.run(batches, rate)
            assert sum(one[1] for one in found) == 2000
            assert most_in_a_second(found, at) <= limit * 1.1 + 100, (rate, send)
            if send < 0.1:
                assert clock.now - 100 <= rate.seconds(2000, sum(map(len, bodies))) + 0.1, (rate, send)


def test_slow_rate_and_large_messages_are_sent_one_by_one() -> None:
    clock = Clock()
    assert clock.run([batch([b"12345"] * 3)], Rate(0.5)) == [(0, 1, 5), (2, 1, 5), (4, 1, 5)]
    assert Clock().run([batch([bytes(5000)] * 2)], Rate(None, 1000)) == [(0, 1, 5000), (5, 1, 5000)]


def test_rate_is_shared_by_the_part_of_each_task() -> None:
    rate = Rate(1000, 9_000)
    parts = [rate.share(0.25, 0.5), rate.share(0.75, 0.5)]
    assert [(part.messages, part.bytes) for part in parts] == [(250, 4500), (750, 4500)]
    assert [Rate(limit).tasks(8) for limit in (10, 5_000, 1e9)] == [1, 3, 8]
    assert Rate(1e9, 1000).tasks(8) == 1


def test_rates_are_parsed_and_durations_formatted() -> None:
    assert [parse_rate(text) for text in ("500", "500/s", "0.5/s")] == [500, 500, 0.5]
    given = ("1000", "10MB/s", "512KiB/s", "1.5 GB")
    assert [parse_byte_rate(text) for text in given] == [1000, 10_000_000, 524_288, 1.5e9]
    for parse, text in ((parse_rate, "0"), (parse_rate, "5MB/s"), (parse_rate, "x"), (parse_byte_rate, "5 apples/s")):
        with pytest.raises(UsageError, match="per second"):
            parse(text)
    assert [duration_text(seconds) for seconds in (4.4, 200, 7500)] == ["4s", "3m20s", "2h05m"]


@pytest.mark.slow
@spec("P13", "P21")
def test_time_span_is_replayed_at_the_rate_and_resumed(
    spark: SparkSession, tandemq_broker: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandemq.spark.jobs.replay.PIECE_BYTES_MIN", 4_000)
    monkeypatch.setattr("tandemq.spark.jobs.replay.PIECE_S", 0.5)
    names, lake, note = tandemq_broker.name_servers, tmp_path / "lake", tmp_path / "note.json"
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(600)
    Archive(ArchiveOptions(store=writer.store, lake=lake)).run(spark)
    make_topic(names, "Again", 2)
    # Message n is stored at 10 n + n % 5 ms.
    span = TimeSpan(BORN_MS + 1000, BORN_MS + 4000)
    stopped: list[int] = []

    def interrupt(done: ReplayResult) -> None:
        stopped.append(done.rows)
        if len(stopped) == 2:
            raise InterruptedError

    options = {"nameServer": names, "topic": "Again"}
    with pytest.raises(InterruptedError):
        replay_to_topic(spark, lake, options, span=span, rate=Rate(300), noted=note, progress=interrupt)
    assert 0 < stopped[-1] < 300
    done = replay_to_topic(spark, lake, options, span=span, rate=Rate(300), noted=note)
    assert done.rows == 300 - stopped[-1]
    source = spark.read.format("rocketmq").options(nameServer=names, subscribe="Again", propertiesAs="map")
    rows = source.load().collect()
    assert {row.properties[UNIQ_KEY] for row in rows} == {f"{number:032X}" for number in range(100, 400)}
    times = sorted(row.storeTimestamp.timestamp() for row in rows)
    most = max(sum(start <= time < start + 1 for time in times) for start in times)
    assert most <= 300 * 1.1 + 10
    with pytest.raises(ConfigError, match=r"is the note of another replay: its to is 1700000004000, not null"):
        replay_to_topic(spark, lake, options, span=TimeSpan(BORN_MS + 1000), noted=note)


def test_span_that_ends_before_its_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ends at 2023-11-14T22:13:20\.000Z, not after its start"):
        TimeSpan(BORN_MS + 1, BORN_MS)
    result = CliRunner().invoke(replay, [str(tmp_path), "--to-store", "d", "--rate", "5"])
    assert result.exit_code == 2
    assert "a log is written completely" in result.output
