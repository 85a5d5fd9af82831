"""The producer without input and output: chooses a queue, sends, retries on another broker.

    send ─► route known? ─► choose a target ─► request ─► stored: settle the ticket
             └► fetch, park  ▲       ▼             ├► refused, retriable ─┐
                             │   none: wait ◄──────┴► no response ────────┤   same unique key
                             └────────┴──────────────── another broker ───┘

A message fails when `retries` more attempts have failed and `retry_ms` have passed since it began, so that it outlives
a failover, in which no broker accepts messages for some seconds. Waiting messages are checked for a target every
`WAIT_MS`, which is not an attempt. When the time is over, a message does not wait any more, and the attempts that are
left are made.

Invariants: a message keeps its unique key through all attempts. If the outcome of an attempt is unknown and no later
one succeeded, the error is OutcomeUnknown: the message may be stored. A status is never better than what a broker
reported.

A message whose queue the caller chose is not retried: another queue would not be the chosen one.

Owner: the node. Source: docs/reference/requests.md, "sending"; docs/internals/failover.md, "Clients"; RocketMQ
DefaultMQProducerImpl.
"""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import msgspec

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timer, Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.client.core.operations import OperationRunner, Steps, refusal, void, wait
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import (
    SendEncoder,
    SendRequest,
    part_of,
    plain_bytes_max,
    prepare,
    prepare_batches,
    request_of_frame,
)
from tandemq.client.producer.fault_strategy import MQFaultStrategy
from tandemq.client.producer.plain_send import PlainSend
from tandemq.client.producer.produce_accumulator import GatheredMessage, ProduceAccumulator, may_gather
from tandemq.client.producer.publish_info import Select, SendTarget, TopicPublishInfo, TopicPublishTable
from tandemq.client.producer.recall import recall
from tandemq.client.producer.send_tracer import SendTracer
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.engine import batch_part
from tandemq.errors import ClosedError, LocalError, NoRoute, OutcomeUnknown, RemoteError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import ProducerData
from tandemq.model.java_hash import java_hash
from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus

_SEND_OK = SendStatus.SEND_OK
PARKED_MAX = 100_000
"""Maximum number of messages per topic that wait for its route."""
WAIT_MS = 100
"""Longest pause between two checks whether waiting messages have a target; less a random half."""
FRESH_TOPIC_REFRESH_MS = 300
_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


def by_hash(key: str) -> Select:
    """Return a selector by the hash of a key, as Java's SelectMessageQueueByHash: the same key gives the same queue."""
    value = abs(java_hash(key))
    return lambda queues: queues[value % len(queues)]


def is_user_limited(message: SendRequest, error: TandemError) -> bool:
    """Whether a send on behalf of a user may have failed by the limit of that user, which another broker has too."""
    return bool(message.on_behalf_of) and error.code == ResponseCode.SYSTEM_BUSY


class _Sending(msgspec.Struct, eq=False):
    """A message or batch in flight, with its attempts."""

    message: SendRequest
    ticket: Ticket[Any]
    select: Select | None
    oneway: bool = False
    is_list: bool = False
    """Whether the result is a list, as that of a batch, although there may be one message."""
    cohort: "_Cohort | None" = None
    attempts_left: int = 1
    give_up_ms: int = 0
    last_broker: str = ""
    stored: list[SendResult] | None = None
    unknown: OutcomeUnknown | None = None
    error: TandemError | None = None
    """Why the last attempt that reached a broker failed."""

    def is_late(self, now: Now) -> bool:
        """Return whether its `retry_ms` have passed, so that it does not wait any more."""
        return now.mono_ms >= self.give_up_ms

    def found_no_target(self, now: Now) -> None:
        """Record that no attempt could be made; it counts as one only if the message is late, so that it ends."""
        if self.is_late(now):
            self.attempts_left -= 1

    def is_over(self, now: Now) -> bool:
        """Return whether no further attempt is made."""
        return self.attempts_left <= 0 and self.is_late(now)


class _Cohort:
    """The sends that began between two calls of `flush`."""

    __slots__ = ("count", "ended", "is_complete", "leave")

    def __init__(self, leave: "Callable[[_Cohort, int], None]") -> None:
        self.leave = partial(leave, self)
        """Called when some of them are settled, with their number."""
        self.count = 0
        """Number of them that are not settled."""
        self.is_complete = False
        self.ended: Ticket[None] = Ticket()


