"""Filter pushdown: bounds derived from filters, and the queues, offsets and tags that remain."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from tandemq.model.message import MessageQueue
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.pushdown import PushedFilters
from tandemq.spark.sources.cluster.reader import PullSettings

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_704_110_400_000
QUEUES = tuple(sorted(MessageQueue(topic, name, number) for topic in "TU" for name in "ab" for number in range(2)))


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([EqualTo(("topic",), "T")], PushedFilters(topics=frozenset("T"))),
        ([In(("topic",), ("T", "U", None))], PushedFilters(topics=frozenset("TU"))),
        ([In(("topic",), ("T", "U")), EqualTo(("topic",), "U")], PushedFilters(topics=frozenset("U"))),
        (
            [EqualTo(("brokerName",), "a"), EqualTo(("queueId",), 1)],
            PushedFilters(brokers=frozenset("a"), queue_ids=frozenset([1])),
        ),
        ([EqualTo(("tags",), "x"), EqualTo(("tags",), "y")], PushedFilters(tags=frozenset())),
        ([EqualTo(("queueOffset",), 7)], PushedFilters(offset_start=7, offset_end=8)),
        (
            [GreaterThan(("queueOffset",), 7), LessThan(("queueOffset",), 9)],
            PushedFilters(offset_start=8, offset_end=9),
        ),
        (
            [GreaterThanOrEqual(("queueOffset",), 7), GreaterThanOrEqual(("queueOffset",), 5)],
            PushedFilters(offset_start=7),
        ),
        ([LessThan(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9)], PushedFilters(offset_end=5)),
        ([EqualTo(("body",), b"x"), IsNotNull(("topic",)), Not(EqualTo(("topic",), "T"))], PushedFilters()),
    ],
)
def test_filters_give_bounds(filters: list[Filter], found: PushedFilters) -> None:
    assert PushedFilters.of(filters) == found


@pytest.mark.parametrize(
    ("one", "start_ms", "end_ms"),
    [
        (EqualTo(("storeTimestamp",), NOON), NOON_MS, NOON_MS + 1),
        (GreaterThan(("storeTimestamp",), NOON), NOON_MS, None),
        (GreaterThanOrEqual(("storeTimestamp",), NOON), NOON_MS, None),
        (LessThan(("storeTimestamp",), NOON + timedelta(microseconds=1)), None, NOON_MS + 1),
        (LessThanOrEqual(("storeTimestamp",), NOON), None, NOON_MS + 1),
        (EqualTo(("storeTimestamp",), NOON.replace(tzinfo=None)), NOON_MS, NOON_MS + 1),
        (EqualTo(("storeTimestamp",), NOON.astimezone(timezone(timedelta(hours=2)))), NOON_MS, NOON_MS + 1),
    ],
)
def test_bounds_of_times_in_milliseconds_exclude_no_match(
    one: Filter, start_ms: int | None, end_ms: int | None
) -> None:
    found = PushedFilters.of([one])
    assert found == PushedFilters(store_start_ms=start_ms, store_end_ms=end_ms)
    assert found.is_by_time


def test_filters_on_kafka_columns_give_bounds() -> None:
    filters = [EqualTo(("partition",), 1), LessThan(("offset",), 9), EqualTo(("queueId",), 2)]
    assert PushedFilters.of(filters, kafka=True) == PushedFilters(queue_ids=frozenset([1]), offset_end=9)


@pytest.mark.parametrize(
    ("filters", "left"),
    [
        (PushedFilters(), "Ta0 Ta1 Tb0 Tb1 Ua0 Ua1 Ub0 Ub1"),
        (PushedFilters(topics=frozenset("U")), "Ua0 Ua1 Ub0 Ub1"),
        (PushedFilters(brokers=frozenset("b"), queue_ids=frozenset([1])), "Tb1 Ub1"),
        (PushedFilters(tags=frozenset()), ""),
    ],
)
def test_queues_without_matching_rows_are_left_out(filters: PushedFilters, left: str) -> None:
    found = filters.layout(QueueLayout(QUEUES, {"a": {}, "b": {}})).queues
    assert " ".join(f"{one.topic}{one.broker_name}{one.queue_id}" for one in found) == left


def test_offsets_are_narrowed_and_never_widened() -> None:
    lows, highs = {QUEUES[0]: 5, QUEUES[1]: 20}, {QUEUES[0]: 15, QUEUES[1]: 30}
    assert PushedFilters().by_offset(lows, highs) == (lows, highs)
    assert PushedFilters(offset_start=10, offset_end=25).by_offset(lows, highs) == (
        {QUEUES[0]: 10, QUEUES[1]: 20},
        {QUEUES[0]: 15, QUEUES[1]: 25},
    )


def test_only_plain_tags_are_pushed_to_brokers() -> None:
    how = PullSettings(name_servers="a:1")
    given = replace(how, tags=frozenset("xy"), expression="x || y")
    assert PushedFilters(tags=frozenset("yx")).tags_of(how) == given
    assert PushedFilters(tags=frozenset("xz")).tags_of(given) == replace(given, tags=frozenset("x"), expression="x")
    assert PushedFilters(tags=frozenset("z")).tags_of(given) == given
    for odd in ("", " x", "x||y", "*"):
        assert PushedFilters(tags=frozenset([odd])).tags_of(how) == how
