"""The push consumer without input and output: pulled messages become deliveries, which are acknowledged or sent back.

    assigned queues ─► messages ─► next_delivery() ─► ack: the committed offset may pass it
                          │                        └► retry: sent back, then as acknowledged; or delivered again
                          └► unreadable: retried at once, never delivered

Concurrent: all pulled messages may be delivered at once; the order within a queue is kept.
Orderly: one message of each queue at a time, under the lock of the queue; a failed message is delivered again before
the next one.

`stop` ends deliveries: what was delivered can still be ended, and the queues stay assigned meanwhile. `close` commits
and gives the queues up, so that other members continue behind the acknowledged messages. A message that is not ended,
but overtaken by acknowledged ones, is sent back first; otherwise those would be delivered again with it.

With a window of handled messages, duplicates are not delivered (`client.consumer.deduplication`).

Invariant: a delivery is ended once, by `ack` or `retry`; one that is not ended stays uncommitted and is delivered
again, here or at another member. Ending a delivery of a queue that was dropped meanwhile has no effect.

Owner: the node. Source: docs/reference/requests.md, "consuming"; RocketMQ DefaultMQPushConsumerImpl,
ConsumeMessage*Service.
"""

import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from tandemq.boundary import Now
from tandemq.client.consumer import unreadable
from tandemq.client.consumer.consume_tracer import ConsumeTracer
from tandemq.client.consumer.deduplication import DuplicateDecision, DuplicateFilter
from tandemq.client.consumer.delivery import Delivery
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue, AssignmentState
from tandemq.client.consumer.rebalance import RebalanceService
from tandemq.client.consumer.send_back import DEAD_LETTER_LEVEL, RECONSUME_TIMES_DEFAULT, MessageSendBack
from tandemq.client.consumer.subscription import Expression, make_subscription
from tandemq.client.core.calls import Ticket, Timers
from tandemq.client.core.operations import OperationRunner, Steps, current_time, pause, wait
from tandemq.client.core.routes import TopicRoute
from tandemq.client.core.settings import ConsumerOptions, MessageModel
from tandemq.model.group import ConsumerData, Sql
from tandemq.model.message import RETRY_TOPIC, MessageQueue, StoredMessage
from tandemq.model.topic import retry_topic

log = logging.getLogger(__name__)
LOCAL_RETRY_MS = 5_000
"""Pause before a message that could not be sent back is delivered again here."""
PARKED_MAX_MS = 60_000
"""For how long a duplicate waits for the end of the delivery before it; then it is delivered too."""

RETURN_LEVEL = 1
"""Delay level of a message that was not handled before the consumer closed: a second, by default."""
CLOSE_CHECK_MS = 10
_ACTIVE = AssignmentState.ACTIVE


