"""The route table: which brokers live, and which topics they have.

    groups      broker name -> cluster, members {broker id: address}, topics
    topics      topic -> {broker name: (declared, offered)}

`declared` is what the broker said last, `offered` what clients are told: they differ after an operator wiped the
write permission. Encoded route answers are kept per (topic, dialect) until something they tell of changes.

What always holds: a group has at least one member; a topic at least one group, and that group is in the table;
an address belongs to one member.

A taken place. Two brokers with one name and one id would each believe to be the group's master, and clients would
see them in turn. The second is therefore refused, loudly (Java's name server lets the last one win) - but only while
the first is *present*: the link it registered through is open, and it was heard of on it within 60 % of the expiry
(72 s by default, more than the longest period between two registrations). A broker that was killed and comes back
elsewhere finds its place free at once, because its link was closed with its process. A registration whose data version
carries a larger state version (the epoch of a failover) takes the place at any time, and one with a smaller never.

Owner: the name server's node. Does not know: links (only their numbers), bytes of requests, the disk.
Source: docs/requests.md, "Name server"; RocketMQ RouteInfoManager.
"""

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.errors import RemoteError
from tandemq.model.codes import ResponseCode
from tandemq.model.topic import Permission

BROKERS_MAX = 10_000
GROUP_TOPICS_MAX = 100_000
"""Topics of one broker name, in however many registrations."""
TOPIC_PLACES_MAX = 500_000
"""(topic, broker name) pairs in the table."""
MASTER_ID = 0
UNIT_FLAG = 1
UNIT_SUB_FLAG = 2
_PRESENT_SHARE = 0.6
_WRITE = int(Permission.WRITE)
_READ_WRITE = int(Permission.READ_WRITE)

_PermissionChange = Callable[[int], int]
_log = logging.getLogger(__name__)


class Version(NamedTuple):
    """The data version of a broker's topic table; compared whole."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def as_json(self) -> dict[str, int]:
        """As peers write it."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}


NO_VERSION = Version()


class Queues(NamedTuple):
    """What one broker group offers of one topic."""

    perm: int
    read_queue_nums: int
    write_queue_nums: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """What a broker says of itself."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    version: Version = NO_VERSION
    topics: dict[str, Queues] = field(default_factory=dict)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Static topics (5.x): passed on as told."""
    filter_servers: tuple[str, ...] = ()
    timeout_ms: int | None = None
    """After how long a silence it wants to be dropped; None: as configured here."""
    acting_master: bool = False
    """Whether a slave of this group may act as its master (5.x): then nobody may write while there is no master."""
    zone: str | None = None
    """Where it stands."""
    weight: int | None = None
    """Its group's share of the writes, while it is the master."""
    mode: str = ""
    """The failover mode of its group, if it is another than static."""

    @property
    def looks(self) -> dict[str, Any]:
        """What routes tell of its group, besides addresses, while it is the first member; only what was told."""
        told = {"zoneName": self.zone, "weight": self.weight, "failoverMode": self.mode or None}
        return {name: value for name, value in told.items() if value is not None}


@dataclass(slots=True, eq=False)
class _Member:
    """A registered broker."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: Version
    filter_servers: tuple[str, ...]
    timeout_ms: int | None
    link: int
    heard_ms: int
    looks: dict[str, Any]


@dataclass(slots=True, eq=False)
class _Group:
    """The brokers of one name."""

    cluster: str
    name: str
    acting_master: bool = False
    members: dict[int, _Member] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)
    mappings: dict[str, dict[str, Any]] = field(default_factory=dict)
    is_changed: bool = False
    """Whether permissions were changed here, by an operator or because the master left, since a member registered for
    the first time or with a new data version."""

    def first(self) -> _Member:
        """The member with the smallest id: the master, if there is one."""
        return self.members[min(self.members)]

    def as_json(self) -> dict[str, Any]:
        """As a route or the cluster info tells of it."""
        return {
            "brokerAddrs": self.addresses(),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
            **self.first().looks,
        }

    def addresses(self) -> dict[int, str]:
        """Address by broker id, smallest id first."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}


@dataclass(frozen=True, slots=True)
class MasterPlace:
    """Where a slave finds its master; empty for a master, and while there is none."""

    address: str = ""
    ha_address: str = ""


