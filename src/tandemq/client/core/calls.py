"""Tickets for operations that have not finished, and timers.

    ticket = producer.send(message, now)     returns at once
    ticket.then(lambda ticket: …)            called once, when the ticket is settled; at once if it is already
    ticket.result()                          the value, or the error raised

The deterministic parts of the client return tickets; the asyncio client turns them into futures, and the simulator
reads `done`. Nothing here reads a clock: the time is passed in.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

import msgspec

from tandemq.boundary import Now
from tandemq.errors import TandemError

T = TypeVar("T")


class Waiter(Protocol):
    """A future that is done when a ticket is settled; it may be cancelled before."""

    def done(self) -> bool:
        """Return whether it is done or cancelled."""

    def set_result(self, result: None, /) -> None:
        """Wake what waits for it."""


class Ticket(msgspec.Struct, Generic[T], eq=False, repr_omit_defaults=True):
    """Outcome of an operation, available now or later. It must be settled exactly once."""

    done: bool = False
    _value: T | None = None
    _error: TandemError | None = None
    _then: tuple[Callable[["Ticket[T]"], None], ...] = ()
    _guard: Callable[[Callable[["Ticket[T]"], None]], Callable[["Ticket[T]"], None]] | None = None
    waiter: Waiter | None = None
    """A future of the shell for this ticket, if something waits for it."""

    def settle(self, value: T) -> None:
        """Settle the ticket with a value."""
        assert not self.done
        self._value = value
        self.done = True
        if self.waiter is not None or self._then:
            self._call()

    def fail(self, error: TandemError) -> None:
        """Settle the ticket with an error."""
        assert not self.done
        self._error = error
        self.done = True
        if self.waiter is not None or self._then:
            self._call()

    def _call(self) -> None:
        waiter, self.waiter = self.waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        waiting, self._then = self._then, ()
        for action in waiting:
            action(self)

    def then(self, action: Callable[["Ticket[T]"], None]) -> None:
        """Call `action` with the ticket once it is settled."""
        if self._guard is not None:
            action = self._guard(action)
        if self.done:
            action(self)
        else:
            self._then += (action,)

    def guard(self, wrap: Callable[[Callable[["Ticket[T]"], None]], Callable[["Ticket[T]"], None]]) -> None:
        """Have `wrap` replace each callback that is added from now on, because the ticket goes to the user."""
        self._guard = wrap

    @property
    def error(self) -> TandemError | None:
        """The error of a failed operation; None if it succeeded or is not settled."""
        return self._error

    def result(self) -> T:
        """Return the value of a settled ticket.

        Raises:
            TandemError: the operation failed; the class of the error tells whether it may have been carried out.
        """
        assert self.done, "ask for the result of a settled ticket only"
        if self._error is not None:
            self._error.__cause__ = self._error.__context__ = None
            raise self._error.with_traceback(None)  # the caller's frames, not those of the operation inside
        return self._value  # type: ignore[return-value]  # settled without an error means with a value


class Timer:
    """One action at one time; `cancel` prevents it."""

    __slots__ = ("action", "when_ms")

    def __init__(self, when_ms: int, action: Callable[[Now], None]) -> None:
        """Due at `when_ms` on the monotonic clock."""
        self.when_ms = when_ms
        self.action: Callable[[Now], None] | None = action

    def cancel(self) -> None:
        """Prevent the action; has no effect once the action has run."""
        self.action = None


class Timers:
    """Timers of one node, ordered by time."""

    def __init__(self) -> None:
        """Empty."""
        self._heap: list[tuple[int, int, Timer]] = []
        """(due time, sequence number, timer): plain tuples, because the heap compares them."""
        self._count = 0

    def at(self, when_ms: int, action: Callable[[Now], None]) -> Timer:
        """Call `action` in the first turn at or after `when_ms`, milliseconds on the monotonic clock."""
        timer = Timer(when_ms, action)
        self._count += 1
        heappush(self._heap, (when_ms, self._count, timer))
        return timer

    def every(self, period_ms: int, action: Callable[[Now], None], *, first_ms: int) -> None:
        """Call `action` at `first_ms` and then every `period_ms`, for the lifetime of the node."""

        def again(now: Now) -> None:
            self.at(now.mono_ms + period_ms, again)
            action(now)

        self.at(first_ms, again)

    def run(self, now: Now) -> None:
        """Run the actions that are due; actions that they add for now run in the next turn, so that a turn ends."""
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now.mono_ms:
            due.append(heappop(self._heap)[2])
        for timer in due:
            if timer.action is not None:
                action, timer.action = timer.action, None
                action(now)

    def next_ms(self) -> int | None:
        """Return when the next timer is due, milliseconds on the monotonic clock; None if there is none."""
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
