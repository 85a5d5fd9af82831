"""Pull requests: checked, then answered with messages, held until some arrive, or kept until there is room.

The body of an answer is made of slices of the log: messages are neither decoded nor copied one by one.

Source: docs/reference/requests.md, "PULL_MESSAGE", docs/internals/storage.md, "read rules"; RocketMQ
PullMessageProcessor, DefaultMessageStore.getMessage.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from tandemq.boundary import Buffer, LinkKind, Now, Turn
from tandemq.broker.features.pulls.checks import SUBSCRIPTION, PullChecks
from tandemq.broker.features.pulls.device_reads import DeviceReads
from tandemq.broker.features.pulls.engine_pulls import BULK_BYTES_MAX, BULK_MESSAGES_MAX, EnginePulls
from tandemq.broker.features.pulls.hold_service import HeldPulls
from tandemq.broker.features.pulls.message_reader import MessageReader
from tandemq.broker.features.pulls.pull_request import PullRequest
from tandemq.broker.features.pulls.response import response_head
from tandemq.broker.features.pulls.slave_reads import MASTER_ID, SlaveReads
from tandemq.broker.features.pulls.unseen import UnseenQueues
from tandemq.broker.filter.selector import MessageSelector
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pull_counters import PullCounters
from tandemq.broker.kernel.pulls import (
    ENGINE_PULLS,
    LINK_BYTES_MAX,
    AnswerView,
    Messages,
    PullAnswer,
    PullRefused,
    Pulls,
    Resume,
)
from tandemq.broker.kernel.quotas import Quotas
from tandemq.broker.kernel.serving import Serving
from tandemq.broker.kernel.verification import Verification
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import PullFields, decode_pull_frame, read_fields
from tandemq.config.settings import BrokerConfig
from tandemq.engine import Budget, SigningUser
from tandemq.errors import OffsetGone, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.unsupported import unsupported_remark
from tandemq.not_cached import NotCached
from tandemq.refusals import Refusals
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.telemetry.families import Source

log = logging.getLogger(__name__)
PULLS = (*ENGINE_PULLS, RequestCode.TANDEM_REPLICA_PULL)
# Bits of a pull's sysFlag.
COMMIT_OFFSET = 1
SUSPEND = 2
SUSPEND_MS_MAX = 120_000
TURN_BYTES_MAX = 16 << 20
"""Memory budget for answers within one turn; pulls beyond it wait for the next turn."""
EVALUATION_BYTES = 4
"""Bytes of that budget for each unit of `evaluation_cost`."""
WAITING_PER_LINK_MAX = 4096
WAITING_MAX = 131_072
"""Maximum number of pulls that wait for room, over all connections."""
RELEASED_PER_TURN_MAX = 64
"""Maximum number of held pulls answered within one turn, so that a queue with many of them delays nothing else."""
KEPT_MEMORY_PART = 64
"""Blocks of the log that are cached while many consumers catch up take one part in this many of the memory."""
_TOO_MANY = "too many pulls wait on this connection, or in all"
_NO_GROUP = SubscriptionGroupConfig("")
_FOUND, _NO_NEW, _AGAIN, _MOVED, _FAILED = (
    int(ResponseCode.SUCCESS), int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.PULL_OFFSET_MOVED), int(ResponseCode.SYSTEM_ERROR),
)  # fmt: skip


class _Range(NamedTuple):
    """The messages of a queue that a pull wants."""

    start: int
    """Queue offset."""
    most: int
    limit: int
    """Log offset from which on messages may not be shown yet."""
    selector: MessageSelector
    bytes_max: int


class PullPath(Feature, Pulls):
    """All pulls of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without pulls."""
        self._turn = kernel.turn
        self._store = kernel.store
        self.checks = PullChecks(kernel)
        self._static: Container[str] = kernel.topics.mappings.table
        """Static topics, whose pulls are taken by `static_topics`."""
        self._offsets = kernel.offsets
        self._slave_reads = SlaveReads(kernel)
        self._outbox = kernel.outbox
        self._reader = MessageReader(kernel.store.log, kernel.damages)
        kernel.store.log.reader.limit_memory(kernel.machine.memory_bytes // KEPT_MEMORY_PART)
        self._reads = DeviceReads(kernel)
        self._links = kernel.links
        self._failed = Refusals()
        """Reads that failed, by topic."""
        self._verification = kernel.features.find(Verification)
        self._quotas = kernel.features.find(Quotas)
        self._now_ms = 0
        self._spent = 0
        """Bytes of answers built in this turn."""
        self._sent: dict[int, int] = {}
        """The same by connection."""
        self._waiting: dict[int, deque[PullRequest]] = {}
        """Pulls that wait for room, by connection."""
        self._waiting_count = 0
        self._woken: dict[ConsumeQueue, tuple[int, bool]] = {}
        """Queues whose held pulls are to be tried again: how many pulls, and whether they are answered in any case."""
        self._releases_left = RELEASED_PER_TURN_MAX
        self._shared: dict[_Range, Messages] | None = None
        """Messages read for woken pulls of one queue, shared by pulls at the same offset; None at other times."""
        self.counters = PullCounters()
        self.engine_pulls = EnginePulls(kernel, self.counters)
        self.adopt_config(kernel.current.config)
        self.held = HeldPulls()
        self._unseen = UnseenQueues()
        self._log_end = kernel.store.log.written_end
        """End of the log when messages were shown last."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self._config = config
        self._slave_reads.adopt_config(config)
        self.checks.adopt_config(config)
        self.engine_pulls.adopt_config(config)

    def requests(self) -> dict[RequestCode, Request]:
        """See `Feature`."""
        return dict.fromkeys(PULLS, Request(self._on_pull))

    def sources(self) -> Sequence[Source]:
        """See `Feature`."""
        return (self._reads.collect,)

    def _on_pull(self, link: Link, command: Command, now: Now) -> Command | None:
        if link.kind is not LinkKind.REMOTING:
            return command.answer(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=unsupported_remark(command.code))
        return self.take(link.number, command, self._turn.out, now)

    def check_readable(self) -> None:
        """See `Pulls`."""
        self.checks.check_readable()

    @property
    def held_count(self) -> int:
        """See `Pulls`."""
        return self.held.size

    # Room.

    def begin_turn(self, turn: Turn, now: Now) -> None:
        """Renew the budgets of a turn, and answer the pulls that waited for room first."""
        self._spent, self._now_ms = 0, now.mono_ms
        self._releases_left = RELEASED_PER_TURN_MAX
        self._sent.clear()
        self.held.begin_turn()
        if self._turn.serving.read is not None:
            self._refuse_held(turn)
        for link in list(self._waiting):
            if self._spent >= TURN_BYTES_MAX:
                break
            pulls = self._waiting.pop(link)
            while pulls and self.has_room(link):
                pull = pulls.popleft()
                pull.is_waiting = False
                self._waiting_count -= 1
                self._try_again(pull, turn)
            if pulls:
                self._waiting[link] = pulls

    def has_room(self, link: int) -> bool:
        """See `Pulls`."""
        return self._room(link) > 0

    def _room(self, link: int) -> int:
        """Return how many bytes of messages may be sent on a connection in this turn."""
        unsent = self._sent.get(link, 0) + self._outbox.backlog(link)
        return min(TURN_BYTES_MAX - self._spent, LINK_BYTES_MAX - unsent)

    def will_have_room(self, link: int) -> bool:
        """See `Pulls`."""
        return self._outbox.backlog(link) < LINK_BYTES_MAX

    def _wait(self, pull: PullRequest, turn: Turn, end: int) -> None:
        """Keep a pull until there is room; with too many waiting, tell the client to pull again."""
        pulls = self._waiting.setdefault(pull.link, deque())
        if len(pulls) >= WAITING_PER_LINK_MAX or self._waiting_count >= WAITING_MAX:
            self._send(pull, turn, _AGAIN, _TOO_MANY, pull.fields.queue_offset, end)
            return
        pull.is_waiting = True
        pulls.append(pull)
        self._waiting_count += 1

    def deadline_ms(self) -> int | None:
        """Return when a held or waiting pull is to be answered, monotonic ms."""
        times = self.held.next_ms(), self.waiting_ms(), self._reads.deadline_ms()
        return min([time_ms for time_ms in times if time_ms is not None], default=None)

    def waiting_ms(self) -> int | None:
        """Return 0 if waiting pulls can be answered now; None if a turn is not needed before some connection drains."""
        is_refused = self._turn.serving.read is not None
        if is_refused and self.held.size:
            return 0
        if (self._woken and not is_refused) or not self.held.is_tidy:
            return 0
        waiting = self._waiting
        return 0 if waiting and any(map(self.will_have_room, waiting)) else None

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """Drop the pulls of a connection that closed."""
        self.held.drop_link(link)
        self._reads.drop_link(link)
        waiting = self._waiting.pop(link, ())
        self._waiting_count -= len(waiting)
        for pull in waiting:
            pull.is_answered = True

    def rights_changed(self, link: int, _turn: Turn, now: Now) -> None:
        """See `Feature`."""
        self.held.expire(link, now.mono_ms)

    # Requests.

    def take_ordinary(
        self, link: Link, data: bytes, position: int, turn: Turn, now: Now, sender: SigningUser | None = None
    ) -> int:
        """Answer pulls from a position on that the engine can answer; return the end of the last one.

        `sender`: the user that has to have signed them; None: no user is needed.
        """
        room, number = self._room(link.number), link.number
        if room <= 0 or self._quotas.limits_groups or link.kind is not LinkKind.REMOTING:
            return position
        engine = self.engine_pulls.engine
        after = self.engine_pulls.take(data, position, room, self._turn.serving, sender, now.mono_ms)
        if after == position:
            return position
        if engine.answers:
            self._note_bytes(number, self.engine_pulls.sent_bytes)
            turn.send(number, *engine.answers)
        for pull in self.engine_pulls.waiting(number):
            try:
                self._hold(pull, now)
            except PullRefused as refused:
                turn.send(number, encode_command(_refusal(pull.opaque, refused, binary=pull.binary)))
        return after

    def _note_bytes(self, link: int, size: int) -> None:
        """Count messages sent on a connection against the budgets of the turn."""
        self._spent += size
        self._sent[link] = self._sent.get(link, 0) + size

    def take_frame(self, link: int, header: bytes, turn: Turn, now: Now) -> bool:
        """Answer or hold a pull from its JSON header; False if it must go through `take`."""
        try:
            frame = decode_pull_frame(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        if frame.code not in ENGINE_PULLS or frame.flag & FLAG_ONEWAY:
            return False
        if frame.extFields.topic in self._static:
            return False
        try:
            self._take(link, frame.opaque, frame.extFields, turn, now, binary=False)
        except PullRefused as refused:
            turn.send(link, encode_command(_refusal(frame.opaque, refused)))
        return True

    def take(self, link: int, command: Command, turn: Turn, now: Now, view: AnswerView | None = None) -> Command | None:
        """Answer or hold any pull; returns a response only to refuse it. `view`: how the answer is shown."""
        fields = read_fields(PullFields, command.fields)
        try:
            if command.code == RequestCode.TANDEM_REPLICA_PULL:
                self._take_replica(link, command.opaque, fields, turn, binary=command.binary)
            else:
                self._take(link, command.opaque, fields, turn, now, binary=command.binary, view=view)
        except PullRefused as refused:
            return command.answer(refused.code, remark=refused.remark, fields=refused.fields)
        return None

    def _take(
        self, link: int, opaque: int, fields: PullFields, turn: Turn, now: Now, *, binary: bool,
        view: AnswerView | None = None,
    ) -> None:  # fmt: skip
        serving = self._turn.serving
        if serving.read is not None and view is not None:
            raise PullRefused(ResponseCode.NO_PERMISSION, serving.read)
        if serving.read is not None:
            self._take_old(link, opaque, fields, turn, now, serving.read, binary=binary)
            return
        expression, kind = fields.subscription, fields.expression_type
        pull = self._checked(link, opaque, fields, now, binary=binary)
        pull.view = view
        place = (fields.topic, fields.consumer_group, fields.queue_id)
        moved = self._offsets.pending.note_pull(*place, fields.queue_offset, now.mono_ms)
        if moved is not None:
            self._move(pull, moved, turn)
            return
        if fields.sys_flag & COMMIT_OFFSET and serving.takes_pulled_commits and self._takes_commit(fields):
            self._offsets.commit_of_member(*place, fields.commit_offset, now.mono_ms)
        if not self.answer(pull, turn, is_last=not fields.sys_flag & SUSPEND):
            self._hold(pull, now)
        if view is None:
            self.engine_pulls.add(pull, expression, kind)

    def _checked(self, link: int, opaque: int, fields: PullFields, now: Now, *, binary: bool) -> PullRequest:
        checks = self.checks
        checks.check_readable()
        group = checks.group(fields.consumer_group, now.wall_ms)
        topic = checks.pulled_topic(fields)
        checks.check_allowed(fields.consumer_group, fields.topic)
        selector = checks.selector(fields, group)
        return PullRequest(link, opaque, fields, selector, checks.pulled_queue(topic, fields), group, binary=binary)

    def _take_old(
        self, link: int, opaque: int, fields: PullFields, turn: Turn, now: Now, refusal: str, *, binary: bool
    ) -> None:
        """Answer a pull of old messages on a slave that does not serve reads; send others back, or refuse them."""
        if self._slave_reads.helps:
            pull = self._checked(link, opaque, fields, now, binary=binary)
            pull.is_replica = pull.is_helped = True
            try:
                end = self.visible_end(pull.queue, self._limit(pull))
                if fields.queue_offset < end and self._slave_reads.may_answer(pull):
                    self._answer_found(pull, turn, end, is_last=True)
                    return
            except StoreError as error:
                log.error("pull: topic=%s queue=%d cannot be read: %s", fields.topic, fields.queue_id, error)
        if self._slave_reads.sends_back(link, fields.consumer_group, fields.topic, fields.queue_id, now):
            raise PullRefused(ResponseCode.PULL_RETRY_IMMEDIATELY, refusal, fields=self._sent_back(fields))
        raise PullRefused(ResponseCode.NO_PERMISSION, refusal)

    def _sent_back(self, fields: PullFields) -> dict[str, str]:
        """Return the fields of an answer that moves nothing and suggests the master."""
        queue = self._store.queues.get((fields.topic, fields.queue_id))
        start, end = (0, 0) if queue is None else (queue.min_offset, queue.max_offset)
        return {
            "suggestWhichBrokerId": str(MASTER_ID), "nextBeginOffset": str(fields.queue_offset),
            "minOffset": str(start), "maxOffset": str(end),
        }  # fmt: skip

    def _hold(self, pull: PullRequest, now: Now) -> None:
        fields, queue = pull.fields, pull.queue
        wait_ms = fields.suspend_timeout_millis if self._config.long_polling else self._config.short_polling_ms
        budget = self._quotas.group(fields.consumer_group) if self._quotas.limits_groups else None
        if budget is not None and (slowed_ms := budget.wait_ms(now.mono_ms)):
            wait_ms = min(wait_ms, slowed_ms)
            self._quotas.slowed(budget)
        if not self.held.hold(queue, pull, now.mono_ms + max(0, min(wait_ms, SUSPEND_MS_MAX))):
            raise PullRefused(
                ResponseCode.SYSTEM_BUSY, "too many pulls are held on this connection, or in all; pull again later"
            )
        if fields.queue_offset < queue.max_offset and self._turn.serving.visible_end < self._store.log.written_end:
            self._await_visible(queue)

    def _takes_commit(self, fields: PullFields) -> bool:
        return fields.commit_offset >= 0 and self._offsets.has_room(
            fields.topic, fields.consumer_group, fields.queue_id
        )

    def move_held(self, link: int, offset_for: Callable[[PullFields], int | None], turn: Turn) -> None:
        """See `Pulls`."""
        for pull in self.held.of_link(link):
            offset = offset_for(pull.fields)
            if offset is not None:
                self.held.release(pull)
                self._move(pull, offset, turn)

    def _move(self, pull: PullRequest, offset: int, turn: Turn) -> None:
        """Answer a pull with the offset that an operator has set."""
        self._send(pull, turn, _MOVED, "OFFSET_RESET", offset, pull.queue.max_offset)

    def _take_replica(self, link: int, opaque: int, fields: PullFields, turn: Turn, *, binary: bool) -> None:
        """Answer a replica read: it belongs to no group, commits nothing and is never held."""
        checks = self.checks
        checks.check_readable()
        topic = checks.pulled_topic(fields)
        fields.sys_flag = SUBSCRIPTION
        selector = checks.selector(fields, _NO_GROUP)
        queue = checks.pulled_queue(topic, fields)
        pull = PullRequest(link, opaque, fields, selector, queue, _NO_GROUP, binary=binary, is_replica=True)
        self.answer(pull, turn, is_last=True)

    # Answers.

    def answer(self, pull: PullRequest, turn: Turn, *, is_last: bool) -> bool:
        """Answer a pull; returns False if there is nothing for it yet and it should be held.

        `is_last`: answer in any case, with "no new message" if need be.
        """
        queue = pull.queue
        offset = pull.fields.queue_offset
        start = queue.min_offset
        try:
            end = self._end_for(pull, turn)
        except StoreError as error:
            self._cannot_read(pull, turn, error)
            return True
        if end is None:
            return True
        if (offset == end and end > 0) or (end == 0 and offset == 0):
            if not is_last:
                return False
            status, code, next_offset = "OFFSET_OVERFLOW_ONE" if end else "NO_MESSAGE_IN_QUEUE", _NO_NEW, offset
        elif start <= offset < end:
            return self._answer_found(pull, turn, end, is_last=is_last)
        elif end == 0:
            status, code, next_offset = "NO_MESSAGE_IN_QUEUE", _MOVED, 0
        elif offset < start:
            status, code, next_offset = "OFFSET_TOO_SMALL", _MOVED, start
        else:
            status, code, next_offset = "OFFSET_OVERFLOW_BADLY", _MOVED, end
        is_end_final = self._config.broker_id == 0 and not self._turn.serving.awaits_tail
        if code == _MOVED and offset > end and (not is_end_final or offset <= queue.max_offset):
            if not is_last:
                return False
            code, next_offset = _AGAIN, offset
        self.counters.misses += 1
        self._send(pull, turn, code, status, next_offset, end)
        return True

    def _end_for(self, pull: PullRequest, turn: Turn) -> int | None:
        """Return the visible end of a queue; None if the pull waits for the device, or its client pulls again."""
        try:
            return self.visible_end(pull.queue, self._limit(pull), may_wait=False)
        except NotCached as missing:
            self._read_first(pull, missing, turn, pull.queue.max_offset)
            return None

    def _read_first(self, pull: PullRequest, missing: NotCached, turn: Turn, end: int) -> None:
        """Have what a pull lacks read from the device; if too many requests wait, its client pulls again."""
        if not self._reads.begin(missing, pull.link, partial(self._go_on, pull), self._now_ms):
            self._send(pull, turn, _AGAIN, _TOO_MANY, pull.fields.queue_offset, end)

    def _answer_found(self, pull: PullRequest, turn: Turn, end: int, *, is_last: bool) -> bool:
        if not self.has_room(pull.link):
            self._wait(pull, turn, end)
            return True
        is_of_group = pull.is_helped or not pull.is_replica
        limited = is_of_group and self._quotas.limits_groups
        budget = self._quotas.group(pull.fields.consumer_group) if limited else None
        if budget is not None and budget.wait_ms(self._now_ms):
            return self._delay(pull, budget, turn, end, is_last=is_last)
        try:
            found = self._read(pull, turn, end)
            if found is None:
                return True
            buffers, count, size, next_offset, mismatch, waits_at, cost = found
        except OffsetGone:
            pull.queue.correct_min(self._store.log.start)
            next_offset = max(pull.fields.queue_offset + 1, pull.queue.min_offset)
            self._send(pull, turn, _AGAIN, "MESSAGE_WAS_REMOVING", next_offset, end)
            return True
        except StoreError as error:
            self._cannot_read(pull, turn, error)
            return True
        self._spent += cost * EVALUATION_BYTES
        is_lost = mismatch is not None and not self._verification.suspect_pulled(pull.queue, mismatch)
        next_offset += is_lost
        if not count and (mismatch is not None or waits_at is not None):
            why = mismatch.reason if mismatch is not None else f"the message at {waits_at} waits for its repair"
            self._send(pull, turn, _AGAIN if is_lost else _FAILED, f"damaged: {why}", next_offset, end)
            return True
        if not count:
            pull.scan_offset = next_offset
            if next_offset >= end and not is_last:
                return False
            self.counters.misses += 1
            self._send(pull, turn, _AGAIN, "NO_MATCHED_MESSAGE", next_offset, end)
            return True
        self._note_bytes(pull.link, size)
        fields = pull.fields
        self.counters.note(fields.topic, fields.consumer_group, fields.queue_id, count, size, next_offset)
        self.counters.helped += count if pull.is_helped else 0
        if budget is not None:
            budget.use(count, size)
        self._send(pull, turn, _FOUND, "FOUND", next_offset, end, buffers, size)
        return True

    def _delay(self, pull: PullRequest, budget: Budget, turn: Turn, end: int, *, is_last: bool) -> bool:
        """Hold a pull of a group that exceeds its rate; at the end of its wait the response is to pull again."""
        if not is_last:
            return False
        self._quotas.slowed(budget)
        self._send(pull, turn, _AGAIN, f"{budget.name} exceeds its limit", pull.fields.queue_offset, end)
        return True

    def _read(self, pull: PullRequest, turn: Turn, end: int) -> Messages | None:
        """Read messages for a pull; None if it waits for the device now, or if its client pulls again."""
        wanted = self._wanted(pull)
        shared = self._shared
        if shared is not None and (messages := shared.get(wanted)) is not None:
            return messages
        try:
            messages = self._read_range(pull.queue, wanted, may_wait=False)
        except NotCached as missing:
            if self.must_wait(missing):
                messages = self._read_range(pull.queue, wanted, may_wait=True)
            else:
                self._read_first(pull, missing, turn, end)
                return None
        if shared is not None:
            shared[wanted] = messages
        return messages

    def _go_on(self, pull: PullRequest, error: StoreError | None, turn: Turn, now: Now) -> None:
        """Answer a pull whose messages were read from the device, or could not be."""
        if pull.link not in self._links:
            return
        self.note_time(now)
        if error is not None:
            self._cannot_read(pull, turn, error)
        elif self._turn.serving.read is not None and not pull.is_replica:
            self._send_refusal(pull, self._turn.serving.read, turn)
        else:
            self._try_again(pull, turn)

    def _try_again(self, pull: PullRequest, turn: Turn) -> None:
        """Answer a pull that waited for room or for the device; its topic may have been deleted meanwhile."""
        queue, offset = pull.queue, pull.fields.queue_offset
        if self._store.queues.get((queue.topic, queue.queue_id)) is not queue:
            self._send(pull, turn, _AGAIN, "the queue was deleted", offset, queue.max_offset)
        elif pull.is_helped and not (self._slave_reads.helps and queue.min_offset <= offset < queue.max_offset):
            self._send(pull, turn, _FAILED, "this slave does not have it any more", offset, queue.max_offset)
        else:
            self.answer(pull, turn, is_last=True)

    def _wanted(self, pull: PullRequest) -> _Range:
        fields = pull.fields
        start = max(pull.scan_offset, fields.queue_offset, pull.queue.min_offset)
        messages_max, bytes_max = self._config.transfer_messages_max, self._config.transfer_bytes_max
        if fields.bulk == "true":
            messages_max, bytes_max = max(messages_max, BULK_MESSAGES_MAX), max(bytes_max, BULK_BYTES_MAX)
        most = max(1, min(fields.max_msg_nums, messages_max))
        return _Range(start, most, self._limit(pull), pull.selector, bytes_max)

    def _read_range(self, queue: ConsumeQueue, wanted: _Range, *, may_wait: bool) -> Messages:
        start, most, limit, (codes, sql), bytes_max = wanted
        if sql is None:
            return self._reader.read(
                queue, start, codes, most=most, bytes_max=bytes_max, limit=limit, may_wait=may_wait
            )
        return self._reader.read_matching(
            queue, start, sql, most=most, bytes_max=bytes_max, limit=limit, may_wait=may_wait
        )

    def read(
        self,
        queue: ConsumeQueue,
        offset: int,
        selector: MessageSelector,
        most: int,
        *,
        bytes_max: int = 0,
        may_wait: bool = False,
    ) -> Messages:
        """See `Pulls`."""
        limit = self._turn.serving.visible_end
        wanted = _Range(offset, most, limit, selector, bytes_max or self._config.transfer_bytes_max)
        try:
            messages = self._read_range(queue, wanted, may_wait=may_wait)
        except NotCached as missing:
            if not self.must_wait(missing):
                raise
            messages = self._read_range(queue, wanted, may_wait=True)
        if messages.mismatch is not None and not self._verification.suspect_pulled(queue, messages.mismatch):
            return messages._replace(next_offset=messages.next_offset + 1)
        return messages

    def note_time(self, now: Now) -> None:
        """See `Pulls`."""
        self._now_ms = now.mono_ms

    def must_wait(self, missing: NotCached) -> bool:
        """See `Pulls`."""
        return self._reads.must_wait(missing, self._now_ms)

    def read_later(self, missing: NotCached, link: int, resume: Resume) -> bool:
        """See `Pulls`."""
        return self._reads.begin(missing, link, resume, self._now_ms)

    def note_sent(self, link: int, messages: Messages) -> None:
        """See `Pulls`."""
        self._spent += messages.cost * EVALUATION_BYTES
        self._note_bytes(link, messages.size)

    def _cannot_read(self, pull: PullRequest, turn: Turn, error: StoreError) -> None:
        times = self._failed.note(pull.fields.topic, self._now_ms)
        if times:
            place = pull.fields.topic, pull.fields.queue_id
            log.error("pull: topic=%s queue=%d cannot be read, times=%d: %s", *place, times, error)
        self._send(pull, turn, _FAILED, "the store failed", pull.fields.queue_offset, pull.queue.max_offset)

    def _send(
        self, pull: PullRequest, turn: Turn, code: int, status: str, next_offset: int, end: int,
        buffers: Sequence[Buffer] = (), size: int = 0,
    ) -> None:  # fmt: skip
        """Send an answer. `end`: queue offset behind the last message that may be shown."""
        pull.is_answered = True
        queue = pull.queue
        suggested = self._slave_reads.suggested_id(pull, next_offset)
        if code == _FAILED and pull.is_helped:
            code, suggested = _AGAIN, MASTER_ID  # which may be able to read it
        head = response_head(pull, PullAnswer(code, next_offset, queue.min_offset, end), suggested, status, size)
        turn.send(pull.link, head, *buffers)

    def _limit(self, pull: PullRequest) -> int:
        serving = self._turn.serving
        return min(serving.visible_end, serving.replica_end) if pull.is_replica else serving.visible_end

    def visible_end(self, queue: ConsumeQueue, log_limit: int | None = None, *, may_wait: bool = True) -> int:
        """See `Pulls`."""
        try:
            return self._visible_end(queue, log_limit, may_wait=may_wait)
        except NotCached as missing:
            if not self.must_wait(missing):
                raise
            return self._visible_end(queue, log_limit, may_wait=True)

    def _visible_end(self, queue: ConsumeQueue, log_limit: int | None, *, may_wait: bool) -> int:
        limit = self._turn.serving.visible_end if log_limit is None else log_limit
        start, end = queue.min_offset, queue.max_offset
        if limit >= self._store.log.written_end or start >= end:
            return end

        def log_offset(queue_offset: int) -> int:
            return queue.entry(queue_offset, may_wait=may_wait).log_offset

        if log_offset(end - 1) < limit:
            return end
        return bisect_left(range(end), limit, start, end, key=log_offset)

    def _await_visible(self, queue: ConsumeQueue) -> None:
        """Have held pulls of a queue tried once its first message that may not be shown yet may be.

        Errors of the queue are logged, and sent to the consumer, by its next pull.
        """
        try:
            end = self.visible_end(queue)
            if end < queue.max_offset:
                self._unseen.add(queue, queue.entry(end).log_offset)
        except StoreError:
            self._unseen.add(queue, self._turn.serving.visible_end)

    # Waking.

    def on_serving_change(self, before: Serving, serving: Serving, turn: Turn, _now: Now) -> None:
        """Refuse waiting and held pulls once this broker may not be read any more."""
        if before.read is None and serving.read is not None:
            self._refuse(serving.read, turn)
        if not serving.is_master and (before.is_master or before.epoch != serving.epoch):
            self._unseen.clear()
            self._log_end = 0  # the log may be truncated

    def _refuse(self, why: str, turn: Turn) -> None:
        for link, pulls in list(self._waiting.items()):
            for pull in [pull for pull in pulls if not pull.is_replica]:
                pulls.remove(pull)
                self._waiting_count -= 1
                self._send_refusal(pull, why, turn)
            if not pulls:
                del self._waiting[link]
        self._refuse_held(turn)

    def _refuse_held(self, turn: Turn) -> None:
        """Refuse held pulls, up to RELEASED_PER_TURN_MAX in a turn."""
        for pull in self.held.release_some(self._releases_left):
            self._releases_left -= 1
            self._send_refusal(pull, self._turn.serving.read or "", turn)

    def _send_refusal(self, pull: PullRequest, why: str, turn: Turn) -> None:
        pull.is_answered = True
        answer = Command(ResponseCode.NO_PERMISSION, pull.opaque, FLAG_RESPONSE, why, binary=pull.binary)
        turn.send(pull.link, encode_command(answer))

    def refuse_forbidden(self, queue: ConsumeQueue, turn: Turn) -> None:
        """Refuse the pulls held on a queue that an operator has forbidden since they came."""
        for pull in self.held.first(queue, self.held.count(queue)):
            try:
                self.checks.check_allowed(pull.fields.consumer_group, pull.fields.topic)
            except PullRefused as refused:
                self.held.release(pull)
                self._send_refusal(pull, refused.remark, turn)

    def show(self, woken: list[ConsumeQueue]) -> None:
        """Have the pulls held on queues that got messages tried, as far as the messages may be seen by now."""
        visible_end, start = self._turn.serving.visible_end, self._log_end
        end = self._log_end = self._store.log.written_end
        if not self._unseen and visible_end >= end:
            for queue in woken:
                self.wake(queue)
            return
        self._unseen.stored(start, end, woken)
        for queue in self._unseen.take_shown(visible_end):
            if queue.held is not None:
                self.wake(queue)
                self._await_visible(queue)

    def end_held(self, queue: ConsumeQueue, turn: Turn) -> None:
        """See `Pulls`."""
        self.wake(queue, is_last=True)
        self.answer_woken(turn)

    def wake(self, queue: ConsumeQueue, *, is_last: bool = False) -> None:
        """Have `answer_woken` try the pulls held on a queue that got messages, or that is deleted (`is_last`)."""
        self._woken[queue] = self.held.count(queue), is_last

    def answer_woken(self, turn: Turn) -> None:
        """Answer held pulls of woken queues, up to RELEASED_PER_TURN_MAX in a turn; hold the others again."""
        while self._woken and self._releases_left > 0 and self._turn.serving.read is None:
            queue, (count, is_last) = next(iter(self._woken.items()))
            limit = min(count, self._releases_left)
            self._shared = {}
            for pull in self.held.first(queue, limit):
                if self._answer_by_engine(pull, turn) or self.answer(pull, turn, is_last=is_last):
                    self.held.release(pull)
                else:
                    self.held.hold_again(queue, pull)
            self.engine_pulls.end()
            self._shared = None
            self._releases_left -= limit
            if count > limit:
                self._woken[queue] = count - limit, is_last
            else:
                del self._woken[queue]

    def _answer_by_engine(self, pull: PullRequest, turn: Turn) -> bool:
        """Have the engine answer a held pull; False if it leaves it to `answer`."""
        may_answer = not self._quotas.limits_groups and self._room(pull.link) > 0
        response = self.engine_pulls.respond(pull, self._turn.serving) if may_answer else None
        if response is None:
            self.engine_pulls.end()
            return False
        pull.is_answered = True
        self._note_bytes(pull.link, self.engine_pulls.sent_bytes)
        turn.send(pull.link, response)
        return True

    def run_due(self, turn: Turn, now: Now) -> None:
        """Answer held pulls whose deadline has passed, up to RELEASED_PER_TURN_MAX in a turn."""
        self._reads.run_due(turn, now)
        pulls = self.held.due(now.mono_ms, self._releases_left)
        self._releases_left -= len(pulls)
        for pull in pulls:
            self.answer(pull, turn, is_last=True)


def _refusal(opaque: int, refused: PullRefused, *, binary: bool = False) -> Command:
    return Command(refused.code, opaque, FLAG_RESPONSE, refused.remark, refused.fields, binary=binary)
