"""What is due when, on the monotonic clock, and how late it is run: the lag of the loop that drives the broker."""

import logging
from collections.abc import Callable
from heapq import heappop, heappush

from tandemq.boundary import Now
from tandemq.errors import StoreError

log = logging.getLogger(__name__)
Task = Callable[[Now], None]
MINUTE_MS = 60_000
Period = int | Callable[[], int]
"""Milliseconds, at least 1; a callable is asked anew after each run, for periods that are settings or depend on it."""


class Schedule:
    """Tasks by due time; equal times in the order they were added."""

    def __init__(self) -> None:
        """Nothing is due."""
        self._heap: list[tuple[int, int, Task, Period]] = []
        self._count = 0
        self._minute = 0
        self._lags = (0, 0)
        """Milliseconds: the most in that minute and in the one before."""

    def at(self, due_ms: int, task: Task) -> None:
        """Run once."""
        self._push(due_ms, task, 0)

    def every(self, period_ms: Period, task: Task, *, first_ms: int) -> None:
        """Run at `first_ms` and then each `period_ms` after the last run began."""
        assert not isinstance(period_ms, int) or period_ms > 0, "a period must be positive"
        self._push(first_ms, task, period_ms)

    def _push(self, due_ms: int, task: Task, period_ms: Period) -> None:
        self._count += 1
        heappush(self._heap, (due_ms, self._count, task, period_ms))

    def run_due(self, now: Now) -> None:
        """Run what is due; a task that is late runs once, not once per missed period.

        A task the store fails is logged, and tried again when it is due again.
        """
        heap = self._heap
        while heap and heap[0][0] <= now.mono_ms:
            due_ms, _, task, period_ms = heappop(heap)
            if period_ms:
                self._note_lag(now.mono_ms - due_ms, now)
            try:
                task(now)
            except StoreError as error:
                log.error("schedule: %s did not succeed: %s", getattr(task, "__qualname__", task), error)
            if period_ms:
                wait_ms = period_ms if isinstance(period_ms, int) else period_ms()
                self._push(now.mono_ms + wait_ms, task, period_ms)

    def lag_ms_max(self, now: Now) -> int:
        """How late periodic tasks began at most, in this minute and the one before."""
        self._note_lag(0, now)
        return max(self._lags)

    def _note_lag(self, lag_ms: int, now: Now) -> None:
        minute, (most, before) = now.mono_ms // MINUTE_MS, self._lags
        if minute != self._minute:
            most, before = 0, most if minute == self._minute + 1 else 0
            self._minute = minute
        self._lags = (max(most, lag_ms), before)

    def next_ms(self) -> int | None:
        """When something is due next."""
        return self._heap[0][0] if self._heap else None
