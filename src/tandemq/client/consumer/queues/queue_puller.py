"""One queue's pulling: a long poll at a time, on the member of the broker group that is best to read from.

    pull ─► messages, or none: again at the offset the answer names
         ─► offset moved: told by the master, obeyed; told by a slave, which may lag, asked again
         ─► NO_PERMISSION: this member may not serve now, if a check says so too; the next is asked at once
         ─► refused otherwise: leave this member alone for a while; another one, if there is one, is asked at once
         ─► no answer: the links hold it for down, the next member is asked at once

Which member: the one the last answer suggested, the master without a suggestion, then by what they may do as far as
known (FULL, WRITE, READ, NONE); one that is down or refused comes last. So reading moves to a slave in the turn in
which the master's connection breaks, and back with the first pull after the master has spoken again.

The position moves with the consumer: another member is asked from where the last one was left. That the queue ends
before that position is believed of a master only, and of a new one only if it says so twice, a pause apart.

Nothing is pulled while the window is full; who makes room calls `pull`.

An answer is taken message by message. A body that cannot be decompressed is handed on with its `fault`; it costs the
other messages nothing. A damaged record (its checksum is wrong) ends the answer: what lies before it is delivered, and
the queue waits there for sound bytes, of another member or repaired.
Source: docs/reference/requests.md, "pull"; RocketMQ PullAPIWrapper.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.store import offset_question
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.core.calls import Timer
from tandemq.client.core.connections import Answer
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import refusal
from tandemq.client.core.routes import MASTER_ID
from tandemq.client.core.settings import ConsumerOptions
from tandemq.codec.record.record import decode_pulled
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import TAG_EXPRESSION, SubscriptionData
from tandemq.model.message import StoredMessage

log = logging.getLogger(__name__)
_SUSPEND_AND_SUBSCRIPTION = 2 | 4
ALL_DOWN_PAUSE_MS = 100
EMPTY_ANSWERS_MAX = 3
"""After so many empty answers that came at once the queue rests: the broker does not hold pulls."""
EMPTY_AT_ONCE_MS = 50
EMPTY_PAUSE_MS = 200
DAMAGE_LOG_MS = 60_000
"""How often a queue that waits at a damaged record says so."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """What is read of a topic. `tags` None: everything."""

    data: SubscriptionData
    tags: frozenset[str] | None

    def matches(self, message: StoredMessage) -> bool:
        """The broker filters by hash; this looks at the tag itself."""
        return self.tags is None or message.tags in self.tags


class QueuePuller:
    """Pulls one queue into its window until stopped."""

    def __init__(
        self,
        kit: Kit,
        options: ConsumerOptions,
        subscription: Subscription,
        window: ProcessQueue,
        on_messages: Callable[[list[StoredMessage], Now], None],
    ) -> None:
        """Idle; `pull` begins. `on_messages` gets those that match, in order, after they are in the window."""
        self._kit = kit
        self._options = options
        self._window = window
        self._on_messages = on_messages
        self.subscription = subscription
        self._suggested_id = MASTER_ID
        self._refused_ms: dict[str, int] = {}
        self._is_asking = False
        self._number = 0
        self._is_stopped = False
        self._rest: Timer | None = None
        self._empty_answers = 0
        self.read_from = ""
        """The address of the last pull."""
        self.pulled_ms = 0
        self.on_refused: Callable[[Now], None] = lambda _now: None
        """Called when a member says that it may not serve: what was consumed should be told it while it listens."""
        self.on_moved: Callable[[Now], None] = lambda _now: None
        """Called when the broker says from where to go on: an offset that has not left does not hold any more."""
        self._served_by = ""
        self._told_back: tuple[str, int] | None = None
        self._damage_logged: tuple[int, int] | None = None
        """The offset of the damaged record that was logged last, and when."""

    def stop(self) -> None:
        """Pull no more; what arrives is dropped."""
        self._is_stopped = True
        if self._rest is not None:
            self._rest.cancel()

    def pull(self, now: Now) -> None:
        """Ask for more, unless that is under way, the window is full, or the queue rests."""
        if self._is_asking or self._is_stopped or self._rest is not None or not self._window.has_room:
            return
        address = self._choose(now)
        if address is None:
            return
        self._is_asking = True
        self.read_from = address
        self.pulled_ms = now.mono_ms
        number = self._number
        self._kit.links.request(
            address,
            self._command(),
            now,
            lambda answer, at: self._answered(address, number, answer, at),
            timeout_ms=self._options.pull_timeout_ms,
            closes=True,
        )

    def restart(self, now: Now) -> None:
        """The window was set to another offset: ask from there at once; what is under way no longer counts."""
        self._number += 1
        self._is_asking = False
        self.pull(now)

    def _choose(self, now: Now) -> str | None:
        kit, queue = self._kit, self._window.queue
        addresses = kit.routes.read_addresses(queue.broker_name, self._suggested_id, queue.topic)
        for address in addresses:
            if kit.links.is_down(address):
                kit.links.want(address, now)
        usable = [a for a in addresses if not kit.links.is_down(a) and kit.standing.serves(a)]
        if not usable:
            for address in addresses:
                kit.standing.want(address, now)
            kit.routes.refresh(queue.topic, now)
            self._rest_for(ALL_DOWN_PAUSE_MS, now)
            return None
        for address in usable:
            if self._refused_ms.get(address, 0) <= now.mono_ms:
                return address
        self._rest_for(max(1, min(self._refused_ms[address] for address in usable) - now.mono_ms), now)
        return None

    def _command(self) -> Command:
        window, data = self._window, self.subscription.data
        fields = {
            "consumerGroup": self._options.group,
            "topic": window.queue.topic,
            "queueId": str(window.queue.queue_id),
            "queueOffset": str(window.next_offset),
            "maxMsgNums": str(self._options.pull_messages),
            "sysFlag": str(_SUSPEND_AND_SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(self._options.long_poll_ms),
            "subscription": data.sub_string,
            "subVersion": str(data.sub_version),
            "expressionType": TAG_EXPRESSION,
            "bname": window.queue.broker_name,
        }
        return Command(RequestCode.PULL_MESSAGE, fields=fields)

    def _rest_for(self, pause_ms: int, now: Now) -> None:
        if self._rest is None and not self._is_stopped:
            self._rest = self._kit.timers.at(now.mono_ms + pause_ms, self._rested)

    def _rested(self, now: Now) -> None:
        self._rest = None
        self.pull(now)

    # Answers.

    def _answered(self, address: str, number: int, answer: Answer, now: Now) -> None:
        if self._is_stopped or number != self._number:
            return
        self._is_asking = False
        if isinstance(answer, TandemError):
            log.info("pull failed queue=%s address=%s error=%s", self._window.queue, address, answer)
            self._kit.routes.refresh(self._window.queue.topic, now)
            self.pull(now)
            return
        try:
            self._take(address, answer, now)
        except (ProtocolError, KeyError, ValueError) as error:
            log.warning("pull answer unreadable queue=%s address=%s error=%s", self._window.queue, address, error)
            self._refused(address, now)
        self.pull(now)

    def _take(self, address: str, answer: Command, now: Now) -> None:
        code = answer.code
        if code == ResponseCode.SUCCESS:
            self._found(address, answer, now)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._nothing(answer, now)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._moved(address, answer, now)
        else:
            error = refusal(answer)
            log.info("pull refused queue=%s address=%s error=%s", self._window.queue, address, error)
            if error.refresh_route:
                self._kit.routes.refresh(self._window.queue.topic, now)
            if code == ResponseCode.NO_PERMISSION:
                self._doubted(address, now)
            else:
                self._refused(address, now)
            return
        self._suggested_id = int(answer.fields.get("suggestWhichBrokerId", MASTER_ID))

    def _found(self, address: str, answer: Command, now: Now) -> None:
        self._empty_answers = 0
        self._served_by = self.read_from
        window = self._window
        messages, end, damage = decode_pulled(answer.body)
        next_offset = int(answer.fields["nextBeginOffset"])
        expected = window.next_offset
        if end < len(answer.body):
            next_offset = messages[-1].queue_offset + 1 if messages else expected
        matching = [m for m in messages if m.queue_offset >= expected and self.subscription.matches(m)]
        for message in matching:
            window.add(message)
        window.next_offset = max(next_offset, expected)
        if damage:
            self._damaged(address, damage, now)
        if matching:
            self._on_messages(matching, now)

    def _damaged(self, address: str, damage: str, now: Now) -> None:
        """The next record is not what was stored: ask another member, and this one again after a while."""
        self._refused(address, now)
        offset = self._window.next_offset
        if (
            self._damage_logged is None
            or self._damage_logged[0] != offset
            or (now.mono_ms - self._damage_logged[1] >= DAMAGE_LOG_MS)
        ):
            self._damage_logged = (offset, now.mono_ms)
            log.warning(
                "damaged record, the queue waits for sound bytes queue=%s offset=%d address=%s reason=%s",
                self._window.queue,
                offset,
                address,
                damage,
            )

    def _nothing(self, answer: Command, now: Now) -> None:
        next_offset = int(answer.fields.get("nextBeginOffset", self._window.next_offset))
        if next_offset > self._window.next_offset:
            self._window.next_offset = next_offset
            self._empty_answers = 0
        elif now.mono_ms - self.pulled_ms < EMPTY_AT_ONCE_MS:
            self._empty_answers += 1
            if self._empty_answers > EMPTY_ANSWERS_MAX:
                self._rest_for(EMPTY_PAUSE_MS, now)
        else:
            self._empty_answers = 0

    def _moved(self, address: str, answer: Command, now: Now) -> None:
        next_offset = int(answer.fields["nextBeginOffset"])
        queue = self._window.queue
        if address != self._kit.routes.members(queue.broker_name).get(MASTER_ID):
            # A slave that lags has not got what was read from the master already.
            self._refused(address, now)
            return
        is_back = next_offset < self._window.next_offset
        if is_back and address != self._served_by != "" and self._told_back != (address, next_offset):
            self._told_back = (address, next_offset)
            self._refused(address, now)
            return
        log.warning("offset moved queue=%s from=%d to=%d", queue, self._window.next_offset, next_offset)
        self._told_back = None
        self._window.reset(next_offset)
        self.on_moved(now)

    def _doubted(self, address: str, now: Now) -> None:
        """It may not serve, or not this queue: until the check has told which, no queue is asked of it."""
        self.on_refused(now)
        check = partial(offset_question, self._options.group, self._window.queue)
        self._kit.standing.refused(address, check, now, lambda at: self._refused(address, at))

    def _refused(self, address: str, now: Now) -> None:
        self._refused_ms[address] = now.mono_ms + self._options.error_pause_ms
