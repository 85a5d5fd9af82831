"""SIGINT and SIGTERM as requests to stop: the first one lets work in progress end, the second one ends the process.

    with stop_signals(consumer.stop):
        async for message in consumer: …         ends after the message at hand

    first signal ─► each registered function, on its event loop ─► second signal ─► the process, by its default action

A signal that the application handles itself is left to it: only the handlers of Python and of `asyncio.run` are
replaced. Signals belong to the process, so all that wait for them share one pair of handlers, in the main thread.
"""

import asyncio
import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from tandemq.client.aio.loop_thread import STOP_SIGNALS


class _SharedHandlers:
    """The handlers of this process, while there is something to stop."""

    def __init__(self) -> None:
        self._stops: list[Callable[[], None]] = []
        self._previous: dict[signal.Signals, Any] = {}
        self._is_signalled = False
        self._is_repeated = False
        """Whether the next call of the handler is by a signal that this process has raised."""

    def add(self, stop: Callable[[], None]) -> None:
        """Call a function at the first signal; at once if it has come."""
        self._stops.append(stop)
        if self._is_signalled:
            stop()
        elif not self._previous and threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if _is_unhandled(number):
                    self._previous[number] = signal.signal(number, self._on_signal)

    def remove(self, stop: Callable[[], None]) -> None:
        """Forget a function; with the last one the former handlers are restored. Has no effect a second time."""
        with contextlib.suppress(ValueError):
            self._stops.remove(stop)
        if self._stops or threading.current_thread() is not threading.main_thread():
            return
        ours = signal.SIG_DFL if self._is_signalled else self._on_signal
        self._is_signalled = False
        while self._previous:
            number, handler = self._previous.popitem()
            if signal.getsignal(number) == ours:
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._is_repeated:
            self._is_repeated = False
            return
        if self._is_signalled:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._is_signalled = True
        self._restore_default_actions(number)
        for stop in list(self._stops):
            stop()

    def _restore_default_actions(self, number: int) -> None:
        """Have the kernel end the process by the second signal: it may deliver that one to another thread, and the main
        thread, which calls handlers, would go on waiting.

        Python drops a signal that has arrived but whose handler it finds replaced. So the first one is raised again:
        Python then calls the handlers of all that have arrived.
        """
        self._is_repeated = True
        signal.raise_signal(number)
        for replaced in self._previous:
            if signal.getsignal(replaced) == self._on_signal:
                signal.signal(replaced, signal.SIG_DFL)


_handlers = _SharedHandlers()


def _is_unhandled(number: signal.Signals) -> bool:
    """Return whether the application has no handler of its own for a signal."""
    handler = signal.getsignal(number)
    if isinstance(handler, functools.partial):
        of_runner = getattr(asyncio.Runner, "_on_sigint", None)
        return of_runner is not None and getattr(handler.func, "__func__", None) is of_runner
    return handler in (signal.SIG_DFL, signal.default_int_handler)


class StopSignals:
    """Calls a function at the first SIGINT or SIGTERM, from `install` until `remove`."""

    def __init__(self, stop: Callable[[], object]) -> None:
        """`stop`: called on the event loop that runs now, or without one in the main thread."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            self._stop: Callable[[], None] = lambda: (stop(), None)[1]
        else:
            self._stop = lambda: (loop.call_soon_threadsafe(stop), None)[1]

    def install(self) -> None:
        """Begin to wait for signals."""
        _handlers.add(self._stop)

    def remove(self) -> None:
        """Wait for them no longer; has no effect a second time."""
        _handlers.remove(self._stop)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], object]) -> Iterator[None]:
    """Call `stop` at the first SIGINT or SIGTERM while the body runs; a second one ends the process at once.

    Signals that the application handles itself are left to it, and so are all of them outside the main thread.

    Args:
        stop: a function that returns soon, such as `consumer.stop` or `event.set`. Within an event loop it is called by
            the loop, otherwise by the signal handler.
    """
    signals = StopSignals(stop)
    signals.install()
    try:
        yield
    finally:
        signals.remove()
