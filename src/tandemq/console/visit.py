"""A visit: one request of a user, with the account, the fields, and the ways to respond."""

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from tandemq.console.access.accounts import ConsoleRole, User
from tandemq.console.services import Console, NotFound
from tandemq.console.web.forms import Fields
from tandemq.console.web.render import render
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import Actor
from tandemq.model.message import MessageQueue
from tandemq.model.topic import group_name_error, topic_name_error

SEE_OTHER = 303


@dataclass(slots=True)
class Visit:
    """One request. On public pages `user` is None."""

    request: Request
    console: Console
    address: str
    """IP address of the browser."""
    user: User | None
    session_id: str
    csrf: str
    language: str
    form: Fields = field(default_factory=lambda: Fields({}))
    """Fields of the body of a POST."""
    query: Fields = field(default_factory=lambda: Fields({}))
    """Fields of the address."""

    @property
    def base(self) -> str:
        """Path below which the browser reaches the console; "" for the root."""
        return base_of(self.request)

    @property
    def actor(self) -> Actor:
        """The user, for the audit log."""
        return Actor(self.user.name if self.user is not None else "", self.address)

    def may(self, role: ConsoleRole) -> bool:
        """Return whether the user has a role."""
        return self.user is not None and self.user.role >= role

    @property
    def sees_bodies(self) -> bool:
        """Whether the user may see bodies and properties of messages."""
        return self.may(ConsoleRole.OPERATOR) or not self.console.settings.hides_bodies

    def part(self, name: str) -> str:
        """Return a segment of the path. Raises NotFound if it contains the character 0, which databases refuse."""
        text = str(self.request.path_params[name])
        if "\0" in text:
            raise NotFound("there is no such address")
        return text

    def topic(self) -> str:
        """Return the topic in the path. Raises NotFound if it is not a valid name."""
        name = self.part("topic")
        if topic_name_error(name) is not None:
            raise NotFound("this is not the name of a topic")
        return name

    def group(self) -> str:
        """Return the consumer group in the path. Raises NotFound if it is not a valid name."""
        name = self.part("group")
        if group_name_error(name) is not None:
            raise NotFound("this is not the name of a group")
        return name

    def queue(self) -> MessageQueue:
        """Return the queue in the path."""
        return MessageQueue(self.topic(), self.part("broker"), int(self.part("queue")))

    def require_typed(self, expected: str) -> None:
        """Check that the user has typed a name to confirm an irreversible action.

        Raises:
            ConfigError: the text is another one; nothing was changed.
        """
        if self.form.text("confirm") != expected:
            raise ConfigError(f"nothing was changed: to confirm, type {expected!r}")

    def text(self, template: str, **values: Any) -> str:
        """Return a template with its values and the values of every page."""
        path = path_of(self.request)
        query = self.request.url.query
        return render(
            template,
            self.language,
            {
                "user": self.user,
                "csrf": self.csrf,
                "path": path,
                "base": self.base,
                "here": path + (f"?{query}" if query and self.request.method == "GET" else ""),
                "operator": self.may(ConsoleRole.OPERATOR),
                "admin": self.may(ConsoleRole.ADMIN),
                "sees_bodies": self.sees_bodies,
                "theme": self.user.theme if self.user is not None else "",
                **values,
            },
        )

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """Respond with a page."""
        return HTMLResponse(self.text(template, **values), status)

    def to(self, path: str) -> Response:
        """Respond with a redirection to another page of the console."""
        return RedirectResponse(self.base + path, SEE_OTHER)


def base_of(request: Request) -> str:
    """Return the path below which the browser reaches the console; "" for the root."""
    return str(request.scope.get("root_path", ""))


def path_of(request: Request) -> str:
    """Return the path of a request below the base path."""
    return request.url.path.removeprefix(base_of(request))


def cookie_name(*, is_secure: bool, base: str) -> str:
    """Return the name of the session's cookie. Browsers accept the prefix __Host- with the path "/" only."""
    if not is_secure:
        return "tandemq"
    return "__Secure-tandemq" if base else "__Host-tandemq"


def local_path(text: str) -> str:
    """Return the path in a form if it is one of this console, else "/"."""
    parts = urlsplit(text)
    is_local = not parts.scheme and not parts.netloc and text.startswith("/") and not text.startswith("//")
    is_plain = "\\" not in text and text.isprintable() and text.isascii() and len(text) <= 2_000
    return text if is_local and is_plain else "/"
