"""An event loop in a thread of its own, for callers that are not asynchronous."""

import asyncio
import contextlib
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tandemq.errors import ClosedError, LocalError, OutcomeUnknown

log = logging.getLogger(__name__)
T = TypeVar("T")
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
SIGNALS_WITHIN_S = 1.0
"""After what time a thread that waits looks for signals."""
END_S = 5.0
"""For how long a loop that was stopped waits until cancelled work has ended."""


class LoopThread:
    """An event loop in a daemon thread, for the threads of one process.

    Work whose caller does not wait any more, because of an exception from a signal handler for instance, is cancelled.
    When the loop ends, running tasks are cancelled, and their callers get OutcomeUnknown.
    """

    def __init__(self, close: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Start the thread and its loop. `close`: closes the objects that use the loop, before it ends."""
        self._close = close
        self._loop = asyncio.new_event_loop()
        self._stopped = asyncio.Event()
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        """Work that has not ended."""
        self._is_ended = False
        self._thread = threading.Thread(target=self._run, name="tandemq-client", daemon=True)
        try:
            self._thread.start()
        except BaseException:  # an interruption while it starts
            with contextlib.suppress(RuntimeError):  # it has not begun; it ends when it does
                self.stop()
            raise

    @property
    def is_forked(self) -> bool:
        """Whether `fork` has copied the process: the copy has no thread."""
        return os.getpid() != self._process

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop and return its future, without waiting.

        Raises:
            ClosedError: the loop was stopped.
            LocalError: this process is a copy made by `fork`.
        """
        if self.is_forked:
            work.close()
            raise LocalError(
                f"this client belongs to process {self._process}; process {os.getpid()} is a copy made by fork",
                hint="create clients after the fork, in the process that uses them",
            )
        with self._lock:
            if self._is_ended:
                work.close()
                raise ClosedError("the client is closed")
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def call(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """Run a coroutine on the loop and return its result.

        Args:
            work: the coroutine.
            undo: called on the loop with the result if the caller does not get it.

        Raises:
            LocalError: this is a call within the loop, by a function that the client calls, or see `begin`.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise LocalError("a blocking call by a function that the client calls would wait for itself")
        call = _Call(work, undo)
        try:
            try:
                future = self.begin(call.running)
            except LocalError:
                work.close()
                raise
            return _result(future)
        except CancelledError:
            raise _cut_off() from None
        except BaseException:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                # One turn later than work whose start was interrupted begins.
                self._loop.call_soon_threadsafe(self._loop.call_soon, call.abandon)
            raise

    def post(self, action: Callable[[], object]) -> None:
        """Call a function on the loop, without waiting; in a signal handler too. Has no effect once the loop has ended,
        or in a process made by `fork`."""
        if not self.is_forked:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(action)

    def stop(self) -> None:
        """Stop the loop and its thread; has no effect a second time, or in a process made by `fork`."""
        if not self.is_forked:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._thread.join()

    def _run(self) -> None:
        loop = self._loop
        # Python calls handlers in the main thread, which a signal that the kernel delivers to this one would not wake.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        loop.set_default_executor(user_threads(None))
        try:
            loop.run_until_complete(self._stopped.wait())
        except (SystemExit, KeyboardInterrupt) as error:  # of a function of the user's; its caller gets it too
            log.warning("a client was closed by %r", error)
        finally:
            with self._lock:
                self._is_ended = True
            try:
                self._end_tasks()
            finally:
                loop.close()
                for future in list(self._futures):
                    if not future.done():
                        future.set_exception(_cut_off())

    def _end_tasks(self) -> None:
        loop = self._loop
        loop.run_until_complete(asyncio.sleep(0))  # begins what was begun last
        if self._close is not None:
            with contextlib.suppress(TimeoutError):
                loop.run_until_complete(asyncio.wait_for(self._close(), END_S))
        # The client has ended its operations, each with its own error, which their callers get now.
        for _ in range(2):
            loop.run_until_complete(asyncio.sleep(0))
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))
        loop.run_until_complete(loop.shutdown_asyncgens())
        # Closed transports report their end, and futures their results.
        for _ in range(2):
            loop.run_until_complete(asyncio.sleep(0))


def user_threads(maximum: int | None, name: str = "") -> ThreadPoolExecutor:
    """Return a pool of threads for functions of the user's, whose child processes can be stopped by signals."""
    return ThreadPoolExecutor(maximum, name, signal.pthread_sigmask, (signal.SIG_UNBLOCK, STOP_SIGNALS))


def _result(future: Future[T]) -> T:
    """Wait for a result; handlers of signals that another thread has received are called meanwhile."""
    while True:
        try:
            return future.result(SIGNALS_WITHIN_S)
        except TimeoutError:
            if future.done():
                return future.result()


def _cut_off() -> OutcomeUnknown:
    return OutcomeUnknown("the call was cancelled before it ended", hint="what it had begun may have been carried out")


class _Call(Generic[T]):
    """Work for a caller that may stop waiting. Its methods run on the loop."""

    def __init__(self, work: Coroutine[Any, Any, T], undo: Callable[[T], None] | None) -> None:
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[Any] | None = None
        self._results: list[T] = []
        self._is_abandoned = False
        self.running = self._run()
        """The coroutine to run."""

    async def _run(self) -> T:
        self._task = asyncio.current_task()
        result = await self._work
        self._results.append(result)
        if self._is_abandoned:
            self._undo_result()
        return result

    def abandon(self) -> None:
        """Cancel the work, and undo it if it has ended with a result, or does so nevertheless."""
        self._is_abandoned = True
        if self._task is not None:
            self._task.cancel()
        for coroutine in (self.running, self._work):
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        self._undo_result()

    def _undo_result(self) -> None:
        if self._results and self._undo is not None:
            with contextlib.suppress(ClosedError):
                self._undo(self._results.pop())
