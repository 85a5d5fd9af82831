"""Pops of one topic at one broker group: one long poll at a time, at the member that is the master.

    pop ─► messages, or none: again, as long as there is room for messages that wait to be taken
        ─► NO_PERMISSION: the member may be inactive, which a check decides
        ─► another refusal, no response, or no master: again after a growing pause, at the master by then

Room is the poller's share of the consumer's prefetch limits. A pop asks for no more messages than there is room for.
Bodies that inflate beyond the share of bytes are not kept: those messages are returned, and the next pops ask for
fewer.

An ordered pop keeps its attempt id until it has brought messages, so that a repeated one gets the same batch.

Source: docs/reference/pop.md; RocketMQ DefaultMQPushConsumerImpl.popMessage.
"""

import logging
from collections.abc import Callable
from functools import partial
from random import Random
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.consumer.queues.queue_puller import Subscription
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Timer, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import refusal
from tandemq.client.core.pulled import decode_pulled
from tandemq.client.core.requests import query_offset_request
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumeFrom, PopOptions
from tandemq.codec.remoting.pops import PopAnswer, PopQuery, pop_request
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import TAG_EXPRESSION
from tandemq.model.message import MessageQueue, StoredMessage

log = logging.getLogger(__name__)
PAUSE_MS = 100
"""Shortest pause after a failure; doubled with each further one, up to `error_pause_ms`."""
EMPTY_AT_ONCE_MS = 50
EMPTY_ANSWERS_MAX = 3
"""After this many empty responses that came at once the poller pauses: the broker does not hold pops."""
EMPTY_PAUSE_MS = 200
_NONE_FOUND = frozenset({ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND})


class PopResult(NamedTuple):
    """Messages of one pop."""

    answer: PopAnswer
    subscription: Subscription
    """What the pop asked for."""
    messages: list[StoredMessage]
    are_kept: bool
    """False: there is no room for them, they are to be returned."""


OnPopped = Callable[["PopPoller", PopResult, Now], None]


