"""The demo's producer and consumer, and their records.

    rows ─► Sender: batches, several in flight ─► acknowledged ─┐
                                                                ├─ Ledger, by unique key
    statistics, once per key ◄─ Receiver: one by one ◄──────────┘

A message counts as delivered once; each further delivery is a duplicate. A message acknowledged and not delivered is
missing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tandemq.client.aio.producer import Producer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.core.settings import ConsumeFrom
from tandemq.demo.rows import DataRow
from tandemq.demo.statistics import TagStatistics
from tandemq.errors import NetworkError, RemoteError
from tandemq.model.message import Message, MessageQueue

TASKS = 4


class Ledger:
    """Acknowledgements and deliveries of all messages, by unique key."""

    def __init__(self) -> None:
        self.group_of: dict[str, str] = {}
        """Acknowledged messages to the broker group that acknowledged them."""
        self.delivered: set[str] = set()
        self.unread: Counter[str] = Counter()
        """Number of messages acknowledged and not delivered, by group."""

    def acknowledged(self, keys: list[str], group: str) -> None:
        """Record an acknowledgement; the messages may have been delivered before."""
        delivered = self.delivered
        for key in keys:
            self.group_of[key] = group
        self.unread[group] += sum(key not in delivered for key in keys)

    def deliver(self, key: str) -> bool:
        """Record a delivery; return whether it is the first one."""
        if key in self.delivered:
            return False
        self.delivered.add(key)
        group = self.group_of.get(key)
        if group is not None:
            self.unread[group] -= 1
        return True

    @property
    def missing(self) -> int:
        """Return the number of messages acknowledged and not delivered."""
        return self.unread.total()


@dataclass(slots=True)
class SenderState:
    """Counts of the sender."""

    messages: int = 0
    """Messages passed to the client."""
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Sender:
    """Sends rows as fast as they are acknowledged, up to a limit that the scenario raises."""

    def __init__(
        self, name_servers: str, topic: str, rows: Iterator[DataRow], ledger: Ledger, *, batch: int, avoids: bool
    ) -> None:
        """`avoids`: whether a broker that failed is avoided for half a minute."""
        self._ledger = ledger
        self._batch = batch
        self._producer = Producer(name_servers, group="demo-producer", retries=30, latency_aware=avoids)
        self._topic = topic
        self._rows = rows
        self._may_send = 0
        self._moved = asyncio.Event()
        self._watched: str | None = None
        self._began = self._last = 0.0
        self.longest_gap_s = 0.0
        """Longest time without any acknowledgement while watched, seconds."""
        self.gap_of_group_s: float | None = None
        """Seconds until the watched group acknowledged again; None: it did not."""
        self.state = SenderState()

    def allow(self, messages: int) -> None:
        """Raise the limit to this many messages in all."""
        self._may_send = messages
        self._moved.set()

    @property
    def allowed(self) -> int:
        """Return the limit."""
        return self._may_send

    def watch_gaps(self, group: str) -> None:
        """Measure the time without acknowledgements from now on, until `end_watch`."""
        self._watched = group
        self._began = self._last = time.monotonic()

    def end_watch(self) -> None:
        """Stop measuring, because there may be nothing to send."""
        self._watched = None

    def _stored(self, group: str, begun: float) -> None:
        """Record an acknowledgement of a request sent at `begun`; some were in flight when measuring began."""
        if self._watched is not None:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
            self._last = now
            if group == self._watched and begun >= self._began and self.gap_of_group_s is None:
                self.gap_of_group_s = now - self._began

    async def run(self) -> None:
        """Send all rows."""
        async with self._producer, asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(self._work())

    async def _work(self) -> None:
        state = self.state
        while True:
            while state.messages >= self._may_send:
                self._moved.clear()
                await self._moved.wait()
            batch = [
                Message(self._topic, row.body, tags=row.tag, keys=(row.key,))
                for _, row in zip(range(self._batch), self._rows, strict=False)
            ]
            if not batch:
                return
            state.messages += len(batch)
            begun = time.monotonic()
            try:
                results = await self._producer.send_batch(batch)
            except (NetworkError, RemoteError) as error:
                state.failures.append(str(error))
                continue
            group = results[0].queue.broker_name
            state.statuses[results[0].status.value] += len(results)
            self._stored(group, begun)
            self._ledger.acknowledged([result.unique_key for result in results], group)


@dataclass(slots=True)
class ReceiverState:
    """Counts of the receiver."""

    duplicates: int = 0
    read_from: Counter[str] = field(default_factory=Counter)
    """New messages by the group they were read from."""


class Receiver:
    """Consumes all messages, as the only member of its group."""

    def __init__(
        self, name_servers: str, topic: str, statistics: TagStatistics, ledger: Ledger, *, prefetch: int
    ) -> None:
        """Create a consumer that is not connected yet."""
        self._ledger = ledger
        self._consumer = PushConsumer(
            name_servers,
            group="demo-mean-delay",
            topics={topic: "*"},
            consume_from=ConsumeFrom.FIRST,
            prefetch_messages=prefetch,
            pull_messages=min(prefetch, 32),
            commit_ms=1_000,
        )
        self._statistics = statistics
        self._go = asyncio.Event()
        self._go.set()
        self._watch: _Watch | None = None
        self.state = ReceiverState()

    def hold(self) -> None:
        """Pause: accept no message until `resume`."""
        self._go.clear()

    def resume(self) -> None:
        """Accept messages again."""
        self._go.set()

    def watch_gaps(self, group: str) -> None:
        """Measure the time without deliveries from now on, while there are messages to deliver."""
        self._watch = _Watch(group, self._ledger, time.monotonic())

    @property
    def longest_gap_s(self) -> float:
        """Return the longest time without any delivery since `watch_gaps`, seconds."""
        return self._watch.longest if self._watch is not None else 0.0

    @property
    def longest_gap_of_group_s(self) -> float:
        """Return the same for messages of the watched group only."""
        return self._watch.longest_of_group if self._watch is not None else 0.0

    def assigned(self) -> list[MessageQueue]:
        """Return the assigned queues of the topic."""
        return [queue for queue in self._consumer.assigned() if not queue.topic.startswith("%")]

    def reading_from(self) -> dict[MessageQueue, str]:
        """Return the broker address that each queue was last read from."""
        return self._consumer.reading_from()

    async def start(self) -> None:
        """Join the group."""
        await self._consumer.start()

    async def run(self) -> None:
        """Consume until `close`."""
        state, ledger, statistics = self.state, self._ledger, self._statistics
        async for message in self._consumer:
            if not self._go.is_set():
                await self._go.wait()
            if ledger.deliver(message.unique_key):
                statistics.add(message.tags, message.body)
                state.read_from[message.queue.broker_name] += 1
            else:
                state.duplicates += 1
            if self._watch is not None:
                self._watch.delivered(message.queue.broker_name)
            await message.ack()

    async def close(self) -> None:
        """Commit offsets and leave the group."""
        await self._consumer.close()


class _Watch:
    """Longest times without delivery. Time counts only while there is something to deliver."""

    def __init__(self, group: str, ledger: Ledger, now: float) -> None:
        self._group = group
        self._ledger = ledger
        self._last = self._last_of_group = now
        self._is_due = self._is_group_due = True
        self.longest = self.longest_of_group = 0.0

    def delivered(self, group: str) -> None:
        now = time.monotonic()
        if self._is_due:
            self.longest = max(self.longest, now - self._last)
        self._last = now
        self._is_due = self._ledger.missing > 0
        if group == self._group:
            if self._is_group_due:
                self.longest_of_group = max(self.longest_of_group, now - self._last_of_group)
            self._last_of_group = now
            self._is_group_due = self._ledger.unread[group] > 0
