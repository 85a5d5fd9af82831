"""Delayed messages: 18 levels, each a queue of the delay topic, read in order of their deliver time.

A message with property DELAY waits in `SCHEDULE_TOPIC_XXXX`, queue level - 1; the tags code of its queue entry is the
deliver time. At that time the message is stored again, in the topic and queue it was sent to. The progress, what
is delivered of each level, is kept in delayOffset.json. The file never counts a delivery that is not on the device:
otherwise a power loss would lose the message.

A message that does not verify is not skipped: it waits for its repair from a replica until every replica has answered
that it lacks the message too; the scrubber checks it. Its level waits `APART_MS` for the repair, which keeps the order,
and then goes on: the message waits apart (`delay_progress`) and is tried again every `RETRY_MS`.

Source: docs/internals/storage.md, "delayOffset.json"; docs/decisions/0011; RocketMQ ScheduleMessageService;
requirements G13, I12.
"""

import logging
from enum import Enum
from typing import Any, NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.delay.progress import (
    NOTHING,
    WAITING_MAX,
    LevelProgress,
    check_progress,
    delivered_by_both,
    delivered_by_either,
    progress_as_json,
    progress_in,
)
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_queue import DamagedEntries, DurableProgress
from tandemq.broker.kernel.moves import Moves
from tandemq.broker.kernel.verification import A_DELAY
from tandemq.broker.state.damage_table import LOST, WAITS
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, is_hole
from tandemq.codec.record.record import decode_message
from tandemq.codec.remoting.fastjson import loads
from tandemq.engine import MoveRule
from tandemq.errors import DiskFailed, DiskFull, ProtocolError, StoreError
from tandemq.model.message import REAL_QID, REAL_TOPIC, StoredMessage
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue, Entry
from tandemq.storage.json_tables import DataVersion, TableFile

log = logging.getLogger(__name__)
FILE = TableFile("delayOffset.json", check_progress)
SCAN_MS = 100
"""Maximum interval of looks for due messages."""
NEAR_MS = 10
"""Minimum interval of looks while messages become due one after the other: about the time by which they are late."""
BATCH_MESSAGES = 256
"""Maximum number of messages delivered in one turn; the rest follow in the next."""
DELIVERY_US = 10_000
"""Time for the deliveries of a turn, of which each level has at least one: each may have to wait for the device."""
RULE = MoveRule()
"""A delivered message is what it was, and keeps its level, as at Java brokers."""
APART_MS = 2_000
"""Time that a level waits for the repair of a damaged message, before the message waits apart."""
RETRY_MS = 1_000
LOG_MS = 60_000


class CorrectedLevel(NamedTuple):
    """Progress of a level that pointed beyond the end of its queue."""

    level: int
    before: int
    now: int


class Outcome(Enum):
    """What became of a due message."""

    DONE = "delivered, or skipped for good"
    DAMAGED = "to be tried again; other messages of its level may go on"
    REFUSED = "the disk takes nothing, so the level stops"


