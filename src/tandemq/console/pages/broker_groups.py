"""Broker groups: configuration with roles and permissions, its publication, history; switch and forced takeover."""

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
from starlette.responses import Response

from tandemq.console.cluster.picture import GroupView
from tandemq.console.pages.topics import confirmation
from tandemq.console.services import wall_ms
from tandemq.console.visit import NotFound, Visit
from tandemq.console.web.forms import Fields
from tandemq.console.web.render import segment
from tandemq.console.web.translation import Phrase
from tandemq.coordination.registry.records import (
    MEMBERS_MAX,
    BrokerPermission,
    GroupConfig,
    GroupMember,
    Mode,
    Role,
    check_name,
    contradictions,
)
from tandemq.errors import ConfigError, LocalError, TandemError
from tandemq.groupdb.audit import AuditEntry, entries
from tandemq.groupdb.database import RevisionConflict, StoredGroup
from tandemq.groupdb.publications import Publication, publications, publishers

HISTORY_MAX = 100
SERVED_S = 5.0
POLL_S = 0.2
_NAMED = re.compile(r"^brokers? (-?\d+)")


@dataclass(frozen=True, slots=True)
class GroupLine:
    """A group in the list: what is configured, and what runs."""

    name: str
    stored: StoredGroup | None
    view: GroupView | None
    publication: Publication | None = None


@dataclass(slots=True)
class GroupForm:
    """The form of a group as it was filled in, with what is wrong."""

    mode: str
    members: list[dict[str, str]]
    revision: int
    config: GroupConfig | None = None
    """What the form says; None if a field is no value at all."""
    faults: list[str] = field(default_factory=list)
    member_faults: dict[int, list[str]] = field(default_factory=dict)
    """What is wrong with a line, by its number."""


# Looking.


async def _lines(visit: Visit) -> list[GroupLine]:
    console = visit.console
    view = await console.watch.view()
    stored = {group.broker_name: group for group in await console.run(console.database.groups)}
    published = {one.broker_name: one for one in await console.run(publications, console.database)}
    names = sorted(stored.keys() | {group.name for group in view.groups})
    return [GroupLine(name, stored.get(name), view.group(name), published.get(name)) for name in names]


async def _line(visit: Visit) -> GroupLine:
    name = visit.part("name")
    for line in await _lines(visit):
        if line.name == name:
            return line
    raise NotFound("there is no such broker group")


async def show_all(visit: Visit) -> Response:
    """List the groups."""
    running = await visit.console.run(publishers, visit.console.database, wall_ms())
    return visit.page("broker_groups.html", lines=await _lines(visit), publishers=running)


async def show(visit: Visit) -> Response:
    """Show a group: picture, configuration, publication, history."""
    line = await _line(visit)
    console = visit.console
    return visit.page(
        "broker_group.html",
        line=line,
        group=line.view,
        publishers=await console.run(publishers, console.database, wall_ms()),
        history=history(console.watch.timeline(line.name), await console.run(_audit, visit, line.name)),
    )


def _audit(visit: Visit, name: str) -> list[AuditEntry]:
    with visit.console.database.transaction() as connection:
        found = entries(connection, count=HISTORY_MAX, text=name)
    return [one for one in found if one.target == name]


def history(timeline: list[dict[str, Any]], audit: list[AuditEntry]) -> list[dict[str, Any]]:
    """Join the role changes that brokers have recorded with the entries of the audit log, newest first."""
    changes = [
        {"ms": entry["ms"], "who": f"broker {', '.join(map(str, entry['brokers']))}", "what": entry["text"]}
        for entry in timeline
    ]
    orders = [
        {"ms": one.at_ms, "who": f"{one.by.name} {one.by.address}".strip(), "what": f"{one.action}: {one.outcome}"}
        for one in audit
    ]
    return sorted(changes + orders, key=lambda entry: entry["ms"], reverse=True)[:HISTORY_MAX]


# Changing the configuration.


async def new_form(visit: Visit) -> Response:
    """Show the form for a new group."""
    members = [_member_texts(GroupMember(0, Role.MASTER)), _member_texts(GroupMember(1, Role.SLAVE))]
    return _form_page(visit, "", "", GroupForm(Mode.ELECT.value, members, 0))


