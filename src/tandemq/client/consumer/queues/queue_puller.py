"""Pulls of one queue: one long poll at a time, at the member of the broker group that is best to read from.

    pull ─► messages, or none: again at the offset in the response
         ─► offset moved: followed if the master reports it; a slave, which may lag, is asked again later
         ─► NO_PERMISSION: the member may be inactive, which a check decides; the next member is asked at once
         ─► another refusal: the member is avoided for a while; another one, if there is one, is asked at once
         ─► no response: the remoting client takes the member for down, the next member is asked at once

Choice of the member: the one that the last response suggested, the master without a suggestion, then by permission
(FULL, WRITE, READ, NONE) as far as known; members that are down or refused come last. So reads move to a slave in the
turn in which the connection to the master breaks, and back with the first pull after the master has responded again.

The position moves with the consumer: another member is asked at the offset where the last one was left. Only a master
is believed when it reports that the queue ends before that offset, and a new master only after it has reported it
twice, with a pause between.

No pull is sent while the process queue is full; the consumer calls `pull` when there is room again.

Messages of a response are taken one by one, as long as their decompressed bodies fit into the process queue; the others
are pulled again when there is room. A body that cannot be decompressed is delivered with its `fault`, without effect on
the other messages. A damaged record (its checksum is wrong) ends the response: the messages before it are
delivered, and the queue waits there until a member has the sound bytes.

Source: docs/reference/requests.md, "pull"; RocketMQ PullMessageService, PullAPIWrapper.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Timer, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import refusal
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.requests import query_offset_request
from tandemq.client.core.routes import MASTER_ID, Routes
from tandemq.client.core.settings import ConsumerOptions
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SQL_EXPRESSION, TAG_EXPRESSION, SubscriptionData
from tandemq.model.message import StoredMessage

log = logging.getLogger(__name__)
_SUSPEND, _SUBSCRIPTION = 2, 4
ALL_DOWN_PAUSE_MS = 100
EMPTY_ANSWERS_MAX = 3
"""After this many empty responses that came at once the queue pauses: the broker does not hold pulls."""
EMPTY_AT_ONCE_MS = 50
EMPTY_PAUSE_MS = 200
DAMAGE_LOG_MS = 60_000
"""Period at which a queue that waits at a damaged record logs it."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription to one topic. `tags`: None for all messages that the broker delivers."""

    data: SubscriptionData
    tags: frozenset[str] | None

    def matching(self, messages: list[StoredMessage], queue_offset: int) -> list[StoredMessage]:
        """Return the messages from an offset on whose tag is subscribed to; the broker filters by hash only."""
        tags = self.tags
        if tags is None:
            return [message for message in messages if message.queue_offset >= queue_offset]
        return [message for message in messages if message.queue_offset >= queue_offset and message.tags in tags]


class _MovedBack(NamedTuple):
    """A new master's report that the queue ends before the position of the consumer."""

    address: str
    next_offset: int


class _LoggedDamage(NamedTuple):
    """The offset of the damaged record that was logged last, and when, milliseconds on the monotonic clock."""

    offset: int
    logged_ms: int


OnMessages = Callable[[list[StoredMessage], Now], None]


