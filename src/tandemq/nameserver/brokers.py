"""Registered brokers: groups and their members, and which of them are alive.

    groups      broker name -> cluster, members {broker id: member}
    members     address -> member            connections     number -> addresses registered through it

A group has at least one member, and an address belongs to one member.

Conflicting registrations. If two brokers used the same name and id, both would act as the group's master and clients
would see them in turn. The second one is therefore refused with an error (Java's name server lets the last one win),
but only while the first is *present*: the connection it registered through is open, and it sent something on it within
60 % of the expiry (72 s by default, longer than the longest period between two registrations). A killed broker that
restarts elsewhere is accepted at once, because its connection was closed with its process. A registration whose data
version has a larger state version (the epoch of a failover) is always accepted, one with a smaller state version never.

Owner: the route table. Does not know: topics, connections (only their numbers), requests.
Source: docs/reference/requests.md, "Name server"; RocketMQ RouteInfoManager.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tandemq.errors import RemoteError
from tandemq.model.codes import ResponseCode
from tandemq.nameserver.broker_data import MASTER_ID, BrokerRegistration, MasterAddress, MinIdChange, Version

BROKERS_MAX = 10_000
_PRESENT_SHARE = 0.6
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class RegisteredBroker:
    """A registered broker: one member of a group."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    version: Version
    filter_servers: tuple[str, ...]
    timeout_ms: int | None
    link: int
    last_seen_ms: int
    route_attributes: dict[str, Any]


@dataclass(slots=True, eq=False)
class RegisteredGroup:
    """The registered brokers of one name."""

    cluster: str
    name: str
    acting_master: bool = False
    members: dict[int, RegisteredBroker] = field(default_factory=dict)

    def first(self) -> RegisteredBroker:
        """The member with the smallest id: the master, if there is one."""
        return self.members[min(self.members)]

    def as_json(self) -> dict[str, Any]:
        """The group as routes and the cluster information show it (BrokerData)."""
        return {
            "brokerAddrs": self.addresses(),
            "brokerName": self.name,
            "cluster": self.cluster,
            "enableActingMaster": self.acting_master,
            **self.first().route_attributes,
        }

    def addresses(self) -> dict[int, str]:
        """Addresses by broker id, in ascending order of ids."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}

    def master_for(self, broker_id: int) -> MasterAddress:
        """The master's addresses, for a member that has just registered."""
        master = self.members.get(MASTER_ID)
        if broker_id == MASTER_ID or master is None:
            return MasterAddress()
        return MasterAddress(master.address, master.ha_address)


@dataclass(frozen=True, slots=True)
class Entered:
    """Changes that a registration has made."""

    former: RegisteredBroker | None
    """The previous entry of the same broker at the same address."""
    changes_routes: bool
    """Whether routes through this group differ from before."""


