"""The task that makes the registry say what the database says.

    for each group:  read the node ─► the database ─► the record ─► create, write or delete it ─► note it

It may be killed anywhere and run again, and several may run at once. The order is why: the database is read *after*
the node whose version the write is for. If another task carried something newer in between, the version has changed and
the write does nothing; if it did so before, the database tells the same news. A node that was removed and made again in
between has its old version; so a group whose revision is not the one that was carried is begun anew.

Not carried, and said: what the group as it stands forbids (`coordination.registry.transition`), such as a configuration
without the present master, or another mode while brokers run. A node is written only while the record is the one that
was weighed: nobody becomes master in between. The registry may hold groups this database does not know; they
are left alone. The group's state stays when its configuration goes:
epochs do not begin again.

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
from tandemq.coordination.registry.transition import forgotten, objection, removal_objection
from tandemq.errors import ConfigError, OutcomeUnknown, RemoteError
from tandemq.groupdb.database import GroupDatabase, StoredGroup

ATTEMPTS_MAX = 20
"""Times a group is begun anew because the node changed meanwhile."""
Do = Callable[[Operation], Outcome]


class ApplyOutcome(Enum):
    """What became of a group."""

    UNCHANGED = "unchanged"
    CREATED = "created"
    WRITTEN = "written"
    REMOVED = "removed"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class AppliedGroup:
    """One group, and why it was refused, if it was."""

    cluster: str
    broker_name: str
    what: ApplyOutcome
    reason: str = ""


def apply_groups(database: GroupDatabase, do: Do, cluster: str | None = None) -> list[AppliedGroup]:
    """Carry all groups of the database, or those of one cluster.

    Raises:
        OutcomeUnknown: the registry did not answer; what was carried stays, the rest is carried by the next run.
        RemoteError: the registry refused an operation, or somebody else writes the same node all the time.
        NetworkError: the database cannot be used.
    """
    return [
        done
        for group in database.groups(cluster)
        if (done := apply_group(database, do, group.cluster, group.broker_name)) is not None
    ]


def apply_group(database: GroupDatabase, do: Do, cluster: str, broker_name: str) -> AppliedGroup | None:
    """Carry one group; None if the database does not know it (any more). Raises as `apply_groups` does."""
    path, record_path = config_path(cluster, broker_name), state_path(cluster, broker_name)
    for _ in range(ATTEMPTS_MAX):
        node = _known(do(Read(path)), path)
        group = database.group(cluster, broker_name)
        if group is None:
            return None
        record = _known(do(Read(record_path)), record_path)
        reason, begun = _weigh(do, node, record, group)
        if reason:
            return AppliedGroup(cluster, broker_name, ApplyOutcome.REFUSED, reason)
        if begun is not None and record is not None:
            _compare_and_set(
                do, Write(record_path, state_to_json(begun), record.version), record_path, ApplyOutcome.WRITTEN
            )
            continue
        what = _bring(do, path, node, group, Guard(record_path, record.version) if record is not None else None)
        if what is not None and database.mark_applied(group):
            return AppliedGroup(cluster, broker_name, what)
    raise RemoteError(f"{path} is written, or its group changed, by somebody else all the time")


def _bring(do: Do, path: str, node: NodeFound | None, group: StoredGroup, guard: Guard | None) -> ApplyOutcome | None:
    """Make the node what the group is; None: the node, or the record, is not any more what was read."""
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
    """Write by compare-and-set; None: the node is not any more what was read."""
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


def _weigh(
    do: Do, node: NodeFound | None, record: NodeFound | None, group: StoredGroup
) -> tuple[str, GroupState | None]:
    """Why the group as it stands forbids its configuration, "" if it does not; and its record as it must be before."""
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
    trouble = objection(state, _living(do, group), before, group.config)
    return (str(trouble), None) if trouble is not None else ("", forgotten(state, before, group.config))


def _config_of(broker_name: str, node: NodeFound | None) -> GroupConfig | None:
    """What a `config` node says; None if there is none, or nothing that brokers could have read."""
    try:
        return None if node is None else config_from_json(broker_name, node.data)
    except ConfigError:
        return None


def _living(do: Do, group: StoredGroup) -> list[int]:
    """Brokers of the group that the registry lists as living."""
    path = live_path(group.cluster, group.broker_name)
    match do(ReadChildren(path)):
        case Names(children=names):
            return [int(name) for name in names if name.isdecimal()]
        case NodeMissing():
            return []
        case outcome:
            raise _failed(outcome, path)
