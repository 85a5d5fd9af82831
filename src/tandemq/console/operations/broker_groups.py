"""Broker groups: list, configuration with a revision, switch, forced takeover."""

import json
from dataclasses import dataclass

import anyio

from tandemq.console.cluster.picture import GroupView
from tandemq.console.services import Console, NotFound, wall_ms
from tandemq.coordination.registry.records import GroupConfig
from tandemq.errors import LocalError, TandemError
from tandemq.groupdb.audit import Actor
from tandemq.groupdb.database import StoredGroup
from tandemq.groupdb.publications import Publication, publications

SERVED_S = 5.0
POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group in the list: its stored configuration, and its running members."""

    name: str
    stored: StoredGroup | None
    view: GroupView | None
    publication: Publication | None = None


@dataclass(frozen=True, slots=True)
class TakeoverPreview:
    """Possible loss of a forced takeover by broker id, and the reasons of the members that refuse one."""

    prices: dict[int, str]
    refusals: dict[int, str]


async def group_lines(console: Console) -> list[GroupLine]:
    """Return all groups, by name."""
    view = await console.watch.view()
    stored = {group.broker_name: group for group in await console.run(console.database.groups)}
    published = {
        publication.broker_name: publication for publication in await console.run(publications, console.database)
    }
    names = sorted(stored.keys() | {group.name for group in view.groups})
    return [GroupLine(name, stored.get(name), view.group(name), published.get(name)) for name in names]


async def group_line(console: Console, name: str) -> GroupLine:
    """Return one group. Raises NotFound if there is none."""
    for line in await group_lines(console):
        if line.name == name:
            return line
    raise NotFound("there is no such broker group")


async def save_group(
    console: Console, by: Actor, cluster: str, name: str, config: GroupConfig, revision: int
) -> StoredGroup:
    """Store a configuration, unless the group has another revision by now.

    Raises:
        ConfigError: the configuration is not valid.
        RevisionConflict: another user has saved meanwhile; nothing was changed.
    """
    return await console.run(
        console.database.change,
        cluster,
        name,
        lambda _: config,
        wall_ms=wall_ms(),
        by=by,
        expected_revision=revision,
    )


async def remove_group(console: Console, by: Actor, name: str, revision: int | None = None) -> None:
    """Remove the configuration of a group.

    Args:
        revision: only if the group has this revision; None: the present one.

    Raises:
        NotFound: the group is not configured here.
        RevisionConflict: another user has saved meanwhile; nothing was changed.
    """
    line = await group_line(console, name)
    if line.stored is None:
        raise NotFound("this group is not configured here")
    await console.run(
        console.database.change,
        line.stored.cluster,
        line.name,
        lambda _: None,
        wall_ms=wall_ms(),
        by=by,
        expected_revision=line.stored.revision if revision is None else revision,
    )


# Changing the master.


async def running_group(console: Console, name: str) -> GroupView:
    """Return a group that runs and has roles from a registry. Raises LocalError if there is none."""
    view = (await console.watch.fresh()).group(name)
    if view is None:
        raise NotFound("there is no such broker group")
    if not view.has_registry:
        raise LocalError("the roles of this group are fixed by its brokers' settings")
    return view


async def switch_master(console: Console, by: Actor, group: GroupView, target: int) -> None:
    """Make another member the master, and wait until it serves, but not for long."""
    master = group.master
    if master is None:
        raise LocalError("the group has no active master", hint="a forced takeover replaces one that is lost for good")
    async with console.audited(by, "group.switch", group.name, before=str(master.broker_id), after=str(target)):
        await console.admin.switch_master(master.address, target)
    await _wait_served(console, group.name, target)


async def _wait_served(console: Console, name: str, broker_id: int) -> None:
    """Wait until the picture has the new master, so that the next page shows it; at most `SERVED_S`."""
    with anyio.move_on_after(SERVED_S):
        while True:
            view = (await console.watch.fresh()).group(name)
            if view is not None and view.master is not None and view.master.broker_id == broker_id:
                return
            await anyio.sleep(POLL_S)


async def preview_takeover(console: Console, group: GroupView) -> TakeoverPreview:
    """Return the possible loss of a forced takeover, for each member that answers."""
    found = TakeoverPreview({}, {})
    for member in group.members:
        if member.answers and not member.is_master:
            try:
                found.prices[member.broker_id] = await console.admin.force_master(member.address, preview=True)
            except TandemError as error:  # it refuses, for instance because a master is active
                found.refusals[member.broker_id] = str(error)
    return found


async def force_master(console: Console, by: Actor, group: GroupView, target: int) -> str:
    """Make a member the master although it may lack messages, and return the possible loss."""
    member = group.member(target)
    if member is None or not member.answers:
        raise LocalError("this member does not answer")
    price = await console.admin.force_master(member.address, preview=True)
    after = json.dumps({"broker": member.broker_id})
    async with console.audited(by, "group.force-master", group.name, before=price, after=after):
        await console.admin.force_master(member.address, preview=False)
    await _wait_served(console, group.name, member.broker_id)
    return price
