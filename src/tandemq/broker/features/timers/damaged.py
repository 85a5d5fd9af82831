"""Reading timed messages whose records may be damaged: one that does not verify waits for its repair, alone.

The scrubber checks it. It is dropped once every replica has answered that it lacks the message too, or if the scrubber
finds no damage within a minute and the message still does not verify.

A delete request holds all the same, whichever of the two is repaired first: messages that an unreadable request may
name wait for its repair, for a minute at most, and a request waits for the messages that it may name.

Source: requirements G13, I12.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.timers.pending import PendingTimers
from tandemq.broker.features.timers.records import (
    NoTimedMessage,
    TimedMessage,
    TimerHead,
    read_timed,
)
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_queue import DOUBT_MS, DamagedEntries
from tandemq.broker.kernel.verification import A_TIMER
from tandemq.broker.state.damage_table import LOST, WAITS
from tandemq.errors import DiskFailed, ProtocolError, StoreError
from tandemq.storage.consume_queue import ConsumeQueue

log = logging.getLogger(__name__)
RUN_MESSAGES = 64
"""Maximum number of consecutive messages that are read together."""
TRIES = 16
"""Number of damaged messages that are tried again in one turn."""


class ReadTimer(NamedTuple):
    """A message as read: verified, or None because it waits for its repair or is lost."""

    timed: TimedMessage | None
    waits: bool = False


class _Restored(NamedTuple):
    """A message that was damaged, and can be read now."""

    queue_offset: int
    head: TimerHead
    is_new: bool
    """Whether its time and topic were unknown before, so that it is not counted yet."""


class _Held(NamedTuple):
    out_ms: int
    """0: unknown."""
    since_ms: int
    """Monotonic."""
    topic: str = ""
    """"": unknown, and not counted among the topic's messages."""


