"""Tasks at times of the monotonic clock, and how late they run: the lag of the loop that drives the broker."""

import logging
from collections.abc import Callable
from heapq import heappop, heappush

from tandemq.boundary import Now
from tandemq.errors import StoreError

log = logging.getLogger(__name__)
Task = Callable[[Now], None]
MINUTE_MS = 60_000
Period = int | Callable[[], int]
"""Milliseconds, at least 1; a callable is called after each run, for periods that change."""


class Schedule:
    """Tasks by due time; those with equal times run in the order they were added."""

    def __init__(self) -> None:
        """Begin without tasks."""
        self._heap: list[tuple[int, int, Task, Period]] = []
        self._count = 0
        self._minute = 0
        self._lags = (0, 0)
        """Maximum lag in that minute and in the one before, ms."""

    def at(self, due_ms: int, task: Task) -> None:
        """Run a task once."""
        self._push(due_ms, task, 0)

    def every(self, period_ms: Period, task: Task, *, first_ms: int) -> None:
        """Run a task at `first_ms`, and then each `period_ms` after the last run began."""
        assert not isinstance(period_ms, int) or period_ms > 0, "a period must be positive"
        self._push(first_ms, task, period_ms)

    def _push(self, due_ms: int, task: Task, period_ms: Period) -> None:
        self._count += 1
        heappush(self._heap, (due_ms, self._count, task, period_ms))

    def run_due(self, now: Now) -> None:
        """Run the due tasks; a task that is late runs once, not once per missed period.

        A StoreError is logged, and the task runs again when it is due next.
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
        """Return the maximum delay of periodic tasks in this minute and the one before, ms."""
        self._note_lag(0, now)
        return max(self._lags)

    def _note_lag(self, lag_ms: int, now: Now) -> None:
        minute, (largest, before) = now.mono_ms // MINUTE_MS, self._lags
        if minute != self._minute:
            largest, before = 0, largest if minute == self._minute + 1 else 0
            self._minute = minute
        self._lags = (max(largest, lag_ms), before)

    def next_ms(self) -> int | None:
        """Return when the next task is due, monotonic ms; None if there is none."""
        return self._heap[0][0] if self._heap else None
