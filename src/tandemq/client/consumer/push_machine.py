"""The push consumer's machine: shares pull, deliveries come out, acknowledgements go in.

    shares ─► messages ─► next_delivery() ─► ack: the offset may pass it
                 │                        └► retry: sent back, then as acknowledged; or delivered again
                 └► unreadable: retry at once, never delivered

Concurrent: all that was pulled may be handed out at once, in any order of queues, in order within one.
Orderly: of each queue one message at a time, under the queue's lock; one that failed comes again before the next.

What always holds: every delivery is ended once, by `ack` or `retry`; what is neither stays uncommitted and comes
again, here or at another member. Deliveries of a queue that was given back meanwhile are no longer this consumer's:
ending them does nothing.

Owner: the node. Source: docs/reference/requests.md, "consuming"; RocketMQ ConsumeMessage*Service.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from tandemq.boundary import Now
from tandemq.client.consumer import unreadable
from tandemq.client.consumer.offsets.store import OffsetStorage
from tandemq.client.consumer.queues.queue_puller import Subscription
from tandemq.client.consumer.queues.rebalance import AssignedQueue, AssignmentState, RebalanceService
from tandemq.client.consumer.send_back import DEAD_LETTER_LEVEL, send_back
from tandemq.client.core.calls import Ticket
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import void
from tandemq.client.core.routes import TopicRoute
from tandemq.client.core.settings import ConsumerOptions, MessageModel
from tandemq.client.producer.machine import ProducerCore
from tandemq.errors import ConfigError
from tandemq.model.group import ConsumerData, SubscriptionData, parse_tag_expression, tag_codes
from tandemq.model.message import RETRY_TOPIC, MessageQueue, StoredMessage
from tandemq.model.topic import retry_topic, topic_name_error

log = logging.getLogger(__name__)
LOCAL_RETRY_MS = 5_000
"""After which a message that nobody would take back is delivered again here."""


class Delivery:
    """One message handed to the user, until it is ended."""

    __slots__ = ("_generation", "is_ended", "message", "on_end", "queue", "share")

    def __init__(self, message: StoredMessage, queue: MessageQueue, share: AssignedQueue | None) -> None:
        """Of a share; without one it was handed in from outside and has no offset."""
        self.message = message
        self.queue = queue
        self.share = share
        self.is_ended = False
        self.on_end: Callable[[bool, Now], None] | None = None
        """Told whether it was acknowledged: for messages handed in from outside."""
        self._generation = share.process_queue.generation if share is not None else 0

    @property
    def is_ours(self) -> bool:
        """Whether its queue is still this consumer's, and was not set to another offset."""
        share = self.share
        return (
            share is not None
            and share.state is AssignmentState.ACTIVE
            and share.process_queue.generation == self._generation
        )


def make_subscription(topic: str, expression: str, version: int) -> Subscription:
    """What to read of a topic, for instance "*" or "a || b".

    Raises:
        ConfigError: topic or expression cannot be.
    """
    if not isinstance(topic, str) or not isinstance(expression, str):
        raise ConfigError(f"a topic and an expression must be str, not {topic!r:.64} and {expression!r:.64}")
    fault = topic_name_error(topic)
    if fault is not None:
        raise ConfigError(fault)
    try:
        tags = parse_tag_expression(expression)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if any("|" in tag for tag in tags or ()):
        raise ConfigError(f"the subscription {expression[:64]!r} is none", hint="write `*` or `a || b`")
    data = SubscriptionData(
        topic, expression.strip() or "*", sorted(tags or ()), sorted(tag_codes(tags or [])), version
    )
    return Subscription(data, None if tags is None else frozenset(tags))


