"""Accounts of ACL 1.0 (`plain_acl.yml`), and their translation to users and policies, which one checker knows.

    account                        user and policies
    accessKey, secretKey           name and key of the user
    admin, without lists           a super user
    admin, with lists              everything but Pub, Sub and Get of topics and groups, which lists and defaults decide
    topicPerms, groupPerms         Custom entries of Topic:name and Group:name
    defaultTopicPerm, …GroupPerm   a Default entry of Topic:* and Group:*; none for DENY
    (each account)                 Pub of the trace topic

The entry of a permission has the actions [Pub], [Sub] or [Pub, Sub], allowed, or All, denied. What a default allows and
the entry of a name does not is denied by a Default entry of this name, as a name's permission replaces the default.

Source: docs/reference/access.md; RocketMQ PlainPermissionManager, Permission, AuthMigrator.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.errors import ConfigError
from tandemq.model.access import (
    CUSTOM,
    DEFAULT,
    ENTRIES_MAX,
    NAME_CHARACTERS_MAX,
    AclUser,
    Policy,
    PolicyEntry,
    group_name,
    name_fault,
)
from tandemq.model.access import PASSWORD_CHARACTERS_MAX as KEY_CHARACTERS_MAX
from tandemq.model.topic import TRACE_TOPIC

KEY_CHARACTERS_MIN = 7
DENY = "DENY"
PERMISSIONS: Mapping[str, tuple[str, ...]] = {
    "PUB": ("Pub",),
    "SUB": ("Sub",),
    "PUB|SUB": ("Pub", "Sub"),
    "SUB|PUB": ("Pub", "Sub"),
}
"""Actions by permission; every other text is DENY."""
_TOPIC, _GROUP, _ANY = "Topic:", "Group:", "*"
_TRACE = _TOPIC + TRACE_TOPIC
_OF_BOUND_ADMIN = {
    entry.resource: entry
    for entry in (
        PolicyEntry("Cluster:*", ("All",), "Allow"),
        PolicyEntry(_TOPIC + _ANY, ("Create", "Update", "Delete"), "Allow"),
        PolicyEntry(_GROUP + _ANY, ("Create", "Update", "Delete"), "Allow"),
    )
}
"""Custom entries of an admin whose sends and pulls are bound by lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An account, or changes of one: None is not given."""

    access_key: str
    secret_key: str | None = None
    white_addresses: str | None = None
    is_admin: bool = False
    default_topic: str | None = None
    default_group: str | None = None
    topics: Mapping[str, str] | None = None
    """Permissions by name."""
    groups: Mapping[str, str] | None = None

    def __repr__(self) -> str:
        """Return a text without the key."""
        return f"Account({self.access_key!r})"


class Translated(NamedTuple):
    """The user and policies of an account."""

    user: AclUser
    policies: tuple[Policy, ...]


def translated(account: Account, before: Translated | None = None) -> Translated:
    """Return the user and policies of an account; with `before`, those of a user that it changes.

    Raises:
        ConfigError: the account is invalid.
    """
    known = AclUser(account.access_key, "") if before is None else before.user
    secret = known.password if account.secret_key is None else account.secret_key
    _check_keys(account.access_key, secret)
    policies = () if before is None else before.policies
    custom, default = ({entry.resource: entry for entry in _entries(policies, kind)} for kind in (CUSTOM, DEFAULT))
    custom = {name: entry for name, entry in custom.items() if entry != _OF_BOUND_ADMIN.get(name)}
    for prefix, permissions in ((_TOPIC, account.topics), (_GROUP, account.groups)):
        if permissions is not None:
            custom = {name: entry for name, entry in custom.items() if not name.startswith(prefix)}
            custom |= _listed(prefix, permissions)
    for resource, permission in ((_TOPIC + _ANY, account.default_topic), (_GROUP + _ANY, account.default_group)):
        if permission is not None and permission in PERMISSIONS:
            default[resource] = _entry(resource, permission)
        elif permission is not None:
            default.pop(resource, None)
    has_lists = any(name.startswith((_TOPIC, _GROUP)) for name in custom if name != _TRACE)
    is_super = account.is_admin and not has_lists
    if not is_super:
        custom[_TRACE] = _traced(custom.get(_TRACE))
    is_trace_listed = TRACE_TOPIC in account.topics if account.topics is not None else _TRACE in default
    listed = {name: entry for name, entry in custom.items() if name != _TRACE or is_trace_listed}
    default = _without_exceptions(default) | _exceptions(listed, default)
    if account.is_admin and has_lists:
        custom |= _OF_BOUND_ADMIN
    if len(custom) + len(default) > ENTRIES_MAX:
        raise ConfigError(f"the account has {len(custom) + len(default)} permissions; the maximum is {ENTRIES_MAX}")
    white = known.white_addresses if account.white_addresses is None else account.white_addresses
    user = AclUser(account.access_key, secret, "Super" if is_super else "Normal", known.user_status, white)
    return Translated(user, _policies(custom, default))


def _check_keys(name: str, secret: str) -> None:
    if min(len(name), len(secret)) < KEY_CHARACTERS_MIN:
        raise ConfigError(f"accessKey and secretKey need at least {KEY_CHARACTERS_MIN} characters")
    if len(secret) > KEY_CHARACTERS_MAX:
        raise ConfigError(f"secretKey has more than {KEY_CHARACTERS_MAX} characters")
    fault = name_fault(name)
    if fault is not None:
        raise ConfigError(f"accessKey: {fault}")


def _entries(policies: Iterable[Policy], kind: str) -> Iterable[PolicyEntry]:
    return (entry for policy in policies if policy.policy_type == kind for entry in policy.entries)


def _listed(prefix: str, permissions: Mapping[str, str]) -> dict[str, PolicyEntry]:
    found = {}
    for name, permission in permissions.items():
        own = group_name(name) if prefix == _GROUP else name
        if not own or len(own) > NAME_CHARACTERS_MAX or not own.isprintable() or own.endswith(_ANY):
            raise ConfigError(f"{name[:100]!r} is no name of a topic or group; prefixes and * do not exist in ACL 1.0")
        found[prefix + own] = _entry(prefix + own, permission)
    return found


def _without_exceptions(default: Mapping[str, PolicyEntry]) -> dict[str, PolicyEntry]:
    return {
        name: entry
        for name, entry in default.items()
        if entry.decision != "Deny" or not {"Pub", "Sub"} >= {*entry.actions}
    }


def _exceptions(listed: Mapping[str, PolicyEntry], default: Mapping[str, PolicyEntry]) -> dict[str, PolicyEntry]:
    """Return Default entries that deny what the default allows, and the entry of a name does not."""
    found = {}
    for prefix in (_TOPIC, _GROUP):
        allowed = default[prefix + _ANY].actions if prefix + _ANY in default else ()
        for name, entry in listed.items():
            missing = tuple(action for action in allowed if action not in entry.actions)
            if name.startswith(prefix) and entry.decision == "Allow" and missing:
                found[name] = PolicyEntry(name, missing, "Deny")
    return found


def _entry(resource: str, permission: str) -> PolicyEntry:
    granted = PERMISSIONS.get(permission)
    return PolicyEntry(resource, granted or ("All",), "Deny" if granted is None else "Allow")


def _traced(entry: PolicyEntry | None) -> PolicyEntry:
    """Return the entry of the trace topic with the right to publish there, which every account has."""
    if entry is None or entry.decision == "Deny":
        return PolicyEntry(_TRACE, ("Pub",), "Allow")
    return PolicyEntry(_TRACE, tuple(dict.fromkeys(("Pub", *entry.actions))), "Allow")


def _policies(custom: Mapping[str, PolicyEntry], default: Mapping[str, PolicyEntry]) -> tuple[Policy, ...]:
    tables = ((CUSTOM, custom), (DEFAULT, default))
    return tuple(Policy(kind, tuple(entries.values())) for kind, entries in tables if entries)


def parse_permissions(texts: Iterable[str]) -> dict[str, str]:
    """Return permissions by name from texts `name=PERM`.

    Raises:
        ConfigError: one has another form, or a name is there twice.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, equals, permission = (part.strip() for part in text.partition("="))
        if not equals or not name:
            raise ConfigError(f"{text[:100]!r} is no permission", hint="name=PUB|SUB is expected")
        if name in found:
            raise ConfigError(f"{name[:100]} is there twice")
        found[name] = permission
    return found
