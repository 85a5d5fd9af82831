"""What push and pop consumers have in common: messages are received one by one, iterated over, or given to a handler.

A receiver that finds no message waits, and as many are woken as there are messages.

    stop ─► no more messages are pulled or taken ─► handlers end, or are cancelled after `close_wait_s`
    close ─► stop ─► wait for handlers ─► commit, leave the group ─► what is not ended is delivered again
"""

import asyncio
import contextlib
import logging
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from tandemq.client.aio.handlers import HandledMessage, run_handlers
from tandemq.client.aio.lifecycle import AsyncClient, Core
from tandemq.client.aio.stop_signals import StopSignals
from tandemq.client.aio.tracing import TracedClient, Tracing
from tandemq.client.aio.transport import Shell
from tandemq.client.consumer.subscription import Expression, check_expression_at_broker
from tandemq.client.core.settings import MessageModel
from tandemq.config.tls import ClientTls
from tandemq.errors import ClosedError, NetworkError, NoRoute, ProtocolError
from tandemq.model.access import Credentials
from tandemq.model.group import Sql
from tandemq.model.message import Message, SendResult

log = logging.getLogger(__name__)
M = TypeVar("M", bound=HandledMessage)
YIELD_AFTER = 64
"""After this many messages without a wait, the event loop gets a turn."""
HANDLER_END_S = 0.5
"""For how long `close` waits for handlers that it has cancelled."""
WOKEN_AT_ONCE = 2
"""Maximum number of tasks with handlers that are woken at a time; each of them wakes as many if messages are left."""


