"""Giving messages: which entries match, where they lie, what the consumer should do next.

An answer's body is made of slices of the log, not decoded and not copied per message.

Source: docs/reference/requests.md, "PULL_MESSAGE", docs/internals/storage.md, "read rules"; RocketMQ
PullMessageProcessor, DefaultMessageStore.getMessage.
"""

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from tandemq.boundary import Buffer, Now, Outbox, Turn
from tandemq.broker.integrity.damage_table import Damages
from tandemq.broker.pull.hold_service import HeldPulls
from tandemq.broker.pull.message_reader import MessageReader, Messages, Mismatch
from tandemq.broker.pull.subscriptions import TagExpressions
from tandemq.broker.state.clients import Clients
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topics
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.header import encode_header
from tandemq.codec.remoting.requests import PullFields, decode_pull_frame, read_fields
from tandemq.config.settings import BrokerConfig
from tandemq.errors import OffsetGone, ProtocolError, StoreError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, FLAG_RESPONSE, VERSION_SPOKEN, Command
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.topic import RETRY_PREFIX, Permission
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
PULLS = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE, RequestCode.TANDEM_REPLICA_PULL})
COMMIT_OFFSET = 1
SUSPEND = 2
SUBSCRIPTION = 4
TURN_BYTES_MAX = 16 << 20
"""A turn builds no more answers than this; the rest of the pulls wait for the next."""
LINK_BYTES_MAX = 8 << 20
"""A link with so many bytes under way gets no more answers before it has taken them."""
WAITING_PER_LINK_MAX = 4096
WAITING_MAX = 131_072
"""Pulls that wait for room, of all connections."""
RELEASED_PER_TURN_MAX = 64
"""Held pulls that a turn answers: a message for a queue on which many wait delays nobody else for long."""
KEPT_MEMORY_PART = 64
"""Part of the machine's memory that blocks of the log may take while many consumers catch up."""
COUNTED_QUEUES_MAX = 200_000
"""Queues of all pairs of topic and group of which the next offset is kept."""
COUNTS_MAX = 100_000
"""Pairs of topic and group whose pulls are counted; beyond it the oldest is forgotten."""
NO_LIMIT = 1 << 62
_NO_GROUP = SubscriptionGroupConfig("")
_READ = int(Permission.READ)
_HEADER = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"%d","nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}'
    b',"flag":1,"language":"PYTHON","opaque":%d,"remark":"%b","serializeTypeCurrentRPC":"JSON","version":%d}'
)
_FOUND, _NO_NEW, _AGAIN, _MOVED, _FAILED = (
    int(ResponseCode.SUCCESS), int(ResponseCode.PULL_NOT_FOUND), int(ResponseCode.PULL_RETRY_IMMEDIATELY),
    int(ResponseCode.PULL_OFFSET_MOVED), int(ResponseCode.SYSTEM_ERROR),
)  # fmt: skip


class Pull:
    """One pull request, held or not. `codes` None: every tag matches. `scan_offset`: below it nothing matched."""

    __slots__ = (
        "binary",
        "codes",
        "deadline_ms",
        "fields",
        "group",
        "is_answered",
        "is_replica",
        "is_waiting",
        "link",
        "opaque",
        "queue",
        "scan_offset",
    )

    def __init__(
        self, link: int, opaque: int, fields: PullFields, codes: frozenset[int] | None, queue: ConsumeQueue,
        group: SubscriptionGroupConfig, *, binary: bool, is_replica: bool = False,
    ) -> None:  # fmt: skip
        """A pull that has passed all checks."""
        self.link = link
        self.opaque = opaque
        self.fields = fields
        self.codes = codes
        self.queue = queue
        self.group = group
        self.binary = binary
        self.scan_offset = fields.queue_offset
        self.deadline_ms = 0
        """Monotonic; while it is held."""
        self.is_answered = False
        self.is_waiting = False
        """For room in a turn or on its link."""
        self.is_replica = is_replica
        """A replica read: see `PullPath.replica_limit`."""


class PullCounts:
    """Messages of one topic sent to one group since the start."""

    __slots__ = ("answers", "bytes", "messages", "next_offsets")

    def __init__(self) -> None:
        """Nothing was sent."""
        self.messages = 0
        self.bytes = 0
        self.answers = 0
        self.next_offsets: dict[int, int] = {}
        """Queue offset behind the last message sent, by queue id."""


