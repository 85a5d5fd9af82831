"""Access control: users, policies, and the decision whether a user may do something.

    policy of a user = entries {resource, actions, source addresses, decision}: Custom ones first, then Default ones
    request ─► needs: pairs of a resource and actions, of which one suffices ─► each pair has to be allowed

Of the entries that match, the one with the most specific resource decides: a name, then the longest prefix, then all of
a type, then `*`; between equals Deny wins. So the order in which entries were made means nothing. Without a matching
entry a request is refused. Super users may do everything.

Source: docs/reference/access.md; RocketMQ AclAuthorizationHandler, Resource, PolicyEntry. Java 5.3.3 sorts wrongly.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal, NamedTuple

import msgspec

from tandemq.errors import ProtocolError
from tandemq.model.topic import DLQ_PREFIX, RETRY_PREFIX

SUBJECT_PREFIX = "User:"
NAME_CHARACTERS_MAX = 255
RESERVED_PREFIX = "tandemq-member-"
"""Of the users as which brokers sign requests to each other."""
PASSWORD_CHARACTERS_MAX = 255
ENTRIES_MAX = 5_000
"""Maximum number of entries of one user."""
SIZE_MAX = 10_000
"""Maximum number of entries and source addresses of one user."""
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
_ACTIONS = {name.lower(): name for name in ACTIONS}
PolicyType = Literal["Custom", "Default"]
CUSTOM: PolicyType = "Custom"
DEFAULT: PolicyType = "Default"


class ResourceKind(Enum):
    """Type of a resource; the values are those of policies."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


_KINDS = {kind.value.lower(): kind for kind in ResourceKind}


NOT_AUTHENTICATED = "authentication failed: the user, or the signature, is missing or wrong"
"""Remark of refusals; it does not tell whether the user exists."""


class Credentials(NamedTuple):
    """Name and key of a user."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"Credentials({self.access_key!r})"


class AclUser(msgspec.Struct, rename="camel", omit_defaults=False, frozen=True, gc=False):
    """A user; `password` is the key of its signatures."""

    username: str
    password: str
    user_type: Literal["Super", "Normal"] = "Normal"
    user_status: Literal["enable", "disable"] = "enable"
    white_addresses: str = ""
    """From where its requests need no signature, nor rights; only accounts of ACL 1.0 have any."""

    @property
    def is_super(self) -> bool:
        """Whether it may do everything."""
        return self.user_type == "Super"


class PolicyEntry(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One entry, as clients and the file have it."""

    resource: str
    actions: tuple[str, ...]
    decision: Literal["Allow", "Deny"]
    source_ips: tuple[str, ...] = ()


class Policy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The Custom or the Default entries of a user."""

    policy_type: PolicyType
    entries: tuple[PolicyEntry, ...]


class Need(NamedTuple):
    """What a request needs: one of some actions on a resource."""

    kind: ResourceKind
    name: str
    actions: frozenset[str]

    def __str__(self) -> str:
        """Return the resource as policies name it."""
        return f"{self.kind.value}:{self.name}"


def actions(*names: str) -> frozenset[str]:
    """Return actions of which one suffices; an entry for All has each."""
    return frozenset((*names, "All"))


def group_name(name: str) -> str:
    """Return the group that a retry or dead letter topic belongs to, or the name itself."""
    return name.removeprefix(RETRY_PREFIX).removeprefix(DLQ_PREFIX)


class _Rule(NamedTuple):
    """An entry, prepared, without its resource."""

    actions: frozenset[str]
    sources: "_Sources | None"
    is_allowed: bool

    def matches(self, need: "Need", address: str) -> bool:
        """Whether it is about an action that suffices, from an address."""
        return bool(self.actions & need.actions) and (self.sources is None or self.sources.have(address))


class _Sources:
    """Addresses and ranges, as disjoint intervals of numbers by IP version: found by bisection."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._firsts: dict[int, list[int]] = {4: [], 6: []}
        self._lasts: dict[int, list[int]] = {4: [], 6: []}
        found = [(n.version, int(n.network_address), int(n.broadcast_address)) for n in map(parse_source, texts)]
        for version, first, last in sorted(found):
            firsts, lasts = self._firsts[version], self._lasts[version]
            if lasts and first <= lasts[-1]:
                lasts[-1] = max(lasts[-1], last)
            else:
                firsts.append(first)
                lasts.append(last)

    def have(self, address: str) -> bool:
        number = _number_of(address)
        if number is None:
            return False
        at = bisect_right(self._firsts[number.version], number.value) - 1
        return at >= 0 and number.value <= self._lasts[number.version][at]


