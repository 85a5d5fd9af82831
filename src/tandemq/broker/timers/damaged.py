"""Reading timed messages whose records may be damaged: one that does not verify waits for its repair, alone.

The scrubber checks it. It is dropped once every replica has answered that it lacks the message too, or if the scrubber
finds no damage within a minute and the message still does not verify.

Source: requirements G13, I12.
"""

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.integrity.scrubber import A_TIMER, Scrubber
from tandemq.broker.state.damage_table import LOST, WAITS, Damages
from tandemq.broker.timers.pending import PendingTimers
from tandemq.broker.timers.records import NoTimedMessage, TimedCopy, TimedMessage, TimerHead, read_copies, read_timed
from tandemq.errors import DiskFailed, ProtocolError, StoreError
from tandemq.model.message import TIMER_DELETE
from tandemq.storage.consume_queue import PREFILL_SIZE, ConsumeQueue
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
DOUBT_MS = 60_000
"""Time for the scrubber to find damage around a message that does not verify, before it is dropped."""
RUN_MESSAGES = 64
"""Maximum number of consecutive messages that are read together."""
TRIES = 16
"""Number of damaged messages that are tried again in one turn."""


class ReadTimer(NamedTuple):
    """A message as read: verified, or None because it waits for its repair or is lost."""

    timed: TimedMessage | None
    waits: bool = False


class Restored(NamedTuple):
    """A message that was damaged, whose time has not come."""

    queue_offset: int
    head: TimerHead


class _Held(NamedTuple):
    out_ms: int
    """0: unknown."""
    since_ms: int
    """Monotonic."""


