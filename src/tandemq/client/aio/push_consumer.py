"""The push consumer for asyncio.

    async with PushConsumer("127.0.0.1:9876", group="billing", topics={"Orders": "paid || refunded"}) as consumer:
        async for message in consumer:
            await message.ack()

or, with a handler, several messages at a time:

    async with PushConsumer(…) as consumer:
        await consumer.run(handle, concurrency=16)      returning acknowledges, raising sends the message back

A message that is neither acknowledged nor sent back is delivered again, here or at another member of the group. When
the body of `async with` raises, the message received last is sent back at once.
"""

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Unpack

from tandemq.client.aio.checked_deliveries import CheckedDeliveries
from tandemq.client.aio.deduplication import Deduplication, window_options
from tandemq.client.aio.options import ConsumerKeywords
from tandemq.client.aio.receiving import MessageConsumer
from tandemq.client.aio.tracing import Tracing
from tandemq.client.aio.transport import Shell
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.consumer.received_message import ReceivedMessage
from tandemq.client.consumer.subscription import Expression, make_subscription
from tandemq.client.core.settings import ConsumerOptions
from tandemq.config.tls import ClientTls
from tandemq.model.access import Credentials
from tandemq.model.message import MessageQueue
from tandemq.model.topic import AUTO_CREATE_TOPIC

