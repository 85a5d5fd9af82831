"""Task that applies the group configurations of the database to the registry.

    for each group:  read the node ─► the database ─► the record ─► create, write or delete the node ─► mark as applied

The task may be killed at any point and run again, and several may run at the same time. This is safe because the
database is read *after* the node whose version the write expects. If another task applied a newer configuration in
between, the version has changed and the write fails; if it did so earlier, the database has returned that one.
A node that was deleted and created again in between has its old version; so if a group's revision has changed when it
is marked as applied, the group is applied again.

A configuration is refused, and reported, if the current state of the group forbids it
(`coordination.registry.transition`), for example one without the current master, or another mode while brokers run. A
node is written only if the record is still the one that was checked, so that no master is elected in between. Groups of
the registry that are not in the database are left alone. The state of a group outlives its configuration, so that its
epochs do not start again.

Source: docs/guides/failover.md, "Group configuration".
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from tandemq.coordination.registry.interface import (
    Conflict,
    Create,
    Delete,
    Done,
    Exists,
    Guard,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    ReadChildren,
    RegistryRefused,
    Unknown,
    Write,
)
from tandemq.coordination.registry.records import (
    GroupConfig,
    GroupState,
    config_from_json,
    config_path,
    config_to_json,
    live_path,
    state_from_json,
    state_path,
    state_to_json,
)
from tandemq.coordination.registry.transition import objection, removal_objection, with_reset_in_sync
from tandemq.errors import ConfigError, OutcomeUnknown, RemoteError
from tandemq.groupdb.database import GroupDatabase, StoredGroup

ATTEMPTS_MAX = 20
"""Maximum number of attempts for a group while others change it."""
Do = Callable[[Operation], Outcome]


class ApplyOutcome(Enum):
    """Result for a group."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    WRITTEN = "written"
    REMOVED = "removed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AppliedGroup:
    """Result for a group, with the reason of a refusal."""

    cluster: str
    broker_name: str
    what: ApplyOutcome
    reason: str = ""
    revision: int = 0
    """The revision that was applied or refused."""


def apply_groups(database: GroupDatabase, do: Do, cluster: str | None = None, *, wall_ms: int) -> list[AppliedGroup]:
    """Apply all groups of the database, or those of one cluster, at a calendar time.

    Raises:
        OutcomeUnknown: the registry did not answer; the next run applies the remaining groups.
        RemoteError: the registry refused an operation, or others write the same node all the time.
        NetworkError: the database cannot be used.
    """
    return [
        done
        for group in database.groups(cluster)
        if (done := apply_group(database, do, group.cluster, group.broker_name, wall_ms)) is not None
    ]


def apply_group(database: GroupDatabase, do: Do, cluster: str, broker_name: str, wall_ms: int) -> AppliedGroup | None:
    """Apply one group; None if it is not in the database (any more). Raises as `apply_groups`."""
    path, record_path = config_path(cluster, broker_name), state_path(cluster, broker_name)
    for _ in range(ATTEMPTS_MAX):
        node = _known(do(Read(path)), path)
        group = database.group(cluster, broker_name)
        if group is None:
            return None
        record = _known(do(Read(record_path)), record_path)
        reason, new_state = _check_transition(do, node, record, group, wall_ms)
        if reason:
            return AppliedGroup(cluster, broker_name, ApplyOutcome.REFUSED, reason, group.revision)
        if new_state is not None and record is not None:
            _compare_and_set(
                do, Write(record_path, state_to_json(new_state), record.version), record_path, ApplyOutcome.WRITTEN
            )
            continue
        what = _write_node(do, path, node, group, Guard(record_path, record.version) if record is not None else None)
        if what is not None and database.mark_applied(group):
            return AppliedGroup(cluster, broker_name, what, revision=group.revision)
    raise RemoteError(f"{path} is written, or its group changed, by others all the time")


def _write_node(
    do: Do, path: str, node: NodeFound | None, group: StoredGroup, guard: Guard | None
) -> ApplyOutcome | None:
    """Create, write or delete the node of a group; None if node or record have changed since they were read."""
    if group.config is None:
        if node is None:
            return ApplyOutcome.REMOVED
        operation: Operation = Delete(path, node.version)
        what = ApplyOutcome.REMOVED
    else:
        data = config_to_json(group.config)
        if node is None:
            operation, what = Create(path, data), ApplyOutcome.CREATED
        elif node.data == data:
            return ApplyOutcome.UNCHANGED
        else:
            operation, what = Write(path, data, node.version, guard), ApplyOutcome.WRITTEN
    return _compare_and_set(do, operation, path, what)


def _compare_and_set(do: Do, operation: Operation, path: str, what: ApplyOutcome) -> ApplyOutcome | None:
    """Execute a conditional operation; None if the node has changed since it was read."""
    match do(operation):
        case Done():
            return what
        case Conflict() | NodeMissing() | Exists():
            return None
        case outcome:
            raise _failed(outcome, path)


def _known(outcome: Outcome, path: str) -> NodeFound | None:
    match outcome:
        case NodeFound():
            return outcome
        case NodeMissing():
            return None
        case _:
            raise _failed(outcome, path)


def _failed(outcome: Outcome, path: str) -> RemoteError | OutcomeUnknown:
    if isinstance(outcome, Unknown):
        return OutcomeUnknown(f"the registry did not answer for {path}", hint="run it again: nothing is done twice")
    reason = outcome.reason if isinstance(outcome, RegistryRefused) else repr(outcome)
    return RemoteError(f"the registry refused {path}: {reason}")


def _check_transition(
    do: Do, node: NodeFound | None, record: NodeFound | None, group: StoredGroup, wall_ms: int
) -> tuple[str, GroupState | None]:
    """Return why the group's current state forbids its configuration, "" if it does not.

    The second value is the state that must be written to the group's record first, None if it can stay.
    """
    if group.config is None:
        living = _living(do, group) if node is not None else []
        return (str(removal_objection(living)), None) if living else ("", None)
    if record is None:
        return "", None
    try:
        state = state_from_json(group.broker_name, record.data)
    except ConfigError as error:
        return str(error), None
    before = _config_of(group.broker_name, node)
    refusal = objection(state, _living(do, group), before, group.config)
    if refusal is not None:
        return str(refusal), None
    return "", with_reset_in_sync(state, record.version, before, group.config, wall_ms)


def _config_of(broker_name: str, node: NodeFound | None) -> GroupConfig | None:
    """Return the configuration in a `config` node; None if there is no node, or if its content is not valid."""
    try:
        return None if node is None else config_from_json(broker_name, node.data)
    except ConfigError:
        return None


def _living(do: Do, group: StoredGroup) -> list[int]:
    """Return the ids of the group's brokers that the registry lists as alive."""
    path = live_path(group.cluster, group.broker_name)
    match do(ReadChildren(path)):
        case Names(children=names):
            return [int(name) for name in names if name.isdecimal()]
        case NodeMissing():
            return []
        case outcome:
            raise _failed(outcome, path)
