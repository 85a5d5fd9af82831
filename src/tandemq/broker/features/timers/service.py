"""The timed messages of a master: their delivery once their time is over, deletion, and storing them again.

    rmq_sys_wheel_timer ──► time is over ──► message in its topic, and a done record behind it in the same write
                             │  a delete request of the same time names it ──► over, not delivered
                             └► `timerRollWindowSlot` units away: stored again there ──► waits on
                             damaged: waits for its repair; the others are delivered meanwhile

Everything is in the log: another master reads the waiting messages from it (`loading`). What a turn appends counts from
its commit on.

Source: docs/reference/timers.md; RocketMQ TimerMessageStore.
"""

import logging
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.timers.damaged import DamagedTimers
from tandemq.broker.features.timers.done_writer import DoneWriter
from tandemq.broker.features.timers.java_files import JavaFiles
from tandemq.broker.features.timers.loading import TimerLoader, last_done
from tandemq.broker.features.timers.metrics import TimerMetrics
from tandemq.broker.features.timers.pending import PendingTimers, RollTask, Slot, roll_time
from tandemq.broker.features.timers.records import TimedMessage, read_timed
from tandemq.broker.features.timers.table import TimerCountsTable
from tandemq.broker.features.timers.targets import RecallTargets
from tandemq.broker.features.timers.timer_check import TimerCheck, check_of_java
from tandemq.broker.kernel.copied_tables import Table
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_queue import LogQueue
from tandemq.broker.kernel.messages.timed_message import precision_ms, rounded_down
from tandemq.broker.kernel.moves import Moves
from tandemq.broker.kernel.timers import MessageTimers
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES, is_hole
from tandemq.engine import MoveRule
from tandemq.errors import ProtocolError, RecordTooLarge, StoreError
from tandemq.model.message import TIMER_DELETE, TIMER_DEQUEUED, TIMER_ENQUEUED, TIMER_OUT, TIMER_ROLLS, SysFlag
from tandemq.model.topic import TIMER_DONE_TOPIC, TIMER_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.commit_log import AppendMessageResult
from tandemq.turn_budget import advance

log = logging.getLogger(__name__)
BATCH_MESSAGES = 256
"""Maximum number of messages delivered, dropped or read in one turn; the rest follow in the next."""
BATCH_BYTES = 4 << 20
"""Maximum size of their records, but for the last one."""
DELIVERY_US = 10_000
"""Time for the deliveries of a turn: each may have to wait for the device."""
PLAN_US = 2_000
PLANNED_AT_ONCE = 256
"""Time for planning in one turn when messages are stored again, and number of messages between two looks at it."""
_END_MS = 1 << 62
_ENQUEUED, _DEQUEUED, _OUT = TIMER_ENQUEUED.encode(), TIMER_DEQUEUED.encode(), TIMER_OUT.encode()
_V6_MASK = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


class _TakenSlot(NamedTuple):
    """What this turn handled of a slot."""

    out_ms: int
    messages: int
    is_whole: bool
    """Whether nothing is left in it, delete requests neither."""


class _Turn:
    """What this turn has appended; it counts from the commit on."""

    def __init__(self) -> None:
        self.slots: list[_TakenSlot] = []
        self.over: list[int] = []
        """Queue offsets of messages that are over."""
        self.topics: list[str] = []
        """Topics of those that were counted."""
        self.until_ms = 0
        """Latest time of messages that are over."""
        self.rolled: list[tuple[RollTask, str]] = []
        """Messages stored again, and their topics."""
        self.room = BATCH_MESSAGES
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        return self.room <= 0 or self.bytes >= BATCH_BYTES

    def note_delivered(self, messages: Sequence[int], out_ms: int, topics: list[str], size: int) -> None:
        self.room -= len(messages)
        self.bytes += size
        self.over += messages
        self.topics += topics
        self.until_ms = max(self.until_ms, out_ms)

    def note_over(self, queue_offset: int, out_ms: int) -> None:
        self.over.append(queue_offset)
        self.until_ms = max(self.until_ms, out_ms)


