"""Broker groups of a cluster on this machine, configured in the registry that its name server hosts.

    mode            broker 0          the others         brokers know the registry
    static          master, FULL      slaves, FULL       no: their settings say all
    slave-consume   master, FULL      slaves, READ       yes
    elect           master at first   slaves, FULL       yes

A group that an earlier run, or `tandemq ha config`, configured keeps what is there, unless another mode is asked for.
Call it while no broker of the groups runs. Source: docs/guides/failover.md, "Group configuration".
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from tandemq.coordination.registry.records import (
    BrokerPermission,
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
from tandemq.coordination.registry.transition import MASTER_ID, forgotten, objection
from tandemq.errors import ConfigError, OutcomeUnknown, RemoteError
from tandemq.registry import Create, Done, NodeFound, NodeMissing, Operation, Read, Unknown, Write, parse_address
from tandemq.run.registry_session import RegistryClient

CLUSTER = "DefaultCluster"


def has_registry(directory: Path) -> bool:
    """Whether a name server kept a registry in this directory before."""
    return any(directory.glob("registry.*"))


def new_group(mode: Mode, members: int) -> GroupConfig:
    """A group of this many members, as it is configured if nobody says anything else."""
    slave = BrokerPermission.READ if mode is Mode.SLAVE_CONSUME else BrokerPermission.FULL
    others = (GroupMember(number, Role.SLAVE, slave) for number in range(1, members))
    return GroupConfig(mode, (GroupMember(MASTER_ID, Role.MASTER), *others))


def configure(
    address: str,
    names: Iterable[str],
    mode: Mode | None,
    members: int,
    cluster: str = CLUSTER,
    secret_file: str | Path = "",
) -> Mode:
    """Write the groups' configurations into the registry; returns the mode that holds for them.

    Args:
        address: of the registry, "namesrv://host:port".
        names: of the groups.
        mode: of all of them; None: the one they have, `elect` for new ones.
        members: brokers of each group; those that are configured and not among them stay configured.
        secret_file: haSecretFile of the name server, if it has one.

    Raises:
        ConfigError: a group cannot go over to the mode as it stands, or the groups have different ones.
        NetworkError: the registry does not answer.
        RemoteError: the registry refuses.
    """
    modes: dict[str, Mode] = {}
    with RegistryClient(parse_address(address), secret_file=secret_file) as registry:
        for name in names:
            modes[name] = _configure_group(registry, cluster, name, mode, members)
    if len(set(modes.values())) > 1:
        listed = ", ".join(f"{name}: {found.value}" for name, found in modes.items())
        raise ConfigError(f"the groups have different modes ({listed})", hint="say which one all shall have")
    return next(iter(modes.values()))


def _configure_group(registry: RegistryClient, cluster: str, name: str, mode: Mode | None, members: int) -> Mode:
    path = config_path(cluster, name)
    node = _read(registry, path)
    before = None if node is None else config_from_json(name, node.data)
    wanted = mode or (before.mode if before is not None else Mode.ELECT)
    after = _config(before, wanted, members)
    if after != before:
        _leave_mode(registry, state_path(cluster, name), name, before, after)
    if node is None:
        _do(registry, Create(path, config_to_json(after)), path)
    elif after != before:
        _do(registry, Write(path, config_to_json(after), node.version), path)
    return wanted


def _config(before: GroupConfig | None, mode: Mode, members: int) -> GroupConfig:
    """What was configured stays; what the mode says of roles and permissions holds anew when the mode is another."""
    fresh = new_group(mode, members)
    if before is None:
        return fresh
    if before.mode is mode:
        known = {member.broker_id for member in before.members}
        return replace(before, members=before.members + tuple(m for m in fresh.members if m.broker_id not in known))
    told = {member.broker_id: member for member in before.members}
    others = max((members, *(broker_id + 1 for broker_id in told)))
    kept = tuple(
        replace(member, weight=told[member.broker_id].weight, priority=told[member.broker_id].priority)
        if member.broker_id in told
        else member
        for member in new_group(mode, others).members
        if member.broker_id < members or member.broker_id in told
    )
    return GroupConfig(mode, kept)


def _leave_mode(registry: RegistryClient, path: str, name: str, before: GroupConfig | None, after: GroupConfig) -> None:
    """Refuse what would lose something, and forget who was in sync if the new mode must not believe it. No broker of
    the group runs, so those that the registry still lists as living are gone."""
    node = _read(registry, path)
    if node is None:
        return
    state = state_from_json(name, node.data)
    trouble = objection(state, (), before, after)
    if trouble is not None:
        first = "" if before is None else f"start it in mode {before.mode.value}, "
        raise ConfigError(
            f"group {name} cannot go over to mode {after.mode.value}: {trouble.why}",
            hint=first + trouble.what_to_do,
        )
    begun = forgotten(state, before, after)
    if begun is not None:
        _do(registry, Write(path, state_to_json(begun), node.version), path)


def _read(registry: RegistryClient, path: str) -> NodeFound | None:
    match registry.do(Read(path)):
        case NodeFound() as found:
            return found
        case NodeMissing():
            return None
        case outcome:
            raise RemoteError(f"the registry does not tell {path}: {outcome}")


def _do(registry: RegistryClient, operation: Operation, path: str) -> None:
    outcome = registry.do(operation)
    if isinstance(outcome, Unknown):
        raise OutcomeUnknown(f"the registry did not answer for {path}", hint="start again: nothing is done twice")
    if not isinstance(outcome, Done):
        raise RemoteError(f"the registry did not write {path}: {outcome}")
