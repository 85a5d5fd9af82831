"""The route table: registered brokers and their topics, and the encoded routes that clients get.

    registration ─► BrokerTable (who is registered and alive) ─┐
                    TopicTable  (queues and permissions)      ─┴─► route of a topic, encoded once, cached

Encoded routes are cached per (topic, dialect) until one of their parts changes, lists until anything does.

Owner: the name server's node. Does not know: connections (only their numbers), bytes of requests, the disk.
Source: docs/reference/requests.md, "Name server"; RocketMQ RouteInfoManager.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.errors import RemoteError
from tandemq.model.topic import Permission
from tandemq.nameserver.broker_data import (
    MASTER_ID,
    NO_VERSION,
    BrokerRegistration,
    MasterAddress,
    MinIdChange,
    SystemTopics,
    TopicQueues,
    Version,
)
from tandemq.nameserver.brokers import BrokerTable, RegisteredBroker
from tandemq.nameserver.topics import PermissionChange, TopicTable, without_write

UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
_READ_WRITE = int(Permission.READ_WRITE)


class RouteTable:
    """All brokers and topics that one name server knows."""

    __slots__ = ("_brokers", "_encoded", "_encoded_lists", "_topics", "changes")

    def __init__(self, expiry_ms: int) -> None:
        """An empty table; brokers expire after `expiry_ms` of silence."""
        self._brokers = BrokerTable(expiry_ms)
        self._topics = TopicTable()
        self._encoded: dict[str, dict[tuple[bool, str | None], bytes]] = {}
        """By topic, then by dialect and orderTopicConf."""
        self._encoded_lists: dict[tuple[object, ...], bytes] = {}
        """Encoded lists by request, until a topic or a broker changes."""
        self.changes = 0
        """Number of times that routes have changed."""

    # Brokers.

    @property
    def topic_count(self) -> int:
        """The number of topics with a route."""
        return len(self._topics)

    @property
    def expiry_ms(self) -> int:
        """Silence after which a broker is removed."""
        return self._brokers.expiry_ms

    @expiry_ms.setter
    def expiry_ms(self, value: int) -> None:
        self._brokers.expiry_ms = value

    def take_min_id_changes(self) -> list[MinIdChange]:
        """Return the changes of smallest broker ids since the last call."""
        changes = self._brokers.min_id_changes
        if changes:
            self._brokers.min_id_changes = []
        return changes

    def register(self, registration: BrokerRegistration, link: int, now_ms: int) -> MasterAddress:
        """Enter a broker, or refresh its entry; its topics are merged into those known.

        The topics count if the broker is its group's master, or acts for a missing one (smallest id).

        Raises:
            RemoteError: the name, id or address belongs to a present broker, or there are too many brokers: nothing
                changed. Or its new topics exceed a limit: none of them is entered, and the broker is registered with
                the topics known before.
        """
        self._brokers.check(registration, link, now_ms)
        no_room = self._topics.no_room(registration.broker_name, registration.topics)
        if no_room is None:
            return self._enter(registration, link, now_ms)
        member, known = self._brokers.at(registration.address), self._topics.of_group(registration.broker_name)
        topics = {name: queues for name, queues in registration.topics.items() if name in known}
        version = NO_VERSION if member is None else member.version
        self._enter(replace(registration, topics=topics, mappings={}, version=version), link, now_ms)
        raise RemoteError(f"{no_room}; the broker is registered with the topics known before")

    def _enter(self, new: BrokerRegistration, link: int, now_ms: int) -> MasterAddress:
        former = self._brokers.at(new.address)
        if former is not None and (former.broker_name, former.broker_id) != (new.broker_name, new.broker_id):
            self._remove(
                former,
                f"its address is now that of {new.broker_name} {new.broker_id}",
                keep_group=former.broker_name == new.broker_name,
            )
        entered = self._brokers.enter(new, link, now_ms)
        if entered.changes_routes:
            self._drop_all_encoded()
        group = self._brokers.groups[new.broker_name]
        if group.first().broker_id == new.broker_id:
            changed = self._topics.merge(
                new.broker_name,
                new.topics,
                new.mappings,
                is_new_version=entered.former is None or entered.former.version != new.version,
                is_write_withheld=new.acting_master and new.broker_id != MASTER_ID,
            )
            self._drop_encoded(changed)
        return group.master_for(new.broker_id)

    def unregister(self, broker_name: str, address: str) -> None:
        """Remove a broker; nothing happens if it is not registered."""
        member = self._brokers.at(address)
        if member is not None and member.broker_name == broker_name:
            self._remove(member, "it unregistered")

    def link_closed(self, link: int, reason: str) -> None:
        """Remove the brokers that registered through a connection that was closed."""
        for member in self._brokers.on_link(link):
            self._remove(member, f"its connection is closed: {reason}")

    def expire(self, now_ms: int) -> list[int]:
        """Remove brokers that were silent for too long; return their connections, which are to be closed."""
        silent = self._brokers.silent(now_ms)
        for member in silent:
            self._remove(member, f"silent for {now_ms - member.last_seen_ms} ms")
        return sorted({member.link for member in silent})

    def _remove(self, member: RegisteredBroker, reason: str, *, keep_group: bool = False) -> None:
        group = self._brokers.remove(member, reason, keep_group=keep_group)
        self._drop_all_encoded()
        if group.name not in self._brokers.groups:
            self._topics.remove_group(group.name)
        elif group.acting_master and MASTER_ID not in group.members:
            self._topics.change_permissions(group.name, without_write)

    def is_registered(self, cluster: str, broker_name: str, broker_id: int, address: str) -> bool:
        """Whether exactly this broker is registered."""
        return self._brokers.is_registered(cluster, broker_name, broker_id, address)

    def touch(self, cluster: str, address: str, now_ms: int) -> Version | None:
        """Record a sign of life; return the broker's data version, None if it is not registered."""
        return self._brokers.touch(cluster, address, now_ms)

    # Changes by operators.

    def wipe_write_permission(self, broker_name: str) -> int:
        """Stop writes to a group until it registers with a new data version; return the number of its topics."""
        return self._change_permissions(broker_name, without_write)

    def add_write_permission(self, broker_name: str) -> int:
        """Allow reads and writes on a group again; return the number of its topics."""
        return self._change_permissions(broker_name, lambda _: _READ_WRITE)

    def _change_permissions(self, broker_name: str, change: PermissionChange) -> int:
        changed = self._topics.change_permissions(broker_name, change)
        self._drop_encoded(changed)
        return len(changed)

    def add_topic(self, topic: str, places: dict[str, TopicQueues]) -> None:
        """Add a topic on registered groups; other groups are ignored.

        Raises:
            RemoteError: the table is full; nothing changed.
        """
        self._topics.add(topic, {name: queues for name, queues in places.items() if name in self._brokers.groups})
        self._drop_encoded((topic,))

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Remove a topic from all groups or those of one cluster; a broker that still has it registers it again."""
        for name in self._topics.groups_of(topic):
            if not cluster or self._brokers.groups[name].cluster == cluster:
                self._topics.remove(topic, name)
        self._drop_encoded((topic,))

    def _drop_encoded(self, topics: Iterable[str]) -> None:
        for topic in topics:
            self._encoded.pop(topic, None)
            self._encoded_lists.clear()
            self.changes += 1

    def _drop_all_encoded(self) -> None:
        self._encoded.clear()
        self._encoded_lists.clear()
        self.changes += 1

    # Queries.

    def route(self, topic: str, *, strict: bool, order: str | None = None) -> bytes | None:
        """The encoded route of a topic; None if no registered broker has it.

        `strict`: standard JSON, keys quoted and sorted, ASCII only; else Java's own dialect with bare ids.
        `order` is added as `orderTopicConf`.
        """
        encoded = self._encoded.get(topic)
        if encoded is None:
            if topic not in self._topics:
                return None
            encoded = self._encoded[topic] = {}
        body = encoded.get((strict, order))
        if body is None:
            body = encoded[strict, order] = self._encode_route(topic, strict=strict, order=order)
        return body

    def _encode_route(self, topic: str, *, strict: bool, order: str | None) -> bytes:
        offered = self._topics.offered(topic)
        groups = [self._brokers.groups[name] for name in offered]
        value: dict[str, Any] = {
            "brokerDatas": [group.as_json() for group in groups],
            "filterServerTable": {
                member.address: list(member.filter_servers)
                for group in groups
                for member in group.members.values()
                if member.filter_servers
            },
        }
        if order is not None:
            value["orderTopicConf"] = order
        value["queueDatas"] = [queues.as_json(name) for name, queues in offered.items()]
        mappings = {name: found for name in offered if (found := self._topics.mapping(topic, name)) is not None}
        if mappings:
            value["topicQueueMappingByBroker"] = mappings
        if strict:
            return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        return dumps_java(value)

    def encoded_list(self, key: tuple[object, ...], build: Callable[[], dict[str, Any]]) -> bytes:
        """The body of a list of topics or brokers, encoded once until one of them changes.

        Args:
            key: what was asked for; of a bounded number of values.
            build: returns the list, from the queries below.
        """
        found = self._encoded_lists.get(key)
        if found is None:
            found = self._encoded_lists[key] = dumps_java(build())
        return found

    def clusters(self) -> dict[str, Any]:
        """All groups, and the groups of each cluster (ClusterInfo)."""
        return {
            "brokerAddrTable": {group.name: group.as_json() for group in self._brokers.sorted_groups()},
            "clusterAddrTable": self._brokers.cluster_names(),
        }

    def addresses(self, cluster: str, broker_name: str) -> dict[int, str]:
        """The addresses of a group's members by broker id; empty if the cluster has no such group."""
        group = self._brokers.groups.get(broker_name)
        return group.addresses() if group is not None and group.cluster == cluster else {}

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return self._topics.names()

    def has_cluster(self, cluster: str) -> bool:
        """Whether a registered broker belongs to the cluster."""
        return cluster in self._brokers.cluster_names()

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of one cluster's brokers, sorted."""
        found: set[str] = set()
        for group in self._brokers.sorted_groups():
            if group.cluster == cluster:
                found |= self._topics.of_group(group.name)
        return sorted(found)

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose system flag, on their first group, has all bits of `wanted` and none of `unwanted`."""
        return self._topics.with_flag(wanted, unwanted)

    def system_topics(self) -> SystemTopics:
        """The topics named after clusters and brokers."""
        names = [name for cluster, groups in self._brokers.cluster_names().items() for name in (cluster, *groups)]
        first = next(self._brokers.sorted_groups(), None)
        return SystemTopics(list(dict.fromkeys(names)), first.first().address if first is not None else None)

    def hosts(self) -> set[str]:
        """The hosts of the registered brokers."""
        return self._brokers.hosts()
