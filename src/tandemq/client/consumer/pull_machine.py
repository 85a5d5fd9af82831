"""The pull consumer's machine: queues chosen by the user, read from where the user says, offsets told when asked.

    assign ─► start offset ─► fetch ─► window ─► take() ─► commit tells up to what was taken
                     seek ────┘

Nothing is shared out among members, and a message counts as consumed when it was taken. An unreadable one
(`client.consumer.unreadable`) is logged and passed over.

Owner: the node. Source: docs/reference/requests.md, "consuming".
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable

from tandemq.boundary import Now
from tandemq.client.consumer import unreadable
from tandemq.client.consumer.offsets.store import ask_member, commit_request, offset_question, starting_offset
from tandemq.client.consumer.push_machine import make_subscription
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.consumer.queues.queue_puller import QueuePuller, Subscription
from tandemq.client.core.calls import Ticket
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, checked, current_time, pause, wait
from tandemq.client.core.settings import ConsumerOptions
from tandemq.errors import LocalError, TandemError
from tandemq.model.group import ConsumerData
from tandemq.model.message import MessageQueue, StoredMessage

log = logging.getLogger(__name__)
OPEN_RETRY_MS = 500


class _Reading:
    """One assigned queue."""

    __slots__ = ("is_placed", "process_queue", "puller", "told")

    def __init__(self, process_queue: ProcessQueue, puller: QueuePuller) -> None:
        self.process_queue = process_queue
        self.puller = puller
        self.is_placed = False
        self.told = -1


class PullConsumerCore:
    """A pull consumer as a plain object."""

    def __init__(self, kit: Kit, options: ConsumerOptions) -> None:
        """Nothing is assigned."""
        self.options = options
        self._kit = kit
        self._readings: dict[MessageQueue, _Reading] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._ready: deque[tuple[_Reading, int, StoredMessage]] = deque()
        self._is_closed = False
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there may be messages to take."""

    def queues(self, topic: str) -> Steps[list[MessageQueue]]:
        """The queues of a topic that can be read.

        Raises:
            NoRoute, NetworkError: they cannot be learnt.
        """
        now = yield from current_time()
        self._kit.routes.want(topic)
        route = yield from wait(self._kit.routes.fetch(topic, now))
        return sorted(route.subscribe_queues())

    def subscribe(self, topic: str, expression: str, now: Now) -> None:
        """Which tags of a topic to read, for queues that are assigned from now on; all without this.

        Raises:
            ConfigError: topic or expression cannot be.
        """
        self._subscriptions[topic] = make_subscription(topic, expression, now.wall_ms)

    def assign(self, queues: Iterable[MessageQueue], now: Now) -> None:
        """Read these queues and no others; new ones from the group's committed offset, else by `consume_from`."""
        wanted = list(dict.fromkeys(queues))
        for queue in [queue for queue in self._readings if queue not in set(wanted)]:
            self._readings.pop(queue).puller.stop()
        for queue in wanted:
            if queue not in self._readings:
                self._open(queue, now)

    def assigned(self) -> list[MessageQueue]:
        """The queues that are read, sorted."""
        return sorted(self._readings)

    def _open(self, queue: MessageQueue, now: Now) -> None:
        self._kit.routes.want(queue.topic)
        if queue.topic not in self._subscriptions:
            self.subscribe(queue.topic, "*", now)
        process_queue = ProcessQueue(queue, self.options.prefetch_messages, self.options.prefetch_bytes)
        puller = QueuePuller(
            self._kit,
            self.options,
            self._subscriptions[queue.topic],
            process_queue,
            lambda messages, _at: self._arrived(reading, messages),
        )
        reading = self._readings[queue] = _Reading(process_queue, puller)
        self._kit.runner.start(self._begin(queue, reading), now)

    def _begin(self, queue: MessageQueue, reading: _Reading) -> Steps[None]:
        while self._readings.get(queue) is reading and not reading.is_placed:
            try:
                if self._kit.routes.get(queue.topic) is None:
                    yield from self.queues(queue.topic)
                offset = yield from starting_offset(self._kit, self.options, queue)
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
        """Go on from an offset of an assigned queue.

        Raises:
            LocalError: the queue is not assigned.
        """
        reading = self._readings.get(queue)
        if reading is None:
            raise LocalError(f"{queue} is not assigned")
        self._place(reading, offset, now)

    def position(self, queue: MessageQueue) -> int | None:
        """The offset of the next message to take; None while it is not known, or if the queue is not assigned."""
        reading = self._readings.get(queue)
        return reading.process_queue.committable if reading is not None and reading.is_placed else None

    def take(self, count_max: int, now: Now) -> list[tuple[MessageQueue, StoredMessage]]:
        """Messages that are there, at most `count_max`; in order within a queue."""
        taken: list[tuple[MessageQueue, StoredMessage]] = []
        drained: dict[_Reading, None] = {}
        while self._ready and len(taken) < count_max:
            reading, generation, message = self._ready.popleft()
            queue = reading.process_queue.queue
            if generation == reading.process_queue.generation and self._readings.get(queue) is reading:
                reading.process_queue.ack(message.queue_offset)
                taken.append((queue, message))
                drained[reading] = None
        for reading in drained:
            reading.puller.pull(now)
        return taken

    def _arrived(self, reading: _Reading, messages: list[StoredMessage]) -> None:
        for message in messages:
            if unreadable.is_rejected(reading.process_queue.queue, message):
                unreadable.warn(self.options.group, reading.process_queue.queue, message, "passed over")
                reading.process_queue.ack(message.queue_offset)
            else:
                self._ready.append((reading, reading.process_queue.generation, message))
        self.on_ready()

    def commit(self) -> Steps[None]:
        """Tell the offsets of what was taken.

        Raises:
            NetworkError, RemoteError: one could not be told; others may have been.
        """
        for queue, reading in list(self._readings.items()):
            offset = reading.process_queue.committable
            if reading.is_placed and offset != reading.told:
                yield from self._tell(queue, offset)
                reading.told = offset

    def _tell(self, queue: MessageQueue, offset: int) -> Steps[None]:
        answer = yield from ask_member(
            self._kit,
            queue.broker_name,
            lambda: commit_request(self.options.group, queue, offset),
            check=lambda: offset_question(self.options.group, queue),
        )
        checked(answer)

    def close(self, now: Now) -> Ticket[None]:
        """Stop reading. Offsets are not told: `commit` does that."""
        self._is_closed = True
        self.assign([], now)
        self._ready.clear()
        ticket: Ticket[None] = Ticket()
        ticket.settle(None)
        return ticket

    def heartbeat_data(self) -> list[ConsumerData]:
        """What a heartbeat says of this consumer."""
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
