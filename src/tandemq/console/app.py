"""The application: checks before a page is shown, and the headers of every response.

    request ─► host name ─► base path ─► account and role ─► for a POST: origin, token, fields ─► page ─► headers

* The `Host` header must name this console, also for streams, so that a foreign name that leads here (DNS rebinding)
  sees nothing.
* Every page needs a session with the role in `routes`, except those listed there as public.
* A POST must come from a page of the same origin (`Sec-Fetch-Site`, or an equal `Origin`) and contain the session's
  token. Nothing else changes anything.
* The content security policy allows scripts, styles, images and connections of this origin only, and nothing inline.

Source: docs/guides/console.md, "Security".
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from hmac import compare_digest
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tandemq.console.access.accounts import User, csrf_token
from tandemq.console.api.endpoint import api_endpoints, problem
from tandemq.console.api.openapi import BASE
from tandemq.console.routes import PAGES, Page, base_path
from tandemq.console.services import Console, NotFound, wall_ms
from tandemq.console.visit import Visit, base_of, cookie_name, path_of
from tandemq.console.web.forms import FORM_BYTES_MAX, parse_fields
from tandemq.console.web.render import STATIC
from tandemq.console.web.translation import LANGUAGES, Phrase, preferred, say, translate
from tandemq.errors import ConfigError, LocalError, NetworkError, NoRoute, TandemError

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
_NEVER_STORED = (b"cache-control", b"no-store")
_STORED_FOR_EVER = (b"cache-control", b"public, max-age=31536000, immutable")
_KEPT = frozenset({200, 206, 304})
"""Statuses of static files that browsers and proxies may store; refusals are not."""
_HSTS = (b"strict-transport-security", b"max-age=31536000")


def build_app(console: Console) -> ASGIApp:
    """Return the application."""
    routes: list[Route | Mount] = [
        Route(page.path, _guarded(console, page), methods=[page.method], name=page.name) for page in PAGES
    ]
    for path, (endpoint, methods) in api_endpoints(console, partial(_address_of, console)).items():
        routes.append(Route(path, endpoint, methods=methods))
    routes.append(Mount("/static", StaticFiles(directory=STATIC)))
    return _Shield(Starlette(routes=routes, exception_handlers={404: _not_found, 405: _wrong_method}), console)


async def _not_found(request: Request, _error: Exception) -> Response:
    if path_of(request).startswith(f"{BASE}/"):
        return problem(404, f"there is no such address; see {base_of(request)}{BASE}/openapi.json")
    return PlainTextResponse("There is no such page.", 404)


async def _wrong_method(request: Request, error: Exception) -> Response:
    headers = getattr(error, "headers", None)
    if path_of(request).startswith(f"{BASE}/"):
        return problem(405, f"the method {request.method[:20]} is not allowed here", headers)
    return PlainTextResponse("This method is not allowed here.", 405, headers)


class _Shield:
    """Checks host names, and adds headers to all responses."""

    def __init__(self, app: ASGIApp, console: Console) -> None:
        self._app = app
        self._console = console

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope, fault = self._rooted(scope)
        path = scope["path"].removeprefix(scope["root_path"])
        is_static = path.startswith("/static/")
        extra = [*_HEADERS, _HSTS] if self._console.settings.is_secure else _HEADERS

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                is_kept = is_static and message["status"] in _KEPT
                stored = _STORED_FOR_EVER if is_kept else _NEVER_STORED
                message["headers"] = [*message.get("headers", ()), *extra, stored]
            await send(message)

        status = 400
        if not self._is_known_host(scope):
            status, fault = 421, "this console is not known under this host name; see --host-name"
        if fault:
            is_api = path.startswith(f"{BASE}/")
            refusal = (
                problem(status, fault) if is_api else PlainTextResponse(f"{fault[0].upper()}{fault[1:]}.\n", status)
            )
            await refusal(scope, receive, with_headers)
            return
        with suppress(ClientDisconnect):  # within the body of its request
            await self._app(scope, receive, with_headers)

    def _rooted(self, scope: Scope) -> tuple[Scope, str]:
        """Return the request with the base path as `root_path` and at the start of `path`, as ASGI wants it, whether
        the proxy has removed it or not; and the fault of the base path, "" if there is none."""
        settings, fault = self._console.settings, ""
        base = settings.base_path
        peer = scope["client"][0] if scope.get("client") else ""
        given = [value.decode("latin-1").strip() for name, value in scope["headers"] if name == b"x-forwarded-prefix"]
        if given and given[-1] and peer in settings.proxies:  # an empty one sets nothing
            try:
                base = base_path(given[-1])
            except ConfigError as error:
                fault = f"X-Forwarded-Prefix: {error}"
        path = scope["path"]
        if path == base or path.startswith(f"{base}/"):
            path = path.removeprefix(base)
        return {**scope, "root_path": base, "path": base + (path or "/")}, fault

    def _is_known_host(self, scope: Scope) -> bool:
        found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        return len(found) == 1 and _host_of(found[0]) in self._console.settings.hosts


def _host_of(text: str) -> str:
    """Return a host without its port."""
    name, colon, port = text.lower().rpartition(":")
    return name if colon and port.isdecimal() and (not name.startswith("[") or name.endswith("]")) else text.lower()


def _guarded(console: Console, page: Page) -> Callable[[Request], Awaitable[Response]]:
    """Return a page behind the checks."""

    async def endpoint(request: Request) -> Response:
        visit = await _visit(console, request)
        refusal = _refusal(visit, page)
        if refusal is not None:
            return refusal
        try:
            visit.query = parse_fields(request.url.query.encode())
            if request.method != "GET":
                fault = await _read_form(visit, page)
                if fault:
                    return _failed(visit, page, 403, fault)
            return await page.show(visit)
        except NotFound as error:
            return _failed(visit, page, 404, str(error))
        except NoRoute as error:
            return _failed(visit, page, 404, str(error))
        except LocalError as error:
            return _failed(visit, page, 400, str(error))
        except NetworkError as error:
            return _failed(visit, page, 504, str(error))
        except TandemError as error:
            return _failed(visit, page, 502, str(error))

    return endpoint


async def _visit(console: Console, request: Request) -> Visit:
    session_id = request.cookies.get(cookie_name(is_secure=console.settings.is_secure, base=base_of(request)), "")[:128]
    user: User | None = None
    if session_id:
        user = await console.run(console.accounts.user_of, session_id, wall_ms())
    language = user.language if user is not None else ""
    if language not in LANGUAGES:
        language = preferred(request.headers.get("accept-language", ""))
    csrf = csrf_token(session_id) if user is not None else ""
    return Visit(request, console, _address_of(console, request), user, session_id, csrf, language)


def _address_of(console: Console, request: Request) -> str:
    """Return the browser's address; the last one that a known proxy has added."""
    peer = request.client.host if request.client is not None else ""
    forwarded = request.headers.get("x-forwarded-for", "")
    if peer in console.settings.proxies and forwarded:
        return forwarded.split(",")[-1].strip()[:127]
    return peer


