"""Where a message may go now: which broker group, which of its queues, which of its members.

    groups of the topic ─► not those that fail, are slow, or stand elsewhere ─► by weight ─► next queue of the group
    members of a group  ─► FULL, WRITE, READ, NONE ─► the first that did not just fail

Groups of equal weight are not told apart: the queues of all of them take turns. If weights differ, a wheel of fortune
is turned for each message, on which each group has a part as large as its weight; one of weight 0 takes messages while
no other does.

A member that failed is tried again after a pause that grows, by one message and not by all that wait; one that is not
listed as the master is tried like that too. Its answer lets the others through. What failed for one topic only does
not hold up another.

Owner: the producer. Source: docs/internals/failover.md, "Clients"; requirements F01, F08, G05, G06.
"""

from random import Random

from tandemq.boundary import Now
from tandemq.client.consumer.offsets.store import offset_question
from tandemq.client.core.context import Kit
from tandemq.client.core.routes import MASTER_ID, WEIGHT_DEFAULT, Routes, TopicRoute
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.latency import LatencyFaultTolerance
from tandemq.errors import NetworkError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue

PAUSE_MS = 50
"""Before a member that failed gets the next message, at most; doubled each time up to `PAUSE_MS_MAX`, and a random half
is taken off."""
PAUSE_MS_MAX = 200
_ALL_TOPICS = ""


class TopicPublishInfo:
    """The queues of one topic, and whose turn it is."""

    __slots__ = ("_turns", "by_group", "is_weighted", "position", "queues", "route", "version", "weights")

    def __init__(self, route: TopicRoute, routes: Routes, position: int) -> None:
        """As the routes are now."""
        self.route = route
        self.version = routes.version
        fresh = routes.get(route.topic) is not route
        self.queues = route.publish_queues(None if fresh else routes.takes_messages)
        self.by_group: dict[str, list[MessageQueue]] = {}
        for queue in self.queues:
            self.by_group.setdefault(queue.broker_name, []).append(queue)
        self.weights = {name: routes.group(name).weight for name in self.by_group}
        self.is_weighted = len(set(self.weights.values())) > 1
        self.position = position
        self._turns: dict[str, int] = {}

    def next_of(self, broker_name: str) -> MessageQueue:
        """The queue of a group whose turn it is."""
        queues = self.by_group[broker_name]
        turn = self._turns[broker_name] = self._turns.get(broker_name, self.position) + 1
        return queues[turn % len(queues)]


class _Failure:
    """A member that failed last time."""

    __slots__ = ("again_ms", "count")

    def __init__(self) -> None:
        self.count = 0
        self.again_ms = 0


