"""Contents of the registry: the nodes, and their JSON records.

    node                                              record        written by                      lifetime
    /tandemq/<cluster>/groups                         -             -                               persistent
    /tandemq/<cluster>/groups/<brokerName>/config     GroupConfig   the task behind the database    persistent
    /tandemq/<cluster>/groups/<brokerName>/state      GroupState    the brokers, by compare-and-set persistent
    /tandemq/<cluster>/groups/<brokerName>/live/<id>  LiveBroker    that broker                     ephemeral

Records are parsed strictly: a missing or malformed field is an error that names it. Unknown fields are ignored, so that
later versions can add some.

Limits: `MEMBERS_MAX` members; names follow the rules of `config` for broker names.
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
    """Failover mode of a group: what happens when its master dies."""

    STATIC = "static"
    """Roles are fixed by the brokers' settings; no takeover."""
    SLAVE_CONSUME = "slave-consume"
    """A slave serves reads until the master returns."""
    ELECT = "elect"
    """A member in sync becomes master."""


class Role(Enum):
    """Configured role of a member. In `elect` it only determines the master of the first epoch."""

    MASTER = "master"
    SLAVE = "slave"


class BrokerPermission(Enum):
    """Permission of clients at a broker. Clients try brokers in this order."""

    FULL = "FULL"
    WRITE = "WRITE"
    READ = "READ"
    NONE = "NONE"

    @property
    def may_read(self) -> bool:
        """Whether pulls, acknowledgements and commits are allowed."""
        return self in (BrokerPermission.FULL, BrokerPermission.READ)

    @property
    def may_write(self) -> bool:
        """Whether sends are allowed."""
        return self in (BrokerPermission.FULL, BrokerPermission.WRITE)

    def __and__(self, other: "BrokerPermission") -> "BrokerPermission":
        """Return the rights that both permissions have."""
        return permission(read=self.may_read and other.may_read, write=self.may_write and other.may_write)


def permission(*, read: bool, write: bool) -> BrokerPermission:
    """Return the permission with these rights."""
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
    """Share of the writes among groups; 0: no writes while another group accepts them."""
    priority: int = 0
    """In elections, among logs of equal length, higher values win."""


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Configuration of a broker group."""

    mode: Mode
    members: tuple[GroupMember, ...]

    def member(self, broker_id: int) -> GroupMember | None:
        """Return a member by its id, None if there is none."""
        return next((member for member in self.members if member.broker_id == broker_id), None)

    @property
    def master(self) -> GroupMember | None:
        """The configured master, None if there is none."""
        return next((member for member in self.members if member.role is Role.MASTER), None)


class GroupMode(Enum):
    """State of a group; always NORMAL in `elect`."""

    NORMAL = "normal"
    SLAVE_CONSUME = "slave-consume"
    """The slave `reader` has READ and the master has no permission, until the offset handover."""


NOBODY = -1
"""Broker id that stands for no broker."""


@dataclass(frozen=True, slots=True)
class GroupState:
    """Record of a group: its master, reader and in-sync set; only changed by compare-and-set."""

    epoch: int
    """Epoch of the mastership; increases by one with each change of the master."""
    master: int
    """Broker id of the master; NOBODY if there is none."""
    in_sync: tuple[int, ...]
    """Ids of the brokers in sync, sorted, the master's included."""
    mode: GroupMode = GroupMode.NORMAL
    reader: int = NOBODY
    """Id of the broker that serves reads; the master's in mode normal."""
    since_ms: int = 0
    """Calendar time of the last change."""
    reason: str = ""
    """Reason of the last change, for operators."""
    by: int = NOBODY
    """Id of the broker that made the last change; NOBODY for an operator's tool."""
    founded: int = 0
    """The epoch that replaced whatever members had seen of earlier ones: the first one, one that all members agreed on
    after the record was lost, or an operator's decision. 0: not known, written by an earlier version."""
    changes: tuple[tuple[int, int], ...] = ()
    """The last changes since `founded`, oldest first: version of the node and calendar time; see `lineage`."""
    reading_since: int = 0
    """In mode slave-consume: version of the node by which the reader took over; 0: not known, written by an earlier
    version."""


@dataclass(frozen=True, slots=True)
class LiveBroker:
    """Record of a live broker, written by itself. The node belongs to its session."""

    broker_id: int
    address: str
    """"ip:port" for clients."""
    ha_address: str
    """"ip:port" for slaves."""
    epoch: int = 0
    """The last epoch in its epoch file when it wrote the record."""
    log_end: int = 0
    """End of its log when it wrote the record; orders the candidates of an election."""
    is_waiting: bool = False
    """Whether it waits for a missing record of the group; until then it serves no clients."""
    held: tuple[int, int] = (0, 0)
    """Epoch and version of the last record by which it served clients; of the last holder they are highest."""
    seen: GroupState | None = None
    """The newest record that it has seen; None: it has seen none, or is of an earlier version."""


