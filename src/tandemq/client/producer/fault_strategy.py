"""Choice of the broker group, queue and member for a message.

    groups of the topic ─► without failed and slow ones, in the zone ─► by weight ─► next queue of the group
    members of a group  ─► FULL, WRITE, READ, NONE ─► the first that did not fail just now

If all groups have the same weight, the queues of all of them take turns. If weights differ, a group is drawn at random
for each message, with a probability in proportion to its weight; a group of weight 0 gets messages only while no other
accepts them.

A member that failed is tried again after a growing pause, with one message and not with all that wait; so is a member
that is not listed as the master. Its response releases the others. A failure that concerns one topic does not delay
another topic.

Owner: the producer. Source: docs/internals/failover.md, "Clients"; requirements F01, F08, G05, G06; RocketMQ
MQFaultStrategy.
"""

from functools import partial
from random import Random

from tandemq.boundary import Now
from tandemq.client.core.availability import BrokerAvailability
from tandemq.client.core.connections import RemotingClient
from tandemq.client.core.requests import query_offset_request
from tandemq.client.core.routes import MASTER_ID, WEIGHT_DEFAULT, Routes
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.latency import SLOW_MS, LatencyFaultTolerance
from tandemq.client.producer.publish_info import SendTarget, TopicPublishInfo
from tandemq.errors import NetworkError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.message import MessageQueue

PAUSE_MS = 50
"""Longest pause before a member that failed gets the next message; doubled each time up to `PAUSE_MS_MAX`, less a
random half."""
PAUSE_MS_MAX = 200
_ALL_TOPICS = ""


class _Failure:
    """A member that failed with its last message, or was not tried yet. `again_ms`: when it gets the next one."""

    __slots__ = ("again_ms", "count")

    def __init__(self) -> None:
        self.count = 0
        self.again_ms = 0