class MQFaultStrategy:
    """Chooses for one producer."""

    def __init__(self, kit: Kit, options: ProducerOptions) -> None:
        """Everybody is fine."""
        self._kit = kit
        self._options = options
        self._latency = LatencyFaultTolerance()
        self._failures: dict[tuple[str, str], _Failure] = {}
        self._proven: set[str] = set()
        """Members that stored the last message they were sent."""

    # Choosing.

    def choose(
        self, publishing: TopicPublishInfo, last_broker: str, now: Now, *, is_late: bool = False
    ) -> tuple[MessageQueue, str] | None:
        """A queue, and the member to send it to; None if all failed too short ago. Counts as a try.

        Args:
            last_broker: the group that was just tried in vain; another is better.
            is_late: the message can wait for nobody, so that it matters not who failed how short ago.
        """
        topic = publishing.route.topic
        if publishing.is_weighted or self._options.zone:
            fine = self._fine(publishing, last_broker, now)
            if fine:
                name = self._spin(publishing, fine)
                return publishing.next_of(name), self._taken(fine[name], topic, now)
        else:
            found = self._next(publishing, last_broker, now)
            if found is not None:
                return found[0], self._taken(found[1], topic, now)
        return self._least_bad(publishing, last_broker, now, is_late=is_late)

    def _next(self, publishing: TopicPublishInfo, last_broker: str, now: Now) -> tuple[MessageQueue, str] | None:
        """The next queue in turn whose group nothing speaks against."""
        passed = {last_broker}
        for _ in publishing.queues:
            publishing.position += 1
            queue = publishing.queues[publishing.position % len(publishing.queues)]
            if queue.broker_name not in passed:
                address = self._best(queue.broker_name, queue.topic, now)
                if address is not None:
                    return queue, address
                passed.add(queue.broker_name)
        return None

    def _spin(self, publishing: TopicPublishInfo, fine: dict[str, str]) -> str:
        return spin({name: publishing.weights[name] for name in fine}, self._kit.random)

    def has_other(self, publishing: TopicPublishInfo, last_broker: str, now: Now) -> bool:
        """Whether another group takes messages."""
        return bool(self._fine(publishing, last_broker, now))

    def _fine(self, publishing: TopicPublishInfo, last_broker: str, now: Now) -> dict[str, str]:
        """Groups that nothing speaks against, with the member to send to; those in the producer's own zone if any."""
        fine: dict[str, str] = {}
        for name in publishing.by_group:
            address = self._best(name, publishing.route.topic, now) if name != last_broker else None
            if address is not None:
                fine[name] = address
        zone = self._options.zone
        if zone:
            near = {n: address for n, address in fine.items() if self._kit.routes.group(n).zone == zone}
            return near or fine
        return fine

    def _best(self, broker_name: str, topic: str, now: Now) -> str | None:
        """The member that takes messages as far as known: up, not slow, and did not just fail."""
        master = self._kit.routes.group(broker_name).members.get(MASTER_ID)
        if master is not None and self._is_ready(master, topic, now):
            return master
        if not self._kit.routes.is_leased(broker_name):
            return None
        addresses = self._kit.routes.read_addresses(broker_name, MASTER_ID, topic)
        return next((address for address in addresses if self._is_ready(address, topic, now)), None)

    def _is_ready(self, address: str, topic: str, now: Now) -> bool:
        return (
            not self._kit.links.is_down(address)
            and self._may_try(address, topic, now)
            and (not self._options.latency_aware or self._latency.is_available(address, now.mono_ms))
        )

    def _least_bad(
        self, publishing: TopicPublishInfo, last_broker: str, now: Now, *, is_late: bool
    ) -> tuple[MessageQueue, str] | None:
        found = {
            name: address
            for name in publishing.by_group
            if (address := self.member(name, publishing.route.topic, now, is_late=is_late)) is not None
        }
        names = [name for name in found if name != last_broker] or list(found)
        if not names:
            return None
        name = min(names, key=lambda name: self._latency.free_ms(found[name]))
        return publishing.next_of(name), self._taken(found[name], publishing.route.topic, now)

    def member(self, broker_name: str, topic: str, now: Now, *, is_late: bool = False) -> str | None:
        """The member of one group to try now, even one that is down; None if all failed too short ago.

        A message that is late goes to the first of them then.
        """
        addresses = self._may_become_master(broker_name, topic)
        ready = next((address for address in addresses if self._may_try(address, topic, now)), None)
        return addresses[0] if ready is None and is_late and addresses else ready

    def _may_become_master(self, broker_name: str, topic: str) -> list[str]:
        """The members of a group that can take a message, now or soon, best first: where roles are fixed, a slave is a
        guess for want of a listed master."""
        routes = self._kit.routes
        master = routes.group(broker_name).members.get(MASTER_ID)
        if master is not None and not routes.is_leased(broker_name):
            return [master]
        return routes.read_addresses(broker_name, MASTER_ID, topic)

    # What became of it.

    def _may_try(self, address: str, topic: str, now: Now) -> bool:
        if not self._failures:
            return True
        return all(
            failure.again_ms <= now.mono_ms
            for key in ((address, _ALL_TOPICS), (address, topic))
            if (failure := self._failures.get(key)) is not None
        )

    def _taken(self, address: str, topic: str, now: Now) -> str:
        """A message goes there: unless it can be expected to be stored, the next one waits for it, or for a while."""
        if address not in self._proven and not self._kit.routes.is_master(address):
            self._failures.setdefault((address, topic), _Failure())
        if self._failures:
            for key in ((address, _ALL_TOPICS), (address, topic)):
                failure = self._failures.get(key)
                if failure is not None:
                    failure.again_ms = now.mono_ms + PAUSE_MS_MAX
        return address

    def answered(self, address: str, topic: str, took_ms: int, now: Now) -> bool:
        """A message was stored; whether others may follow that had to wait."""
        self._proven.add(address)
        self._latency.answered(address, took_ms, now.mono_ms)
        if not self._failures:
            return False
        failures = [self._failures.pop(key, None) for key in ((address, _ALL_TOPICS), (address, topic))]
        return any(failures)

    def failed(self, address: str, queue: MessageQueue, error: TandemError, now: Now) -> None:
        """A message was not stored, or nobody knows; another may be."""
        self._latency.failed(address, now.mono_ms)
        self._proven.discard(address)
        topic = _ALL_TOPICS if isinstance(error, NetworkError) else queue.topic
        failure = self._failures.setdefault((address, topic), _Failure())
        pause_ms = min(PAUSE_MS_MAX, PAUSE_MS << min(failure.count, 8))
        failure.count += 1
        failure.again_ms = now.mono_ms + pause_ms - int(self._kit.random.random() * pause_ms / 2)
        if error.code == ResponseCode.NO_PERMISSION:
            group = self._options.group
            self._kit.standing.refused(address, lambda: offset_question(group, queue), now)

    def lift(self, address: str) -> None:
        """A member speaks again, or serves again: forget its failures, not its slowness."""
        self._latency.lift(address)
        for key in [key for key in self._failures if key[0] == address]:
            del self._failures[key]


def spin(weights: dict[str, int], random: Random) -> str:
    """One of the names, each as likely as its weight is large; all alike if every weight is 0."""
    total = sum(weights.values())
    if total == 0:
        weights = dict.fromkeys(weights, WEIGHT_DEFAULT)
        total = sum(weights.values())
    point = random.random() * total
    for name, weight in weights.items():
        point -= weight
        if point < 0:
            return name
    return next(reversed(weights))
