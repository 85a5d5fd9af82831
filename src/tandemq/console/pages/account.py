"""Log in and out, the first user, one's own account."""

from secrets import compare_digest
from typing import Any

from starlette.responses import Response

from tandemq.console.access.accounts import IDLE_MS, SESSION_MS, ConsoleRole, User
from tandemq.console.services import NotFound, wall_ms
from tandemq.console.visit import Visit, cookie_name, local_path
from tandemq.console.web.translation import LANGUAGES, translate
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import Actor


async def login_form(visit: Visit) -> Response:
    """Show the form."""
    if visit.user is not None:
        return visit.to("/")
    return visit.page("login.html", why="", name="", next=local_path(visit.query.text("next", "/")))


async def login(visit: Visit) -> Response:
    """Begin a session with a new id, which does not depend on the browser's cookie."""
    console, form = visit.console, visit.form
    name, target = form.text("name")[:64], local_path(form.text("next", "/"))
    wait_ms = console.throttle.wait_ms(name, visit.address, wall_ms())
    if wait_ms:
        seconds = wait_ms // 1000 + 1
        why = translate(visit.language, "Too many failed attempts. Try again in {seconds} s.", seconds=seconds)
        response = visit.page("login.html", 429, why=why, name=name, next=target)
        response.headers["Retry-After"] = str(seconds)
        return response
    # Counted before the hash is computed, so that attempts made at the same time count too.
    console.throttle.failed(name, visit.address, wall_ms())
    user = await console.run_hash(console.accounts.login, name, form.raw("password")[:1_000])
    if user is None:
        why = translate(visit.language, "User name or password is wrong.")
        return visit.page("login.html", 403, why=why, name=name, next=target)
    console.throttle.succeeded(name, visit.address)
    return await _begin(visit, user, target)


async def _begin(visit: Visit, user: User, target: str) -> Response:
    console = visit.console
    if visit.session_id:
        await console.run(console.accounts.close_session, visit.session_id)
    session_id = await console.run(console.accounts.open_session, user, visit.address, wall_ms())
    response = visit.to(target)
    response.set_cookie(max_age=SESSION_MS // 1000, value=session_id, **_cookie(visit))
    return response


def _cookie(visit: Visit) -> dict[str, Any]:
    is_secure = visit.console.settings.is_secure
    name = cookie_name(is_secure=is_secure, base=visit.base)
    return {"key": name, "path": visit.base or "/", "httponly": True, "secure": is_secure, "samesite": "strict"}


async def logout(visit: Visit) -> Response:
    """End the session."""
    await visit.console.run(visit.console.accounts.close_session, visit.session_id)
    response = visit.to("/login")
    response.delete_cookie(**_cookie(visit))
    return response


# The first user.


def _check_link(visit: Visit) -> None:
    console = visit.console
    given = visit.part("token")
    if not (console.setup_token and compare_digest(given.encode(), console.setup_token.encode())):
        raise NotFound("this link is not valid, or it was used")
    if wall_ms() > console.setup_until_ms:
        raise NotFound("this link has expired; restart the console for a new one")


async def setup_form(visit: Visit) -> Response:
    """Show the form for the first user to a visitor with the one-time link."""
    _check_link(visit)
    return visit.page("setup.html", why="", name="")


async def setup(visit: Visit) -> Response:
    """Create the first user, an admin, and log in."""
    _check_link(visit)
    console, name = visit.console, visit.form.text("name")
    token, console.setup_token = console.setup_token, ""  # no second request gets through meanwhile
    try:
        if await console.run(console.accounts.users):
            raise NotFound("there is a user already: log in")
        actor = Actor(f"{name[:64]} (first user)", visit.address)
        user = await console.run_hash(
            console.accounts.add, name, ConsoleRole.ADMIN, visit.form.raw("password"), actor, wall_ms()
        )
    except ConfigError as error:
        console.setup_token = token
        return visit.page("setup.html", 400, why=str(error), name=name)
    return await _begin(visit, user, "/")


# The own account.


def own_user(visit: Visit) -> User:
    """Return the user of the session."""
    assert visit.user is not None, "the page needs a session"
    return visit.user


async def me(visit: Visit) -> Response:
    """Show preferences, sessions and tokens."""
    return await show_account(visit)


async def show_account(visit: Visit, made: str = "") -> Response:
    """Show the page of the account. `made`: a token that was just made."""
    console, user = visit.console, own_user(visit)
    return visit.page(
        "me.html",
        sessions=await console.run(console.accounts.sessions_of, user.name, wall_ms()),
        tokens=await console.run(console.tokens.tokens, wall_ms(), user.name),
        roles=[role.text for role in ConsoleRole if role <= user.role],
        made=made,
        idle_ms=IDLE_MS,
    )


async def set_preferences(visit: Visit) -> Response:
    """Store language and theme."""
    language, theme = visit.form.text("language"), visit.form.text("theme")
    if language not in ("", *LANGUAGES) or theme not in ("", "light", "dark"):
        raise ConfigError("language or theme is unknown")
    await visit.console.run(visit.console.accounts.set_preferences, own_user(visit).name, language, theme)
    return visit.to("/me")


async def set_password(visit: Visit) -> Response:
    """Change the own password; other sessions end."""
    console, user = visit.console, own_user(visit)
    await check_password(visit, visit.form.raw("old"))
    new = visit.form.raw("new")
    await console.run_hash(console.accounts.set_password, user.name, new, visit.actor, wall_ms(), keep=visit.session_id)
    return visit.to("/me")


async def check_password(visit: Visit, password: str) -> None:
    """Check the present password of the user; failed attempts count as those of the login.

    Raises:
        ConfigError: it is wrong, or there were too many attempts.
    """
    console, user = visit.console, own_user(visit)
    wait_ms = console.throttle.wait_ms(user.name, visit.address, wall_ms())
    if wait_ms or await console.run_hash(console.accounts.login, user.name, password[:1_000]) is None:
        console.throttle.failed(user.name, visit.address, wall_ms())
        raise ConfigError("the present password is wrong")


async def end_sessions(visit: Visit) -> Response:
    """End the user's other sessions."""
    await visit.console.run(visit.console.accounts.close_others, own_user(visit).name, visit.session_id)
    return visit.to("/me")
