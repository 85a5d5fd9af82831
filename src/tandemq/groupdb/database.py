"""Configurations of broker groups in a database: SQLite, PostgreSQL, or any other with an SQLAlchemy driver.

A change is one transaction: the group is read, the new configuration is checked as a whole (`records`), and it is
written, together with its entry in the audit log, if the revision is still the one that was read. So the stored
configurations are always consistent, also with concurrent writers.

A removed group keeps its row, marked as removed, until its removal is applied to the registry: groups that are merely
missing in the database are not removed from the registry. `carried_revision` is the revision that was last applied.

Owner: one process per object, any of its threads; several processes may use one database.
Source: docs/guides/failover.md, "Group configuration".
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import sqlalchemy as sql
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError

from tandemq.coordination.registry.records import (
    BrokerPermission,
    GroupConfig,
    GroupMember,
    Mode,
    Role,
    check_config,
    check_name,
    config_to_json,
)
from tandemq.errors import ConfigError, LocalError, NetworkError
from tandemq.groupdb import schema
from tandemq.groupdb.audit import Actor, AuditEntry, record

ATTEMPTS_MAX = 20
"""Maximum number of attempts for a change while others change the same group."""
Change = Callable[[GroupConfig | None], GroupConfig | None]
"""Function from a group's configuration to the new one; None stands for no group."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group in the database."""

    cluster: str
    broker_name: str
    config: GroupConfig | None
    """None: removed from the database, but perhaps not from the registry."""
    revision: int
    """Incremented by each change."""
    carried_revision: int
    """Revision last applied to the registry; 0: none."""
    changed_ms: int
    """Calendar time of the last change, ms."""

    @property
    def is_applied(self) -> bool:
        """Whether the registry has this revision."""
        return self.carried_revision == self.revision


class RevisionConflict(LocalError):
    """A group was changed since its configuration was read."""

    def __init__(self, current: StoredGroup | None, broker_name: str) -> None:
        """Create the error; `current`: the group as it is now, None if it is not in the database."""
        super().__init__(f"group {broker_name} was changed meanwhile", hint="compare both versions, then save again")
        self.current = current