def _refusal(visit: Visit, page: Page) -> Response | None:
    """Return the response to a user who may not see the page; None if the user may."""
    if page.role is None:
        return None
    if visit.user is None:
        if page.is_api:
            return problem(401, "log in first")
        if page.method != "GET":
            why = translate(visit.language, "your session has ended")
            return visit.page("error.html", 401, title="Log in", why=why)
        return visit.to(f"/login?next={quote(_here(visit), safe='')}")
    if visit.user.role < page.role:
        return _failed(visit, page, 403, Phrase("this needs the role {role}", {"role": Phrase(page.role.text)}))
    return None


def _here(visit: Visit) -> str:
    url = visit.request.url
    return path_of(visit.request) + (f"?{url.query}" if url.query else "")


async def _read_form(visit: Visit, page: Page) -> str:
    """Read the fields of a POST; return why it is refused, "" if it is not."""
    request = visit.request
    if not _is_same_origin(request):
        return "the request does not come from a page of this console"
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            return f"the form has more than {FORM_BYTES_MAX} bytes"
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded" and body:
        return f"the content type {kind[:60]!r} is not that of a form"
    visit.form = parse_fields(body)
    if page.role is not None:
        token = visit.form.text("csrf") or request.headers.get("x-csrf-token", "")
        if not compare_digest(token.encode(), visit.csrf.encode()):
            return "the form does not belong to this session: open the page again"
    return ""


def _is_same_origin(request: Request) -> bool:
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if site is not None and site != "same-origin":
        return False
    if origin is not None and origin.partition("://")[2] != own.partition("://")[2]:
        return False
    return site is not None or origin is not None


def _failed(visit: Visit, page: Page, status: int, reason: str | Phrase) -> Response:
    why = reason if isinstance(reason, Phrase) else Phrase(reason)
    if page.is_api:
        return problem(status, say("en", why))
    title = "Refused" if status == 403 else "Not found" if status == 404 else "Failed"
    values = {"title": title, "why": say(visit.language, why)}
    return HTMLResponse(visit.text("error.html", **values), status)