async def edit_form(visit: Visit) -> Response:
    """Show the form with the stored configuration."""
    line = await _line(visit)
    cluster = line.view.cluster if line.view is not None else ""
    if line.stored is None or line.stored.config is None:
        ids = [member.broker_id for member in line.view.members] if line.view is not None else [0, 1]
        members = [_member_texts(GroupMember(each, Role.SLAVE if each else Role.MASTER)) for each in ids]
        mode = line.view.mode if line.view is not None and line.view.mode else Mode.ELECT.value
        revision = line.stored.revision if line.stored is not None else 0
        return _form_page(visit, line.name, cluster, GroupForm(mode, members, revision))
    stored, config = line.stored, line.stored.config
    members = [_member_texts(member) for member in config.members]
    return _form_page(visit, line.name, stored.cluster, GroupForm(config.mode.value, members, stored.revision))


def _member_texts(member: GroupMember) -> dict[str, str]:
    return {
        "id": str(member.broker_id),
        "role": member.role.value,
        "permission": member.permission.value,
        "weight": str(member.weight),
        "priority": str(member.priority),
    }


def _form_page(visit: Visit, name: str, cluster: str, form: GroupForm, status: int = 200, **more: Any) -> Response:
    blank = {"id": "", "role": "slave", "permission": "FULL", "weight": "100", "priority": "0"}
    values: dict[str, Any] = {"why": "", "conflict": None, "before": None, "preview": False, **more}
    lines = form.members if values["preview"] else [*form.members, blank]
    return visit.page(
        "broker_group_edit.html",
        status,
        name=name,
        cluster=cluster or "DefaultCluster",
        form=form,
        lines=lines[:MEMBERS_MAX],
        modes=[mode.value for mode in Mode],
        roles=[role.value for role in Role],
        permissions=[one.value for one in BrokerPermission],
        **values,
    )


