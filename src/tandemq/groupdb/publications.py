"""Reports of publishers: the last attempt to apply each group, and when each publisher last ran.

An operator sees here that a configuration was refused, and why, or that no publisher runs.
"""

from dataclasses import dataclass

import sqlalchemy as sql
from sqlalchemy.exc import IntegrityError

from tandemq.groupdb import schema
from tandemq.groupdb.database import GroupDatabase
from tandemq.groupdb.publisher import AppliedGroup, ApplyOutcome, Do, apply_groups

SEEN_INTERVAL_MS = 5_000
"""How often a publisher reports that it runs."""
SILENT_MS = 15_000
"""A publisher that has not reported for this time does not run."""


@dataclass(frozen=True, slots=True)
class Publication:
    """The last attempt to apply a group's configuration to the registry."""

    cluster: str
    broker_name: str
    revision: int
    outcome: str
    reason: str
    publisher: str
    at_ms: int


def publish(database: GroupDatabase, do: Do, cluster: str | None, publisher: str, wall_ms: int) -> list[AppliedGroup]:
    """Apply all groups, or those of one cluster, and report it. Raises as `apply_groups`."""
    done = apply_groups(database, do, cluster, wall_ms=wall_ms)
    _seen(database, publisher, wall_ms)
    known = {(publication.cluster, publication.broker_name): publication for publication in publications(database)}
    for group in done:
        _record(database, group, known.get((group.cluster, group.broker_name)), publisher, wall_ms)
    return done


def _record(
    database: GroupDatabase, group: AppliedGroup, known: Publication | None, publisher: str, wall_ms: int
) -> None:
    """Write the outcome, if it differs from the stored one."""
    # A group that needs no change is applied, whichever attempt has applied it.
    outcome = "refused" if group.what is ApplyOutcome.REFUSED else "applied"
    if known is not None and (known.revision, known.outcome, known.reason) == (group.revision, outcome, group.reason):
        return
    columns = schema.publications.c
    row = {
        "revision": group.revision,
        "outcome": outcome,
        "reason": group.reason,
        "publisher": publisher[:255],
        "at_ms": wall_ms,
    }
    where = (columns.cluster == group.cluster, columns.broker_name == group.broker_name)
    with database.transaction() as connection:
        if group.what is ApplyOutcome.REMOVED:
            connection.execute(sql.delete(schema.publications).where(*where))
        elif connection.execute(sql.update(schema.publications).where(*where).values(**row)).rowcount == 0:
            names = {"cluster": group.cluster, "broker_name": group.broker_name}
            _insert(connection, sql.insert(schema.publications).values(**names, **row))


def _seen(database: GroupDatabase, publisher: str, wall_ms: int) -> None:
    columns = schema.publishers.c
    with database.transaction() as connection:
        seen = connection.execute(sql.select(columns.seen_ms).where(columns.name == publisher[:255])).scalar()
        if seen is not None and 0 <= wall_ms - seen < SEEN_INTERVAL_MS:
            return
        update = sql.update(schema.publishers).where(columns.name == publisher[:255]).values(seen_ms=wall_ms)
        if connection.execute(update).rowcount == 0:
            _insert(connection, sql.insert(schema.publishers).values(name=publisher[:255], seen_ms=wall_ms))


def _insert(connection: sql.Connection, statement: sql.Insert) -> None:
    """Insert a row, unless another publisher has just inserted it."""
    try:
        with connection.begin_nested():
            connection.execute(statement)
    except IntegrityError:
        return


def publications(database: GroupDatabase) -> list[Publication]:
    """Return the last attempt for each group."""
    with database.transaction() as connection:
        return [
            Publication(row.cluster, row.broker_name, row.revision, row.outcome, row.reason, row.publisher, row.at_ms)
            for row in connection.execute(sql.select(schema.publications))
        ]


def publishers(database: GroupDatabase, wall_ms: int) -> list[str]:
    """Return the publishers that run now, by their last report."""
    columns = schema.publishers.c
    query = sql.select(columns.name).where(columns.seen_ms > wall_ms - SILENT_MS).order_by(columns.name)
    with database.transaction() as connection:
        return [str(name) for name in connection.execute(query).scalars()]
