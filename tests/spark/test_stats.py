"""Statistics against counting by hand, and the page made of them."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tandemq.errors import ConfigError
from tandemq.spark.archive import Archive, ArchiveOptions
from tandemq.spark.lake import DeltaLake
from tandemq.spark.report import POINTS_MAX, report_page
from tandemq.spark.stats import Stats, gather
from tests.spark.figures import MADE, figures, twins
from tests.spark.logs import BORN_MS, LogWriter


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "broker-a", segment_bytes=1 << 22)
    made.write_many(9000)
    return made


def test_store_and_lake_give_the_figures_one_counts_by_hand(
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
    page = report_page("<script>", figures(), twins(), made=MADE)
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
    page = report_page("nothing", Stats(), made=MADE)
    assert "There are no messages." in page
    assert "No twin was compared." in page
