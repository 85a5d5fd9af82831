"""The transactions of a master: commits and rollbacks, checks of half messages that stay open, giving up.

    half message ──► open ──► END_TRANSACTION: message and op record in one write, or op record alone ──► over
                      │  older than `transactionTimeOut`: copied, and its producer group asked, once per
                      │  `transactionCheckInterval` ──► END_TRANSACTION
                      └► asked `transactionCheckMax` times: stored in TRANS_CHECK_MAX_TIME_TOPIC ──► over

Everything is in the log: another master reads the open transactions from it (`loading`). What a turn appends counts
from its commit on.

Source: docs/reference/transactions.md; RocketMQ TransactionalMessageServiceImpl, TransactionalMessageBridge.
"""

import logging
from collections import deque
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.broker.features.transactions.loading import GROUP, TransactionLoader
from tandemq.broker.features.transactions.metrics import TransactionMetrics
from tandemq.broker.features.transactions.op_records import Progress, op_body, op_properties
from tandemq.broker.features.transactions.open_transactions import HalfEntry, OpenTransactions
from tandemq.broker.kernel.client_requests import notify
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_queue import DOUBT_MS, DamagedEntries, DurableProgress, LogQueue
from tandemq.broker.kernel.messages.half_message import HalfMessage, read_half
from tandemq.broker.kernel.sends import Sends
from tandemq.broker.kernel.verification import A_TRANSACTION
from tandemq.broker.state.clients import Member
from tandemq.broker.state.damage_table import LOST, WAITS
from tandemq.broker.state.topics import Topic, internal_topic
from tandemq.codec.record.record import encode_record, message_id
from tandemq.engine import EndedHalf
from tandemq.errors import ProtocolError, RecordTooLarge, StoreError
from tandemq.model.codes import RequestCode
from tandemq.model.message import (
    CHECK_TIMES,
    DELAY,
    FIRST_OFFSET,
    TIMER_NAMES,
    TRANSACTION_MASK,
    SysFlag,
    encode_properties,
)
from tandemq.model.topic import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC
from tandemq.storage.log.commit_log import AppendMessageResult

log = logging.getLogger(__name__)
HURRY_SLICES = 16
"""Maximum number of slices of the queues that are read at once because a request needs them."""
BATCH_MESSAGES = 128
"""Maximum number of half messages checked in one turn; the rest follow in the next."""
OP_OFFSETS_MAX = 512
"""Maximum number of half messages in one op record."""
OPS_MAX = 10_000
"""Number of op records whose range is kept in memory; beyond it, pairs of them are joined."""
REREAD_MS = 5_000
"""Time until the queues are read again if damage may hide ends of transactions."""
PROGRESS_MS = 5_000
"""Interval between updates of the offset table."""
COPY_AFTER_MS = 300_000
"""Age at which a half message that may not be checked yet is copied, so that the progress moves on."""
BACKLOG_BYTES_MAX = 1 << 20
"""A producer whose connection has a larger backlog is not asked if there is another one."""
FIGURES_MAX = 100
"""Maximum number of topics whose open transactions are in the runtime information."""
HOUR_MS = 3_600_000
_V6_MASK = int(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)


class _Copy(NamedTuple):
    """A copy appended in this turn."""

    queue_offset: int
    """Of the half message that it replaces."""
    stored: AppendMessageResult
    half: HalfMessage
    is_checked: bool
    """Whether the producer group is asked once the copy is stored."""