class PushConsumerCore:
    """A push consumer as a plain object."""

    def __init__(
        self, kit: Kit, options: ConsumerOptions, producer: ProducerCore, local: OffsetStorage, now: Now
    ) -> None:
        """Subscribed to nothing but its retry topic. `producer` sends what cannot be sent back."""
        self.options = options
        self._kit = kit
        self._producer = producer
        self._ready: deque[Delivery] = deque()
        self._waiting: dict[AssignedQueue, deque[Delivery]] = {}
        self._current: dict[AssignedQueue, Delivery] = {}
        self._is_closed = False
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there may be a next delivery."""
        self.on_subscribed: Callable[[Now], None] = lambda _now: None
        """Called when brokers should hear of a new subscription."""
        self.rebalance_service = RebalanceService(kit, options, local, self._arrived, self._dropped)
        self.rebalance_service.on_locked = self._offer
        kit.routes.on_change.append(self._route_changed)
        timers, mono_ms = kit.timers, now.mono_ms
        timers.every(options.rebalance_ms, self.rebalance_service.rebalance, first_ms=mono_ms + options.rebalance_ms)
        timers.every(options.commit_ms, self._commit, first_ms=mono_ms + options.commit_ms)
        if options.orderly:
            timers.every(options.lock_renew_ms, self._renew_locks, first_ms=mono_ms + options.lock_renew_ms)

    # What users ask for.

    def subscribe(self, topic: str, expression: str, now: Now) -> None:
        """Read a topic: all of it ("*"), or some tags ("a || b").

        Raises:
            ConfigError: topic or expression cannot be.
        """
        self.rebalance_service.subscribe(make_subscription(topic, expression, now.wall_ms), now)
        retries = retry_topic(self.options.group)
        is_clustering = self.options.model is MessageModel.CLUSTERING
        if is_clustering and all(known.data.topic != retries for known in self.rebalance_service.subscriptions):
            self.rebalance_service.subscribe(make_subscription(retries, "*", now.wall_ms), now)
        self.on_subscribed(now)

    def next_delivery(self) -> Delivery | None:
        """The next message to consume; None if there is none now."""
        while self._ready:
            delivery = self._ready.popleft()
            if delivery.share is None or delivery.is_ours:
                return delivery
        return None

    def ack(self, delivery: Delivery, now: Now) -> None:
        """The message is consumed. A second time is harmless."""
        if delivery.is_ended:
            return
        delivery.is_ended = True
        if delivery.on_end is not None:
            delivery.on_end(True, now)
        self._pass(delivery, now)

    def retry(self, delivery: Delivery, now: Now, delay_level: int = 0) -> Ticket[None]:
        """The message could not be consumed: have it come again.

        Args:
            delay_level: 0 for a delay that grows with each time, -1 for the dead letter topic at once.
        Returns:
            a ticket, settled when it was sent back, or kept to be delivered again here.
        """
        ticket: Ticket[None] = Ticket()
        if delivery.is_ended:
            ticket.settle(None)
            return ticket
        delivery.is_ended = True
        if delivery.on_end is not None:
            delivery.on_end(False, now)
        if not delivery.is_ours:
            ticket.settle(None)
        elif self.options.model is MessageModel.BROADCASTING:
            log.warning(
                "message given up group=%s queue=%s offset=%d: broadcast messages are not sent back",
                self.options.group,
                delivery.queue,
                delivery.message.queue_offset,
            )
            self._pass(delivery, now)
            ticket.settle(None)
        elif self.options.orderly and delay_level != DEAD_LETTER_LEVEL and not self._is_over(delivery.message):
            self._kit.timers.at(now.mono_ms + self.options.suspend_ms, lambda at: self._redeliver(delivery, at))
            ticket.settle(None)
        else:
            level = DEAD_LETTER_LEVEL if self.options.orderly else delay_level
            self._send_back(delivery, level, ticket, now)
        return ticket

    def _is_over(self, message: StoredMessage) -> bool:
        return 0 <= self.options.max_reconsume_times <= message.reconsume_times

    def _send_back(self, delivery: Delivery, level: int, ticket: Ticket[None], now: Now) -> None:
        story = send_back(self._kit, self.options, self._producer, delivery.queue, delivery.message, level)

        def ended(done: Ticket[bool]) -> None:
            if done.error is None and done.result():
                self._kit.timers.at(0, lambda at: self._pass(delivery, at))
            else:
                self._kit.timers.at(
                    0,
                    lambda at: void(
                        self._kit.timers.at(at.mono_ms + LOCAL_RETRY_MS, lambda then: self._redeliver(delivery, then))
                    ),
                )
            ticket.settle(None)

        self._kit.runner.start(story, now).then(ended)

    def _redeliver(self, delivery: Delivery, now: Now) -> None:
        share = delivery.share
        if share is None or not delivery.is_ours:
            return
        message = replace(delivery.message, reconsume_times=delivery.message.reconsume_times + 1)
        self._hand_out(Delivery(message, delivery.queue, share), now)

    def _pass(self, delivery: Delivery, now: Now) -> None:
        share = delivery.share
        if share is None or not delivery.is_ours:
            return
        share.process_queue.ack(delivery.message.queue_offset)
        if self.options.orderly:
            self._current.pop(share, None)
            self._offer(share, now)
        share.puller.pull(now)

    def hand_in(self, delivery: Delivery) -> None:
        """Deliver a message that came from outside; its `on_end` hears what became of it."""
        self._ready.append(delivery)
        self.on_ready()

    def close(self, now: Now) -> Ticket[None]:
        """Stop reading and tell offsets; settled when the brokers have answered or did not."""
        self._is_closed = True
        self._ready.clear()
        self._waiting.clear()
        return self.rebalance_service.close(now)

    # What the shares bring.

    def _arrived(self, share: AssignedQueue, messages: list[StoredMessage], now: Now) -> None:
        if self._is_closed:
            return
        queue = share.queue
        if queue.topic == retry_topic(self.options.group):
            messages = [replace(m, topic=m.properties.get(RETRY_TOPIC, m.topic)) for m in messages]
        deliveries = [Delivery(message, queue, share) for message in messages]
        if self.options.orderly:
            self._waiting.setdefault(share, deque()).extend(deliveries)
            self._offer(share, now)
        elif any(message.fault for message in messages):
            for delivery in deliveries:
                self._hand_out(delivery, now)
        else:
            self._ready.extend(deliveries)
            self.on_ready()

    def _hand_out(self, delivery: Delivery, now: Now) -> None:
        """Let the user have a message, if it can be read; in orderly mode it is its queue's current one."""
        if self.options.orderly and delivery.share is not None:
            self._current[delivery.share] = delivery
        if unreadable.is_rejected(delivery.queue, delivery.message):
            self._kit.timers.at(now.mono_ms, lambda at: self._reject(delivery, at))
            return
        self._ready.append(delivery)
        self.on_ready()

    def _reject(self, delivery: Delivery, now: Now) -> None:
        """An unreadable message counts as failed. An orderly queue would stand still while it is tried again, and its
        bytes stay the same: there it is a dead letter at once."""
        if not delivery.is_ours or self._is_closed:
            return
        is_broadcast = self.options.model is MessageModel.BROADCASTING
        outcome = "passed over" if is_broadcast else "dead letter" if self.options.orderly else "sent back"
        unreadable.warn(self.options.group, delivery.queue, delivery.message, outcome)
        if is_broadcast:
            self.ack(delivery, now)
        else:
            self.retry(delivery, now, DEAD_LETTER_LEVEL if self.options.orderly else 0)

    def _offer(self, share: AssignedQueue, now: Now) -> None:
        """Hand out an orderly queue's next message, if none is out and the lock holds."""
        waiting = self._waiting.get(share)
        assert self.rebalance_service.locks is not None
        if self._current.get(share) is not None and not self._current[share].is_ours:
            del self._current[share]
        while waiting and not waiting[0].is_ours:
            waiting.popleft()
        if not waiting or share in self._current:
            return
        if not self.rebalance_service.may_consume(share, now):
            return
        self._hand_out(waiting.popleft(), now)

    def _dropped(self, share: AssignedQueue) -> None:
        self._waiting.pop(share, None)
        self._current.pop(share, None)

    def _renew_locks(self, now: Now) -> None:
        locks = self.rebalance_service.locks
        assert locks is not None
        if self._is_closed:
            return
        for share in self.rebalance_service.active():
            self.rebalance_service.may_consume(share, now)
        locks.renew([share.queue for share in self.rebalance_service.active()], now)

    # What the node brings.

    def _route_changed(self, route: TopicRoute, now: Now) -> None:
        if any(known.data.topic == route.topic for known in self.rebalance_service.subscriptions):
            self.rebalance_service.rebalance(now)

    def _commit(self, now: Now) -> None:
        if not self._is_closed:
            self.rebalance_service.commit(now)

    def reset_offsets(self, offsets: dict[MessageQueue, int], now: Now) -> None:
        """Go on from other offsets: what was pulled and not acknowledged is forgotten, and the new offsets are told."""
        for queue, offset in offsets.items():
            self.rebalance_service.withdraw(queue, now)
            share = self.rebalance_service.get(queue)
            if share is not None and share.state is AssignmentState.ACTIVE:
                log.info("offset reset group=%s queue=%s offset=%d", self.options.group, queue, offset)
                share.process_queue.reset(offset)
                self._dropped(share)
                share.puller.restart(now)
        self.rebalance_service.commit(now)

    def heartbeat_data(self) -> list[ConsumerData]:
        """What a heartbeat says of this consumer."""
        if self._is_closed:
            return []
        return [
            ConsumerData(
                self.options.group,
                "CONSUME_PASSIVELY",
                self.options.model.value,
                self.options.consume_from.value,
                [known.data for known in self.rebalance_service.subscriptions],
            )
        ]
