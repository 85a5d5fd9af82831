"""Statistics compared with a count by hand, and their report page."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.report import POINTS_MAX, report_page
from tandemq.spark.jobs.stats import LogStatistics, gather, rounded_ms
from tandemq.spark.lake.delta import DeltaLake
from tests.spark.figures import MADE, figures, replicas
from tests.spark.logs import BORN_MS, LogWriter


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a", segment_bytes=1 << 22)
    made.write_many(9000)
    return made


def test_statistics_of_store_and_lake_equal_a_count_by_hand(
    spark: SparkSession, writer: LogWriter, tmp_path: Path
) -> None:
    writer.write(topic="%RETRY%billing")
    (writer.store / "config").mkdir()
    (writer.store / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T0@billing":{0:1000,2:900}}}')
    found = gather(spark, writer.store)
    assert {row["topic"]: row["messages"] for row in found.topics} == {"T0": 4500, "T1": 4500, "%RETRY%billing": 1}
    per_minute = Counter(
        ((BORN_MS + 10 * made.number + made.number % 5) // 60_000 * 60_000, made.topic) for made in writer.made
    )
    assert {(row["minute"], row["topic"]): row["messages"] for row in found.minutes} == per_minute
    assert len({row["minute"] for row in found.minutes}) > 1
    sizes = Counter[str]()
    for made in writer.made:
        sizes[made.topic] += made.size
    assert {row["topic"]: row["bytes"] for row in found.topics} == sizes
    assert [(row["p50_ms"], row["p99_ms"]) for row in found.topics if row["topic"] == "T0"] == [(2.0, 4.0)]
    assert found.groups == [
        {"group": "billing", "topic": "T0", "committed": 1900, "end": 4500, "lag": 2600, "retries": 1, "dead": 0}
    ]
    Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "lake")).run(spark)
    again = gather(spark, tmp_path / "lake")
    assert (again.topics, again.minutes) == (found.topics, found.minutes)


def test_interrupted_statistics_resume_from_their_state(spark: SparkSession, writer: LogWriter, tmp_path: Path) -> None:
    writer.flip(writer.made[77].log_offset + 90)
    whole = gather(spark, writer.store)
    assert whole.damaged == 1
    Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "lake", bytes_max=300_000)).run(spark)

    def stop(done: int, _total: int) -> None:
        if done:
            raise InterruptedError

    for source in (writer.store, tmp_path / "lake"):
        state = tmp_path / f"{source.name}.state"
        with pytest.raises(InterruptedError):
            gather(spark, source, range_bytes=1 << 17, state=state, progress=stop)
        kept = len(state.read_text().splitlines()) - 1
        with pytest.raises(InterruptedError):  # raised in the first wave; some results are kept already
            gather(spark, source, range_bytes=1 << 17, state=state, progress=stop)
        assert len(state.read_text().splitlines()) - 1 == kept
        found = gather(spark, source, range_bytes=1 << 17, state=state)
        assert len(state.read_text().splitlines()) - 1 > kept > 0
        assert (found.topics, found.minutes, found.damaged) == (whole.topics, whole.minutes, whole.damaged)
    with pytest.raises(ConfigError, match="is not the state of this job"):
        gather(spark, writer.store, range_bytes=1 << 18, state=tmp_path / "broker-a.state")


def test_queues_of_two_broker_groups_are_counted_separately(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    for name in ("broker-a", "broker-b"):
        made = LogWriter(tmp_path / name)
        made.write_many(50)
        Archive(ArchiveOptions(store=made.store, lake=lake)).run(spark)
    assert [(row["topic"], row["queues"], row["messages"]) for row in gather(spark, lake).topics] == [
        ("T0", 4, 50),
        ("T1", 4, 50),
    ]


def test_latencies_are_exact_up_to_a_second_and_to_three_digits_beyond() -> None:
    given = np.array([-12_345, -3, 0, 1, 999, 1_000, 1_234, 98_765, 123_456])
    assert rounded_ms(given).tolist() == [-12_300, -3, 0, 1, 999, 1_000, 1_230, 98_700, 123_000]


def test_empty_lake_is_a_clear_error(spark: SparkSession, tmp_path: Path) -> None:
    DeltaLake(tmp_path / "lake", create=True)
    with pytest.raises(ConfigError, match="holds no messages yet"):
        gather(spark, tmp_path / "lake")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen = Counter[str]()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen[tag] += 1
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "line", "polyline", "circle"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_loads_nothing_and_escapes_names() -> None:
    page = report_page("<script>", figures(), replicas(), made=MADE)
    tags = _Tags()
    tags.feed(page.replace("/>", ">"))
    assert tags.open == []
    assert tags.links == []
    assert tags.seen["svg"] == 3
    assert tags.seen["b"] == 0
    assert "diverges at 1,234" in page
    found = re.search(r'id="figures">(.*)</script>', page)
    assert found is not None
    assert json.loads(found[1])["groups"][0]["lag"] == 30


def test_page_of_a_long_time_has_a_bounded_number_of_points() -> None:
    page = report_page("long", figures(minutes=5000), made=MADE)
    longest = max(len(one.split()) for one in re.findall(r'points="([^"]*)"', page))
    assert POINTS_MAX // 2 < longest <= POINTS_MAX
    assert "per 21 minutes and topic" in page


def test_page_of_an_empty_log_says_so() -> None:
    page = report_page("nothing", LogStatistics(), made=MADE)
    assert "There are no messages." in page
    assert "No replica was compared." in page
