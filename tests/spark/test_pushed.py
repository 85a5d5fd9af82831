"""What conditions of a query tell of all its rows, and which queues, offsets and tags are left of what it reads."""

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
from tandemq.spark.sources.cluster.reader import ReadHow
from tandemq.spark.sources.cluster.resolve import QueueLayout
from tandemq.spark.sources.pushdown import Narrowing

NOON = datetime(2024, 1, 1, 12, tzinfo=UTC)
NOON_MS = 1_704_110_400_000
QUEUES = tuple(sorted(MessageQueue(topic, name, number) for topic in "TU" for name in "ab" for number in range(2)))


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ([EqualTo(("topic",), "T")], Narrowing(topics=frozenset("T"))),
        ([In(("topic",), ("T", "U", None))], Narrowing(topics=frozenset("TU"))),
        ([In(("topic",), ("T", "U")), EqualTo(("topic",), "U")], Narrowing(topics=frozenset("U"))),
        (
            [EqualTo(("brokerName",), "a"), EqualTo(("queueId",), 1)],
            Narrowing(brokers=frozenset("a"), queue_ids=frozenset([1])),
        ),
        ([EqualTo(("tags",), "x"), EqualTo(("tags",), "y")], Narrowing(tags=frozenset())),
        ([EqualTo(("queueOffset",), 7)], Narrowing(offset_start=7, offset_end=8)),
        ([GreaterThan(("queueOffset",), 7), LessThan(("queueOffset",), 9)], Narrowing(offset_start=8, offset_end=9)),
        ([GreaterThanOrEqual(("queueOffset",), 7), GreaterThanOrEqual(("queueOffset",), 5)], Narrowing(offset_start=7)),
        ([LessThan(("queueOffset",), 5), LessThanOrEqual(("queueOffset",), 9)], Narrowing(offset_end=5)),
        ([EqualTo(("body",), b"x"), IsNotNull(("topic",)), Not(EqualTo(("topic",), "T"))], Narrowing()),
    ],
)
def test_conditions_tell_what_all_rows_have_in_common(filters: list[Filter], found: Narrowing) -> None:
    assert Narrowing.of(filters) == found


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
def test_times_are_bounds_in_milliseconds_that_leave_out_nothing(
    one: Filter, start_ms: int | None, end_ms: int | None
) -> None:
    found = Narrowing.of([one])
    assert found == Narrowing(store_start_ms=start_ms, store_end_ms=end_ms)
    assert found.is_by_time


def test_columns_of_kafka_are_known_by_their_names() -> None:
    filters = [EqualTo(("partition",), 1), LessThan(("offset",), 9), EqualTo(("queueId",), 2)]
    assert Narrowing.of(filters, kafka=True) == Narrowing(queue_ids=frozenset([1]), offset_end=9)


@pytest.mark.parametrize(
    ("narrowing", "left"),
    [
        (Narrowing(), "Ta0 Ta1 Tb0 Tb1 Ua0 Ua1 Ub0 Ub1"),
        (Narrowing(topics=frozenset("U")), "Ua0 Ua1 Ub0 Ub1"),
        (Narrowing(brokers=frozenset("b"), queue_ids=frozenset([1])), "Tb1 Ub1"),
        (Narrowing(tags=frozenset()), ""),
    ],
)
def test_queues_that_hold_no_such_rows_are_left_out(narrowing: Narrowing, left: str) -> None:
    found = narrowing.layout(QueueLayout(QUEUES, {"a": {}, "b": {}})).queues
    assert " ".join(f"{one.topic}{one.broker_name}{one.queue_id}" for one in found) == left


def test_offsets_are_narrowed_and_never_widened() -> None:
    lows, highs = {QUEUES[0]: 5, QUEUES[1]: 20}, {QUEUES[0]: 15, QUEUES[1]: 30}
    assert Narrowing().offsets(lows, highs) == (lows, highs)
    assert Narrowing(offset_start=10, offset_end=25).offsets(lows, highs) == (
        {QUEUES[0]: 10, QUEUES[1]: 20},
        {QUEUES[0]: 15, QUEUES[1]: 25},
    )


def test_brokers_are_asked_for_tags_that_are_plain_words_only() -> None:
    how = ReadHow(name_servers="a:1")
    given = replace(how, tags=frozenset("xy"), expression="x || y")
    assert Narrowing(tags=frozenset("yx")).tags_of(how) == given
    assert Narrowing(tags=frozenset("xz")).tags_of(given) == replace(given, tags=frozenset("x"), expression="x")
    assert Narrowing(tags=frozenset("z")).tags_of(given) == given
    for odd in ("", " x", "x||y", "*"):
        assert Narrowing(tags=frozenset([odd])).tags_of(how) == how