class QueuePuller:
    """Pulls one queue into its process queue until stopped."""

    def __init__(
        self,
        options: ConsumerOptions,
        remoting: RemotingClient,
        routes: Routes,
        availability: BrokerAvailability,
        timers: Timers,
        subscription: Subscription,
        process_queue: ProcessQueue,
        on_messages: OnMessages,
    ) -> None:
        """Idle until `pull`. `on_messages` gets the messages that match, in order, once the process queue has them."""
        self._options = options
        self._remoting = remoting
        self._routes = routes
        self._availability = availability
        self._timers = timers
        self._process_queue = process_queue
        self._on_messages = on_messages
        self.subscription = subscription
        self._suggested_id = MASTER_ID
        self._refused_until_ms: dict[str, int] = {}
        self.is_in_flight = False
        """Whether a pull waits for its response; then `pull` has no effect."""
        self._generation = 0
        self._is_stopped = False
        self._pause: Timer | None = None
        self._empty_answers = 0
        self.read_from = ""
        """The address of the last pull."""
        self.pulled_ms = 0
        """The time of the last pull, milliseconds on the monotonic clock."""
        self.on_refused: Callable[[Now], None] = lambda _now: None
        """Called when a member refuses with NO_PERMISSION: it may still accept commits."""
        self.on_moved: Callable[[Now], None] = lambda _now: None
        """Called when the broker moves the position: a commit that was not sent is void."""
        self._served_by = ""
        self._moved_back: _MovedBack | None = None
        self._logged_damage: _LoggedDamage | None = None

    def stop(self) -> None:
        """Pull no more; responses in flight are dropped."""
        self._is_stopped = True
        if self._pause is not None:
            self._pause.cancel()

    def pull(self, now: Now) -> None:
        """Send a pull, unless one is in flight, the process queue is full, or the queue pauses."""
        if self.is_in_flight or self._is_stopped or self._pause is not None or not self._process_queue.has_room:
            return
        address = self._choose(now)
        if address is None:
            return
        self.is_in_flight = True
        self.read_from = address
        self.pulled_ms = now.mono_ms
        generation = self._generation
        self._remoting.request(
            address,
            self._command(),
            now,
            lambda answer, now: self._on_answer(address, generation, answer, now),
            timeout_ms=self._options.pull_timeout_ms,
            closes=True,
        )

    def restart(self, now: Now) -> None:
        """Pull at once from the new offset of the process queue; the response in flight is dropped."""
        self._generation += 1
        self.is_in_flight = False
        self.pull(now)

    def _choose(self, now: Now) -> str | None:
        queue = self._process_queue.queue
        addresses = self._routes.read_addresses(queue.broker_name, self._suggested_id, queue.topic)
        for address in addresses:
            if self._remoting.is_down(address):
                self._remoting.keep_reconnecting(address, now)
        usable = [a for a in addresses if not self._remoting.is_down(a) and self._availability.is_active(a)]
        if not usable:
            for address in addresses:
                self._availability.keep_checking(address, now)
            self._routes.refresh(queue.topic, now)
            self._pause_for(ALL_DOWN_PAUSE_MS, now)
            return None
        for address in usable:
            if self._refused_until_ms.get(address, 0) <= now.mono_ms:
                return address
        self._pause_for(max(1, min(self._refused_until_ms[address] for address in usable) - now.mono_ms), now)
        return None

    def _command(self) -> Command:
        process_queue, data = self._process_queue, self.subscription.data
        is_sql = data.expression_type == SQL_EXPRESSION
        fields = {
            "consumerGroup": self._options.group,
            "topic": process_queue.queue.topic,
            "queueId": str(process_queue.queue.queue_id),
            "queueOffset": str(process_queue.next_offset),
            "maxMsgNums": str(self._options.pull_messages),
            "sysFlag": str(_SUSPEND if is_sql else _SUSPEND | _SUBSCRIPTION),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(self._options.long_poll_ms),
            "subscription": data.sub_string,
            "subVersion": str(data.sub_version),
            "expressionType": SQL_EXPRESSION if is_sql else TAG_EXPRESSION,
            "bname": process_queue.queue.broker_name,
        }
        if is_sql:
            del fields["subscription"]  # the broker has it from heartbeats, see `client.consumer.subscription`
        return Command(RequestCode.PULL_MESSAGE, fields=fields)

    def _pause_for(self, pause_ms: int, now: Now) -> None:
        if self._pause is None and not self._is_stopped:
            self._pause = self._timers.at(now.mono_ms + pause_ms, self._pause_over)

    def _pause_over(self, now: Now) -> None:
        self._pause = None
        self.pull(now)

    # Responses.

    def _on_answer(self, address: str, generation: int, answer: Answer, now: Now) -> None:
        if self._is_stopped or generation != self._generation:
            return
        self.is_in_flight = False
        queue = self._process_queue.queue
        if isinstance(answer, TandemError):
            log.info("pull failed queue=%s address=%s error=%s", queue, address, answer)
            self._routes.refresh(queue.topic, now)
            self.pull(now)
            return
        try:
            self._apply(address, answer, now)
        except (ProtocolError, KeyError, ValueError) as error:
            log.warning("pull response invalid queue=%s address=%s error=%s", queue, address, error)
            self._avoid(address, now)
        self.pull(now)

    def _apply(self, address: str, answer: Command, now: Now) -> None:
        code = answer.code
        if code == ResponseCode.SUCCESS:
            self._found(address, answer, now)
        elif code in (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY):
            self._not_found(answer, now)
        elif code == ResponseCode.PULL_OFFSET_MOVED:
            self._offset_moved(address, answer, now)
        else:
            self._refused(address, answer, now)
            return
        self._suggested_id = int(answer.fields.get("suggestWhichBrokerId", MASTER_ID))

    def _refused(self, address: str, answer: Command, now: Now) -> None:
        queue, error = self._process_queue.queue, refusal(answer)
        log.info("pull refused queue=%s address=%s error=%s", queue, address, error)
        if error.refresh_route:
            self._routes.refresh(queue.topic, now)
        if answer.code != ResponseCode.NO_PERMISSION:
            self._avoid(address, now)
            return
        # Until the check has decided whether the broker is inactive, no queue is pulled from it.
        self.on_refused(now)
        check = partial(query_offset_request, self._options.group, queue)
        self._availability.suspect(address, check, now, lambda now: self._avoid(address, now))

    def _found(self, address: str, answer: Command, now: Now) -> None:
        if "offsetDelta" in answer.fields:
            raise ProtocolError("the topic is static, this client has no logical queues")
        self._empty_answers = 0
        self._served_by = self.read_from
        process_queue = self._process_queue
        messages, end, damage = decode_pulled(answer.body, process_queue.bytes_left)
        next_offset = int(answer.fields["nextBeginOffset"])
        expected = process_queue.next_offset
        if end < len(answer.body):
            next_offset = messages[-1].queue_offset + 1 if messages else expected
        matching = self.subscription.matching(messages, expected)
        process_queue.add(matching)
        process_queue.next_offset = max(next_offset, expected)
        if damage:
            self._damaged(address, damage, now)
        if matching:
            self._on_messages(matching, now)

    def _damaged(self, address: str, damage: str, now: Now) -> None:
        """Ask another member for the damaged record, and this one again after a while."""
        self._avoid(address, now)
        offset, logged = self._process_queue.next_offset, self._logged_damage
        if logged is None or logged.offset != offset or now.mono_ms - logged.logged_ms >= DAMAGE_LOG_MS:
            self._logged_damage = _LoggedDamage(offset, now.mono_ms)
            log.warning(
                "damaged record, the queue waits for sound bytes queue=%s offset=%d address=%s reason=%s",
                self._process_queue.queue,
                offset,
                address,
                damage,
            )

    def _not_found(self, answer: Command, now: Now) -> None:
        next_offset = int(answer.fields.get("nextBeginOffset", self._process_queue.next_offset))
        if next_offset > self._process_queue.next_offset:
            self._process_queue.next_offset = next_offset
            self._empty_answers = 0
        elif now.mono_ms - self.pulled_ms < EMPTY_AT_ONCE_MS:
            self._empty_answers += 1
            if self._empty_answers > EMPTY_ANSWERS_MAX:
                self._pause_for(EMPTY_PAUSE_MS, now)
        else:
            self._empty_answers = 0

    def _offset_moved(self, address: str, answer: Command, now: Now) -> None:
        next_offset = int(answer.fields["nextBeginOffset"])
        queue = self._process_queue.queue
        if address != self._routes.members(queue.broker_name).get(MASTER_ID):
            # A slave that lags does not have the messages that were read from the master.
            self._avoid(address, now)
            return
        is_back = next_offset < self._process_queue.next_offset
        report = _MovedBack(address, next_offset)
        if is_back and address != self._served_by != "" and self._moved_back != report:
            self._moved_back = report
            self._avoid(address, now)
            return
        log.warning("offset moved queue=%s from=%d to=%d", queue, self._process_queue.next_offset, next_offset)
        self._moved_back = None
        self._process_queue.reset(next_offset)
        self.on_moved(now)

    def _avoid(self, address: str, now: Now) -> None:
        self._refused_until_ms[address] = now.mono_ms + self._options.error_pause_ms


MakePuller = Callable[[Subscription, ProcessQueue, OnMessages], QueuePuller]
"""Makes the puller of a queue, with the collaborators of one consumer."""