class GroupDatabase:
    """The configurations of all broker groups."""

    def __init__(self, url: str) -> None:
        """Connect, and create missing tables.

        Args:
            url: SQLAlchemy URL, for example "sqlite:////var/lib/tandemq/groups.db" or
                "postgresql+psycopg://user@host/name".

        Raises:
            ConfigError: the URL is malformed, or its driver is not installed.
            NetworkError: the database cannot be reached or used.
        """
        try:
            self._engine = sql.create_engine(url)
        except (ArgumentError, NoSuchModuleError, ImportError) as error:
            raise ConfigError(
                f"the database URL cannot be used: {error}", hint="see docs/guides/operations.md"
            ) from error
        self.name = self._engine.url.render_as_string(hide_password=True)
        with self._errors():
            schema.create(self._engine)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise NetworkError(f"the database {self.name} cannot be used: {reason}") from error

    @contextmanager
    def transaction(self) -> Iterator[sql.Connection]:
        """Run statements in one transaction, for the tables of `schema`.

        Raises:
            NetworkError: the database cannot be used; unknown outcome.
        """
        with self._errors(), self._engine.begin() as connection:
            yield connection

    # Reading.

    def groups(self, cluster: str | None = None) -> list[StoredGroup]:
        """Return all groups by cluster and name, including removed ones whose removal is not applied yet."""
        with self._errors(), self._engine.connect() as connection:
            return self._read(connection, [] if cluster is None else [("cluster", cluster)])

    def group(self, cluster: str, broker_name: str) -> StoredGroup | None:
        """Return one group, None if it is not in the database."""
        with self._errors(), self._engine.connect() as connection:
            return next(iter(self._read(connection, [("cluster", cluster), ("broker_name", broker_name)])), None)

    def _read(self, connection: sql.Connection, where: list[tuple[str, str]]) -> list[StoredGroup]:
        """Read both tables in one statement, so that the result is consistent."""
        joined = schema.groups.outerjoin(
            schema.members,
            sql.and_(
                schema.groups.c.cluster == schema.members.c.cluster,
                schema.groups.c.broker_name == schema.members.c.broker_name,
            ),
        )
        query = sql.select(
            schema.groups,
            schema.members.c.broker_id,
            schema.members.c.role,
            schema.members.c.permission,
            schema.members.c.weight,
            schema.members.c.priority,
        ).select_from(joined)
        for column, value in where:
            query = query.where(schema.groups.c[column] == value)
        query = query.order_by(schema.groups.c.cluster, schema.groups.c.broker_name, schema.members.c.broker_id)
        rows: dict[tuple[str, str], list[Any]] = {}
        for row in connection.execute(query):
            rows.setdefault((row.cluster, row.broker_name), []).append(row)
        return [_stored(found) for found in rows.values()]

    # Changing.

    def change(
        self,
        cluster: str,
        broker_name: str,
        change: Change,
        *,
        wall_ms: int,
        by: Actor | None = None,
        expected_revision: int | None = None,
    ) -> StoredGroup:
        """Change one group in one transaction, retrying if others change it at the same time.

        Args:
            change: returns the new configuration, None to remove the group; may be called several times.
            by: who makes the change, for the audit log.
            expected_revision: change nothing if the group has another revision; 0: the group is new.

        Raises:
            ConfigError: the result is not valid (nothing was changed), or `change` raised it.
            RevisionConflict: the group has another revision than expected.
            LocalError: others change the group all the time.
            NetworkError: the database cannot be used; unknown outcome.
        """
        check_name("cluster name", cluster)
        check_name("broker name", broker_name)
        for _ in range(ATTEMPTS_MAX):
            before = self.group(cluster, broker_name)
            if expected_revision is not None and expected_revision != (0 if before is None else before.revision):
                raise RevisionConflict(before, broker_name)
            after = change(before.config if before is not None else None)
            if after is not None:
                check_config(broker_name, after)
            elif before is None or before.config is None:
                raise ConfigError(f"group {broker_name} does not exist in cluster {cluster}")
            revision = 1 if before is None else before.revision + 1
            carried = 0 if before is None else before.carried_revision
            changed = StoredGroup(cluster, broker_name, after, revision, carried, wall_ms)
            with self._errors():
                if self._store(before, changed, by or Actor("")):
                    return changed
        raise LocalError(f"group {broker_name} is changed by others all the time", hint="try again")

    def _store(self, before: StoredGroup | None, after: StoredGroup, by: Actor) -> bool:
        """Write the group and its entry in the audit log; return False, with no change, if it was changed since."""
        cluster, broker_name, config = after.cluster, after.broker_name, after.config
        row = {
            "mode": Mode.STATIC.value if config is None else config.mode.value,
            "is_removed": config is None,
            "revision": after.revision,
            "changed_ms": after.changed_ms,
        }
        members = schema.members.c
        try:
            with self._engine.begin() as connection:
                if before is None:
                    new = {"cluster": cluster, "broker_name": broker_name, "carried_revision": 0, **row}
                    connection.execute(sql.insert(schema.groups), new)
                elif connection.execute(sql.update(schema.groups).where(*_is(before)).values(**row)).rowcount != 1:
                    return False
                connection.execute(
                    sql.delete(schema.members).where(members.cluster == cluster, members.broker_name == broker_name)
                )
                if config is not None:
                    rows = [_member_row(cluster, broker_name, each) for each in config.members]
                    connection.execute(sql.insert(schema.members), rows)
                record(connection, _audit_entry(before, after, by))
        except IntegrityError:
            return False
        return True

    def mark_applied(self, group: StoredGroup) -> bool:
        """Record that this revision was applied to the registry; delete the row of a removed group.

        Returns:
            False, with no change, if the group has another revision by now.
        """
        with self._errors(), self._engine.begin() as connection:
            if group.config is None:
                statement: sql.Delete | sql.Update = sql.delete(schema.groups).where(*_is(group))
            else:
                statement = sql.update(schema.groups).where(*_is(group)).values(carried_revision=group.revision)
            return connection.execute(statement).rowcount == 1


def _is(group: StoredGroup) -> tuple[sql.ColumnElement[bool], ...]:
    """Return the condition for the group's row with this revision."""
    return (
        schema.groups.c.cluster == group.cluster,
        schema.groups.c.broker_name == group.broker_name,
        schema.groups.c.revision == group.revision,
    )


def _stored(rows: list[Any]) -> StoredGroup:
    first = rows[0]
    config = None
    if not first.is_removed:
        members = tuple(
            GroupMember(row.broker_id, Role(row.role), BrokerPermission(row.permission), row.weight, row.priority)
            for row in rows
            if row.broker_id is not None
        )
        config = GroupConfig(Mode(first.mode), members)
    return StoredGroup(
        first.cluster, first.broker_name, config, first.revision, first.carried_revision, first.changed_ms
    )


def _member_row(cluster: str, broker_name: str, member: GroupMember) -> dict[str, Any]:
    return {
        "cluster": cluster,
        "broker_name": broker_name,
        "broker_id": member.broker_id,
        "role": member.role.value,
        "permission": member.permission.value,
        "weight": member.weight,
        "priority": member.priority,
    }


def _audit_entry(before: StoredGroup | None, after: StoredGroup, by: Actor) -> AuditEntry:
    return AuditEntry(
        at_ms=after.changed_ms,
        by=by,
        action="group.remove" if after.config is None else "group.change",
        cluster=after.cluster,
        target=after.broker_name,
        before=_config_text(before),
        after=_config_text(after),
        outcome=f"revision {after.revision}",
    )


def _config_text(group: StoredGroup | None) -> str:
    return "" if group is None or group.config is None else config_to_json(group.config).decode()