class PullPath:
    """All pulls of one broker."""

    def __init__(
        self, config: BrokerConfig, store: Store, topics: Topics, groups: Groups, clients: Clients,
        offsets: ConsumerOffsets, memory_bytes: int, outbox: Outbox, damages: Damages,
    ) -> None:  # fmt: skip
        """`memory_bytes`: the machine's memory, by which "far behind" is judged; `damages`: of the log, not given."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._memory_bytes = memory_bytes
        self._outbox = outbox
        self._reader = MessageReader(store.log, damages)
        self._expressions = TagExpressions()
        store.log.reader.limit_memory(memory_bytes // KEPT_MEMORY_PART)
        self.suspects: Callable[[ConsumeQueue, Mismatch], bool] | None = None
        """Called with an entry that names no record of its own; whether the message may still be found."""
        self._spent = 0
        self._sent: dict[int, int] = {}
        """Bytes of answers built in this turn: all, and by link."""
        self._waiting: dict[int, deque[Pull]] = {}
        self._waiting_count = 0
        self._woken: dict[ConsumeQueue, tuple[int, bool]] = {}
        """Queues with messages for held pulls: how many of these are to be looked at, and whether for the last time."""
        self._releases_left = RELEASED_PER_TURN_MAX
        self.adopt_config(config)
        self.refusal: str | None = None
        """Why nothing may be read here at present."""
        self.takes_commits = config.broker_id == 0
        """Whether the offsets that come with pulls count."""
        self.sends_to_slaves = True
        """Whether slaveReadEnable is heard: not where one member at a time may be read from."""
        self.log_limit = NO_LIMIT
        """Log offset up to which messages are shown; the rest is not safe from being cut yet."""
        self.replica_limit: Callable[[], int] = lambda: NO_LIMIT
        """The same for replica reads, which every member answers, whoever serves consumers."""
        self.is_tail_awaited = False
        """The log may lack its end, and a slave may give it back: what lies behind its end is not known to be wrong."""
        self.held = HeldPulls()
        self.unseen: dict[ConsumeQueue, None] = {}
        """Queues with held pulls and messages that may not be shown yet."""
        self.count = 0
        """Messages given since the start; `bytes` of their records."""
        self.bytes = 0
        self.finds = 0
        """Answers with messages since the start; `misses` those without."""
        self.misses = 0
        self.counts: dict[tuple[str, str], PullCounts] = {}
        self._counted_queues = 0
        """By topic and group."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """Take the settings, at the start and when they change."""
        self._config = config
        ratio = config.memory_ratio_max - (10 if config.broker_id else 0)
        self._far_bytes = self._memory_bytes * max(ratio, 0) // 100
        self.permission = config.permission

    # Room.

    def begin_turn(self, turn: Turn) -> None:
        """A new turn has room anew: first for the pulls that had to wait."""
        self._spent = 0
        self._releases_left = RELEASED_PER_TURN_MAX
        self._sent.clear()
        self.held.begin_turn()
        if self.refusal is not None:
            self._refuse_held(turn)
        for link in list(self._waiting):
            if self._spent >= TURN_BYTES_MAX:
                break
            pulls = self._waiting.pop(link)
            while pulls and self._has_room(link):
                pull = pulls.popleft()
                pull.is_waiting = False
                self._waiting_count -= 1
                self.answer(pull, turn, is_last=True)
            if pulls:
                self._waiting[link] = pulls

    def _has_room(self, link: int) -> bool:
        under_way = self._sent.get(link, 0) + self._outbox.backlog(link)
        return self._spent < TURN_BYTES_MAX and under_way < LINK_BYTES_MAX

    def _wait(self, pull: Pull, turn: Turn, high: int) -> None:
        """Keep a pull until there is room; a link that asks for far too much is told to ask again."""
        pulls = self._waiting.setdefault(pull.link, deque())
        if len(pulls) >= WAITING_PER_LINK_MAX or self._waiting_count >= WAITING_MAX:
            self._send(pull, turn, _AGAIN, "too many pulls wait on this connection", pull.fields.queue_offset, high)
            return
        pull.is_waiting = True
        pulls.append(pull)
        self._waiting_count += 1

    def waiting_ms(self) -> int | None:
        """When a turn is needed for the pulls that wait: at once if a link of theirs has room, else when one drains."""
        if self._woken or not self.held.is_tidy or (self.refusal is not None and self.held.size):
            return 0
        waiting = self._waiting
        return 0 if waiting and any(self._outbox.backlog(link) < LINK_BYTES_MAX for link in waiting) else None

    def drop_link(self, link: int) -> None:
        """Forget the pulls of a link that closed."""
        self.held.drop_link(link)
        waiting = self._waiting.pop(link, ())
        self._waiting_count -= len(waiting)
        for pull in waiting:
            pull.is_answered = True

    # In.

    def take_frame(self, link: int, header: bytes, turn: Turn, now: Now) -> bool:
        """Answer or hold a pull from its JSON header; False if it must go through `take`."""
        try:
            frame = decode_pull_frame(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        if frame.code not in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE) or frame.flag & FLAG_ONEWAY:
            return False
        refusal = self._take(link, frame.opaque, frame.extFields, turn, now, binary=False)
        if refusal is not None:
            turn.send(link, encode_command(Command(refusal[0], frame.opaque, FLAG_RESPONSE, refusal[1])))
        return True

    def take(self, link: int, command: Command, turn: Turn, now: Now) -> Command | None:
        """Answer or hold any pull; returns an answer only to refuse."""
        fields = read_fields(PullFields, command.fields)
        if command.code == RequestCode.TANDEM_REPLICA_PULL:
            refusal = self._take_replica(link, command.opaque, fields, turn, binary=command.binary)
        else:
            refusal = self._take(link, command.opaque, fields, turn, now, binary=command.binary)
        return None if refusal is None else command.answer(refusal[0], remark=refusal[1])

    def _take(
        self, link: int, opaque: int, fields: PullFields, turn: Turn, now: Now, *, binary: bool
    ) -> tuple[int, str] | None:
        if self.refusal is not None:
            return ResponseCode.NO_PERMISSION, self.refusal
        if not self.permission & _READ:
            return ResponseCode.NO_PERMISSION, f"the broker[{self._config.broker_name}] pulling message is forbidden"
        try:
            group = self._groups.find(fields.consumer_group, now.wall_ms)
        except ProtocolError as error:
            return ResponseCode.SYSTEM_ERROR, str(error)
        if group is None:
            return ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {fields.consumer_group}"
        refusal = self._refusal(fields, group)
        if refusal is not None:
            return refusal
        try:
            codes = self._codes(fields, group)
        except _Unsubscribed as error:
            return error.code, str(error)
        pull = Pull(link, opaque, fields, codes, self._queue(fields), group, binary=binary)
        place = (fields.topic, fields.consumer_group, fields.queue_id)
        moved = self._offsets.pending.note_pull(*place, fields.queue_offset, now.mono_ms)
        if moved is not None:
            self.move(pull, moved, turn)
            return None
        if fields.sys_flag & COMMIT_OFFSET and self.takes_commits and self._takes_commit(fields):
            self._offsets.commit_of_member(*place, fields.commit_offset, now.mono_ms)
        if self.answer(pull, turn, is_last=not fields.sys_flag & SUSPEND):
            return None
        wait_ms = fields.suspend_timeout_millis if self._config.long_polling else self._config.short_polling_ms
        if not self.held.hold(pull.queue, pull, now.mono_ms + max(0, min(wait_ms, 120_000))):
            return ResponseCode.SYSTEM_BUSY, "too many pulls are held on this connection, or in all; pull again later"
        if fields.queue_offset < pull.queue.max_offset and self.log_limit < self._store.log.written_end:
            self.unseen[pull.queue] = None
        return None

    def _takes_commit(self, fields: PullFields) -> bool:
        return fields.commit_offset >= 0 and self._offsets.has_room(
            fields.topic, fields.consumer_group, fields.queue_id
        )

    def move(self, pull: Pull, offset: int, turn: Turn) -> None:
        """Send a consumer to an offset that an operator has set."""
        self._send(pull, turn, _MOVED, "OFFSET_RESET", offset, pull.queue.max_offset)

    def _take_replica(
        self, link: int, opaque: int, fields: PullFields, turn: Turn, *, binary: bool
    ) -> tuple[int, str] | None:
        """A replica read is of no group, commits nothing and is never held."""
        if not self.permission & _READ:
            return ResponseCode.NO_PERMISSION, f"the broker[{self._config.broker_name}] pulling message is forbidden"
        refusal = self._topic_refusal(fields)
        if refusal is not None:
            return refusal
        fields.sys_flag = SUBSCRIPTION
        try:
            codes = self._codes(fields, _NO_GROUP)
        except _Unsubscribed as error:
            return error.code, str(error)
        pull = Pull(link, opaque, fields, codes, self._queue(fields), _NO_GROUP, binary=binary, is_replica=True)
        self.answer(pull, turn, is_last=True)
        return None

    def _refusal(self, fields: PullFields, group: SubscriptionGroupConfig) -> tuple[int, str] | None:
        if not group.consume_enable:
            return ResponseCode.NO_PERMISSION, f"subscription group no permission, {fields.consumer_group}"
        return self._topic_refusal(fields)

    def _topic_refusal(self, fields: PullFields) -> tuple[int, str] | None:
        topic = self._topics.table.get(fields.topic)
        if topic is None:
            if (fields.topic, fields.queue_id) in self._store.queues:
                return None
            return ResponseCode.TOPIC_NOT_EXIST, f"topic[{fields.topic}] not exist, apply first please!"
        if not topic.config.perm & _READ:
            return ResponseCode.NO_PERMISSION, f"the topic[{fields.topic}] pulling message is forbidden"
        if not 0 <= fields.queue_id < topic.config.read_queue_nums:
            return (
                ResponseCode.SYSTEM_ERROR,
                f"queueId[{fields.queue_id}] is illegal, topic:[{fields.topic}] has {topic.config.read_queue_nums}",
            )
        return None

    def _queue(self, fields: PullFields) -> ConsumeQueue:
        topic = self._topics.table.get(fields.topic)
        if topic is None:
            return self._store.queue(fields.topic, fields.queue_id)
        return topic.queues.get(fields.queue_id) or self._topics.queue(topic, fields.queue_id)

    def _codes(self, fields: PullFields, group: SubscriptionGroupConfig) -> frozenset[int] | None:
        expression, kind = fields.subscription, fields.expression_type
        fields.subscription = fields.expression_type = None  # a held pull keeps neither
        if fields.sys_flag & SUBSCRIPTION:
            if kind is not None and kind != "TAG":
                raise _Unsubscribed(
                    ResponseCode.SYSTEM_ERROR, f"The broker does not support consumer to filter message by {kind[:32]}"
                )
            return self._parse(expression)
        online = self._clients.consumers.get(fields.consumer_group)
        if online is None:
            raise _Unsubscribed(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
        if not group.consume_broadcast_enable and online.message_model == "BROADCASTING":
            raise _Unsubscribed(
                ResponseCode.NO_PERMISSION,
                f"the consumer group[{fields.consumer_group}] can not consume by broadcast way",
            )
        subscription = online.subscriptions.get(fields.topic)
        if subscription is None:
            raise _Unsubscribed(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
        if subscription.sub_version < fields.sub_version:
            raise _Unsubscribed(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
        if fields.topic.startswith(RETRY_PREFIX):
            return None
        return self._parse(subscription.sub_string)

    def _parse(self, expression: str | None) -> frozenset[int] | None:
        try:
            return self._expressions.parse(expression)
        except ValueError as error:
            raise _Unsubscribed(ResponseCode.SUBSCRIPTION_PARSE_FAILED, str(error)) from error

    # Out.

    def answer(self, pull: Pull, turn: Turn, *, is_last: bool) -> bool:
        """Answer a pull if there is something to say; False if it should wait. `is_last`: answer in any case."""
        queue = pull.queue
        offset = pull.fields.queue_offset
        low = queue.min_offset
        try:
            high = self.visible_end(queue, self._limit(pull))
        except StoreError as error:
            self._cannot_read(pull, turn, error)
            return True
        if (offset == high and high > 0) or (high == 0 and offset == 0):
            if not is_last:
                return False
            status, code, following = "OFFSET_OVERFLOW_ONE" if high else "NO_MESSAGE_IN_QUEUE", _NO_NEW, offset
        elif low <= offset < high:
            return self._answer_found(pull, turn, high, is_last=is_last)
        elif high == 0:
            status, code, following = "NO_MESSAGE_IN_QUEUE", _MOVED, 0
        elif offset < low:
            status, code, following = "OFFSET_TOO_SMALL", _MOVED, low
        else:
            status, code, following = "OFFSET_OVERFLOW_BADLY", _MOVED, high
        is_end_final = self._config.broker_id == 0 and not self.is_tail_awaited
        if code == _MOVED and offset > high and (not is_end_final or offset <= queue.max_offset):
            if not is_last:
                return False
            code, following = _AGAIN, offset
        self.misses += 1
        self._send(pull, turn, code, status, following, high)
        return True

    def _answer_found(self, pull: Pull, turn: Turn, high: int, *, is_last: bool) -> bool:
        if not self._has_room(pull.link):
            self._wait(pull, turn, high)
            return True
        try:
            buffers, count, size, following, mismatch, waits_at = self._read(pull)
        except OffsetGone:
            pull.queue.correct_min(self._store.log.start)
            following = max(pull.fields.queue_offset + 1, pull.queue.min_offset)
            self._send(pull, turn, _AGAIN, "MESSAGE_WAS_REMOVING", following, high)
            return True
        except StoreError as error:
            self._cannot_read(pull, turn, error)
            return True
        is_lost = mismatch is not None and self.suspects is not None and not self.suspects(pull.queue, mismatch)
        following += is_lost
        if not count and (mismatch is not None or waits_at is not None):
            why = mismatch.reason if mismatch is not None else f"the message at {waits_at} waits for its repair"
            self._send(pull, turn, _AGAIN if is_lost else _FAILED, f"damaged: {why}", following, high)
            return True
        if not count:
            pull.scan_offset = following
            if following >= high and not is_last:
                return False
            self.misses += 1
            self._send(pull, turn, _AGAIN, "NO_MATCHED_MESSAGE", following, high)
            return True
        self.count += count
        self.bytes += size
        self._spent += size
        self._sent[pull.link] = self._sent.get(pull.link, 0) + size
        self.finds += 1
        key = pull.fields.topic, pull.fields.consumer_group
        counts = self.counts.get(key)
        if counts is None:
            counts = self.counts[key] = PullCounts()
        counts.messages += count
        counts.bytes += size
        counts.answers += 1
        self._counted_queues += pull.fields.queue_id not in counts.next_offsets
        counts.next_offsets[pull.fields.queue_id] = following
        while len(self.counts) > COUNTS_MAX or self._counted_queues > COUNTED_QUEUES_MAX:
            oldest = self.counts.pop(next(iter(self.counts)))
            self._counted_queues -= len(oldest.next_offsets)
        self._send(pull, turn, _FOUND, "FOUND", following, high, buffers, size)
        return True

    def _read(self, pull: Pull) -> Messages:
        fields = pull.fields
        return self._reader.read(
            pull.queue,
            max(pull.scan_offset, fields.queue_offset, pull.queue.min_offset),
            pull.codes,
            most=max(1, min(fields.max_msg_nums, self._config.transfer_messages_max)),
            bytes_max=self._config.transfer_bytes_max,
            limit=self._limit(pull),
        )

    def _cannot_read(self, pull: Pull, turn: Turn, error: StoreError) -> None:
        log.error("pull: topic=%s queue=%d cannot be read: %s", pull.fields.topic, pull.fields.queue_id, error)
        self._send(pull, turn, _FAILED, "the store failed", pull.fields.queue_offset, pull.queue.max_offset)

    def _send(
        self, pull: Pull, turn: Turn, code: int, status: str, following: int, end: int,
        buffers: Sequence[Buffer] = (), size: int = 0,
    ) -> None:  # fmt: skip
        """`end`: queue offset behind the last message that may be shown."""
        pull.is_answered = True
        queue = pull.queue
        suggested = self._suggest(pull, following)
        if pull.binary:
            fields = {
                "suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(following),
                "minOffset": str(queue.min_offset), "maxOffset": str(end),
            }  # fmt: skip
            header = encode_header(Command(code, pull.opaque, FLAG_RESPONSE, status, fields, binary=True))
            form = 1 << 24
        else:
            header = _HEADER % (
                code, suggested, following, queue.min_offset, end, pull.opaque, status.encode(), VERSION_SPOKEN
            )  # fmt: skip
            form = 0
        prefix = (4 + len(header) + size).to_bytes(4) + (form | len(header)).to_bytes(4)
        turn.send(pull.link, prefix + header, *buffers)

    def _suggest(self, pull: Pull, following: int) -> int:
        """Broker id to pull from next: the slave if reading from slaves is on and this consumer is far behind."""
        if not (self._config.slave_read_enable and self.sends_to_slaves):
            return 0
        queue = pull.queue
        if queue.min_offset < following <= queue.max_offset:
            try:
                last_read = queue.entry(following - 1).log_offset
            except StoreError:
                return pull.group.broker_id
            if self._store.log.written_end - last_read > self._far_bytes:
                return pull.group.which_broker_when_consume_slowly
        return pull.group.broker_id

    def _limit(self, pull: Pull) -> int:
        return min(self.log_limit, self.replica_limit()) if pull.is_replica else self.log_limit

    def next_offset(self, topic: str, group: str, queue_id: int) -> int:
        """Queue offset behind the last message sent to a group since the start; 0 if none was."""
        counts = self.counts.get((topic, group))
        return counts.next_offsets.get(queue_id, 0) if counts is not None else 0

    def visible_end(self, queue: ConsumeQueue, log_limit: int | None = None) -> int:
        """Queue offset behind the last message that may be shown; `log_limit`: another one than for consumers.

        Raises:
            StoreError: its entries cannot be read.
        """
        limit = self.log_limit if log_limit is None else log_limit
        low, high = queue.min_offset, queue.max_offset
        if limit >= self._store.log.written_end or low >= high:
            return high
        if queue.entry(high - 1).log_offset < limit:
            return high
        return bisect_left(range(high), limit, low, high, key=lambda at: queue.entry(at).log_offset)

    def shows_all(self, queue: ConsumeQueue) -> bool:
        """Whether all messages of a queue may be shown; False also while its entries cannot be read, which is said to
        whoever pulls there, and logged."""
        try:
            return self.visible_end(queue) >= queue.max_offset
        except StoreError:
            return False

    # Waking.

    def refuse(self, why: str, turn: Turn) -> None:
        """Consumers may read nothing here any more: say so to every pull of theirs that waits."""
        self.refusal = why
        for link, pulls in list(self._waiting.items()):
            for pull in [pull for pull in pulls if not pull.is_replica]:
                pulls.remove(pull)
                self._waiting_count -= 1
                self._send_refusal(pull, why, turn)
            if not pulls:
                del self._waiting[link]
        self._refuse_held(turn)

    def _refuse_held(self, turn: Turn) -> None:
        """Refuse held pulls, so many in a turn."""
        for pull in self.held.any(self._releases_left):
            self._releases_left -= 1
            self._send_refusal(pull, self.refusal or "", turn)

    def _send_refusal(self, pull: Pull, why: str, turn: Turn) -> None:
        pull.is_answered = True
        answer = Command(ResponseCode.NO_PERMISSION, pull.opaque, FLAG_RESPONSE, why, binary=pull.binary)
        turn.send(pull.link, encode_command(answer))

    def wake(self, queue: ConsumeQueue, *, is_last: bool = False) -> None:
        """A queue got messages, or goes away (`is_last`): `answer_woken` looks at the pulls held on it."""
        self._woken[queue] = self.held.count(queue), is_last

    def answer_woken(self, turn: Turn) -> None:
        """Answer held pulls that got messages, so many in a turn; hold the others again."""
        while self._woken and self._releases_left > 0 and self.refusal is None:
            queue, (count, is_last) = next(iter(self._woken.items()))
            most = min(count, self._releases_left)
            for pull in self.held.first(queue, most):
                if self.answer(pull, turn, is_last=is_last):
                    self.held.release(pull)
                else:
                    self.held.hold_again(queue, pull)
            self._releases_left -= most
            if count > most:
                self._woken[queue] = count - most, is_last
            else:
                del self._woken[queue]

    def answer_due(self, turn: Turn, now: Now) -> None:
        """Answer pulls whose time is up, so many in a turn."""
        pulls = self.held.due(now.mono_ms, self._releases_left)
        self._releases_left -= len(pulls)
        for pull in pulls:
            self.answer(pull, turn, is_last=True)


class _Unsubscribed(Exception):
    def __init__(self, code: ResponseCode, remark: str) -> None:
        super().__init__(remark)
        self.code = code
