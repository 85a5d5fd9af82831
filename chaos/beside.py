"""Clients of the shard beside the one that all others use: a producer and a consumer with a history of their own."""

from __future__ import annotations

import asyncio
import threading
import time

from chaos.history import History, Place
from tandemq import Admin, ConsumeFrom, Message
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.errors import TandemError
from tandemq.model.message import SendStatus
from tandemq.model.topic import retry_topic

TOPIC = "chaos-beside"
_GROUP = "chaos-beside-readers"
_QUEUES = 2
_PACE_S = 0.01
_LAST_SECONDS = 60.0


class BesideClients:
    """The two clients."""

    def __init__(self, name_server: str, group: str) -> None:
        """`group`: the broker group of the shard."""
        self.history = History()
        self._name_server = name_server
        self._group = group
        self._is_over, self._is_drained = threading.Event(), threading.Event()

    def create(self) -> None:
        """Create the topic, on its shard only."""

        async def made() -> None:
            async with Admin(self._name_server) as admin:
                await admin.create_topic(TOPIC, queues=_QUEUES, broker_name=self._group)

        asyncio.run(made())

    def produce(self) -> None:
        """Send one message after another, until `finish`."""
        number = 0
        with BlockingProducer(self._name_server, group="chaos-beside") as producer:
            while not self._is_over.wait(_PACE_S):
                number += 1
                body = f"beside-{number}"
                self.history.sending(body, "beside")
                try:
                    result = producer.send(Message(TOPIC, body.encode(), tags="beside", keys=[body]))
                except TandemError as error:
                    self.history.refused(f"{type(error).__name__}: {str(error)[:120]}")
                    continue
                place = Place(result.queue.queue_id, result.queue_offset)
                is_ok = result.status is SendStatus.SEND_OK
                self.history.answered(body, result.status.name, place, is_ok=is_ok)

    def consume(self) -> None:
        """Receive, until `finish`."""
        with BlockingConsumer(
            self._name_server, group=_GROUP, topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            while not self._is_drained.is_set():
                message = consumer.receive(0.2)
                if message is None:
                    continue
                stored = message.stored
                is_retry = message.queue.topic == retry_topic(_GROUP)
                body, keys = stored.body.decode(errors="replace"), " ".join(stored.keys)
                place = Place(message.queue.queue_id, stored.queue_offset)
                self.history.received(body, stored.tags, keys, place, at=time.monotonic(), is_retry=is_retry)
                message.ack()

    def stop_sending(self) -> None:
        """End the producer."""
        self._is_over.set()

    def drain(self) -> None:
        """Wait until all is delivered, no longer than a minute, and end the consumer."""
        until = time.monotonic() + _LAST_SECONDS
        while self.history.awaited and time.monotonic() < until:
            time.sleep(0.05)
        self._is_drained.set()