class _Address(NamedTuple):
    version: int
    value: int


@lru_cache(maxsize=4_096)
def _number_of(address: str) -> _Address | None:
    """Return an address as a number; None if it is none."""
    try:
        found = ip_address(address)
    except ValueError:
        return None
    plain = getattr(found, "ipv4_mapped", None) or found
    return _Address(plain.version, int(plain))


class _RuleIndex:
    """The entries of one type of policies, found by resource: the work does not grow with their number."""

    def __init__(self) -> None:
        self.rules: dict[tuple[ResourceKind, bool, str], list[_Rule]] = {}
        """By type, whether it is a prefix, and name."""
        self.lengths: dict[ResourceKind, list[int]] = {}
        """Of the prefixes of each type, the longest first; 0: all of the type."""

    def add(self, entry: PolicyEntry) -> None:
        kind, name, is_prefix = parse_resource(entry.resource)
        sources = _Sources(entry.source_ips) if entry.source_ips else None
        rules = self.rules.setdefault((kind, is_prefix, name), [])
        rules.append(_Rule(frozenset(entry.actions), sources, entry.decision == "Allow"))
        rules.sort(key=lambda rule: rule.is_allowed)
        lengths = self.lengths.setdefault(kind, [])
        if is_prefix and len(name) not in lengths:
            lengths.append(len(name))
            lengths.sort(reverse=True)

    def decide(self, need: "Need", address: str) -> bool | None:
        for key in self._resources(need):
            for rule in self.rules.get(key, ()):
                if rule.matches(need, address):
                    return rule.is_allowed
        return None

    def _resources(self, need: "Need") -> Iterator[tuple[ResourceKind, bool, str]]:
        """Yield the resources that a need matches, the most specific first."""
        yield need.kind, False, need.name
        for length in self.lengths.get(need.kind, ()):
            if length <= len(need.name):
                yield need.kind, True, need.name[:length]
        yield ResourceKind.ANY, True, ""


def parse_resource(text: str) -> tuple[ResourceKind, str, bool]:
    """Return the type of a resource, its name or prefix, and whether it is a prefix.

    Raises:
        ProtocolError: it is none.
    """
    if text == "*":
        return ResourceKind.ANY, "", True
    before, colon, name = text.partition(":")
    kind = _KINDS.get(before.lower())
    if not colon or not name or kind is None or kind is ResourceKind.ANY or len(name) > NAME_CHARACTERS_MAX:
        raise ProtocolError(f"the resource {text[:100]!r} is none; Topic:name, Group:prefix* or Cluster:* is expected")
    if kind is ResourceKind.GROUP:
        name = group_name(name)
    return (kind, name[:-1], True) if name.endswith("*") else (kind, name, False)


@lru_cache(maxsize=SIZE_MAX)
def parse_source(text: str) -> IPv4Network | IPv6Network:
    """Return the addresses that a source stands for.

    Raises:
        ProtocolError: it is no address or range.
    """
    try:
        return ip_network(text.strip(), strict=False)
    except ValueError:
        raise ProtocolError(f"the source {text[:64]!r} is no IP address, nor a range like 10.0.0.0/8") from None


