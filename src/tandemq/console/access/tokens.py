"""Tokens of the JSON API, in the database.

A token belongs to a user, has a role of at most the user's, and ends at a given time. It has 256 random bits; the
database has its SHA-256 only, so a token is shown once, when it is made. The roles of token and user are read with each
request: if the user's is lower by then, it counts. Tokens end with their user, not with a new password.
"""

import hashlib
import secrets
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from tandemq.console.access.accounts import ROLES, ConsoleRole, User
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb import schema
from tandemq.groupdb.audit import Actor, AuditEntry, record
from tandemq.groupdb.database import GroupDatabase

PREFIX = "tq_"
"""Start of every token, so that scanners for leaked secrets find them."""
CHARACTERS = len(PREFIX) + 43
DAYS_MAX = 366
TOKENS_MAX = 50
"""Tokens per user, expired ones not counted."""
NAME_MAX = 64
DAY_MS = 86_400_000
TOUCH_MS = 60_000
"""How often the time of a token's last request is written."""


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A token without its secret."""

    number: int
    user: str
    name: str
    """Purpose, as the user entered it."""
    role: ConsoleRole
    created_ms: int
    expires_ms: int
    used_ms: int
    """Time of a recent request, at most a minute before the last one; 0: never used."""
    address: str
    """Address of that request."""


@dataclass(frozen=True, slots=True)
class TokenHolder:
    """A valid token, its user, and the lower of their roles."""

    token: ApiToken
    user: User

    @property
    def role(self) -> ConsoleRole:
        """The lower of both roles."""
        return min(self.token.role, self.user.role)


class ApiTokens:
    """The tokens. Its methods block; the console calls them in threads."""

    def __init__(self, database: GroupDatabase) -> None:
        """Take the database; nothing is read yet."""
        self._database = database

    def create(
        self, user: str, name: str, role: ConsoleRole, days: int, by: Actor, wall_ms: int
    ) -> tuple[str, ApiToken]:
        """Create a token, and return it with its stored entry; the token itself cannot be read again.

        Raises:
            ConfigError: name, role or days are out of range, or the user has too many tokens.
            LocalError: the user does not exist.
        """
        if not name.strip() or len(name) > NAME_MAX or not name.isprintable():
            raise ConfigError(f"a token's name has 1 to {NAME_MAX} printable characters")
        if not 1 <= days <= DAYS_MAX:
            raise ConfigError(f"a token is valid for 1 to {DAYS_MAX} days, not {days}")
        secret = PREFIX + secrets.token_urlsafe(32)
        columns = schema.tokens.c
        row: dict[str, Any] = {"user_name": user, "name": name.strip(), "role": role.text}
        row |= {"created_ms": wall_ms, "expires_ms": wall_ms + days * DAY_MS, "used_ms": 0, "address": ""}
        with self._database.transaction() as connection:
            owner = connection.execute(
                sql.select(schema.users.c.role).where(schema.users.c.name == user[:64]).with_for_update()
            ).scalar()
            if owner is None:
                raise LocalError(f"user {user[:64]} does not exist")
            if role > ROLES[owner]:
                raise ConfigError(f"the role of a token is at most that of its user: {owner}")
            connection.execute(sql.delete(schema.tokens).where(columns.expires_ms <= wall_ms))
            count = sql.select(sql.func.count()).select_from(schema.tokens).where(columns.user_name == user)
            if (connection.execute(count).scalar() or 0) >= TOKENS_MAX:
                raise ConfigError(f"user {user} has {TOKENS_MAX} tokens", hint="revoke one that is no longer used")
            result = connection.execute(sql.insert(schema.tokens).values(token_hash=_hash(secret), **row))
            key = result.inserted_primary_key
            assert key is not None, "the number is the primary key"
            found = ApiToken(int(key[0]), user, name.strip(), role, wall_ms, wall_ms + days * DAY_MS, 0, "")
            record(connection, _entry("token.create", found, by, wall_ms, after=f"{role.text}, {days} days"))
        return secret, found

    def holder_of(self, secret: str, address: str, wall_ms: int) -> TokenHolder | None:
        """Return the holder of a token, None if there is none, or if it has expired or was revoked."""
        if len(secret) != CHARACTERS or not secret.startswith(PREFIX):
            return None
        columns, users = schema.tokens.c, schema.users
        query = sql.select(schema.tokens, users.c.role.label("user_role"))
        query = query.select_from(schema.tokens.join(users, columns.user_name == users.c.name))
        query = query.where(columns.token_hash == _hash(secret), columns.expires_ms > wall_ms)
        with self._database.transaction() as connection:
            row = connection.execute(query).first()
            if row is not None and (wall_ms - row.used_ms > TOUCH_MS or row.address != address[:127]):
                touch = sql.update(schema.tokens).where(columns.number == row.number)
                connection.execute(touch.values(used_ms=wall_ms, address=address[:127]))
        return None if row is None else TokenHolder(_token(row), User(row.user_name, ROLES[row.user_role]))

    def tokens(self, wall_ms: int, user: str = "") -> list[ApiToken]:
        """Return the tokens that have not expired, of a user or of all, by user and number."""
        columns = schema.tokens.c
        query = sql.select(schema.tokens).where(columns.expires_ms > wall_ms)
        if user:
            query = query.where(columns.user_name == user)
        with self._database.transaction() as connection:
            return [_token(row) for row in connection.execute(query.order_by(columns.user_name, columns.number))]

    def revoke(self, number: int, by: Actor, wall_ms: int, user: str = "") -> None:
        """Revoke a token: its next request is refused.

        Args:
            user: only if it is a token of this user; "": of any user.

        Raises:
            LocalError: there is no such token.
        """
        columns = schema.tokens.c
        condition = [columns.number == number, *([columns.user_name == user] if user else [])]
        with self._database.transaction() as connection:
            row = connection.execute(sql.select(schema.tokens).where(*condition)).first()
            if row is None:
                raise LocalError(f"there is no token {number}")
            connection.execute(sql.delete(schema.tokens).where(columns.number == number))
            record(connection, _entry("token.revoke", _token(row), by, wall_ms, before=row.role))


def _hash(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _token(row: Any) -> ApiToken:
    return ApiToken(
        row.number,
        row.user_name,
        row.name,
        ROLES[row.role],
        row.created_ms,
        row.expires_ms,
        row.used_ms,
        row.address,
    )


def _entry(action: str, token: ApiToken, by: Actor, wall_ms: int, *, before: str = "", after: str = "") -> AuditEntry:
    target = f"{token.user}, token {token.number} ({token.name})"
    return AuditEntry(wall_ms, by, action, target=target, before=before, after=after, outcome="done")