class MessageConsumer(AsyncClient[Core], Generic[Core, M]):
    """A consumer that delivers messages one by one."""

    _model = MessageModel.CLUSTERING

    def __init__(
        self,
        name_servers: str,
        client_id: str,
        tls: ClientTls | bool,
        credentials: Credentials | None,
        group: str,
        tracing: Tracing | None,
        close_wait_s: float,
    ) -> None:
        """Create a consumer that is not connected yet."""
        super().__init__(name_servers, client_id, tls, credentials)
        self._group = group
        self._close_wait_s = close_wait_s
        self._tracing = tracing
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._idle: deque[asyncio.Future[None]] = deque()
        """Of tasks that call handlers. One takes several messages while handlers do not wait, so few are woken."""
        self._taken = 0
        self._closing = asyncio.Lock()
        self._is_stopping = False
        self._cut_off: asyncio.Handle | None = None
        """Cancels the handlers that still run after `close_wait_s`."""
        self._cut_off_s = 0.0
        """When, by the clock of the event loop."""
        self._signals: list[StopSignals] = []
        """Of the calls of `run`; after a signal they stay until the consumer is closed."""
        self.workers: set[asyncio.Task[None]] = set()
        """Tasks of `run` that call handlers."""

    # What a consumer supplies.

    @abstractmethod
    def return_taken(self, message: M) -> None:
        """Make a message available again that was taken, and did not reach the application."""

    @abstractmethod
    def _take_next(self, *, for_handler: bool) -> M | None:
        """Return the next message, None if there is none now.

        Raises:
            ClosedError: the consumer was closed.
        """

    @abstractmethod
    def _count_ready(self) -> int | None:
        """Return the number of messages to take; None: the consumer is not started."""

    @abstractmethod
    def acknowledge(self, message: M) -> Awaitable[None] | None:
        """Acknowledge a message whose handler has returned; returns what to wait for. For `run`."""

    @abstractmethod
    def _stop_core(self) -> None:
        """Have the core pull and deliver no more messages."""

    # Stop and close.

    def _prepare(self) -> None:
        """Prepare a start."""
        self._is_stopping = False

    def stop(self) -> None:
        """Take no more messages, without waiting, before `close`.

        `run` returns when its handlers have; those that run longer than `close_wait_s` are cancelled. `async for` ends,
        and `receive` raises ClosedError. Messages that were taken can be ended until `close`; the queues are kept until
        then. Has no effect a second time, or on a consumer that was closed.

        Raises:
            ClosedError: the consumer was not started.
            LocalError: it belongs to another event loop.
        """
        shell = self._started()
        if not shell.is_closed:
            shell.check_open()
            self._begin_stop(self._close_wait_s)

    def _begin_stop(self, wait_s: float) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._stop_core()
            self._wake_all()
            loop = asyncio.get_running_loop()
            self._cut_off_s = loop.time() + wait_s
            self._cut_off = loop.call_later(wait_s, self._cancel_handlers)
        if wait_s <= 0:
            self._cancel_handlers()

    def _cancel_handlers(self) -> None:
        try:
            caller = asyncio.current_task()
        except RuntimeError:  # a timer called it
            caller = None
        running = self.workers - {caller}
        if running:
            log.warning("handlers are cancelled, the consumer closes group=%s count=%d", self._group, len(running))
        for worker in running:
            worker.cancel()

    async def _handlers_ended(self) -> None:
        """Wait for running handlers, but for one that called this; they are cancelled when their time is over."""
        running = self.workers - {asyncio.current_task()}
        if running:
            left_s = max(0.0, self._cut_off_s - asyncio.get_running_loop().time())
            await asyncio.wait(running, timeout=left_s + HANDLER_END_S)

    async def close(self) -> None:
        """Take no more messages, wait for the handlers of `run`, commit, leave the group, close.

        Handlers that run longer than `close_wait_s` are cancelled. What was received and is not ended is delivered
        again, here or at another member, and nothing else is. A second call waits for the first one. A cancelled one
        cancels the handlers and closes the connections at once.

        Raises:
            LocalError: the consumer belongs to another event loop.
        """
        await self._close(after_error=False)

    async def _close(self, *, after_error: bool) -> None:
        async with self._closing:
            if self._shell is None:
                return
            if not self._shell.is_closed:
                self._shell.check_open()
            try:
                if not self._shell.is_closed:
                    self._begin_stop(0 if after_error else self._close_wait_s)
                    await self._handlers_ended()
                await self._end_deliveries()
                await self._shell.close(after_error=after_error)
            except asyncio.CancelledError:
                self._shell.abort()
                self._cancel_handlers()
                raise
            finally:
                if self._cut_off is not None:
                    self._cut_off.cancel()
                while self._signals:
                    self._signals.pop().remove()

    async def _end_deliveries(self) -> None:
        """End what follows the handlers, before the core closes."""

    # Topics.

    async def _check(self, topic: str, expression: Expression) -> None:
        """Refuse a static topic, and have a broker check an SQL92 expression."""
        await self._check_route(topic)
        if isinstance(expression, Sql):
            shell, _ = self._running()
            client_id = shell.node.config.client_id
            await self._run(check_expression_at_broker(shell.node.routes, client_id, self._group, topic, expression))

    async def _check_route(self, topic: str) -> None:
        """Refuse a topic whose route this client cannot use; one without a route may still come."""
        shell, _ = self._running()
        if shell.node.routes.get(topic) is None:
            with contextlib.suppress(NoRoute, NetworkError, ProtocolError):
                await shell.done(shell.node.routes.fetch(topic, shell.now))
            shell.check_open()

    # State.

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
    def is_stopping(self) -> bool:
        """Whether `stop` or `close` was called."""
        return self._is_stopping

    def _check_taking(self) -> None:
        if self._is_stopping:
            raise ClosedError("the consumer is being closed")

    def _is_open(self) -> bool:
        return self._shell is not None and not self._shell.is_closed

    def _started(self) -> Shell:
        if self._shell is None:
            raise self._not_started()
        return self._shell

    # Receivers.

    def _wake_all(self) -> None:
        _wake(self._receivers, len(self._receivers))
        _wake(self._idle, len(self._idle))

    def _wake_receivers(self, most: int | None = None) -> None:
        """Wake as many receivers as there are messages, or `most`; for what is left two tasks that call handlers."""
        count = most if most is not None else self._count_ready()
        if count is None:
            self._wake_all()
            return
        count -= _wake(self._receivers, count)
        if self._idle:
            _wake(self._idle, min(count, WOKEN_AT_ONCE))

    async def receive(self, timeout_s: float | None = None) -> M | None:
        """Return the next message; None if there was none for `timeout_s` seconds. A cancelled call takes none.

        Raises:
            ClosedError: the consumer was stopped or closed, perhaps meanwhile.
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

    def _next(self, *, for_handler: bool = False) -> M | None:
        """Return the next message, None if there is none now. `for_handler`: `run` traces how it is processed."""
        message = self._take_next(for_handler=for_handler)
        if message is None:
            return None
        self._taken += 1
        if self._tracing is not None and not for_handler:
            try:
                self._tracing.received(message.stored, message.queue, self._traced_client())
            except (Exception, asyncio.CancelledError):
                log.exception("tracing of a received message failed group=%s", self._group)
        return message

    async def next_for_handler(self) -> M | None:
        """Return the next message for a handler; None after a wait, when there may be one. For `run`.

        Raises:
            ClosedError: the consumer was closed.
        """
        if self._taken >= YIELD_AFTER:
            await self._yield_to_loop()
        message = self._next(for_handler=True)
        if message is None:
            await self._wait(self._idle)
            # This one takes a message now; the others are woken for what is left.
            if self._idle and (count := self._count_ready()) is not None:
                _wake(self._idle, min(count - 1, WOKEN_AT_ONCE))
        return message

    def take_for_handler(self) -> M | None:
        """Return the next message for a handler; None if there is none, or the event loop is due a turn. For `run`.

        Raises:
            ClosedError: the consumer was closed.
        """
        if self._taken >= YIELD_AFTER:
            return None
        message = self._take_next(for_handler=True)
        if message is not None:
            self._taken += 1
        return message

    def processing(self, message: M) -> AbstractContextManager[object] | None:
        """Return the context of a handler's call; None if it needs none. For `run`."""
        if self._tracing is None:
            return None
        return self._tracing.processing(message.stored, message.queue, self._traced_client())

    def _traced_client(self) -> TracedClient:
        shell, _ = self._running()
        return TracedClient(shell.node.config.client_id, self._group, self._model)

    async def _take(self) -> M:
        """Wait for a message and return it. A cancelled call takes none: nothing is awaited after one was taken."""
        while (message := self._next()) is None:
            await self._wait(self._receivers)
        return message

    async def _wait(self, waiting: deque[asyncio.Future[None]]) -> None:
        """Wait until there may be a message, as one of `waiting`."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append(future)
        try:
            await future
        except asyncio.CancelledError:
            if future.cancelled():
                if future in waiting:
                    waiting.remove(future)
            else:
                # Woken for a message that another one must take now.
                self._wake_receivers(1)
            raise

    async def __aiter__(self) -> AsyncIterator[M]:
        """Iterate over messages until the consumer is stopped or closed.

        Raises:
            ClosedError: the consumer was not started, or has failed.
        """
        self._started()
        while True:
            if self._taken >= YIELD_AFTER:
                await self._yield_to_loop()
            try:
                if self._tracing is not None:
                    message = self._next()
                elif (message := self._take_next(for_handler=False)) is not None:
                    self._taken += 1
            except ClosedError:
                if self.is_over() or self.is_stopping:
                    return
                raise
            if message is None:
                await self._wait(self._receivers)
            else:
                yield message

    async def run(
        self, handler: Callable[[M], Awaitable[object]], *, concurrency: int = 1, handle_signals: bool = True
    ) -> None:
        """Call `handler` with each message until the consumer is stopped, by the first signal too. After a signal a
        second one ends the process, until the consumer is closed."""
        if not handle_signals:
            await run_handlers(self, self._group, handler, concurrency)
            return
        signals = StopSignals(self.stop)
        signals.install()
        self._signals.append(signals)
        try:
            await run_handlers(self, self._group, handler, concurrency)
        finally:
            if signals in self._signals and not (self._is_stopping and self._is_open()):
                self._signals.remove(signals)
                signals.remove()

    async def send_reply(self, reply: Message) -> SendResult:
        """Send the reply to a request; see `ReceivedMessage.reply`."""
        shell, _ = self._running()
        await shell.writable()
        return await shell.done(shell.node.inner_producer().send(reply, shell.now))


def _wake(waiting: deque[asyncio.Future[None]], most: int) -> int:
    """Wake the first of those that wait, at most `most`; returns how many were woken."""
    woken = 0
    while waiting and woken < most:
        future = waiting.popleft()
        if not future.done():
            future.set_result(None)
            woken += 1
    return woken
