"""The demo's producer and consumer, and the books they keep.

    rows ─► Sender: batches, several under way ─► acknowledged ─┐
                                                                ├─ Ledger, by unique key
    tally, once per key ◄─ Receiver: one after the other ◄──────┘

A message counts as delivered once, however often it comes; each further time is a duplicate. What was acknowledged and
not delivered is missing.
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
    """What is known of every message, by unique key: who acknowledged it, whether it was delivered."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self.group_of: dict[str, str] = {}
        """Acknowledged messages: the broker group that did."""
        self.delivered: set[str] = set()
        self.unread: Counter[str] = Counter()
        """Acknowledged and not delivered, by group."""

    def acknowledged(self, keys: list[str], group: str) -> None:
        """A group has these messages. They may have been delivered before this was known."""
        delivered = self.delivered
        for key in keys:
            self.group_of[key] = group
        self.unread[group] += sum(key not in delivered for key in keys)

    def deliver(self, key: str) -> bool:
        """A message came; whether for the first time."""
        if key in self.delivered:
            return False
        self.delivered.add(key)
        group = self.group_of.get(key)
        if group is not None:
            self.unread[group] -= 1
        return True

    @property
    def missing(self) -> int:
        """Messages acknowledged and not delivered."""
        return self.unread.total()


@dataclass(slots=True)
class Sent:
    """The sender's book."""

    messages: int = 0
    """Handed to the client."""
    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Sender:
    """Sends rows, as fast as they are acknowledged, up to a mark that the story moves."""

    def __init__(
        self, name_servers: str, topic: str, rows: Iterator[DataRow], ledger: Ledger, *, batch: int, avoids: bool
    ) -> None:
        """Nothing is sent yet. `avoids`: a broker that failed is left alone for half a minute."""
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
        """Seconds without any acknowledgement, at worst, while watched."""
        self.gap_of_group_s: float | None = None
        """Seconds until the watched group acknowledged again; None: it did not."""
        self.book = Sent()

    def allow(self, messages: int) -> None:
        """Send up to this many in all."""
        self._may_send = messages
        self._moved.set()

    @property
    def allowed(self) -> int:
        """Messages it may send in all."""
        return self._may_send

    def watch_gaps(self, group: str) -> None:
        """Measure from now on how long nothing is stored, until `end_watch`."""
        self._watched = group
        self._began = self._last = time.monotonic()

    def end_watch(self) -> None:
        """From now on there may be nothing to send."""
        self._watched = None

    def _stored(self, group: str, begun: float) -> None:
        """An answer to what was begun to be sent at a time; answers may have been under way when the watch began."""
        if self._watched is not None:
            now = time.monotonic()
            self.longest_gap_s = max(self.longest_gap_s, now - self._last)
            self._last = now
            if group == self._watched and begun >= self._began and self.gap_of_group_s is None:
                self.gap_of_group_s = now - self._began

    async def run(self) -> None:
        """Send everything."""
        async with self._producer, asyncio.TaskGroup() as group:
            for _ in range(TASKS):
                group.create_task(self._work())

    async def _work(self) -> None:
        book = self.book
        while True:
            while book.messages >= self._may_send:
                self._moved.clear()
                await self._moved.wait()
            batch = [
                Message(self._topic, row.body, tags=row.tag, keys=(row.key,))
                for _, row in zip(range(self._batch), self._rows, strict=False)
            ]
            if not batch:
                return
            book.messages += len(batch)
            begun = time.monotonic()
            try:
                results = await self._producer.send_batch(batch)
            except (NetworkError, RemoteError) as error:
                book.failures.append(str(error))
                continue
            group = results[0].queue.broker_name
            book.statuses[results[0].status.value] += len(results)
            self._stored(group, begun)
            self._ledger.acknowledged([result.unique_key for result in results], group)


@dataclass(slots=True)
class ReceiverState:
    """The receiver's book."""

    duplicates: int = 0
    read_from: Counter[str] = field(default_factory=Counter)
    """New messages by the group they were read from."""


class Receiver:
    """Consumes everything as a group of one member."""

    def __init__(self, name_servers: str, topic: str, tally: TagStatistics, ledger: Ledger, *, prefetch: int) -> None:
        """Not connected yet."""
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
        self._tally = tally
        self._go = asyncio.Event()
        self._go.set()
        self._watch: _Watch | None = None
        self.book = ReceiverState()

    def hold(self) -> None:
        """Take no message until `go_on`."""
        self._go.clear()

    def go_on(self) -> None:
        """Take messages again."""
        self._go.set()

    def watch_gaps(self, group: str) -> None:
        """From now on measure how long nothing is delivered although something is there."""
        self._watch = _Watch(group, self._ledger, time.monotonic())

    @property
    def longest_gap_s(self) -> float:
        """Seconds without any delivery, at worst, since `watch_gaps`."""
        return self._watch.longest if self._watch is not None else 0.0

    @property
    def longest_gap_of_group_s(self) -> float:
        """The same for messages of the watched group alone."""
        return self._watch.longest_of_group if self._watch is not None else 0.0

    def assigned(self) -> list[MessageQueue]:
        """Queues of the topic that it reads."""
        return [queue for queue in self._consumer.assigned() if not queue.topic.startswith("%")]

    def reading_from(self) -> dict[MessageQueue, str]:
        """The broker address from which each queue was read last."""
        return self._consumer.reading_from()

    async def start(self) -> None:
        """Join the group."""
        await self._consumer.start()

    async def run(self) -> None:
        """Consume until `close`."""
        book, ledger, tally = self.book, self._ledger, self._tally
        async for message in self._consumer:
            if not self._go.is_set():
                await self._go.wait()
            if ledger.deliver(message.unique_key):
                tally.add(message.tags, message.body)
                book.read_from[message.queue.broker_name] += 1
            else:
                book.duplicates += 1
            if self._watch is not None:
                self._watch.delivered(message.queue.broker_name)
            await message.ack()

    async def close(self) -> None:
        """Tell offsets, leave the group."""
        await self._consumer.close()


class _Watch:
    """Times without delivery. Silence counts only while there is something to deliver."""

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
