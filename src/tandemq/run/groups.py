"""Configuration of the broker groups of a local cluster, in the registry hosted by its name server.

    mode            broker 0             others             brokers use the registry
    static          master, FULL         slaves, FULL       no: settings define the roles
    slave-consume   master, FULL         slaves, FULL       yes
    elect           initial master       slaves, FULL       yes

A group that an earlier run or `tandemq ha config` configured keeps its configuration, unless another mode is requested.
With a database of group configurations, each group is stored there as well:

    in the database                          database afterwards
    nothing, or a revision that was applied  what the registry has: the registry's is as new, or newer
    a revision that is not applied           that revision, with missing members and a requested mode; not applied here

The database is written before the registry, so that a publisher that runs meanwhile does not undo a change of mode.
Use this module only while no broker of the groups runs. Source: docs/guides/failover.md, "Group configuration".
"""

import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tandemq.config.tls import ClientTls
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupMember,
    Mode,
    Role,
    config_from_json,
    config_path,
    config_to_json,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.transition import MASTER_ID, objection, with_reset_in_sync
from tandemq.errors import ConfigError, OutcomeUnknown, RemoteError
from tandemq.registry import Create, Done, NodeFound, NodeMissing, Operation, Read, Unknown, Write, parse_address
from tandemq.run.registry_session import RegistryClient

if TYPE_CHECKING:
    from tandemq.groupdb.database import GroupDatabase, StoredGroup

CLUSTER = "DefaultCluster"
AUTHOR = "start of the local cluster"
"""Who has made the changes, in the audit log of the database."""


def has_registry(directory: Path) -> bool:
    """Return whether a directory has the registry of an earlier run."""
    return any(directory.glob("registry.*"))


def new_group(mode: Mode, members: int) -> GroupConfig:
    """Return the default configuration of a new group with this number of members."""
    others = (GroupMember(number, Role.SLAVE) for number in range(1, members))
    return GroupConfig(mode, (GroupMember(MASTER_ID, Role.MASTER), *others))


def configure(
    address: str,
    names: Iterable[str],
    mode: Mode | None,
    members: int,
    secret_file: str | Path = "",
    database: "GroupDatabase | None" = None,
    tls: ClientTls | None = None,
) -> Mode:
    """Write the configurations of groups to the registry and to a database, and return their mode.

    Args:
        address: the registry, "namesrv://host:port".
        names: names of the groups.
        mode: mode of all groups; None: their present mode, `elect` for new groups.
        members: number of brokers per group; further configured members stay configured.
        secret_file: haSecretFile of the name server, "" if it has none.
        database: group configurations of `tandemq ha config`; None: only the registry.
        tls: TLS of the name server.

    Raises:
        ConfigError: a group cannot change to the mode now, or the groups have different modes.
        RevisionConflict: a group was changed in the database meanwhile.
        NetworkError: the registry does not answer.
        RemoteError: the registry refuses.
    """
    modes: dict[str, Mode] = {}
    with RegistryClient(parse_address(address), secret_file=secret_file, tls=tls) as registry:
        for name in names:
            modes[name] = _configure_group(registry, name, mode, members, database)
    if len(set(modes.values())) > 1:
        listed = ", ".join(f"{name}: {found.value}" for name, found in modes.items())
        raise ConfigError(f"the groups have different modes ({listed})", hint="give one mode for all of them")
    return next(iter(modes.values()))


def _configure_group(
    registry: RegistryClient,
    name: str,
    mode: Mode | None,
    members: int,
    database: "GroupDatabase | None",
) -> Mode:
    path = config_path(CLUSTER, name)
    node = _read(registry, path)
    before = None if node is None else config_from_json(name, node.data)
    stored = None if database is None else database.group(CLUSTER, name)
    # A registry that has lost its files gets the group from the database.
    origin = before or (stored.config if stored is not None else None)
    wanted = mode or (origin.mode if origin is not None else Mode.ELECT)
    after = _config(origin, wanted, members)
    if after != before:
        _leave_mode(registry, state_path(CLUSTER, name), name, before, after)
    if database is not None:
        stored = _store(database, name, stored, _to_store(stored, after, mode, members))
    if node is None:
        _do(registry, Create(path, config_to_json(after)), path)
    elif after != before:
        _do(registry, Write(path, config_to_json(after), node.version), path)
    if database is not None and stored is not None and _is_same(stored.config, after):
        database.mark_applied(stored)
    return wanted


