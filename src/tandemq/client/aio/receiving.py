"""What push and pop consumers have in common: messages are received one by one, iterated over, or given to a handler.

A receiver that finds no message waits, and as many are woken as there are messages.
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
    ) -> None:
        """Create a consumer that is not connected yet."""
        super().__init__(name_servers, client_id, tls, credentials)
        self._group = group
        self._tracing = tracing
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._taken = 0
        self._closing = asyncio.Lock()

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
    async def acknowledge(self, message: M) -> None:
        """Acknowledge a message whose handler has returned. For `run`."""

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
    def is_closing(self) -> bool:
        """Whether `close` was called and has not ended."""
        return self._closing.locked()

    def _is_open(self) -> bool:
        return self._shell is not None and not self._shell.is_closed

    def _started(self) -> Shell:
        if self._shell is None:
            raise self._not_started()
        return self._shell

    # Receivers.

    def _wake_all(self) -> None:
        self._wake_receivers(len(self._receivers))

    def _wake_receivers(self, most: int | None = None) -> None:
        """Wake as many receivers as there are messages, or `most`."""
        count = most if most is not None else self._count_ready()
        receivers = self._receivers
        while receivers and (count is None or count > 0):
            future = receivers.popleft()
            if not future.done():
                future.set_result(None)
                if count is not None:
                    count -= 1

    async def receive(self, timeout_s: float | None = None) -> M | None:
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
            await self._wait()
        return message

    def processing(self, message: M) -> AbstractContextManager[object]:
        """Return the context of a handler's call. For `run`."""
        if self._tracing is None:
            return contextlib.nullcontext()
        return self._tracing.processing(message.stored, message.queue, self._traced_client())

    def _traced_client(self) -> TracedClient:
        shell, _ = self._running()
        return TracedClient(shell.node.config.client_id, self._group, self._model)

    async def _take(self) -> M:
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

    async def __aiter__(self) -> AsyncIterator[M]:
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
                if self.is_over() or self.is_closing:
                    return
                raise
            if message is None:
                await self._wait()
            else:
                yield message

    async def _run_handlers(self, handler: Callable[[M], Awaitable[object]], concurrency: int) -> None:
        await run_handlers(self, self._group, handler, concurrency)

    async def send_reply(self, reply: Message) -> SendResult:
        """Send the reply to a request; see `ReceivedMessage.reply`."""
        shell, _ = self._running()
        await shell.writable()
        return await shell.done(shell.node.inner_producer().send(reply, shell.now))
