"""A small synchronous facade for scripts: the asyncio client on a loop of its own, in a thread of its own.

    with BlockingProducer("127.0.0.1:9876", group="orders") as producer:
        producer.send(Message("Orders", b"42 paid"))

    with BlockingConsumer("127.0.0.1:9876", group="billing", topics={"Orders": "*"}) as consumer:
        while (message := consumer.receive(timeout_s=5)) is not None:
            message.ack()

Safe to use from several threads. Errors are those of the asyncio client.
"""

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

from tandemq.client.aio.options import ConsumerKeywords, ProducerKeywords, QueueChoice
from tandemq.client.aio.producer import Producer
from tandemq.client.aio.push_consumer import PushConsumer
from tandemq.client.consumer.received_message import MessageView, ReceivedMessage
from tandemq.errors import ClosedError
from tandemq.model.message import Message, SendResult

T = TypeVar("T")


class LoopThread:
    """An event loop in a thread; ends with the object that owns it, or with the process."""

    def __init__(self) -> None:
        """It turns at once."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tandemq-client", daemon=True)
        self._thread.start()

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine there and do not wait.

        Raises:
            ClosedError: the loop has ended.
        """
        if self._loop.is_closed():
            work.close()
            raise ClosedError("the client is closed")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there and wait for its result."""
        return self.begin(work).result()

    def stop(self) -> None:
        """End the loop and its thread. Harmless a second time."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class BlockingProducer:
    """Sends messages, each call waiting for the answer."""

    def __init__(
        self, name_servers: str, *, group: str, client_id: str = "", **options: Unpack[ProducerKeywords]
    ) -> None:
        """As `Producer`, and ready at once."""
        self._producer = Producer(name_servers, group=group, client_id=client_id, **options)
        self._thread = LoopThread()
        _start(self._thread, self._producer.start())

    def send(self, message: Message, **choice: Unpack[QueueChoice]) -> SendResult:
        """As `Producer.send`."""
        return self._thread.call(self._producer.send(message, **choice))

    def send_batch(self, messages: Sequence[Message], **choice: Unpack[QueueChoice]) -> list[SendResult]:
        """As `Producer.send_batch`."""
        return self._thread.call(self._producer.send_batch(messages, **choice))

    def send_oneway(self, message: Message, **choice: Unpack[QueueChoice]) -> None:
        """As `Producer.send_oneway`."""
        self._thread.call(self._producer.send_oneway(message, **choice))

    def close(self) -> None:
        """As `Producer.close`. Harmless a second time."""
        _finish(self._thread, self._producer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class BlockingMessage(MessageView):
    """A message to consume, ended by `ack` or `retry`; its attributes are those of the asyncio client's message."""

    __slots__ = ("_message", "_thread")

    def __init__(self, message: ReceivedMessage, thread: LoopThread) -> None:
        """Around the asyncio client's message."""
        super().__init__(message.stored, message.queue)
        self._message = message
        self._thread = thread

    @property
    def is_ended(self) -> bool:
        """Whether `ack` or `retry` was called."""
        return self._message.is_ended

    def ack(self) -> None:
        """It is consumed."""
        self._thread.call(self._message.ack())

    def retry(self, delay_level: int = 0) -> None:
        """It could not be consumed: have it come again later."""
        self._thread.call(self._message.retry(delay_level))


class BlockingConsumer:
    """Consumes topics as a member of a group, a message per call."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        topics: Mapping[str, str],
        client_id: str = "",
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """As `PushConsumer`, and joined at once."""
        self._consumer = PushConsumer(name_servers, group=group, topics=topics, client_id=client_id, **options)
        self._thread = LoopThread()
        _start(self._thread, self._consumer.start())

    def receive(self, timeout_s: float | None = None) -> BlockingMessage | None:
        """The next message; None if none came within the time."""
        message = self._thread.call(self._consumer.receive(timeout_s))
        return BlockingMessage(message, self._thread) if message is not None else None

    def __iter__(self) -> Iterator[BlockingMessage]:
        """Messages without end."""
        while (message := self.receive()) is not None:
            yield message

    def close(self) -> None:
        """Commit, leave the group, close. Harmless a second time."""
        _finish(self._thread, self._consumer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _start(thread: LoopThread, work: Coroutine[Any, Any, None]) -> None:
    started = False
    try:
        thread.call(work)
        started = True
    finally:
        if not started:
            thread.stop()


def _finish(thread: LoopThread, work: Coroutine[Any, Any, None]) -> None:
    try:
        thread.call(work)
    except ClosedError:
        return
    finally:
        thread.stop()
