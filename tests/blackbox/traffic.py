"""A producer and a consumer that go on and on while brokers die, and what each of them saw."""

import threading
import time
from collections import Counter
from types import TracebackType
from typing import Self

from tandemq import ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.errors import TandemError
from tandemq.model.access import Credentials
from tandemq.model.message import MessageQueue
from tests.blackbox.programs import wait_until

TOPIC = "Traffic"
GROUP = "travellers"
Place = tuple[MessageQueue, int]
"""Where a message is stored: queue and queue offset."""


class Traffic:
    """One message after the other, numbered; a group of one consumer that acknowledges each. Clients as they come."""

    def __init__(
        self,
        name_servers: str,
        *,
        topic: str = TOPIC,
        group: str = GROUP,
        prefix: bytes = b"",
        users: tuple[Credentials | None, Credentials | None] = (None, None),
    ) -> None:
        """`prefix`: beginning of the bodies. `users`: those that sign for producer and consumer."""
        self._name_servers = name_servers
        self._topic, self._group, self._prefix = topic, group, prefix
        self._users = users
        self._lock = threading.Lock()
        self.stored: set[bytes] = set()
        """Acknowledged messages."""
        self.failed: list[str] = []
        """Sends that ended with an error."""
        self.delivered: Counter[bytes] = Counter()
        self.deliveries: list[tuple[float, Place, bytes]] = []
        self._ends = {"producer": threading.Event(), "consumer": threading.Event()}
        self._threads = {
            "producer": threading.Thread(target=self._produce, daemon=True),
            "consumer": threading.Thread(target=self._consume, daemon=True),
        }

    def _produce(self) -> None:
        number, end = 0, self._ends["producer"]
        with BlockingProducer(self._name_servers, group="senders", credentials=self._users[0]) as producer:
            while not end.wait(0.003):
                body = b"%s%d" % (self._prefix, number)
                number += 1
                try:
                    producer.send(Message(self._topic, body))
                except TandemError as error:
                    self.failed.append(str(error))
                    continue
                with self._lock:
                    self.stored.add(body)

    def _consume(self) -> None:
        end = self._ends["consumer"]
        with BlockingConsumer(
            self._name_servers,
            group=self._group,
            topics={self._topic: "*"},
            consume_from=ConsumeFrom.FIRST,
            commit_ms=200,
            credentials=self._users[1],
        ) as consumer:
            while not end.is_set():
                message = consumer.receive(timeout_s=0.1)
                if message is not None:
                    with self._lock:
                        self.delivered[message.body] += 1
                        place = message.queue, message.stored.queue_offset
                        self.deliveries.append((time.monotonic(), place, message.body))
                    message.ack()

    def missing(self) -> set[bytes]:
        """Acknowledged and not delivered."""
        with self._lock:
            return self.stored - self.delivered.keys()

    def wait_for_more(self, count: int = 30) -> None:
        """Until so many more messages were stored, and as many delivered."""
        with self._lock:
            stored, delivered = len(self.stored), len(self.delivered)
        wait_until(lambda: len(self.stored) >= stored + count, f"{count} more are stored; failed: {self.failed[-1:]}")
        wait_until(lambda: len(self.delivered) >= delivered + count, f"{count} more are delivered")

    def stop_producing(self) -> None:
        """And wait until everything acknowledged was delivered."""
        self.end_producing()
        wait_until(lambda: not self.missing(), "everything acknowledged is delivered")

    def end_producing(self) -> None:
        """Send nothing more."""
        self._end("producer")

    def _end(self, which: str) -> None:
        self._ends[which].set()
        self._threads[which].join()

    def repeated_since(self, moment: float) -> list[bytes]:
        """Messages delivered since then that had been delivered before from the same place: one that its producer sent
        again, as the master died before it answered, may be stored twice, and is two messages then."""
        seen: set[Place] = set()
        found = []
        with self._lock:
            for at, place, body in self.deliveries:
                if place in seen and at >= moment:
                    found.append(body)
                seen.add(place)
        return found

    def __enter__(self) -> Self:
        for thread in self._threads.values():
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for which in self._threads:
            self._end(which)
