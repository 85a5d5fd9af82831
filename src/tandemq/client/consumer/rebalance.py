"""Rebalancing: the queues that one consumer reads, taken over and dropped as members come and go.

    members and queues ─► allocate ─► new queues: (lock,) load the offset, pull
                                      lost queues: stop, commit, (then unlock)

Invariants: a queue is pulled only after its offset was loaded, in orderly mode only under its lock; offsets are
committed only for active queues, and never beyond what was acknowledged. A queue keeps its position when another
member of its broker group becomes active: offsets are committed at the new member, and not loaded again.

Rebalancing starts when a broker reports a membership change, when a route has changed, when members known before do
not count any more, and every `rebalance_ms`; it is repeated with growing pauses until all brokers could be asked.

Owner: the consumer. Source: docs/reference/requests.md, "group membership"; RocketMQ RebalanceImpl, RebalanceService.
"""

import logging
from collections.abc import Callable
from functools import partial

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.offset_store import OffsetStore
from tandemq.client.consumer.queues.assigned_queue import AssignedQueue, AssignmentState
from tandemq.client.consumer.queues.group_members import GroupMembers
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.consumer.queues.queue_locks import QueueLockClient
from tandemq.client.consumer.queues.queue_puller import MakePuller, Subscription
from tandemq.client.core.calls import Ticket
from tandemq.client.core.operations import OperationRunner, Steps, current_time, pause, wait
from tandemq.client.core.routes import Routes, TopicRoute
from tandemq.client.core.settings import ConsumerOptions, MessageModel
from tandemq.errors import NetworkError, NoRoute, RemoteError, TandemError
from tandemq.model.allocation import allocate_averagely
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import RETRY_PREFIX

log = logging.getLogger(__name__)
RETRY_MS = 200
RETRY_MAX_MS = 5_000
WARN_EVERY_MS = 60_000
OPEN_RETRY_MS = 500


