"""The producer's machine: chooses a queue, sends, and tries again elsewhere.

    send ─► route known? ─► choose a queue ─► request ─► stored: settle
             └► ask, park      ▲                ├► refused, retriable ─┐
                               └────────────────┴► no answer ──────────┘   same unique key, another broker

What always holds: a message keeps its unique key through all attempts. If the outcome of any attempt is unknown and no
later one succeeded, the error says OutcomeUnknown: it may be stored. A status is never better than what a broker said.

A queue that the caller chose is not exchanged for another: then a failed attempt is the end.

Owner: the node. Source: docs/requests.md, "sending"; RocketMQ DefaultMQProducerImpl.
"""

from collections.abc import Callable, Sequence
from typing import Any

from tandemq.boundary import Now
from tandemq.client.calls import Ticket
from tandemq.client.kit import Kit
from tandemq.client.latency import Latency
from tandemq.client.links import Answer
from tandemq.client.outgoing import Outgoing, prepare, prepare_batches
from tandemq.client.routes import MASTER_ID, TEMPLATE_TOPIC, TopicRoute, new_topic_route
from tandemq.client.settings import ProducerOptions
from tandemq.client.steps import Steps, refusal, tell_now, void, wait
from tandemq.errors import ClosedError, LocalError, NoRoute, OutcomeUnknown, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import ProducerData
from tandemq.model.hashing import java_hash
from tandemq.model.message import Message, MessageQueue, SendResult, SendStatus

Select = Callable[[list[MessageQueue]], MessageQueue]
"""Chooses one of a topic's queues, which come sorted."""

PARKED_MAX = 100_000
RETRY_PAUSE_MS = 100
"""Before the same broker is tried again because there is no other."""
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

    __slots__ = ("attempts_left", "last_broker", "message", "oneway", "select", "stored", "ticket", "unknown")

    def __init__(self, message: Outgoing, ticket: Ticket[Any], attempts: int, select: Select | None) -> None:
        self.message = message
        self.ticket = ticket
        self.attempts_left = attempts
        self.select = select
        self.oneway = False
        self.last_broker = ""
        self.stored: list[SendResult] | None = None
        self.unknown: OutcomeUnknown | None = None


class _Publishing:
    """The queues of one topic, and whose turn it is."""

    __slots__ = ("position", "queues", "route")

    def __init__(self, route: TopicRoute, position: int) -> None:
        self.route = route
        self.queues = route.publish_queues()
        self.position = position


