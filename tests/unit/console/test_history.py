"""Rates and lag of the last hour: what is counted, and how much is kept."""

import asyncio
from itertools import islice
from typing import cast

import pytest

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.client.aio.admin import Admin
from tandemq.console.cluster import history
from tandemq.console.cluster.history import SAMPLES_MAX, SPAN_MS, Point, RateHistory, SampleSeries, sampling_pauses
from tandemq.console.cluster.topics_and_groups import FOLLOWED_MAX, ClusterTables
from tandemq.console.services import Console
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TopicConfig
from tests.unit.console.fakes import FakeAdmin, stored

FIRST, SECOND = MessageQueue("Orders", "broker-a", 0), MessageQueue("Orders", "broker-a", 1)
RETRIES = MessageQueue("%RETRY%billing", "broker-a", 0)
START_MS = 1_700_000_000_000


def progress(end: int, consumed: int) -> ConsumeProgress:
    return ConsumeProgress(end, consumed, START_MS)


def test_rates_are_growth_per_second_since_the_sample_before() -> None:
    recorded = RateHistory()
    recorded.record(START_MS, {"billing": {FIRST: progress(100, 40)}, "audit": {FIRST: progress(100, 100)}}, {})
    assert recorded.of_group("billing") == [], "nothing to compare with"
    now = {
        "billing": {FIRST: progress(160, 70), SECOND: progress(1_000, 0), RETRIES: progress(6, 3)},
        "audit": {FIRST: progress(160, 160)},
    }
    recorded.record(START_MS + 30_000, now, {})
    # The second queue was not known before: its messages are no rate, but they are lag.
    assert recorded.of_group("billing") == [Point(START_MS + 30_000, 1_093, 2.0, 1.0)]
    assert recorded.of_topic("Orders") == [Point(START_MS + 30_000, 1_090, 2.0, 3.0)]
    assert recorded.of_topic("%RETRY%billing") == [] and recorded.lags_of("billing") == [1_093]


def test_offsets_that_go_back_are_no_negative_rate() -> None:
    recorded = RateHistory()
    recorded.record(START_MS, {"billing": {FIRST: progress(100, 90)}}, {})
    recorded.record(START_MS + 10_000, {"billing": {FIRST: progress(50, 10)}}, {})
    assert recorded.of_group("billing") == [Point(START_MS + 10_000, 40, 0.0, 0.0)]


def test_series_keep_an_hour_and_a_number_of_samples() -> None:
    series = SampleSeries()
    for minute in range(90):
        series.append(Point(START_MS + 60_000 * minute, minute, 0.0, 0.0))
    kept = series.points()
    assert (kept[0].lag, kept[-1].lag) == (29, 89) and kept[-1].at_ms - kept[0].at_ms == SPAN_MS
    for second in range(2 * SAMPLES_MAX):
        series.append(Point(START_MS + 60_000 * 90 + 1_000 * second, second, 0.0, 0.0))
    assert len(series.points()) == SAMPLES_MAX and series.lags()[-1] == 2 * SAMPLES_MAX - 1


def test_names_are_limited_and_those_that_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "NAMES_MAX", 3)
    recorded = RateHistory()
    names = ("a", "b", "c", "d", "e")
    for second in range(2):
        recorded.record(START_MS + 1_000 * second, {name: {FIRST: progress(1, 0)} for name in names}, {})
    assert [bool(recorded.of_group(name)) for name in names] == [True, True, True, False, False]
    recorded.record(START_MS + 2_000, {name: {FIRST: progress(1, 0)} for name in ("c", "d")}, {})
    assert [bool(recorded.of_group(name)) for name in ("a", "c", "d")] == [False, True, True]


def test_samples_are_close_at_first_and_a_minute_apart_later() -> None:
    pauses = list(islice(sampling_pauses(5, 60), 100))
    assert pauses[:3] == [5, 5, 5] and pauses[-1] == 60 and sorted(pauses) == pauses
    hour = next(count for count in range(100) if sum(pauses[:count]) >= 3_600)
    assert hour < SAMPLES_MAX, "an hour fits from the start"


def test_topic_without_groups_is_recorded_once_it_was_looked_at(cluster: FakeAdmin) -> None:
    async def run() -> list[Point]:
        tables = ClusterTables(cast(Admin, cluster))
        tables.follow("Orders")
        await tables.sample()
        cluster.messages = [stored("Orders", number) for number in range(8)]
        ends = {FIRST: sum(one.topic == "Orders" for one in cluster.messages)}
        tables.history.record(START_MS * 2, {}, ends)
        for number in range(FOLLOWED_MAX):
            tables.follow(f"T{number}")
        assert "Orders" not in tables._followed and len(tables._followed) == FOLLOWED_MAX
        await tables.sample()
        assert not tables._followed, "topics that do not exist any more are not asked for again"
        return tables.history.of_topic("Orders")

    cluster.configs = {"Orders": {"broker-a": TopicConfig("Orders", 1, 1)}}
    points = asyncio.run(run())
    assert points and points[0].sent > 0


def test_cluster_is_sampled_with_rates_of_a_minute(cluster: FakeAdmin, console: Console) -> None:
    cluster.groups_progress = {"billing": {FIRST: progress(10, 3)}}
    asyncio.run(console.sample())
    (point,) = console.tables.history.of_cluster()
    assert (point.lag, point.sent) == (7, 1.0)
