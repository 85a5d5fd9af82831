"""The producer's machine: chooses a queue, sends, and tries again elsewhere.

    send ─► route known? ─► choose a target ─► request ─► stored: settle
             └► ask, park    ▲       ▼             ├► refused, retriable ─┐
                             │   nobody: wait ◄────┴► no answer ──────────┤   same unique key
                             └────────┴───────────────── another broker ──┘

It is over when `retries` further attempts have failed and `retry_ms` have passed since it began: so a message outlives
a failover, in which for some seconds nobody takes it. Those that wait cost nothing but a look every `WAIT_MS`, which is
no attempt; when the time is over nobody is waited for, and the attempts that are left are made.

What always holds: a message keeps its unique key through all attempts. If the outcome of any attempt is unknown and no
later one succeeded, the error says OutcomeUnknown: it may be stored. A status is never better than what a broker said.

A queue that the caller chose is not exchanged for another: then a failed attempt is the end.

Owner: the node. Source: docs/reference/requests.md, "sending"; docs/internals/failover.md, "Clients"; RocketMQ
DefaultMQProducerImpl.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timer
from tandemq.client.core.connections import Answer
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, current_time, refusal, void, wait
from tandemq.client.core.routes import TEMPLATE_TOPIC, TopicRoute, new_topic_route
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import SendRequest, prepare, prepare_batches
from tandemq.client.producer.fault_strategy import MQFaultStrategy, TopicPublishInfo
from tandemq.errors import ClosedError, LocalError, NoRoute, OutcomeUnknown, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import ProducerData
from tandemq.model.java_hash import java_hash
from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus

Select = Callable[[list[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, which come sorted."""

PARKED_MAX = 100_000
WAIT_MS = 100
"""Between two looks whether a message that nobody takes can go somewhere, at most; at random up to a half less."""
FRESH_TOPIC_REFRESH_MS = 300
_STATUS = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
}


def by_hash(key: str) -> Select:
    """Choose the queue by a key's hash, as Java's SelectMessageQueueByHash does: same key, same queue."""
    value = abs(java_hash(key))
    return lambda queues: queues[value % len(queues)]


class _Sending:
    """One message, or batch, on its way."""

    __slots__ = (
        "attempts_left",
        "error",
        "give_up_ms",
        "last_broker",
        "message",
        "oneway",
        "select",
        "stored",
        "ticket",
        "unknown",
    )

    def __init__(self, message: SendRequest, ticket: Ticket[Any], select: Select | None) -> None:
        self.message = message
        self.ticket = ticket
        self.attempts_left = 1
        self.give_up_ms = 0
        self.select = select
        self.oneway = False
        self.last_broker = ""
        self.stored: list[SendResult] | None = None
        self.unknown: OutcomeUnknown | None = None
        self.error: TandemError | None = None
        """Why the last attempt that went to a broker failed."""

    def is_late(self, now: Now) -> bool:
        """Whether the time for which it may be tried has passed: it waits for nobody any more."""
        return now.mono_ms >= self.give_up_ms

    def found_nobody(self, now: Now) -> None:
        """No attempt could be made; that counts as one only if it is late, so that it ends."""
        if self.is_late(now):
            self.attempts_left -= 1

    def is_over(self, now: Now) -> bool:
        """Whether no further attempt is to be made."""
        return self.attempts_left <= 0 and self.is_late(now)


