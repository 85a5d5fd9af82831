"""The pop consumer without input and output: popped messages become deliveries, which are acknowledged or come back.

    a poller per topic and broker ─► next_delivery() ─► ack: confirmed by the broker
                 │                        ├► retry: comes back after a delay
                 │                        └► neither: comes back when its time is over
                 ├► unreadable: retried at once; attempts used up: dead letter; neither is delivered
                 └► waits here, or is handled by `run`: its time is renewed when half of it is over

No queue belongs to a member: each pop asks for messages of any queue of a broker. With `ordered` the group has one
batch of a queue at a time. Its messages are delivered one after the other; when one fails, it and those behind it are
returned, and the broker hands the batch out again.

Invariants: a delivery is ended once. The time of an ended one is not renewed, and a request that ends it waits for a
renewal in flight, which would bring the message back otherwise. When the consumer closes, whatever was popped and not
ended is returned: others get it after `RETURN_MS`.

Owner: the node. Source: docs/reference/pop.md; RocketMQ ConsumeMessagePopConcurrentlyService.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from msgspec.structs import replace

from tandemq.boundary import Now
from tandemq.client.consumer import unreadable
from tandemq.client.consumer.pop.acks import AckSender
from tandemq.client.consumer.pop.poller import PopPoller, PopResult
from tandemq.client.consumer.pop.pop_delivery import PopDelivery
from tandemq.client.consumer.queues.queue_puller import Subscription
from tandemq.client.consumer.send_back import RECONSUME_TIMES_DEFAULT
from tandemq.client.consumer.subscription import Expression, make_subscription
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.calls import Ticket, Timer, Timers
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.operations import (
    NOT_NOW_CODES,
    OperationRunner,
    Steps,
    ask_any_code,
    checked,
    current_time,
    pause,
    refusal,
    wait,
)
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.client.core.settings import PopOptions
from tandemq.codec.remoting.pops import change_request, changed_handle, dead_letter_request
from tandemq.errors import ConfigError, LocalError, NetworkError, NotConnected, TandemError
from tandemq.model.command import Command
from tandemq.model.group import ConsumerData
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.pop import is_poppable, pop_retry_topic
from tandemq.model.topic import Permission

log = logging.getLogger(__name__)
NO_ROUTE_PAUSE_MS = 5_000
"""Pause before the route of a topic that has none is fetched again."""
RETRY_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1_200, 1_800, 3_600, 7_200)
"""Delay before each redelivery of a failed message, as with Java's consumers."""
RETURN_MS = 1_000
"""Invisible time of a message that is returned."""
AGAIN_MS = 100
"""Shortest pause before a request about a message is sent again; doubled up to `AGAIN_MAX_MS`."""
AGAIN_MAX_MS = 1_000
SCAN_MS_MAX = 5_000
"""Longest time between two looks at the messages whose time may end."""
CLOSE_MS = 5_000
"""For how long `close` waits for acknowledgements, and for messages that are returned."""
CLOSE_CHECK_MS = 10
_READ = int(Permission.READ)


class _OrderedQueue:
    """The batch of one queue: its messages are delivered one after the other."""

    __slots__ = ("current", "pop_ms", "waiting")

    def __init__(self, pop_ms: int) -> None:
        self.pop_ms = pop_ms
        """Time of the pop at the broker, which identifies the batch."""
        self.current: PopDelivery | None = None
        """The one that is delivered, or ready to be."""
        self.waiting: deque[PopDelivery] = deque()