class BrokerTable:
    """Groups and members, by name, address and connection."""

    __slots__ = ("_links", "_members", "expiry_ms", "groups", "min_id_changes")

    def __init__(self, expiry_ms: int) -> None:
        """An empty table; brokers expire after `expiry_ms` of silence."""
        self.expiry_ms = expiry_ms
        self.groups: dict[str, RegisteredGroup] = {}
        """By broker name; only this table adds and removes entries."""
        self._members: dict[str, RegisteredBroker] = {}
        self._links: dict[int, set[str]] = {}
        self.min_id_changes: list[MinIdChange] = []
        """Changes since the owner last took them."""

    # Reading.

    def at(self, address: str) -> RegisteredBroker | None:
        """The broker registered at an address."""
        return self._members.get(address)

    def on_link(self, link: int) -> list[RegisteredBroker]:
        """The brokers that registered through a connection."""
        return [self._members[address] for address in sorted(self._links.get(link, ()))]

    def silent(self, now_ms: int) -> list[RegisteredBroker]:
        """Brokers that were silent for longer than their timeout."""
        return [
            member
            for member in self._members.values()
            if now_ms - member.last_seen_ms > (member.timeout_ms or self.expiry_ms)
        ]

    def hosts(self) -> set[str]:
        """The hosts of the registered brokers."""
        return {address.rpartition(":")[0].strip("[]") for address in self._members}

    def sorted_groups(self) -> Iterator[RegisteredGroup]:
        """Yield all groups by name."""
        for name in sorted(self.groups):
            yield self.groups[name]

    def cluster_names(self) -> dict[str, list[str]]:
        """Broker names by cluster, both sorted."""
        names: dict[str, list[str]] = {}
        for group in self.sorted_groups():
            names.setdefault(group.cluster, []).append(group.name)
        return dict(sorted(names.items()))

    def is_registered(self, cluster: str, broker_name: str, broker_id: int, address: str) -> bool:
        """Whether exactly this broker is registered."""
        member = self._members.get(address)
        wanted = (cluster, broker_name, broker_id)
        return member is not None and (member.cluster, member.broker_name, member.broker_id) == wanted

    def touch(self, cluster: str, address: str, now_ms: int) -> Version | None:
        """Record a sign of life; return the broker's data version, None if it is not registered."""
        member = self._members.get(address)
        if member is None or member.cluster != cluster:
            return None
        member.last_seen_ms = now_ms
        return member.version

    # Registering.

    def check(self, registration: BrokerRegistration, link: int, now_ms: int) -> None:
        """Refuse a registration that conflicts with a broker that is present, or exceeds the table.

        Raises:
            RemoteError: the name, id or address belongs to a present broker, or there are BROKERS_MAX brokers.
        """
        new, group = registration, self.groups.get(registration.broker_name)
        if group is not None and group.cluster != new.cluster and self._has_other_present(group, new, link, now_ms):
            raise RemoteError(
                f"broker {new.broker_name} belongs to cluster {group.cluster}, and {new.address} says it is in "
                f"{new.cluster}; give it another brokerName, or stop the others of that name first"
            )
        holder = group.members.get(new.broker_id) if group is not None else None
        if holder is not None and holder.address != new.address:
            theirs, ours = holder.version.state_version, new.version.state_version
            if ours < theirs or (ours == theirs and self._is_present(holder, link, now_ms)):
                raise _conflict(holder, new, now_ms)
        other = self._members.get(new.address)
        if other is not None and other.broker_name != new.broker_name and self._is_present(other, link, now_ms):
            raise _conflict(other, new, now_ms)
        if new.address not in self._members and len(self._members) >= BROKERS_MAX:
            raise RemoteError(f"this name server is full: it holds {len(self._members)} brokers of {BROKERS_MAX}")

    def _has_other_present(self, group: RegisteredGroup, new: BrokerRegistration, link: int, now_ms: int) -> bool:
        return any(
            member.address != new.address and self._is_present(member, link, now_ms)
            for member in group.members.values()
        )

    def _is_present(self, member: RegisteredBroker, link: int, now_ms: int) -> bool:
        """Whether a member counts as alive: it was seen recently, on another connection that is still open (a closed
        one would have removed it)."""
        return member.link != link and now_ms - member.last_seen_ms <= self.expiry_ms * _PRESENT_SHARE

    def enter(self, registration: BrokerRegistration, link: int, now_ms: int) -> Entered:
        """Add or replace a member; `check` must have accepted the registration."""
        new = registration
        group = self.groups.get(new.broker_name)
        if group is None:
            group = self.groups[new.broker_name] = RegisteredGroup(new.cluster, new.broker_name)
        smallest = min(group.members, default=0)
        replaced = group.members.get(new.broker_id)
        if replaced is not None:
            self._forget_address(replaced)
        self._put(group, new, link, now_ms)
        former = replaced if replaced is not None and replaced.address == new.address else None
        attributes = (group.cluster, group.acting_master)
        group.cluster, group.acting_master = new.cluster, new.acting_master
        if former is None:
            _log.info(
                "broker registered name=%s id=%d address=%s cluster=%s replaces=%s",
                new.broker_name,
                new.broker_id,
                new.address,
                new.cluster,
                replaced.address if replaced else None,
            )
        if new.broker_id < smallest:
            others = [member.link for member in group.members.values() if member.broker_id != new.broker_id]
            self._note_min_id(group, "", new.ha_address, others)
        is_same = (
            former is not None
            and former.filter_servers == new.filter_servers
            and former.route_attributes == new.route_attributes
            and attributes == (group.cluster, group.acting_master)
        )
        return Entered(former, changes_routes=not is_same)

    def _put(self, group: RegisteredGroup, new: BrokerRegistration, link: int, now_ms: int) -> None:
        member = RegisteredBroker(
            cluster=new.cluster,
            broker_name=new.broker_name,
            broker_id=new.broker_id,
            address=new.address,
            ha_address=new.ha_address,
            version=new.version,
            filter_servers=new.filter_servers,
            timeout_ms=new.timeout_ms,
            link=link,
            last_seen_ms=now_ms,
            route_attributes=new.route_attributes,
        )
        group.members[new.broker_id] = member
        self._members[new.address] = member
        self._links.setdefault(link, set()).add(new.address)

    # Removing.

    def remove(self, member: RegisteredBroker, reason: str, *, keep_group: bool) -> RegisteredGroup:
        """Remove a member and return its group, which is removed too if it is empty and not to be kept."""
        _log.info(
            "broker removed name=%s id=%d address=%s reason=%s",
            member.broker_name,
            member.broker_id,
            member.address,
            reason,
        )
        self._forget_address(member)
        group = self.groups[member.broker_name]
        del group.members[member.broker_id]
        if group.members and member.broker_id < min(group.members):
            self._note_min_id(group, member.address, "", [other.link for other in group.members.values()])
        if not group.members and not keep_group:
            del self.groups[group.name]
        return group

    def _forget_address(self, member: RegisteredBroker) -> None:
        del self._members[member.address]
        addresses = self._links[member.link]
        addresses.remove(member.address)
        if not addresses:
            del self._links[member.link]

    def _note_min_id(self, group: RegisteredGroup, offline: str, ha_address: str, links: list[int]) -> None:
        first = group.first()
        change = MinIdChange(group.name, first.broker_id, first.address, offline, ha_address, links)
        self.min_id_changes.append(change)


def _conflict(holder: RegisteredBroker, new: BrokerRegistration, now_ms: int) -> RemoteError:
    _log.error(
        "registration refused broker=%s id=%d address=%s holder=%s holder_address=%s last_seen_ms_ago=%d",
        new.broker_name,
        new.broker_id,
        new.address,
        holder.broker_name,
        holder.address,
        now_ms - holder.last_seen_ms,
    )
    return RemoteError(
        f"broker {new.broker_name} with id {new.broker_id} at {new.address} is refused: "
        f"{holder.broker_name} with id {holder.broker_id} is registered at {holder.address} "
        f"and was last seen {(now_ms - holder.last_seen_ms) / 1000:.0f} s ago",
        hint="give one of the two another brokerId, brokerName or address, or stop it",
        code=ResponseCode.SYSTEM_ERROR,
    )
