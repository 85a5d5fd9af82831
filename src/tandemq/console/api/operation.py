"""An operation of the API: method, address, role, and a handler whose annotations are the types of its input.

A handler has some of these parameters, each a Struct: `path` (segments of the address), `query` (parameters), `body`
(JSON). It returns a Struct, or None: nothing.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, get_type_hints

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.access.tokens import TokenHolder
from tandemq.console.services import Console
from tandemq.errors import ConfigError
from tandemq.groupdb.audit import Actor

Handler = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request with a valid token."""

    console: Console
    holder: TokenHolder
    address: str

    @property
    def actor(self) -> Actor:
        """The user and the token, for the audit log."""
        token = self.holder.token
        return Actor(f"{token.user} (token {token.number}, {token.name})", self.address)

    @property
    def sees_bodies(self) -> bool:
        """Whether the token may see bodies and properties of messages."""
        return self.holder.role >= ConsoleRole.OPERATOR or not self.console.settings.hides_bodies

    def require(self, confirm: str, expected: str) -> None:
        """Check the confirmation of an irreversible operation. Raises ConfigError if it is another text."""
        if confirm != expected:
            raise ConfigError(f"nothing was changed: confirm must be {expected!r}, the name of what is changed")


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. `status`: of the response if it succeeds."""

    method: str
    path: str
    """Below /api/v1."""
    role: ConsoleRole
    handle: Handler
    status: int = 200

    @property
    def name(self) -> str:
        """Unique name, that of the handler."""
        return self.handle.__name__

    @property
    def family(self) -> str:
        """First segment of the address."""
        return self.path.split("/")[1]

    @property
    def types(self) -> dict[str, Any]:
        """Types by the names of the handler's parameters, and "return"."""
        return types_of(self.handle)


@cache
def types_of(handle: Handler) -> dict[str, Any]:
    """Return the types of a handler by parameter, and "return"."""
    return {name: hint for name, hint in get_type_hints(handle, include_extras=True).items() if name != "call"}