class ProducerCore:
    """A producer as a plain object."""

    def __init__(self, kit: Kit, options: ProducerOptions) -> None:
        """Nothing is sent yet."""
        self.options = options
        self._kit = kit
        self._latency = Latency()
        self._topics: dict[str, _Publishing] = {}
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

    def send_prepared(self, outgoing: Outgoing, now: Now, *, select: Select | None = None) -> Ticket[SendResult]:
        """Send what is encoded already, as one message."""
        ticket: Ticket[SendResult] = Ticket()
        self._begin(_Sending(outgoing, ticket, 0 if select else self.options.retries, select), now)
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
            self._begin(_Sending(outgoing, ticket, 0 if select else self.options.retries, select), now)
            tickets.append(ticket)
        return tickets

    def send_oneway(self, message: Message, now: Now, *, select: Select | None = None) -> Ticket[None]:
        """Send one message and do not learn what became of it; settled when it was handed to the network.

        Raises:
            LocalError, RecordTooLarge: nothing was sent.
        """
        outgoing = prepare(message, self._kit.keys.next(now.wall_ms), self.options)
        ticket: Ticket[None] = Ticket()
        sending = _Sending(outgoing, ticket, 0, select)
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

    def address_up(self, broker_name: str) -> None:
        """A broker that was down speaks again."""
        self._latency.lift(broker_name)

    # Routes.

    def _begin(self, sending: _Sending, now: Now) -> None:
        if self._is_closed:
            raise ClosedError("the producer is closed")
        self.in_flight += 1
        self._try(sending, now)

    def _publishing(self, topic: str) -> _Publishing | None:
        known = self._topics.get(topic)
        route = self._kit.routes.get(topic)
        if route is None or (known is not None and known.route is route):
            return known
        position = known.position if known is not None else self._kit.random.randrange(1 << 16)
        fresh = self._topics[topic] = _Publishing(route, position)
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
        self._topics[topic] = _Publishing(route, kit.random.randrange(1 << 16))
        return route

    def _fetched(self, topic: str) -> Steps[TopicRoute]:
        now = yield from tell_now()
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
        if not publishing.queues:
            self._kit.routes.refresh(message.topic, now)
            self._failed(sending, "", NoRoute(f"no broker takes messages for {message.topic} now"), now)
            return
        if sending.select is not None:
            queue = sending.select(publishing.queues)
        else:
            queue = self._choose(publishing, sending.last_broker, now)
        sending.last_broker = queue.broker_name
        group = publishing.route.brokers.get(queue.broker_name)
        address = group.members.get(MASTER_ID) if group is not None else None
        if address is None:
            self._kit.routes.refresh(message.topic, now)
            self._failed(sending, queue.broker_name, NoRoute(f"{queue.broker_name} has no master now"), now)
            return
        command = message.command(
            self.options.group, queue.broker_name, queue.queue_id, now.wall_ms, self.options.queues_per_new_topic
        )
        if sending.oneway:
            self._kit.links.tell(address, command, now)
            self._finish(sending, None)
            return
        sent_ms = now.mono_ms
        self._kit.links.request(
            address, command, now, lambda answer, at: self._answered(sending, queue, sent_ms, answer, at),
            timeout_ms=self.options.timeout_ms,
        )  # fmt: skip

    def _choose(self, publishing: _Publishing, last_broker: str, now: Now) -> MessageQueue:
        queues, count = publishing.queues, len(publishing.queues)
        if not self.options.latency_aware and not last_broker:
            publishing.position += 1
            return queues[publishing.position % count]
        for _ in range(count):
            publishing.position += 1
            queue = queues[publishing.position % count]
            if queue.broker_name != last_broker and self._is_available(publishing.route, queue.broker_name, now):
                return queue
        # Nobody is fine: the least bad one, and still one queue after the other.
        publishing.position += 1
        names = list(dict.fromkeys(queue.broker_name for queue in queues))
        others = [name for name in names if name != last_broker] or names
        chosen = self._latency.least_bad(others)
        of_chosen = [queue for queue in queues if queue.broker_name == chosen]
        return of_chosen[publishing.position % len(of_chosen)]

    def _is_available(self, route: TopicRoute, broker_name: str, now: Now) -> bool:
        address = route.brokers[broker_name].members.get(MASTER_ID, "") if broker_name in route.brokers else ""
        return self._latency.is_available(broker_name, now.mono_ms) and not self._kit.links.is_down(address)

    def _answered(self, sending: _Sending, queue: MessageQueue, sent_ms: int, answer: Answer, now: Now) -> None:
        if isinstance(answer, TandemError):
            self._failed(sending, queue.broker_name, answer, now)
            return
        status = _STATUS.get(answer.code)
        if status is None:
            self._failed(sending, queue.broker_name, refusal(answer), now)
            return
        try:
            sending.stored = _results(answer, status, queue, sending.message)
        except (KeyError, ValueError) as error:
            unreadable = OutcomeUnknown(f"{queue.broker_name} says stored, and its answer cannot be read: {error!r}")
            self._failed(sending, queue.broker_name, unreadable, now)
            return
        if status is SendStatus.SEND_OK:
            self._latency.answered(queue.broker_name, now.mono_ms - sent_ms, now.mono_ms)
        elif self.options.retry_when_not_stored_ok and sending.attempts_left > 0:
            self._again(sending, now)
            return
        self._finish(sending, None)

    def _failed(self, sending: _Sending, broker_name: str, error: TandemError, now: Now) -> None:
        if error.retriable and broker_name:
            self._latency.failed(broker_name, now.mono_ms)
        if error.refresh_route:
            self._kit.routes.refresh(sending.message.topic, now)
        if isinstance(error, OutcomeUnknown):
            sending.unknown = error
        if error.retriable and sending.attempts_left > 0 and not self._is_closed:
            self._again(sending, now)
        else:
            self._finish(sending, sending.unknown or error)

    def _again(self, sending: _Sending, now: Now) -> None:
        sending.attempts_left -= 1
        publishing = self._publishing(sending.message.topic)
        names = {queue.broker_name for queue in publishing.queues} if publishing is not None else set()
        if publishing is not None and any(
            name != sending.last_broker and self._is_available(publishing.route, name, now) for name in names
        ):
            self._try(sending, now)
        else:
            self._kit.timers.at(now.mono_ms + RETRY_PAUSE_MS, lambda at: self._try(sending, at))

    def _finish(self, sending: _Sending, error: TandemError | None) -> None:
        self.in_flight -= 1
        if sending.stored is not None:
            sending.ticket.settle(sending.stored if sending.message.is_batch else sending.stored[0])
        elif error is not None:
            sending.ticket.fail(error)
        else:
            sending.ticket.settle(None)


def _results(answer: Command, status: SendStatus, queue: MessageQueue, message: Outgoing) -> list[SendResult]:
    queue_id = int(answer.fields["queueId"])
    first = int(answer.fields["queueOffset"])
    if queue_id != queue.queue_id:
        queue = MessageQueue(queue.topic, queue.broker_name, queue_id)
    ids = answer.fields["msgId"].split(",")
    keys = message.unique_keys
    if len(ids) != len(keys):
        ids = [*ids, *[""] * len(keys)][: len(keys)]
    return [SendResult(status, key, ids[n], queue, first + n) for n, key in enumerate(keys)]
