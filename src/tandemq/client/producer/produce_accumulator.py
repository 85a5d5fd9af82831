"""Batches that a producer makes by itself: messages that are sent within `linger_ms` share a request.

    send ─► lane of its topic, or of the queue that was chosen for it ─► `batch_bytes` or `linger_ms` reached ─► batch
                                                                                 results ─► one per message

A lane without a queue sends any number of batches at a time: a broker and a queue are chosen for each, and it is
retried like a message. The lane of a chosen queue (`by_key`, `queue`, `select`) has one batch in flight: brokers of
RocketMQ handle requests of one connection on several threads, so that the order within a queue would be lost otherwise.
What arrives meanwhile waits, and is in the next batch.

Not gathered are messages that a broker refuses in batches: delayed and timed ones, those with a priority, requests and
replies, and those for retry topics. A compressed body is sent alone, in its turn, because batches are not compressed.

Invariants: each message has one result, its own. One that is invalid was refused by `send`. When a broker refuses a
batch as invalid, nothing of it is stored; it is sent again in halves, so that only the message at fault fails.

Owner: the producer. Source: docs/reference/requests.md, "sending"; RocketMQ ProduceAccumulator.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from tandemq.boundary import Now
from tandemq.client.core.calls import Ticket, Timer, Timers
from tandemq.client.core.operations import OperationRunner, void
from tandemq.client.core.routes import TopicRoute
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import SendRequest, gathered_request
from tandemq.client.producer.publish_info import Select, TopicPublishTable
from tandemq.errors import ClosedError, LocalError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import Message, MessageQueue, SendResult
from tandemq.model.replies import MSG_TYPE
from tandemq.model.topic import RETRY_PREFIX

Start = Callable[[SendRequest, Select | None, Now], Ticket[list[SendResult]]]
"""Sends a request, and returns its results, one per message."""
UNROUTED_MAX = 100_000
"""Maximum number of messages per topic that wait for its route."""


def _nothing(_count: int) -> None:
    """Nobody counts."""


def may_gather(message: Message) -> bool:
    """Return whether brokers take a message in a batch."""
    properties = message.properties
    return (
        message.is_batchable
        and not message.topic.startswith(RETRY_PREFIX)
        and not (properties and MSG_TYPE in properties)
    )


class GatheredMessage(Ticket[SendResult], eq=False):
    """One message that waits for its batch, or is in flight in one; also its ticket."""

    topic: str = ""
    wait_store_ok: bool = True
    part: bytes = b""
    """The message as part of a batch; dropped when it is settled."""
    unique_key: str = ""
    on_settled: Callable[[int], None] = _nothing
    """Called with the number of messages that are settled, before the last of them is."""
    alone: SendRequest | None = None
    """Its request, if it cannot be in a batch."""


class _Lane:
    """Messages of one topic that may share a request."""

    __slots__ = ("alone_count", "batches", "is_due", "is_in_flight", "queue", "size", "timer", "waiting")

    def __init__(self, queue: MessageQueue | None) -> None:
        self.queue = queue
        """The queue that was chosen for them, if it was."""
        self.waiting: deque[GatheredMessage] = deque()
        self.size = 0
        self.alone_count = 0
        """Number of them that cannot be in a batch."""
        self.batches: deque[list[GatheredMessage]] = deque()
        """Halves of a batch that was refused, to be sent before what waits."""
        self.timer: Timer | None = None
        self.is_due = False
        self.is_in_flight = False


class ProduceAccumulator:
    """Batches of one producer."""

    def __init__(
        self,
        options: ProducerOptions,
        topics: TopicPublishTable,
        runner: OperationRunner,
        timers: Timers,
        start: Start,
    ) -> None:
        """Nothing waits."""
        self._linger_ms = options.linger_ms
        self._bytes_max = min(options.batch_bytes, options.batch_bytes_max)
        self._topics = topics
        self._runner = runner
        self._timers = timers
        self._start = start
        self._lanes: dict[tuple[str, bool, MessageQueue | None], _Lane] = {}
        self._unrouted: dict[str, list[tuple[GatheredMessage, Select]]] = {}
        self._is_hurried = False
        self._is_closed = False

    def add(self, gathered: GatheredMessage, select: Select | None, now: Now) -> Ticket[SendResult]:
        """Have a message sent with others; returns its own ticket."""
        if select is not None:
            self._place(gathered, select, now)
            return gathered
        # Most messages: as by `_enter`, when nothing but the lane changes.
        lane = self._lanes.get((gathered.topic, gathered.wait_store_ok, None))
        if lane is None or lane.timer is None or gathered.alone is not None or self._is_hurried:
            self._enter(gathered, None, now)
            return gathered
        size = lane.size + len(gathered.part)
        if size >= self._bytes_max:
            self._enter(gathered, None, now)
            return gathered
        lane.waiting.append(gathered)
        lane.size = size
        return gathered

    def flush(self, now: Now) -> None:
        """Send all that waits, at once or behind what is in flight on its lane."""
        for lane in list(self._lanes.values()):
            self._due(lane, now)

    def hurry(self, now: Now) -> None:
        """Let nothing linger any more."""
        self._is_hurried = True
        self.flush(now)

    def close(self, error: ClosedError) -> None:
        """Fail what was not sent."""
        self._is_closed = True
        lanes, self._lanes = self._lanes, {}
        unrouted, self._unrouted = self._unrouted, {}
        for lane in lanes.values():
            for gathered in (*(one for batch in lane.batches for one in batch), *lane.waiting):
                _fail(gathered, error)
        for entries in unrouted.values():
            for gathered, _ in entries:
                _fail(gathered, error)

    # The queue that was chosen for a message.

    def _place(self, gathered: GatheredMessage, select: Select, now: Now) -> None:
        topic = gathered.topic
        unrouted = self._unrouted.get(topic)
        if unrouted is not None:
            if len(unrouted) >= UNROUTED_MAX:
                _fail(gathered, LocalError(f"{UNROUTED_MAX} messages already wait for the route of {topic}"))
            else:
                unrouted.append((gathered, select))
            return
        publish_info = self._topics.get(topic)
        if publish_info is not None:
            self._choose(gathered, select, publish_info.queues, now)
            return
        self._unrouted[topic] = [(gathered, select)]
        found = self._runner.start(self._topics.find_route(topic), now)
        found.then(lambda done: void(self._timers.at(0, partial(self._routed, topic, done))))

    def _routed(self, topic: str, found: Ticket[TopicRoute], now: Now) -> None:
        for gathered, select in self._unrouted.pop(topic, ()):
            if found.error is not None:
                _fail(gathered, found.error)
            else:
                self._place(gathered, select, now)

    def _choose(self, gathered: GatheredMessage, select: Select, queues: list[MessageQueue], now: Now) -> None:
        if not queues:  # the producer waits for one, or fails the message
            self._start(self._request([gathered]), select, now).then(partial(_settle, [gathered]))
            return
        try:
            queue = select(queues)
        except LocalError as error:
            _fail(gathered, error)
        else:
            self._enter(gathered, queue, now)

    # Lanes.

    def _enter(self, gathered: GatheredMessage, queue: MessageQueue | None, now: Now) -> None:
        key = gathered.topic, gathered.wait_store_ok, queue
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane(queue)
        part_bytes = len(gathered.part)
        size = lane.size + part_bytes
        if size > self._bytes_max and lane.waiting:
            self._due(lane, now)
            size = lane.size + part_bytes
        lane.waiting.append(gathered)
        lane.size = size
        if gathered.alone is not None:
            lane.alone_count += 1
        if size >= self._bytes_max or self._is_hurried:
            self._due(lane, now)
        elif lane.timer is None and not lane.is_due:
            lane.timer = self._timers.at(now.mono_ms + self._linger_ms, partial(self._lingered, lane))

    def _lingered(self, lane: _Lane, now: Now) -> None:
        lane.timer = None
        self._due(lane, now)

    def _due(self, lane: _Lane, now: Now) -> None:
        """Send what waits on a lane; what has no place yet goes when the batch in flight has ended."""
        if lane.timer is not None:
            lane.timer.cancel()
            lane.timer = None
        lane.is_due = bool(lane.waiting or lane.batches)
        while lane.is_due and not lane.is_in_flight and not self._is_closed:
            self._send(lane, lane.batches.popleft() if lane.batches else self._cut(lane), now)
            lane.is_due = bool(lane.waiting or lane.batches)

    def _cut(self, lane: _Lane) -> list[GatheredMessage]:
        """Take the next batch from what waits: one message at least."""
        waiting = lane.waiting
        if lane.size <= self._bytes_max and not lane.alone_count:
            batch = list(waiting)
            waiting.clear()
            lane.size = 0
            return batch
        batch = [waiting.popleft()]
        size = len(batch[0].part)
        while waiting and batch[0].alone is None and waiting[0].alone is None:
            if size + len(waiting[0].part) > self._bytes_max:
                break
            size += len(waiting[0].part)
            batch.append(waiting.popleft())
        lane.size -= size
        lane.alone_count -= batch[0].alone is not None
        return batch

    def _send(self, lane: _Lane, batch: list[GatheredMessage], now: Now) -> None:
        queue = lane.queue
        request = self._request(batch)
        lane.is_in_flight = queue is not None
        select: Select | None = None if queue is None else lambda _queues: queue
        self._start(request, select, now).then(partial(self._ended, lane, batch))

    @staticmethod
    def _request(batch: list[GatheredMessage]) -> SendRequest:
        first = batch[0]
        if first.alone is not None:
            return first.alone
        keys = tuple([one.unique_key for one in batch])
        return gathered_request(first.topic, [one.part for one in batch], keys, wait_store_ok=first.wait_store_ok)

    def _ended(self, lane: _Lane, batch: list[GatheredMessage], done: Ticket[list[SendResult]]) -> None:
        error = done.error
        lane.is_in_flight = False
        if error is not None and error.code == ResponseCode.MESSAGE_ILLEGAL and len(batch) > 1 and not self._is_closed:
            middle = len(batch) // 2
            lane.batches.extendleft((batch[middle:], batch[:middle]))
            lane.is_due = True
        else:
            _settle(batch, done)
        if lane.is_due:
            # A callback of a ticket has no time, a timer has.
            self._timers.at(0, partial(self._due, lane))
        elif not lane.waiting:
            self._forget(lane, batch[0])

    def _forget(self, lane: _Lane, last: GatheredMessage) -> None:
        """Drop a lane that nothing waits on; there may be one per queue."""
        key = last.topic, last.wait_store_ok, lane.queue
        if self._lanes.get(key) is lane:
            del self._lanes[key]


def _settle(batch: list[GatheredMessage], done: Ticket[list[SendResult]]) -> None:
    """Give each message of a request its result, or all of them the error."""
    if done.error is not None:
        for gathered in batch:
            _fail(gathered, done.error)
        return
    counted, last = batch[0].on_settled, batch[-1]
    are_mixed = any(gathered.on_settled is not counted for gathered in batch)
    for gathered, result in zip(batch, done.result(), strict=True):
        if are_mixed:
            gathered.on_settled(1)
        elif gathered is last:
            counted(len(batch))
        gathered.part = b""
        gathered.settle(result)


def _fail(gathered: GatheredMessage, error: TandemError) -> None:
    gathered.on_settled(1)
    gathered.part = b""
    gathered.fail(error)