class Transactions(LogQueue[TransactionLoader]):
    """The transactions of one broker; active on a master only."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin; the open transactions are read once the broker is master and accepts messages."""
        super().__init__(kernel)
        self._topics = kernel.topics
        self._offsets = kernel.offsets
        self._clients = kernel.clients
        self._sends = kernel.features.find(Sends)
        self.metrics = TransactionMetrics(kernel)
        self._outbox = kernel.outbox
        self._current = kernel.current
        self.table: OpenTransactions | None = None
        """None: not a master, or not read yet."""
        self._ended: dict[int, bool] = {}
        """Ends of this turn: queue offset of the newest copy, and whether the transaction was given up."""
        self._unnoted: list[int] = []
        """Queue offsets of the ends without op record yet."""
        self._of_no_topic: set[str] = set()
        """Topics of ends of this turn that do not exist."""
        self._copies: list[_Copy] = []
        self._committed: list[int] = []
        """Half messages whose messages were found in the log, and without op record: a crash took it."""
        self._replaced: list[int] = []
        """Half messages whose copies were read, and without op record: a crash took it, or another broker made them."""
        self._ops: deque[Progress] = deque()
        """Op records that name half messages at or behind the oldest open one: the greatest, and their own offset."""
        self._written_ops: list[Progress] = []
        """Op records of this turn."""
        self._due: deque[int] = deque()
        """Half messages that this run has to look at."""
        self._next_run_ms = 0
        self._progress_due_ms = 0
        self._durable = DurableProgress[Progress](kernel.store)
        self._damaged = DamagedEntries(kernel, A_TRANSACTION)
        self._unread_ops: dict[int, int] = {}
        """Since when (monotonic ms) op records cannot be read, by queue offset."""
        self._reread_ms = 0
        """When (monotonic ms) the queues are read again."""
        self._asked: dict[str, int] = {}
        """Number of checks sent, by producer group; they alternate between its connections."""
        self._absent: set[str] = set()
        """Producer groups without a connected producer, logged in this run."""
        self.checks = 0
        """Checks sent to producers."""
        self.given_up = 0

    # A feature.

    def figures(self, _now: Now) -> dict[str, str]:
        """Return how many transactions are open, in all and of each topic; "" while a master reads them."""
        if self.table is None:
            return {"transactionsOpen": ""} if self._current_turn.serving.is_master else {}
        counts = {topic: count for topic, count in self.table.counts.items() if count}
        most = sorted(counts, key=lambda topic: -counts[topic])[:FIGURES_MAX]
        return {"transactionsOpen": str(len(self.table))} | {
            f"transactionsOpen_{topic}": str(counts[topic]) for topic in most
        }

    # Role.

    @property
    def _is_loaded(self) -> bool:
        return self.table is not None

    def _act(self, now: Now) -> None:
        self._check(now)
        self._save_progress(now)

    def hurry(self, now: Now) -> None:
        """Read the open transactions now, if they are few: an end that is refused has to be asked for again."""
        if self.table is not None and not self._mastership.is_current():
            self._drop()
        for _ in range(HURRY_SLICES):
            if self.table is not None or not self._current_turn.serving.is_master or self._puts.refusal is not None:
                return
            self._run(now)

    def _forget(self) -> None:
        self.table = None
        self._ended.clear()
        self._unnoted.clear()
        self._copies.clear()
        self._committed.clear()
        self._replaced.clear()
        self._written_ops.clear()
        self._ops.clear()
        self._due.clear()
        self._durable.clear()
        self._puts.refuse_halves(None)
        self._sends.know_transactions(None)

    def _begin_reading(self) -> TransactionLoader:
        return TransactionLoader(self._store, self._offsets)

    def _load(self, now: Now) -> None:
        if now.mono_ms >= self._reread_ms:
            super()._load(now)

    def _may_be_over(self, unread_ops: list[int], now: Now) -> bool:
        """Whether damaged op records, which wait for their repair, may name transactions that seem open.

        Asked again, a producer would commit such a message a second time. After `DOUBT_MS` that is accepted.
        """
        ops = self._store.queues.get((OP_HALF_TOPIC, 0))
        self._unread_ops = {offset: self._unread_ops.get(offset, -1) for offset in unread_ops}
        waits = False
        for queue_offset, known_ms in self._unread_ops.items():
            since_ms = None if known_ms < 0 else known_ms
            self._unread_ops[queue_offset] = now.mono_ms if since_ms is None else since_ms
            if ops is None or (since_ms is not None and now.mono_ms - since_ms >= DOUBT_MS):
                continue
            log_offset, size, _ = ops.entry(queue_offset)
            fate = self._damaged.fate_of(ops, queue_offset, log_offset, size)
            if fate == WAITS or (
                fate != LOST
                and not self._damaged.is_given_up(ops, queue_offset, log_offset, "a damaged op record", since_ms, now)
            ):
                waits = True
        return waits

    def _adopt_reading(self, reading: TransactionLoader, now: Now) -> None:
        if len(reading.table) and self._may_be_over(reading.unread_ops, now):
            self._reread_ms, self._is_behind = now.mono_ms + REREAD_MS, False
            return
        self._unread_ops.clear()
        self.table = reading.table
        for queue_offset in reading.committed:
            self.table.end(queue_offset)
        self._sends.know_transactions(self, self.table.entries, self._ended)
        self._ops.extend(reading.ops)
        self._next_run_ms = now.mono_ms + self._current.config.transaction_check_interval_ms
        self._progress_due_ms = now.mono_ms + PROGRESS_MS
        if len(self.table) or reading.committed:
            log.info("transactions: %d are open, %d more were committed", len(self.table), len(reading.committed))
        self._committed, self._replaced = list(dict.fromkeys(reading.committed)), reading.replaced
        self.metrics.adopt(self.table.counts)

    # A feature.

    def topic_removed(self, topic: str, now: Now) -> None:
        """See `Feature`."""
        self.metrics.topic_removed(topic, now.wall_ms)

    # A turn.

    def before_commit(self, now: Now) -> None:
        """Append the op records of this turn's ends, behind their messages."""
        if not (self._committed or self._unnoted or self._replaced or self._copies):
            return
        if not (self._current_turn.serving.is_master and self._mastership.is_current()):
            self._committed.clear()  # a failed write left them; the next reading finds them again
            self._replaced.clear()
        ended = self._committed + self._unnoted
        for start in range(0, len(ended), OP_OFFSETS_MAX):
            self._write_op(ended[start : start + OP_OFFSETS_MAX], now, is_copied=False)
        self._unnoted.clear()
        copied = self._replaced + [copy.queue_offset for copy in self._copies]
        for start in range(0, len(copied), OP_OFFSETS_MAX):
            self._write_op(copied[start : start + OP_OFFSETS_MAX], now, is_copied=True)

    def committed(self, now: Now) -> None:
        """Apply the records appended in this turn, which are in the log now."""
        halves = self._puts.take_halves()
        self.metrics.count_ended()
        table = self.table
        if table is None:
            return
        for half in halves:
            table.add(half.queue_offset, HalfEntry(half.log_offset, half.topic, half.size))
        for copy in self._copies:
            queue_offset, log_offset, size = copy.stored
            table.copied(copy.queue_offset, queue_offset, HalfEntry(log_offset, copy.half.topic, size))
            if copy.is_checked:
                self._ask(copy)
        for queue_offset, is_given_up in self._ended.items():
            table.end(queue_offset, is_given_up=is_given_up)
        for topic in self._of_no_topic:
            self.metrics.topic_removed(topic, now.wall_ms)
        if halves or self._ended:
            self.metrics.changed(now.wall_ms)
            self._limit(table)
        if self._written_ops:
            self._take_ops(table)
        self._committed.clear()
        self._replaced.clear()
        self._clear_turn()

    def failed(self) -> None:
        """Forget the records appended in this turn, which are not in the log."""
        self._puts.take_halves()
        self.metrics.forget_ended()
        self._clear_turn()

    def _clear_turn(self) -> None:
        self._copies.clear()
        self._ended.clear()
        self._of_no_topic.clear()
        self._unnoted.clear()
        self._written_ops.clear()

    def _limit(self, table: OpenTransactions) -> None:
        limit = self._current.config.transactions_max
        is_full = len(table) >= limit
        why = f"{limit} transactions are open, transactionsMax allows no more"
        self._puts.refuse_halves(why if is_full else None)

    # Ends.

    def is_over(self, queue_offset: int) -> bool:
        """Whether a transaction was ended before, in this turn too."""
        assert self.table is not None, "asked when the table is loaded"
        if self.table.is_over(queue_offset):
            return True
        return queue_offset in self._ended or self.current(queue_offset) in self._ended

    def current(self, queue_offset: int) -> int | None:
        """Return the queue offset of the newest copy of a transaction that can be ended; None if it cannot."""
        assert self.table is not None, "asked when the table is loaded"
        given_up = self.table.given_up(queue_offset)
        return self.table.current(queue_offset) if given_up is None else given_up

    def resumed(self, half: HalfMessage) -> None:
        """Forget that a transaction was given up, whose half message is appended again: it ends as that one."""
        if self.table is not None and half.first_offset is not None:
            self.table.forget_given_up(half.first_offset)

    def is_open(self, queue_offset: int) -> bool:
        """Whether a transaction is open."""
        return self.table is not None and self.table.current(queue_offset) is not None

    def note_end(self, queue_offset: int, *, is_given_up: bool = False) -> None:
        """Note the end of a transaction, whose message is appended already; its op record follows in this turn."""
        self._ended[queue_offset] = is_given_up
        self._unnoted.append(queue_offset)

    def count_end(self, topic: str, born_ms: int, wall_ms: int, *, is_commit: bool) -> None:
        """Count an end by a producer in the metrics of the message's topic, unless that was deleted."""
        if self._topics.get(topic) is None:
            self._of_no_topic.add(topic)
        elif is_commit:
            self.metrics.note_commit(topic, born_ms, wall_ms)
        else:
            self.metrics.note_rollback(topic)

    def may_end(self) -> bool:
        """Whether the table holds, and this broker ends transactions now."""
        return bool(self.table) and self._current_turn.serving.is_master and self._mastership.is_current()

    def ended_by_engine(self, ends: list[EndedHalf], wall_ms: int) -> None:
        """Take the ends of transactions whose messages the engine has appended; `_ended` has them."""
        for queue_offset, topic, born_ms, is_commit in ends:
            self._unnoted.append(queue_offset)
            self.count_end(topic, born_ms, wall_ms, is_commit=is_commit)

    def commit(self, half: HalfMessage, current: int, now: Now) -> AppendMessageResult:
        """Append the message of a half message to its topic; it names the newest copy, at queue offset `current`.

        Raises:
            RecordTooLarge: it does not fit into a record.
        """
        assert self.table is not None, "asked when the table is loaded"
        message, newest = half.message, self.table.entries.get(current)
        change = {DELAY: message.properties[DELAY]} if DELAY in message.properties else {}
        topic = self._puts.later_topic(half.topic, "transactions", now)
        target, target_id = self._puts.redirect_delayed(topic, half.queue_id, change)
        return self._puts.put_again(
            self._topics.queue(target, target_id),
            half.data,
            now,
            sys_flag=int(message.sys_flag & ~TRANSACTION_MASK | SysFlag.TRANSACTION_COMMIT),
            change=change,
            drop=() if target is topic else TIMER_NAMES,
            prepared_offset=newest.log_offset if newest is not None else message.log_offset,
        )

    def _topic(self, name: str, now: Now) -> Topic:
        """Return one of the broker's own topics, created if it does not exist; without room it is not entered."""
        return self._topics.create_internal(name, 1, now.wall_ms) or Topic(internal_topic(name, 1))

    def _write_op(self, offsets: list[int], now: Now, *, is_copied: bool) -> None:
        queue = self._topics.queue(self._topic(OP_HALF_TOPIC, now), 0)
        properties = op_properties(self._progress(queue.next_offset), is_copied=is_copied)
        stored = self._puts.put_internal(queue, op_body(offsets), properties, now)
        self._written_ops.append(Progress(max(offsets), stored.queue_offset))

    def _progress(self, next_op: int) -> Progress:
        """Return the queue offsets from which on a reader needs the queues, with this turn's records so far."""
        assert self.table is not None, "only a master with a table writes op records"
        copied = {copy.queue_offset for copy in self._copies}
        left = (
            queue_offset
            for queue_offset in self.table.entries
            if queue_offset not in self._ended and queue_offset not in copied
        )
        half = next(left, self._halves_end())
        ops = (progress.op for progress in chain(self._ops, self._written_ops) if progress.half >= half)
        return Progress(half, next(ops, next_op))

    def _halves_end(self) -> int:
        halves = self._store.queues.get((HALF_TOPIC, 0))
        return halves.max_offset if halves is not None else 0

    def _take_ops(self, table: OpenTransactions) -> None:
        """Keep the op records of this turn, and drop those that no reader needs any more."""
        ops = self._ops
        ops.extend(self._written_ops)
        half = table.first(self._halves_end())
        while ops and ops[0].half < half:
            ops.popleft()
        if len(ops) > OPS_MAX:
            self._join_ops()

    def _join_ops(self) -> None:
        pairs = list(self._ops)
        if len(pairs) % 2:
            pairs.append(pairs[-1])
        self._ops = deque(
            Progress(max(first.half, second.half), first.op)
            for first, second in zip(pairs[::2], pairs[1::2], strict=True)
        )

    # Checks.

    def _check(self, now: Now) -> None:
        assert self.table is not None, "checked when the table is loaded"
        if not self._due:
            if now.mono_ms < self._next_run_ms:
                return
            self._next_run_ms = now.mono_ms + self._current.config.transaction_check_interval_ms
            self._due.extend(self.table.entries)
            self._absent.clear()
        halves = self._store.queues.get((HALF_TOPIC, 0))
        for _ in range(min(BATCH_MESSAGES, len(self._due))):
            queue_offset = self._due.popleft()
            if halves is None or queue_offset not in self.table.entries or queue_offset in self._ended:
                continue
            if queue_offset < halves.min_offset:
                topic = self.table.entries[queue_offset].topic
                log.warning("transactions: half message %d of topic=%s was deleted with its log", queue_offset, topic)
                self.note_end(queue_offset)
                continue
            try:
                half = read_half(self._store, halves, queue_offset)
            except (ProtocolError, StoreError) as error:
                log.error("transactions: half message %d cannot be checked: %s", queue_offset, error)
                continue
            try:
                if half is not None and not self._check_one(queue_offset, half, now):
                    self._due.clear()
                    break
            except RecordTooLarge as error:  # of another broker, which left no room for what checks add
                log.error("transactions: half message %d cannot be checked: %s", queue_offset, error)
        self._is_behind = bool(self._due)

    def _check_one(self, queue_offset: int, half: HalfMessage, now: Now) -> bool:
        """Check a half message if that is due; return False if no later half message is due either."""
        config, message = self._current.config, half.message
        age_ms, timeout_ms = now.wall_ms - message.born_ms, config.transaction_timeout_ms
        if half.check_times >= config.transaction_checks_max or age_ms > config.reserved_hours * HOUR_MS:
            self._give_up(queue_offset, half, now)
            return True
        if 0 <= now.wall_ms - message.store_ms < timeout_ms and not half.check_times and half.immunity_ms is None:
            return False
        if 0 <= age_ms <= (timeout_ms if half.immunity_ms is None else half.immunity_ms):
            if now.wall_ms - message.store_ms > COPY_AFTER_MS:
                self._copy(queue_offset, half, now, is_checked=False)
            return True
        self._copy(queue_offset, half, now, is_checked=True)
        return True

    def _copy(self, queue_offset: int, half: HalfMessage, now: Now, *, is_checked: bool) -> None:
        times = str(half.check_times + is_checked)
        first = half.message.properties.get(FIRST_OFFSET, str(queue_offset))
        stored = self.put_half(half, now, change={CHECK_TIMES: times, FIRST_OFFSET: first})
        half.message.properties.update({CHECK_TIMES: times, FIRST_OFFSET: first})
        self._copies.append(_Copy(queue_offset, stored, half, is_checked))

    def put_half(
        self, half: HalfMessage, now: Now, *, change: dict[str, str], drop: Iterable[str] = ()
    ) -> AppendMessageResult:
        """Append a half message again, with other properties."""
        queue = self._topics.queue(self._topic(HALF_TOPIC, now), 0)
        return self._puts.put_again(queue, half.data, now, sys_flag=half.message.sys_flag, change=change, drop=drop)

    def _give_up(self, queue_offset: int, half: HalfMessage, now: Now) -> None:
        queue = self._topics.queue(self._topic(CHECK_MAX_TIME_TOPIC, now), 0)
        self._puts.put_again(queue, half.data, now, sys_flag=half.message.sys_flag)
        self.note_end(queue_offset, is_given_up=True)
        self.given_up += 1
        log.warning(
            "transactions: half message %d of group=%.255s topic=%s is given up after %d checks; it is in %s",
            queue_offset,
            half.group,
            half.topic,
            half.check_times,
            CHECK_MAX_TIME_TOPIC,
        )

    def _ask(self, copy: _Copy) -> None:
        """Ask a producer of the group for the outcome."""
        half, stored = copy.half, copy.stored
        member = self._producer(half.group)
        if member is None:
            if half.group not in self._absent:
                self._absent.add(half.group)
                log.warning("transactions: no producer of group=%.255s is connected, to be asked", half.group)
            return
        message, key = half.message, half.unique_key
        host = half.store_host
        fields = {
            "tranStateTableOffset": str(stored.queue_offset),
            "commitLogOffset": str(stored.log_offset),
            "msgId": key,
            "transactionId": key,
            "offsetMsgId": message_id(host, stored.log_offset),
            "topic": HALF_TOPIC,
            "bname": self._current.config.broker_name,
        }
        record = encode_record(
            topic=half.topic.encode(),
            queue_id=half.queue_id,
            queue_offset=stored.queue_offset,
            log_offset=stored.log_offset,
            body=message.body,
            properties=encode_properties(half.properties).encode(),
            flag=message.flag,
            sys_flag=message.sys_flag & ~_V6_MASK,
            born_ms=message.born_ms,
            born_host=half.born_host,
            store_ms=message.store_ms,
            store_host=host,
            reconsume_times=message.reconsume_times,
        )
        notify(member.link, RequestCode.CHECK_TRANSACTION_STATE, fields, self._current_turn.out, record)
        self.checks += 1

    def _producer(self, group: str) -> Member | None:
        """Return a connected producer of a group; the group's producers take turns."""
        members = list(self._clients.producers.get(group, {}).values())
        if not members:
            self._asked.pop(group, None)
            return None
        turn = self._asked[group] = (self._asked.get(group, -1) + 1) % len(members)
        turns = members[turn:] + members[:turn]
        return next((member for member in turns if self._outbox.backlog(member.link) <= BACKLOG_BYTES_MAX), turns[0])

    # Progress.

    def needs_log_from(self) -> dict[str, int]:
        """See `Feature`."""
        offset = self.keeps_log_from()
        return {} if offset is None else {"open transactions": offset}

    def keeps_log_from(self) -> int | None:
        """Return the log offset of the oldest open half message, which retention must keep; None if none is open."""
        if not self.table:
            return None
        return next(iter(self.table.entries.values())).log_offset

    def _save_progress(self, now: Now) -> None:
        """Update the offset table; it never counts an end that is not on the device."""
        progress = self._durable.take_flushed()
        if progress is not None:
            self._set_offsets(progress)
        if now.mono_ms >= self._progress_due_ms and not self._durable.waiting and (HALF_TOPIC, 0) in self._store.queues:
            self._progress_due_ms = now.mono_ms + PROGRESS_MS
            self._durable.note(self._progress_now())

    def save_tables(self) -> None:
        """Update the offset table, by which a Java broker goes on: it would check again what has ended since; blocking.

        Raises:
            DiskFailed: the log could not be synced.
        """
        self.metrics.save()
        if self.table is None or not self._mastership.is_current() or (HALF_TOPIC, 0) not in self._store.queues:
            return
        self._store.flush()
        if self._store.log.flushed_offset >= self._store.log.written_end:
            self._set_offsets(self._progress_now())

    def _progress_now(self) -> Progress:
        ops = self._store.queues.get((OP_HALF_TOPIC, 0))
        return self._progress(ops.max_offset if ops is not None else 0)

    def _set_offsets(self, progress: Progress) -> None:
        for topic, offset in ((HALF_TOPIC, progress.half), (OP_HALF_TOPIC, progress.op)):
            if self._offsets.get(topic, GROUP, 0) != offset:
                self._offsets.commit(topic, GROUP, 0, offset)
