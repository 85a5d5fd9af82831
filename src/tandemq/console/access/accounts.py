"""Accounts of the console and their sessions, in the database.

A session id has 256 random bits; the database has its SHA-256 only. The token against forged requests is derived from
the id, so it needs no storage.

A session ends after `IDLE_MS` without a request, `SESSION_MS` after its beginning, when its user logs out, changes the
password, or is removed. The role is read with each request, so a change applies at once.
"""

import hashlib
import re
import secrets
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from tandemq.console.access.passwords import is_password, password_fault, password_hash
from tandemq.errors import ConfigError, LocalError
from tandemq.groupdb import schema
from tandemq.groupdb.audit import Actor, AuditEntry, record
from tandemq.groupdb.database import GroupDatabase

IDLE_MS = 30 * 60_000
SESSION_MS = 12 * 3_600_000
TOUCH_MS = 60_000
"""How often the time of a session's last request is written."""
SESSIONS_MAX = 20
"""Sessions per user; a new one ends the oldest."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]{0,63}\Z")


class ConsoleRole(IntEnum):
    """Permissions of a user; each role includes the roles before it."""

    VIEWER = 1
    """Sees everything, bodies of messages only if the console is configured so; changes nothing."""
    OPERATOR = 2
    """Also sends messages, resets offsets, changes topics and consumer groups."""
    ADMIN = 3
    """Also changes roles and permissions of brokers, switches masters, and administers users."""

    @property
    def text(self) -> str:
        """Its name in forms and in the database."""
        return self.name.lower()


ROLES = {role.text: role for role in ConsoleRole}


@dataclass(frozen=True, slots=True)
class User:
    """An account."""

    name: str
    role: ConsoleRole
    language: str = ""
    """Language of the pages; "": that of the browser."""
    theme: str = ""
    """"dark" or "light"; "": as the browser prefers."""


@dataclass(frozen=True, slots=True)
class OpenSession:
    """A session of a user, without its id."""

    address: str
    created_ms: int
    seen_ms: int


def csrf_token(session_id: str) -> str:
    """Return the token that forms of this session contain."""
    return hashlib.sha256(b"form:" + session_id.encode()).hexdigest()


def _hash(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()


class Accounts:
    """Users and sessions. Its methods block; pages call them in threads."""

    def __init__(self, database: GroupDatabase) -> None:
        """Take the database; nothing is read yet."""
        self._database = database
        self._dummy = password_hash(secrets.token_hex())
        """Hash to check for unknown users, so that the response takes as long as for known users."""

    # Users.

    def users(self) -> list[User]:
        """Return all users, sorted by name."""
        with self._database.transaction() as connection:
            rows = connection.execute(sql.select(schema.users).order_by(schema.users.c.name)).all()
        return [_user(row) for row in rows]

    def login(self, name: str, password: str) -> User | None:
        """Return the user with this password, None if there is none; both take the same time."""
        with self._database.transaction() as connection:
            row = connection.execute(sql.select(schema.users).where(schema.users.c.name == name[:64])).first()
        is_right = is_password(password, self._dummy if row is None else row.password)
        return _user(row) if row is not None and is_right else None

    def add(self, name: str, role: ConsoleRole, password: str, by: Actor, wall_ms: int) -> User:
        """Add a user.

        Raises:
            ConfigError: the name or the password is invalid, or the name is taken.
        """
        if not _NAME.match(name):
            raise ConfigError(f"{name[:64]!r} is not a user name", hint="use 1 to 64 letters, digits and _.@-")
        if fault := password_fault(password):
            raise ConfigError(fault)
        hashed = password_hash(password)
        row = {"name": name, "role": role.text, "password": hashed, "language": "", "theme": "", "created_ms": wall_ms}
        with self._database.transaction() as connection:
            try:
                connection.execute(sql.insert(schema.users), row)
            except IntegrityError as error:
                raise ConfigError(f"user {name} exists already") from error
            record(connection, _entry("user.add", name, by, wall_ms, after=role.text))
        return User(name, role)

    def set_role(self, name: str, role: ConsoleRole, by: Actor, wall_ms: int) -> None:
        """Change the role of a user.

        Raises:
            LocalError: the user does not exist, or no admin would be left.
        """
        with self._database.transaction() as connection:
            _lock_users(connection)
            before = self._existing(connection, name)
            connection.execute(sql.update(schema.users).where(schema.users.c.name == name).values(role=role.text))
            _require_admin(connection)
            record(connection, _entry("user.role", name, by, wall_ms, before=before.role.text, after=role.text))

    def set_password(self, name: str, password: str, by: Actor, wall_ms: int, keep: str = "") -> None:
        """Change a password, and end the user's sessions, except the one with the id `keep`.

        Raises:
            ConfigError: the password is invalid.
            LocalError: the user does not exist.
        """
        if fault := password_fault(password):
            raise ConfigError(fault)
        hashed = password_hash(password)
        columns = schema.sessions.c
        with self._database.transaction() as connection:
            self._existing(connection, name)
            connection.execute(sql.update(schema.users).where(schema.users.c.name == name).values(password=hashed))
            connection.execute(
                sql.delete(schema.sessions).where(columns.user_name == name, columns.id_hash != _hash(keep))
            )
            record(connection, _entry("user.password", name, by, wall_ms))

    def remove(self, name: str, by: Actor, wall_ms: int) -> None:
        """Remove a user, end all sessions of the user, and remove the user's API tokens.

        Raises:
            LocalError: the user does not exist, or no admin would be left.
        """
        with self._database.transaction() as connection:
            _lock_users(connection)
            before = self._existing(connection, name)
            connection.execute(sql.delete(schema.users).where(schema.users.c.name == name))
            for table in (schema.sessions, schema.tokens):
                connection.execute(sql.delete(table).where(table.c.user_name == name))
            _require_admin(connection)
            record(connection, _entry("user.remove", name, by, wall_ms, before=before.role.text))

    def set_preferences(self, name: str, language: str, theme: str) -> None:
        """Store the language and the theme of a user's pages."""
        with self._database.transaction() as connection:
            update = sql.update(schema.users).where(schema.users.c.name == name)
            connection.execute(update.values(language=language, theme=theme))

    def _existing(self, connection: sql.Connection, name: str) -> User:
        row = connection.execute(sql.select(schema.users).where(schema.users.c.name == name)).first()
        if row is None:
            raise LocalError(f"user {name[:64]} does not exist")
        return _user(row)

    # Sessions.

    def open_session(self, user: User, address: str, wall_ms: int) -> str:
        """Begin a session and return its id."""
        session_id = secrets.token_urlsafe(32)
        columns = schema.sessions.c
        with self._database.transaction() as connection:
            connection.execute(sql.delete(schema.sessions).where(_is_over(wall_ms)))
            of_user = sql.select(columns.id_hash).where(columns.user_name == user.name)
            old = connection.execute(of_user.order_by(columns.seen_ms.desc()).offset(SESSIONS_MAX - 1)).scalars()
            connection.execute(sql.delete(schema.sessions).where(columns.id_hash.in_(old.all())))
            connection.execute(
                sql.insert(schema.sessions).values(
                    id_hash=_hash(session_id),
                    user_name=user.name,
                    address=address[:127],
                    created_ms=wall_ms,
                    seen_ms=wall_ms,
                )
            )
            record(connection, _entry("user.login", user.name, Actor(user.name, address), wall_ms))
        return session_id

    def user_of(self, session_id: str, wall_ms: int) -> User | None:
        """Return the user of a session, None if it has ended or never existed."""
        columns = schema.sessions.c
        joined = schema.sessions.join(schema.users, columns.user_name == schema.users.c.name)
        query = sql.select(schema.users, columns.seen_ms).select_from(joined)
        query = query.where(columns.id_hash == _hash(session_id), sql.not_(_is_over(wall_ms)))
        with self._database.transaction() as connection:
            row = connection.execute(query).first()
            if row is not None and wall_ms - row.seen_ms > TOUCH_MS:
                touch = sql.update(schema.sessions).where(columns.id_hash == _hash(session_id))
                connection.execute(touch.values(seen_ms=wall_ms))
        return None if row is None else _user(row)

    def sessions_of(self, name: str, wall_ms: int) -> list[OpenSession]:
        """Return the sessions of a user, newest first."""
        columns = schema.sessions.c
        query = sql.select(schema.sessions).where(columns.user_name == name, sql.not_(_is_over(wall_ms)))
        with self._database.transaction() as connection:
            rows = connection.execute(query.order_by(columns.created_ms.desc())).all()
        return [OpenSession(row.address, row.created_ms, row.seen_ms) for row in rows]

    def close_session(self, session_id: str) -> None:
        """End a session."""
        with self._database.transaction() as connection:
            connection.execute(sql.delete(schema.sessions).where(schema.sessions.c.id_hash == _hash(session_id)))

    def close_others(self, name: str, session_id: str) -> None:
        """End the other sessions of a user."""
        columns = schema.sessions.c
        with self._database.transaction() as connection:
            connection.execute(
                sql.delete(schema.sessions).where(columns.user_name == name, columns.id_hash != _hash(session_id))
            )


def _is_over(wall_ms: int) -> sql.ColumnElement[bool]:
    columns = schema.sessions.c
    return sql.or_(columns.seen_ms < wall_ms - IDLE_MS, columns.created_ms < wall_ms - SESSION_MS)


def _lock_users(connection: sql.Connection) -> None:
    """Let no other transaction change users until this one ends: two could otherwise remove each other's last admin."""
    connection.execute(sql.select(schema.users.c.name).order_by(schema.users.c.name).with_for_update()).all()


def _require_admin(connection: sql.Connection) -> None:
    query = sql.select(sql.func.count()).select_from(schema.users)
    if not connection.execute(query.where(schema.users.c.role == ConsoleRole.ADMIN.text)).scalar():
        raise LocalError("no admin would be left", hint="make another user an admin first")


def _user(row: Any) -> User:
    return User(row.name, ROLES[row.role], row.language, row.theme)


def _entry(action: str, name: str, by: Actor, wall_ms: int, *, before: str = "", after: str = "") -> AuditEntry:
    return AuditEntry(wall_ms, by, action, target=name, before=before, after=after, outcome="done")