class PushConsumerCore:
    """A push consumer, driven by the node's turns."""

    def __init__(
        self,
        options: ConsumerOptions,
        runner: OperationRunner,
        timers: Timers,
        rebalance_service: RebalanceService,
        sender: MessageSendBack,
        now: Now,
    ) -> None:
        """Not subscribed to a topic."""
        self.options = options
        self._is_orderly = options.orderly
        self.rebalance_service = rebalance_service
        self._runner = runner
        self._timers = timers
        self._sender = sender
        self._ready: deque[Delivery] = deque()
        self._waiting: dict[AssignedQueue, deque[Delivery]] = {}
        """Orderly consumers: deliveries of each queue after the current one."""
        self._current: dict[AssignedQueue, Delivery] = {}
        """Orderly consumers: the delivery of each queue that is not ended."""
        self._filter = (
            DuplicateFilter(options.duplicate_window, options.duplicate_window_total)
            if options.duplicate_window
            else None
        )
        self._is_stopped = False
        self._is_closed = False
        self._sending_back = 0
        """Number of messages that are being sent back."""
        self.tracer: ConsumeTracer | None = None
        """Records deliveries, if `options.trace`."""
        self.on_ready: Callable[[], None] = lambda: None
        """Called when there may be a next delivery."""
        self.on_subscribed: Callable[[Now], None] = lambda _now: None
        """Called when brokers should get a heartbeat with a new subscription."""
        self.on_skipped: Callable[[Delivery], None] = lambda _delivery: None
        """Called with each duplicate that is acknowledged instead of delivered."""
        self.on_returned: Callable[[Delivery], None] = lambda _delivery: None
        """Called with each message that was sent back while the consumer closes, before it counts as acknowledged."""
        rebalance_service.on_messages = self._on_messages
        rebalance_service.on_dropped = self._on_dropped
        rebalance_service.on_locked = self._deliver_next
        mono_ms = now.mono_ms
        timers.every(options.rebalance_ms, rebalance_service.rebalance, first_ms=mono_ms + options.rebalance_ms)
        timers.every(options.commit_ms, self._commit, first_ms=mono_ms + options.commit_ms)
        if options.orderly:
            timers.every(options.lock_renew_ms, self._renew_locks, first_ms=mono_ms + options.lock_renew_ms)

    # Operations.

    def subscribe(self, topic: str, expression: Expression, now: Now) -> None:
        """Subscribe to a topic: "*" for all messages, tags: "a || b", or `Sql`.

        Raises:
            ConfigError: the topic or the expression is invalid.
        """
        self.rebalance_service.subscribe(make_subscription(topic, expression, now.wall_ms), now)
        retries = retry_topic(self.options.group)
        is_clustering = self.options.model is MessageModel.CLUSTERING
        if is_clustering and all(known.data.topic != retries for known in self.rebalance_service.subscriptions):
            self.rebalance_service.subscribe(make_subscription(retries, "*", now.wall_ms), now)
        self.on_subscribed(now)
        if isinstance(expression, Sql):
            self.rebalance_service.pull_again(topic, now)

    @property
    def ready_count(self) -> int:
        """Number of messages that wait for `next_delivery`; some may not be ours any more."""
        return len(self._ready)

    def next_delivery(self, now: Now | None = None) -> Delivery | None:
        """Return the next message to consume; None if there is none now. `now`: for its trace."""
        ready = self._ready
        while ready:
            delivery = ready.popleft()
            assigned = delivery.assigned
            if assigned is not None and (
                assigned.state is not _ACTIVE or assigned.process_queue.generation != delivery.generation
            ):  # not ours any more
                continue
            if self._filter is None:
                if now is not None:
                    self.trace_delivered(delivery, now)
                return delivery
            admission = self._filter.admit(delivery)
            if admission is DuplicateDecision.DELIVER:
                if now is not None:
                    self.trace_delivered(delivery, now)
                return delivery
            if admission is DuplicateDecision.SKIP:
                self.skip(delivery)
            else:
                self._timers.at(0, partial(self._limit_parking, delivery))
        return None

    def trace_delivered(self, delivery: Delivery, now: Now) -> None:
        """Record that a message is delivered now, if deliveries are traced."""
        if self.tracer is not None and delivery.assigned is not None:
            delivery.traced = self.tracer.delivered(delivery.message, now)

    # Duplicates.

    @property
    def duplicates_skipped(self) -> int:
        """Number of duplicates that were acknowledged instead of delivered."""
        return self._filter.skipped if self._filter is not None else 0

    def skip(self, delivery: Delivery) -> None:
        """Acknowledge a duplicate of a handled message, in the next turn."""
        assert self._filter is not None
        delivery.is_ended = True
        self._filter.skipped += 1
        self.on_skipped(delivery)
        log.debug("duplicate skipped group=%s queue=%s %s", self.options.group, delivery.queue, delivery.message)
        self._timers.at(0, partial(self._after_skip, delivery))

    def _after_skip(self, delivery: Delivery, now: Now) -> None:
        self._acknowledge(delivery, now)
        self._release(delivery, is_handled=True)

    def release(self, delivery: Delivery) -> None:
        """End a delivery that will not reach the application: its queue was dropped. Duplicates are delivered."""
        self._release(delivery, is_handled=False)

    def _release(self, delivery: Delivery, *, is_handled: bool) -> None:
        if self._filter is None:
            return
        parked = self._filter.ended(delivery, is_handled=is_handled)
        for duplicate in parked if is_handled else ():
            if duplicate.is_ours:
                self.skip(duplicate)
        if parked and not is_handled:
            self._ready.extendleft(reversed(parked))
            self.on_ready()

    def _limit_parking(self, delivery: Delivery, now: Now) -> None:
        self._timers.at(now.mono_ms + PARKED_MAX_MS, lambda _: self._parked_too_long(delivery))

    def _parked_too_long(self, delivery: Delivery) -> None:
        assert self._filter is not None
        if self._filter.overdue(delivery):
            self._ready.append(delivery)
            self.on_ready()

    # Ends of deliveries.

    def note_ack(self, delivery: Delivery) -> bool:
        """Acknowledge a message of which nothing but the committed offset depends; False, without effect, for another
        one, and when its queue may be pulled then."""
        if delivery.is_ended:
            return True
        assigned = delivery.assigned
        if assigned is None or not assigned.puller.is_in_flight or self._is_orderly or self._filter is not None:
            return False
        if delivery.on_end is not None or delivery.traced is not None:
            return False
        delivery.is_ended = True
        process_queue = assigned.process_queue
        if assigned.state is _ACTIVE and process_queue.generation == delivery.generation:
            process_queue.note(delivery.message.queue_offset)
        return True

    def ack(self, delivery: Delivery, now: Now) -> None:
        """Acknowledge a message; has no effect a second time."""
        if delivery.is_ended:
            return
        if delivery.on_end is not None or delivery.traced is not None:
            self._end(delivery, now, acknowledged=True)
        else:
            delivery.is_ended = True
        self._acknowledge(delivery, now)
        if self._filter is not None:
            self._release(delivery, is_handled=True)

    def retry(self, delivery: Delivery, now: Now, delay_level: int = 0) -> Ticket[None]:
        """End a message that could not be consumed: it is delivered again later.

        Args:
            delay_level: delay level of the redelivery; 0: increasing with each redelivery; -1: dead letter topic.

        Returns:
            a ticket, settled when the message was sent back, or kept to be delivered again here.
        """
        ticket: Ticket[None] = Ticket()
        if delivery.is_ended:
            ticket.settle(None)
            return ticket
        self._end(delivery, now, acknowledged=False)
        self._release(delivery, is_handled=False)
        if not delivery.is_ours:
            ticket.settle(None)
        elif self.options.model is MessageModel.BROADCASTING:
            self._give_up(delivery, now)
            ticket.settle(None)
        elif self.options.orderly and delay_level != DEAD_LETTER_LEVEL and not self._is_used_up(delivery.message):
            self._timers.at(now.mono_ms + self.options.suspend_ms, lambda now: self._redeliver(delivery, now))
            ticket.settle(None)
        else:
            level = DEAD_LETTER_LEVEL if self.options.orderly else delay_level
            self._send_back(delivery, level, ticket, now)
        return ticket

    def _end(self, delivery: Delivery, now: Now, *, acknowledged: bool) -> None:
        delivery.is_ended = True
        if delivery.on_end is not None:
            delivery.on_end(acknowledged, now)
        if self.tracer is not None and delivery.traced is not None:
            self.tracer.ended(delivery.traced, delivery.message, now, acknowledged=acknowledged)

    def _is_used_up(self, message: StoredMessage) -> bool:
        return 0 <= self.options.max_reconsume_times <= message.reconsume_times

    def _give_up(self, delivery: Delivery, now: Now) -> None:
        log.warning(
            "message given up group=%s queue=%s offset=%d: broadcast messages are not sent back",
            self.options.group,
            delivery.queue,
            delivery.message.queue_offset,
        )
        self._acknowledge(delivery, now)

    def _send_back(self, delivery: Delivery, level: int, ticket: Ticket[None], now: Now) -> None:
        def on_settled(done: Ticket[bool]) -> None:
            is_stored = done.error is None and done.result()
            self._timers.at(0, partial(self._on_sent_back, delivery, is_stored))
            ticket.settle(None)

        self._sending_back += 1
        operation = self._sender.send_back(delivery.queue, delivery.message, level)
        self._runner.start(operation, now).then(on_settled)

    def _on_sent_back(self, delivery: Delivery, is_stored: bool, now: Now) -> None:
        self._sending_back -= 1
        if is_stored:
            if self._is_closed:
                self.on_returned(delivery)
            self._acknowledge(delivery, now)
        else:
            self._timers.at(now.mono_ms + LOCAL_RETRY_MS, lambda now: self._redeliver(delivery, now))

    def _redeliver(self, delivery: Delivery, now: Now) -> None:
        assigned = delivery.assigned
        if assigned is None or not delivery.is_ours or self._is_stopped:
            return
        message = replace(delivery.message, reconsume_times=delivery.message.reconsume_times + 1)
        self._deliver(Delivery(message, delivery.queue, assigned, delivery.generation), now)

    def _acknowledge(self, delivery: Delivery, now: Now) -> None:
        assigned = delivery.assigned
        if assigned is None or not delivery.is_ours:
            return
        assigned.process_queue.ack(delivery.message.queue_offset)
        if self._is_orderly:
            self._current.pop(assigned, None)
            self._deliver_next(assigned, now)
        if not assigned.puller.is_in_flight:
            assigned.puller.pull(now)

    def deliver_directly(self, delivery: Delivery) -> None:
        """Deliver a message that a broker sent for direct consumption; its `on_end` is called with the outcome."""
        self._ready.append(delivery)
        self.on_ready()

    # Close.

    def stop(self, now: Now) -> None:
        """Pull and deliver no more. Messages that were delivered can be ended until `close`."""
        if self._is_stopped:
            return
        self._is_stopped = True
        self.rebalance_service.stop()
        direct = [delivery for delivery in self._ready if delivery.assigned is None]
        self._ready.clear()
        self._waiting.clear()
        for delivery in direct:
            self._end(delivery, now, acknowledged=False)

    def close(self, now: Now) -> Ticket[None]:
        """Stop, end what is overtaken, and commit; the ticket is settled when the brokers have responded or timed
        out."""
        self.stop(now)
        self._is_closed = True
        return self._runner.start(self._closing(), now)

    def _closing(self) -> Steps[None]:
        while self._sending_back:
            yield from pause(CLOSE_CHECK_MS)
        if self.options.model is MessageModel.CLUSTERING and not self.options.orderly:
            for assigned in self.rebalance_service.active():
                for message in assigned.process_queue.overtaken():
                    self._return_overtaken(assigned, message, (yield from current_time()))
        while self._sending_back:
            yield from pause(CLOSE_CHECK_MS)
        yield from wait(self.rebalance_service.close((yield from current_time())))

    def _return_overtaken(self, assigned: AssignedQueue, message: StoredMessage, now: Now) -> None:
        """Send back a message that was not handled. One at its last attempt would become a dead letter."""
        message = self._with_own_topic(assigned.queue, message)
        limit = self.options.max_reconsume_times
        if message.reconsume_times < (limit if limit >= 0 else RECONSUME_TIMES_DEFAULT):
            delivery = Delivery(message, assigned.queue, assigned, assigned.process_queue.generation, is_ended=True)
            self._send_back(delivery, RETURN_LEVEL, Ticket(), now)

    def _with_own_topic(self, queue: MessageQueue, message: StoredMessage) -> StoredMessage:
        """Return a message of the retry topic with the topic that it was sent to first."""
        if queue.topic != retry_topic(self.options.group):
            return message
        return replace(message, topic=message.properties.get(RETRY_TOPIC, message.topic))

    # Messages and locks of assigned queues.

    def _on_messages(self, assigned: AssignedQueue, messages: list[StoredMessage], now: Now) -> None:
        if self._is_stopped:
            return
        queue = assigned.queue
        if queue.topic == retry_topic(self.options.group):
            messages = [self._with_own_topic(queue, message) for message in messages]
        generation = assigned.process_queue.generation
        deliveries = [Delivery(message, queue, assigned, generation) for message in messages]
        if self.options.orderly:
            self._waiting.setdefault(assigned, deque()).extend(deliveries)
            self._deliver_next(assigned, now)
        elif [message for message in messages if message.fault]:
            for delivery in deliveries:
                self._deliver(delivery, now)
        else:
            self._ready.extend(deliveries)
            self.on_ready()

    def _deliver(self, delivery: Delivery, now: Now) -> None:
        """Deliver a message if it is readable; in orderly mode it becomes the current one of its queue."""
        if self.options.orderly and delivery.assigned is not None:
            self._current[delivery.assigned] = delivery
        if unreadable.is_rejected(delivery.queue, delivery.message):
            self._timers.at(now.mono_ms, lambda now: self._reject(delivery, now))
            return
        self._ready.append(delivery)
        self.on_ready()

    def _reject(self, delivery: Delivery, now: Now) -> None:
        """Retry an unreadable message. An orderly consumer sends it to the dead letter topic at once, because its queue
        would stop while the same bytes are retried."""
        if not delivery.is_ours or self._is_stopped:
            return
        is_broadcast = self.options.model is MessageModel.BROADCASTING
        outcome = "skipped" if is_broadcast else "dead letter" if self.options.orderly else "sent back"
        unreadable.warn(self.options.group, delivery.queue, delivery.message, outcome)
        if is_broadcast:
            self.ack(delivery, now)
        else:
            self.retry(delivery, now, DEAD_LETTER_LEVEL if self.options.orderly else 0)

    def _deliver_next(self, assigned: AssignedQueue, now: Now) -> None:
        """Deliver the next message of an orderly queue, if none is in process and the lock is valid."""
        waiting = self._waiting.get(assigned)
        if self._current.get(assigned) is not None and not self._current[assigned].is_ours:
            del self._current[assigned]
        while waiting and not waiting[0].is_ours:
            waiting.popleft()
        if not waiting or assigned in self._current:
            return
        if not self.rebalance_service.may_consume(assigned, now):
            return
        self._deliver(waiting.popleft(), now)

    def _on_dropped(self, assigned: AssignedQueue) -> None:
        self._waiting.pop(assigned, None)
        self._current.pop(assigned, None)

    def _renew_locks(self, now: Now) -> None:
        service = self.rebalance_service
        assert service.locks is not None
        if self._is_closed:
            return
        for assigned in service.active():
            service.may_consume(assigned, now)
        service.locks.renew([assigned.queue for assigned in service.active()], now)

    # Called by the node.

    def route_changed(self, route: TopicRoute, now: Now) -> None:
        """Rebalance if the topic of a changed route is subscribed to."""
        if any(known.data.topic == route.topic for known in self.rebalance_service.subscriptions):
            self.rebalance_service.rebalance(now)

    def _commit(self, now: Now) -> None:
        if not self._is_closed:
            self.rebalance_service.commit(now)

    def reset_offsets(self, offsets: dict[MessageQueue, int], now: Now) -> None:
        """Continue at other offsets: unacknowledged messages are dropped, and the new offsets are committed."""
        for queue, offset in offsets.items():
            self.rebalance_service.withdraw(queue, now)
            assigned = self.rebalance_service.get(queue)
            if assigned is not None and assigned.state is AssignmentState.ACTIVE:
                log.info("offset reset group=%s queue=%s offset=%d", self.options.group, queue, offset)
                if self._filter is not None:
                    self._filter.replay(queue, assigned.process_queue.next_offset)
                assigned.process_queue.reset(offset)
                self._on_dropped(assigned)
                assigned.puller.restart(now)
        self.rebalance_service.commit(now)

    def heartbeat_data(self) -> list[ConsumerData]:
        """Return the part of a heartbeat that describes this consumer; empty once it is closed."""
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
