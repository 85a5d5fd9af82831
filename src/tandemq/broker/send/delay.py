"""Delayed messages: 18 levels, each a queue of the delay topic, read in order of their deliver time.

A message with property DELAY waits in `SCHEDULE_TOPIC_XXXX`, queue level - 1; its queue entry's tags code is the
deliver time. When that has come the message is put again, into the topic and queue it was meant for. Progress is
the number of entries delivered per level, kept in delayOffset.json: there only as far as what was put is on the device,
since a power loss that took it would else take the message for good.

A message that does not verify is not passed over, and its level waits, as a queue's consumers do: the scrubber looks at
it, and it waits for its repair from a twin, until every twin has said that it has not got it either.

Source: docs/internals/storage.md, "delayOffset.json"; docs/decisions/0011; RocketMQ ScheduleMessageService;
requirements G13, I12.
"""

import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from tandemq.boundary import Now
from tandemq.broker.connections.connection import pack_host
from tandemq.broker.integrity.damage_table import LOST, WAITS
from tandemq.broker.integrity.scrubber import A_DELAY
from tandemq.broker.state.topics import Topic, internal_topic
from tandemq.codec.record.record import Record, decode_message
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import DiskFailed, DiskFull, ProtocolError, StoreDamaged, StoreError
from tandemq.model.message import StoredMessage, encode_properties
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.storage.consume_queue import PREFILL_SIZE, ConsumeQueue, Entry
from tandemq.storage.json_tables import DataVersion, load_table

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
FILE = "delayOffset.json"
SCAN_MS = 100
BATCH_MESSAGES = 256
"""So many are put in one turn at most; if more are due, they are put in the next."""
DOUBT_MS = 60_000
"""So long the scrubber has to find out what is wrong with a message that does not verify, if the log is sound there."""
SAY_MS = 60_000


