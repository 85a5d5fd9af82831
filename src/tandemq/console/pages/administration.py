"""Audit log and users: for admins."""

import csv
import io

from starlette.responses import Response

from tandemq.console.access.accounts import ROLES, ConsoleRole
from tandemq.console.services import wall_ms
from tandemq.console.visit import Visit
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import AuditEntry, entries

ROWS = 100
EXPORTED_MAX = 100_000


def _entries(visit: Visit, count: int) -> list[AuditEntry]:
    query = visit.query
    before = query.integer("before", 0, high=1 << 62)
    with visit.console.database.transaction() as connection:
        return entries(connection, count=count, before=before or None, text=query.text("q")[:200])


async def audit(visit: Visit) -> Response:
    """Show the audit log, newest first."""
    found = await visit.console.run(_entries, visit, ROWS + 1)
    more = found[ROWS - 1].number if len(found) > ROWS else 0
    return visit.page("audit.html", found=found[:ROWS], q=visit.query.text("q"), more=more)


async def export_audit(visit: Visit) -> Response:
    """Return the audit log as CSV. Cells that a spreadsheet would compute begin with an apostrophe."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(["number", "ms", "who", "address", "action", "cluster", "target", "before", "after", "outcome"])
    for entry in await visit.console.run(_entries, visit, EXPORTED_MAX):
        cells = [
            entry.by.name,
            entry.by.address,
            entry.action,
            entry.cluster,
            entry.target,
            entry.before,
            entry.after,
            entry.outcome,
        ]
        writer.writerow(
            [entry.number, entry.at_ms, *(f"'{cell}" if cell[:1] in "=+-@\t\r" and cell else cell for cell in cells)]
        )
    headers = {"content-disposition": 'attachment; filename="audit.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)


async def users(visit: Visit) -> Response:
    """List the users and their tokens."""
    console = visit.console
    return visit.page(
        "users.html",
        users=await console.run(console.accounts.users),
        tokens=await console.run(console.tokens.tokens, wall_ms()),
        roles=list(ROLES),
    )


def _role(visit: Visit) -> ConsoleRole:
    role = ROLES.get(visit.form.text("role"))
    if role is None:
        raise ConfigError("role: choose viewer, operator or admin")
    return role


async def add_user(visit: Visit) -> Response:
    """Add a user."""
    console, form = visit.console, visit.form
    await console.run_hash(
        console.accounts.add, form.text("name"), _role(visit), form.raw("password"), visit.actor, wall_ms()
    )
    return visit.to("/users")


async def set_role(visit: Visit) -> Response:
    """Change the role of a user."""
    console = visit.console
    await console.run(console.accounts.set_role, visit.part("name"), _role(visit), visit.actor, wall_ms())
    return visit.to("/users")


async def remove_user(visit: Visit) -> Response:
    """Remove a user, after the name was typed."""
    console, name = visit.console, visit.part("name")
    visit.require_typed(name)
    await console.run(console.accounts.remove, name, visit.actor, wall_ms())
    return visit.to("/users")