class PopConsumerCore:
    """A pop consumer, driven by the node's turns."""

    def __init__(
        self,
        options: PopOptions,
        remoting: RemotingClient,
        routes: Routes,
        availability: BrokerAvailability,
        runner: OperationRunner,
        timers: Timers,
        random: Random,
    ) -> None:
        """Not subscribed to a topic."""
        self.options = options
        self._remoting = remoting
        self._routes = routes
        self._runner = runner
        self._timers = timers
        self._acks = AckSender(options.group, remoting, routes, timers)
        self._make_poller = partial(PopPoller, options, remoting, routes, availability, timers, random)
        self._subscriptions: dict[str, Subscription] = {}
        self._pollers: dict[tuple[str, str], PopPoller] = {}
        """By topic and broker group."""
        self._ready: deque[PopDelivery] = deque()
        self._held: dict[PopDelivery, None] = {}
        """Popped and not ended, in the order of the pops."""
        self._queues: dict[MessageQueue, _OrderedQueue] = {}
        """Of an ordered consumer: queues with messages that are not ended."""
        self._scan: Timer | None = None
        self._scan_ms = max(100, min(SCAN_MS_MAX, options.invisible_ms // 6))
        self._open_operations = 0
        """Number of operations that end or return messages."""
        self._is_closed = False
        self.expired = 0
        """Number of messages whose time was over before they were taken."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there may be a next delivery."""
        self.on_subscribed: Callable[[Now], None] = lambda _now: None
        """Called when brokers should get a heartbeat with a new subscription."""

    # Subscriptions and pollers.

    def subscribe(self, topic: str, expression: Expression, now: Now) -> None:
        """Subscribe to a topic: "*" for all messages, tags: "a || b", or `Sql`. Another expression for the same topic
        counts from the next pops on.

        Raises:
            ConfigError: the topic or the expression is invalid.
        """
        subscription = make_pop_subscription(topic, expression, now.wall_ms)
        is_new = topic not in self._subscriptions
        self._subscriptions[topic] = subscription
        for poller in self._pollers.values():
            if poller.topic == topic:
                poller.subscription = subscription
        self.on_subscribed(now)
        if is_new:
            self._routes.want(topic)
            self._runner.start(self._find_route(topic), now)

    def _find_route(self, topic: str) -> Steps[None]:
        while not self._is_closed:
            route = self._routes.get(topic)
            if route is not None:
                self.route_changed(route, (yield from current_time()))
                return
            try:
                yield from wait(self._routes.fetch(topic, (yield from current_time())))
            except TandemError as error:
                log.info("no route yet group=%s topic=%s reason=%s", self.options.group, topic, error)
                yield from pause(NO_ROUTE_PAUSE_MS)

    def route_changed(self, route: TopicRoute, now: Now) -> None:
        """Pop from the brokers of a changed route, and no others."""
        topic = route.topic
        if topic not in self._subscriptions or self._is_closed:
            return
        names = [data.broker_name for data in route.queues if data.perm & _READ and data.read_queue_nums > 0]
        for key in [key for key in self._pollers if key[0] == topic and key[1] not in names]:
            self._pollers.pop(key).stop()
        for name in names:
            if (topic, name) not in self._pollers:
                poller = self._pollers[topic, name] = self._make_poller(self._subscriptions[topic], name)
                poller.on_popped = self._on_popped
        for poller in self._pollers.values():
            poller.share_messages = max(1, self.options.prefetch_messages // len(self._pollers))
            poller.share_bytes = max(1, self.options.prefetch_bytes // len(self._pollers))
        for poller in list(self._pollers.values()):
            poller.pop(now)

    def pollers(self) -> list[tuple[str, str]]:
        """Return the topics and the broker groups that are popped, sorted."""
        return sorted(self._pollers)

    # Messages.

    def _on_popped(self, poller: PopPoller, result: PopResult, now: Now) -> None:
        until_ms = now.mono_ms + self.options.invisible_ms
        for stored in result.messages:
            handle, topic, attempts = result.answer.handle(stored), poller.topic, result.answer.attempts(stored)
            queue = MessageQueue(
                pop_retry_topic(self.options.group, topic, handle.kind), handle.broker, handle.queue_id
            )
            if (stored.topic, stored.reconsume_times) != (topic, attempts):
                stored = replace(stored, topic=topic, reconsume_times=attempts)
            delivery = PopDelivery(stored, queue, topic, handle, poller, now.mono_ms, until_ms)
            tags = result.subscription.tags
            if self._is_closed or not result.are_kept:
                self._return(delivery, RETURN_MS, now)
            elif tags is not None and stored.tags not in tags:
                self._end(delivery)
                self._acks.add(delivery)  # the broker compares hashes of tags only
            else:
                self._hold(delivery, now)

    def _hold(self, delivery: PopDelivery, now: Now) -> None:
        self._held[delivery] = None
        delivery.poller.waiting += 1
        delivery.poller.waiting_bytes += _size_of(delivery.message)
        if self._scan is None:
            self._scan = self._timers.at(now.mono_ms + self._scan_ms, self._look_at_times)
        if not self.options.ordered:
            self._offer(delivery, now)
            return
        of_queue = self._queues.get(delivery.queue)
        if of_queue is None or of_queue.pop_ms != delivery.handle.pop_ms:
            if of_queue is not None:
                self._void(of_queue)
            of_queue = self._queues[delivery.queue] = _OrderedQueue(delivery.handle.pop_ms)
        of_queue.waiting.append(delivery)
        self._advance(delivery.queue, now)

    def _void(self, of_queue: _OrderedQueue) -> None:
        """Forget what was not taken of a batch that was handed out again."""
        for delivery in (of_queue.current, *of_queue.waiting):
            if delivery is not None and delivery.is_waiting:
                self._end(delivery)

    def _advance(self, queue: MessageQueue, now: Now) -> None:
        """Deliver the next message of an ordered queue, if none is in process."""
        of_queue = self._queues.get(queue)
        if of_queue is None:
            return
        while of_queue.current is None or of_queue.current.is_ended:
            if not of_queue.waiting:
                del self._queues[queue]
                return
            of_queue.current = of_queue.waiting.popleft()
            if not of_queue.current.is_ended:
                self._offer(of_queue.current, now)

    def _return_behind(self, delivery: PopDelivery, delay_ms: int, now: Now) -> None:
        """Return the messages of an ordered queue behind one that comes back."""
        of_queue = self._queues.get(delivery.queue)
        if of_queue is not None and of_queue.current is delivery:
            del self._queues[delivery.queue]
            for other in of_queue.waiting:
                if not other.is_ended:
                    self._return(other, delay_ms, now)

    def _offer(self, delivery: PopDelivery, now: Now) -> None:
        """Make a message ready, unless it cannot be read or its attempts are used up."""
        if self._is_used_up(delivery.message):
            self._bury(delivery, now)
        elif unreadable.is_rejected(delivery.queue, delivery.message):
            outcome = "dead letter" if self.options.ordered else "comes back"
            unreadable.warn(self.options.group, delivery.queue, delivery.message, outcome)
            if self.options.ordered:
                self._bury(delivery, now)
            else:
                self.retry(delivery, now)
        else:
            self._ready.append(delivery)
            self.on_ready()

    def _is_used_up(self, message: StoredMessage) -> bool:
        times = self.options.max_reconsume_times
        if times < 0:
            return not self.options.ordered and message.reconsume_times > RECONSUME_TIMES_DEFAULT
        return message.reconsume_times > times

    @property
    def ready_count(self) -> int:
        """Number of messages that wait for `next_delivery`; the time of some may be over."""
        return len(self._ready)

    def next_delivery(self, now: Now, *, is_renewed: bool = False) -> PopDelivery | None:
        """Return the next message to consume; None if there is none now.

        Args:
            now: the time.
            is_renewed: whether its time is renewed until it is ended.
        """
        while self._ready:
            delivery = self._ready.popleft()
            if delivery.is_ended:
                continue
            if delivery.until_ms <= now.mono_ms:
                self._over(delivery, now)
                continue
            self._taken(delivery)
            delivery.is_renewed = is_renewed
            delivery.poller.pop(now)
            return delivery
        return None

    def return_taken(self, delivery: PopDelivery) -> None:
        """Make a message ready again, as the first one, that was taken and did not reach the application."""
        if not delivery.is_ended:
            delivery.is_waiting = delivery.is_renewed = True
            delivery.poller.waiting += 1
            delivery.poller.waiting_bytes += _size_of(delivery.message)
            self._ready.appendleft(delivery)
            self.on_ready()

    @staticmethod
    def _taken(delivery: PopDelivery) -> None:
        if delivery.is_waiting:
            delivery.is_waiting = False
            delivery.poller.waiting -= 1
            delivery.poller.waiting_bytes -= _size_of(delivery.message)

    # Ends of deliveries.

    def ack(self, delivery: PopDelivery, now: Now) -> Ticket[None]:
        """Acknowledge a message; has no effect if it is ended.

        The ticket is settled when the broker has confirmed it. It fails with NetworkError if the broker has not, until
        the message's time was over, or with RemoteError if it refuses: the message comes back.
        """
        if delivery.is_ended:
            return _settled()
        self._end(delivery)
        ticket = (
            self._acks.add(delivery) if delivery.changing is None else self._operate(self._ack_later(delivery), now)
        )
        self._advance(delivery.queue, now)
        return ticket

    def _ack_later(self, delivery: PopDelivery) -> Steps[None]:
        yield from self._unchanging(delivery)
        yield from wait(self._acks.add(delivery))

    def retry(self, delivery: PopDelivery, now: Now, delay_ms: int | None = None) -> Ticket[None]:
        """End a message that could not be consumed: it comes back after a delay.

        Args:
            delivery: of the message.
            now: the time.
            delay_ms: None: increasing with each redelivery; ordered consumers: `suspend_ms`.

        Returns:
            a ticket, settled when the broker has confirmed it, or the message comes back when its time is over.
        """
        if delivery.is_ended:
            return _settled()
        if delay_ms is None:
            times = min(delivery.message.reconsume_times, len(RETRY_S) - 1)
            delay_ms = self.options.suspend_ms if self.options.ordered else 1_000 * RETRY_S[times]
        self._return_behind(delivery, delay_ms, now)
        return self._return(delivery, delay_ms, now)

    def _end(self, delivery: PopDelivery) -> None:
        delivery.is_ended = True
        if delivery in self._held:
            del self._held[delivery]
            self._taken(delivery)

    def _return(self, delivery: PopDelivery, delay_ms: int, now: Now) -> Ticket[None]:
        """End a message and have it come back."""
        self._end(delivery)
        return self._operate(self._returning(delivery, delay_ms), now)

    def _returning(self, delivery: PopDelivery, delay_ms: int) -> Steps[None]:
        try:
            yield from self._change(delivery, delay_ms)
        except TandemError as error:
            log.info(
                "message is not returned, it comes back when its time is over group=%s queue=%s offset=%d error=%s",
                self.options.group,
                delivery.queue,
                delivery.message.queue_offset,
                error,
            )

    def _bury(self, delivery: PopDelivery, now: Now) -> None:
        """Have a message stored in the topic of dead letters, then acknowledge it."""
        self._end(delivery)
        self._operate(self._burying(delivery), now)

    def _burying(self, delivery: PopDelivery) -> Steps[None]:
        message = delivery.message
        try:
            checked(
                (
                    yield from self._ask_master(
                        delivery,
                        lambda: dead_letter_request(
                            delivery.handle, message.log_offset, self.options.group, delivery.topic, message.unique_key
                        ),
                    )
                )
            )
            yield from wait(self._acks.add(delivery))
        except TandemError as error:
            log.warning(
                "dead letter failed, the message comes back group=%s queue=%s offset=%d error=%s",
                self.options.group,
                delivery.queue,
                message.queue_offset,
                error,
            )

    # Times.

    def change_invisible(self, delivery: PopDelivery, invisible_ms: int, now: Now) -> Ticket[None]:
        """Have a message come back so long after now, unless it is ended before; it is not renewed from then on.

        The ticket fails with LocalError if the message is ended, and with NetworkError or RemoteError if the broker has
        not confirmed it.
        """
        if delivery.is_ended:
            ticket: Ticket[None] = Ticket()
            ticket.fail(LocalError("the message is ended"))
            return ticket
        delivery.is_renewed = False
        return self._operate(self._change(delivery, invisible_ms), now)

    def _change(self, delivery: PopDelivery, invisible_ms: int) -> Steps[None]:
        yield from self._unchanging(delivery)
        done: Ticket[None] = Ticket()
        delivery.changing = done
        try:
            group, topic, asked = self.options.group, delivery.topic, (yield from current_time())
            answer = yield from self._ask_master(
                delivery, lambda: change_request(delivery.handle, group, topic, invisible_ms)
            )
            delivery.handle = changed_handle(delivery.handle, checked(answer))
            delivery.until_ms = asked.mono_ms + invisible_ms
        finally:
            delivery.changing = None
            done.settle(None)

    @staticmethod
    def _unchanging(delivery: PopDelivery) -> Steps[None]:
        while delivery.changing is not None:
            yield from wait(delivery.changing)

    def _ask_master(self, delivery: PopDelivery, make: Callable[[], Command]) -> Steps[Command]:
        """Return the response of the master of the message's broker group; repeated until the message's time is over.

        Raises:
            NetworkError, RemoteError: no master has responded.
        """
        pause_ms = AGAIN_MS
        while True:
            address = self._routes.leader(delivery.handle.broker)
            failure: TandemError = NotConnected(f"no master of {delivery.handle.broker} is connected")
            if address is not None and not self._remoting.is_down(address):
                try:
                    answer = yield from ask_any_code(address, make())
                except NetworkError as error:
                    failure = error
                else:
                    if answer.code not in NOT_NOW_CODES:
                        return answer
                    failure = refusal(answer)
            now = yield from current_time()
            if now.mono_ms + pause_ms >= delivery.until_ms or self._is_closed:
                raise failure
            self._routes.refresh(delivery.topic, now)
            yield from pause(pause_ms)
            pause_ms = min(AGAIN_MAX_MS, 2 * pause_ms)

    def _look_at_times(self, now: Now) -> None:
        """Renew what waits or is handled, and drop what has come back."""
        self._scan = None
        renew_ms = round(1_000 * self.options.renew_s)
        for delivery in list(self._held):
            left_ms = delivery.until_ms - now.mono_ms
            if left_ms <= 0:
                self._over(delivery, now)
            elif (
                delivery.is_renewed
                and delivery.changing is None
                and left_ms <= self.options.invisible_ms // 2
                and now.mono_ms - delivery.popped_ms < renew_ms
            ):
                self._runner.start(self._renew(delivery), now)
        if self._held:
            self._scan = self._timers.at(now.mono_ms + self._scan_ms, self._look_at_times)

    def _renew(self, delivery: PopDelivery) -> Steps[None]:
        try:
            yield from self._change(delivery, self.options.invisible_ms)
        except TandemError as error:
            log.info(
                "not renewed group=%s queue=%s offset=%d error=%s",
                self.options.group,
                delivery.queue,
                delivery.message.queue_offset,
                error,
            )

    def _over(self, delivery: PopDelivery, now: Now) -> None:
        """Forget a message whose time is over: it comes back, even if it was taken and is acknowledged later."""
        self._return_behind(delivery, RETURN_MS, now)
        if delivery.is_waiting:
            self.expired += 1
            log.info(
                "message came back before it was taken group=%s queue=%s offset=%d",
                self.options.group,
                delivery.queue,
                delivery.message.queue_offset,
            )
            self._end(delivery)
            delivery.poller.pop(now)
        self._held.pop(delivery, None)

    # Close; state.

    def _operate(self, steps: Steps[None], now: Now) -> Ticket[None]:
        """Run an operation that `close` waits for."""
        self._open_operations += 1
        ticket = self._runner.start(steps, now)
        ticket.then(self._operated)
        return ticket

    def _operated(self, _done: Any) -> None:
        self._open_operations -= 1

    def stop(self, now: Now) -> None:
        """Pop no more, and return what was not taken."""
        self._is_closed = True
        for poller in self._pollers.values():
            poller.stop()
        for delivery in list(self._held):
            if delivery.is_waiting:
                self._return(delivery, RETURN_MS, now)
        self._ready.clear()

    def close(self, now: Now) -> Ticket[None]:
        """Pop no more, and return what is not ended; the ticket is settled when brokers have confirmed that and all
        acknowledgements, or after `CLOSE_MS`."""
        self.stop(now)
        return self._runner.start(self._closing(now.mono_ms + CLOSE_MS), now)

    def _closing(self, end_ms: int) -> Steps[None]:
        now = yield from current_time()
        for delivery in list(self._held):
            self._return(delivery, RETURN_MS, now)
        self._queues.clear()
        while self._open_operations or self._acks.open_count:
            if (yield from current_time()).mono_ms >= end_ms:
                log.warning("closed without the responses of brokers group=%s", self.options.group)
                return
            yield from pause(CLOSE_CHECK_MS)

    def heartbeat_data(self) -> list[ConsumerData]:
        """Return the part of a heartbeat that describes this consumer; empty once it is closed."""
        if self._is_closed:
            return []
        subscriptions = [known.data for known in self._subscriptions.values()]
        consume_from = self.options.consume_from.value
        return [ConsumerData(self.options.group, "CONSUME_POP", "CLUSTERING", consume_from, subscriptions)]


def make_pop_subscription(topic: str, expression: Expression, version: int) -> Subscription:
    """Return the subscription to a topic that can be popped; see `make_subscription`.

    Raises:
        ConfigError: the topic or the expression is invalid.
    """
    subscription = make_subscription(topic, expression, version)
    if not is_poppable(topic):
        raise ConfigError(
            f"the topic {topic} cannot be popped",
            hint="retry topics are read by pops of their topic, see `PullConsumer`",
        )
    return subscription


def _size_of(message: StoredMessage) -> int:
    return max(message.size, len(message.body))


def _settled() -> Ticket[None]:
    ticket: Ticket[None] = Ticket()
    ticket.settle(None)
    return ticket
