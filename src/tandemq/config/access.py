"""Users of the settings: of the first start, and of brokers among each other.

    initAuthenticationUser                 {"username":"admin","password":"…"}
    innerClientAuthenticationCredentials   {"accessKey":"inner","secretKey":"…"}

Source: docs/reference/access.md; RocketMQ AuthConfig.
"""

import json
from typing import NamedTuple, Protocol

from tandemq.errors import ConfigError
from tandemq.model.access import AclUser


class Named(NamedTuple):
    """Name and key of a user in the settings."""

    name: str
    key: str


class InnerSettings(Protocol):
    """Settings that name the user of servers among each other."""

    @property
    def inner_credentials(self) -> str:
        """The user."""


class AccessSettings(InnerSettings, Protocol):
    """Settings that name users."""

    @property
    def init_user(self) -> str:
        """The user of the first start."""


def parse_pair(text: str, name: str, key: str) -> Named | None:
    """Return the user in a setting; None if it is empty.

    Raises:
        ConfigError: it is no JSON object with the two texts.
    """
    if not text.strip():
        return None
    try:
        found = json.loads(text)
        pair = Named(found[name], found[key])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f'it must be a JSON object like {{"{name}":"…","{key}":"…"}}') from None
    if not all(isinstance(part, str) and part.strip() for part in pair):
        raise ConfigError(f"{name} and {key} must be texts that are not blank")
    return pair


def init_user(config: AccessSettings) -> Named | None:
    """Return the user of `initAuthenticationUser`; None without. Raises ConfigError."""
    return parse_pair(config.init_user, "username", "password")


def inner_user(config: InnerSettings) -> Named | None:
    """Return the user of `innerClientAuthenticationCredentials`; None without. Raises ConfigError."""
    return parse_pair(config.inner_credentials, "accessKey", "secretKey")


def configured_users(config: AccessSettings) -> dict[str, AclUser]:
    """Return the super users of the settings, by name. Raises ConfigError."""
    found = [user for user in (init_user(config), inner_user(config)) if user is not None]
    return {user.name: AclUser(user.name, user.key, "Super") for user in found}
