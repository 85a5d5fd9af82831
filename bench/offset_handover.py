"""A slow consumer over the return of a master: duplicates, and committed offsets that move back.

    backlog sent ─ reading ─ kill -9 ─ read from the slave ─ the master returns ─ offset handover ─ 200 messages more

Duplicates are counted from `returns` on, by unique key. Offsets are queried at both members ten times a second; only
answers of a member with permission count.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from bench.loads import LoadFailed, run_load
from tandemq import ConsumeFrom, PushConsumer
from tandemq.client.connection import BlockingConnection
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

_GROUP = "bench_offset_handover"
_BACKLOG = 40_000
_QUEUES = 4
_PAUSE_S = 0.004
_MORE = 200
_WAIT_S = 60.0


class SlowReads:
    """The slow consumer, and the watcher of its offsets."""

    def __init__(self, name_servers: str, master: str, members: Sequence[str]) -> None:
        """`master`: the active member's address; `members`: addresses of all, "ip:port".

        Raises:
            LoadFailed: the backlog could not be sent.
        """
        self._name_servers = name_servers
        self._members = members
        self._topic = f"HandBack{time.monotonic_ns()}"
        self._is_over = threading.Event()
        self._keys: set[str] = set()
        self._delivered = 0
        self._since: int | None = None
        self._highest: dict[int, int] = {}
        self.twice = 0
        """Deliveries since `returns` of messages delivered before."""
        self.back = 0
        """How often a committed offset was lower than before."""
        run_load(
            "produce",
            master,
            topic=self._topic,
            queues=_QUEUES,
            body=128,
            batch=32,
            connections=1,
            window=4,
            count=_BACKLOG,
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Read while the body runs, and `_MORE` messages more."""
        threads = [threading.Thread(target=target, daemon=True) for target in (self._read, self._watch)]
        for thread in threads:
            thread.start()
        try:
            self._wait_for(_MORE)
            yield
            self._wait_for(self._delivered + _MORE)
        finally:
            self._is_over.set()
            for thread in threads:
                thread.join()

    def returns(self) -> None:
        """Count duplicates from now on."""
        self._since = self._delivered

    def _wait_for(self, count: int) -> None:
        until = time.monotonic() + _WAIT_S
        while self._delivered < count:
            if time.monotonic() > until:
                raise LoadFailed(f"the slow consumer got {self._delivered} messages and waits for {count}")
            time.sleep(0.01)

    def _read(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        async with PushConsumer(
            self._name_servers, group=_GROUP, topics={self._topic: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            messages = aiter(consumer)
            while not self._is_over.is_set():
                try:
                    message = await asyncio.wait_for(anext(messages), 0.5)
                except TimeoutError:
                    continue
                await message.ack()
                self.twice += self._since is not None and message.unique_key in self._keys
                self._keys.add(message.unique_key)
                self._delivered += 1
                await asyncio.sleep(_PAUSE_S)

    def _watch(self) -> None:
        while not self._is_over.wait(0.1):
            for address in self._members:
                try:
                    self._look(address)
                except TandemError:
                    continue  # it is down for now

    def _look(self, address: str) -> None:
        with BlockingConnection(address) as opened:
            for queue_id in range(_QUEUES):
                fields = {"consumerGroup": _GROUP, "topic": self._topic, "queueId": str(queue_id)}
                answer = opened.request(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
                if answer.code == ResponseCode.SUCCESS:
                    offset = int(answer.fields["offset"])
                    self.back += offset < self._highest.get(queue_id, -1)
                    self._highest[queue_id] = max(offset, self._highest.get(queue_id, -1))
