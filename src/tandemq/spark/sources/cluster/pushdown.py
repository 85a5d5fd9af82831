"""Filter pushdown for batch queries: topic, broker, queue id, queue offset, store time, tags.

Spark applies every filter again, so that a reader may return more rows than match but never fewer. Reading by time
relies on store times that increase within a queue, which holds as long as the broker's clock does not go back.

Source: docs/guides/pipeline.md, "Filters".
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from tandemq.client.core.operations import Steps, run_together
from tandemq.client.core.routes import Routes
from tandemq.model.message import MessageQueue
from tandemq.spark.runtime.versions import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from tandemq.spark.sources.cluster.lookups import MESSAGES_AT_ONCE, find_offset_at
from tandemq.spark.sources.cluster.members import QueueLayout
from tandemq.spark.sources.cluster.options import ReadFrom
from tandemq.spark.sources.cluster.reader import PullSettings
from tandemq.spark.sources.schema import KAFKA_SOURCES

Offsets = Mapping[MessageQueue, int]
_SETS = {"topic": "topics", "brokerName": "brokers", "queueId": "queue_ids", "tags": "tags"}


class OffsetBounds(NamedTuple):
    """Start (inclusive) and end (exclusive) offsets by queue."""

    starts: dict[MessageQueue, int]
    ends: dict[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """Bounds that every matching row satisfies; None if there is no bound. Ends are exclusive."""

    topics: frozenset[Any] | None = None
    brokers: frozenset[Any] | None = None
    queue_ids: frozenset[Any] | None = None
    tags: frozenset[Any] | None = None
    offset_start: int | None = None
    offset_end: int | None = None
    store_start_ms: int | None = None
    store_end_ms: int | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter], *, kafka: bool = False) -> "PushedFilters":
        """Derive bounds from filters that must all hold; unsupported filters are ignored.

        Args:
            kafka: columns are named as in Kafka's source.
        """
        found = cls()
        for condition in filters:
            name = getattr(condition, "attribute", ("",))[0]
            found = found._with(condition, KAFKA_SOURCES.get(name, "") if kafka else name)
        return found

    def _with(self, condition: Filter, name: str) -> "PushedFilters":
        if isinstance(condition, EqualTo | In) and name in _SETS:
            values = frozenset(condition.value if isinstance(condition, In) else (condition.value,)) - {None}
            before = getattr(self, _SETS[name])
            changes: dict[str, Any] = {_SETS[name]: values if before is None else before & values}
            return replace(self, **changes)
        if name not in ("queueOffset", "storeTimestamp"):
            return self
        start, end = _bounds(condition, _milliseconds if name == "storeTimestamp" else int)
        low, high = ("offset_start", "offset_end") if name == "queueOffset" else ("store_start_ms", "store_end_ms")
        changes = {low: _pick(max, getattr(self, low), start), high: _pick(min, getattr(self, high), end)}
        return replace(self, **changes)

    def layout(self, layout: QueueLayout) -> QueueLayout:
        """Return the queues that may hold matching rows."""
        return replace(layout, queues=tuple(queue for queue in layout.queues if self._may_hold(queue)))

    def _may_hold(self, queue: MessageQueue) -> bool:
        return (
            (self.topics is None or queue.topic in self.topics)
            and (self.brokers is None or queue.broker_name in self.brokers)
            and (self.queue_ids is None or queue.queue_id in self.queue_ids)
            and self.tags != frozenset()
        )

    def tags_of(self, how: PullSettings) -> PullSettings:
        """Return settings by which brokers leave out messages of other tags."""
        if not self.tags or not all(_is_plain(tag) for tag in self.tags):
            return how
        tags = self.tags if how.tags is None else self.tags & how.tags
        return replace(how, tags=tags, expression=" || ".join(sorted(tags))) if tags else how

    def by_offset(self, lows: Offsets, highs: Offsets) -> OffsetBounds:
        """Narrow the starts and ends of queues to the bounds of the queue offset."""
        start, end = self.offset_start, self.offset_end
        return OffsetBounds(
            {queue: offset if start is None else max(offset, start) for queue, offset in lows.items()},
            {queue: offset if end is None else min(offset, end) for queue, offset in highs.items()},
        )

    @property
    def is_by_time(self) -> bool:
        """Whether there is a bound of the store time, which only brokers can turn into offsets."""
        return self.store_start_ms is not None or self.store_end_ms is not None

    def by_time(
        self, routes: Routes, layout: QueueLayout, lows: Offsets, highs: Offsets, read_from: ReadFrom
    ) -> Steps[OffsetBounds]:
        """Narrow the starts and ends of queues to the bounds of the store time.

        Raises:
            NetworkError, RemoteError: brokers do not answer, or refuse.
        """
        starts, ends = dict(lows), dict(highs)
        for bounds, wall_ms in ((starts, self.store_start_ms), (ends, self.store_end_ms)):
            if wall_ms is not None:
                searches = [
                    find_offset_at(routes, layout, queue, wall_ms, low, ends[queue], read_from)
                    for queue, low in starts.items()
                ]
                found = yield from run_together(searches, MESSAGES_AT_ONCE)
                bounds |= zip(list(starts), found, strict=True)
        return OffsetBounds(starts, ends)


def _bounds(condition: Filter, number: Any) -> tuple[int | None, int | None]:
    """Return the half-open range of integers that a comparison allows; None for an open side."""
    if isinstance(condition, EqualTo):
        return number(condition.value), number(condition.value) + 1
    if isinstance(condition, GreaterThan | GreaterThanOrEqual):
        # Times are truncated to milliseconds: a record equal to the truncated value may still be later than the
        # filter's.
        is_whole = number is int
        return number(condition.value) + (1 if is_whole and isinstance(condition, GreaterThan) else 0), None
    if isinstance(condition, LessThan | LessThanOrEqual):
        is_open = number is int and isinstance(condition, LessThan)
        return None, number(condition.value) + (0 if is_open else 1)
    return None, None


def _milliseconds(value: Any) -> int:
    assert isinstance(value, datetime), "Spark passes timestamps as datetime"
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _pick(choose: Any, before: int | None, now: int | None) -> int | None:
    return now if before is None else before if now is None else choose(before, now)


def _is_plain(tag: Any) -> bool:
    return isinstance(tag, str) and bool(tag) and tag == tag.strip() and "|" not in tag and tag != "*"
