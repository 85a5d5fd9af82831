"""Tables of topics and of consumer groups, each fetched with one request per broker group, kept for seconds.

The progress of one group is asked for alone, unless the table of all groups is new.

Rates and lag are recorded once a minute, and more often in the first minutes, for the charts of the last hour. Topics
that no group reads are not in the tables; the last `FOLLOWED_MAX` of them whose pages were opened are asked for.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.console.cluster.history import RateHistory
from tandemq.console.cluster.tables_thread import TableSource
from tandemq.errors import TandemError
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import MessageQueue
from tandemq.model.topic import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    SYSTEM_TOPICS,
    TopicConfig,
    dead_letter_topic,
    is_system_group,
    own_topics,
)

FRESH_S = 3.0
NEW_S = 0.5
"""Age of a table in which something is missing that may be new, and of the offsets before a reset."""
STALE_S = 15.0
"""Age of a list that is shown at once, while the next one is fetched."""
CONFIG_FRESH_S, CONFIG_STALE_S = 30.0, 300.0
"""The same ages for tables that change by hand: configurations of groups, names of brokers."""
COUNTS_MAX = 2_000
FOLLOWED_MAX = 20
SINGLE_MAX = 16
"""Maximum number of groups whose progress is asked for one by one; of more, that of all groups is fetched."""
SINGLE_KEPT_MAX = 256
"""Maximum number of groups whose own progress is kept."""
NORMAL, RETRY, DEAD_LETTERS, SYSTEM = "normal", "retry", "dead letters", "system"
_SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
T = TypeVar("T")
log = logging.getLogger(__name__)


class _Cached(Generic[T]):
    """A value that is kept for seconds; it is fetched by one request at a time.

    A value older than `fresh_s` is fetched again; who accepts an older one gets it at once and does not wait.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]], fresh_s: float = FRESH_S) -> None:
        self._fetch = fetch
        self._fresh_s = fresh_s
        self._value: tuple[float, T] | None = None
        self._lock = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None

    def peek(self, age_s: float) -> T | None:
        """Return the value if it is at most `age_s` old."""
        found = self._value
        return found[1] if found is not None and time.monotonic() - found[0] <= age_s else None

    async def get(self, age_s: float = FRESH_S) -> T:
        """Return the value, at most `age_s` old."""
        found = self._value
        if found is not None and (age := time.monotonic() - found[0]) <= age_s:
            if age > self._fresh_s and self._refresh is None:
                self._refresh = asyncio.create_task(self._fetch_again())
            return found[1]
        async with self._lock:
            if self._value is None or time.monotonic() - self._value[0] > age_s:
                value = await self._fetch()
                self._value = (time.monotonic(), value)
            return self._value[1]

    async def _fetch_again(self) -> None:
        try:
            await self.get(self._fresh_s)
        except TandemError as error:  # the next one that needs it gets the error
            log.info("console: a table is not fetched: %s", error)
        finally:
            self._refresh = None

    def forget(self) -> None:
        self._value = None

    async def close(self) -> None:
        if self._refresh is not None:
            self._refresh.cancel()
            await asyncio.wait({self._refresh})


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic in the list: its queues over all brokers."""

    name: str
    kind: str
    """normal, retry, dead letters or system."""
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    perm: int
    order: bool


@dataclass(frozen=True, slots=True)
class GroupRow:
    """A consumer group in the list."""

    name: str
    lag: int
    lag_ms: int
    """How long ago the last consumed message of the queue that lags most was stored; 0 without lag, or if unknown."""
    topics: tuple[str, ...]
    retries: int | None = None
    """Deliveries of a message after the first one, before it becomes a dead letter; None: unknown."""


class ClusterTables:
    """The tables."""

    def __init__(self, source: TableSource) -> None:
        """Take the source of the tables; nothing is requested yet."""
        self._source = source
        self._topics = _Cached(source.topic_configs)
        self._progress = _Cached(source.all_progress)
        self._configs = _Cached(source.groups, CONFIG_FRESH_S)
        self._own = _Cached(self._own_topics, CONFIG_FRESH_S)
        self._single: dict[str, _Cached[Mapping[MessageQueue, ConsumeProgress]]] = {}
        """Progress of groups that were asked for alone."""
        self._counts: dict[str, tuple[float, int]] = {}
        """Number of messages of topics, and when it was fetched, monotonic."""
        self._followed: dict[str, None] = {}
        """Topics that no group reads; the one that was looked at last is the last one."""
        self.history = RateHistory()

    async def close(self) -> None:
        """Stop fetching."""
        for table in (self._topics, self._progress, self._configs, self._own):
            await table.close()
        for single in self._single.values():
            await single.close()

    def forget(self) -> None:
        """Fetch the tables again when they are asked for next: something was changed."""
        self._topics.forget()
        self._progress.forget()
        self._single.clear()
        self._configs.forget()
        self._counts.clear()

    async def _own_topics(self) -> frozenset[str]:
        info = await self._source.cluster_info()
        return own_topics(info.brokers, info.clusters)

    async def topics(self) -> list[TopicRow]:
        """Return all topics: those of users first, each kind sorted by name."""
        own = await self._own.get(CONFIG_STALE_S)
        rows = [_topic_row(name, configs, own) for name, configs in (await self._topics.get(STALE_S)).items()]
        return sorted(rows, key=lambda row: (row.kind != NORMAL, row.name))

    async def kind(self, topic: str) -> str:
        """Return the kind of a topic."""
        return kind_of(topic, await self._own.get(CONFIG_STALE_S))

    async def topic(self, name: str) -> Mapping[str, TopicConfig]:
        """Return the configurations of a topic by broker; {} if there is no such topic."""
        return (await self._topics.get()).get(name) or (await self._topics.get(NEW_S)).get(name, {})

    async def groups(self, age_s: float = STALE_S) -> list[GroupRow]:
        """Return all consumer groups, those that lag most first, at most `age_s` old."""
        progress, configs = await self._progress.get(age_s), await self._configs.get(CONFIG_STALE_S)
        now_ms = time.time_ns() // 1_000_000
        rows = [
            _group_row(name, queues, now_ms, configs.get(name))
            for name, queues in progress.items()
            if not is_system_group(name)
        ]
        return sorted(rows, key=lambda row: (-row.lag, row.name))

    async def progress(self, group: str, age_s: float = FRESH_S) -> Mapping[MessageQueue, ConsumeProgress] | None:
        """Return the progress of a group, at most `age_s` old; None if no broker knows the group."""
        found = (self._progress.peek(age_s) or {}).get(group)
        if found is not None:
            return found
        if not await self.knows(group, CONFIG_FRESH_S):
            return None
        if group not in self._single and len(self._single) >= SINGLE_KEPT_MAX:
            del self._single[next(iter(self._single))]
        single = self._single.setdefault(group, _Cached(partial(self._source.group_progress, group)))
        found = await single.get(age_s)
        # A group that was deleted elsewhere has no offsets either.
        return found if found or await self.knows(group) else None

    async def progress_of(self, groups: Collection[str]) -> dict[str, Mapping[MessageQueue, ConsumeProgress] | None]:
        """Return the progress of some groups, as `progress`."""
        if len(groups) > SINGLE_MAX:
            await self._progress.get()
        return dict(zip(groups, await asyncio.gather(*map(self.progress, groups)), strict=True))

    async def knows(self, group: str, age_s: float = NEW_S) -> bool:
        """Return whether a broker knows a group. `age_s`: how old its name may be."""
        return group in await self._configs.get(age_s) or group in await self._configs.get(NEW_S)

    async def consumers_of(self, queue: MessageQueue, offset: int) -> dict[str, bool]:
        """Return the groups that read a queue, and whether each has consumed the message at an offset."""
        return {
            group: queues[queue].consumer_offset > offset
            for group, queues in (await self._progress.get()).items()
            if queue in queues
        }

    async def config(self, group: str) -> SubscriptionGroupConfig | None:
        """Return the configuration of a group, None if it has none."""
        return (await self._configs.get(CONFIG_STALE_S)).get(group)

    async def dead_letters(self, groups: Iterable[str]) -> dict[str, int]:
        """Return the number of dead letters of groups, at most `STALE_S` old; 0 for those without such a topic.

        Topics whose number is not known yet are asked for at once; a group that no broker reports is left out.
        """
        names = list(groups)
        known = await self._topics.get(STALE_S)
        topics = {topic: known[topic] for name in names if (topic := dead_letter_topic(name)) in known}
        now_s = time.monotonic()
        old = {topic: configs for topic, configs in topics.items() if self._age(topic, now_s) > STALE_S}
        if old:
            found = await self._source.message_counts(old)
            if len(self._counts) + len(found) > COUNTS_MAX:
                self._counts.clear()
            self._counts |= {topic: (now_s, count) for topic, count in found.items()}
        return {
            name: self._counts[topic][1] if topic in topics else 0
            for name in names
            if (topic := dead_letter_topic(name)) not in topics or topic in self._counts
        }

    def _age(self, topic: str, now_s: float) -> float:
        return now_s - self._counts[topic][0] if topic in self._counts else STALE_S + 1

    def follow(self, topic: str) -> None:
        """Record the rate of a topic from now on, although no group reads it: its page was opened."""
        self._followed.pop(topic, None)
        self._followed[topic] = None
        for oldest in list(self._followed)[:-FOLLOWED_MAX]:
            del self._followed[oldest]

    async def sample(self) -> None:
        """Record rates and lag of all groups and their topics."""
        progress = await self._progress.get(FRESH_S)
        ends: dict[MessageQueue, int] = {}
        for topic in list(self._followed):
            try:
                stats = await self._source.topic_stats(topic)
            except TandemError:  # it is gone, or its broker is away
                self._followed.pop(topic, None)
                continue
            ends |= {queue: bounds.max_offset for queue, bounds in stats.items()}
        self.history.record(time.time_ns() // 1_000_000, progress, ends)


def _topic_row(name: str, configs: Mapping[str, TopicConfig], own: Collection[str]) -> TopicRow:
    first = next(iter(configs.values()))
    return TopicRow(
        name,
        kind_of(name, own),
        tuple(sorted(configs)),
        sum(config.read_queue_nums for config in configs.values()),
        sum(config.write_queue_nums for config in configs.values()),
        first.perm,
        first.order,
    )


def kind_of(topic: str, own: Collection[str] = SYSTEM_TOPICS) -> str:
    """Return the kind of a topic. `own`: names of topics that brokers make for themselves."""
    if topic.startswith(RETRY_PREFIX):
        return RETRY
    if topic.startswith(DLQ_PREFIX):
        return DEAD_LETTERS
    return SYSTEM if topic in own or topic.startswith(_SYSTEM_PREFIXES) else NORMAL


def _group_row(
    name: str, queues: Mapping[MessageQueue, ConsumeProgress], now_ms: int, config: SubscriptionGroupConfig | None
) -> GroupRow:
    lagging = [progress for progress in queues.values() if progress.lag and progress.last_ms]
    return GroupRow(
        name,
        sum(progress.lag for progress in queues.values()),
        max((now_ms - progress.last_ms for progress in lagging), default=0),
        tuple(sorted({queue.topic for queue in queues if not queue.topic.startswith(RETRY_PREFIX)})),
        None if config is None else config.retry_max_times,
    )