log = logging.getLogger(__name__)
Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""An `async def` function; its result is ignored."""
YIELD_AFTER = 64
"""After this many messages without a wait, the event loop gets a turn."""


class PushConsumer(MessageConsumer[PushConsumerCore, ReceivedMessage]):
    """Consumes topics as a member of a group. Use it with `async with`, or call `start` and `close`."""

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
        deduplicate: bool | Deduplication = False,
        **options: Unpack[ConsumerKeywords],
    ) -> None:
        """Create a consumer that is not connected yet.

        Args:
            name_servers: "host:port", several separated by ";".
            group: consumer group; its members share the queues, or each reads all of them (`model`).
            topics: subscriptions: "*" for all messages of a topic, tags: "a || b", or SQL92: `Sql("a > 3")`.
            client_id: name of this member at brokers and in its group; by default a unique one.
            tls: TLS on all connections; True: servers are verified with the authorities of the system.
            credentials: user that signs all requests; by default that of the environment, if there is one.
            tracing: `tandemq.client.opentelemetry.OpenTelemetry()`, or another `Tracing`.
            deduplicate: whether, or how, duplicates of handled messages are recognised and skipped.
            options: see `ConsumerOptions`.

        Raises:
            ConfigError: the group, a topic, an expression or an option is invalid.
        """
        self._options = ConsumerOptions(group=group, **options, **window_options(deduplicate))
        super().__init__(name_servers, client_id, tls, credentials, group, tracing, self._options.close_wait_s)
        self._model = self._options.model
        self._deduplication = deduplicate if isinstance(deduplicate, Deduplication) else Deduplication()
        self._topics = dict(topics or {})
        for topic, expression in self._topics.items():
            make_subscription(topic, expression, 0)
        self._checked: CheckedDeliveries | None = None
        """Deliveries looked up in the store of handled messages, if there is one."""
        self._takes_directly = not self._options.duplicate_window
        """Whether deliveries are those of the core, none of which is skipped."""
        self._last: ReceivedMessage | None = None
        self._returned: deque[Delivery] = deque()
        """Deliveries that were taken and did not reach the application."""

    async def start(self) -> None:
        """Join the group and wait for a name server; messages follow once the queues are rebalanced.

        Raises:
            ConfigError: an address, a topic or an expression is invalid.
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server, or a topic is static.
            LocalError: it is started already.
        """
        shell = self._open()
        self._prepare()
        self._returned.clear()
        core = self._core = shell.node.push_consumer(self._options, shell.now)
        core.on_ready = self._wake_receivers
        shell.on_closed = self._wake_all
        if self._options.duplicate_window and self._deduplication.store is not None:
            store, when_store_fails = self._deduplication.store, self._deduplication.when_store_fails
            self._checked = CheckedDeliveries(core, store, when_store_fails, self._wake_receivers, shell.wake)
            core.on_ready = self._checked.arrived
            self._checked.start()
        for topic, expression in self._topics.items():
            core.subscribe(topic, expression, shell.now)
        shell.wake()
        try:
            await shell.reach_name_server(self._options.start_timeout_ms, next(iter(self._topics), AUTO_CREATE_TOPIC))
            for topic, expression in self._topics.items():
                await self._check(topic, expression)
        except BaseException:
            await self._close(after_error=True)
            raise

    async def subscribe(self, topic: str, expression: Expression = "*") -> None:
        """Subscribe to another topic, or to other messages of a topic.

        Args:
            expression: "*" for all messages, tags: "a || b", or an SQL92 expression: `Sql("a > 3")`.

        Raises:
            ConfigError: the topic or the expression is invalid, or the broker does not filter by expressions.
            RemoteError: the topic is static.
        """
        shell, core = self._running()
        make_subscription(topic, expression, 0)
        await self._check(topic, expression)
        core.subscribe(topic, expression, shell.now)
        shell.wake()

    def _stop_core(self) -> None:
        shell, core = self._running()
        core.stop(shell.now)
        shell.wake()

    async def _end_deliveries(self) -> None:
        if self._checked is not None:
            await self._checked.close()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._last is not None and not self._last.is_ended and self._is_open():
            await self._last.retry()
        await self._close(after_error=error is not None)

    # Taking messages.

    def _count_ready(self) -> int | None:
        source = self._checked if self._checked is not None else self._core
        return None if source is None else source.ready_count + len(self._returned)

    def _take_next(self, *, for_handler: bool) -> ReceivedMessage | None:  # noqa: ARG002  # pop consumers need it
        shell, core = self._shell, self._core
        if shell is None or core is None or not shell.is_usable():
            shell, core = self._running()
        if self._is_stopping:
            self._check_taking()
        delivery = self._next_returned(core) if self._returned else None
        if delivery is None:
            if self._takes_directly and core.tracer is None:
                delivery = core.next_delivery()
            else:
                delivery = self._next_delivery(shell, core)
            if delivery is None:
                return None
        self._last = message = ReceivedMessage(delivery.message, delivery.queue, delivery, self)
        return message

    def _next_delivery(self, shell: Shell, core: PushConsumerCore) -> Delivery | None:
        traced_at = shell.now if core.tracer is not None else None
        if self._checked is not None:
            return self._checked.take(traced_at)
        delivery = core.next_delivery(traced_at)
        if self._options.duplicate_window:
            # Skipped duplicates are acknowledged in the next turn.
            shell.wake()
        return delivery

    def _next_returned(self, core: PushConsumerCore) -> Delivery | None:
        while self._returned:
            delivery = self._returned.popleft()
            if delivery.assigned is None or delivery.is_ours:
                return delivery
            core.release(delivery)
        return None

    def return_taken(self, message: ReceivedMessage) -> None:
        """Make a message available again that was taken, and did not reach the application."""
        if not message.is_ended:
            self._returned.append(message._delivery)  # noqa: SLF001  # this consumer made it
            self._wake_receivers()

    async def run(self, handler: Handler, *, concurrency: int = 1, handle_signals: bool = True) -> None:
        """Call `handler` with each message, at most `concurrency` at a time, until the consumer is stopped or closed.

        The message is acknowledged when the handler returns, and sent back when it raises an exception, or a
        cancellation that is not one of this call, unless the handler has ended it. What the handler returns is ignored.
        SystemExit, KeyboardInterrupt and the like end this call, and the message is not acknowledged. An orderly
        consumer handles at most one message of a queue at a time.

        Args:
            handler: an `async def` function.
            concurrency: maximum number of handlers that run at a time.
            handle_signals: whether the first SIGINT or SIGTERM stops the consumer, and a second one ends the process at
                once. Signals that the application handles itself are left to it.

        Raises:
            ConfigError: the handler is not asynchronous, or `concurrency` is below 1.
            ClosedError: the consumer was not started, or has failed.
        """
        await super().run(handler, concurrency=concurrency, handle_signals=handle_signals)

    def acknowledge(self, message: ReceivedMessage) -> Awaitable[None] | None:
        """See `MessageConsumer`."""
        return self.ack(message._delivery)  # noqa: SLF001  # this consumer made it

    # Called by messages; state.

    def ack(self, delivery: Delivery) -> Awaitable[None] | None:
        """See `ReceivedMessage.ack`; returns what to wait for."""
        shell, core = self._shell, self._core
        if shell is None or core is None or not shell.is_usable():
            shell, core = self._running()
        if self._checked is not None and delivery.identity and not delivery.is_ended:
            return self._note_and_ack(self._checked, delivery)
        if core.note_ack(delivery):
            return None
        core.ack(delivery, shell.now)
        shell.wake()
        return None

    async def _note_and_ack(self, checked: CheckedDeliveries, delivery: Delivery) -> None:
        await checked.note(delivery.identity)
        shell, core = self._running()
        core.ack(delivery, shell.now)
        shell.wake()

    async def retry(self, delivery: Delivery, delay_level: int) -> None:
        """See `ReceivedMessage.retry`."""
        shell, core = self._running()
        await shell.done(core.retry(delivery, shell.now, delay_level))

    async def commit(self) -> None:
        """Start to commit now, without waiting; commits are also made every `commit_ms` and by `close`."""
        shell, core = self._running()
        core.rebalance_service.commit(shell.now)
        shell.wake()

    @property
    def duplicates_skipped(self) -> int:
        """Number of duplicates that were acknowledged instead of delivered (`deduplicate`), since `start`."""
        return self._core.duplicates_skipped if self._core is not None else 0

    @property
    def store_failures(self) -> int:
        """Number of calls of the store of handled messages that failed, since `start`."""
        return self._checked.failures if self._checked is not None else 0

    def assigned(self) -> list[MessageQueue]:
        """Return the queues that are assigned to this member, sorted."""
        _, core = self._running()
        return core.rebalance_service.queues()

    def reading_from(self) -> dict[MessageQueue, str]:
        """Return the broker address from which each queue was pulled last."""
        _, core = self._running()
        return {assigned.queue: assigned.puller.read_from for assigned in core.rebalance_service.active()}
