"""The audit log: who changed what, from where, with which outcome.

An entry of a change to the database is written in the same transaction as the change. For a change elsewhere, for
instance of a topic, an entry is written before, with the outcome UNKNOWN, and completed afterwards: if the program ends
in between, the entry says that the outcome is unknown. No function deletes entries.
"""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sql

from tandemq.groupdb import schema

UNKNOWN = "unknown"
TEXT_MAX = 16_384
"""Characters kept of a text in an entry."""


@dataclass(frozen=True, slots=True)
class Actor:
    """A person or program that makes a change. `name`: an account of the console, or user@host; `address`: its IP."""

    name: str
    address: str = ""


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """One change. `before` and `after` are texts, usually JSON."""

    at_ms: int
    by: Actor
    action: str
    """Action, such as "group.change" or "topic.delete"."""
    cluster: str = ""
    target: str = ""
    before: str = ""
    after: str = ""
    outcome: str = UNKNOWN
    number: int = 0
    """Number of the entry; set by the database."""


def record(connection: sql.Connection, entry: AuditEntry) -> int:
    """Add an entry in the transaction of `connection`, and return its number."""
    row = {
        "at_ms": entry.at_ms,
        "who": _brief(entry.by.name, 255),
        "address": _brief(entry.by.address, 127),
        "action": _brief(entry.action, 40),
        "cluster": _brief(entry.cluster, 127),
        "target": _brief(entry.target, 512),
        "before": _brief(entry.before, TEXT_MAX),
        "after": _brief(entry.after, TEXT_MAX),
        "outcome": _brief(entry.outcome, TEXT_MAX),
    }
    result = connection.execute(sql.insert(schema.audit).values(**row))
    key = result.inserted_primary_key
    return int(key[0]) if key is not None else 0


def complete(connection: sql.Connection, number: int, outcome: str) -> None:
    """Set the outcome of an entry that was written before its change."""
    statement = sql.update(schema.audit).where(schema.audit.c.number == number, schema.audit.c.outcome == UNKNOWN)
    connection.execute(statement.values(outcome=_brief(outcome, TEXT_MAX)))


def entries(connection: sql.Connection, *, count: int, before: int | None = None, text: str = "") -> list[AuditEntry]:
    """Return entries, newest first.

    Args:
        count: maximum number of entries.
        before: only entries with smaller numbers.
        text: only entries whose actor, action or target contains this text.
    """
    columns = schema.audit.c
    query = sql.select(schema.audit).order_by(columns.number.desc()).limit(count)
    if before is not None:
        query = query.where(columns.number < before)
    if text:
        found = [column.contains(text, autoescape=True) for column in (columns.who, columns.action, columns.target)]
        query = query.where(sql.or_(*found))
    return [_entry(row) for row in connection.execute(query)]


def _entry(row: Any) -> AuditEntry:
    return AuditEntry(
        at_ms=row.at_ms,
        by=Actor(row.who, row.address),
        action=row.action,
        cluster=row.cluster,
        target=row.target,
        before=row.before,
        after=row.after,
        outcome=row.outcome,
        number=row.number,
    )


def _brief(text: str, characters: int) -> str:
    """Shorten a text to the column's size; PostgreSQL stores no NUL."""
    return text.replace("\0", "\ufffd")[:characters]
