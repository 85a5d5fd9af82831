"""The pop consumer for asyncio.

    async with PopConsumer("127.0.0.1:9876", group="billing", topics={"Orders": "*"}) as consumer:
        async for message in consumer:
            await message.ack()

or, with a handler, several messages at a time:

    async with PopConsumer(…) as consumer:
        await consumer.run(handle, concurrency=16)      returning acknowledges, raising has the message come back

No queue belongs to a member: each gets the next messages of any queue. They are hidden from the group for
`invisible_s`; one that is not acknowledged by then comes back, here or at another member.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Unpack

from tandemq.client.aio.options import PopKeywords
from tandemq.client.aio.receiving import MessageConsumer
from tandemq.client.aio.tracing import Tracing
from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.consumer.pop_machine import PopConsumerCore, make_pop_subscription
from tandemq.client.consumer.popped_message import PoppedMessage
from tandemq.client.consumer.subscription import Expression
from tandemq.client.core.settings import PopOptions
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, LocalError
from tandemq.model.access import Credentials
from tandemq.model.topic import AUTO_CREATE_TOPIC

PopFunction = Callable[[PoppedMessage], Awaitable[object]]
"""An `async def` function; its result is ignored."""


class PopConsumer(MessageConsumer[PopConsumerCore, PoppedMessage]):
    """Consumes topics by POP: messages of any queue. Use it with `async with`, or call `start` and `close`."""

    def __init__(
        self,
        name_servers: str,
        *,
        group: str,
        topics: Mapping[str, Expression] | None = None,
        client_id: str = "",
        tls: ClientTls | bool = False,
        credentials: Credentials | None = None,
        tracing: Tracing | None = None,
        **options: Unpack[PopKeywords],
    ) -> None:
        """Create a consumer that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: consumer group; its members share the messages.
            topics: subscriptions: "*" for all messages of a topic, tags: "a || b", or SQL92: `Sql("a > 3")`.
            client_id: name of this member at brokers; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            options: see `PopOptions`.

        Raises:
            ConfigError: the group, a topic, an expression or an option is invalid.
        """
        super().__init__(name_servers, client_id, tls, credentials, group, tracing)
        self._options = PopOptions(group=group, **options)
        self._topics = dict(topics or {})
        for topic, expression in self._topics.items():
            make_pop_subscription(topic, expression, 0)
        self._handling: set[asyncio.Task[Any]] = set()
        """Tasks of `run` that call a handler."""
        self._is_draining = False

    async def start(self) -> None:
        """Connect, wait for a name server, and begin to pop.

        Raises:
            ConfigError: an address, a topic or an expression is invalid.
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server.
            LocalError: it is started already.
        """
        shell = self._open()
        self._is_draining = False
        core = self._core = shell.node.pop_consumer(self._options)
        core.on_ready = self._wake_receivers
        shell.on_closed = self._wake_all
        try:
            await shell.reach_name_server(self._options.start_timeout_ms, next(iter(self._topics), AUTO_CREATE_TOPIC))
            for topic, expression in self._topics.items():
                await self.subscribe(topic, expression)
        except BaseException:
            await self._close(after_error=True)
            raise

    async def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Subscribe to another topic, or to other messages of a topic, from the next pops on.

        Args:
            expression: "*" for all messages, tags: "a || b", or an SQL92 expression: `Sql("a > 3")`.

        Raises:
            ConfigError: the topic or the expression is invalid, or the broker does not filter by expressions.
        """
        shell, core = self._running()
        make_pop_subscription(topic, expression, 0)
        await self._check(topic, expression)
        core.subscribe(topic, expression, shell.now)
        shell.wake()

    async def close(self) -> None:
        """Pop no more, wait for handlers of `run` (`close_wait_s`) and acknowledgements, and have all messages come
        back that are not ended; has no effect a second time."""
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        async with self._closing:
            if self._shell is None:
                return
            try:
                if not self._shell.is_closed:
                    self._shell.check_open()
                    await self._drain(0 if after_error else self._options.close_wait_s)
                await self._shell.close(after_error=after_error)
            except asyncio.CancelledError:
                self._shell.abort()
                raise

    async def _drain(self, wait_s: float) -> None:
        """Give no more messages to receivers and handlers, and wait for the handlers that are running."""
        shell, core = self._running()
        self._is_draining = True
        core.stop(shell.now)
        shell.wake()
        self._wake_all()
        running = self._handling - {asyncio.current_task()}
        if running and wait_s > 0:
            await asyncio.wait(running, timeout=wait_s)

    # Taking messages.

    def _count_ready(self) -> int | None:
        return None if self._core is None else self._core.ready_count

    def _take_next(self, *, for_handler: bool) -> PoppedMessage | None:
        shell, core = self._running()
        if self._is_draining:
            raise ClosedError("the consumer is being closed")
        delivery = core.next_delivery(shell.now, is_renewed=for_handler)
        if delivery is None:
            return None
        shell.wake()  # the next pop
        return PoppedMessage(delivery, self)

    def return_taken(self, message: PoppedMessage) -> None:
        """Make a message available again that was taken, and did not reach the application."""
        _, core = self._running()
        core.return_taken(message._delivery)  # noqa: SLF001  # this consumer made it

    def processing(self, message: PoppedMessage) -> AbstractContextManager[object]:
        """Return the context of a handler's call. For `run`."""
        return self._in_handler(message, super().processing(message))

    @contextlib.contextmanager
    def _in_handler(self, message: PoppedMessage, inner: AbstractContextManager[object]) -> Iterator[None]:
        """Have `close` wait for the handler; the message is renewed until it ends."""
        task = asyncio.current_task()
        assert task is not None, "coroutines run in tasks"
        self._handling.add(task)
        try:
            with inner:
                yield
        finally:
            self._handling.discard(task)
            message._delivery.is_renewed = False  # noqa: SLF001  # this consumer made it

    async def run(self, handler: PopFunction, *, concurrency: int = 1) -> None:
        """Call `handler` with each message, at most `concurrency` at a time, until the consumer is closed.

        The message is acknowledged when the handler returns. When it raises an exception, or a cancellation that is not
        one of this call, the message comes back after a delay, unless the handler has ended it. While a handler runs,
        the time of its message is renewed (`renew_s`). What the handler returns is ignored. SystemExit,
        KeyboardInterrupt and the like end this call, and the message is not acknowledged.

        Raises:
            ConfigError: the handler is not asynchronous, or `concurrency` is below 1.
            ClosedError: the consumer was not started, or has failed.
        """
        await self._run_handlers(handler, concurrency)

    async def acknowledge(self, message: PoppedMessage) -> None:
        """Acknowledge a message without waiting, so that acknowledgements gather; see `MessageConsumer`."""
        shell, core = self._running()
        core.ack(message._delivery, shell.now)  # noqa: SLF001  # this consumer made it
        shell.wake()

    # Called by messages; state.

    async def ack(self, delivery: PopDelivery) -> None:
        """See `PoppedMessage.ack`."""
        shell, core = self._running()
        await shell.done(core.ack(delivery, shell.now))

    async def retry(self, delivery: PopDelivery, delay_s: float | None) -> None:
        """See `PoppedMessage.retry`."""
        shell, core = self._running()
        await shell.done(core.retry(delivery, shell.now, None if delay_s is None else _milliseconds(delay_s)))

    async def change_invisible(self, delivery: PopDelivery, invisible_s: float) -> None:
        """See `PoppedMessage.change_invisible`."""
        shell, core = self._running()
        await shell.done(core.change_invisible(delivery, _milliseconds(invisible_s), shell.now))

    def popped_from(self) -> list[tuple[str, str]]:
        """Return the topics and the broker groups that are popped, sorted."""
        _, core = self._running()
        return core.pollers()


def _milliseconds(seconds: float) -> int:
    if not 0 <= seconds < 1e9:
        raise LocalError(f"a time of {seconds} s; it must not be negative, nor longer than brokers keep messages")
    return round(seconds * 1_000)