class DelayedMessages(Feature):
    """The delay levels of one broker; delivers only on a master."""

    def __init__(self, kernel: Kernel) -> None:
        """Load the progress, and look for due messages when the next one is due, from one second after the start on."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._saver = kernel.saver
        self._puts = kernel.puts
        self._damaged = DamagedEntries(kernel, A_DELAY)
        self._turn = kernel.turn
        self._moves = Moves(kernel)
        self.version = DataVersion(kernel.began.wall_ms)
        self.progress: dict[int, LevelProgress] = {}
        """By level."""
        self._pending: dict[int, LevelProgress] = {}
        """Progress by the deliveries of this turn, which are not in the log yet."""
        self._undone = DurableProgress[dict[int, LevelProgress]](kernel.store)
        """The progress before deliveries that may not be on the device."""
        self._clock_went_back: dict[int, tuple[int, int]] = {}
        """By level: when that was noticed (monotonic ms), and the queue offset below which messages are concerned."""
        self._doubted: dict[tuple[int, int], int] = {}
        """By level and queue offset: since when (monotonic ms) a message does not verify."""
        self._held: dict[int, tuple[int, int]] = {}
        """By level: queue offset of the damaged message that it waits for, and since when (monotonic ms)."""
        self._retry_ms = 0
        """When (monotonic ms) messages that wait apart are tried next."""
        self._logged_ms: dict[int, int] = {}
        """By level: when (monotonic ms) a message that waits was logged last."""
        self.delivered = 0
        self._outbox = kernel.outbox
        self._until_us = 0
        """When the time for the deliveries of this turn is over, since its beginning."""
        self._is_behind = False
        """Whether more may be due than was delivered in the last scan."""
        self._dirty = False
        raw = FILE.load(kernel.saver.disk)
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            self.progress = progress_in(raw)
        self._wait_ms = SCAN_MS
        """Time until the next look, unless more may be due."""
        kernel.schedule.every(
            lambda: 1 if self._is_behind else self._wait_ms,
            self.deliver,
            first_ms=kernel.began.mono_ms + 10 * SCAN_MS,
        )
        kernel.every(lambda: kernel.current.config.delay_persist_ms, lambda _: self.save())

    def figures(self, _now: Now) -> dict[str, str]:
        """Return the progress of each level, and the end of its queue."""
        found = {}
        for level in range(1, len(self._store.config.delays_ms) + 1):
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is not None:
                offset = self.progress.get(level, NOTHING).offset
                found[f"scheduleMessageOffset_{level}"] = f"{offset},{queue.max_offset}"
        return found

    def adopt(self, raw: dict[str, Any]) -> None:
        """Replace the progress by that of a table, or of a master.

        Raises:
            StoreDamaged: it is not a table of progress.
        """
        self._move(progress_in(raw))

    def advance(self, raw: dict[str, Any]) -> None:
        """Add the deliveries of another member to the progress; save it even if nothing changes.

        Raises:
            StoreDamaged: it is not a table of progress.
        """
        delivered = {
            level: delivered_by_either(theirs, self.progress.get(level, NOTHING))
            for level, theirs in progress_in(raw).items()
        }
        self._move(self.progress | delivered)

    def _move(self, progress: dict[int, LevelProgress]) -> None:
        """Set the progress; its deliveries are in the log, but perhaps not on the device yet."""
        before = {level: self.progress.get(level, NOTHING) for level in progress}
        self._undone.take_flushed()
        self._undone.note(before)
        self.progress = progress
        self._dirty = True

    def adopt_body(self, body: bytes) -> None:
        """Replace the progress by that in a master's response.

        Raises:
            ProtocolError: it cannot be read.
        """
        raw = loads(body, is_trusted=True)
        if not isinstance(raw, dict):
            raise ProtocolError("delay offsets: an object is expected")
        self.adopt(raw)

    def correct(self) -> list[CorrectedLevel]:
        """Set progress beyond the end of a level's queue to that end. Returns what was changed."""
        corrected = []
        self._forget_doubts()
        for level, progress in self.progress.items():
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            end = queue.max_offset if queue is not None else 0
            if progress.offset > end:
                corrected.append(CorrectedLevel(level, progress.offset, end))
                self.progress[level] = progress.cut(end)
        if corrected:
            self.version.counter += 1
            self._dirty = True
        return corrected

    def as_json(self) -> dict[str, Any]:
        """Return the table as peers and the file have it."""
        return {"dataVersion": self.version.as_json()} | progress_as_json(self.progress)

    def save(self, *, is_awaited: bool = False) -> None:
        """Write the file if something changed."""
        if self._dirty:
            self._saver.later(FILE, self._safe_json, is_awaited=is_awaited)
            self._dirty = False

    def close(self) -> None:
        """Sync the log, then save the progress; blocking.

        Raises:
            DiskFull, DiskFailed: something could not be written.
        """
        self._store.flush()
        self.save()
        self._saver.finish()

    def _safe_json(self) -> dict[str, Any]:
        """Return the table without deliveries that are not on the device; it is saved again later."""
        self._undone.take_flushed()
        self._dirty = self._dirty or bool(self._undone.waiting)
        progress = dict(self.progress)
        for before in self._undone.waiting:
            for level, then in before.items():
                progress[level] = delivered_by_both(then, progress.get(level, NOTHING))
        return {"dataVersion": self.version.as_json()} | progress_as_json(progress)

    def needs_log_from(self) -> dict[str, int]:
        """See `Feature`."""
        offset = self.keeps_log_from()
        return {} if offset is None else {"delayed messages": offset}

    def keeps_log_from(self) -> int | None:
        """Return the log offset of the oldest message still waiting; None if none waits, or another broker delivers."""
        if not self._turn.serving.is_master:
            return None
        oldest: int | None = None
        for level in range(1, len(self._store.config.delays_ms) + 1):
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                continue
            progress = self.progress.get(level, NOTHING)
            queue_offset = next((waiting for waiting in progress.waiting if waiting >= queue.min_offset), None)
            if queue_offset is None:
                queue_offset = max(progress.offset, queue.min_offset)
            if queue_offset < queue.max_offset:
                # The record of a damaged entry lies behind the record of the entry before it.
                found = self._store.record_of(queue, queue_offset)
                log_offset = found[0].log_offset if found is not None else queue.log_end_before(queue_offset)
                oldest = log_offset if oldest is None else min(oldest, log_offset)
        return oldest

    def is_drained(self, level: int) -> bool:
        """Return whether all messages of a level are delivered."""
        queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
        progress = self.progress.get(level, NOTHING)
        return queue is None or (not progress.waiting and max(progress.offset, queue.min_offset) >= queue.max_offset)

    def deliver(self, now: Now) -> None:
        """Deliver what is due, up to `BATCH_MESSAGES`; called within a turn, before its commit."""
        self._is_behind, self._wait_ms = False, SCAN_MS
        if not self._turn.serving.is_master:
            self._forget_doubts()
            return
        if self._puts.refusal is not None:
            return
        room = BATCH_MESSAGES
        self._until_us = self._outbox.elapsed_us() + DELIVERY_US
        retries = now.mono_ms >= self._retry_ms
        if retries:
            self._retry_ms = now.mono_ms + RETRY_MS
        for level, delay_ms in enumerate(self._store.config.delays_ms, start=1):
            queue = self._store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                continue
            if retries and self.progress.get(level, NOTHING).waiting:
                room -= self._retry_level(level, queue, max(0, room), now)
            if room > 0:
                room -= self._deliver_level(level, delay_ms, queue, room, now)
        self._is_behind = self._is_behind or room <= 0

    def _retry_level(self, level: int, queue: ConsumeQueue, room: int, now: Now) -> int:
        """Try the messages that wait apart; return their number."""
        progress = self.progress[level]
        tried = progress.waiting[:room]
        for queue_offset in tried:
            if queue_offset < queue.min_offset:
                log.error(
                    "delay: level %d: the log with message %d, which waited in damage, is deleted", level, queue_offset
                )
            else:
                outcome = self._deliver_one(queue, queue_offset, queue.entry(queue_offset), now)
                if outcome is Outcome.REFUSED:
                    break
                if outcome is Outcome.DAMAGED:
                    continue
            progress = progress.settled(queue_offset)
        if progress != self.progress[level]:
            self._pending[level] = progress
        return len(tried)

    def _deliver_level(self, level: int, delay_ms: int, queue: ConsumeQueue, room: int, now: Now) -> int:
        progress = self._pending.get(level, self.progress.get(level, NOTHING))
        start = queue_offset = max(progress.offset, queue.min_offset)
        if start >= queue.max_offset:
            return 0
        packed = queue.read(start, min(room, queue.max_offset - start))
        queue_offset = start + self._move_due(level, delay_ms, queue, start, packed, now)
        for log_offset, size, due_ms in QUEUE_ENTRY.iter_unpack(packed[(queue_offset - start) * QUEUE_ENTRY_BYTES :]):
            if queue_offset > start and self._is_late():
                break
            if not is_hole(size, due_ms) and not self._is_due(
                level, delay_ms, queue_offset, due_ms, queue.max_offset, now
            ):
                self._wait_ms = min(self._wait_ms, max(NEAR_MS, due_ms - now.wall_ms))
                break
            outcome = self._deliver_one(queue, queue_offset, Entry(log_offset, size, due_ms), now)
            if outcome is Outcome.DAMAGED and self._waits_apart(level, queue_offset, progress, now):
                progress = progress.put_apart(queue_offset)
            elif outcome is not Outcome.DONE:
                break
            queue_offset += 1
        else:  # the room ends here
            self._is_behind = self._is_behind or start < queue_offset < queue.max_offset
        if queue_offset > start:
            self._pending[level] = progress.advanced(queue_offset)
        return queue_offset - start

    def _is_late(self) -> bool:
        """Whether the time for the deliveries of this turn is over; the next turn continues then."""
        is_late = self._outbox.elapsed_us() >= self._until_us
        self._is_behind = self._is_behind or is_late
        return is_late

    def _move_due(self, level: int, delay_ms: int, queue: ConsumeQueue, start: int, packed: bytes, now: Now) -> int:
        """Deliver due messages of the usual form by the engine; return their number."""
        if self._damaged.is_known or self._doubted:
            return 0
        due = 0
        for _, size, due_ms in QUEUE_ENTRY.iter_unpack(packed):
            if is_hole(size, due_ms) or not self._is_due(level, delay_ms, start + due, due_ms, queue.max_offset, now):
                break
            due += 1
        done = 0
        while done < due and not (done and self._is_late()):
            entries = packed[done * QUEUE_ENTRY_BYTES : due * QUEUE_ENTRY_BYTES]
            moved = self._moves.move(queue, start + done, entries, RULE, now.wall_ms)
            if not moved:
                break
            done += moved
        self.delivered += done
        return done

    def _waits_apart(self, level: int, queue_offset: int, progress: LevelProgress, now: Now) -> bool:
        """Whether a level goes on without a damaged message: at once if others wait already, else after `APART_MS`."""
        held, since_ms = self._held.get(level, (-1, 0))
        if held != queue_offset:
            self._held[level] = (queue_offset, now.mono_ms)
            since_ms = now.mono_ms
        is_late = bool(progress.waiting) or now.mono_ms - since_ms >= APART_MS
        return is_late and len(progress.waiting) < WAITING_MAX

    def _deliver_one(self, queue: ConsumeQueue, queue_offset: int, entry: Entry, now: Now) -> Outcome:
        """Deliver a message, or skip it, or return why it has to wait."""
        level, log_offset, size = queue.queue_id + 1, entry.log_offset, entry.size
        fate = self._damaged.fate_of(queue, queue_offset, log_offset, size)
        if fate == WAITS:
            self._log_waiting(level, log_offset, "it is damaged, and waits for its repair", now)
            return Outcome.DAMAGED
        if fate == LOST:
            log.error("delay: the message at log offset %d is lost in damage, and not delivered", log_offset)
        if fate == LOST or entry.is_hole:
            self._doubted.pop((level, queue_offset), None)
            return Outcome.DONE
        try:
            message, record = self._read(queue, queue_offset, entry.tags_code)
        except DiskFailed as error:
            self._log_waiting(level, log_offset, str(error), now)
            return Outcome.DAMAGED
        except (ProtocolError, StoreError) as error:
            is_over = self._is_given_up(queue, queue_offset, log_offset, str(error), now)
            return Outcome.DONE if is_over else Outcome.DAMAGED
        self._doubted.pop((level, queue_offset), None)
        try:
            self._put(message, record, now)
        except (DiskFailed, DiskFull) as error:
            self._log_waiting(level, log_offset, str(error), now)
            return Outcome.REFUSED
        except (ProtocolError, StoreError) as error:
            log.error("delay: the message at log offset %d is not delivered: %s", log_offset, error)
        return Outcome.DONE

    def _is_given_up(self, queue: ConsumeQueue, queue_offset: int, log_offset: int, reason: str, now: Now) -> bool:
        """Whether a message that does not verify is skipped; see `DamagedEntries`."""
        level = queue.queue_id + 1
        since_ms = self._doubted.get((level, queue_offset))
        if self._damaged.is_given_up(queue, queue_offset, log_offset, reason, since_ms, now):
            log.error("delay: the message at log offset %d is not delivered: %s", log_offset, reason)
            del self._doubted[level, queue_offset]
            return True
        if since_ms is None:
            self._doubted[level, queue_offset] = now.mono_ms
            self._log_waiting(level, log_offset, reason, now)
        return False

    def _forget_doubts(self) -> None:
        """Forget since when messages do not verify: their queue offsets may get other messages."""
        self._doubted.clear()
        self._held.clear()

    def _log_waiting(self, level: int, log_offset: int, why: str, now: Now) -> None:
        if now.mono_ms - self._logged_ms.get(level, -LOG_MS) >= LOG_MS:
            self._logged_ms[level] = now.mono_ms
            apart = len(self.progress.get(level, NOTHING).waiting)
            log.error(
                "delay: level %d has messages that wait, %d apart; at log offset %d: %s", level, apart, log_offset, why
            )

    def _is_due(self, level: int, delay_ms: int, queue_offset: int, due_ms: int, max_offset: int, now: Now) -> bool:
        """Whether a message is due.

        One due later than its delay from now was stored before the wall clock went back: it waits its delay by the
        monotonic clock from when that was noticed, so it may be late but is never early.
        """
        if due_ms <= now.wall_ms:
            return True
        if due_ms <= now.wall_ms + delay_ms:
            return False
        noticed_ms, below = self._clock_went_back.get(level, (0, 0))
        if queue_offset >= below:
            noticed_ms = now.mono_ms
            self._clock_went_back[level] = (noticed_ms, max_offset)
        return now.mono_ms - noticed_ms >= delay_ms

    def committed(self, _now: Now) -> None:
        """Count the deliveries of this turn, which are in the log now."""
        if self._pending:
            self._move(self.progress | self._pending)
            self._pending.clear()
            self.version.counter += 1

    def failed(self) -> None:
        """Take back the deliveries of this turn, which are not in the log; they are tried again."""
        self._pending.clear()
        self._is_behind = False

    def _read(self, queue: ConsumeQueue, queue_offset: int, due_ms: int) -> tuple[StoredMessage, bytes]:
        """Return a message as it was stored, and its record.

        Raises:
            ProtocolError: it does not verify.
            StoreError: it cannot be read.
        """
        found = self._store.record_of(queue, queue_offset)
        if found is None:
            raise ProtocolError(f"no record of queue offset {queue_offset} where its entry says")
        record, data = found
        if due_ms < record.store_ms:
            raise ProtocolError(f"a delivery at {due_ms} of a message stored at {record.store_ms}")
        return decode_message(data, 0, len(data), inflates=False), data

    def _put(self, message: StoredMessage, record: bytes, now: Now) -> None:
        queue_id = message.properties.get(REAL_QID, "0")
        if not queue_id.isdecimal():
            raise ProtocolError(f"REAL_QID={queue_id:.32} is no number of a queue")
        topic = self._puts.later_topic(message.properties.get(REAL_TOPIC, ""), "delay", now)
        queue = self._topics.queue(topic, int(queue_id))
        self._puts.put_again(queue, record, now, sys_flag=message.sys_flag)
        self.delivered += 1
