"""The queues one consumer reads: which are its share, taken up and given back as members come and go.

    members and queues ─► allocate ─► new ones: (lock,) ask for the offset, pull
                                      lost ones: stop, commit, (then unlock)

    OPENING ─► ACTIVE ─► DROPPED        DROPPED is the end; a queue that comes back is a new share

What always holds: a queue is pulled only after its offset was learnt, in orderly mode only under a lock; offsets are
told only for ACTIVE shares, and never beyond what was acknowledged. A share keeps its position when another broker of
the group serves it: offsets are told to whoever serves now, never asked for again.

A broker that was reached just now may not have heard of all members yet, so those known before count for a while too.

Rebalancing starts when a broker says that members changed, when a route changed, when a member vanished, and every
`rebalance_ms`; until everything could be asked it is tried again, ever less often.

Owner: the consumer. Source: docs/reference/requests.md, "group membership"; RocketMQ RebalanceImpl.
"""

import logging
from collections.abc import Callable
from enum import Enum
from functools import partial

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.commits import OffsetCommitter, Superseded
from tandemq.client.consumer.offsets.store import OffsetStorage, first_offset, offset_question, starting_offset
from tandemq.client.consumer.queues.allocate import allocate
from tandemq.client.consumer.queues.process_queue import ProcessQueue
from tandemq.client.consumer.queues.queue_locks import QueueLockClient
from tandemq.client.consumer.queues.queue_puller import QueuePuller, Subscription
from tandemq.client.core.calls import Ticket
from tandemq.client.core.context import Kit
from tandemq.client.core.operations import Steps, ask_any_code, current_time, json_object, pause, request, wait
from tandemq.client.core.routes import TopicRoute
from tandemq.client.core.settings import ConsumerOptions, MessageModel
from tandemq.errors import NetworkError, NoRoute, ProtocolError, StoreError, TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.message import MessageQueue, StoredMessage
from tandemq.model.topic import RETRY_PREFIX

log = logging.getLogger(__name__)
RETRY_MS = 200
RETRY_MAX_MS = 5_000
WARN_EVERY_MS = 60_000
OPEN_RETRY_MS = 500
MEMBERS_GRACE_MS = 5_000
"""For this long after its link was opened a broker may not know all members of a group."""
CLOSE_ATTEMPTS = 3
"""How often offsets are told that nobody took, before a consumer closes without."""


class AssignmentState(Enum):
    """Where a queue stands."""

    OPENING = "opening"
    """Its lock and offset are asked for."""
    ACTIVE = "active"
    DROPPED = "dropped"
    """Another member's, or nobody's."""


class AssignedQueue:
    """One queue that this consumer reads."""

    __slots__ = ("is_locking", "process_queue", "puller", "queue", "state", "told")

    def __init__(self, queue: MessageQueue, process_queue: ProcessQueue, puller: QueuePuller) -> None:
        """Not pulled yet."""
        self.queue = queue
        self.process_queue = process_queue
        self.puller = puller
        self.state = AssignmentState.OPENING
        self.is_locking = False
        self.told: tuple[int, str] | None = None
        """The offset last told and the address it was told to."""


