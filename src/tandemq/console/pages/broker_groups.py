"""Broker groups: configuration with roles and permissions, its publication, history; switch and forced takeover."""

import re
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.responses import Response

from tandemq.console.cluster.failovers import words_of
from tandemq.console.cluster.picture import GroupView
from tandemq.console.operations import broker_groups as operations
from tandemq.console.pages.topics import confirmation
from tandemq.console.services import wall_ms
from tandemq.console.visit import Visit
from tandemq.console.web.forms import Fields, whole_number
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
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import AuditEntry, entries
from tandemq.groupdb.database import RevisionConflict
from tandemq.groupdb.publications import publishers

HISTORY_MAX = 100
_NAMED = re.compile(r"^brokers? (-?\d+)")


@dataclass(slots=True)
class GroupForm:
    """The form of a group as it was filled in, with its faults."""

    mode: str
    members: list[dict[str, str]]
    revision: int
    config: GroupConfig | None = None
    """Configuration that the form describes; None if a field has an invalid value."""
    faults: list[str] = field(default_factory=list)
    member_faults: dict[int, list[str]] = field(default_factory=dict)
    """Number of a line to its faults."""


# Looking.


async def show_all(visit: Visit) -> Response:
    """List the groups."""
    running = await visit.console.run(publishers, visit.console.database, wall_ms())
    return visit.page("broker_groups.html", lines=await operations.group_lines(visit.console), publishers=running)


async def show(visit: Visit) -> Response:
    """Show a group: picture, configuration, publication, history."""
    line = await operations.group_line(visit.console, visit.part("name"))
    console = visit.console
    return visit.page(
        "broker_group.html",
        line=line,
        group=line.view,
        publishers=await console.run(publishers, console.database, wall_ms()),
        failover=console.watch.last_failover(line.name),
        history=history(console.watch.timeline(line.name), await console.run(_audit, visit, line.name)),
    )


def _audit(visit: Visit, name: str) -> list[AuditEntry]:
    with visit.console.database.transaction() as connection:
        found = entries(connection, count=HISTORY_MAX, text=name)
    return [entry for entry in found if entry.target == name]


def history(timeline: list[dict[str, Any]], audit: list[AuditEntry]) -> list[dict[str, Any]]:
    """Join the role changes that brokers have recorded with the entries of the audit log, newest first."""
    changes = [
        {
            "ms": entry["ms"],
            "who": Phrase("broker {ids}", {"ids": ", ".join(map(str, entry["brokers"]))}),
            "what": words_of(str(entry["text"])),
        }
        for entry in timeline
    ]
    orders = [
        {
            "ms": entry.at_ms,
            "who": Phrase("{text}", {"text": f"{entry.by.name} {entry.by.address}".strip()}),
            "what": Phrase("{text}", {"text": f"{entry.action}: {entry.outcome}"}),
        }
        for entry in audit
    ]
    return sorted(changes + orders, key=lambda entry: entry["ms"], reverse=True)[:HISTORY_MAX]


# Changing the configuration.


async def new_form(visit: Visit) -> Response:
    """Show the form for a new group."""
    members = [_member_texts(GroupMember(0, Role.MASTER)), _member_texts(GroupMember(1, Role.SLAVE))]
    return _form_page(visit, "", "", GroupForm(Mode.ELECT.value, members, 0))


async def edit_form(visit: Visit) -> Response:
    """Show the form with the stored configuration."""
    line = await operations.group_line(visit.console, visit.part("name"))
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
        permissions=[permission.value for permission in BrokerPermission],
        **values,
    )


def read_form(fields: Fields) -> GroupForm:
    """Return the form as it was filled in, with all faults; lines without an id are left out."""
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
        form.config = GroupConfig(Mode(form.mode), tuple(member for member in members if member is not None))
        _add_contradictions(form, form.config)
    return form


def _read_member(form: GroupForm, number: int) -> GroupMember | None:
    line, wrong = form.members[number], []
    numbers: dict[str, int] = {}
    for name in ("id", "weight", "priority"):
        try:
            numbers[name] = whole_number(name, line[name], -(1 << 63))
        except ConfigError as error:
            wrong.append(str(error))
    if line["role"] not in [role.value for role in Role]:
        wrong.append("role: choose one")
    if line["permission"] not in [permission.value for permission in BrokerPermission]:
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
    """Show the changes, then save them; if another user has saved meanwhile, show both versions."""
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
        await operations.save_group(console, visit.actor, cluster, name, config, form.revision)
    except RevisionConflict as error:
        current = error.current
        form = replace(form, revision=current.revision if current is not None else 0)
        return _form_page(visit, name, cluster, form, 409, why=str(error), conflict=current)
    return visit.to(f"/groups/{segment(name)}")


async def remove_form(visit: Visit) -> Response:
    """Show the effect of removing a configuration."""
    line = await operations.group_line(visit.console, visit.part("name"))
    facts = [Phrase("The state of its brokers is kept, so that epochs continue. It is refused while a broker runs.")]
    action = f"/groups/{segment(line.name)}/remove"
    return confirmation(visit, "Remove the configuration of {name}", line.name, facts, action)


async def remove(visit: Visit) -> Response:
    """Remove a configuration, after the group's name was typed."""
    name = visit.part("name")
    visit.require_typed(name)
    await operations.remove_group(visit.console, visit.actor, name)
    return visit.to("/groups")


# Changing the master.


async def _running(visit: Visit) -> GroupView:
    return await operations.running_group(visit.console, visit.part("name"))


async def switch_form(visit: Visit) -> Response:
    """Show which members can become the master."""
    return visit.page("switch.html", group=await _running(visit))


async def switch(visit: Visit) -> Response:
    """Make another member the master, after the group's name was typed."""
    group = await _running(visit)
    visit.require_typed(group.name)
    target = visit.form.integer("target", high=(1 << 31) - 1)
    await operations.switch_master(visit.console, visit.actor, group, target)
    return visit.to(f"/groups/{segment(group.name)}")


async def force_form(visit: Visit) -> Response:
    """Show the possible loss of a forced takeover, for each member that answers."""
    group = await _running(visit)
    found = await operations.preview_takeover(visit.console, group)
    return visit.page("force.html", group=group, prices=found.prices, refusals=found.refusals)


async def force(visit: Visit) -> Response:
    """Force a member to serve, after the group's name was typed."""
    group = await _running(visit)
    visit.require_typed(group.name)
    target = visit.form.integer("target", high=(1 << 31) - 1)
    await operations.force_master(visit.console, visit.actor, group, target)
    return visit.to(f"/groups/{segment(group.name)}")