class ProducerCore:
    """A producer, driven by the node's turns."""

    def __init__(
        self,
        options: ProducerOptions,
        remoting: RemotingClient,
        routes: Routes,
        runner: OperationRunner,
        timers: Timers,
        strategy: MQFaultStrategy,
        keys: UniqueKeys,
        random: Random,
    ) -> None:
        """Nothing is in flight."""
        self.options = options
        self._remoting = remoting
        self._routes = routes
        self._runner = runner
        self._timers = timers
        self._strategy = strategy
        self._keys = keys
        self._random = random
        self._timeout_ms = options.timeout_ms
        self._retries, self._retry_ms = options.retries, options.retry_ms
        self._plain_bytes_max = plain_bytes_max(options)
        self._encoder = SendEncoder(options.group, options.queues_per_new_topic)
        self._topics = TopicPublishTable(routes, random, options.queues_per_new_topic)
        self._waiting: list[_Sending] = []
        self._wait_timer: Timer | None = None
        self._parked: dict[str, list[_Sending]] = {}
        self._is_closed = False
        self._sends_plain = not remoting.signs
        self._accumulator = (
            ProduceAccumulator(options, self._topics, runner, timers, self._start) if options.linger_ms else None
        )
        self._cohort = _Cohort(self._leave)
        self._cohorts: list[_Cohort] = []
        """Complete ones with sends that are not settled."""
        self.tracer: SendTracer | None = None
        """Records what brokers stored, if `options.trace`."""
        self.in_flight = 0
        """Number of messages and batches that are not settled."""

    # Operations.

    def send(
        self, message: Message, now: Now, *, select: Select | None = None, unique_key: str | None = None
    ) -> Ticket[SendResult]:
        """Send one message.

        The ticket fails with OutcomeUnknown (it may be stored), NotConnected, NoRoute or RemoteError (it is not).

        Args:
            select: chooses the queue; the message is not retried then.
            unique_key: that of an earlier attempt; by default a new one.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        accumulator = self._accumulator
        key = unique_key or self._keys.next(now.wall_ms)
        if accumulator is not None and not self._is_closed:
            part = batch_part(message, key, self._plain_bytes_max)
            if part is not None:
                cohort = self._cohort
                cohort.count += 1
                self.in_flight += 1
                topic, wait_store_ok = message.topic, message.wait_store_ok
                gathered = GatheredMessage(
                    False, None, None, (), None, None, topic, wait_store_ok, part, key, cohort.leave
                )
                return accumulator.add(gathered, select, now)
        elif select is None and (plain := self._send_plain(message, key, now)) is not None:
            return plain
        request = prepare(message, key, self.options)
        if accumulator is None or not may_gather(message):
            return self.send_prepared(request, now, select=select)
        if self._is_closed:
            raise ClosedError("the producer is closed")
        gathered = GatheredMessage(
            topic=message.topic,
            wait_store_ok=message.wait_store_ok,
            part=part_of(request),
            unique_key=key,
            on_settled=self._enter().leave,
            alone=request if request.sys_flag else None,
        )
        return accumulator.add(gathered, select, now)

    def _start(self, request: SendRequest, select: Select | None, now: Now) -> Ticket[list[SendResult]]:
        """Send a request with messages that were gathered; while the producer closes, too."""
        ticket: Ticket[list[SendResult]] = Ticket()
        self._accept(_Sending(request, ticket, select, is_list=True), now)
        return ticket

    def send_prepared(self, request: SendRequest, now: Now, *, select: Select | None = None) -> Ticket[SendResult]:
        """Send one message that is encoded already."""
        if self._is_closed:
            raise ClosedError("the producer is closed")
        ticket: Ticket[SendResult] = Ticket()
        self._accept(_Sending(request, ticket, select), now)
        return ticket

    def send_batch(
        self,
        messages: Sequence[Message],
        now: Now,
        *,
        select: Select | None = None,
        unique_keys: Sequence[str] | None = None,
    ) -> list[Ticket[list[SendResult]]]:
        """Send several messages of one topic; returns one ticket per request of at most `batch_bytes_max`.

        Args:
            select: chooses the queue; the messages are not retried then.
            unique_keys: those of an earlier attempt, one per message; by default new ones.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        keys = [self._keys.next(now.wall_ms) for _ in messages] if unique_keys is None else unique_keys
        tickets: list[Ticket[list[SendResult]]] = []
        for request in prepare_batches(messages, keys, self.options):
            ticket: Ticket[list[SendResult]] = Ticket()
            self._begin(_Sending(request, ticket, select, is_list=True), now)
            tickets.append(ticket)
        return tickets

    def send_oneway(self, message: Message, now: Now, *, select: Select | None = None) -> Ticket[None]:
        """Send one message without a response; the ticket is settled when the message was handed to the network.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        request = prepare(message, self._keys.next(now.wall_ms), self.options)
        ticket: Ticket[None] = Ticket()
        self._begin(_Sending(request, ticket, select, oneway=True), now)
        return ticket

    def recall(self, handle: str, now: Now) -> Ticket[str]:
        """Recall a timed message by the handle of its send; the result is its unique key.

        The ticket fails with LocalError (malformed handle), OutcomeUnknown (it may be recalled), NotConnected, NoRoute
        or RemoteError (it is not).
        """
        if self._is_closed:
            raise ClosedError("the producer is closed")
        cohort = self._enter()
        steps = recall(handle, self.options, self._routes, lambda: self._is_closed)
        ticket = self._runner.start(steps, now)
        ticket.then(lambda _: self._leave(cohort))
        return ticket

    def flush(self, now: Now) -> Ticket[None]:
        """Return a ticket that is settled when all sends that have begun are settled; nothing lingers."""
        if self._accumulator is not None:
            self._accumulator.flush(now)
        if self._cohort.count:
            self._cohort.is_complete = True
            self._cohorts.append(self._cohort)
            self._cohort = _Cohort(self._leave)
        return self._runner.start(self._flushing(list(self._cohorts)), now)

    def _flushing(self, cohorts: list[_Cohort]) -> Steps[None]:
        for cohort in cohorts:
            yield from wait(cohort.ended)

    def _enter(self) -> _Cohort:
        self.in_flight += 1
        cohort = self._cohort
        cohort.count += 1
        return cohort

    def _leave(self, cohort: _Cohort, count: int = 1) -> None:
        self.in_flight -= count
        cohort.count -= count
        if not cohort.count and cohort.is_complete:
            self._cohorts.remove(cohort)
            cohort.ended.settle(None)

    def queues(self, topic: str) -> Steps[list[MessageQueue]]:
        """Return the queues of a topic that accept messages.

        Raises:
            NoRoute, NetworkError: the route cannot be fetched.
        """
        route = yield from self._topics.find_route(topic)
        return route.publish_queues()

    def heartbeat_data(self) -> list[ProducerData]:
        """Return the part of a heartbeat that describes this producer."""
        return [ProducerData(self.options.group)]

    def refuse(self) -> None:
        """Accept no more messages and make no more attempts; attempts in flight may finish."""
        self._is_closed = True

    def drain(self, now: Now) -> None:
        """Accept no more messages, and let none linger."""
        if self._accumulator is not None:
            self._accumulator.hurry(now)
        self.refuse()

    def close(self) -> None:
        """Accept no more messages; those that wait for a route, or for another attempt, fail."""
        self.refuse()
        closed = ClosedError("the producer was closed, nothing was sent")
        if self._accumulator is not None:
            self._accumulator.close(closed)
        for topic in list(self._parked):
            self._fail_parked(topic, closed)
        waiting, self._waiting = self._waiting, []
        for sending in waiting:
            self._finish(sending, sending.unknown or sending.error or closed)

    def address_up(self, address: str) -> None:
        """Forget the failures of a broker that is reachable or active again."""
        self._strategy.clear_failures(address)
        self._retry_waiting_soon()

    # Ordinary messages.

    def _send_plain(self, message: Message, key: str, now: Now) -> PlainSend | None:
        """Send an ordinary message at once; None: it goes the general way."""
        if not self._sends_plain or self.tracer is not None or self._is_closed:
            return None
        if type(message) is not Message or type(message.topic) is not str or type(message.body) is not bytes:
            return None
        if len(message.body) > self._plain_bytes_max:
            return None
        publish_info = self._topics.get(message.topic)
        if publish_info is None or (target := self._strategy.next_at_masters(publish_info, now)) is None:
            return None
        head = target.head
        if not head:
            head = target.head = self._encoder.plain_head(target.queue)
        cohort = self._cohort
        sent = PlainSend(sender=self, cohort=cohort, unique_key=key, target=target)
        if not self._remoting.send_plain(
            target.address, head, message, self._plain_bytes_max, sent, self._timeout_ms, now
        ):
            publish_info.position -= 1
            return None
        cohort.count += 1
        self.in_flight += 1
        return sent

    def plain_stored(self, sent: PlainSend, queue_id: int, queue_offset: int, msg_id: str, now: Now) -> None:
        """See `PlainSender`."""
        target = sent.target
        queue = target.queue
        if queue_id != queue.queue_id:
            queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
        sent.frame = b""
        if self._strategy.record_success(target.address, queue.topic, now.mono_ms - sent.sent_ms, now):
            self._retry_waiting_soon()
        cohort = sent.cohort
        if cohort.is_complete:
            self._leave(cohort)
        else:
            cohort.count -= 1
            self.in_flight -= 1
        sent.settle(SendResult(_SEND_OK, sent.unique_key, msg_id, queue, queue_offset))

    def plain_answered(self, sent: PlainSend, answer: Answer, now: Now) -> None:
        """See `PlainSender`."""
        target = sent.target
        frame, sent.frame = sent.frame, b""
        sending = _Sending(request_of_frame(frame, target.queue.topic, sent.unique_key), sent, None)
        sending.cohort = sent.cohort
        sending.last_broker = target.queue.broker_name
        sending.attempts_left = max(0, self._retries)
        sending.give_up_ms = sent.sent_ms + (self._retry_ms if self._retries > 0 else 0)
        self._on_answer(sending, target, sent.sent_ms, answer, now)

    # Start, and the wait for a route.

    def _begin(self, sending: _Sending, now: Now) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        self._accept(sending, now)

    def _accept(self, sending: _Sending, now: Now) -> None:
        cohort = sending.cohort = self._cohort
        cohort.count += 1
        self.in_flight += 1
        sending.give_up_ms = now.mono_ms
        if sending.select is None and not sending.oneway and self._retries > 0:
            sending.attempts_left += self._retries
            sending.give_up_ms += self._retry_ms
        self._try(sending, now)

    def _park(self, sending: _Sending, now: Now) -> None:
        topic = sending.message.topic
        parked = self._parked.get(topic)
        if parked is not None:
            if len(parked) >= PARKED_MAX:
                self._finish(sending, LocalError(f"{PARKED_MAX} messages already wait for the route of {topic}"))
            else:
                parked.append(sending)
            return
        self._parked[topic] = [sending]
        self._routes.want(topic)
        found = self._runner.start(self._topics.find_route(topic), now)
        found.then(lambda done: void(self._timers.at(0, lambda now: self._unpark(topic, done, now))))

    def _unpark(self, topic: str, found: Ticket[TopicRoute], now: Now) -> None:
        if found.error is not None:
            self._fail_parked(topic, found.error)
            return
        for sending in self._parked.pop(topic, ()):
            self._try(sending, now)
        if self._routes.get(topic) is None:
            self._timers.at(now.mono_ms + FRESH_TOPIC_REFRESH_MS, lambda now: self._routes.refresh(topic, now))

    def _fail_parked(self, topic: str, error: TandemError) -> None:
        for sending in self._parked.pop(topic, ()):
            self._finish(sending, error)

    # Attempts.

    def _try(self, sending: _Sending, now: Now) -> None:
        message = sending.message
        publish_info = self._topics.get(message.topic)
        if publish_info is None:
            self._park(sending, now)
            return
        try:
            if sending.select is None and publish_info.queues:
                is_late = now.mono_ms >= sending.give_up_ms
                target = self._strategy.choose(publish_info, sending.last_broker, now, is_late=is_late)
            else:
                target = self._choose(sending, publish_info, now)
        except LocalError as error:  # of the function that chooses the queue
            self._finish(sending, error)
            return
        if target is None:
            self._routes.refresh(message.topic, now)
            sending.found_no_target(now)
            self._failed(sending, None, _no_target(message.topic), now)
        else:
            self._send(sending, target, now)

    def _choose(self, sending: _Sending, publish_info: TopicPublishInfo, now: Now) -> SendTarget | None:
        if not publish_info.queues:
            return None
        is_late = sending.is_late(now)
        if sending.select is None:
            return self._strategy.choose(publish_info, sending.last_broker, now, is_late=is_late)
        queue = sending.select(publish_info.queues)
        address = self._strategy.member(queue.broker_name, queue.topic, now, is_late=is_late)
        return None if address is None else SendTarget(queue, address)

    def _send(self, sending: _Sending, target: SendTarget, now: Now) -> None:
        queue, address = target.queue, target.address
        sending.last_broker = queue.broker_name
        sending.attempts_left -= 1
        command = self._encoder.encode(sending.message, queue, now.wall_ms)
        if sending.oneway:
            self._remoting.send_oneway(address, command, now)
            self._finish(sending, None)
            return
        on_answer = partial(self._on_answer, sending, target, now.mono_ms)
        self._remoting.request(address, command, now, on_answer, timeout_ms=self._timeout_ms)

    def _on_answer(self, sending: _Sending, target: SendTarget, sent_ms: int, answer: Answer, now: Now) -> None:
        if not isinstance(answer, Command):
            self._failed(sending, target, answer, now)
            return
        status = _STATUS.get(answer.code)
        if status is None:
            self._failed(sending, target, refusal(answer), now)
            return
        queue = target.queue
        try:
            sending.stored = _results(answer, status, queue, sending.message)
        except (KeyError, ValueError) as error:
            unreadable = OutcomeUnknown(f"{queue.broker_name} stored a message, its response is invalid: {error!r}")
            self._failed(sending, target, unreadable, now)
            return
        if self.tracer is not None:
            cost_ms = now.mono_ms - sent_ms
            self.tracer.stored(sending.message, target.address, answer, sending.stored, cost_ms, now)
        if status is SendStatus.SEND_OK:
            if self._strategy.record_success(target.address, queue.topic, now.mono_ms - sent_ms, now):
                self._retry_waiting_soon()
        elif self.options.retry_when_not_stored_ok and sending.attempts_left > 0:
            self._again(sending, now)
            return
        self._finish(sending, None)

    def _failed(self, sending: _Sending, target: SendTarget | None, error: TandemError, now: Now) -> None:
        is_retried = error.retriable and not is_user_limited(sending.message, error)
        if target is not None:
            # A member that does not serve says less than the refusal of the one that does.
            is_standby = isinstance(error, RemoteError) and error.code == ResponseCode.NO_PERMISSION
            if not (is_standby and isinstance(sending.error, RemoteError)):
                sending.error = error
            if is_retried:
                self._strategy.record_failure(target.address, target.queue, error, now)
        if error.refresh_route:
            self._routes.refresh(sending.message.topic, now)
        if isinstance(error, OutcomeUnknown):
            sending.unknown = error
        if is_retried and not sending.is_over(now) and not self._is_closed:
            self._again(sending, now)
        else:
            self._finish(sending, sending.unknown or sending.error or error)

    def _again(self, sending: _Sending, now: Now) -> None:
        publish_info = self._topics.get(sending.message.topic)
        if publish_info is not None and self._strategy.has_other(publish_info, sending.last_broker, now):
            self._try(sending, now)
            return
        self._waiting.append(sending)
        if self._wait_timer is None:
            self._retry_waiting_later(now)

    # Messages that wait for a target.

    def _retry_waiting_later(self, now: Now) -> None:
        pause_ms = WAIT_MS - int(self._random.random() * WAIT_MS / 2)
        self._wait_timer = self._timers.at(now.mono_ms + pause_ms, self._retry_waiting)

    def _retry_waiting_soon(self) -> None:
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = self._timers.at(0, self._retry_waiting)

    def _retry_waiting(self, now: Now) -> None:
        """Send the waiting messages that have a target. A late message uses up its attempts, then fails."""
        self._wait_timer = None
        waiting, self._waiting = self._waiting, []
        blocked: set[str] = set()
        for sending in waiting:
            topic = sending.message.topic
            publish_info = self._topics.get(topic)
            target = None
            if publish_info is not None and (topic not in blocked or sending.is_late(now)) and not self._is_closed:
                target = self._choose(sending, publish_info, now)
            if target is not None:
                self._send(sending, target, now)
                continue
            blocked.add(topic)
            sending.found_no_target(now)
            if sending.is_over(now) or self._is_closed:
                self._finish(sending, sending.unknown or sending.error or _no_target(topic))
            else:
                self._waiting.append(sending)
        for topic in blocked:
            self._routes.refresh(topic, now)
        if self._waiting and self._wait_timer is None:
            self._retry_waiting_later(now)

    def _finish(self, sending: _Sending, error: TandemError | None) -> None:
        cohort = sending.cohort
        assert cohort is not None, "it has begun"
        if cohort.is_complete:
            self._leave(cohort)
        else:
            cohort.count -= 1
            self.in_flight -= 1
        if sending.stored is not None:
            is_list = sending.is_list or sending.message.is_batch
            sending.ticket.settle(sending.stored if is_list else sending.stored[0])
        elif error is not None:
            sending.ticket.fail(error)
        else:
            sending.ticket.settle(None)


def _no_target(topic: str) -> NoRoute:
    return NoRoute(f"no broker accepts messages for {topic} now")


def _results(answer: Command, status: SendStatus, queue: MessageQueue, message: SendRequest) -> list[SendResult]:
    fields = answer.fields
    queue_id = int(fields["queueId"])
    first = int(fields["queueOffset"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    keys = message.unique_keys
    msg_id = fields["msgId"]
    if len(keys) == 1 and "," not in msg_id:
        return [SendResult(status, keys[0], msg_id, queue, first, fields.get("recallHandle", ""))]
    ids = msg_id.split(",")
    if len(ids) != len(keys):
        ids = [*ids, *[""] * len(keys)][: len(keys)]
    return [SendResult(status, key, ids[n], queue, first + n) for n, key in enumerate(keys)]