class TimedMessages(LogQueue[TimerLoader], MessageTimers):
    """The timed messages of one broker; active on a master only."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin; the waiting messages are read once the broker is master and accepts messages."""
        super().__init__(kernel)
        self._topics = kernel.topics
        self.damaged = DamagedTimers(kernel)
        self.metrics = TimerMetrics(kernel.saver, kernel.began)
        self._moves = Moves(kernel)
        self._outbox = kernel.outbox
        self._until_us = 0
        """When the time for the deliveries of this turn is over, since its beginning."""
        self._current = kernel.current
        self.precision_ms = precision_ms(kernel.current.config)
        self.table: PendingTimers | None = None
        """None: not a master, or not read yet."""
        self._done = DoneWriter(kernel)
        self._copied: set[int] = set()
        """Log offsets of messages that are over, of which the queue entry was damaged."""
        self._targets: RecallTargets | None = None
        self._turn = _Turn()
        self._java_files = JavaFiles(kernel.store.disk, kernel.turn)
        self._planning: Iterator[None] = iter(())
        """Steps of `_plan_rolls` that are left."""
        self._last = Now(kernel.began.mono_ms, kernel.began.wall_ms)
        """Time of the last run."""
        self._began_ms = kernel.began.wall_ms
        kernel.every(lambda: kernel.current.config.timer_flush_ms, self._save)

    # A feature.

    def figures(self, now: Now) -> dict[str, str]:
        """Return the progress; the rates are averages since the start."""
        metrics, elapsed_s = self.metrics, max(1.0, (now.wall_ms - self._began_ms) / 1000)
        return {
            "timerReadBehind": str(self.behind_ms(now) // 1000),
            "timerOffsetBehind": str(self.unread()),
            "timerCongestNum": str(len(self.table) if self.table is not None else 0),
            "timerEnqueueTps": f"{sum(metrics.enqueued_total.values()) / elapsed_s:.1f}",
            "timerDequeueTps": f"{sum(metrics.dequeued_total.values()) / elapsed_s:.1f}",
        }

    def topic_removed(self, topic: str, now: Now) -> None:
        """See `Feature`."""
        self.metrics.topic_removed(topic, now.wall_ms)

    def save_tables(self) -> None:
        """See `Feature`."""
        self.metrics.save()

    # Role.

    @property
    def _is_loaded(self) -> bool:
        return self.table is not None

    def _forget(self) -> None:
        self.table = self._reading = self._targets = None
        self._planning = iter(())
        self._copied = set()
        self._done.forget()
        self._turn = _Turn()
        self.damaged.clear()
        self._puts.know_timers(None)  # what this turn has appended is added to the new table when it is committed

    def _begin_reading(self) -> TimerLoader:
        return TimerLoader(self._store, check_of_java(self._store.disk))

    def _adopt_reading(self, reading: TimerLoader, now: Now) -> None:
        table = self.table = reading.table
        self._puts.know_timers(table)
        self._done.adopt(reading)
        for queue_offset in reading.unread:
            self.damaged.hold(queue_offset, now)
        self._planning = self._plan_rolls(table, self._write_ms(now), table.seen)
        if len(table) or reading.over:
            log.info("timers: %d messages wait, %d more were delivered already", len(table), len(reading.over))
        self._copied = reading.copied
        self._java_files.remove()
        self.metrics.adopt(table.counts)

    def _act(self, now: Now) -> None:
        self._last = Now(now.mono_ms, now.wall_ms)
        assert self.table is not None, "loaded"
        self._deliver(self.table, now)
        self._plan_some()

    def _plan_rolls(self, table: PendingTimers, write_ms: int, end: int) -> Iterator[None]:
        """Plan in steps when messages are stored again that were read, those below a queue offset.

        Those behind it are planned in the turns that store them.
        """
        window_ms = self._window_ms
        for out_ms in [out_ms for out_ms in table.slots if out_ms >= write_ms + window_ms]:
            slot, roll_ms = table.slots.get(out_ms), roll_time(out_ms, write_ms, window_ms)
            messages = slot.messages[: bisect_left(slot.messages, end)] if slot is not None else ()
            for first in range(0, len(messages), PLANNED_AT_ONCE):
                for queue_offset in messages[first : first + PLANNED_AT_ONCE]:
                    table.roll_later(RollTask(queue_offset, out_ms), roll_ms)
                yield

    def _plan_some(self) -> None:
        """Go on with `_plan_rolls` for as long as this turn may take."""
        if not advance(self._planning, self._outbox, PLAN_US):
            self._is_behind = True

    @property
    def _window_ms(self) -> int:
        """How far away the time of a message may be that is not stored again before."""
        return self._current.config.timer_roll_window * self.precision_ms

    def _write_ms(self, now: Now) -> int:
        return rounded_down(now.wall_ms, self.precision_ms)

    # Delivery.

    def _deliver(self, table: PendingTimers, now: Now) -> None:
        timers = self._store.queues.get((TIMER_TOPIC, 0))
        if timers is None:
            return
        end_ms = self._write_ms(now)
        self._until_us = self._outbox.elapsed_us() + DELIVERY_US
        try:
            self._restore_repaired(timers, now)
            self._roll(table, timers, end_ms, now)
            if self.damaged.may_have_requests(now):
                return
            for out_ms in table.until(end_ms):
                if not self._deliver_slot(table, timers, out_ms, now):
                    self._is_behind = True
                    break
        except StoreError as error:  # what was appended before stays in this turn
            log.error("timers: deliveries wait: %s", error)
            self._is_behind = False

    def _is_full(self) -> bool:
        """Whether this turn has delivered as much as it may, or for as long."""
        return self._turn.is_full or self._outbox.elapsed_us() >= self._until_us

    def _deliver_slot(self, table: PendingTimers, timers: ConsumeQueue, out_ms: int, now: Now) -> bool:
        """Deliver the messages of a time, as many as this turn has room for; return whether it has room for more.

        All of them wait while one of their delete requests waits for its repair; the requests stay while one of the
        messages does.
        """
        slot = table.slots[out_ms]
        if not slot.messages and self.damaged.may_have_message(out_ms):
            return True
        if self.damaged.awaits_request(timers, slot.deletes, now):
            return True
        turn = self._turn
        targets = self._targets_of(timers, out_ms, slot, now)
        if targets is None:
            return not self._is_full()
        done = self._move_slot(table, timers, out_ms, targets, now)
        try:
            while done < len(slot.messages):
                if self._is_full():
                    break
                topic = table.topics[slot.message_topics[done]]
                self._deliver_one(timers, slot.messages[done], out_ms, topic, targets, now)
                done += 1
        finally:
            is_whole = done == len(slot.messages) and not (slot.deletes and self.damaged.may_have_message(out_ms))
            if is_whole:
                for queue_offset in slot.deletes:
                    turn.note_over(queue_offset, out_ms)
            if done or is_whole:
                turn.slots.append(_TakenSlot(out_ms, done, is_whole))
        return not self._is_full()

    def _move_slot(
        self, table: PendingTimers, timers: ConsumeQueue, out_ms: int, targets: RecallTargets, now: Now
    ) -> int:
        """Deliver messages of a time by the engine, from the first one on; return their number."""
        slot, turn = table.slots[out_ms], self._turn
        if targets.names_any or not self.damaged.has_no_ranges:
            return 0
        rule = MoveRule(b"%b\x01%d\x02" % (_OUT, out_ms), self.precision_ms)
        messages, done = slot.messages, 0
        while done < len(messages) and not self._is_full():
            first, stop = messages[done], min(len(messages), done + turn.room)
            run = 1
            while done + run < stop and messages[done + run] == first + run:
                run += 1
            try:
                entries, sizes = self._within_bytes(timers.read(first, run))
            except StoreError:  # each message is read by itself then, and its fault logged
                break
            moved = self._moves.move(timers, first, entries, rule, now.wall_ms) if entries else 0
            if not moved:
                break
            names = [table.topics[number] for number in slot.message_topics[done : done + moved]]
            turn.note_delivered(messages[done : done + moved], out_ms, names, sum(sizes[:moved]))
            self.metrics.dequeued_all(names)
            done += moved
        return done

    def _within_bytes(self, entries: bytes) -> tuple[bytes, list[int]]:
        """Return entries up to the one that fills the turn, and the sizes of their records."""
        left, sizes = BATCH_BYTES - self._turn.bytes, list[int]()
        for _, size, code in QUEUE_ENTRY.iter_unpack(entries):
            if left <= 0 or is_hole(size, code):
                break
            sizes.append(size)
            left -= size
        return entries[: len(sizes) * QUEUE_ENTRY_BYTES], sizes

    def _targets_of(self, timers: ConsumeQueue, out_ms: int, slot: Slot, now: Now) -> RecallTargets | None:
        """Return the messages named by the delete requests of a time; None if this turn cannot read them all."""
        found = self._targets
        if found is None or found.out_ms != out_ms or found.read > len(slot.deletes):
            found = self._targets = RecallTargets(out_ms)
        while found.read < len(slot.deletes):
            if self._is_full():
                return None
            self._turn.room -= 1
            timed, waits = self.damaged.request(timers, slot.deletes[found.read], now)
            if waits:
                return None
            found.read += 1
            if timed is not None:
                found.add(timed.head.topic, timed.message.properties.get(TIMER_DELETE, ""))
        return found

    def _deliver_one(
        self,
        timers: ConsumeQueue,
        queue_offset: int,
        out_ms: int,
        topic: str,
        targets: RecallTargets,
        now: Now,
    ) -> None:
        turn = self._turn
        turn.room -= 1
        read = self.damaged.read(timers, queue_offset, now, out_ms=out_ms, topic=topic)
        if read.timed is None:
            if not read.waits:
                turn.note_over(queue_offset, out_ms)
                turn.topics.append(topic)
            return
        turn.bytes += read.timed.message.size
        head = read.timed.head
        if targets.has(head):
            self.metrics.note_deleted()
            turn.note_over(queue_offset, out_ms)
            turn.topics.append(head.topic)
            return
        self._put_delivered(read.timed, queue_offset, now)

    def _put_delivered(self, timed: TimedMessage, queue_offset: int, now: Now) -> None:
        """Append a message to its topic.

        Raises:
            StoreError: the log takes no more now.
        """
        turn, head = self._turn, timed.head
        enqueued_ms = rounded_down(head.store_ms, self.precision_ms)
        topic = self._puts.later_topic(head.topic, "timers", now)
        try:
            self._put(self._topics.queue(topic, timed.queue_id), timed, now, {TIMER_ENQUEUED: str(enqueued_ms)})
        except RecordTooLarge as error:
            log.error("timers: the message at log offset %d cannot be delivered: %s", timed.message.log_offset, error)
        turn.note_over(queue_offset, head.out_ms)
        turn.topics.append(head.topic)
        if self._topics.get(head.topic) is not None:
            self.metrics.dequeued(head)

    def _put(self, queue: ConsumeQueue, timed: TimedMessage, now: Now, change: dict[str, str]) -> AppendMessageResult:
        return self._puts.put_again(
            queue,
            timed.data,
            now,
            sys_flag=timed.message.sys_flag,
            change=change | {TIMER_DEQUEUED: str(now.wall_ms)},
            drop=(TIMER_ENQUEUED,),
            prepared_offset=timed.message.log_offset + 1,
        )

    def _restore_repaired(self, timers: ConsumeQueue, now: Now) -> None:
        """Enter messages and requests that were damaged and can be read now in their slots."""
        for queue_offset in self.damaged.to_try():
            if self._is_full():
                break
            self._turn.room -= 1
            timed, waits = self.damaged.read(timers, queue_offset, now)
            if waits:
                continue
            self._is_behind = True
            if timed is None or self._was_over(queue_offset, timed):
                self._turn.note_over(queue_offset, 0 if timed is None else timed.head.out_ms)
                topic = self.damaged.resolved(queue_offset)
                if topic:
                    self._turn.topics.append(topic)
            else:
                self.damaged.restore(queue_offset, timed.head)

    def _was_over(self, queue_offset: int, timed: TimedMessage) -> bool:
        progress = self._done.progress
        is_past = queue_offset < progress.below and timed.head.out_ms < progress.before_ms
        return is_past or timed.message.log_offset in self._copied

    # Far times.

    def _roll(self, table: PendingTimers, timers: ConsumeQueue, end_ms: int, now: Now) -> None:
        """Store messages again whose time is far away."""
        tasks = table.rolls_before(end_ms, self._turn.room)
        for number, task in enumerate(tasks):
            if self._is_full():
                for left in tasks[number:]:
                    table.roll_later(left, 0)
                self._is_behind = True
                break
            if task.out_ms < end_ms or not table.is_waiting(task.queue_offset, task.out_ms):
                continue  # it is delivered in this turn or one of the next, or was already
            self._turn.room -= 1
            try:
                timed = read_timed(self._store, timers, task.queue_offset)
            except ProtocolError:
                continue  # it is handled at its time
            rolls = timed.message.properties.get(TIMER_ROLLS, "0")
            times = int(rolls) + 1 if rolls.isdecimal() and len(rolls) < 9 else 1
            try:
                stored = self._put(timers, timed, now, {TIMER_ROLLS: str(times)})
            except RecordTooLarge:
                continue
            self._turn.bytes += stored.size
            self._puts.note_timed(stored, timed.message.properties, timed.head.out_ms)
            self._turn.rolled.append((task, timed.head.topic))

    # A turn.

    def before_commit(self, now: Now) -> None:
        """Append the done record of this turn, behind its messages."""
        table = self.table
        if table is None:
            return
        turn = self._turn
        if self._done.is_due(table, turn.over):
            self._done.append(table, turn.over, self._over_before_ms(table, now), turn.until_ms, now)

    def _over_before_ms(self, table: PendingTimers, now: Now) -> int:
        """Return a time before which all is over with what this turn has appended so far."""
        whole = {slot.out_ms for slot in self._turn.slots if slot.is_whole}
        first = next((out_ms for out_ms in table.until(_END_MS) if out_ms not in whole), _END_MS)
        return min(first, self.damaged.first_ms(), self._write_ms(now))

    def committed(self, now: Now) -> None:
        """Apply the records appended in this turn, which are in the log now."""
        timed = self._puts.take_timed()
        if timed:
            self.metrics.enqueued(timed, now)
        table, turn = self.table, self._turn
        if table is None:
            if self._reading is not None:
                self._reading.arrived.add_all(timed)
            return
        self._turn = _Turn()
        if turn.slots or turn.over or turn.rolled or self.damaged.has_changes:
            self._apply(table, turn)
            for topic in {topic for topic in turn.topics if self._topics.get(topic) is None}:
                self.metrics.topic_removed(topic, now.wall_ms)
            self.metrics.changed(now.wall_ms)
        self._done.committed()
        if timed:
            table.add_all(timed)
            write_ms, window_ms = self._write_ms(now), self._window_ms
            far_ms = write_ms + window_ms
            for queue_offset, out_ms, _, is_delete in timed:
                if out_ms >= far_ms and not is_delete:
                    table.roll_later(RollTask(queue_offset, out_ms), roll_time(out_ms, write_ms, window_ms))
            self.metrics.changed(now.wall_ms)

    def _apply(self, table: PendingTimers, turn: _Turn) -> None:
        for slot in turn.slots:
            table.take(slot.out_ms, slot.messages, with_deletes=slot.is_whole)
        if self._targets is not None and (self.damaged.has_restored or self._targets.out_ms not in table.slots):
            self._targets = None
        for queue_offset in turn.over:
            table.release(queue_offset)
        for topic in turn.topics:
            table.count(topic, -1)
        for task, topic in turn.rolled:
            if table.discard(task.queue_offset, task.out_ms):
                table.count(topic, -1)
        self.damaged.committed(table)

    def failed(self) -> None:
        """Forget the records appended in this turn, which are not in the log."""
        self._puts.take_timed()
        for task, _ in self._turn.rolled:
            if self.table is not None:
                self.table.roll_later(task, 0)
        self._turn = _Turn()
        self._targets = None
        self._is_behind = False
        self._done.failed()
        self.damaged.failed()

    # What others ask.

    def tables(self) -> tuple[Table, ...]:
        """See `Feature`."""
        return (TimerCountsTable(self.metrics),)

    def needs_log_from(self) -> dict[str, int]:
        """See `Feature`."""
        offset = self.keeps_log_from()
        return {} if offset is None else {"timed messages": offset}

    def keeps_log_from(self) -> int | None:
        """Return the log offset of the oldest waiting message, which retention must keep; None if none waits."""
        timers = self._store.queues.get((TIMER_TOPIC, 0))
        if timers is None or timers.max_offset <= timers.min_offset:
            return None
        if self.table is not None:
            lowest = self.table.lowest()
        else:
            done = self._store.queues.get((TIMER_DONE_TOPIC, 0))
            found = last_done(self._store, done) if done is not None else None
            lowest = found[0].lowest if found is not None else None
            if found is None and self._current_turn.serving.is_master:
                lowest = 0
        if lowest is None or lowest >= timers.max_offset:
            return None
        return timers.entry(max(lowest, timers.min_offset)).log_offset

    def unread(self) -> int:
        """Return the number of messages in the wheel topic that were not read yet."""
        timers = self._store.queues.get((TIMER_TOPIC, 0))
        if timers is None or not self._current_turn.serving.is_master:
            return 0
        seen = self.table.seen if self.table is not None else timers.min_offset
        return max(0, timers.max_offset - max(seen, timers.min_offset))

    def unread_ms(self, now: Now) -> int:
        """Return the age of the oldest message in the wheel topic that was not read yet; 0 if there is none."""
        if not self.unread():
            return 0
        timers = self._store.queues[TIMER_TOPIC, 0]
        seen = self.table.seen if self.table is not None else 0
        try:
            stored_ms = self._store.stored_ms(timers, max(seen, timers.min_offset))
        except StoreError:
            return 0
        return max(0, now.wall_ms - stored_ms) if stored_ms else 0

    def behind_ms(self, now: Now) -> int:
        """Return for how long the oldest message that is due has been so; 0 if none is."""
        first = self.table.first() if self.table is not None else None
        return 0 if first is None else max(0, now.wall_ms - first - self.precision_ms)

    @property
    def passed_ms(self) -> int:
        """See `MessageTimers`."""
        if self.table is None:
            return 0
        first = self.table.first()
        end_ms = min(self._write_ms(self._last), self.damaged.first_ms())
        return end_ms if first is None else min(first, end_ms)

    def check(self, now: Now) -> TimerCheck | None:
        """Return the progress in the form of Java brokers; None if this is no master that has read its messages."""
        if self.table is None:
            return None
        first = self.table.first()
        end_ms = self._write_ms(now)
        read_ms = end_ms if first is None else min(first, end_ms)
        version = self.metrics.version
        return TimerCheck(read_ms, 0, self.table.seen, self.table.seen, 0, now.wall_ms, version.counter)

    # Files of Java brokers.

    def _save(self, now: Now) -> None:
        """Write what changes of the files while the broker runs."""
        self.metrics.save()
        check, table = self.check(now), self.table
        if table is not None and check is not None and self._done.is_flushed and (TIMER_TOPIC, 0) in self._store.queues:
            oldest = table.none_below()
            self._java_files.save_check(check._replace(queue_offset=oldest, master_queue_offset=oldest))

    def close(self) -> None:
        """Write all files that a Java broker needs to go on; blocking."""
        timers = self._store.queues.get((TIMER_TOPIC, 0))
        check = self.check(self._last)
        if timers is None or self.table is None or check is None:
            return
        if len(self.damaged):
            log.warning("timers: a Java broker would not deliver %d messages in damage", len(self.damaged))
        self._java_files.write_all(self.table, timers, check, self._window_ms, self.precision_ms)
