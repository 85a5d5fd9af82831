"""Last step of the demo: results of Spark on the brokers' logs, and its reports of damage."""

import json
from fractions import Fraction
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.demo import pipeline, rows, scenario
from tandemq.demo.narration import Narration
from tandemq.demo.pipeline import Gold, PipelineJob
from tandemq.demo.statistics import Figures
from tandemq.run.children import ChildCluster
from tests.spark.logs import LogWriter

PROPERTIES = b"TAGS\x01%s\x02UNIQ_KEY\x01%032X\x02"


def write(writer: LogWriter, tag: str, number: int, value: object, topic: str = "Trips") -> None:
    body = json.dumps({"other": "9", "the delay": str(value)}).encode()
    writer.write(body, topic=topic, properties=PROPERTIES % (tag.encode(), number))


@pytest.fixture
def pairs(tmp_path: Path) -> dict[str, tuple[LogWriter, LogWriter]]:
    """Two groups: values of tags a and b, one of them duplicated, some malformed, and another topic."""
    made = {}
    for group in ("broker-a", "broker-b"):
        pair = LogWriter(tmp_path / group / "0"), LogWriter(tmp_path / group / "1")
        for writer in pair:
            first = 0 if group == "broker-a" else 100
            for number in range(10):
                write(writer, "ab"[number % 2], first + number, "NA" if number == 4 else number / 4)
            write(writer, "a", 0, 0.0)
            write(writer, "a", first + 50, 1_000, topic="Other")
        made[group] = pair
    return made


def wanted(tmp_path: Path, pairs: dict[str, tuple[LogWriter, LogWriter]]) -> PipelineJob:
    place = tmp_path / "demo"
    place.mkdir()
    return PipelineJob(
        {name: (one.store, other.store) for name, (one, other) in pairs.items()}, "Trips", "the delay", place
    )


def test_gold_counts_each_sound_message_of_the_topic_once(
    spark: SparkSession, tmp_path: Path, pairs: dict[str, tuple[LogWriter, LogWriter]]
) -> None:
    found = pipeline.run(wanted(tmp_path, pairs), Narration(to_error=True))
    assert found.faults == []
    assert found.rows == 24
    assert found.audited_bytes == found.log_bytes == sum(one.end for one, _ in pairs.values())
    assert found.gold == {"a": Gold(10, 8, (0 + 2 + 6 + 8) / 4 / 4), "b": Gold(10, 10, (1 + 3 + 5 + 7 + 9) / 4 / 5)}
    spark.range(1).count()  # a session that was already running stays open


def test_damage_of_a_log_is_reported_as_fault(
    spark: SparkSession, tmp_path: Path, pairs: dict[str, tuple[LogWriter, LogWriter]]
) -> None:
    assert spark.version
    (first, _), (one, other) = pairs.values()
    first.flip(first.made[3].log_offset + 95)
    other.flip(other.made[5].log_offset + 95)
    write(one, "a", 999, 5)
    found = pipeline.run(wanted(tmp_path, pairs), Narration(to_error=True))
    assert found.gold["b"].messages == 9
    assert found.divergences == {
        group: {"different": 0, "corrupt": 1, "missing": 0, "extra": 0, "removed": 0}
        for group in ("broker-a", "broker-b")
    }
    assert found.faults == [
        "broker-a: 1 records of the master's log are damaged",
        f"audit: broker-a diverges at log offset {first.made[3].log_offset}: 1 corrupt",
        f"audit: broker-b diverges at log offset {other.made[5].log_offset}: 1 corrupt",
        f"audit: the logs of broker-b end at {one.end} and {other.end}",
    ]


@pytest.mark.slow
def test_message_that_differs_in_the_lake_is_a_fault(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.version
    path = tmp_path / "small.csv"
    path.write_text("\n".join(["shop,delay", *(f"S{i % 3},{i % 9}" for i in range(2_000))]) + "\n")
    original = ChildCluster.close

    def close_and_damage(cluster: ChildCluster) -> None:
        original(cluster)
        (log,) = (cluster.broker("broker-b", 0).store / "commitlog").iterdir()
        with log.open("r+b") as file:
            at = file.read(1 << 20).index(b'"delay"')
            file.seek(at)
            file.write(b"!")

    monkeypatch.setattr(ChildCluster, "close", close_and_damage)
    source = rows.from_file(path, rows.ColumnChoice(value="delay"))
    outcome = scenario.run(scenario.DemoOptions(source, tmp_path / "data"), Narration(to_error=True))
    assert outcome.missing == 0
    assert len(outcome.replica_differences) == 1
    harmed = [tag for tag, row in outcome.tags.items() if not row["gold_equal"]]
    assert len(harmed) == 1
    for says in (
        "replicas: broker-b",
        "audit: broker-b diverges",
        "1 records of the master's log are damaged",
        f"{harmed[0]}: the lake gives Gold(messages=",
    ):
        assert any(says in fault for fault in outcome.faults), outcome.faults
    assert (tmp_path / "data" / "broker-a-0.log").is_file()


def test_means_of_integers_are_equal_to_the_last_bit() -> None:
    whole, parts = Figures(3, 2, 7), Figures(3, 2, Fraction(7, 10))
    assert scenario.is_like(Gold(3, 2, 3.5), whole)
    assert not scenario.is_like(Gold(3, 2, 3.5000000001), whole)
    assert scenario.is_like(Gold(3, 2, 0.35000000000000003), parts)
    assert not scenario.is_like(Gold(3, 2, 0.3501), parts)
    assert not scenario.is_like(Gold(3, 1, 3.5), whole)
    assert not scenario.is_like(Gold(4, 2, 3.5), whole)
    assert scenario.is_like(Gold(3, 0, None), Figures(3, 0, 0))