class MQFaultStrategy:
    """Chooses queues and members for one producer."""

    def __init__(
        self,
        options: ProducerOptions,
        remoting: RemotingClient,
        routes: Routes,
        availability: BrokerAvailability,
        random: Random,
    ) -> None:
        """No member has failed."""
        self._options = options
        self._remoting = remoting
        self._routes = routes
        self._availability = availability
        self._random = random
        self._latency = LatencyFaultTolerance()
        self._failures: dict[tuple[str, str], _Failure] = {}
        """By address and topic; `_ALL_TOPICS` for failures of the network."""
        self._proven: set[str] = set()
        """Members that stored the last message they were sent."""

    # Choice.

    def choose(
        self, publish_info: TopicPublishInfo, last_broker: str, now: Now, *, is_late: bool = False
    ) -> SendTarget | None:
        """Choose a queue and a member; None if all members failed too recently. Counts as an attempt.

        Args:
            last_broker: the group of the attempt that has just failed; another group is preferred.
            is_late: the time of the message is over, so that it does not wait for members that failed recently.
        """
        if not last_broker and (target := self.next_at_masters(publish_info, now)) is not None:
            return target
        topic = publish_info.route.topic
        if publish_info.is_weighted or self._options.zone:
            ready = self._ready_groups(publish_info, last_broker, now)
            if ready:
                name = spin({name: publish_info.weights[name] for name in ready}, self._random)
                return SendTarget(publish_info.next_of(name), self._attempted(ready[name], topic, now))
        else:
            found = self._next(publish_info, last_broker, now)
            if found is not None:
                self._attempted(found.address, topic, now)
                return found
        return self._last_resort(publish_info, last_broker, now, is_late=is_late)

    def next_at_masters(self, publish_info: TopicPublishInfo, now: Now) -> SendTarget | None:
        """Return the next queue in turn, at its master, if all masters are ready; else None."""
        targets = publish_info.at_masters
        if (
            not targets
            or self._failures
            or self._remoting.down_count
            or self._latency.ends_ms > now.mono_ms
            or publish_info.version != self._routes.version
            or self._options.zone
        ):
            return None
        position = publish_info.position = publish_info.position + 1
        return targets[position % len(targets)]

    def _next(self, publish_info: TopicPublishInfo, last_broker: str, now: Now) -> SendTarget | None:
        """Return the next queue in turn whose group is ready."""
        passed = [last_broker]
        queues = publish_info.queues
        for _ in queues:
            publish_info.position += 1
            queue = queues[publish_info.position % len(queues)]
            name = queue.broker_name
            if name not in passed:
                address = self._best(name, queue.topic, now)
                if address is not None:
                    return SendTarget(queue, address)
                passed.append(name)
        return None

    def has_other(self, publish_info: TopicPublishInfo, last_broker: str, now: Now) -> bool:
        """Return whether another group than the last one is ready."""
        return bool(self._ready_groups(publish_info, last_broker, now))

    def _ready_groups(self, publish_info: TopicPublishInfo, last_broker: str, now: Now) -> dict[str, str]:
        """Return the ready groups with the member to send to; those in the producer's own zone if there are any."""
        ready: dict[str, str] = {}
        for name in publish_info.by_group:
            address = self._best(name, publish_info.route.topic, now) if name != last_broker else None
            if address is not None:
                ready[name] = address
        zone = self._options.zone
        if zone:
            near = {n: address for n, address in ready.items() if self._routes.group(n).zone == zone}
            return near or ready
        return ready

    def _best(self, broker_name: str, topic: str, now: Now) -> str | None:
        """Return the member that accepts messages as far as known: up, not slow, and without a recent failure."""
        master = self._routes.group(broker_name).members.get(MASTER_ID)
        if master is not None and self._is_ready(master, topic, now):
            return master
        if not self._routes.is_leased(broker_name):
            return None
        addresses = self._routes.read_addresses(broker_name, MASTER_ID, topic)
        return next((address for address in addresses if self._is_ready(address, topic, now)), None)

    def _is_ready(self, address: str, topic: str, now: Now) -> bool:
        if self._remoting.is_down(address) or (self._failures and not self._may_try(address, topic, now)):
            return False
        return not self._options.latency_aware or self._latency.is_available(address, now.mono_ms)

    def _last_resort(
        self, publish_info: TopicPublishInfo, last_broker: str, now: Now, *, is_late: bool
    ) -> SendTarget | None:
        """Choose among the groups of which none is ready: the one whose isolation ends first."""
        topic = publish_info.route.topic
        found = {
            name: address
            for name in publish_info.by_group
            if (address := self.member(name, topic, now, is_late=is_late)) is not None
        }
        names = [name for name in found if name != last_broker] or list(found)
        if not names:
            return None
        name = min(names, key=lambda name: self._latency.isolated_until_ms(found[name]))
        return SendTarget(publish_info.next_of(name), self._attempted(found[name], topic, now))

    def member(self, broker_name: str, topic: str, now: Now, *, is_late: bool = False) -> str | None:
        """Return the member of one group to try now, even one that is down; None if all failed too recently.

        A message that is late goes to the first member then.
        """
        addresses = self._may_become_master(broker_name, topic)
        ready = next((address for address in addresses if self._may_try(address, topic, now)), None)
        return addresses[0] if ready is None and is_late and addresses else ready

    def _may_become_master(self, broker_name: str, topic: str) -> list[str]:
        """Return the members of a group that accept messages now or soon, best first. A slave of a group with fixed
        roles is tried only if no master is listed."""
        master = self._routes.group(broker_name).members.get(MASTER_ID)
        if master is not None and not self._routes.is_leased(broker_name):
            return [master]
        return self._routes.read_addresses(broker_name, MASTER_ID, topic)

    # Outcome of attempts.

    def _may_try(self, address: str, topic: str, now: Now) -> bool:
        if not self._failures:
            return True
        return all(
            failure.again_ms <= now.mono_ms
            for key in ((address, _ALL_TOPICS), (address, topic))
            if (failure := self._failures.get(key)) is not None
        )

    def _attempted(self, address: str, topic: str, now: Now) -> str:
        """Record that a message goes to a member; unless it is expected to be stored, the next one waits for its
        outcome, for `PAUSE_MS_MAX` at most. Returns the address."""
        if address not in self._proven and not self._routes.is_master(address):
            self._failures.setdefault((address, topic), _Failure())
        if self._failures:
            for key in ((address, _ALL_TOPICS), (address, topic)):
                failure = self._failures.get(key)
                if failure is not None:
                    failure.again_ms = now.mono_ms + PAUSE_MS_MAX
        return address

    def record_success(self, address: str, topic: str, latency_ms: int, now: Now) -> bool:
        """Record that a message was stored; returns whether messages had to wait for this outcome."""
        self._proven.add(address)
        if latency_ms >= SLOW_MS:
            self._latency.record_latency(address, latency_ms, now.mono_ms)
        if not self._failures:
            return False
        failures = [self._failures.pop(key, None) for key in ((address, _ALL_TOPICS), (address, topic))]
        return any(failures)

    def record_failure(self, address: str, queue: MessageQueue, error: TandemError, now: Now) -> None:
        """Record that a message was not stored, or that its outcome is unknown."""
        self._latency.record_failure(address, now.mono_ms)
        self._proven.discard(address)
        topic = _ALL_TOPICS if isinstance(error, NetworkError) else queue.topic
        failure = self._failures.setdefault((address, topic), _Failure())
        pause_ms = min(PAUSE_MS_MAX, PAUSE_MS << min(failure.count, 8))
        failure.count += 1
        failure.again_ms = now.mono_ms + pause_ms - int(self._random.random() * pause_ms / 2)
        if error.code == ResponseCode.NO_PERMISSION:
            self._availability.suspect(address, partial(query_offset_request, self._options.group, queue), now)

    def clear_failures(self, address: str) -> None:
        """Forget the failures of a member that is reachable or active again; its slow responses still count."""
        self._latency.clear_failure(address)
        for key in [key for key in self._failures if key[0] == address]:
            del self._failures[key]


def spin(weights: dict[str, int], random: Random) -> str:
    """Draw one of the names with a probability in proportion to its weight; all equal if every weight is 0."""
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
