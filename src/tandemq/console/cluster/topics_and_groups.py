"""Tables of topics and of consumer groups, each fetched with one request per broker group, kept for seconds.

The lag of all groups is recorded once a minute, for the chart of the last hour; the records are in memory only.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.console.cluster.tables_thread import TableSource
from tandemq.errors import TandemError
from tandemq.model.message import MessageQueue
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_TOPICS, TopicConfig, is_system_group

FRESH_S = 3.0
NEW_S = 0.5
"""Age of a table in which something is missing that may be new, and of the offsets before a reset."""
STALE_S = 15.0
"""Age of a list that is shown at once, while the next one is fetched."""
SAMPLE_S = 60.0
SAMPLES_MAX = 60
T = TypeVar("T")
log = logging.getLogger(__name__)


class _Cached(Generic[T]):
    """A value that is kept for seconds; it is fetched by one request at a time.

    A value older than `FRESH_S` is fetched again; who accepts an older one gets it at once and does not wait.
    """

    def __init__(self, fetch: Callable[[], Awaitable[T]]) -> None:
        self._fetch = fetch
        self._value: tuple[float, T] | None = None
        self._lock = asyncio.Lock()
        self._refresh: asyncio.Task[None] | None = None

    async def get(self, age_s: float = FRESH_S) -> T:
        """Return the value, at most `age_s` old."""
        found = self._value
        if found is not None and (age := time.monotonic() - found[0]) <= age_s:
            if age > FRESH_S and self._refresh is None:
                self._refresh = asyncio.create_task(self._fetch_again())
            return found[1]
        async with self._lock:
            if self._value is None or time.monotonic() - self._value[0] > age_s:
                value = await self._fetch()
                self._value = (time.monotonic(), value)
            return self._value[1]

    async def _fetch_again(self) -> None:
        try:
            await self.get()
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


class ClusterTables:
    """The tables."""

    def __init__(self, source: TableSource) -> None:
        """Take the source of the tables; nothing is requested yet."""
        self._topics = _Cached(source.topic_configs)
        self._progress = _Cached(source.all_progress)
        self._samples: dict[str, deque[int]] = {}

    async def close(self) -> None:
        """Stop fetching."""
        await self._topics.close()
        await self._progress.close()

    def forget(self) -> None:
        """Fetch the tables again when they are asked for next: something was changed."""
        self._topics.forget()
        self._progress.forget()

    async def topics(self) -> list[TopicRow]:
        """Return all topics, sorted by name."""
        return [_topic_row(name, configs) for name, configs in (await self._topics.get(STALE_S)).items()]

    async def topic(self, name: str) -> Mapping[str, TopicConfig]:
        """Return the configurations of a topic by broker; {} if there is no such topic."""
        return (await self._topics.get()).get(name) or (await self._topics.get(NEW_S)).get(name, {})

    async def groups(self, age_s: float = STALE_S) -> list[GroupRow]:
        """Return all consumer groups, those that lag most first, at most `age_s` old."""
        now_ms = time.time_ns() // 1_000_000
        rows = [
            _group_row(name, queues, now_ms)
            for name, queues in (await self._progress.get(age_s)).items()
            if not is_system_group(name)
        ]
        return sorted(rows, key=lambda row: (-row.lag, row.name))

    async def progress(self, group: str, age_s: float = FRESH_S) -> Mapping[MessageQueue, ConsumeProgress] | None:
        """Return the progress of a group, at most `age_s` old; None if no broker knows the group."""
        found = (await self._progress.get(age_s)).get(group)
        return found if found is not None else (await self._progress.get(NEW_S)).get(group)

    async def consumers_of(self, queue: MessageQueue, offset: int) -> dict[str, bool]:
        """Return the groups that read a queue, and whether each has consumed the message at an offset."""
        return {
            group: queues[queue].consumer_offset > offset
            for group, queues in (await self._progress.get()).items()
            if queue in queues
        }

    def samples(self, group: str) -> list[int]:
        """Return the lag of a group in the last hour, one value per minute, oldest first."""
        return list(self._samples.get(group, ()))

    async def sample(self) -> None:
        """Record the present lag of all groups."""
        rows = await self.groups(FRESH_S)
        for row in rows:
            self._samples.setdefault(row.name, deque(maxlen=SAMPLES_MAX)).append(row.lag)
        for name in self._samples.keys() - {row.name for row in rows}:
            del self._samples[name]


def _topic_row(name: str, configs: Mapping[str, TopicConfig]) -> TopicRow:
    first = next(iter(configs.values()))
    return TopicRow(
        name,
        kind_of(name),
        tuple(sorted(configs)),
        sum(config.read_queue_nums for config in configs.values()),
        sum(config.write_queue_nums for config in configs.values()),
        first.perm,
        first.order,
    )


def kind_of(topic: str) -> str:
    """Return the kind of a topic."""
    if topic.startswith(RETRY_PREFIX):
        return "retry"
    if topic.startswith(DLQ_PREFIX):
        return "dead letters"
    return "system" if topic in SYSTEM_TOPICS or topic.startswith("rmq_sys_") else "normal"


def _group_row(name: str, queues: Mapping[MessageQueue, ConsumeProgress], now_ms: int) -> GroupRow:
    lagging = [progress for progress in queues.values() if progress.lag and progress.last_ms]
    return GroupRow(
        name,
        sum(progress.lag for progress in queues.values()),
        max((now_ms - progress.last_ms for progress in lagging), default=0),
        tuple(sorted({queue.topic for queue in queues if not queue.topic.startswith(RETRY_PREFIX)})),
    )
