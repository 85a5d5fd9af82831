"""Deliveries of a consumer with a store of handled messages: looked up before they are delivered, noted when handled.

    core ─► batches of 64 ─► store.find ─► handled: skipped          64 to 128 messages are looked up in advance
                                        └► take(): to the application
    handled ─► store.add ─► acknowledged                             notes that arrive during a call share the next

The order of the last two is the guarantee: a process that dies between them gets the message again, and skips it; one
that dies between the handler and `store.add` gets it again and handles it again.

The store may be the user's, so each call has a task of its own, and any exception or cancellation of it is caught here,
logged once a minute, and the call is repeated or given up (`StoreFailure`).
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from functools import partial
from typing import Any, TypeVar

from tandemq.boundary import Now
from tandemq.client.aio.deduplication import BATCH_MAX, CALL_TIMEOUT_S, DuplicateStore, StoreFailure
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.push_machine import PushConsumerCore
from tandemq.errors import ClosedError

log = logging.getLogger(__name__)
T = TypeVar("T")
AHEAD_MIN = 64
"""The next batch is looked up when fewer checked deliveries than this are left."""
RETRY_PAUSE_S = 0.5
WARN_EVERY_S = 60.0


class CheckedDeliveries:
    """The deliveries of one consumer that are not in its store."""

    def __init__(
        self,
        core: PushConsumerCore,
        store: DuplicateStore,
        when_store_fails: StoreFailure,
        on_ready: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        """`on_ready` is called when there may be a delivery to take, `wake` when the core has work. Not running yet."""
        self._core = core
        self._store = store
        self._when_store_fails = when_store_fails
        self._on_ready = on_ready
        self._wake = wake
        self._ready: deque[Delivery] = deque()
        self._arrived = asyncio.Event()
        self._notes: list[tuple[str, asyncio.Future[None]]] = []
        self._noted = asyncio.Event()
        self._warned_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopped = False
        self._is_closed = False
        self.failures = 0
        """Number of calls of the store that failed."""

    def start(self) -> None:
        """Begin to look up deliveries."""
        self._tasks = [asyncio.create_task(self._look_up()), asyncio.create_task(self._note())]

    async def close(self) -> None:
        """Wait for notes in flight, for one call at most, stop, drop what was not taken, close the store. Has no effect
        a second time; after a call that was cancelled, the next one closes the store."""
        if self._is_closed:
            return
        try:
            if self._notes:
                await asyncio.wait([future for _, future in self._notes], timeout=CALL_TIMEOUT_S)
        finally:
            self._stop()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._attempt(self._close_store)
        # Those who waited for notes acknowledge now, before the consumer commits.
        await asyncio.sleep(0)
        self._is_closed = True

    def _stop(self) -> None:
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        for _, future in self._notes:
            if not future.done():
                future.set_exception(ClosedError("the consumer was closed while the store of handled messages failed"))
        self._ready.clear()

    # Lookup.

    def arrived(self) -> None:
        """Note that the core may have deliveries."""
        self._arrived.set()

    @property
    def ready_count(self) -> int:
        """Number of deliveries that were looked up and not taken."""
        return len(self._ready)

    def take(self, traced_at: Now | None) -> Delivery | None:
        """Return the next delivery; None if there is none now. `traced_at`: for its trace."""
        found: Delivery | None = None
        while self._ready and found is None:
            delivery = self._ready.popleft()
            if delivery.assigned is None or delivery.is_ours:
                found = delivery
            else:
                self._core.release(delivery)
        if len(self._ready) < AHEAD_MIN:
            self._arrived.set()
        if found is not None and traced_at is not None:
            self._core.trace_delivered(found, traced_at)
        return found

    async def _look_up(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while len(self._ready) < AHEAD_MIN and (batch := self._batch()):
                await self._check(batch)
                self._on_ready()
            self._wake()

    def _batch(self) -> list[Delivery]:
        batch: list[Delivery] = []
        while len(batch) < BATCH_MAX and (delivery := self._core.next_delivery()) is not None:
            batch.append(delivery)
        return batch

    async def _check(self, batch: list[Delivery]) -> None:
        """Skip deliveries that the store has as handled; replayed ones and ones without a key are not looked up."""
        identities = [delivery.identity for delivery in batch if delivery.identity]
        handled: Collection[str] = ()
        if identities:
            handled = await self._call(partial(self._find, identities)) or ()
        for delivery in batch:
            if delivery.identity and delivery.identity in handled:
                self._core.skip(delivery)
            else:
                self._ready.append(delivery)

    async def _find(self, identities: list[str]) -> Collection[str]:
        found = await self._store.find(self._core.options.group, identities)
        if isinstance(found, str | bytes) or not isinstance(found, Collection):
            raise TypeError(f"find returned {found!r:.200}, not a collection of those that were handled")
        return frozenset(found)

    # Notes.

    async def note(self, identity: str) -> None:
        """Have the store remember a handled message; returns when it does, or was given up on (`StoreFailure`).

        Raises:
            ClosedError: the consumer is closed meanwhile.
        """
        if self._is_stopped:
            raise ClosedError("the consumer is being closed")
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._notes.append((identity, future))
        self._noted.set()
        await future

    async def _note(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            while self._notes:
                batch = self._notes[:BATCH_MAX]
                identities = list(dict.fromkeys(identity for identity, _ in batch))
                await self._call(partial(self._add, identities))
                del self._notes[: len(batch)]
                for _, future in batch:
                    if not future.done():
                        future.set_result(None)

    async def _add(self, identities: list[str]) -> None:
        await self._store.add(self._core.options.group, identities)

    async def _close_store(self) -> None:
        await self._store.close()

    # Calls.

    async def _call(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """Call the store; None if it failed and failures are not waited for."""
        while True:
            attempt = await self._attempt(call)
            if attempt is not None:
                return attempt[0]
            if self._when_store_fails is StoreFailure.DELIVER:
                return None
            await asyncio.sleep(RETRY_PAUSE_S)

    async def _attempt(self, call: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T] | None:
        """Call the store once; None if it failed."""
        attempt = asyncio.create_task(call())
        # One that fails while this call is cancelled, or later, is not reported by the event loop.
        attempt.add_done_callback(lambda done: done.cancelled() or done.exception())
        try:
            await asyncio.wait([attempt], timeout=CALL_TIMEOUT_S)
        finally:
            if not attempt.done():
                attempt.cancel()
                # A store that does not end when it is cancelled is left behind.
                await asyncio.wait([attempt], timeout=CALL_TIMEOUT_S)
        error = _failure_of(attempt)
        if error is None:
            return (attempt.result(),)
        self._warn(error)
        return None

    def _warn(self, error: BaseException) -> None:
        self.failures += 1
        now = time.monotonic()
        if not self._warned_s or now - self._warned_s >= WARN_EVERY_S:
            self._warned_s = now
            waits = self._when_store_fails is StoreFailure.WAIT
            log.warning(
                "the store of handled messages fails, %s until it works group=%s store=%s",
                "nothing is delivered" if waits else "duplicates may be delivered",
                self._core.options.group,
                type(self._store).__name__,
                exc_info=error,
            )


def _failure_of(attempt: asyncio.Task[Any]) -> BaseException | None:
    """Return why a call of the store failed; None if it did not."""
    if not attempt.done():
        return TimeoutError(f"no result within {CALL_TIMEOUT_S} s; it was cancelled and did not end")
    if attempt.cancelled():
        return TimeoutError(f"cancelled by the store, or after {CALL_TIMEOUT_S} s without a result")
    return attempt.exception()
