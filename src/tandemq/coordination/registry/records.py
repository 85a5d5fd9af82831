"""What is in the registry: one table of nodes, and the JSON records in them.

    node                                              record        written by                      lives
    /tandemq/<cluster>/groups                         -             -                               persistent
    /tandemq/<cluster>/groups/<brokerName>/config     GroupConfig   the task behind the database    persistent
    /tandemq/<cluster>/groups/<brokerName>/state      GroupState    the brokers, by compare-and-set persistent
    /tandemq/<cluster>/groups/<brokerName>/live/<id>  LiveBroker    that broker                     ephemeral

A record is read strictly: what is missing or of the wrong kind is an error that names the field. Fields this version
does not know are dropped, so that a later version may add some.

Limits: `MEMBERS_MAX` members; names as `config` allows them for brokers.
Source: docs/internals/failover.md, "Nodes in the registry".
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, TypeVar

from tandemq.config.settings import JAVA_INT_MAX
from tandemq.errors import ConfigError

ROOT = "/tandemq"
MEMBERS_MAX = 16
WEIGHT_MAX = 10_000
_NAME = re.compile(r"(?!\.)[%|a-zA-Z0-9_.-]{1,127}\Z")
_Choice = TypeVar("_Choice", bound=Enum)


class Mode(Enum):
    """What happens to a group when its master dies."""

    STATIC = "static"
    """Roles as the brokers' own settings say; nothing is taken over."""
    SLAVE_CONSUME = "slave-consume"
    """The slave serves reads until the master is back."""
    ELECT = "elect"
    """A member in sync becomes master."""


class Role(Enum):
    """What a member is by configuration. In `elect` only the master of the group's first epoch comes from it."""

    MASTER = "master"
    SLAVE = "slave"


class BrokerPermission(Enum):
    """What clients may do at a broker. Clients try brokers in this order."""

    FULL = "FULL"
    WRITE = "WRITE"
    READ = "READ"
    NONE = "NONE"

    @property
    def may_read(self) -> bool:
        """Pulls, acknowledgements, commits."""
        return self in (BrokerPermission.FULL, BrokerPermission.READ)

    @property
    def may_write(self) -> bool:
        """Sends."""
        return self in (BrokerPermission.FULL, BrokerPermission.WRITE)

    def __and__(self, other: "BrokerPermission") -> "BrokerPermission":
        """What both allow."""
        return permission(read=self.may_read and other.may_read, write=self.may_write and other.may_write)


def permission(*, read: bool, write: bool) -> BrokerPermission:
    """The permission with these two rights."""
    if read:
        return BrokerPermission.FULL if write else BrokerPermission.READ
    return BrokerPermission.WRITE if write else BrokerPermission.NONE


@dataclass(frozen=True, slots=True)
class GroupMember:
    """One broker of a group, as configured."""

    broker_id: int
    role: Role
    permission: BrokerPermission = BrokerPermission.FULL
    weight: int = 100
    """Share of the writes among groups; 0: none while another group takes them."""
    priority: int = 0
    """In elections, among equally long logs: higher first."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """A broker group, as its administrator wants it."""

    mode: Mode
    members: tuple[GroupMember, ...]

    def member(self, broker_id: int) -> GroupMember | None:
        """A member by its id."""
        return next((member for member in self.members if member.broker_id == broker_id), None)

    @property
    def master(self) -> GroupMember | None:
        """The configured master."""
        return next((member for member in self.members if member.role is Role.MASTER), None)


class GroupMode(Enum):
    """Where a group stands; in `elect` always NORMAL."""

    NORMAL = "normal"
    SLAVE_CONSUME = "slave-consume"
    """The slave `reader` has READ, the master nothing, until the offsets are handed back."""


NOBODY = -1
"""In place of a broker id."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """What a group has agreed on; changed by compare-and-set only."""

    epoch: int
    """Of the mastership; one more with each change of master."""
    master: int
    """Broker id; NOBODY if there is none."""
    in_sync: tuple[int, ...]
    """Broker ids whose copy counts, the master's included; sorted."""
    mode: GroupMode = GroupMode.NORMAL
    reader: int = NOBODY
    """Broker id that serves reads; the master's when the mode is normal."""
    since_ms: int = 0
    """Calendar time of the change that led here."""
    reason: str = ""
    """Why, for operators."""
    by: int = NOBODY
    """Broker id that made the change; NOBODY for an operator's tool."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """A broker that is there, as it tells itself. The node's owner is its session."""

    broker_id: int
    address: str
    """"ip:port" for clients."""
    ha_address: str
    """"ip:port" for slaves."""
    epoch: int = 0
    """The last epoch in its epoch file when it told."""
    log_end: int = 0
    """End of its log when it told; orders the attempts in an election."""
    is_waiting: bool = False
    """Whether it has seen that the registry has no record of the group; it serves nobody until there is one."""


