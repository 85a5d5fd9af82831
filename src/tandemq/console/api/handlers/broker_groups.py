"""Broker groups: configuration with a revision, switch, forced takeover; and the audit log."""

from tandemq.console.api.handlers.cluster import running_group
from tandemq.console.api.operation import ApiCall
from tandemq.console.api.requests import (
    AuditQuery,
    BrokerGroupPath,
    GroupOrder,
    MasterOrder,
    MemberConfig,
    RemovalQuery,
)
from tandemq.console.api.responses import (
    AuditItem,
    AuditPage,
    BrokerGroupList,
    BrokerGroupState,
    ConfiguredGroup,
    PublicationState,
    TakeoverResult,
    TakeoverState,
)
from tandemq.console.operations import broker_groups
from tandemq.console.operations.broker_groups import GroupLine
from tandemq.coordination.registry.records import GroupConfig, GroupMember, contradictions
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import AuditEntry, entries
from tandemq.groupdb.database import StoredGroup


class Contradictory(ConfigError):
    """A configuration with faults."""

    def __init__(self, name: str, errors: list[str]) -> None:
        """Create the error."""
        super().__init__(f"the configuration of {name} is not valid")
        self.errors = errors


def configured_group(stored: StoredGroup) -> ConfiguredGroup:
    """Return a configuration of the database."""
    config = stored.config
    return ConfiguredGroup(
        cluster=stored.cluster,
        revision=stored.revision,
        applied_revision=stored.carried_revision,
        changed=stored.changed_ms,
        mode=None if config is None else config.mode,
        members=[
            MemberConfig(
                id=member.broker_id,
                role=member.role,
                permission=member.permission,
                weight=member.weight,
                priority=member.priority,
            )
            for member in (config.members if config is not None else ())
        ],
    )


def _state(line: GroupLine) -> BrokerGroupState:
    publication = line.publication
    return BrokerGroupState(
        name=line.name,
        configured=None if line.stored is None else configured_group(line.stored),
        publication=None
        if publication is None
        else PublicationState(
            revision=publication.revision,
            outcome=publication.outcome,
            reason=publication.reason,
            publisher=publication.publisher,
            at=publication.at_ms,
        ),
        running=None if line.view is None else running_group(line.view),
    )


async def list_broker_groups(call: ApiCall) -> BrokerGroupList:
    """All broker groups: what is configured, what was applied, what runs."""
    return BrokerGroupList(items=[_state(line) for line in await broker_groups.group_lines(call.console)])


async def get_broker_group(call: ApiCall, path: BrokerGroupPath) -> BrokerGroupState:
    """A broker group."""
    return _state(await broker_groups.group_line(call.console, path.name))


async def save_broker_group(call: ApiCall, path: BrokerGroupPath, body: GroupOrder) -> ConfiguredGroup:
    """Store the roles and permissions of a group. If the group has another revision by now, nothing is changed."""
    members = tuple(
        GroupMember(member.id, member.role, member.permission, member.weight, member.priority)
        for member in body.members
    )
    config = GroupConfig(body.mode, members)
    if faults := list(contradictions(config)):
        raise Contradictory(path.name, faults)
    stored = await broker_groups.save_group(call.console, call.actor, body.cluster, path.name, config, body.revision)
    return configured_group(stored)


async def remove_broker_group(call: ApiCall, path: BrokerGroupPath, query: RemovalQuery) -> None:
    """Remove the configuration of a group; the state of its brokers is kept."""
    call.require(query.confirm, path.name)
    await broker_groups.remove_group(call.console, call.actor, path.name, query.revision)


async def switch_master(call: ApiCall, path: BrokerGroupPath, body: MasterOrder) -> BrokerGroupState:
    """Make another member the master, without loss."""
    group = await broker_groups.running_group(call.console, path.name)
    call.require(body.confirm, path.name)
    await broker_groups.switch_master(call.console, call.actor, group, body.target)
    return _state(await broker_groups.group_line(call.console, path.name))


async def preview_takeover(call: ApiCall, path: BrokerGroupPath) -> TakeoverState:
    """What a forced takeover may lose; nothing is changed."""
    group = await broker_groups.running_group(call.console, path.name)
    found = await broker_groups.preview_takeover(call.console, group)
    return TakeoverState(
        losses={str(broker_id): text for broker_id, text in found.prices.items()},
        refusals={str(broker_id): text for broker_id, text in found.refusals.items()},
    )


async def force_master(call: ApiCall, path: BrokerGroupPath, body: MasterOrder) -> TakeoverResult:
    """Force a member to serve in place of one that is lost for good; messages may be lost."""
    group = await broker_groups.running_group(call.console, path.name)
    call.require(body.confirm, path.name)
    return TakeoverResult(lost=await broker_groups.force_master(call.console, call.actor, group, body.target))


async def list_audit(call: ApiCall, query: AuditQuery) -> AuditPage:
    """The audit log, newest first."""
    found = await call.console.run(_entries, call, query)
    items = [
        AuditItem(
            number=entry.number,
            at=entry.at_ms,
            who=entry.by.name,
            address=entry.by.address,
            action=entry.action,
            cluster=entry.cluster,
            target=entry.target,
            before=entry.before,
            after=entry.after,
            outcome=entry.outcome,
        )
        for entry in found[: query.limit]
    ]
    return AuditPage(items=items, next=str(items[-1].number) if len(found) > query.limit else None)


def _entries(call: ApiCall, query: AuditQuery) -> list[AuditEntry]:
    with call.console.database.transaction() as connection:
        before = int(query.cursor) if query.cursor else None
        return entries(connection, count=query.limit + 1, before=before, text=query.q)