class DamagedTimers:
    """Timed messages that wait for their repair."""

    def __init__(self, store: Store, damages: Damages, scrubber: Scrubber) -> None:
        """Begin without any."""
        self._store = store
        self._damages = damages
        self._scrubber = scrubber
        self._held: dict[int, _Held] = {}
        self._failing: dict[int, int] = {}
        """Delete requests that could not be read, and since when."""
        self._found: dict[int, _Held] = {}
        """Found in this turn."""
        self._resolved: list[int] = []
        """Over, or back in their slots, with this turn."""
        self.restored: list[Restored] = []

    def __len__(self) -> int:
        """Return the number of messages that wait for their repair."""
        return len(self._held)

    @property
    def has_changes(self) -> bool:
        """Whether this turn changes anything."""
        return bool(self._found or self._resolved)

    def clear(self) -> None:
        """Forget all of them."""
        self._held.clear()
        self._failing.clear()
        self.failed()

    def hold(self, queue_offset: int, out_ms: int, now: Now) -> None:
        """Note a message that waits for its repair; `out_ms` 0: its time is unknown."""
        self._held[queue_offset] = _Held(out_ms, now.mono_ms)

    def first_ms(self) -> int:
        """Return the earliest time of those that wait for their repair, with this turn's changes."""
        held = self._held | self._found
        return min([one.out_ms for at, one in held.items() if at not in self._resolved], default=1 << 62)

    def to_try(self) -> list[int]:
        """Return some of them, each in its turn."""
        found = list(self._held)[:TRIES] if self._held else []
        for queue_offset in found:
            self._held[queue_offset] = self._held.pop(queue_offset)
        return found

    def resolved(self, queue_offset: int) -> None:
        """Note that a message waits for its repair no more."""
        self._resolved.append(queue_offset)

    def committed(self, table: PendingTimers) -> None:
        """Apply the changes of this turn."""
        self._held |= self._found
        for queue_offset in self._resolved:
            self._held.pop(queue_offset, None)
        for queue_offset, head in self.restored:
            table.restore(queue_offset, head.out_ms, head.topic, is_delete=head.is_delete)
        self.failed()

    def failed(self) -> None:
        """Drop the changes of this turn."""
        self._found.clear()
        self._resolved.clear()
        self.restored.clear()

    # Reading.

    def target_of(self, timers: ConsumeQueue, queue_offset: int, now: Now) -> tuple[str, str] | None:
        """Return what a delete request names, and its topic; None if the request cannot be read.

        Raises:
            DiskFailed: it cannot be read now. After a minute of failures it counts as one that cannot be read.
        """
        try:
            timed = read_timed(self._store, timers, queue_offset)
        except (ProtocolError, StoreError) as error:
            since_ms = self._failing.setdefault(queue_offset, now.mono_ms)
            if isinstance(error, DiskFailed) and now.mono_ms - since_ms < DOUBT_MS:
                raise
            log.error("timers: the delete request at offset %d cannot be read: %s", queue_offset, error)
            return None
        self._failing.pop(queue_offset, None)
        return timed.message.properties.get(TIMER_DELETE, ""), timed.head.topic

    def copies(self, timers: ConsumeQueue, messages: Sequence[int]) -> Iterator[TimedCopy | None]:
        """Yield messages of which nothing is damaged, read together; None for those that `read` reads.

        `messages`: queue offsets, lowest first.
        """
        at = 0
        while at < len(messages):
            first, stop = messages[at], at + 1
            while stop < len(messages) and stop - at < RUN_MESSAGES and messages[stop] == first + stop - at:
                stop += 1
            found: list[TimedCopy | None] = []
            if not self._damages.ranges:
                with suppress(StoreError):
                    found += read_copies(self._store, first, timers.read(first, stop - at))
            yield from found
            yield from [None] * (stop - at - len(found))
            at = stop

    def read(self, timers: ConsumeQueue, queue_offset: int, out_ms: int, now: Now) -> ReadTimer:
        """Return a message; one that waits for its repair is held from the commit of this turn on.

        `out_ms`: its time as known, 0 if it is not.
        """
        log_offset, size, _ = timers.entry(queue_offset)
        fate = ""
        if self._damages.ranges and timers.plausible_offset(queue_offset) is not None:
            fate = self._damages.fate_of(log_offset, size)
        if fate == WAITS:
            return self._hold(queue_offset, log_offset, out_ms, "it is damaged", now)
        if fate == LOST or size == PREFILL_SIZE:
            log.error("timers: the message at log offset %d is lost in damage, and not delivered", log_offset)
            return ReadTimer(None)
        try:
            return ReadTimer(read_timed(self._store, timers, queue_offset))
        except DiskFailed as error:
            return self._hold(queue_offset, log_offset, out_ms, str(error), now)
        except NoTimedMessage as error:
            log.error("timers: offset %d is ignored: %s", queue_offset, error)
            return ReadTimer(None)
        except (ProtocolError, StoreError) as error:
            return self._doubt(timers, queue_offset, log_offset, out_ms, str(error), now)

    def _hold(self, queue_offset: int, log_offset: int, out_ms: int, reason: str, now: Now) -> ReadTimer:
        if queue_offset not in self._held:
            self._found[queue_offset] = _Held(out_ms, now.mono_ms)
            log.error("timers: the message at log offset %d waits for its repair: %s", log_offset, reason)
        return ReadTimer(None, waits=True)

    def _doubt(
        self, timers: ConsumeQueue, queue_offset: int, log_offset: int, out_ms: int, reason: str, now: Now
    ) -> ReadTimer:
        """Ask the scrubber about a message that does not verify; it is dropped if there is no damage."""
        scrubber = self._scrubber
        searches = not scrubber.entries.is_right(timers, queue_offset) and scrubber.suspect_entry(
            timers, queue_offset, f"{A_TIMER} found {reason}"
        )
        held = self._held.get(queue_offset)
        if held is None:
            scrubber.look_at(log_offset, A_TIMER, reason, now)
            return self._hold(queue_offset, log_offset, out_ms, reason, now)
        if searches or now.mono_ms - held.since_ms < DOUBT_MS:
            return ReadTimer(None, waits=True)
        log.error("timers: the message at log offset %d is not delivered: %s", log_offset, reason)
        return ReadTimer(None)
