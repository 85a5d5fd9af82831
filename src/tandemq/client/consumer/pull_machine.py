"""The pull consumer without input and output: the user assigns queues, sets positions, and commits.

    assign ─► start offset ─► puller ─► process queue ─► take() ─► commit: up to what was taken
                     seek ─────┘

Queues are not shared among members, and a message counts as consumed when it was taken. An unreadable message
(`client.consumer.unreadable`) is logged and skipped.

Owner: the node. Source: docs/reference/requests.md, "consuming"; RocketMQ DefaultLitePullConsumerImpl.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.consumer import unreadable
from tandemq.client.consumer.offsets.lookup import ask_active_member, starting_offset
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.consumer.queues.queue_puller import MakePuller, QueuePuller, Subscription
from tandemq.client.consumer.subscription import Expression, make_subscription
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import OperationRunner, Steps, checked, current_time, pause, wait
from tandemq.client.core.requests import query_offset_request, update_offset_request
from tandemq.client.core.routes import Routes
from tandemq.client.core.settings import ConsumerOptions
from tandemq.errors import LocalError, TandemError
from tandemq.model.group import SQL_EXPRESSION, ConsumerData
from tandemq.model.message import MessageQueue, StoredMessage

log = logging.getLogger(__name__)
OPEN_RETRY_MS = 500


class PolledMessage(NamedTuple):
    """A message, and the queue it was read from."""

    queue: MessageQueue
    message: StoredMessage


class _Reading:
    """One queue assigned by the user."""

    __slots__ = ("committed", "is_placed", "process_queue", "puller")

    def __init__(self, process_queue: ProcessQueue, puller: QueuePuller) -> None:
        self.process_queue = process_queue
        self.puller = puller
        self.is_placed = False
        """Whether its position is known."""
        self.committed = -1


class PullConsumerCore:
    """A pull consumer, driven by the node's turns."""

    def __init__(
        self,
        options: ConsumerOptions,
        routes: Routes,
        availability: BrokerAvailability,
        runner: OperationRunner,
        make_puller: MakePuller,
    ) -> None:
        """No queue is assigned."""
        self.options = options
        self._routes = routes
        self._availability = availability
        self._runner = runner
        self._make_puller = make_puller
        self._readings: dict[MessageQueue, _Reading] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._ready: deque[tuple[_Reading, int, StoredMessage]] = deque()
        """Pulled messages that were not taken: (reading, generation of its process queue, message). Plain tuples save a
        third of a microsecond per message."""
        self._is_closed = False
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there may be messages to take."""
        self.on_subscribed: Callable[[Now], None] = lambda _now: None
        """Called when brokers should get a heartbeat with a new subscription."""

    def queues(self, topic: str) -> Steps[list[MessageQueue]]:
        """Return the queues of a topic that can be read, sorted.

        Raises:
            NoRoute, NetworkError: the route cannot be fetched.
        """
        now = yield from current_time()
        self._routes.want(topic)
        route = yield from wait(self._routes.fetch(topic, now))
        return sorted(route.subscribe_queues())

    def subscribe(self, topic: str, expression: Expression, now: Now) -> None:
        """Set what to read of a topic, for queues that are assigned from now on; all messages by default.

        Raises:
            ConfigError: the topic or the expression is invalid.
        """
        subscription = self._subscriptions[topic] = make_subscription(topic, expression, now.wall_ms)
        if subscription.data.expression_type == SQL_EXPRESSION:
            self.on_subscribed(now)

    def assign(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Read these queues and no others; new ones from the group's committed offset, else by `consume_from`."""
        wanted = list(dict.fromkeys(queues))
        for queue in [queue for queue in self._readings if queue not in set(wanted)]:
            self._readings.pop(queue).puller.stop()
        for queue in wanted:
            if queue not in self._readings:
                self._open(queue, now)

    def assigned(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(self._readings)

    def _open(self, queue: MessageQueue, now: Now) -> None:
        self._routes.want(queue.topic)
        if queue.topic not in self._subscriptions:
            self.subscribe(queue.topic, "*", now)
        process_queue = ProcessQueue(queue, self.options.prefetch_messages, self.options.prefetch_bytes)
        puller = self._make_puller(
            self._subscriptions[queue.topic],
            process_queue,
            lambda messages, _at: self._on_messages(reading, messages),
        )
        reading = self._readings[queue] = _Reading(process_queue, puller)
        self._runner.start(self._opening(queue, reading), now)

    def _opening(self, queue: MessageQueue, reading: _Reading) -> Steps[None]:
        while self._readings.get(queue) is reading and not reading.is_placed:
            try:
                if self._routes.get(queue.topic) is None:
                    yield from self.queues(queue.topic)
                offset = yield from starting_offset(self._routes, self._availability, self.options, queue)
            except TandemError as error:
                log.info("start offset waits group=%s queue=%s reason=%s", self.options.group, queue, error)
                yield from pause(OPEN_RETRY_MS)
                continue
            if not reading.is_placed:
                self._place(reading, offset, (yield from current_time()))

    def _place(self, reading: _Reading, offset: int, now: Now) -> None:
        reading.is_placed = True
        reading.process_queue.reset(offset)
        reading.puller.restart(now)

    def seek(self, queue: MessageQueue, offset: int, now: Now) -> None:
        """Continue at an offset of an assigned queue.

        Raises:
            LocalError: the queue is not assigned.
        """
        reading = self._readings.get(queue)
        if reading is None:
            raise LocalError(f"{queue} is not assigned")
        self._place(reading, offset, now)

    def position(self, queue: MessageQueue) -> int | None:
        """Return the offset of the next message to take; None if it is not known yet, or the queue is not assigned."""
        reading = self._readings.get(queue)
        return reading.process_queue.committable if reading is not None and reading.is_placed else None

    def take(self, count_max: int, now: Now) -> list[PolledMessage]:
        """Take at most `count_max` pulled messages; the order within a queue is kept."""
        taken: list[PolledMessage] = []
        drained: dict[_Reading, None] = {}
        while self._ready and len(taken) < count_max:
            reading, generation, message = self._ready.popleft()
            queue = reading.process_queue.queue
            if generation == reading.process_queue.generation and self._readings.get(queue) is reading:
                reading.process_queue.note(message.queue_offset)
                taken.append(PolledMessage(queue, message))
                drained[reading] = None
        for reading in drained:
            reading.puller.pull(now)
        return taken

    def _on_messages(self, reading: _Reading, messages: list[StoredMessage]) -> None:
        process_queue = reading.process_queue
        for message in messages:
            if unreadable.is_rejected(process_queue.queue, message):
                unreadable.warn(self.options.group, process_queue.queue, message, "skipped")
                process_queue.ack(message.queue_offset)
            else:
                self._ready.append((reading, process_queue.generation, message))
        self.on_ready()

    def commit(self) -> Steps[None]:
        """Commit the offsets of all messages that were taken.

        Raises:
            NetworkError, RemoteError: the commit of a queue failed; those of other queues may have succeeded.
        """
        for queue, reading in list(self._readings.items()):
            offset = reading.process_queue.committable
            if reading.is_placed and offset != reading.committed:
                yield from self._commit(queue, offset)
                reading.committed = offset

    def _commit(self, queue: MessageQueue, offset: int) -> Steps[None]:
        answer = yield from ask_active_member(
            self._routes,
            self._availability,
            queue.broker_name,
            partial(update_offset_request, self.options.group, queue, offset),
            partial(query_offset_request, self.options.group, queue),
        )
        checked(answer)

    def close(self, now: Now) -> Ticket[None]:
        """Stop reading, without a commit."""
        self._is_closed = True
        self.assign([], now)
        self._ready.clear()
        ticket: Ticket[None] = Ticket()
        ticket.settle(None)
        return ticket

    def heartbeat_data(self) -> list[ConsumerData]:
        """Return the part of a heartbeat that describes this consumer; empty once it is closed."""
        if self._is_closed:
            return []
        subscriptions = [known.data for known in self._subscriptions.values()]
        return [
            ConsumerData(
                self.options.group,
                "CONSUME_ACTIVELY",
                self.options.model.value,
                self.options.consume_from.value,
                subscriptions,
            )
        ]