# Paths.


def groups_path(cluster: str) -> str:
    """Below it: one node per group."""
    return f"{ROOT}/{cluster}/groups"


def group_path(cluster: str, broker_name: str) -> str:
    """Below it: config, state, live."""
    return f"{groups_path(cluster)}/{broker_name}"


def config_path(cluster: str, broker_name: str) -> str:
    """Of the GroupConfig."""
    return f"{group_path(cluster, broker_name)}/config"


def state_path(cluster: str, broker_name: str) -> str:
    """Of the GroupState."""
    return f"{group_path(cluster, broker_name)}/state"


def live_path(cluster: str, broker_name: str) -> str:
    """Below it: one ephemeral node per living broker."""
    return f"{group_path(cluster, broker_name)}/live"


def live_broker_path(cluster: str, broker_name: str, broker_id: int) -> str:
    """Of one LiveBroker."""
    return f"{live_path(cluster, broker_name)}/{broker_id}"


# What is contradictory.


def check_name(what: str, name: str) -> None:
    """Refuse what cannot be the name of a cluster or a broker.

    Raises:
        ConfigError: says why.
    """
    if not _NAME.match(name):
        raise ConfigError(
            f"{name[:64]!r} is no {what}",
            hint="1 to 127 letters, digits and _-.%| are allowed, and no dot at the start",
        )


def check_config(broker_name: str, config: GroupConfig) -> GroupConfig:
    """Give a group's configuration back if it does not contradict itself.

    Raises:
        ConfigError: it does; the text names all that is wrong.
    """
    check_name("broker name", broker_name)
    found = list(contradictions(config))
    if found:
        raise ConfigError(f"group {broker_name}: " + "; ".join(found))
    return config


def contradictions(config: GroupConfig) -> Iterator[str]:
    """All that is wrong with a group's configuration, and what to do about it."""
    ids = [member.broker_id for member in config.members]
    masters = [member.broker_id for member in config.members if member.role is Role.MASTER]
    if not 1 <= len(ids) <= MEMBERS_MAX:
        yield f"it has {len(ids)} members; 1 to {MEMBERS_MAX} are allowed"
    for broker_id in sorted({broker_id for broker_id in ids if ids.count(broker_id) > 1}):
        yield f"broker {broker_id} is there {ids.count(broker_id)} times; once is right"
    if len(masters) > 1:
        listed = ", ".join(map(str, masters))
        yield f"brokers {listed} are all master; one can be: make the others slaves"
    for member in config.members:
        yield from _contradictions_of(member)
    if config.mode is Mode.ELECT:
        yield from _elect_contradictions(config)
    else:
        yield from _fixed_role_contradictions(config, masters)
    if config.mode is Mode.SLAVE_CONSUME:
        for member in config.members:
            if member.role is Role.SLAVE and not member.permission.may_read:
                yield (
                    f"broker {member.broker_id} is a slave with permission {member.permission.value}, which cannot "
                    "take over reading in slave-consume: give it READ or FULL, or set mode static"
                )


def _elect_contradictions(config: GroupConfig) -> Iterator[str]:
    if config.members and not any(member.permission.may_write for member in config.members):
        yield "no member may be written to, so none could be elected: give one WRITE or FULL"
    elif config.master is not None and not config.master.permission.may_write:
        yield (
            f"broker {config.master.broker_id} begins as master with permission {config.master.permission.value}: give "
            "it WRITE or FULL, or make another one the master"
        )


def _contradictions_of(member: GroupMember) -> Iterator[str]:
    if not 0 <= member.broker_id <= JAVA_INT_MAX:
        yield f"{member.broker_id} is no broker id; 0 to {JAVA_INT_MAX} are"
    if not 0 <= member.weight <= WEIGHT_MAX:
        yield f"broker {member.broker_id}: weight {member.weight} is outside 0 to {WEIGHT_MAX}"
    if not -JAVA_INT_MAX <= member.priority <= JAVA_INT_MAX:
        yield f"broker {member.broker_id}: priority {member.priority} is outside -{JAVA_INT_MAX} to {JAVA_INT_MAX}"


def _fixed_role_contradictions(config: GroupConfig, masters: list[int]) -> Iterator[str]:
    if not masters:
        yield f"it has no master, and mode {config.mode.value} does not elect one: make broker 0 the master"
    for member in config.members:
        if (member.role is Role.MASTER) != (member.broker_id == 0):
            yield (
                f"broker {member.broker_id} is a {member.role.value}; in mode {config.mode.value} "
                "the master has broker id 0, and nobody else has"
            )


