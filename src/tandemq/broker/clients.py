"""Who is connected: producers and consumers by group, their subscriptions, and the queue locks of orderly consumers.

Source: docs/requests.md, "group membership" and "orderly consumption"; RocketMQ ConsumerManager, RebalanceLockManager.
"""

from dataclasses import dataclass, field

from tandemq.model.group import ConsumerData, HeartbeatData, SubscriptionData


@dataclass(slots=True)
class Member:
    """One client process in a group, on one link."""

    link: int
    client_id: str
    address: str
    language: str
    version: int
    seen_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """A group that is online here."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[int, Member] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    fingerprint: int = 0

    def client_ids(self) -> list[str]:
        """Ids of the members, one per client."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))


class Clients:
    """Membership by link. A link that closes takes its members along."""

    def __init__(self) -> None:
        """Nobody is connected."""
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, Member]] = {}

    def heartbeat(self, beat: HeartbeatData, member: Member) -> list[str]:
        """Take a client's heartbeat; returns consumer groups whose members or subscriptions changed."""
        for producer in beat.producers:
            self.producers.setdefault(producer.group_name, {})[member.link] = member
        return [data.group_name for data in beat.consumers if self._join(data, member, beat)]

    def _join(self, data: ConsumerData, member: Member, beat: HeartbeatData) -> bool:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, "", "", "")
            self.consumers[data.group_name] = group
        group.consume_type = data.consume_type or "CONSUME_PASSIVELY"
        group.message_model = data.message_model or "CLUSTERING"
        group.consume_from_where = data.consume_from_where or "CONSUME_FROM_LAST_OFFSET"
        is_new = member.link not in group.members
        group.members[member.link] = member
        if beat.without_sub:
            return is_new
        group.fingerprint = beat.fingerprint
        return _subscribe(group, data.subscription_data_set) or is_new

    def leave(self, link: int, client_id: str, producer_group: str, consumer_group: str) -> list[str]:
        """A client says it leaves groups; returns consumer groups whose members changed."""
        producers = self.producers.get(producer_group)
        if producers is not None and link in producers and producers[link].client_id == client_id:
            self._drop_producer(producer_group, link)
        group = self.consumers.get(consumer_group)
        if group is None or link not in group.members:
            return []
        self._drop_consumer(group, link)
        return [consumer_group]

    def link_closed(self, link: int) -> list[str]:
        """Forget whoever was on a link; returns consumer groups whose members changed."""
        for name in [name for name, members in self.producers.items() if link in members]:
            self._drop_producer(name, link)
        changed = [group for group in self.consumers.values() if link in group.members]
        for group in changed:
            self._drop_consumer(group, link)
        return [group.name for group in changed]

    def _drop_producer(self, name: str, link: int) -> None:
        del self.producers[name][link]
        if not self.producers[name]:
            del self.producers[name]

    def _drop_consumer(self, group: ConsumerGroup, link: int) -> None:
        del group.members[link]
        if not group.members:
            self.consumers.pop(group.name, None)

    def expired(self, now_ms: int, expiry_ms: int) -> set[int]:
        """Links of members silent for longer than `expiry_ms`."""
        members = [m for group in self.consumers.values() for m in group.members.values()]
        members += [m for group in self.producers.values() for m in group.values()]
        return {member.link for member in members if now_ms - member.seen_ms > expiry_ms}

    def find(self, group: str, client_id: str) -> Member | None:
        """A consumer by its client id."""
        found = self.consumers.get(group)
        if found is None:
            return None
        return next((member for member in found.members.values() if member.client_id == client_id), None)


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


class QueueLocks:
    """Which client may consume a queue in order, per group; a lock not renewed for `live_ms` is free."""

    def __init__(self, live_ms: int) -> None:
        """No lock is held."""
        self._live_ms = live_ms
        self._held: dict[tuple[str, str, int], tuple[str, int]] = {}

    def lock(self, group: str, topic: str, queue_id: int, client_id: str, now_ms: int) -> bool:
        """Take or renew a lock; False if another client holds it."""
        held = self._held.get((group, topic, queue_id))
        if held is not None and held[0] != client_id and now_ms - held[1] < self._live_ms:
            return False
        self._held[group, topic, queue_id] = (client_id, now_ms)
        return True

    def unlock(self, group: str, topic: str, queue_id: int, client_id: str) -> None:
        """Give a lock back; harmless if another client has it."""
        if self._held.get((group, topic, queue_id), ("", 0))[0] == client_id:
            del self._held[group, topic, queue_id]

    def expire(self, now_ms: int) -> None:
        """Forget locks nobody renewed."""
        for key in [key for key, (_, since) in self._held.items() if now_ms - since >= self._live_ms]:
            del self._held[key]
