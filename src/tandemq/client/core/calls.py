"""What an operation hands back before it is done, and the timers that operations wait by.

    ticket = producer.send(message, now)     at once
    ticket.then(lambda ticket: …)            called once, when it is settled; at once if it is already
    ticket.result()                          the value, or the error raised

Tickets are how the machines of this package speak to a shell: the asyncio faces turn them into futures, the simulator
looks at `done`. Nothing here knows the time: it is passed in.
"""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Generic, TypeVar

from tandemq.boundary import Now
from tandemq.errors import TandemError

T = TypeVar("T")


class Ticket(Generic[T]):
    """The outcome of an operation, now or later. Settled once; who settles it twice made a mistake."""

    __slots__ = ("_error", "_then", "_value", "done")

    def __init__(self) -> None:
        """Not settled yet."""
        self.done = False
        self._value: T | None = None
        self._error: TandemError | None = None
        self._then: list[Callable[[Ticket[T]], None]] = []

    def settle(self, value: T) -> None:
        """It is done, and this came of it."""
        assert not self.done
        self._value = value
        self._finish()

    def fail(self, error: TandemError) -> None:
        """It is done, and failed."""
        assert not self.done
        self._error = error
        self._finish()

    def _finish(self) -> None:
        self.done = True
        waiting, self._then = self._then, []
        for action in waiting:
            action(self)

    def then(self, action: Callable[["Ticket[T]"], None]) -> None:
        """Call `action` with this ticket once it is settled."""
        if self.done:
            action(self)
        else:
            self._then.append(action)

    @property
    def error(self) -> TandemError | None:
        """Why it failed; None if it did not, or is not settled."""
        return self._error

    def result(self) -> T:
        """What came of it.

        Raises:
            TandemError: the operation failed; which error tells whether it may have been carried out.
        """
        assert self.done, "ask for the result of a settled ticket only"
        if self._error is not None:
            self._error.__cause__ = self._error.__context__ = None
            raise self._error.with_traceback(None)  # the caller's frames, not those of the operation inside
        return self._value  # type: ignore[return-value]  # settled without an error means with a value


class Timer:
    """Something to be done at a time; `cancel` takes it back."""

    __slots__ = ("action", "when_ms")

    def __init__(self, when_ms: int, action: Callable[[Now], None]) -> None:
        """At `when_ms` on the monotonic clock."""
        self.when_ms = when_ms
        self.action: Callable[[Now], None] | None = action

    def cancel(self) -> None:
        """Do not do it. Harmless afterwards."""
        self.action = None


class Timers:
    """All timers of one node, by time."""

    def __init__(self) -> None:
        """Nothing is due."""
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0

    def at(self, when_ms: int, action: Callable[[Now], None]) -> Timer:
        """Have `action` called in the first turn at or after `when_ms`."""
        timer = Timer(when_ms, action)
        self._count += 1
        heappush(self._heap, (when_ms, self._count, timer))
        return timer

    def every(self, period_ms: int, action: Callable[[Now], None], *, first_ms: int) -> None:
        """Have `action` called at `first_ms` and then each `period_ms`, for as long as the node lives."""

        def again(now: Now) -> None:
            self.at(now.mono_ms + period_ms, again)
            action(now)

        self.at(first_ms, again)

    def run(self, now: Now) -> None:
        """Do what is due. What it sets for now or earlier is done in the next turn, so that a turn ends."""
        due: list[Timer] = []
        while self._heap and self._heap[0][0] <= now.mono_ms:
            due.append(heappop(self._heap)[2])
        for timer in due:
            if timer.action is not None:
                action, timer.action = timer.action, None
                action(now)

    def next_ms(self) -> int | None:
        """When the next timer is due; None if there is none."""
        while self._heap and self._heap[0][2].action is None:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None
