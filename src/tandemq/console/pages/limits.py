"""Limits of users, topics and consumer groups: list, set, delete."""

from starlette.responses import Response

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.operations import limits as operations
from tandemq.console.pages.topics import suggested_topics, suggestible
from tandemq.console.visit import Visit
from tandemq.errors import ConfigError, RemoteError, TandemError
from tandemq.model.quota import CONNECTIONS_MAX, GROUP, IN_FLIGHT_MAX, RATE_MAX, TOPIC, USER, Kind, Quota

KINDS: tuple[Kind, ...] = (TOPIC, USER, GROUP)
ROWS = 50
_FIELDS = ("kind", "name", "messages", "bytes", "connections", "in_flight")


async def show(visit: Visit) -> Response:
    """Show the limits by text, in parts of `ROWS`, and to admins the form; with a kind and a name in the address that
    limit is filled in."""
    values = {name: visit.query.text(name) for name in _FIELDS}
    return await _page(visit, values, slows=False, prefill=True)


async def _page(
    visit: Visit, values: dict[str, str], *, slows: bool, prefill: bool = False, why: str = "", status: int = 200
) -> Response:
    rows: list[operations.LimitRow] = []
    try:
        rows = await operations.limits(visit.console)
    except RemoteError as error:  # a broker of another make, or one that does not permit it
        why, status = why or str(error), status if why else 502
    wanted = (values["kind"], values["name"])
    found = next((row.quota for row in rows if prefill and row.quota.key == wanted), None)
    if found is not None:
        numbers = (found.messages_per_second, found.bytes_per_second, found.connections, found.in_flight)
        values |= {name: str(number or "") for name, number in zip(_FIELDS[2:], numbers, strict=True)}
        slows = found.slows
    text = visit.query.text("q")
    listed = [row for row in rows if text.lower() in f"{row.quota.kind} {row.quota.name}".lower()]
    position = min(visit.query.integer("at", 0), max(0, len(listed) - 1))
    return visit.page(
        "limits.html",
        status,
        rows=listed[position : position + ROWS],
        q=text,
        at=position,
        total=len(listed),
        size=ROWS,
        kinds=KINDS,
        values={**values, "kind": values["kind"] or TOPIC},
        slows=slows,
        why=why,
        topics=await suggested_topics(visit.console) if visit.may(ConsoleRole.ADMIN) else [],
        groups=await _suggested_groups(visit) if visit.may(ConsoleRole.ADMIN) else [],
    )


async def _suggested_groups(visit: Visit) -> list[str]:
    try:
        return suggestible(row.name for row in await visit.console.tables.groups())
    except TandemError:  # only a suggestion
        return []


def _kind(visit: Visit) -> Kind:
    for kind in KINDS:
        if kind == visit.form.text("kind"):
            return kind
    raise ConfigError("kind: choose user, topic or group")


async def set_limit(visit: Visit) -> Response:
    """Set a limit. Fields of other kinds are not looked at."""
    form = visit.form
    try:
        kind = _kind(visit)
        quota = Quota(
            kind,
            form.text("name"),
            form.integer("messages", 0, high=RATE_MAX),
            form.integer("bytes", 0, high=RATE_MAX),
            form.integer("connections", 0, high=CONNECTIONS_MAX) if kind == USER else 0,
            form.integer("in_flight", 0, high=IN_FLIGHT_MAX) if kind == GROUP else 0,
            kind != GROUP and form.has("slows"),
        )
        await operations.set_limit(visit.console, visit.actor, quota)
    except ConfigError as error:
        values = {name: form.text(name) for name in _FIELDS}
        return await _page(visit, values, slows=form.has("slows"), why=str(error), status=400)
    return visit.to("/limits")


async def delete(visit: Visit) -> Response:
    """Delete a limit."""
    await operations.delete_limit(visit.console, visit.actor, _kind(visit), visit.form.text("name"))
    return visit.to("/limits")
