"""What features share that keep their messages in a system topic of the log: timed messages, half messages.

    master, role or log changed ──► forget ──► read what waits, in slices (`LogReading`) ──► act on what is due
             │ no longer the master                                                              │ each run
             └──────────────────────────────────────── forget ◄──────────────────────────────────┘

What waits is in memory; the log has all of it, so another master reads it again. Progress never counts what is not on
the device (`DurableProgress`). A message that does not verify is given up only when the scrubber has found no damage
(`DamagedEntries`).
"""

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

from tandemq.boundary import Now
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.mastership import Mastership
from tandemq.broker.kernel.verification import Verification
from tandemq.codec.record.record import Record, decode_message
from tandemq.errors import ProtocolError, StoreError
from tandemq.model.message import StoredMessage
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.scan import Walker, find_next_record
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
SCAN_MS = 100
"""Interval of runs; 1 ms while a run leaves something to the next one."""
DOUBT_MS = 60_000
"""Time for the scrubber to find damage around a message that does not verify, before it is given up."""
ProgressT = TypeVar("ProgressT")
ReadingT = TypeVar("ReadingT", bound="LogReading")


class LogReading(ABC):
    """One reading of queues after a change of the role, in slices; it restarts after an error of the store."""

    def __init__(self, store: Store) -> None:
        """Begin; nothing is read yet."""
        self._store = store
        self.is_done = False
        self._slices = self._load()

    def advance(self) -> None:
        """Read one slice.

        Raises:
            StoreError: the store cannot be read; the reading restarts.
        """
        try:
            self.is_done = next(self._slices, "end") == "end"
        except StoreError:
            self._slices = self._load()
            raise

    @abstractmethod
    def _load(self) -> Iterator[None]:
        """Read everything; yield after each slice."""

    def _records(self, position: int, end: int, per_slice: int) -> Iterator[tuple[Record, bytes, int] | None]:
        """Yield the records of a part of the log, and None after each slice; damaged parts are skipped.

        With each record come bytes that have it, and where it begins there.
        """
        read, segment_bytes = self._store.log.read_raw, self._store.config.segment_bytes
        seen = 0
        while position < end:
            walker = Walker(
                lambda offset, size: read(offset, max(0, min(size, end - offset))),
                segment_bytes,
                position,
                check_bodies=False,
            )
            for found in walker.records():
                yield found
                seen += 1
                if seen % per_slice == 0:
                    yield None
            following = find_next_record(read, walker.position + 1, end, segment_bytes)
            position = end if following is None else following


class LogQueue(Feature, ABC, Generic[ReadingT]):
    """Messages of a system topic that wait for something, on a master."""

    def __init__(self, kernel: Kernel) -> None:
        """Run each `SCAN_MS`."""
        self._store = kernel.store
        self._puts = kernel.puts
        self._current_turn = kernel.turn
        self._mastership = Mastership(kernel)
        """Mastership for which the state read from the log holds."""
        self._reading: ReadingT | None = None
        self._is_behind = False
        """Whether the next run is needed at once."""
        kernel.every(lambda: 1 if self._is_behind else SCAN_MS, self._run)

    def _run(self, now: Now) -> None:
        self._is_behind = False
        if not self._current_turn.serving.is_master or (self._puts.refusal is not None and not self._is_loaded):
            self._drop()
            return
        if self._mastership.is_renewed():
            self._drop()
        if not self._is_loaded:
            self._load(now)
        elif self._puts.refusal is None:
            self._act(now)

    def _drop(self) -> None:
        self._reading = None
        self._forget()

    def _load(self, now: Now) -> None:
        reading = self._reading = self._reading or self._begin_reading()
        reading.advance()
        self._is_behind = True
        if reading.is_done:
            self._reading = None
            self._adopt_reading(reading, now)

    @property
    @abstractmethod
    def _is_loaded(self) -> bool:
        """Whether the waiting messages are known."""

    @abstractmethod
    def _begin_reading(self) -> ReadingT:
        """Begin to read the waiting messages."""

    @abstractmethod
    def _adopt_reading(self, reading: ReadingT, now: Now) -> None:
        """Take the result of a complete reading."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the waiting messages: the log may have changed, or another broker acts."""

    @abstractmethod
    def _act(self, now: Now) -> None:
        """Do what is due, in bounded time."""


class DurableProgress(Generic[ProgressT]):
    """Progress that counts once the log below an offset is on the device."""

    def __init__(self, store: Store) -> None:
        """Begin without progress."""
        self._log = store.log
        self._waiting: deque[tuple[int, ProgressT]] = deque()

    def note(self, progress: ProgressT) -> None:
        """Note progress that counts once the present content of the log is on the device."""
        self._waiting.append((self._log.written_end, progress))

    def take_flushed(self) -> ProgressT | None:
        """Return the newest progress that is on the device by now, once; None if there is none."""
        found: ProgressT | None = None
        while self._waiting and self._waiting[0][0] <= self._log.flushed_offset:
            found = self._waiting.popleft()[1]
        return found

    @property
    def waiting(self) -> list[ProgressT]:
        """Progress that is not on the device yet, oldest first."""
        return [progress for _, progress in self._waiting]

    def clear(self) -> None:
        """Forget the noted progress."""
        self._waiting.clear()


class DamagedEntries:
    """Decides whether an unreadable message waits for its repair, or is skipped."""

    def __init__(self, kernel: Kernel, source: str) -> None:
        """`source`: the part that reads the messages, such as `A_DELAY`."""
        self._damages = kernel.damages
        self._verification = kernel.features.find(Verification)
        self._source = source

    @property
    def is_known(self) -> bool:
        """Whether a range of the log is known to be damaged."""
        return bool(self._damages.ranges)

    def fate_of(self, queue: ConsumeQueue, queue_offset: int, log_offset: int, size: int) -> str:
        """Return `WAITS` or `LOST` if the record lies in known damage, else ""."""
        if not self._damages.ranges or queue.plausible_offset(queue_offset) is None:
            return ""
        return self._damages.fate_of(log_offset, size)

    def is_given_up(
        self, queue: ConsumeQueue, queue_offset: int, log_offset: int, reason: str, since_ms: int | None, now: Now
    ) -> bool:
        """Whether a message that does not verify is given up: only if the scrubber, asked to check it, finds no damage.

        Damage that it finds is waited for from then on. A wrong queue entry is rebuilt, however long the search for its
        record takes.

        Args:
            queue: where it is.
            queue_offset: its place there.
            log_offset: where its record should be.
            reason: what is wrong with it.
            since_ms: when it was found, monotonic; None: now.
            now: the time.
        """
        verification = self._verification
        searches = not verification.is_right(queue, queue_offset) and verification.suspect_entry(
            queue, queue_offset, f"{self._source} found {reason}"
        )
        if since_ms is None:
            verification.look_at(log_offset, self._source, reason, now)
            return False
        return not searches and now.mono_ms - since_ms >= DOUBT_MS


def read_message(store: Store, queue: ConsumeQueue, queue_offset: int, what: str) -> StoredMessage | None:
    """Return a message; None if it cannot be read, which is logged. `what`: for the log, as "op record"."""
    try:
        found = store.record_of(queue, queue_offset)
        if found is None:
            raise ProtocolError("its record is damaged")
        return decode_message(found[1], 0, len(found[1]), inflates=False)
    except ProtocolError as error:
        log.error("%s %d cannot be read: %s", what, queue_offset, error)
        return None