@dataclass(frozen=True, slots=True)
class CopiedOffsets:
    """Offsets that consumers committed at the reader of a slave-consume group, as the reader copied them last."""

    reader: int
    """Broker id of the reader."""
    reading_since: int
    """See GroupState: offsets of an earlier reading do not count."""
    table: bytes
    """The offsets, in the form of the broker."""


# Paths.


def groups_path(cluster: str) -> str:
    """Return the parent path of the groups."""
    return f"{ROOT}/{cluster}/groups"


def group_path(cluster: str, broker_name: str) -> str:
    """Return the parent path of a group's nodes: config, state, offsets, live."""
    return f"{groups_path(cluster)}/{broker_name}"


def config_path(cluster: str, broker_name: str) -> str:
    """Return the path of a GroupConfig."""
    return f"{group_path(cluster, broker_name)}/config"


def state_path(cluster: str, broker_name: str) -> str:
    """Return the path of a GroupState."""
    return f"{group_path(cluster, broker_name)}/state"


def offsets_path(cluster: str, broker_name: str) -> str:
    """Return the path of CopiedOffsets."""
    return f"{group_path(cluster, broker_name)}/offsets"


def live_path(cluster: str, broker_name: str) -> str:
    """Return the parent path of the ephemeral nodes of live brokers."""
    return f"{group_path(cluster, broker_name)}/live"


def live_broker_path(cluster: str, broker_name: str, broker_id: int) -> str:
    """Return the path of a LiveBroker."""
    return f"{live_path(cluster, broker_name)}/{broker_id}"


# Validation.


def check_name(what: str, name: str) -> None:
    """Check the name of a cluster or broker.

    Raises:
        ConfigError: the name is invalid.
    """
    if not _NAME.match(name):
        raise ConfigError(
            f"{name[:64]!r} is not a valid {what}",
            hint="use 1 to 127 letters, digits and _-.%|, and no dot at the start",
        )


def check_config(broker_name: str, config: GroupConfig) -> GroupConfig:
    """Return a group's configuration if it is valid.

    Raises:
        ConfigError: it is not; the text names all problems.
    """
    check_name("broker name", broker_name)
    found = list(contradictions(config))
    if found:
        raise ConfigError(f"group {broker_name}: " + "; ".join(found))
    return config


def contradictions(config: GroupConfig) -> Iterator[str]:
    """Yield all problems of a group's configuration, and what to do."""
    ids = [member.broker_id for member in config.members]
    masters = [member.broker_id for member in config.members if member.role is Role.MASTER]
    if not 1 <= len(ids) <= MEMBERS_MAX:
        yield f"it has {len(ids)} members; 1 to {MEMBERS_MAX} are allowed"
    for broker_id in sorted({broker_id for broker_id in ids if ids.count(broker_id) > 1}):
        yield f"broker {broker_id} is listed {ids.count(broker_id)} times; list it once"
    if len(masters) > 1:
        listed = ", ".join(map(str, masters))
        yield f"brokers {listed} are all master; make all but one slaves"
    for member in config.members:
        yield from _contradictions_of(member)
    if config.mode is Mode.ELECT:
        yield from _elect_contradictions(config)
    elif not masters:
        yield f"it has no master, and mode {config.mode.value} does not elect one: make one broker the master"
    if config.mode is Mode.STATIC:
        yield from _static_contradictions(config)


def _elect_contradictions(config: GroupConfig) -> Iterator[str]:
    if config.members and not any(member.permission.may_write for member in config.members):
        yield "no member is writable, so none can be elected: give one WRITE or FULL"
    elif config.master is not None and not config.master.permission.may_write:
        yield (
            f"broker {config.master.broker_id} is the first master, with permission {config.master.permission.value}: "
            "give it WRITE or FULL, or make another one the master"
        )


def _contradictions_of(member: GroupMember) -> Iterator[str]:
    if not 0 <= member.broker_id <= JAVA_INT_MAX:
        yield f"{member.broker_id} is not a broker id; use 0 to {JAVA_INT_MAX}"
    if not 0 <= member.weight <= WEIGHT_MAX:
        yield f"broker {member.broker_id}: weight {member.weight} is outside 0 to {WEIGHT_MAX}"
    if not -JAVA_INT_MAX <= member.priority <= JAVA_INT_MAX:
        yield f"broker {member.broker_id}: priority {member.priority} is outside -{JAVA_INT_MAX} to {JAVA_INT_MAX}"


