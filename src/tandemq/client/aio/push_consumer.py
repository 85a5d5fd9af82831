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

import asyncio
import contextlib
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Unpack

from tandemq.client.aio.checked_deliveries import CheckedDeliveries
from tandemq.client.aio.deduplication import Deduplication, window_options
from tandemq.client.aio.lifecycle import AsyncClient
from tandemq.client.aio.options import ConsumerKeywords
from tandemq.client.aio.tracing import TracedClient, Tracing
from tandemq.client.aio.transport import Shell
from tandemq.client.aio.user_code import check_async, not_awaitable
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.client.consumer.received_message import ReceivedMessage
from tandemq.client.consumer.subscription import Expression, check_expression_at_broker, make_subscription
from tandemq.client.core.settings import ConsumerOptions
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, ConfigError, NetworkError, NoRoute, ProtocolError
from tandemq.model.access import Credentials
from tandemq.model.group import Sql
from tandemq.model.message import Message, MessageQueue, SendResult
from tandemq.model.topic import AUTO_CREATE_TOPIC

log = logging.getLogger(__name__)
Handler = Callable[[ReceivedMessage], Awaitable[object]]
"""An `async def` function; its result is ignored."""
YIELD_AFTER = 64
"""After this many messages without a wait, the event loop gets a turn."""