def read_form(fields: Fields) -> GroupForm:
    """Return the form as it was filled in, with everything that is wrong; lines without an id are left out."""
    names = ("id", "role", "permission", "weight", "priority")
    columns = {name: [value.strip() for value in fields.all(name)][:MEMBERS_MAX] for name in names}
    if len({len(column) for column in columns.values()}) != 1:
        raise ConfigError("the lines of the form are not complete")
    lines = [dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    form = GroupForm(
        fields.text("mode"), [line for line in lines if line["id"]], fields.integer("revision", 0, high=(1 << 31) - 1)
    )
    members = [_read_member(form, number) for number in range(len(form.members))]
    if form.mode not in [mode.value for mode in Mode]:
        form.faults.append("mode: choose a mode")
    elif not form.member_faults:
        form.config = GroupConfig(Mode(form.mode), tuple(one for one in members if one is not None))
        _add_contradictions(form, form.config)
    return form


def _read_member(form: GroupForm, number: int) -> GroupMember | None:
    line, wrong = form.members[number], []
    numbers: dict[str, int] = {}
    for name in ("id", "weight", "priority"):
        try:
            numbers[name] = int(line[name])
        except ValueError:
            wrong.append(f"{name}: a whole number is expected, not {line[name][:20]!r}")
    if line["role"] not in [role.value for role in Role]:
        wrong.append("role: choose one")
    if line["permission"] not in [one.value for one in BrokerPermission]:
        wrong.append("permission: choose one")
    if wrong:
        form.member_faults[number] = wrong
        return None
    return GroupMember(
        numbers["id"], Role(line["role"]), BrokerPermission(line["permission"]), numbers["weight"], numbers["priority"]
    )


def _add_contradictions(form: GroupForm, config: GroupConfig) -> None:
    """Put each fault beside the line that it is about, if it names one."""
    lines = {member.broker_id: number for number, member in reversed(list(enumerate(config.members)))}
    for text in contradictions(config):
        named = _NAMED.match(text)
        number = lines.get(int(named[1])) if named is not None else None
        if number is None:
            form.faults.append(text)
        else:
            form.member_faults.setdefault(number, []).append(text)


async def save(visit: Visit) -> Response:
    """Show what would change, then save it; if another user has saved meanwhile, show both versions."""
    fields, console = visit.form, visit.console
    name, cluster = fields.text("name"), fields.text("cluster")
    form = read_form(fields)
    try:
        check_name("broker name", name)
        check_name("cluster name", cluster)
    except ConfigError as error:
        form.faults.append(str(error))
    if form.faults or form.member_faults or form.config is None:
        return _form_page(visit, name, cluster, form, 400)
    config = form.config
    stored = await console.run(console.database.group, cluster, name)
    if fields.text("step") != "save":
        before = stored.config if stored is not None else None
        return _form_page(visit, name, cluster, form, preview=True, before=before)
    try:
        await console.run(
            console.database.change,
            cluster,
            name,
            lambda _: config,
            wall_ms=wall_ms(),
            by=visit.actor,
            expected_revision=form.revision,
        )
    except RevisionConflict as error:
        current = error.current
        form = replace(form, revision=current.revision if current is not None else 0)
        return _form_page(visit, name, cluster, form, 409, why=str(error), conflict=current)
    return visit.to(f"/groups/{segment(name)}")


async def remove_form(visit: Visit) -> Response:
    """Show what the removal of a configuration means."""
    line = await _line(visit)
    facts = [Phrase("The state of its brokers is kept, so that epochs continue. It is refused while a broker runs.")]
    action = f"/groups/{segment(line.name)}/remove"
    return confirmation(visit, "Remove the configuration of {name}", line.name, facts, action)


async def remove(visit: Visit) -> Response:
    """Remove a configuration."""
    line, console = await _line(visit), visit.console
    visit.require_typed(line.name)
    if line.stored is None:
        raise NotFound("this group is not configured here")
    await console.run(
        console.database.change,
        line.stored.cluster,
        line.name,
        lambda _: None,
        wall_ms=wall_ms(),
        by=visit.actor,
        expected_revision=line.stored.revision,
    )
    return visit.to("/groups")


# Changing the master.


async def _running(visit: Visit) -> GroupView:
    view = (await visit.console.watch.fresh()).group(visit.part("name"))
    if view is None:
        raise NotFound("there is no such broker group")
    if not view.has_registry:
        raise LocalError("the roles of this group are fixed by its brokers' settings")
    return view


async def switch_form(visit: Visit) -> Response:
    """Show which members can become the master."""
    return visit.page("switch.html", group=await _running(visit))


async def switch(visit: Visit) -> Response:
    """Make another member the master, after the group's name was typed."""
    group, console = await _running(visit), visit.console
    visit.require_typed(group.name)
    target, master = visit.form.integer("target", high=(1 << 31) - 1), group.master
    if master is None:
        raise LocalError("the group has no active master", hint="a forced takeover replaces one that is lost for good")
    async with console.audited(
        visit.actor, "group.switch", group.name, before=str(master.broker_id), after=str(target)
    ):
        await console.admin.switch_master(master.address, target)
    await _wait_served(visit, group.name, target)
    return visit.to(f"/groups/{segment(group.name)}")


async def _wait_served(visit: Visit, name: str, broker_id: int) -> None:
    """Wait until the picture has the new master, so that the next page shows it; at most `SERVED_S`."""
    with anyio.move_on_after(SERVED_S):
        while True:
            view = (await visit.console.watch.fresh()).group(name)
            if view is not None and view.master is not None and view.master.broker_id == broker_id:
                return
            await anyio.sleep(POLL_S)


async def force_form(visit: Visit) -> Response:
    """Show what a forced takeover may lose, for each member that answers."""
    group = await _running(visit)
    prices: dict[int, str] = {}
    refusals: dict[int, str] = {}
    for member in group.members:
        if member.answers and not member.is_master:
            try:
                prices[member.broker_id] = await visit.console.admin.force_master(member.address, preview=True)
            except TandemError as error:  # it refuses, for instance because a master is active
                refusals[member.broker_id] = str(error)
    return visit.page("force.html", group=group, prices=prices, refusals=refusals)


async def force(visit: Visit) -> Response:
    """Force a member to serve, after the group's name was typed."""
    group, console = await _running(visit), visit.console
    visit.require_typed(group.name)
    member = group.member(visit.form.integer("target", high=(1 << 31) - 1))
    if member is None or not member.answers:
        raise LocalError("this member does not answer")
    price = await console.admin.force_master(member.address, preview=True)
    async with console.audited(
        visit.actor, "group.force-master", group.name, before=price, after=json.dumps({"broker": member.broker_id})
    ):
        await console.admin.force_master(member.address, preview=False)
    await _wait_served(visit, group.name, member.broker_id)
    return visit.to(f"/groups/{segment(group.name)}")