class ProducerCore:
    """A producer as a plain object."""

    def __init__(self, kit: Kit, options: ProducerOptions) -> None:
        """Nothing is sent yet."""
        self.options = options
        self._kit = kit
        self._targets = MQFaultStrategy(kit, options)
        self._topics: dict[str, TopicPublishInfo] = {}
        self._waiting: list[_Sending] = []
        self._look_timer: Timer | None = None
        self._parked: dict[str, list[_Sending]] = {}
        self._is_closed = False
        self.in_flight = 0
        """Messages and batches that are not settled."""

    # What users ask for.

    def send(
        self, message: Message, now: Now, *, select: Select | None = None, unique_key: str | None = None
    ) -> Ticket[SendResult]:
        """Send one message; under a unique key of its own, or one that the caller knows from an earlier attempt.

        Fails with OutcomeUnknown (it may be stored), NotConnected, NoRoute or RemoteError (it is not).

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        outgoing = prepare(message, unique_key or self._kit.keys.next(now.wall_ms), self.options)
        return self.send_prepared(outgoing, now, select=select)

    def send_prepared(self, outgoing: SendRequest, now: Now, *, select: Select | None = None) -> Ticket[SendResult]:
        """Send what is encoded already, as one message."""
        ticket: Ticket[SendResult] = Ticket()
        self._begin(_Sending(outgoing, ticket, select), now)
        return ticket

    def send_batch(
        self, messages: Sequence[Message], now: Now, *, select: Select | None = None
    ) -> list[Ticket[list[SendResult]]]:
        """Send several messages of one topic; one ticket per request, of at most `batch_bytes_max` each.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        keys = [self._kit.keys.next(now.wall_ms) for _ in messages]
        tickets: list[Ticket[list[SendResult]]] = []
        for outgoing in prepare_batches(messages, keys, self.options):
            ticket: Ticket[list[SendResult]] = Ticket()
            self._begin(_Sending(outgoing, ticket, select), now)
            tickets.append(ticket)
        return tickets

    def send_oneway(self, message: Message, now: Now, *, select: Select | None = None) -> Ticket[None]:
        """Send one message and do not learn what became of it; settled when it was handed to the network.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        outgoing = prepare(message, self._kit.keys.next(now.wall_ms), self.options)
        ticket: Ticket[None] = Ticket()
        sending = _Sending(outgoing, ticket, select)
        sending.oneway = True
        self._begin(sending, now)
        return ticket

    def queues(self, topic: str) -> Steps[list[MessageQueue]]:
        """The queues of a topic that take messages."""
        route = yield from self._route(topic)
        return route.publish_queues()

    def heartbeat_data(self) -> list[ProducerData]:
        """What a heartbeat says of this producer."""
        return [ProducerData(self.options.group)]

    def refuse(self) -> None:
        """Take no more, and try nothing again; what is under way may end."""
        self._is_closed = True

    def close(self) -> None:
        """Take no more; what waits for a route fails."""
        self.refuse()
        for topic in list(self._parked):
            self._fail_parked(topic, ClosedError("the producer was closed"))

    def address_up(self, address: str) -> None:
        """A broker that was down speaks again, or one that did not serve does: try it with what waits."""
        self._targets.lift(address)
        self._look_now()

    # Routes.

    def _begin(self, sending: _Sending, now: Now) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        self.in_flight += 1
        sending.give_up_ms = now.mono_ms
        if sending.select is None and not sending.oneway and self.options.retries > 0:
            sending.attempts_left += self.options.retries
            sending.give_up_ms += self.options.retry_ms
        self._try(sending, now)

    def _publishing(self, topic: str) -> TopicPublishInfo | None:
        known = self._topics.get(topic)
        routes = self._kit.routes
        if known is not None and known.version == routes.version:
            return known
        route = routes.get(topic)
        if route is None:
            return known
        position = known.position if known is not None else self._kit.random.randrange(1 << 16)
        fresh = self._topics[topic] = TopicPublishInfo(route, routes, position)
        return fresh

    def _park(self, sending: _Sending, now: Now) -> None:
        topic = sending.message.topic
        parked = self._parked.get(topic)
        if parked is not None:
            if len(parked) >= PARKED_MAX:
                self._finish(sending, LocalError(f"{PARKED_MAX} messages wait for the route of {topic} already"))
            else:
                parked.append(sending)
            return
        self._parked[topic] = [sending]
        self._kit.routes.want(topic)
        found = self._kit.runner.start(self._route(topic), now)
        found.then(lambda done: void(self._kit.timers.at(0, lambda at: self._unpark(topic, done, at))))

    def _route(self, topic: str) -> Steps[TopicRoute]:
        kit = self._kit
        try:
            return (yield from self._fetched(topic))
        except NoRoute:
            template = yield from self._fetched(TEMPLATE_TOPIC)
        route = new_topic_route(topic, template, self.options.queues_per_new_topic)
        if not route.publish_queues():
            raise NoRoute(f"no broker creates the topic {topic}", hint="create it with `tandemq topic create`")
        self._topics[topic] = TopicPublishInfo(route, kit.routes, kit.random.randrange(1 << 16))
        return route

    def _fetched(self, topic: str) -> Steps[TopicRoute]:
        now = yield from current_time()
        return (yield from wait(self._kit.routes.fetch(topic, now)))

    def _unpark(self, topic: str, found: Ticket[TopicRoute], now: Now) -> None:
        if found.error is not None:
            self._fail_parked(topic, found.error)
            return
        for sending in self._parked.pop(topic, ()):
            self._try(sending, now)
        if self._kit.routes.get(topic) is None:
            self._kit.timers.at(now.mono_ms + FRESH_TOPIC_REFRESH_MS, lambda at: self._kit.routes.refresh(topic, at))

    def _fail_parked(self, topic: str, error: TandemError) -> None:
        for sending in self._parked.pop(topic, ()):
            self._finish(sending, error)

    # Attempts.

    def _try(self, sending: _Sending, now: Now) -> None:
        message = sending.message
        publishing = self._publishing(message.topic)
        if publishing is None:
            self._park(sending, now)
            return
        target = self._target(sending, publishing, now)
        if target is None:
            self._kit.routes.refresh(message.topic, now)
            sending.found_nobody(now)
            self._failed(sending, None, "", _nobody(message.topic), now)
        else:
            self._send(sending, *target, now)

    def _target(self, sending: _Sending, publishing: TopicPublishInfo, now: Now) -> tuple[MessageQueue, str] | None:
        if not publishing.queues:
            return None
        is_late = sending.is_late(now)
        if sending.select is None:
            return self._targets.choose(publishing, sending.last_broker, now, is_late=is_late)
        queue = sending.select(publishing.queues)
        address = self._targets.member(queue.broker_name, queue.topic, now, is_late=is_late)
        return None if address is None else (queue, address)

    def _send(self, sending: _Sending, queue: MessageQueue, address: str, now: Now) -> None:
        sending.last_broker = queue.broker_name
        sending.attempts_left -= 1
        command = sending.message.command(
            self.options.group, queue.broker_name, queue.queue_id, now.wall_ms, self.options.queues_per_new_topic
        )
        if sending.oneway:
            self._kit.links.tell(address, command, now)
            self._finish(sending, None)
            return
        sent_ms = now.mono_ms
        self._kit.links.request(
            address,
            command,
            now,
            lambda answer, at: self._answered(sending, queue, address, sent_ms, answer, at),
            timeout_ms=self.options.timeout_ms,
        )

    def _answered(
        self, sending: _Sending, queue: MessageQueue, address: str, sent_ms: int, answer: Answer, now: Now
    ) -> None:
        if isinstance(answer, TandemError):
            self._failed(sending, queue, address, answer, now)
            return
        status = _STATUS.get(answer.code)
        if status is None:
            self._failed(sending, queue, address, refusal(answer), now)
            return
        try:
            sending.stored = _results(answer, status, queue, sending.message)
        except (KeyError, ValueError) as error:
            unreadable = OutcomeUnknown(f"{queue.broker_name} says stored, and its answer cannot be read: {error!r}")
            self._failed(sending, queue, address, unreadable, now)
            return
        if status is SendStatus.SEND_OK:
            if self._targets.answered(address, queue.topic, now.mono_ms - sent_ms, now):
                self._look_now()
        elif self.options.retry_when_not_stored_ok and sending.attempts_left > 0:
            self._again(sending, now)
            return
        self._finish(sending, None)

    def _failed(
        self, sending: _Sending, queue: MessageQueue | None, address: str, error: TandemError, now: Now
    ) -> None:
        if queue is not None:
            sending.error = error
            if error.retriable:
                self._targets.failed(address, queue, error, now)
        if error.refresh_route:
            self._kit.routes.refresh(sending.message.topic, now)
        if isinstance(error, OutcomeUnknown):
            sending.unknown = error
        if error.retriable and not sending.is_over(now) and not self._is_closed:
            self._again(sending, now)
        else:
            self._finish(sending, sending.unknown or sending.error or error)

    def _again(self, sending: _Sending, now: Now) -> None:
        publishing = self._publishing(sending.message.topic)
        if publishing is not None and self._targets.has_other(publishing, sending.last_broker, now):
            self._try(sending, now)
            return
        self._waiting.append(sending)
        if self._look_timer is None:
            self._look_later(now)

    def _look_later(self, now: Now) -> None:
        pause_ms = WAIT_MS - int(self._kit.random.random() * WAIT_MS / 2)
        self._look_timer = self._kit.timers.at(now.mono_ms + pause_ms, self._look)

    def _look_now(self) -> None:
        if self._look_timer is not None:
            self._look_timer.cancel()
            self._look_timer = self._kit.timers.at(0, self._look)

    def _look(self, now: Now) -> None:
        """Send on what can go somewhere. What has waited too long still has its attempts, then is over."""
        self._look_timer = None
        waiting, self._waiting = self._waiting, []
        blocked: set[str] = set()
        for sending in waiting:
            topic = sending.message.topic
            publishing = self._publishing(topic)
            target = None
            if publishing is not None and (topic not in blocked or sending.is_late(now)) and not self._is_closed:
                target = self._target(sending, publishing, now)
            if target is not None:
                self._send(sending, *target, now)
                continue
            blocked.add(topic)
            sending.found_nobody(now)
            if sending.is_over(now) or self._is_closed:
                self._finish(sending, sending.unknown or sending.error or _nobody(topic))
            else:
                self._waiting.append(sending)
        for topic in blocked:
            self._kit.routes.refresh(topic, now)
        if self._waiting and self._look_timer is None:
            self._look_later(now)

    def _finish(self, sending: _Sending, error: TandemError | None) -> None:
        self.in_flight -= 1
        if sending.stored is not None:
            sending.ticket.settle(sending.stored if sending.message.is_batch else sending.stored[0])
        elif error is not None:
            sending.ticket.fail(error)
        else:
            sending.ticket.settle(None)


def _nobody(topic: str) -> NoRoute:
    return NoRoute(f"no broker takes messages for {topic} now")


def _results(answer: Command, status: SendStatus, queue: MessageQueue, message: SendRequest) -> list[SendResult]:
    queue_id = int(answer.fields["queueId"])
    first = int(answer.fields["queueOffset"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    ids = answer.fields["msgId"].split(",")
    keys = message.unique_keys
    if len(ids) != len(keys):
        ids = [*ids, *[""] * len(keys)][: len(keys)]
    return [SendResult(status, key, ids[n], queue, first + n) for n, key in enumerate(keys)]
