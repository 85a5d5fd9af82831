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

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Unpack

from tandemq.client.aio.options import PopKeywords
from tandemq.client.aio.receiving import MessageConsumer
from tandemq.client.aio.tracing import Tracing
from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.consumer.pop_machine import PopConsumerCore, make_pop_subscription
from tandemq.client.consumer.popped_message import PoppedMessage
from tandemq.client.consumer.subscription import Expression
from tandemq.client.core.settings import PopOptions
from tandemq.config.tls import ClientTls
from tandemq.errors import LocalError
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
        self._options = PopOptions(group=group, **options)
        super().__init__(name_servers, client_id, tls, credentials, group, tracing, self._options.close_wait_s)
        self._topics = dict(topics or {})
        for topic, expression in self._topics.items():
            make_pop_subscription(topic, expression, 0)

    async def start(self) -> None:
        """Connect, wait for a name server, and begin to pop.

        Raises:
            ConfigError: an address, a topic or an expression is invalid.
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server.
            LocalError: it is started already.
        """
        shell = self._open()
        self._prepare()
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

    def _stop_core(self) -> None:
        shell, core = self._running()
        core.stop(shell.now)
        shell.wake()

    # Taking messages.

    def _count_ready(self) -> int | None:
        return None if self._core is None else self._core.ready_count

    def _take_next(self, *, for_handler: bool) -> PoppedMessage | None:
        shell, core = self._running()
        self._check_taking()
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
    def _in_handler(self, message: PoppedMessage, inner: AbstractContextManager[object] | None) -> Iterator[None]:
        """Renew the message until the handler ends."""
        try:
            with inner or contextlib.nullcontext():
                yield
        finally:
            message._delivery.is_renewed = False  # noqa: SLF001  # this consumer made it

    async def run(self, handler: PopFunction, *, concurrency: int = 1, handle_signals: bool = True) -> None:
        """Call `handler` with each message, at most `concurrency` at a time, until the consumer is stopped or closed.

        The message is acknowledged when the handler returns. When it raises an exception, or a cancellation that is not
        one of this call, the message comes back after a delay, unless the handler has ended it. While a handler runs,
        the time of its message is renewed (`renew_s`). What the handler returns is ignored. SystemExit,
        KeyboardInterrupt and the like end this call, and the message is not acknowledged.

        Args:
            handler: an `async def` function.
            concurrency: maximum number of handlers that run at a time.
            handle_signals: see `PushConsumer.run`.

        Raises:
            ConfigError: the handler is not asynchronous, or `concurrency` is below 1.
            ClosedError: the consumer was not started, or has failed.
        """
        await super().run(handler, concurrency=concurrency, handle_signals=handle_signals)

    def acknowledge(self, message: PoppedMessage) -> None:
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