# JSON.


def config_to_json(config: GroupConfig) -> bytes:
    """The record of a `config` node; the same configuration gives the same bytes."""
    members = [
        {
            "brokerId": member.broker_id,
            "role": member.role.value,
            "permission": member.permission.value,
            "weight": member.weight,
            "priority": member.priority,
        }
        for member in sorted(config.members, key=lambda member: member.broker_id)
    ]
    return _encode({"mode": config.mode.value, "members": members})


def config_from_json(broker_name: str, data: bytes) -> GroupConfig:
    """The record of a `config` node, checked.

    Raises:
        ConfigError: it is malformed or contradicts itself.
    """
    what = f"the configuration of group {broker_name}"
    fields = _decode(what, data)
    members = fields.get("members")
    if not isinstance(members, list):
        raise ConfigError(f"{what}: members must be a list")
    return check_config(
        broker_name,
        GroupConfig(_choice(what, fields, "mode", Mode), tuple(_member(what, entry) for entry in members)),
    )


def _member(what: str, entry: Any) -> GroupMember:
    if not isinstance(entry, dict):
        raise ConfigError(f"{what}: a member must be an object, not {entry!r:.64}")
    return GroupMember(
        _integer(what, entry, "brokerId"),
        _choice(what, entry, "role", Role),
        _choice(what, entry, "permission", BrokerPermission),
        _integer(what, entry, "weight"),
        _integer(what, entry, "priority"),
    )


def state_to_json(state: GroupState) -> bytes:
    """The record of a `state` node."""
    return _encode(
        {
            "epoch": state.epoch,
            "master": state.master,
            "inSync": sorted(state.in_sync),
            "mode": state.mode.value,
            "reader": state.reader,
            "since": state.since_ms,
            "reason": state.reason,
            "by": state.by,
        }
    )


def state_from_json(broker_name: str, data: bytes) -> GroupState:
    """The record of a `state` node.

    Raises:
        ConfigError: it is malformed.
    """
    what = f"the state of group {broker_name}"
    fields = _decode(what, data)
    in_sync = fields.get("inSync")
    if not isinstance(in_sync, list) or not all(isinstance(i, int) and not isinstance(i, bool) for i in in_sync):
        raise ConfigError(f"{what}: inSync must be a list of broker ids")
    return GroupState(
        epoch=_integer(what, fields, "epoch"),
        master=_integer(what, fields, "master"),
        in_sync=tuple(sorted(in_sync)),
        mode=_choice(what, fields, "mode", GroupMode),
        reader=_integer(what, fields, "reader"),
        since_ms=_integer(what, fields, "since"),
        reason=_text(what, fields, "reason"),
        by=_integer(what, fields, "by"),
    )


def live_to_json(live: LiveBroker) -> bytes:
    """The record of a node below `live`."""
    return _encode(
        {
            "brokerId": live.broker_id,
            "address": live.address,
            "haAddress": live.ha_address,
            "epoch": live.epoch,
            "logEnd": live.log_end,
            "waiting": live.is_waiting,
        }
    )


def live_from_json(data: bytes) -> LiveBroker:
    """The record of a node below `live`.

    Raises:
        ConfigError: it is malformed.
    """
    what = "a live broker"
    fields = _decode(what, data)
    return LiveBroker(
        _integer(what, fields, "brokerId"),
        _text(what, fields, "address"),
        _text(what, fields, "haAddress"),
        _integer(what, fields, "epoch"),
        _integer(what, fields, "logEnd"),
        fields.get("waiting") is True,
    )


def with_member(config: GroupConfig, member: GroupMember) -> GroupConfig:
    """The configuration with one member added, or put in place of the one with its id."""
    others = [other for other in config.members if other.broker_id != member.broker_id]
    return replace(config, members=tuple(sorted([*others, member], key=lambda each: each.broker_id)))


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(what: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{what} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ConfigError(f"{what} must be a JSON object")
    return fields


def _integer(what: str, fields: dict[str, Any], key: str) -> int:
    value = fields.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{what}: {key} must be an integer, not {value!r:.64}")
    return value


def _text(what: str, fields: dict[str, Any], key: str) -> str:
    value = fields.get(key)
    if not isinstance(value, str):
        raise ConfigError(f"{what}: {key} must be text, not {value!r:.64}")
    return value


def _choice(what: str, fields: dict[str, Any], key: str, choices: type[_Choice]) -> _Choice:
    value = fields.get(key)
    for choice in choices:
        if choice.value == value:
            return choice
    listed = ", ".join(str(choice.value) for choice in choices)
    raise ConfigError(f"{what}: {key} is {value!r:.64}; use one of {listed}")