class DelayedMessages:
    """The delay levels of one broker; delivers only on a master."""

    def __init__(self, broker: "Broker", now: Now) -> None:
        """Load the progress; look every 100 ms, from one second after the start, for messages that are due."""
        self._broker = broker
        self.version = DataVersion(now.wall_ms)
        self.progress: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._unflushed: deque[tuple[int, dict[int, int]]] = deque()
        """Where the log ended behind messages that were put, and what the progress of their levels was before that."""
        self._clock_went_back: dict[int, tuple[int, int]] = {}
        """Level to when that was noticed (monotonic ms), and the queue offset below which messages are concerned."""
        self._doubted: dict[int, tuple[int, int]] = {}
        """Level to the log offset of its next message, which does not verify, and since when that is known (monotonic
        ms)."""
        self._said: dict[int, tuple[int, int]] = {}
        """Level to the log offset of the message it waits for, and when that was logged last."""
        self.delivered = 0
        self._is_behind = False
        """Whether more may be due than was put in the last look."""
        self._dirty = False
        raw = load_table(broker.disk, FILE)
        if raw:
            self.version = DataVersion.from_json(raw.get("dataVersion"))
            self.progress = _progress_in(raw)
        broker.schedule.every(
            lambda: 1 if self._is_behind else SCAN_MS, self.deliver, first_ms=now.mono_ms + 10 * SCAN_MS
        )
        period = broker.config.delay_persist_ms
        broker.schedule.every(
            lambda: broker.config.delay_persist_ms, lambda _: self.save(), first_ms=now.mono_ms + period
        )

    def adopt(self, raw: dict[str, Any]) -> None:
        """Take progress from a table, or from what a master tells: it counts, further or not.

        Raises:
            StoreDamaged: it is no table of progress.
        """
        self._move(_progress_in(raw))

    def advance(self, raw: dict[str, Any]) -> None:
        """Take progress from another member where it is further than ours; it is saved even if nothing is news.

        Raises:
            StoreDamaged: it is no table of progress.
        """
        told = {level: max(offset, self.progress.get(level, 0)) for level, offset in _progress_in(raw).items()}
        self._move(self.progress | told)

    def _move(self, progress: dict[int, int]) -> None:
        """What was put when progress became this is in the log as it is now, though perhaps not on the device."""
        before = {level: self.progress.get(level, 0) for level in progress}
        self._forget_flushed()
        self._unflushed.append((self._broker.store.log.written_end, before))
        self.progress = progress
        self._dirty = True

    def adopt_body(self, body: bytes) -> None:
        """Take progress from a master's answer.

        Raises:
            ProtocolError: it cannot be read.
        """
        raw = loads(body, is_trusted=True)
        if not isinstance(raw, dict):
            raise ProtocolError("delay offsets: an object is expected")
        self.adopt(raw)

    def correct(self) -> list[tuple[int, int, int]]:
        """Set progress beyond the end of a level's queue to that end: (level, before, now) of each that was changed."""
        corrected = []
        for level, offset in self.progress.items():
            queue = self._broker.store.queues.get((SCHEDULE_TOPIC, level - 1))
            end = queue.max_offset if queue is not None else 0
            if offset > end:
                corrected.append((level, offset, end))
                self.progress[level] = end
        if corrected:
            self.version.counter += 1
            self._dirty = True
        return corrected

    def as_json(self) -> dict[str, Any]:
        """The table as peers and the file have it."""
        return {"dataVersion": self.version.as_json(), "offsetTable": self.progress}

    def save(self, *, is_awaited: bool = False) -> None:
        """Have the file written if something changed."""
        if self._dirty:
            self._broker.saver.later(FILE, self._safe_json, is_awaited=is_awaited)
            self._dirty = False

    def close(self) -> None:
        """Sync the log, then save how far it was delivered into it; blocking. Raises DiskFull, DiskFailed."""
        self._broker.store.flush()
        self.save()
        self._broker.saver.finish()

    def _safe_json(self) -> dict[str, Any]:
        """The table without what was delivered into a part of the log that is not on the device; saved again later."""
        self._forget_flushed()
        self._dirty = self._dirty or bool(self._unflushed)
        progress = dict(self.progress)
        for _, before in self._unflushed:
            for level, offset in before.items():
                progress[level] = min(offset, progress.get(level, 0))
        return self.as_json() | {"offsetTable": progress}

    def _forget_flushed(self) -> None:
        while self._unflushed and self._unflushed[0][0] <= self._broker.store.log.flushed_offset:
            self._unflushed.popleft()

    def needed_from(self) -> int | None:
        """Log offset of the oldest message still waiting, None if none is: retention must keep it."""
        oldest: int | None = None
        for level in range(1, len(self._broker.store.config.delays_ms) + 1):
            queue = self._broker.store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is None:
                continue
            at = max(self.progress.get(level, 0), queue.min_offset)
            if at < queue.max_offset:
                found = self._broker.store.record_of(queue, at)  # of a damaged entry: it lies behind the one before it
                log_offset = found[0].log_offset if found is not None else queue.log_end_before(at)
                oldest = log_offset if oldest is None else min(oldest, log_offset)
        return oldest

    def deliver(self, now: Now) -> None:
        """Put what is due, or as much of it as one turn may; runs within a turn, before its commit."""
        broker = self._broker
        self._is_behind = False
        if not broker.is_master or broker.send.refusal is not None:
            return
        room = BATCH_MESSAGES
        for level, delay_ms in enumerate(broker.store.config.delays_ms, start=1):
            queue = broker.store.queues.get((SCHEDULE_TOPIC, level - 1))
            if queue is not None and room > 0:
                room -= self._deliver_level(level, delay_ms, queue, room, now)
        self._is_behind = self._is_behind or room == 0

    def _deliver_level(self, level: int, delay_ms: int, queue: ConsumeQueue, room: int, now: Now) -> int:
        start = max(self.progress.get(level, 0), queue.min_offset)
        if start >= queue.max_offset:
            return 0
        at = start
        for log_offset, size, due_ms in self._broker.store.entries(queue, start, min(room, queue.max_offset - start)):
            if size != PREFILL_SIZE and not self._is_due(level, delay_ms, at, due_ms, queue.max_offset, now):
                break
            if not self._deliver_one(queue, at, Entry(log_offset, size, due_ms), now):
                break
            at += 1
        else:  # the room ends here
            self._is_behind = self._is_behind or start < at < queue.max_offset
        if at > start:
            self._pending[level] = at
        return at - start

    def _deliver_one(self, queue: ConsumeQueue, queue_offset: int, entry: Entry, now: Now) -> bool:
        """Put a message, or pass over it; False if its level has to wait for it."""
        damages, level, log_offset, size = self._broker.damages, queue.queue_id + 1, entry.log_offset, entry.size
        fate = (
            damages.fate_of(log_offset, size)
            if damages.ranges and queue.plausible_offset(queue_offset) is not None
            else ""
        )
        if fate == WAITS:
            self._say_waits(level, log_offset, "it is damaged, and waits for its repair", now)
            return False
        if fate == LOST:
            log.error("delay: the message at log offset %d is lost in damage, and not delivered", log_offset)
        if fate == LOST or size == PREFILL_SIZE:
            return True
        try:
            message, record, data = self._read(queue, queue_offset, entry.tags_code)
        except DiskFailed as error:
            self._say_waits(level, log_offset, str(error), now)
            return False
        except (ProtocolError, StoreError) as error:
            return self._is_given_up(queue, queue_offset, log_offset, str(error), now)
        try:
            self._put(message, data[record.body_start : record.body_end], now)
        except (DiskFailed, DiskFull) as error:
            self._say_waits(level, log_offset, str(error), now)
            return False
        except (ProtocolError, StoreError) as error:
            log.error("delay: the message at log offset %d is not delivered: %s", log_offset, error)
        return True

    def _is_given_up(self, queue: ConsumeQueue, queue_offset: int, log_offset: int, reason: str, now: Now) -> bool:
        """Whether a message that does not verify is passed over: only if the scrubber, asked to look, finds no damage.

        What it finds is known as damage from then on. If its queue entry is wrong it is rebuilt, however long the
        search for its record takes.
        """
        level, scrubber = queue.queue_id + 1, self._broker.scrubber
        searches = not scrubber.entries.is_right(queue, queue_offset) and scrubber.suspect_entry(
            queue, queue_offset, f"{A_DELAY} found {reason}"
        )
        doubted, since_ms = self._doubted.get(level, (-1, 0))
        if doubted != log_offset:
            self._doubted[level] = (log_offset, now.mono_ms)
            self._say_waits(level, log_offset, reason, now)
            scrubber.look_at(log_offset, A_DELAY, reason, now)
            return False
        if now.mono_ms - since_ms < DOUBT_MS or searches:
            return False
        log.error("delay: the message at log offset %d is not delivered: %s", log_offset, reason)
        return True

    def _say_waits(self, level: int, log_offset: int, why: str, now: Now) -> None:
        said, said_ms = self._said.get(level, (-1, 0))
        if said != log_offset or now.mono_ms - said_ms >= SAY_MS:
            self._said[level] = (log_offset, now.mono_ms)
            log.error("delay: level %d waits for the message at log offset %d: %s", level, log_offset, why)

    def _is_due(self, level: int, delay_ms: int, queue_offset: int, due_ms: int, max_offset: int, now: Now) -> bool:
        """Whether a message's time has come. One due later than its delay from now was stored before the calendar clock
        went back: it waits its delay by the monotonic clock from when that was noticed, so it is late and never early.
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

    def committed(self) -> None:
        """What was put is in the log: progress counts from here on."""
        if self._pending:
            self._move(self.progress | self._pending)
            self._pending.clear()
            self.version.counter += 1

    def failed(self) -> None:
        """What was put is not in the log; it is tried again."""
        self._pending.clear()
        self._is_behind = False

    def _read(self, queue: ConsumeQueue, queue_offset: int, due_ms: int) -> tuple[StoredMessage, Record, bytes]:
        """A message as it was stored. Raises ProtocolError if it does not verify, StoreError if it cannot be read."""
        found = self._broker.store.record_of(queue, queue_offset)
        if found is None:
            raise ProtocolError(f"no record of queue offset {queue_offset} where its entry says")
        record, data = found
        if due_ms < record.store_ms:
            raise ProtocolError(f"a delivery at {due_ms} of a message stored at {record.store_ms}")
        return decode_message(data, 0, len(data), inflates=False), record, data

    def _put(self, message: StoredMessage, body: bytes, now: Now) -> None:
        broker = self._broker
        properties = {key: value for key, value in message.properties.items() if key not in ("DELAY", "__CRC32#")}
        queue_id = properties.get("REAL_QID", "0")
        if not queue_id.isdecimal():
            raise ProtocolError(f"REAL_QID={queue_id:.32} is no number of a queue")
        name = properties.get("REAL_TOPIC", "")
        topic = broker.topics.create_internal(name, 1, now.wall_ms)
        if topic is None:  # it was deleted, and there is no room for it: its queue gets the message all the same
            topic = Topic(internal_topic(name, 1))
        broker.store.put(
            broker.topics.queue(topic, int(queue_id)),
            body=body,
            properties=encode_properties(properties).encode(),
            flag=message.flag,
            sys_flag=message.sys_flag & ~0x30,
            born_ms=message.born_ms,
            born_host=pack_host(message.born_host),
            store_ms=now.wall_ms,
            store_host=pack_host(message.store_host),
            reconsume_times=message.reconsume_times,
        )
        self.delivered += 1


def _progress_in(raw: dict[str, Any]) -> dict[int, int]:
    try:
        table = (raw.get("offsetTable") or {}).items()
        return {int(level): integer(offset, f"level {level}") for level, offset in table if offset is not None}
    except (AttributeError, TypeError, ValueError, ProtocolError) as error:
        raise StoreDamaged(f"delay offsets: {error}") from error