class MinIdChange(NamedTuple):
    """Another member of a group has the smallest id now: one left (`offline`), or one came (then `ha_address`)."""

    broker_name: str
    broker_id: int
    address: str
    offline: str
    ha_address: str
    links: list[int]
    """Of the members that should hear of it."""


class RouteTable:
    """All brokers and topics one name server knows."""

    __slots__ = ("_answers", "_groups", "_links", "_members", "_places", "_topics", "expiry_ms", "min_id_changes")

    def __init__(self, expiry_ms: int) -> None:
        """An empty table that drops brokers after `expiry_ms` of silence."""
        self.expiry_ms = expiry_ms
        self._groups: dict[str, _Group] = {}
        self._members: dict[str, _Member] = {}
        self._links: dict[int, set[str]] = {}
        self._topics: dict[str, dict[str, tuple[Queues, Queues]]] = {}
        self._places = 0
        self._answers: dict[str, dict[tuple[bool, str | None], bytes]] = {}
        self.min_id_changes: list[MinIdChange] = []
        """What happened since the owner last took them."""

    # Brokers come and go.

    def register(self, told: Registration, link: int, now_ms: int) -> MasterPlace:
        """Enter a broker, or hear from it again.

        The topics told are merged into those known: a broker may tell of a single new one, or of many in several
        pieces under one data version. They count if the broker is its group's master, or stands in for a missing one
        (smallest id).

        Raises:
            RemoteError: the place is taken by a broker that is present, or there are too many brokers: nothing changed.
                Or there is no room for its new topics: none of them is entered, and the broker has its place with the
                topics known before.
        """
        self._refuse_taken(told, link, now_ms)
        if told.address not in self._members and len(self._members) >= BROKERS_MAX:
            raise RemoteError(f"this name server is full: it holds {len(self._members)} brokers of {BROKERS_MAX}")
        no_room = self._no_room(told)
        if no_room is None:
            return self._place(told, link, now_ms)
        group, member = self._groups.get(told.broker_name), self._members.get(told.address)
        known = {} if group is None else {name: told.topics[name] for name in told.topics.keys() & group.topics}
        version = NO_VERSION if member is None else member.version
        self._place(replace(told, topics=known, mappings={}, version=version), link, now_ms)
        raise RemoteError(f"{no_room}; the broker is registered with the topics known before")

    def _no_room(self, told: Registration) -> str | None:
        """Why the new topics of a registration cannot be entered."""
        group = self._groups.get(told.broker_name)
        present = 0 if group is None else len(group.topics)
        added = sum(1 for topic in told.topics if group is None or topic not in group.topics)
        if added and self._places + added > TOPIC_PLACES_MAX:
            return f"this name server is full: it holds {self._places} topic places of at most {TOPIC_PLACES_MAX}"
        if added and present + added > GROUP_TOPICS_MAX:
            return (
                f"broker {told.broker_name} has {present} topics here and tells of {added} more, at most "
                f"{GROUP_TOPICS_MAX} are allowed"
            )
        return None

    def _place(self, told: Registration, link: int, now_ms: int) -> MasterPlace:
        former = self._members.get(told.address)
        if former is not None and (former.broker_name, former.broker_id) != (told.broker_name, told.broker_id):
            self._remove(
                former,
                f"its address is now that of {told.broker_name} {told.broker_id}",
                keep_group=former.broker_name == told.broker_name,
            )
        group = self._groups.get(told.broker_name)
        if group is None:
            group = self._groups[told.broker_name] = _Group(told.cluster, told.broker_name)
        smallest = min(group.members, default=0)
        before = self._enter(group, told, link, now_ms)
        if told.broker_id < smallest:
            others = [member.link for member in group.members.values() if member.broker_id != told.broker_id]
            self._note_min_id(group, "", told.ha_address, others)
        if group.first().broker_id == told.broker_id:
            self._merge(group, told, everything=before is None or before.version != told.version)
        master = group.members.get(MASTER_ID)
        if told.broker_id == MASTER_ID or master is None:
            return MasterPlace()
        return MasterPlace(master.address, master.ha_address)

    def _refuse_taken(self, told: Registration, link: int, now_ms: int) -> None:
        group = self._groups.get(told.broker_name)
        if group is not None and group.cluster != told.cluster and self._others_present(group, told, link, now_ms):
            raise RemoteError(
                f"broker {told.broker_name} belongs to cluster {group.cluster}, and {told.address} says it is in "
                f"{told.cluster}; give it another brokerName, or stop the others of that name first"
            )
        holder = group.members.get(told.broker_id) if group is not None else None
        if holder is not None and holder.address != told.address:
            theirs, ours = holder.version.state_version, told.version.state_version
            if ours < theirs or (ours == theirs and self._is_present(holder, link, now_ms)):
                raise self._taken(holder, told, now_ms)
        other = self._members.get(told.address)
        if other is not None and other.broker_name != told.broker_name and self._is_present(other, link, now_ms):
            raise self._taken(other, told, now_ms)

    def _others_present(self, group: _Group, told: Registration, link: int, now_ms: int) -> bool:
        return any(
            member.address != told.address and self._is_present(member, link, now_ms)
            for member in group.members.values()
        )

    def _is_present(self, member: _Member, link: int, now_ms: int) -> bool:
        """Whether a member can be taken to live: its link is open (else it would be gone), another one, and fresh."""
        return member.link != link and now_ms - member.heard_ms <= self.expiry_ms * _PRESENT_SHARE

    @staticmethod
    def _taken(holder: _Member, told: Registration, now_ms: int) -> RemoteError:
        _log.error(
            "registration refused broker=%s id=%d address=%s holder=%s holder_address=%s heard_ms_ago=%d",
            told.broker_name,
            told.broker_id,
            told.address,
            holder.broker_name,
            holder.address,
            now_ms - holder.heard_ms,
        )
        return RemoteError(
            f"broker {told.broker_name} with id {told.broker_id} at {told.address} is refused: "
            f"{holder.broker_name} with id {holder.broker_id} is registered at {holder.address} "
            f"and was heard of {(now_ms - holder.heard_ms) / 1000:.0f} s ago",
            hint="give one of the two another brokerId, brokerName or address, or stop it",
            code=ResponseCode.SYSTEM_ERROR,
        )

    def _enter(self, group: _Group, told: Registration, link: int, now_ms: int) -> _Member | None:
        """Put the broker into its place; give back who was there with the same address."""
        before = group.members.get(told.broker_id)
        if before is not None:
            self._forget_address(before)
        member = _Member(
            told.cluster,
            told.broker_name,
            told.broker_id,
            told.address,
            told.ha_address,
            told.version,
            told.filter_servers,
            told.timeout_ms,
            link,
            now_ms,
            told.looks,
        )
        group.members[told.broker_id] = member
        self._members[told.address] = member
        self._links.setdefault(link, set()).add(told.address)
        looks = (group.cluster, group.acting_master)
        group.cluster, group.acting_master = told.cluster, told.acting_master
        same = before is not None and before.address == told.address
        if (
            before is None
            or not same
            or before.filter_servers != told.filter_servers
            or before.looks != told.looks
            or looks != (group.cluster, group.acting_master)
        ):
            self._answers.clear()
        if not same:
            _log.info(
                "broker registered name=%s id=%d address=%s cluster=%s replaces=%s",
                told.broker_name,
                told.broker_id,
                told.address,
                told.cluster,
                before.address if before else None,
            )
        return before if same else None

    def _forget_address(self, member: _Member) -> None:
        del self._members[member.address]
        addresses = self._links[member.link]
        addresses.remove(member.address)
        if not addresses:
            del self._links[member.link]

    def _merge(self, group: _Group, told: Registration, *, everything: bool) -> None:
        """Take over the topics told; those told as before keep a permission changed here meanwhile, until a member
        registers with a new data version (`everything`), in one piece or more."""
        if everything:
            group.is_changed = False
        wipe = group.acting_master and told.broker_id != MASTER_ID
        for topic, declared in told.topics.items():
            places = self._topics.get(topic)
            if places is None:
                places = self._topics[topic] = {}
            known = places.get(group.name)
            if known is None:
                self._places += 1
                group.topics.add(topic)
            elif known[0] == declared and group.is_changed:
                continue
            offered = declared._replace(perm=declared.perm & ~_WRITE) if wipe else declared
            if known != (declared, offered):
                places[group.name] = (declared, offered)
                self._answers.pop(topic, None)
        if told.mappings:
            mappings = {topic: value for topic, value in told.mappings.items() if topic in group.topics}
            if group.mappings | mappings != group.mappings:
                group.mappings |= mappings
                self._answers.clear()

    def unregister(self, broker_name: str, address: str, reason: str = "it said so") -> None:
        """A broker leaves; harmless if it is not there."""
        member = self._members.get(address)
        if member is not None and member.broker_name == broker_name:
            self._remove(member, reason)

    def link_closed(self, link: int, reason: str) -> None:
        """The brokers that registered through this link are gone."""
        for address in sorted(self._links.get(link, ())):
            self._remove(self._members[address], f"its link is closed: {reason}")

    def expire(self, now_ms: int) -> list[int]:
        """Drop brokers that were silent too long; give back their links, which are to be closed."""
        silent = [
            member
            for member in self._members.values()
            if now_ms - member.heard_ms > (member.timeout_ms or self.expiry_ms)
        ]
        for member in silent:
            self._remove(member, f"silent for {now_ms - member.heard_ms} ms")
        return sorted({member.link for member in silent})

    def _remove(self, member: _Member, reason: str, *, keep_group: bool = False) -> None:
        _log.info(
            "broker gone name=%s id=%d address=%s reason=%s",
            member.broker_name,
            member.broker_id,
            member.address,
            reason,
        )
        self._forget_address(member)
        self._answers.clear()
        group = self._groups[member.broker_name]
        del group.members[member.broker_id]
        if group.members and member.broker_id < min(group.members):
            self._note_min_id(group, member.address, "", [other.link for other in group.members.values()])
        if not group.members and not keep_group:
            del self._groups[group.name]
            for topic in sorted(group.topics):
                self._remove_place(topic, group)
        elif group.acting_master and MASTER_ID not in group.members:
            self._offer(group, lambda perm: perm & ~_WRITE)

    def _note_min_id(self, group: _Group, offline: str, ha_address: str, links: list[int]) -> None:
        first = group.first()
        change = MinIdChange(group.name, first.broker_id, first.address, offline, ha_address, links)
        self.min_id_changes.append(change)

    def is_registered(self, cluster: str, broker_name: str, broker_id: int, address: str) -> bool:
        """Whether this broker has its place here."""
        member = self._members.get(address)
        return member is not None and (member.cluster, member.broker_name, member.broker_id) == (
            cluster, broker_name, broker_id
        )  # fmt: skip

    def heard(self, cluster: str, address: str, now_ms: int) -> Version | None:
        """A broker gave a sign of life; its data version, or None if it is not registered."""
        member = self._members.get(address)
        if member is None or member.cluster != cluster:
            return None
        member.heard_ms = now_ms
        return member.version

    # Operators change what clients see.

    def wipe_write_permission(self, broker_name: str) -> int:
        """No more writes to a broker group, until it registers with a new data version; number of its topics."""
        return self._operate(broker_name, lambda perm: perm & ~_WRITE)

    def add_write_permission(self, broker_name: str) -> int:
        """Reads and writes again; number of the group's topics."""
        return self._operate(broker_name, lambda _: _READ_WRITE)

    def _operate(self, broker_name: str, change: _PermissionChange) -> int:
        group = self._groups.get(broker_name)
        if group is None:
            return 0
        self._offer(group, change)
        return len(group.topics)

    def _offer(self, group: _Group, change: _PermissionChange) -> None:
        group.is_changed = True
        for topic in group.topics:
            declared, offered = self._topics[topic][group.name]
            self._topics[topic][group.name] = (declared, offered._replace(perm=change(offered.perm)))
        self._answers.clear()

    def add_topic(self, topic: str, places: dict[str, Queues]) -> None:
        """A topic on known brokers; brokers not known are left out.

        Raises:
            RemoteError: the table is full; nothing changed.
        """
        known = {name: queues for name, queues in places.items() if name in self._groups}
        if self._places + len(known) > TOPIC_PLACES_MAX:
            raise RemoteError(f"this name server is full: {TOPIC_PLACES_MAX} topic places")
        for name, queues in known.items():
            entries = self._topics.setdefault(topic, {})
            if name not in entries:
                self._places += 1
            entries[name] = (queues, queues)
            self._groups[name].topics.add(topic)
        self._answers.pop(topic, None)

    def delete_topic(self, topic: str, cluster: str = "") -> None:
        """Forget a topic, everywhere or on the brokers of one cluster; brokers that still have it tell of it again."""
        for name in sorted(self._topics.get(topic, ())):
            group = self._groups[name]
            if not cluster or group.cluster == cluster:
                group.topics.discard(topic)
                group.mappings.pop(topic, None)
                self._remove_place(topic, group)
        self._answers.pop(topic, None)

    def _remove_place(self, topic: str, group: _Group) -> None:
        places = self._topics[topic]
        del places[group.name]
        self._places -= 1
        if not places:
            del self._topics[topic]

    # Questions.

    def route(self, topic: str, *, strict: bool, order: str | None = None) -> bytes | None:
        """The encoded route of a topic, None if no living broker has it.

        `strict`: standard JSON, keys quoted and sorted, nothing but ASCII; else Java's own dialect with bare ids.
        `order` is added as `orderTopicConf`.
        """
        answers = self._answers.get(topic)
        if answers is None:
            if topic not in self._topics:
                return None
            answers = self._answers[topic] = {}
        body = answers.get((strict, order))
        if body is None:
            body = answers[strict, order] = self._encode_route(topic, strict=strict, order=order)
        return body

    def _encode_route(self, topic: str, *, strict: bool, order: str | None) -> bytes:
        names = sorted(self._topics[topic])
        groups = [self._groups[name] for name in names]
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
        value["queueDatas"] = [_queue_data(name, self._topics[topic][name][1]) for name in names]
        mappings = {group.name: group.mappings[topic] for group in groups if topic in group.mappings}
        if mappings:
            value["topicQueueMappingByBroker"] = mappings
        if strict:
            return json.dumps(value, separators=(",", ":"), sort_keys=True).encode()
        return dumps_java(value)

    def clusters(self) -> dict[str, Any]:
        """All groups, and which cluster has which."""
        return {
            "brokerAddrTable": {name: self._groups[name].as_json() for name in sorted(self._groups)},
            "clusterAddrTable": self._cluster_names(),
        }

    def _cluster_names(self) -> dict[str, list[str]]:
        names: dict[str, list[str]] = {}
        for name in sorted(self._groups):
            names.setdefault(self._groups[name].cluster, []).append(name)
        return dict(sorted(names.items()))

    def addresses(self, cluster: str, broker_name: str) -> dict[int, str]:
        """The members of a group, by broker id."""
        group = self._groups.get(broker_name)
        return group.addresses() if group is not None and group.cluster == cluster else {}

    def topics(self) -> list[str]:
        """All topics."""
        return sorted(self._topics)

    def topics_of_cluster(self, cluster: str) -> list[str]:
        """The topics of one cluster's brokers."""
        found: set[str] = set()
        for group in self._groups.values():
            if group.cluster == cluster:
                found |= group.topics
        return sorted(found)

    def topics_with_flag(self, wanted: int, unwanted: int = 0) -> list[str]:
        """Topics whose system flag has all bits `wanted` and none `unwanted`, as their first group tells."""
        return [topic for topic, flag in self._flags() if flag & wanted == wanted and not flag & unwanted]

    def _flags(self) -> Iterator[tuple[str, int]]:
        for topic in sorted(self._topics):
            places = self._topics[topic]
            yield topic, places[min(places)][1].topic_sys_flag

    def system_topics(self) -> tuple[list[str], str | None]:
        """The topics named after clusters and brokers, and the address of a broker that knows of more."""
        names = [name for cluster, groups in self._cluster_names().items() for name in (cluster, *groups)]
        first = min(self._groups, default=None)
        return list(dict.fromkeys(names)), self._groups[first].first().address if first is not None else None

    def hosts(self) -> set[str]:
        """Hosts of the registered brokers."""
        return {address.rpartition(":")[0].strip("[]") for address in self._members}

    @property
    def broker_count(self) -> int:
        """Registered brokers."""
        return len(self._members)


def _queue_data(broker_name: str, queues: Queues) -> dict[str, Any]:
    return {
        "brokerName": broker_name,
        "perm": queues.perm,
        "readQueueNums": queues.read_queue_nums,
        "topicSysFlag": queues.topic_sys_flag,
        "writeQueueNums": queues.write_queue_nums,
    }