class RebalanceService:
    """All queues of one consumer."""

    def __init__(
        self,
        kit: Kit,
        options: ConsumerOptions,
        local: OffsetStorage,
        on_messages: Callable[[AssignedQueue, list[StoredMessage], Now], None],
        on_dropped: Callable[[AssignedQueue], None],
    ) -> None:
        """None yet."""
        self._kit = kit
        self._options = options
        self._local = local
        self._on_messages = on_messages
        self._on_dropped = on_dropped
        self._shares: dict[MessageQueue, AssignedQueue] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._is_asking = False
        self._is_wanted_again = False
        self._round = 0
        self._is_closed = False
        self._warned: dict[str, int] = {}
        """Topics that cannot be consumed, and when that was logged."""
        self._is_committing = False
        self._members: set[str] = set()
        self._is_looking_again = False
        self._commits = OffsetCommitter(kit.links, options.group)
        self.locks = QueueLockClient(kit, options) if options.orderly else None
        self.on_locked: Callable[[AssignedQueue, Now], None] = lambda _share, _now: None
        """Called when a queue's lock was taken again."""

    # What is read.

    def subscribe(self, subscription: Subscription, now: Now) -> None:
        """Read a topic; takes effect with the next rebalancing."""
        topic = subscription.data.topic
        self._subscriptions[topic] = subscription
        self._kit.routes.want(topic)
        for share in self._shares.values():
            if share.queue.topic == topic:
                share.puller.subscription = subscription
        self.rebalance(now)

    @property
    def subscriptions(self) -> list[Subscription]:
        """All of them."""
        return list(self._subscriptions.values())

    def active(self) -> list[AssignedQueue]:
        """Shares that are being read."""
        return [share for share in self._shares.values() if share.state is AssignmentState.ACTIVE]

    def queues(self) -> list[MessageQueue]:
        """Queues that are this consumer's, sorted."""
        return sorted(self._shares)

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        """One of them."""
        return self._shares.get(queue)

    # Rebalancing.

    def rebalance(self, now: Now) -> None:
        """Find out anew what the share is; if that is under way, once more afterwards."""
        if self._is_closed:
            return
        if self._is_asking:
            self._is_wanted_again = True
            return
        self._round += 1
        self._kit.runner.start(self._balancing(self._round), now)

    def _balancing(self, this_round: int) -> Steps[None]:
        """Passes until one is complete; between two of them another round may begin, and then this one ends."""
        failures = 0
        while this_round == self._round and not self._is_closed:
            self._is_asking, self._is_wanted_again = True, False
            complete = yield from self._balance()
            self._is_asking = False
            if self._is_wanted_again:
                failures = 0
            elif complete:
                return
            else:
                failures += 1
                yield from pause(min(RETRY_MAX_MS, RETRY_MS << min(failures - 1, 10)))

    def _warn_of(self, topic: str, error: TandemError, now: Now) -> None:
        """A topic cannot be consumed now: said at once and once a minute. The group's retry topic is made later."""
        said_ms = self._warned.get(topic)
        is_due = said_ms is None or now.mono_ms - said_ms >= WARN_EVERY_MS
        if is_due and not (topic.startswith(RETRY_PREFIX) and isinstance(error, NoRoute)):
            self._warned[topic] = now.mono_ms
            log.warning("nothing is consumed group=%s topic=%s reason=%s", self._options.group, topic, error)

    def _balance(self) -> Steps[bool]:
        """One pass over all topics; False if something could not be asked."""
        complete = True
        for topic in list(self._subscriptions):
            now = yield from current_time()
            route = self._kit.routes.get(topic)
            try:
                if route is None:
                    route = yield from wait(self._kit.routes.fetch(topic, now))
                mine = yield from self._share_of(route)
            except (NoRoute, NetworkError, ProtocolError) as error:
                self._warn_of(topic, error, now)
                complete = False
                continue
            if mine is None:
                complete = False
            elif not self._is_closed:
                self._assign(topic, mine, (yield from current_time()))
        return complete

    def _share_of(self, route: TopicRoute) -> Steps[list[MessageQueue] | None]:
        queues = route.subscribe_queues()
        if self._options.model is MessageModel.BROADCASTING:
            return queues
        members = yield from self._member_ids(route)
        client_id = self._kit.config.client_id
        if members is None or client_id not in members:
            return None
        return allocate(client_id, members, queues)

    def _member_ids(self, route: TopicRoute) -> Steps[list[str] | None]:
        """The group's members as the first broker says that answers; None if none can tell."""
        for address in self._addresses(route):
            command = request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, consumerGroup=self._options.group)
            try:
                answer = yield from ask_any_code(address, command)
            except NetworkError:
                continue
            if answer.code == ResponseCode.SUCCESS:
                told = {str(client_id) for client_id in json_object(answer).get("consumerIdList") or ()}
                return self._with_remembered(told, address, (yield from current_time()))
        return None

    def _with_remembered(self, told: set[str], address: str, now: Now) -> list[str]:
        """A broker that has just come has not heard of all members yet: for a while those known before count too, for
        otherwise the first to reach it would take everybody's queues."""
        left_ms = MEMBERS_GRACE_MS - self._kit.links.open_ms(address, now)
        if left_ms > 0 and not self._members <= told:
            told |= self._members
            if not self._is_looking_again:
                self._is_looking_again = True
                self._kit.timers.at(now.mono_ms + left_ms, self._look_again)
        self._members = told
        return list(told)

    def _look_again(self, now: Now) -> None:
        self._is_looking_again = False
        self.rebalance(now)

    def _addresses(self, route: TopicRoute) -> list[str]:
        """Masters first, slaves behind, those that are down not at all unless there are no others."""
        ranked = sorted(
            (broker_id, address) for group in route.brokers.values() for broker_id, address in group.members.items()
        )
        links, standing = self._kit.links, self._kit.standing
        addresses = sorted((address for _, address in ranked), key=standing.is_shut)
        return [address for address in addresses if not links.is_down(address)] or addresses

    def _assign(self, topic: str, mine: list[MessageQueue], now: Now) -> None:
        wanted = set(mine)
        for queue in [queue for queue in self._shares if queue.topic == topic and queue not in wanted]:
            self.drop(self._shares[queue], now)
        for queue in mine:
            if queue not in self._shares:
                self._open(queue, now)

    def _open(self, queue: MessageQueue, now: Now) -> None:
        process_queue = ProcessQueue(queue, self._options.prefetch_messages, self._options.prefetch_bytes)
        puller = QueuePuller(
            self._kit,
            self._options,
            self._subscriptions[queue.topic],
            process_queue,
            lambda messages, at: self._on_messages(share, messages, at),
        )
        puller.on_refused = self._commit_soon
        puller.on_moved = partial(self._commits.withdraw, queue)
        share = self._shares[queue] = AssignedQueue(queue, process_queue, puller)
        log.info("share taken group=%s queue=%s", self._options.group, queue)
        self._kit.runner.start(self._begin(share), now)

    def _begin(self, share: AssignedQueue) -> Steps[None]:
        """Lock if need be, learn the offset, begin to pull; tried until it works or the queue is not ours any more.

        First of all the broker hears how far the queue was read when it was ours before.
        """
        yield from self._commits.settled(share.queue)
        while share.state is AssignmentState.OPENING:
            try:
                if self.locks is not None and not (yield from self.locks.acquire(share.queue)):
                    yield from pause(OPEN_RETRY_MS)
                    continue
                offset = yield from self._offset(share.queue)
            except TandemError as error:
                log.info("share waits group=%s queue=%s reason=%s", self._options.group, share.queue, error)
                yield from pause(OPEN_RETRY_MS)
                continue
            if share.state is AssignmentState.OPENING:
                share.process_queue.reset(offset)
                share.state = AssignmentState.ACTIVE
                log.info("share active group=%s queue=%s offset=%d", self._options.group, share.queue, offset)
                share.puller.pull((yield from current_time()))

    def _offset(self, queue: MessageQueue) -> Steps[int]:
        if self._options.model is MessageModel.CLUSTERING:
            return (yield from starting_offset(self._kit, self._options, queue))
        found = self._local.read(self._options.group).get(queue)
        if found is not None:
            return found
        return (yield from first_offset(self._kit, self._options, queue))

    def withdraw(self, queue: MessageQueue, now: Now) -> None:
        """Somebody else decides where a queue goes on: an offset that has not left yet does not hold any more."""
        self._commits.withdraw(queue, now)

    def drop(self, share: AssignedQueue, now: Now) -> None:
        """Give a queue back: tell its offset, unlock it."""
        log.info("share dropped group=%s queue=%s", self._options.group, share.queue)
        if share.state is AssignmentState.ACTIVE:
            self._tell(share, now)
        self._let_go(share)
        if self.locks is not None:
            self._kit.runner.start(self._unlocking(self.locks, share.queue), now)

    def _unlocking(self, locks: QueueLockClient, queue: MessageQueue) -> Steps[None]:
        """The next member may ask for the offset as soon as it has the lock."""
        yield from self._commits.settled(queue)
        locks.release([queue], (yield from current_time()))

    def _let_go(self, share: AssignedQueue) -> None:
        share.state = AssignmentState.DROPPED
        share.puller.stop()
        del self._shares[share.queue]
        self._on_dropped(share)

    def may_consume(self, share: AssignedQueue, now: Now) -> bool:
        """Whether an orderly queue's lock holds. One that a broker gave which does not serve any more is taken again at
        the next; if it is another member's there, or has expired, what was pulled is forgotten and the queue gets in
        line again."""
        assert self.locks is not None
        if self.locks.holds(share.queue, now):
            return True
        if not self.locks.is_moved(share.queue, now):
            self._lock_lost(share, now)
        elif not share.is_locking:
            share.is_locking = True
            self._kit.runner.start(self._lock_again(share), now)
        return False

    def _lock_again(self, share: AssignedQueue) -> Steps[None]:
        assert self.locks is not None
        while share.state is AssignmentState.ACTIVE:
            now = yield from current_time()
            if self.locks.holds(share.queue, now):
                break
            if not self.locks.is_moved(share.queue, now):
                self._lock_lost(share, now)
                break
            try:
                granted = yield from self.locks.acquire(share.queue)
            except TandemError as error:
                log.info("lock waits group=%s queue=%s reason=%s", self._options.group, share.queue, error)
                self._kit.routes.refresh(share.queue.topic, now)
                yield from pause(RETRY_MS)
                continue
            if not granted and share.state is AssignmentState.ACTIVE:
                self._lock_lost(share, (yield from current_time()))
        share.is_locking = False
        if share.state is AssignmentState.ACTIVE:
            self.on_locked(share, (yield from current_time()))

    def _lock_lost(self, share: AssignedQueue, now: Now) -> None:
        self._let_go(share)
        if not self._is_closed:
            self._open(share.queue, now)

    # Offsets.

    def commit(self, now: Now) -> None:
        """Tell all offsets that changed, or that another member of the broker group must know now."""
        if self._options.model is MessageModel.BROADCASTING:
            self._save_local()
            return
        for share in self.active():
            self._tell(share, now)

    def _save_local(self) -> None:
        found = {share.queue: share.process_queue.committable for share in self.active()}
        try:
            offsets = self._local.read(self._options.group)
            if any(offsets.get(queue) != offset for queue, offset in found.items()):
                self._local.write(self._options.group, offsets | found)
        except StoreError as error:
            # Tried again with the next commit; until then a restart would deliver again what was consumed since.
            log.warning("offsets not saved group=%s reason=%s", self._options.group, error)

    def _commit_soon(self, now: Now) -> None:
        """A broker stops serving: it may still take what was acknowledged until now."""
        if not self._is_committing:
            self._is_committing = True
            self._kit.timers.at(now.mono_ms, self._commit_now)

    def _commit_now(self, now: Now) -> None:
        self._is_committing = False
        if self._options.model is MessageModel.CLUSTERING:
            self.commit(now)

    def _tell(self, share: AssignedQueue, now: Now) -> None:
        news = self._news(share)
        if news is not None:
            self._tell_to(share, news, now)

    def _tell_to(self, share: AssignedQueue, news: tuple[int, str], now: Now) -> None:
        def heard(ticket: Ticket[None]) -> None:
            error = ticket.error
            if error is None:
                share.told = news
            elif not isinstance(error, Superseded):
                self._kit.timers.at(0, lambda at: self._not_told(share, news, error, at))

        self._commits.tell(share.queue, *news, now).then(heard)

    def _not_told(self, share: AssignedQueue, news: tuple[int, str], error: TandemError, now: Now) -> None:
        """Tell the next holder, if there is one: who failed is down or shut now, so that this ends. Of a queue that was
        given back only what was refused is told again: later its next reader may have told more."""
        if error.code == ResponseCode.NO_PERMISSION:
            check = partial(offset_question, self._options.group, share.queue)
            self._kit.standing.shut(news[1], check, now)
            self._kit.routes.refresh(share.queue.topic, now)
        following: tuple[int, str] | None = None
        if share.state is AssignmentState.ACTIVE:
            following = self._news(share)
        elif error.code == ResponseCode.NO_PERMISSION:
            addresses = self._kit.routes.read_addresses(share.queue.broker_name)
            following = (news[0], addresses[0]) if addresses else None
        if following is not None and following[1] != news[1] and not self._kit.standing.is_shut(following[1]):
            self._tell_to(share, following, now)

    def _news(self, share: AssignedQueue) -> tuple[int, str] | None:
        addresses = self._kit.routes.read_addresses(share.queue.broker_name)
        if self._options.model is MessageModel.BROADCASTING or not addresses:
            return None
        news = (share.process_queue.committable, addresses[0])
        return None if share.told == news else news

    def close(self, now: Now) -> Ticket[None]:
        """Stop reading, tell offsets, unlock; settled when the brokers have answered or did not."""
        self._is_closed = True
        for share in self._shares.values():
            share.puller.stop()
        return self._kit.runner.start(self._closing(), now)

    def _closing(self) -> Steps[None]:
        for _ in range(CLOSE_ATTEMPTS):
            self.commit((yield from current_time()))
            yield from wait(self._commits.idle())
            # What was refused may be on its way to the next holder by now.
            yield from pause(0)
            yield from wait(self._commits.idle())
            untold = [news for share in self.active() if (news := self._news(share)) is not None]
            if not any(self._kit.standing.is_shut(address) for _, address in untold):
                break
            yield from pause(OPEN_RETRY_MS)
        queues = list(self._shares)
        for share in list(self._shares.values()):
            self._let_go(share)
        if self.locks is not None:
            self.locks.release(queues, (yield from current_time()))
