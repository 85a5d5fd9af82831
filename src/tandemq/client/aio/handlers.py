"""Handlers of consumers: tasks that call one function with each message, and what its outcome means."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from types import CoroutineType
from typing import Any, Generic, Protocol, TypeVar

from tandemq.client.aio.user_code import check_async, not_awaitable
from tandemq.errors import ClosedError, ConfigError
from tandemq.model.message import MessageQueue, StoredMessage

log = logging.getLogger(__name__)


class HandledMessage(Protocol):
    """A delivered message."""

    stored: StoredMessage
    queue: MessageQueue

    @property
    def is_ended(self) -> bool:
        """Whether it was acknowledged or is to come again."""

    async def retry(self) -> None:
        """Have it delivered again later."""


M = TypeVar("M", bound=HandledMessage)


class HandledConsumer(Protocol[M]):
    """What handlers need of their consumer."""

    def take_for_handler(self) -> M | None:
        """Return the next message; None if there is none now, or the event loop is due a turn."""

    async def next_for_handler(self) -> M | None:
        """Return the next message; None after a wait, when there may be one."""

    def processing(self, message: M) -> AbstractContextManager[object] | None:
        """Return the context of a handler's call; None if it needs none."""

    def acknowledge(self, message: M) -> Awaitable[None] | None:
        """Acknowledge a message whose handler has returned; returns what to wait for."""

    def is_over(self) -> bool:
        """Return whether the consumer was closed."""

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` or `close` was called."""

    @property
    def workers(self) -> "set[asyncio.Task[None]]":
        """Tasks that call handlers: those that `close` waits for, and cancels at last."""


async def run_handlers(
    consumer: HandledConsumer[M], group: str, handler: Callable[[M], Awaitable[object]], concurrency: int
) -> None:
    """Call `handler` with each message, at most `concurrency` at a time, until the consumer is stopped or closed.

    Raises:
        ConfigError: the handler is not asynchronous, or `concurrency` is below 1.
        ClosedError: the consumer was not started, or has failed.
    """
    check_async(handler, "the handler")
    if concurrency < 1:
        raise ConfigError(f"concurrency is {concurrency}; it must be at least 1")
    consumer.is_over()
    runner = asyncio.current_task()
    assert runner is not None, "coroutines run in tasks"
    workers = _Workers(consumer, group, handler, runner)
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(concurrency):
                worker = tasks.create_task(workers.work())
                consumer.workers.add(worker)
                worker.add_done_callback(consumer.workers.discard)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


class _Workers(Generic[M]):
    """Tasks that call one handler with the messages of a consumer."""

    def __init__(
        self,
        consumer: HandledConsumer[M],
        group: str,
        handler: Callable[[M], Awaitable[object]],
        runner: "asyncio.Task[Any]",
    ) -> None:
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
        """Handle messages until the consumer is stopped or the runner is cancelled, even if the handler hides that.

        A cancellation that is not the runner's comes from the handler, or from other code that has this task; it fails
        the message at hand. One while the consumer is stopping leaves it as it is: `close` has it delivered again.
        """
        failed: M | None = None
        consumer, runner = self._consumer, self._runner
        while runner.cancelling() <= self._cancelled:
            message: M | None = None
            try:
                if failed is not None:
                    message, failed = failed, None
                    await message.retry()
                    continue
                message = consumer.take_for_handler()
                if message is None:
                    message = await consumer.next_for_handler()
                    if message is None:
                        continue
                processing = consumer.processing(message)
                result = await (self._called(message) if processing is None else self._called_in(processing, message))
                if result is not None and not self._has_warned:
                    self._warn_of(result)
                if not message.is_ended and (pending := consumer.acknowledge(message)) is not None:
                    await pending
            except _NotAsynchronous as error:
                if message is not None:
                    await message.retry()
                raise error.reason from None
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError):
                    if self._is_ending():
                        raise
                    self._reset_cancellation()
                is_cut_off = isinstance(error, asyncio.CancelledError | ClosedError) and self._consumer.is_stopping
                if is_cut_off or self._consumer.is_over():
                    return  # a ClosedError of the acknowledgement, for instance: the handler has not failed
                if message is not None:
                    log.exception("handler failed group=%s message=%r", self._group, message)
                    failed = message if not message.is_ended else None
                elif not isinstance(error, asyncio.CancelledError):
                    raise

    def _called(self, message: M) -> Awaitable[object]:
        """Call the handler and return what to wait for."""
        returned = self._handler(message)
        if type(returned) is not CoroutineType and not inspect.isawaitable(returned):
            raise _NotAsynchronous(not_awaitable("the handler", self._handler))
        return returned

    async def _called_in(self, processing: AbstractContextManager[object], message: M) -> object:
        with processing:
            return await self._called(message)

    def _warn_of(self, result: object) -> None:
        self._has_warned = True
        log.warning(
            "handler returned %.200r, which is ignored group=%s: raise to have a message delivered again",
            result,
            self._group,
        )

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
