"""Mutations of timed messages."""

from contextlib import AbstractContextManager
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.features.timers import damaged as timer_damage
from tandemq.broker.features.timers import done_writer as timer_done
from tandemq.broker.features.timers import loading as timer_loading
from tandemq.broker.features.timers import processor as timer_processor
from tandemq.broker.features.timers import service as timers
from tandemq.broker.features.timers.done_records import TimerProgress, done_properties
from tests.mutations.patch import Mutation, both, patched


def timers_early() -> AbstractContextManager[Any]:
    """Timed messages are delivered three seconds early."""
    deliver = timers.TimedMessages._deliver

    def early(self: timers.TimedMessages, table: Any, now: Now) -> None:
        deliver(self, table, Now(now.mono_ms, now.wall_ms + 3_000))

    return patched(timers.TimedMessages, "_deliver", early)


def timers_again() -> AbstractContextManager[Any]:
    """A master that starts does not read which timed messages were delivered."""
    return both(
        patched(timer_loading.TimerLoader, "_read_done", lambda *_: iter(())),
        patched(timer_loading.TimerLoader, "_find_copies", lambda *_: iter(())),
    )


def timers_forgotten() -> AbstractContextManager[Any]:
    """Done records say that messages of the next ten seconds are over."""

    def ahead(progress: TimerProgress) -> bytes:
        return done_properties(progress._replace(before_ms=progress.before_ms + 10_000))

    return patched(timer_done, "done_properties", ahead)


def recalls_ignored() -> AbstractContextManager[Any]:
    """Requests not to deliver timed messages are not read."""
    return patched(timer_damage.DamagedTimers, "request", lambda *_: timer_damage.ReadTimer(None))


def recalls_lost() -> AbstractContextManager[Any]:
    """A recall is confirmed, but not stored."""
    return patched(timer_processor.TimerProcessor, "_store_request", lambda self, *_: self._store.log.end)


TIMER_MUTATIONS: dict[str, Mutation] = {
    "timers-early": Mutation(timers_early, frozenset({"I12"})),
    "timers-again": Mutation(timers_again, frozenset({"I12"})),
    "timers-forgotten": Mutation(timers_forgotten, frozenset({"I12"})),
    "recalls-ignored": Mutation(recalls_ignored, frozenset({"I12"})),
    "recalls-lost": Mutation(recalls_lost, frozenset({"I1"})),
}
"""Mutations by name."""