def _to_store(stored: "StoredGroup | None", after: GroupConfig, mode: Mode | None, members: int) -> GroupConfig | None:
    """Return the configuration to store in the database; None: keep the removal that it has."""
    if stored is None or stored.is_applied:
        return after
    return None if stored.config is None else _config(stored.config, mode or stored.config.mode, members)


def _store(
    database: "GroupDatabase", name: str, stored: "StoredGroup | None", config: GroupConfig | None
) -> "StoredGroup | None":
    """Store a group's configuration as a new revision, if it differs from the stored one."""
    from tandemq.groupdb.audit import Actor  # noqa: PLC0415  # an extra

    if config is None or (stored is not None and _is_same(stored.config, config)):
        return stored
    return database.change(
        CLUSTER,
        name,
        lambda _: config,
        wall_ms=time.time_ns() // 1_000_000,
        by=Actor(AUTHOR),
        expected_revision=0 if stored is None else stored.revision,
    )


def _is_same(stored: GroupConfig | None, wanted: GroupConfig) -> bool:
    """Return whether two configurations are equal, in whatever order they list the members."""
    return stored is not None and config_to_json(stored) == config_to_json(wanted)


def _config(before: GroupConfig | None, mode: Mode, members: int) -> GroupConfig:
    """Return the new configuration: unchanged members if the mode is unchanged, else the new mode's roles and
    permissions with the members' weights and priorities."""
    fresh = new_group(mode, members)
    if before is None:
        return fresh
    if before.mode is mode:
        known = {member.broker_id for member in before.members}
        return replace(before, members=before.members + tuple(m for m in fresh.members if m.broker_id not in known))
    configured = {member.broker_id: member for member in before.members}
    others = max((members, *(broker_id + 1 for broker_id in configured)))
    kept = tuple(
        replace(member, weight=configured[member.broker_id].weight, priority=configured[member.broker_id].priority)
        if member.broker_id in configured
        else member
        for member in new_group(mode, others).members
        if member.broker_id < members or member.broker_id in configured
    )
    return GroupConfig(mode, kept)


def _leave_mode(registry: RegistryClient, path: str, name: str, before: GroupConfig | None, after: GroupConfig) -> None:
    """Check that a mode change loses no data, and reset the in-sync set if the new mode cannot rely on it.

    No broker of the group runs, so brokers that the registry still lists as live are ignored.
    """
    node = _read(registry, path)
    if node is None:
        return
    state = state_from_json(name, node.data)
    refusal = objection(state, (), before, after)
    if refusal is not None:
        first = "" if before is None else f"start it in mode {before.mode.value}, "
        raise ConfigError(
            f"group {name} cannot change to mode {after.mode.value}: {refusal.why}",
            hint=first + refusal.what_to_do,
        )
    reset = with_reset_in_sync(state, node.version, before, after, time.time_ns() // 1_000_000)
    if reset is not None:
        _do(registry, Write(path, state_to_json(reset), node.version), path)


def _read(registry: RegistryClient, path: str) -> NodeFound | None:
    match registry.do(Read(path)):
        case NodeFound() as found:
            return found
        case NodeMissing():
            return None
        case outcome:
            raise RemoteError(f"the registry does not return {path}: {outcome}")


def _do(registry: RegistryClient, operation: Operation, path: str) -> None:
    outcome = registry.do(operation)
    if isinstance(outcome, Unknown):
        raise OutcomeUnknown(f"the registry did not answer for {path}", hint="start again: this is safe to repeat")
    if not isinstance(outcome, Done):
        raise RemoteError(f"the registry did not write {path}: {outcome}")