def check_entry(entry: PolicyEntry) -> PolicyEntry:
    """Return an entry with the known actions, each once.

    Raises:
        ProtocolError: it is invalid.
    """
    parse_resource(entry.resource)
    if len(entry.source_ips) > SIZE_MAX:
        raise ProtocolError(f"an entry has {len(entry.source_ips)} source addresses, the maximum is {SIZE_MAX}")
    for source in entry.source_ips:
        parse_source(source)
    found = tuple(dict.fromkeys(_ACTIONS[name.lower()] for name in entry.actions if name.lower() in _ACTIONS))
    if not found:
        raise ProtocolError(f"the entry of {entry.resource[:100]} has none of the actions {', '.join(ACTIONS)}")
    return PolicyEntry(entry.resource, found, entry.decision, entry.source_ips)


class Rules:
    """What one user may do."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        """Prepare its policies, which are valid."""
        self._by_type = {CUSTOM: _RuleIndex(), DEFAULT: _RuleIndex()}
        for policy in policies:
            for entry in policy.entries:
                self._by_type[policy.policy_type].add(entry)

    def allows(self, need: Need, address: str) -> bool | None:
        """Return the decision of the entry that decides; None if none matches. `address`: IP address of the client."""
        custom = self._by_type[CUSTOM].decide(need, address)
        return self._by_type[DEFAULT].decide(need, address) if custom is None else custom


def merged(policies: Iterable[Policy], changes: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return policies with the entries of others: one of the same resource is replaced, others stay.

    Raises:
        ProtocolError: an entry is invalid, or there would be too many.
    """
    tables: dict[PolicyType, dict[str, PolicyEntry]] = {}
    for policy in policies:
        tables[policy.policy_type] = {entry.resource: entry for entry in policy.entries}
    for policy in changes:
        entries = tables.setdefault(policy.policy_type, {})
        for entry in policy.entries:
            entries[entry.resource] = check_entry(entry)
    if sum(map(len, tables.values())) > ENTRIES_MAX:
        raise ProtocolError(f"a user has at most {ENTRIES_MAX} entries")
    after = _policies(tables)
    if size_of(after) > SIZE_MAX:
        raise ProtocolError(f"a user has at most {SIZE_MAX} entries and source addresses")
    return after


def check_policies(policies: Iterable[Policy]) -> None:
    """Check policies that were kept or copied.

    Raises:
        ProtocolError: an entry is invalid.
    """
    for policy in policies:
        for entry in policy.entries:
            parse_resource(entry.resource)
            for source in entry.source_ips:
                parse_source(source)


def size_of(policies: Iterable[Policy]) -> int:
    """Return the number of entries and source addresses, by which tables are bounded."""
    return sum(1 + len(entry.source_ips) for policy in policies for entry in policy.entries)


def without(policies: Iterable[Policy], policy_type: str, resource: str) -> tuple[Policy, ...]:
    """Return policies without the entry of a resource."""
    tables = {
        policy.policy_type: {
            entry.resource: entry
            for entry in policy.entries
            if policy.policy_type != policy_type or entry.resource != resource
        }
        for policy in policies
    }
    return _policies(tables)


def _policies(tables: Mapping[PolicyType, Mapping[str, PolicyEntry]]) -> tuple[Policy, ...]:
    return tuple(Policy(kind, tuple(tables[kind].values())) for kind in (CUSTOM, DEFAULT) if tables.get(kind))


def name_fault(name: str) -> str | None:
    """Return what is wrong with the name of a user; None if it is valid."""
    if not name.strip():
        return "username can not be blank"
    if name.startswith(RESERVED_PREFIX):
        return f"usernames that begin with {RESERVED_PREFIX} are those of brokers"
    if len(name) > NAME_CHARACTERS_MAX or not name.isprintable():
        return f"the username has control characters, or more than {NAME_CHARACTERS_MAX} characters"
    return None


def subject_name(subject: str) -> str:
    """Return the name of the user that a subject stands for.

    Raises:
        ProtocolError: it is no user.
    """
    if not subject.startswith(SUBJECT_PREFIX) or len(subject) == len(SUBJECT_PREFIX):
        raise ProtocolError(f"the subject {subject[:100]!r} is no user; User:name is expected")
    return subject.removeprefix(SUBJECT_PREFIX)
