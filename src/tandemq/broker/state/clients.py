"""Connected producers and consumers by group, their subscriptions, and the queue locks of orderly consumers.

Source: docs/reference/requests.md, "group membership" and "orderly consumption"; RocketMQ ConsumerManager,
RebalanceLockManager.
"""

from dataclasses import dataclass, field

from tandemq.broker.state.subscriptions import TAGS_MAX, check_expression
from tandemq.errors import ProtocolError
from tandemq.model.group import ConsumerData, HeartbeatData, SubscriptionData
from tandemq.model.topic import group_name_error

MEMBERSHIPS_MAX = 200_000
"""Maximum number of memberships: pairs of a connection and one of its producer or consumer groups."""
MEMBERSHIP_BYTES_MAX = 16 << 20
"""Memory budget of all memberships and online groups, as estimated by `_MEMBERSHIP_BYTES` and `_group_bytes`."""
_MEMBERSHIP_BYTES = 150
GROUPS_PER_LINK_MAX = 2_000
MEMBERS_PER_GROUP_MAX = 10_000
CLIENT_ID_CHARACTERS_MAX = 1_024
KIND_CHARACTERS_MAX = 64
"""Of how a group consumes: names of constants, of which newer clients may have more than are known here."""
SUBSCRIPTIONS_PER_GROUP_MAX = 2_000
SUBSCRIPTION_BYTES_MAX = 32 << 20
"""Memory budget of the subscriptions of all groups."""
LOCKS_MAX = 100_000