class PopPoller:
    """Pops one topic at one broker group until stopped."""

    def __init__(
        self,
        options: PopOptions,
        remoting: RemotingClient,
        routes: Routes,
        availability: BrokerAvailability,
        timers: Timers,
        random: Random,
        subscription: Subscription,
        broker_name: str,
    ) -> None:
        """Idle until `pop`."""
        self._options = options
        self._remoting = remoting
        self._routes = routes
        self._availability = availability
        self._timers = timers
        self._random = random
        self.subscription = subscription
        """What the next pop asks for."""
        self.broker_name = broker_name
        self.on_popped: OnPopped = lambda _poller, _result, _now: None
        """Called with the messages of each pop."""
        self.share_messages = options.prefetch_messages
        """Maximum number of messages that wait."""
        self.share_bytes = options.prefetch_bytes
        """Size of messages that wait above which it does not pop."""
        self.waiting = 0
        """Number of its messages that wait to be taken."""
        self.waiting_bytes = 0
        self._fitting = options.batch
        """Number of messages whose bodies are expected to fit into the share."""
        self._attempt_id = self._new_attempt_id()
        self._is_in_flight = False
        self._is_stopped = False
        self._pause: Timer | None = None
        self._failures = 0
        self._empty_answers = 0
        self._sent_ms = 0
        self._refused = ""
        """The refusal that was logged last."""

    @property
    def topic(self) -> str:
        """The topic that is popped."""
        return self.subscription.data.topic

    def stop(self) -> None:
        """Pop no more. Messages of a response in flight still come."""
        self._is_stopped = True
        if self._pause is not None:
            self._pause.cancel()

    def pop(self, now: Now) -> None:
        """Send a pop, unless one is in flight, there is no room, or the poller pauses."""
        if self._is_in_flight or self._is_stopped or self._pause is not None:
            return
        count = self._room()
        address = self._choose(now) if count else None
        if address is None:
            return
        self._is_in_flight = True
        self._sent_ms = now.mono_ms
        subscription = self.subscription
        self._remoting.request(
            address,
            self._command(count),
            now,
            lambda answer, now: self._on_answer(address, subscription, answer, now),
            timeout_ms=self._options.pop_timeout_ms,
            closes=True,
        )

    def _room(self) -> int:
        """Return how many messages to ask for; 0: too many wait."""
        wanted = min(self._options.batch, self._fitting)
        free = self.share_messages - self.waiting
        if self.waiting_bytes >= self.share_bytes or free < min(wanted, max(1, self.share_messages // 2)):
            return 0
        return min(wanted, free)

    def _choose(self, now: Now) -> str | None:
        address = self._routes.leader(self.broker_name)
        if address is not None and not self._remoting.is_down(address) and self._availability.is_active(address):
            return address
        for member in self._routes.members(self.broker_name).values():
            self._availability.keep_checking(member, now)
            if self._remoting.is_down(member):
                self._remoting.keep_reconnecting(member, now)
        self._routes.refresh(self.topic, now)
        self._pause_after_failure(now)
        return None

    def _command(self, count: int) -> Command:
        options, data = self._options, self.subscription.data
        query = PopQuery(
            options.group,
            data.topic,
            count,
            options.invisible_ms,
            data.sub_string,
            data.expression_type or TAG_EXPRESSION,
            starts_at_end=options.consume_from is not ConsumeFrom.FIRST,
            is_ordered=options.ordered,
            attempt_id=self._attempt_id,
        )
        return pop_request(query, options.long_poll_ms)

    def _new_attempt_id(self) -> str:
        return f"{self._random.getrandbits(64):016x}"

    def _pause_for(self, pause_ms: int, now: Now) -> None:
        if self._pause is None and not self._is_stopped:
            self._pause = self._timers.at(now.mono_ms + pause_ms, self._pause_over)

    def _pause_after_failure(self, now: Now) -> None:
        self._pause_for(min(self._options.error_pause_ms, PAUSE_MS << min(self._failures, 16)), now)
        self._failures += 1

    def _pause_over(self, now: Now) -> None:
        self._pause = None
        self.pop(now)

    # Responses.

    def _on_answer(self, address: str, subscription: Subscription, answer: Answer, now: Now) -> None:
        self._is_in_flight = False
        if isinstance(answer, TandemError):
            log.info("pop failed topic=%s address=%s error=%s", self.topic, address, answer)
            self._routes.refresh(self.topic, now)
            self._pause_after_failure(now)
            return
        try:
            self._apply(address, subscription, answer, now)
        except ProtocolError as error:
            log.warning("pop response invalid topic=%s address=%s error=%s", self.topic, address, error)
            self._pause_after_failure(now)
        self.pop(now)

    def _apply(self, address: str, subscription: Subscription, answer: Command, now: Now) -> None:
        if answer.code == ResponseCode.SUCCESS:
            self._found(subscription, answer, now)
        elif answer.code in _NONE_FOUND:
            self._failures = 0
            self._none_found(now)
        else:
            self._was_refused(address, answer, now)

    def _none_found(self, now: Now) -> None:
        if now.mono_ms - self._sent_ms >= EMPTY_AT_ONCE_MS:
            self._empty_answers = 0
            return
        self._empty_answers += 1
        if self._empty_answers > EMPTY_ANSWERS_MAX:
            self._pause_for(EMPTY_PAUSE_MS, now)

    def _was_refused(self, address: str, answer: Command, now: Now) -> None:
        error = refusal(answer)
        level = logging.INFO if self._refused == str(error) else logging.WARNING
        self._refused = str(error)
        log.log(level, "pop refused topic=%s address=%s error=%s", self.topic, address, error)
        if error.refresh_route:
            self._routes.refresh(self.topic, now)
        if answer.code == ResponseCode.NO_PERMISSION:
            queue = MessageQueue(self.topic, self.broker_name, 0)
            self._availability.suspect(address, partial(query_offset_request, self._options.group, queue), now)
        self._pause_after_failure(now)

    def _found(self, subscription: Subscription, answer: Command, now: Now) -> None:
        self._failures = self._empty_answers = 0
        popped = PopAnswer(self.broker_name, answer)
        self._attempt_id = self._new_attempt_id()
        room_bytes = max(1, self.share_bytes - self.waiting_bytes)
        pulled = decode_pulled(answer.body, room_bytes)
        is_whole = pulled.end >= len(answer.body) or bool(pulled.damage)
        self._fitting = min(self._options.batch, 2 * self._fitting) if is_whole else max(1, len(pulled.messages))
        self.on_popped(self, PopResult(popped, subscription, pulled.messages, are_kept=True), now)
        rest = answer.body[pulled.end :]
        while rest and not pulled.damage:
            pulled = decode_pulled(rest, room_bytes)
            self.on_popped(self, PopResult(popped, subscription, pulled.messages, are_kept=False), now)
            rest = rest[pulled.end :]
        if pulled.damage:
            log.warning(
                "damaged record, messages behind it come again topic=%s broker=%s reason=%s",
                self.topic,
                self.broker_name,
                pulled.damage,
            )