class DamagedTimers:
    """Timed messages that wait for their repair."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without any."""
        self._store = kernel.store
        self._entries = DamagedEntries(kernel, A_TIMER)
        self._held: dict[int, _Held] = {}
        """By queue offset."""
        self._times: Counter[int] = Counter()
        """Number of them by time."""
        self._unknown_ms = 0
        """When the last one was noted of which the time is unknown; monotonic."""
        self._requests: dict[int, _Held] = {}
        """Delete requests of known times that could not be read, by queue offset; they stay in their slots."""
        self._found: dict[int, _Held] = {}
        """Found in this turn."""
        self._resolved: list[int] = []
        """Over, or back in their slots, with this turn."""
        self._restored: list[_Restored] = []

    def __len__(self) -> int:
        """Return the number of messages that wait for their repair."""
        return len(self._held)

    @property
    def has_no_ranges(self) -> bool:
        """Whether no range of the log is known to be damaged."""
        return not self._entries.is_known

    @property
    def has_changes(self) -> bool:
        """Whether this turn changes anything."""
        return bool(self._found or self._resolved)

    @property
    def has_restored(self) -> bool:
        """Whether repaired messages or requests enter their slots with this turn, perhaps before later entries."""
        return bool(self._restored)

    def clear(self) -> None:
        """Forget all damaged messages and delete requests."""
        self._held.clear()
        self._times.clear()
        self._requests.clear()
        self.failed()

    def hold(self, queue_offset: int, now: Now) -> None:
        """Note a message, or a delete request, of unknown time that waits for its repair."""
        self._held[queue_offset] = _Held(0, now.mono_ms)
        self._times[0] += 1
        self._unknown_ms = now.mono_ms

    def first_ms(self) -> int:
        """Return the earliest time of the messages that wait for repair, including those found damaged in this turn."""
        return min([*self._times, *(head.out_ms for head in self._found.values())], default=1 << 62)

    def may_have_message(self, out_ms: int) -> bool:
        """Return whether a message of a time may wait for repair, including those found damaged in this turn."""
        if 0 in self._times or out_ms in self._times:
            return True
        return any(head.out_ms == out_ms for head in self._found.values())

    def may_have_requests(self, now: Now) -> bool:
        """Return whether a record of less than DOUBT_MS ago is unreadable, perhaps a delete request for any message."""
        return 0 in self._times and now.mono_ms - self._unknown_ms < DOUBT_MS

    def to_try(self) -> list[int]:
        """Return some of the damaged messages to read again, in rotation."""
        found = list(self._held)[:TRIES] if self._held else []
        for queue_offset in found:
            self._held[queue_offset] = self._held.pop(queue_offset)
        return found

    def resolved(self, queue_offset: int) -> str:
        """Note that a message waits for its repair no more; return the topic that counts it, "" if none does."""
        self._resolved.append(queue_offset)
        return self._held[queue_offset].topic

    def restore(self, queue_offset: int, head: TimerHead) -> None:
        """Note that a message waits for its time again."""
        self._restored.append(_Restored(queue_offset, head, is_new=not self._held[queue_offset].topic))
        self._resolved.append(queue_offset)

    def committed(self, table: PendingTimers) -> None:
        """Apply the changes of this turn."""
        self._held |= self._found
        self._times.update(head.out_ms for head in self._found.values())
        for queue_offset in self._resolved:
            out_ms = self._held.pop(queue_offset).out_ms
            self._times[out_ms] -= 1
            if not self._times[out_ms]:
                del self._times[out_ms]
        for queue_offset, head, is_new in self._restored:
            table.restore(queue_offset, head.out_ms, head.topic, is_delete=head.is_delete)
            if is_new and not head.is_delete:
                table.count(head.topic, 1)
        self.failed()

    def failed(self) -> None:
        """Drop the changes of this turn."""
        self._found.clear()
        self._resolved.clear()
        self._restored.clear()

    # Reading.

    def awaits_request(self, timers: ConsumeQueue, requests: Sequence[int], now: Now) -> bool:
        """Whether one of the delete requests of a time could not be read, and waits for its repair still."""
        if not self._requests:
            return False
        failing = next((request for request in requests if request in self._requests), None)
        return failing is not None and self.request(timers, failing, now).waits

    def request(self, timers: ConsumeQueue, queue_offset: int, now: Now) -> ReadTimer:
        """Return a delete request; one that still cannot be read after a minute counts as lost."""
        read = self.read(timers, queue_offset, now)
        if read.waits:
            since = self._requests.setdefault(queue_offset, self._found.pop(queue_offset, _Held(0, now.mono_ms)))
            return read._replace(waits=now.mono_ms - since.since_ms < DOUBT_MS)
        self._requests.pop(queue_offset, None)
        return read

    def read(self, timers: ConsumeQueue, queue_offset: int, now: Now, *, out_ms: int = 0, topic: str = "") -> ReadTimer:
        """Return a message; one that waits for its repair is held from the commit of this turn on.

        `out_ms`, `topic`: its time and topic, if they are known.
        """
        found = _Held(out_ms, now.mono_ms, topic)
        entry = timers.entry(queue_offset)
        log_offset, size, _ = entry
        fate = self._entries.fate_of(timers, queue_offset, log_offset, size)
        if fate == WAITS:
            return self._hold(queue_offset, log_offset, found, "it is damaged")
        if fate == LOST or entry.is_hole:
            log.error("timers: the message at log offset %d is lost in damage, and not delivered", log_offset)
            return ReadTimer(None)
        try:
            return ReadTimer(read_timed(self._store, timers, queue_offset))
        except DiskFailed as error:
            return self._hold(queue_offset, log_offset, found, str(error))
        except NoTimedMessage as error:
            log.error("timers: offset %d is ignored: %s", queue_offset, error)
            return ReadTimer(None)
        except (ProtocolError, StoreError) as error:
            return self._doubt(timers, queue_offset, log_offset, found, str(error), now)

    def _hold(self, queue_offset: int, log_offset: int, found: _Held, reason: str) -> ReadTimer:
        if queue_offset not in self._held and queue_offset not in self._requests:
            self._found[queue_offset] = found
            log.error("timers: the message at log offset %d waits for its repair: %s", log_offset, reason)
        return ReadTimer(None, waits=True)

    def _doubt(
        self, timers: ConsumeQueue, queue_offset: int, log_offset: int, found: _Held, reason: str, now: Now
    ) -> ReadTimer:
        """Ask the scrubber about a message that does not verify; it is dropped if there is no damage."""
        held = self._held.get(queue_offset) or self._requests.get(queue_offset)
        since_ms = None if held is None else held.since_ms
        if self._entries.is_given_up(timers, queue_offset, log_offset, reason, since_ms, now):
            log.error("timers: the message at log offset %d is not delivered: %s", log_offset, reason)
            return ReadTimer(None)
        return ReadTimer(None, waits=True) if held else self._hold(queue_offset, log_offset, found, reason)