@dataclass(slots=True)
class Member:
    """One client process in a group, on one connection."""

    link: int
    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group with connected members."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[int, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0

    def client_ids(self) -> list[str]:
        """Return the client ids of the members, without duplicates."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


class Clients:
    """Groups and their members, by connection; the members of a connection are removed when it closes."""

    def __init__(self) -> None:
        """Begin without clients."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, Member]] = {}
        self._producing: dict[int, dict[str, None]] = {}
        """Producer groups by connection."""
        self._producer_ids: dict[int, str] = {}
        """Client id by connection, for connections with producers."""
        self._producer_links: dict[str, int] = {}
        """Connection by client id: of several with the same id the one that sent a heartbeat last."""
        self._consuming: dict[int, dict[str, None]] = {}
        """Consumer groups by connection."""
        self._memberships = 0
        self._member_bytes = 0
        self._subscription_bytes = 0

    def heartbeat(self, beat: HeartbeatData, member: Member) -> list[str]:
        """Register a client's groups; return the consumer groups whose members or subscriptions changed.

        Raises:
            ProtocolError: the heartbeat exceeds a limit; no part of it is registered.
        """
        self._check(beat, member.link)
        if beat.producers:
            self._forget_producer_id(member.link)
            self._producer_ids[member.link] = member.client_id
            self._producer_links[member.client_id] = member.link
        for producer in beat.producers:
            members = self.producers.get(producer.group_name)
            if members is None:
                members = self.producers[producer.group_name] = {}
                self._member_bytes += _group_bytes(producer.group_name)
            if member.link not in members:
                self._count_member(1)
            members[member.link] = member
            self._producing.setdefault(member.link, {})[producer.group_name] = None
        return [data.group_name for data in beat.consumers if self._join(data, member, beat)]

    def _count_member(self, change: int) -> None:
        self._memberships += change
        self._member_bytes += change * _MEMBERSHIP_BYTES

    def _check(self, beat: HeartbeatData, link: int) -> None:
        if len(beat.client_id) > CLIENT_ID_CHARACTERS_MAX:
            raise ProtocolError(f"the client id has more than {CLIENT_ID_CHARACTERS_MAX} characters")
        names = [data.group_name for data in beat.producers] + [data.group_name for data in beat.consumers]
        for name in names:
            if (reason := group_name_error(name)) is not None:
                raise ProtocolError(f"heartbeat: {reason}")
        producing = self._producing.get(link, {}).keys() | {data.group_name for data in beat.producers}
        consuming = self._consuming.get(link, {}).keys() | {data.group_name for data in beat.consumers}
        if max(len(producing), len(consuming)) > GROUPS_PER_LINK_MAX:
            raise ProtocolError(f"more than {GROUPS_PER_LINK_MAX} groups on one connection")
        if self._memberships + len(names) > MEMBERSHIPS_MAX:
            raise ProtocolError(f"more than {MEMBERSHIPS_MAX} members of all groups together; try later")
        unknown = [data.group_name for data in beat.producers if data.group_name not in self.producers]
        unknown += [data.group_name for data in beat.consumers if data.group_name not in self.consumers]
        if unknown and self._member_bytes + sum(map(_group_bytes, unknown)) > MEMBERSHIP_BYTES_MAX:
            raise ProtocolError(f"the members of all groups take more than {MEMBERSHIP_BYTES_MAX} bytes; try later")
        for consumer in beat.consumers:
            group = self.consumers.get(consumer.group_name)
            if group is not None and link not in group.members and len(group.members) >= MEMBERS_PER_GROUP_MAX:
                raise ProtocolError(f"the group {consumer.group_name} has {MEMBERS_PER_GROUP_MAX} members already")
            kinds = (consumer.consume_type, consumer.message_model, consumer.consume_from_where)
            if any(len(kind or "") > KIND_CHARACTERS_MAX for kind in kinds):
                raise ProtocolError(
                    f"group {consumer.group_name}: consumeType, messageModel and consumeFromWhere have at most "
                    f"{KIND_CHARACTERS_MAX} characters"
                )
            check_subscriptions(consumer)
        added = sum(memory_of(data) for consumer in beat.consumers for data in consumer.subscription_data_set)
        if self._subscription_bytes + added > SUBSCRIPTION_BYTES_MAX:
            raise ProtocolError(f"the subscriptions of all groups take more than {SUBSCRIPTION_BYTES_MAX} bytes")

    def _join(self, data: ConsumerData, member: Member, beat: HeartbeatData) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, "", "", "")
            self.consumers[data.group_name] = group
            self._member_bytes += _group_bytes(data.group_name)
        group.consume_type = data.consume_type or "CONSUME_PASSIVELY"
        group.message_model = data.message_model or "CLUSTERING"
        group.consume_from_where = data.consume_from_where or "CONSUME_FROM_LAST_OFFSET"
        is_new = member.link not in group.members
        if is_new:
            self._count_member(1)
        group.members[member.link] = member
        self._consuming.setdefault(member.link, {})[data.group_name] = None
        if beat.without_sub:
            return is_new
        group.fingerprint = beat.fingerprint
        before = sum(map(memory_of, group.subscriptions.values()))
        changed = _subscribe(group, data.subscription_data_set)
        self._subscription_bytes += sum(map(memory_of, group.subscriptions.values())) - before
        return changed or is_new

    def leave(self, link: int, client_id: str, producer_group: str, consumer_group: str) -> list[str]:
        """Remove a client from groups that it leaves; return the consumer groups whose members changed."""
        producers = self.producers.get(producer_group)
        if producers is not None and link in producers and producers[link].client_id == client_id:
            self._drop_producer(producer_group, link)
        group = self.consumers.get(consumer_group)
        if group is None or link not in group.members:
            return []
        self._drop_consumer(group, link)
        return [consumer_group]

    def link_closed(self, link: int) -> list[str]:
        """Remove the members of a closed connection; return the consumer groups whose members changed.

        Cost: proportional to the groups of the connection.
        """
        for name in list(self._producing.get(link, ())):
            self._drop_producer(name, link)
        changed = list(self._consuming.get(link, ()))
        for name in changed:
            self._drop_consumer(self.consumers[name], link)
        return changed

    def _drop_producer(self, name: str, link: int) -> None:
        del self.producers[name][link]
        self._count_member(-1)
        if not self.producers[name]:
            del self.producers[name]
            self._member_bytes -= _group_bytes(name)
        _drop(self._producing, link, name)
        if link not in self._producing:
            self._forget_producer_id(link)

    def _forget_producer_id(self, link: int) -> None:
        client_id = self._producer_ids.pop(link, "")
        if self._producer_links.get(client_id) == link:
            del self._producer_links[client_id]

    def _drop_consumer(self, group: ConsumerGroup, link: int) -> None:
        del group.members[link]
        self._count_member(-1)
        if not group.members:
            self._member_bytes -= _group_bytes(group.name)
            self._subscription_bytes -= sum(map(memory_of, group.subscriptions.values()))
            self.consumers.pop(group.name, None)
        _drop(self._consuming, link, group.name)

    def expired(self, now_ms: int, expiry_ms: int) -> set[int]:
        """Return the connections with a member that has sent no heartbeat for `expiry_ms`."""
        members = [m for group in self.consumers.values() for m in group.members.values()]
        members += [m for group in self.producers.values() for m in group.values()]
        return {member.link for member in members if now_ms - member.seen_ms > expiry_ms}

    def producer_link(self, client_id: str) -> int | None:
        """Return the connection of a client that has a producer; None if there is none."""
        return self._producer_links.get(client_id)

    def find(self, group: str, client_id: str) -> Member | None:
        """Return the member of a consumer group with a client id; None if there is none."""
        found = self.consumers.get(group)
        if found is None:
            return None
        return next((member for member in found.members.values() if member.client_id == client_id), None)


