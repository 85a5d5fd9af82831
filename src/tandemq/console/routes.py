"""The pages, each with its method, address and role. What is not here does not exist."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.responses import Response

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.pages import account, messages, overview
from tandemq.console.visit import Visit

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


_ONE = "/messages/{topic}/{broker}/{queue:int}/{offset:int}"

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
    Page("GET", "/", VIEWER, overview.show),
    Page("GET", "/live", VIEWER, overview.live, is_api=True),
    Page("GET", "/messages", VIEWER, messages.find),
    Page("GET", _ONE, VIEWER, messages.show),
    Page("GET", f"{_ONE}/body", VIEWER, messages.body),
    Page("POST", f"{_ONE}/resend", OPERATOR, messages.resend),
)
