"""Tokens of the JSON API: a user's own on the page of the account, all of them on the page of users."""

from starlette.responses import Response

from tandemq.console.access.accounts import ROLES
from tandemq.console.pages.account import check_password, own_user, show_account
from tandemq.console.services import wall_ms
from tandemq.console.visit import Visit
from tandemq.errors import ConfigError

DAYS = 90
"""Validity that the form proposes."""


async def create(visit: Visit) -> Response:
    """Make a token and show it, once; the present password is needed, so that an open browser is not enough."""
    console, form, user = visit.console, visit.form, own_user(visit)
    role = ROLES.get(form.text("role"))
    if role is None:
        raise ConfigError("role: choose viewer, operator or admin")
    days = form.integer("days", DAYS)
    await check_password(visit, form.raw("password"))
    secret, _ = await console.run(
        console.tokens.create, user.name, form.text("name"), role, days, visit.actor, wall_ms()
    )
    return await show_account(visit, made=secret)


async def revoke(visit: Visit) -> Response:
    """Revoke a token of the user."""
    console, user = visit.console, own_user(visit)
    await console.run(console.tokens.revoke, int(visit.part("number")), visit.actor, wall_ms(), user.name)
    return visit.to("/me")


async def revoke_any(visit: Visit) -> Response:
    """Revoke a token of any user."""
    console = visit.console
    await console.run(console.tokens.revoke, int(visit.part("number")), visit.actor, wall_ms())
    return visit.to("/users")
