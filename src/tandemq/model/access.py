"""Access control: users, policies, and the decision whether a user may do something.

    policy of a user = entries {resource, actions, source addresses, decision}: Custom ones first, then Default ones
    request ─► needs: pairs of a resource and actions, of which one suffices ─► each pair has to be allowed

Of the entries that match, the one with the most specific resource decides: a name, then the longest prefix, then all of
a type, then `*`; between equals Deny wins. So the order in which entries were made means nothing. Without a matching
entry a request is refused. Super users may do everything.

Source: docs/reference/access.md; RocketMQ AclAuthorizationHandler, Resource, PolicyEntry. Java 5.3.3 sorts wrongly.
"""

from collections.abc import Iterable, Mapping
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
ACTIONS = ("All", "Pub", "Sub", "Create", "Update", "Delete", "Get", "List")
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


class Credentials(NamedTuple):
    """Name and key of a user."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"Credentials({self.access_key!r})"


class AclUser(msgspec.Struct, rename="camel", omit_defaults=False, frozen=True):
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


class PolicyEntry(msgspec.Struct, rename="camel", frozen=True):
    """One entry, as clients and the file have it."""

    resource: str
    actions: tuple[str, ...]
    decision: Literal["Allow", "Deny"]
    source_ips: tuple[str, ...] = ()


class Policy(msgspec.Struct, rename="camel", frozen=True):
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
    """An entry, prepared."""

    kind: ResourceKind
    name: str
    """Literal name or prefix."""
    is_prefix: bool
    actions: frozenset[str]
    sources: tuple[IPv4Network | IPv6Network, ...]
    is_allowed: bool

    def rank(self) -> tuple[int, int, bool]:
        """Return the order in which matching rules decide, lowest first."""
        if self.kind is ResourceKind.ANY:
            return 3, 0, self.is_allowed
        if not self.is_prefix:
            return 0, 0, self.is_allowed
        return (1, -len(self.name), self.is_allowed) if self.name else (2, 0, self.is_allowed)


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
    for source in entry.source_ips:
        parse_source(source)
    known = {name.lower(): name for name in ACTIONS}
    found = tuple(dict.fromkeys(known[name.lower()] for name in entry.actions if name.lower() in known))
    if not found:
        raise ProtocolError(f"the entry of {entry.resource[:100]} has none of the actions {', '.join(ACTIONS)}")
    return PolicyEntry(entry.resource, found, entry.decision, entry.source_ips)


class Rules:
    """What one user may do."""

    def __init__(self, policies: Iterable[Policy]) -> None:
        """Prepare its policies, which are valid."""
        self._by_type: dict[str, list[_Rule]] = {CUSTOM: [], DEFAULT: []}
        for policy in policies:
            for entry in policy.entries:
                kind, name, is_prefix = parse_resource(entry.resource)
                sources = tuple(parse_source(source) for source in entry.source_ips)
                rule = _Rule(kind, name, is_prefix, frozenset(entry.actions), sources, entry.decision == "Allow")
                self._by_type[policy.policy_type].append(rule)
        for rules in self._by_type.values():
            rules.sort(key=_Rule.rank)
        self._decide = lru_cache(maxsize=1_024)(self._decided)

    def allows(self, need: Need, address: str) -> bool | None:
        """Return the decision of the entry that decides; None if none matches. `address`: IP address of the client."""
        return self._decide(need, address)

    def _decided(self, need: Need, address: str) -> bool | None:
        for rules in self._by_type.values():
            for rule in rules:
                if _matches(rule, need, address):
                    return rule.is_allowed
        return None


def _matches(rule: _Rule, need: Need, address: str) -> bool:
    if rule.kind is not ResourceKind.ANY:
        if rule.kind is not need.kind:
            return False
        if not (need.name.startswith(rule.name) if rule.is_prefix else need.name == rule.name):
            return False
    if not rule.actions & need.actions:
        return False
    return not rule.sources or _is_in(rule.sources, address)


def _is_in(sources: tuple[IPv4Network | IPv6Network, ...], address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return any((mapped or found) in source for source in sources)


def merged(policies: Iterable[Policy], changes: Iterable[Policy]) -> tuple[Policy, ...]:
    """Return policies with the entries of others: one of the same resource is replaced, others stay.

    Raises:
        ProtocolError: an entry is invalid, or there would be too many.
    """
    tables: dict[PolicyType, dict[str, PolicyEntry]] = {}
    for policy in (*policies, *changes):
        entries = tables.setdefault(policy.policy_type, {})
        for entry in policy.entries:
            entries[entry.resource] = check_entry(entry)
    if sum(map(len, tables.values())) > ENTRIES_MAX:
        raise ProtocolError(f"a user has at most {ENTRIES_MAX} entries")
    return _policies(tables)


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