def _static_contradictions(config: GroupConfig) -> Iterator[str]:
    for member in config.members:
        if (member.role is Role.MASTER) != (member.broker_id == 0):
            yield (
                f"broker {member.broker_id} is a {member.role.value}; in mode static the master must have broker id 0, "
                "and the slaves others"
            )


# JSON.


def config_to_json(config: GroupConfig) -> bytes:
    """Encode the record of a `config` node; equal configurations give equal bytes."""
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
    """Decode and validate the record of a `config` node.

    Raises:
        ConfigError: it is malformed or invalid.
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
    """Encode the record of a `state` node."""
    return _encode(state_to_fields(state))


def state_to_fields(state: GroupState) -> dict[str, Any]:
    """Return a group's record as a JSON object."""
    return {
        "epoch": state.epoch,
        "master": state.master,
        "inSync": sorted(state.in_sync),
        "mode": state.mode.value,
        "reader": state.reader,
        "since": state.since_ms,
        "reason": state.reason,
        "by": state.by,
        "founded": state.founded,
        "changes": state.changes,
        "readingSince": state.reading_since,
    }


def state_from_json(broker_name: str, data: bytes) -> GroupState:
    """Decode the record of a `state` node.

    Raises:
        ConfigError: it is malformed.
    """
    what = f"the state of group {broker_name}"
    return state_from_fields(what, _decode(what, data))


def state_from_fields(what: str, fields: dict[str, Any]) -> GroupState:
    """Return a group's record from its JSON object.

    Raises:
        ConfigError: it is malformed; the text begins with `what`.
    """
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
        founded=_integer(what, {"founded": 0} | fields, "founded"),
        changes=_changes(what, fields),
        reading_since=_integer(what, {"readingSince": 0} | fields, "readingSince"),
    )


def _changes(what: str, fields: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    """Decode the field, which earlier versions do not write."""
    value = fields.get("changes", [])
    if not isinstance(value, list):
        raise ConfigError(f"{what}: changes must be a list, not {value!r:.64}")
    return tuple(_pair(what, "a change", pair) for pair in value)


def live_to_json(live: LiveBroker) -> bytes:
    """Encode the record of a node below `live`."""
    return _encode(
        {
            "brokerId": live.broker_id,
            "address": live.address,
            "haAddress": live.ha_address,
            "epoch": live.epoch,
            "logEnd": live.log_end,
            "waiting": live.is_waiting,
            "held": list(live.held),
            "seen": None if live.seen is None else state_to_fields(live.seen),
        }
    )


def live_from_json(data: bytes) -> LiveBroker:
    """Decode the record of a node below `live`.

    Raises:
        ConfigError: it is malformed.
    """
    what = "a live broker"
    fields = _decode(what, data)
    seen = fields.get("seen")  # not written by earlier versions
    if seen is not None and not isinstance(seen, dict):
        raise ConfigError(f"{what}: seen must be a JSON object, not {seen!r:.64}")
    return LiveBroker(
        _integer(what, fields, "brokerId"),
        _text(what, fields, "address"),
        _text(what, fields, "haAddress"),
        _integer(what, fields, "epoch"),
        _integer(what, fields, "logEnd"),
        fields.get("waiting") is True,
        _pair(what, "held", fields.get("held", [0, 0])),
        None if seen is None else state_from_fields(f"{what}: seen", seen),
    )


def offsets_to_node(copied: CopiedOffsets) -> bytes:
    """Encode the record of an `offsets` node: one line of JSON, then the table."""
    return _encode({"reader": copied.reader, "readingSince": copied.reading_since}) + b"\n" + copied.table


def offsets_from_node(data: bytes) -> CopiedOffsets:
    """Decode the record of an `offsets` node.

    Raises:
        ConfigError: its first line is malformed; the table is not looked at.
    """
    what = "the copied offsets"
    line, _, table = data.partition(b"\n")
    fields = _decode(what, line)
    return CopiedOffsets(_integer(what, fields, "reader"), _integer(what, fields, "readingSince"), table)


def _pair(what: str, key: str, value: Any) -> tuple[int, int]:
    if not isinstance(value, list) or len(value) != 2 or not all(type(part) is int for part in value):
        raise ConfigError(f"{what}: {key} must be a list of two integers, not {value!r:.64}")
    return value[0], value[1]


def with_member(config: GroupConfig, member: GroupMember) -> GroupConfig:
    """Return the configuration with a member added or replaced, by its id."""
    others = [other for other in config.members if other.broker_id != member.broker_id]
    return replace(config, members=tuple(sorted([*others, member], key=lambda each: each.broker_id)))


def _encode(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(what: str, data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise ConfigError(f"{what} is not JSON: {error}") from error
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