class RebalanceService:
    """Queues assigned to one consumer."""

    def __init__(
        self,
        client_id: str,
        options: ConsumerOptions,
        routes: Routes,
        runner: OperationRunner,
        members: GroupMembers,
        offsets: OffsetStore,
        make_puller: MakePuller,
        locks: QueueLockClient | None,
    ) -> None:
        """No queue is assigned. `locks`: for an orderly consumer."""
        self._client_id = client_id
        self._options = options
        self._routes = routes
        self._runner = runner
        self._members = members
        self._offsets = offsets
        self._make_puller = make_puller
        self.locks = locks
        self._assigned: dict[MessageQueue, AssignedQueue] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._is_in_pass = False
        self._is_requested_again = False
        self._round = 0
        self._is_stopped = False
        self._is_closed = False
        self._warned_ms: dict[str, int] = {}
        """Topics that cannot be consumed, and when that was logged."""
        members.on_grace_over = self.rebalance
        self.on_messages: Callable[[AssignedQueue, list[StoredMessage], Now], None] = lambda _queue, _messages, _now: (
            None
        )
        """Called with the messages of a pull."""
        self.on_dropped: Callable[[AssignedQueue], None] = lambda _queue: None
        """Called when a queue is not assigned any more."""
        self.on_locked: Callable[[AssignedQueue, Now], None] = lambda _queue, _now: None
        """Called when the lock of a queue was acquired again."""

    # Subscriptions and queues.

    def subscribe(self, subscription: Subscription, now: Now) -> None:
        """Subscribe to a topic, from the next rebalancing on."""
        topic = subscription.data.topic
        self._subscriptions[topic] = subscription
        self._routes.want(topic)
        for assigned in self._assigned.values():
            if assigned.queue.topic == topic:
                assigned.puller.subscription = subscription
        self.rebalance(now)

    def pull_again(self, topic: str, now: Now) -> None:
        """Pull the queues of a topic again: a pull in flight selects by the subscription of its time."""
        for assigned in self.active():
            if assigned.queue.topic == topic:
                assigned.puller.restart(now)

    @property
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions."""
        return list(self._subscriptions.values())

    def active(self) -> list[AssignedQueue]:
        """Return the queues that are pulled."""
        return [assigned for assigned in self._assigned.values() if assigned.state is AssignmentState.ACTIVE]

    def queues(self) -> list[MessageQueue]:
        """Return the assigned queues, sorted."""
        return sorted(self._assigned)

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        """Return an assigned queue; None if it is not assigned."""
        return self._assigned.get(queue)

    # Rebalancing.

    def rebalance(self, now: Now) -> None:
        """Compute the assigned queues again; if a pass is in flight, once more after it."""
        if self._is_closed:
            return
        if self._is_in_pass:
            self._is_requested_again = True
            return
        self._round += 1
        self._runner.start(self._rebalancing(self._round), now)

    def _rebalancing(self, this_round: int) -> Steps[None]:
        """Make passes until one is complete. If another round begins between two passes, this one ends."""
        failures = 0
        while this_round == self._round and not self._is_closed:
            self._is_in_pass, self._is_requested_again = True, False
            complete = yield from self._pass()
            self._is_in_pass = False
            if self._is_requested_again:
                failures = 0
            elif complete:
                return
            else:
                failures += 1
                yield from pause(min(RETRY_MAX_MS, RETRY_MS << min(failures - 1, 10)))

    def _pass(self) -> Steps[bool]:
        """Rebalance all topics once; False if a topic could not be rebalanced."""
        complete = True
        for topic in list(self._subscriptions):
            now = yield from current_time()
            route = self._routes.get(topic)
            try:
                if route is None:
                    route = yield from wait(self._routes.fetch(topic, now))
                allocated = yield from self._allocate(route)
            except (RemoteError, NetworkError) as error:
                self._warn(topic, error, now)
                complete = False
                continue
            if allocated is None:
                complete = False
            elif not self._is_closed:
                self._assign(topic, allocated, (yield from current_time()))
        return complete

    def _warn(self, topic: str, error: TandemError, now: Now) -> None:
        """Log, at once and then once a minute, that a topic cannot be consumed. The retry topic is created later."""
        warned_ms = self._warned_ms.get(topic)
        is_due = warned_ms is None or now.mono_ms - warned_ms >= WARN_EVERY_MS
        is_expected = self._is_closed or (topic.startswith(RETRY_PREFIX) and isinstance(error, NoRoute))
        if is_due and not is_expected:
            self._warned_ms[topic] = now.mono_ms
            log.warning("nothing is consumed group=%s topic=%s reason=%s", self._options.group, topic, error)

    def _allocate(self, route: TopicRoute) -> Steps[list[MessageQueue] | None]:
        """Return this member's queues of a topic; None if no broker lists it as a member yet."""
        queues = route.subscribe_queues()
        if self._options.model is MessageModel.BROADCASTING:
            return queues
        members = yield from self._members.fetch(route)
        if members is None or self._client_id not in members:
            return None
        return allocate_averagely(self._client_id, members, queues)

    def _assign(self, topic: str, queues: list[MessageQueue], now: Now) -> None:
        wanted = set(queues)
        for queue in [queue for queue in self._assigned if queue.topic == topic and queue not in wanted]:
            self.drop(self._assigned[queue], now)
        for queue in queues:
            if queue not in self._assigned and not self._is_stopped:
                self._open(queue, now)

    # Life of an assigned queue.

    def _open(self, queue: MessageQueue, now: Now) -> None:
        process_queue = ProcessQueue(queue, self._options.prefetch_messages, self._options.prefetch_bytes)
        puller = self._make_puller(
            self._subscriptions[queue.topic],
            process_queue,
            lambda messages, now: self.on_messages(assigned, messages, now),
        )
        puller.on_refused = partial(self._offsets.persist_soon, self.active)
        puller.on_moved = partial(self._offsets.withdraw, queue)
        assigned = self._assigned[queue] = AssignedQueue(queue, process_queue, puller)
        log.info("queue assigned group=%s queue=%s", self._options.group, queue)
        self._runner.start(self._opening(assigned), now)

    def _opening(self, assigned: AssignedQueue) -> Steps[None]:
        """Acquire the lock if necessary, load the offset, start to pull; repeated until it succeeds or the queue is
        dropped. Commits of an earlier assignment are awaited first."""
        queue = assigned.queue
        yield from self._offsets.settled(queue)
        while assigned.state is AssignmentState.OPENING:
            try:
                if self.locks is not None and not (yield from self.locks.acquire(queue)):
                    yield from pause(OPEN_RETRY_MS)
                    continue
                offset = yield from self._offsets.load(queue)
            except TandemError as error:
                log.info("queue waits group=%s queue=%s reason=%s", self._options.group, queue, error)
                yield from pause(OPEN_RETRY_MS)
                continue
            if assigned.state is AssignmentState.OPENING:
                assigned.process_queue.reset(offset)
                assigned.state = AssignmentState.ACTIVE
                log.info("queue active group=%s queue=%s offset=%d", self._options.group, queue, offset)
                assigned.puller.pull((yield from current_time()))

    def drop(self, assigned: AssignedQueue, now: Now) -> None:
        """Stop reading a queue, commit its offset, then unlock it."""
        log.info("queue dropped group=%s queue=%s", self._options.group, assigned.queue)
        if assigned.state is AssignmentState.ACTIVE:
            self._offsets.persist(assigned, now)
        self._remove(assigned)
        if self.locks is not None:
            self._runner.start(self._unlocking(self.locks, assigned.queue), now)

    def _unlocking(self, locks: QueueLockClient, queue: MessageQueue) -> Steps[None]:
        """Unlock after the commit, because the next member loads the offset as soon as it has the lock."""
        yield from self._offsets.settled(queue)
        locks.release([queue], (yield from current_time()))

    def _remove(self, assigned: AssignedQueue) -> None:
        assigned.state = AssignmentState.DROPPED
        assigned.puller.stop()
        del self._assigned[assigned.queue]
        self.on_dropped(assigned)

    # Locks.

    def may_consume(self, assigned: AssignedQueue, now: Now) -> bool:
        """Return whether the lock of an orderly queue is valid.

        A lock of a broker that is not active any more is acquired again at the active one; if another member holds it
        there, or if it has expired, the messages of the queue are dropped and the queue is opened again.
        """
        assert self.locks is not None
        if self.locks.holds(assigned.queue, now):
            return True
        if not self.locks.is_moved(assigned.queue, now):
            self._lock_lost(assigned, now)
        elif not assigned.is_locking:
            assigned.is_locking = True
            self._runner.start(self._locking_again(self.locks, assigned), now)
        return False

    def _locking_again(self, locks: QueueLockClient, assigned: AssignedQueue) -> Steps[None]:
        queue = assigned.queue
        while assigned.state is AssignmentState.ACTIVE:
            now = yield from current_time()
            if locks.holds(queue, now):
                break
            if not locks.is_moved(queue, now):
                self._lock_lost(assigned, now)
                break
            try:
                granted = yield from locks.acquire(queue)
            except TandemError as error:
                log.info("lock waits group=%s queue=%s reason=%s", self._options.group, queue, error)
                self._routes.refresh(queue.topic, now)
                yield from pause(RETRY_MS)
                continue
            if not granted and assigned.state is AssignmentState.ACTIVE:
                self._lock_lost(assigned, (yield from current_time()))
        assigned.is_locking = False
        if assigned.state is AssignmentState.ACTIVE:
            self.on_locked(assigned, (yield from current_time()))

    def _lock_lost(self, assigned: AssignedQueue, now: Now) -> None:
        self._remove(assigned)
        if not self._is_stopped:
            self._open(assigned.queue, now)

    # Offsets.

    def commit(self, now: Now) -> None:
        """Commit all offsets that have changed, or that another member of a broker group must know now."""
        self._offsets.persist_all(self.active(), now)

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """Cancel a commit that was not sent: the position of the queue was moved from outside."""
        self._offsets.withdraw(queue, now)

    def stop(self) -> None:
        """Pull no more, and take over no more queues. Those assigned are kept, unless another member gets them."""
        self._is_stopped = True
        for assigned in self._assigned.values():
            assigned.puller.stop()

    def close(self, now: Now) -> Ticket[None]:
        """Stop reading, commit, unlock; the ticket is settled when the brokers have responded or timed out."""
        self.stop()
        self._is_closed = True
        return self._runner.start(self._closing(), now)

    def _closing(self) -> Steps[None]:
        yield from self._offsets.flush(self.active)
        queues = list(self._assigned)
        for assigned in list(self._assigned.values()):
            self._remove(assigned)
        if self.locks is not None:
            self.locks.release(queues, (yield from current_time()))