class PushConsumer(AsyncClient[PushConsumerCore]):
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
        super().__init__(name_servers, client_id, tls, credentials)
        self._options = ConsumerOptions(group=group, **options, **window_options(deduplicate))
        self._deduplication = deduplicate if isinstance(deduplicate, Deduplication) else Deduplication()
        self._tracing = tracing
        self._topics = dict(topics or {})
        for topic, expression in self._topics.items():
            make_subscription(topic, expression, 0)
        self._checked: CheckedDeliveries | None = None
        """Deliveries looked up in the store of handled messages, if there is one."""
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._last: ReceivedMessage | None = None
        self._taken = 0
        self._returned: deque[Delivery] = deque()
        """Deliveries that were taken and did not reach the application."""
        self._closing = asyncio.Lock()

    async def start(self) -> None:
        """Join the group and wait for a name server; messages follow once the queues are rebalanced.

        Raises:
            ConfigError: an address, a topic or an expression is invalid.
            NetworkError: no name server responds within `start_timeout_ms`.
            RemoteError: the server at the address is not a name server, or a topic is static.
            LocalError: it is started already.
        """
        shell = self._open()
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

    async def _check(self, topic: str, expression: Expression) -> None:
        """Refuse a static topic, and have a broker check an SQL92 expression."""
        await self._check_route(topic)
        if isinstance(expression, Sql):
            shell, _ = self._running()
            group, client_id = self._options.group, shell.node.config.client_id
            steps = check_expression_at_broker(shell.node.routes, client_id, group, topic, expression)
            await self._run(steps)

    async def _check_route(self, topic: str) -> None:
        """Refuse a topic whose route this client cannot use; one without a route may still come."""
        shell, _ = self._running()
        if shell.node.routes.get(topic) is None:
            with contextlib.suppress(NoRoute, NetworkError, ProtocolError):
                await shell.done(shell.node.routes.fetch(topic, shell.now))
            shell.check_open()

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

    async def close(self) -> None:
        """Commit, leave the group, close; has no effect a second time."""
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        async with self._closing:
            if self._shell is None:
                return
            if not self._shell.is_closed:
                self._shell.check_open()
            try:
                if self._checked is not None:
                    await self._checked.close()
                await self._shell.close(after_error=after_error)
            except asyncio.CancelledError:
                self._shell.abort()
                raise

    def _wake_all(self) -> None:
        self._wake_receivers(len(self._receivers))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and self._last is not None and not self._last.is_ended and self._is_open():
            await self._last.retry()
        await self._close(after_error=error is not None)

    def _is_open(self) -> bool:
        return self._shell is not None and not self._shell.is_closed

    def is_over(self) -> bool:
        """Return whether the consumer was closed.

        Raises:
            ClosedError: it was not started, or has failed.
        """
        shell = self._started()
        if shell.failure is not None:
            shell.check_open()
        return shell.is_closed

    @property
    def is_closing(self) -> bool:
        """Whether `close` was called and has not ended."""
        return self._closing.locked()

    def _started(self) -> Shell:
        if self._shell is None:
            raise self._not_started()
        return self._shell

    # Taking messages.

    def _wake_receivers(self, most: int | None = None) -> None:
        """Wake as many receivers as there are messages, or `most`."""
        source = self._checked if self._checked is not None else self._core
        count = most if most is not None or source is None else source.ready_count + len(self._returned)
        receivers = self._receivers
        while receivers and (count is None or count > 0):
            future = receivers.popleft()
            if not future.done():
                future.set_result(None)
                if count is not None:
                    count -= 1

    async def receive(self, timeout_s: float | None = None) -> ReceivedMessage | None:
        """Return the next message; None if there was none for `timeout_s` seconds.

        Raises:
            ClosedError: the consumer was closed.
        """
        if self._taken >= YIELD_AFTER:
            await self._yield_to_loop()
        message = self._next()
        if message is not None:
            return message
        try:
            async with asyncio.timeout(timeout_s):
                return await self._take()
        except TimeoutError:
            return None

    async def _yield_to_loop(self) -> None:
        self._taken = 0
        await asyncio.sleep(0)

    def _next(self, *, for_handler: bool = False) -> ReceivedMessage | None:
        """Return the next message, None if there is none now. `for_handler`: `run` traces how it is processed."""
        delivery = self._next_returned() or self._next_delivery()
        if delivery is None:
            return None
        self._taken += 1
        self._last = message = ReceivedMessage(delivery, self)
        if self._tracing is not None and not for_handler:
            try:
                self._tracing.received(message.stored, message.queue, self._traced_client())
            except (Exception, asyncio.CancelledError):
                log.exception("tracing of a received message failed group=%s", self._options.group)
        return message

    def _next_delivery(self) -> Delivery | None:
        shell, core = self._running()
        traced_at = shell.now if core.tracer is not None else None
        if self._checked is not None:
            return self._checked.take(traced_at)
        delivery = core.next_delivery(traced_at)
        if self._options.duplicate_window:
            # Skipped duplicates are acknowledged in the next turn.
            shell.wake()
        return delivery

    def _next_returned(self) -> Delivery | None:
        _, core = self._running()
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

    async def next_for_handler(self) -> ReceivedMessage | None:
        """Return the next message for a handler; None after a wait, when there may be one. For `run`.

        Raises:
            ClosedError: the consumer was closed.
        """
        if self._taken >= YIELD_AFTER:
            await self._yield_to_loop()
        message = self._next(for_handler=True)
        if message is None:
            await self._wait()
        return message

    def processing(self, message: ReceivedMessage) -> AbstractContextManager[object]:
        """Return the context of a handler's call. For `run`."""
        if self._tracing is None:
            return contextlib.nullcontext()
        return self._tracing.processing(message.stored, message.queue, self._traced_client())

    def _traced_client(self) -> TracedClient:
        shell, _ = self._running()
        return TracedClient(shell.node.config.client_id, self._options.group, self._options.model)

    async def _take(self) -> ReceivedMessage:
        """Wait for a message and return it. A cancelled call takes none: nothing is awaited after one was taken."""
        while (message := self._next()) is None:
            await self._wait()
        return message

    async def _wait(self) -> None:
        """Wait until there may be a message."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._receivers.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                if future in self._receivers:
                    self._receivers.remove(future)
            else:
                # Woken for a message that another one must take now.
                self._wake_receivers(1)
            raise

    async def __aiter__(self) -> AsyncIterator[ReceivedMessage]:
        """Iterate over messages until the consumer is closed.

        Raises:
            ClosedError: the consumer was not started, or has failed.
        """
        self._started()
        while True:
            if self._taken >= YIELD_AFTER:
                await self._yield_to_loop()
            try:
                message = self._next()
            except ClosedError:
                if self.is_over():
                    return
                raise
            if message is None:
                await self._wait()
            else:
                yield message

    async def run(self, handler: Handler, *, concurrency: int = 1) -> None:
        """Call `handler` with each message, at most `concurrency` at a time, until the consumer is closed.

        The message is acknowledged when the handler returns, and sent back when it raises an exception, or a
        cancellation that is not one of this call, unless the handler has ended it. What the handler returns is ignored.
        SystemExit, KeyboardInterrupt and the like end this call, and the message is not acknowledged. An orderly
        consumer handles at most one message of a queue at a time.

        Raises:
            ConfigError: the handler is not asynchronous, or `concurrency` is below 1.
            ClosedError: the consumer was not started, or has failed.
        """
        check_async(handler, "the handler")
        if concurrency < 1:
            raise ConfigError(f"concurrency is {concurrency}; it must be at least 1")
        self._started()
        runner = asyncio.current_task()
        assert runner is not None, "coroutines run in tasks"
        workers = _Workers(self, self._options.group, handler, runner)
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(workers.work())
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None

    # Called by messages; state.

    def ack(self, delivery: Delivery) -> Awaitable[None] | None:
        """See `ReceivedMessage.ack`; returns what to wait for."""
        shell, core = self._running()
        if self._checked is not None and delivery.identity and not delivery.is_ended:
            return self._note_and_ack(self._checked, delivery)
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

    async def send_reply(self, reply: Message) -> SendResult:
        """See `ReceivedMessage.reply`."""
        shell, _ = self._running()
        await shell.writable()
        return await shell.done(shell.node.inner_producer().send(reply, shell.now))

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


class _Workers:
    """Tasks that call one handler with the messages of a consumer."""

    def __init__(self, consumer: PushConsumer, group: str, handler: Handler, runner: "asyncio.Task[Any]") -> None:
        """`runner`: the task that waits for them; when it is cancelled, they end."""
        self._consumer = consumer
        self._group = group
        self._handler = handler
        self._runner = runner
        self._cancelled = runner.cancelling()
        self._has_warned = False

    def _is_ending(self) -> bool:
        """Return whether the runner was cancelled, by its caller, or by its task group because a worker has failed."""
        return self._runner.cancelling() > self._cancelled

    async def work(self) -> None:
        """Handle messages until the consumer is closed or the runner is cancelled, even if the handler hides that.

        A cancellation that is not the runner's comes from the handler, or from other code that has this task; it fails
        the message at hand.
        """
        failed: ReceivedMessage | None = None
        while not self._is_ending():
            message: ReceivedMessage | None = None
            try:
                if failed is not None:
                    message, failed = failed, None
                    await message.retry()
                    continue
                message = await self._consumer.next_for_handler()
                if message is not None:
                    await self._handle(message)
            except _NotAsynchronous as error:
                if message is not None:
                    await message.retry()
                raise error.reason from None
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError):
                    if self._is_ending():
                        raise
                    self._reset_cancellation()
                if self._consumer.is_over() or (isinstance(error, ClosedError) and self._consumer.is_closing):
                    return  # a ClosedError of the acknowledgement: the handler has not failed
                if message is not None:
                    log.exception("handler failed group=%s message=%r", self._group, message)
                    failed = message if not message.is_ended else None
                elif not isinstance(error, asyncio.CancelledError):
                    raise

    async def _handle(self, message: ReceivedMessage) -> None:
        with self._consumer.processing(message):
            returned = self._handler(message)
            if not inspect.isawaitable(returned):
                raise _NotAsynchronous(not_awaitable("the handler", self._handler))
            result = await returned
        if result is not None and not self._has_warned:
            self._has_warned = True
            log.warning(
                "handler returned %.200r, which is ignored group=%s: raise to have a message delivered again",
                result,
                self._group,
            )
        if not message.is_ended:
            await message.ack()

    @staticmethod
    def _reset_cancellation() -> None:
        task = asyncio.current_task()
        while task is not None and task.cancelling():
            task.uncancel()


class _NotAsynchronous(Exception):
    """The handler returned something that cannot be awaited."""

    def __init__(self, reason: ConfigError) -> None:
        super().__init__(str(reason))
        self.reason = reason