def _drop(groups: dict[int, dict[str, None]], link: int, name: str) -> None:
    """Remove a group from those of a connection."""
    remaining = groups[link]
    del remaining[name]
    if not remaining:
        del groups[link]


def _group_bytes(name: str) -> int:
    return 450 + 2 * len(name)


def memory_of(subscription: SubscriptionData) -> int:
    """Estimate the memory of a subscription, bytes."""
    texts = len(subscription.topic) + len(subscription.sub_string) + sum(map(len, subscription.tags_set))
    texts += len(subscription.expression_type or "")
    return 512 + 4 * texts + 100 * len(subscription.tags_set) + 40 * len(subscription.code_set)


def _subscribe(group: ConsumerGroup, subscriptions: list[SubscriptionData]) -> bool:
    changed = False
    listed = {subscription.topic for subscription in subscriptions}
    for subscription in subscriptions:
        present = group.subscriptions.get(subscription.topic)
        if present is None:
            changed = True
        elif subscription.sub_version <= present.sub_version:
            continue
        elif subscription.sub_string != present.sub_string:
            changed = True
        group.subscriptions[subscription.topic] = subscription
    for topic in [topic for topic in group.subscriptions if topic not in listed]:
        del group.subscriptions[topic]
        changed = True
    return changed


def check_subscriptions(consumer: ConsumerData) -> None:
    """Check the subscriptions of a consumer.

    Raises:
        ProtocolError: there are too many, or one is too large.
    """
    if len(consumer.subscription_data_set) > SUBSCRIPTIONS_PER_GROUP_MAX:
        raise ProtocolError(
            f"the group {consumer.group_name} subscribes to more than {SUBSCRIPTIONS_PER_GROUP_MAX} topics"
        )
    for subscription in consumer.subscription_data_set:
        try:
            check_expression(subscription.sub_string)
            check_expression(subscription.topic)
            check_expression(subscription.expression_type)
        except ValueError as error:
            raise ProtocolError(f"group {consumer.group_name}: {error}") from error
        if len(subscription.tags_set) > TAGS_MAX or len(subscription.code_set) > TAGS_MAX:
            raise ProtocolError(f"group {consumer.group_name}: a subscription with more than {TAGS_MAX} tags")


class QueueLocks:
    """Locks of orderly consumers: one client per group and queue; a lock not renewed for `live_ms` is free."""

    def __init__(self, live_ms: int) -> None:
        """Begin without locks."""
        self._live_ms = live_ms
        self._held: dict[tuple[str, str, int], tuple[str, int]] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, now_ms: int) -> bool:
        """Take or renew a lock; False if another client holds it.

        Raises:
            ProtocolError: LOCKS_MAX queues are locked.
        """
        held = self._held.get((group, topic, queue_id))
        if held is not None and held[0] != client_id and now_ms - held[1] < self._live_ms:
            return False
        if held is None and len(self._held) >= LOCKS_MAX:
            raise ProtocolError(f"{LOCKS_MAX} queues are locked already; try later")
        self._held[group, topic, queue_id] = (client_id, now_ms)
        return True

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Release a lock; no effect if another client holds it."""
        if self._held.get((group, topic, queue_id), ("", 0))[0] == client_id:
            del self._held[group, topic, queue_id]

    def expire(self, now_ms: int) -> None:
        """Remove locks that were not renewed in time."""
        for key in [key for key, (_, since) in self._held.items() if now_ms - since >= self._live_ms]:
            del self._held[key]
