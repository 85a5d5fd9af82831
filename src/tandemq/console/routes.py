"""All pages, each with its method, address and role."""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.pages import (
    account,
    administration,
    broker_groups,
    consumers,
    dead_letters,
    limits,
    messages,
    overview,
    pipeline,
    tail,
    tokens,
    topics,
)
from tandemq.console.visit import Visit
from tandemq.errors import ConfigError


class _NumberConvertor(Convertor[int]):
    """A number of at most 18 digits in an address; an address with a longer one does not exist."""

    regex = "[0-9]{1,18}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("number", _NumberConvertor())
VIEWER, OPERATOR, ADMIN = ConsoleRole.VIEWER, ConsoleRole.OPERATOR, ConsoleRole.ADMIN


@dataclass(frozen=True, slots=True)
class Page:
    """A page, or an action."""

    method: str
    path: str
    role: ConsoleRole | None
    """None: public."""
    show: Callable[[Visit], Awaitable[Response]]
    is_api: bool = False
    """Whether it answers with JSON or a stream: errors are no pages then."""

    @property
    def name(self) -> str:
        """Unique name."""
        return f"{self.method} {self.path}"


_ONE = "/messages/{topic}/{broker}/{queue:number}/{offset:number}"

PAGES = (
    Page("GET", "/login", None, account.login_form),
    Page("POST", "/login", None, account.login),
    Page("GET", "/setup/{token}", None, account.setup_form),
    Page("POST", "/setup/{token}", None, account.setup),
    Page("GET", "/healthz", None, overview.healthy, is_api=True),
    Page("POST", "/logout", VIEWER, account.logout),
    Page("GET", "/me", VIEWER, account.me),
    Page("POST", "/me", VIEWER, account.set_preferences),
    Page("POST", "/me/password", VIEWER, account.set_password),
    Page("POST", "/me/sessions", VIEWER, account.end_sessions),
    Page("POST", "/me/tokens", VIEWER, tokens.create),
    Page("POST", "/me/tokens/{number:number}/revoke", VIEWER, tokens.revoke),
    Page("GET", "/", VIEWER, overview.show),
    Page("GET", "/live", VIEWER, overview.live, is_api=True),
    Page("GET", "/messages", VIEWER, messages.find),
    Page("GET", _ONE, VIEWER, messages.show),
    Page("GET", f"{_ONE}/body", VIEWER, messages.body),
    Page("GET", f"{_ONE}/trace", VIEWER, messages.trace),
    Page("POST", f"{_ONE}/resend", OPERATOR, messages.resend),
    Page("GET", "/topics", VIEWER, topics.show_all),
    Page("POST", "/topics", OPERATOR, topics.create),
    Page("GET", "/topics/new", OPERATOR, topics.new_form),
    Page("GET", "/topics/{topic}", VIEWER, topics.show),
    Page("POST", "/topics/{topic}", OPERATOR, topics.change),
    Page("GET", "/topics/{topic}/delete", OPERATOR, topics.delete_form),
    Page("POST", "/topics/{topic}/delete", OPERATOR, topics.delete),
    Page("POST", "/topics/{topic}/send", OPERATOR, topics.send),
    Page("GET", "/topics/{topic}/tail", VIEWER, tail.show),
    Page("GET", "/topics/{topic}/tail/live", VIEWER, tail.live, is_api=True),
    Page("GET", "/consumers", VIEWER, consumers.show_all),
    Page("POST", "/consumers", OPERATOR, consumers.create),
    Page("GET", "/consumers/{group}", VIEWER, consumers.show),
    Page("GET", "/consumers/{group}/delete", OPERATOR, consumers.delete_form),
    Page("POST", "/consumers/{group}/delete", OPERATOR, consumers.delete),
    Page("GET", "/consumers/{group}/offsets", OPERATOR, consumers.offsets_form),
    Page("POST", "/consumers/{group}/offsets", OPERATOR, consumers.reset),
    Page("GET", "/consumers/{group}/dead", VIEWER, dead_letters.show),
    Page("POST", "/consumers/{group}/dead", OPERATOR, dead_letters.resend),
    Page("GET", "/consumers/{group}/dead.jsonl", VIEWER, dead_letters.export),
    Page("GET", "/limits", VIEWER, limits.show),
    Page("POST", "/limits", ADMIN, limits.set_limit),
    Page("POST", "/limits/delete", ADMIN, limits.delete),
    Page("GET", "/pipeline", VIEWER, pipeline.show),
    Page("GET", "/pipeline/reports/{number:number}", VIEWER, pipeline.report),
    Page("GET", "/groups", VIEWER, broker_groups.show_all),
    Page("POST", "/groups", ADMIN, broker_groups.save),
    Page("GET", "/groups/new", ADMIN, broker_groups.new_form),
    Page("GET", "/groups/{name}", VIEWER, broker_groups.show),
    Page("GET", "/groups/{name}/edit", ADMIN, broker_groups.edit_form),
    Page("GET", "/groups/{name}/remove", ADMIN, broker_groups.remove_form),
    Page("POST", "/groups/{name}/remove", ADMIN, broker_groups.remove),
    Page("GET", "/groups/{name}/switch", ADMIN, broker_groups.switch_form),
    Page("POST", "/groups/{name}/switch", ADMIN, broker_groups.switch),
    Page("GET", "/groups/{name}/force", ADMIN, broker_groups.force_form),
    Page("POST", "/groups/{name}/force", ADMIN, broker_groups.force),
    Page("GET", "/audit", ADMIN, administration.audit),
    Page("GET", "/audit.csv", ADMIN, administration.export_audit),
    Page("GET", "/users", ADMIN, administration.users),
    Page("POST", "/users", ADMIN, administration.add_user),
    Page("POST", "/users/{name}/role", ADMIN, administration.set_role),
    Page("POST", "/users/{name}/remove", ADMIN, administration.remove_user),
    Page("POST", "/tokens/{number:number}/revoke", ADMIN, tokens.revoke_any),
)

_BASE_PATH = re.compile(r"(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+", re.ASCII)
_BASE_PATH_MAX = 200
_OWN = frozenset({page.path.split("/")[1] for page in PAGES} | {"api", "static"}) - {""}


def base_path(text: str) -> str:
    """Return a path below which browsers reach the console, without a slash at its end; "" for the root.

    Raises:
        ConfigError: it is malformed, or begins as the address of a page does.
    """
    path = text.rstrip("/")
    if path and (len(path) > _BASE_PATH_MAX or _BASE_PATH.fullmatch(path) is None):
        raise ConfigError(f"{text[:80]!r} is not a base path; write it as /ops/tandemq")
    if path and path.split("/")[1] in _OWN:
        raise ConfigError(f"the base path {path} begins as a page of the console does; choose another first segment")
    return path
