"""Configurations of broker groups in a database: SQLite, PostgreSQL, or any other with an SQLAlchemy driver.

    tandemq_groups    cluster, broker_name | mode, is_removed, revision, carried_revision, changed_ms
    tandemq_members   cluster, broker_name, broker_id | role, permission, weight, priority

A change is one transaction: the group is read, the new configuration is checked as a whole (`records`), and it is
written if the revision is still the one that was read. So the stored configurations are always consistent, also with
concurrent writers.

A removed group keeps its row, marked as removed, until its removal is applied to the registry: groups that are merely
missing in the database are not removed from the registry. `carried_revision` is the revision that was last applied.

Owner: one process at a time per object; several processes may use one database.
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
)
from tandemq.errors import ConfigError, LocalError, NetworkError

ATTEMPTS_MAX = 20
"""Maximum number of attempts for a change while others change the same group."""
_metadata = sql.MetaData()
_groups = sql.Table(
    "tandemq_groups",
    _metadata,
    sql.Column("cluster", sql.String(127), primary_key=True),
    sql.Column("broker_name", sql.String(127), primary_key=True),
    sql.Column("mode", sql.String(20), nullable=False),
    sql.Column("is_removed", sql.Boolean, nullable=False),
    sql.Column("revision", sql.Integer, nullable=False),
    sql.Column("carried_revision", sql.Integer, nullable=False),
    sql.Column("changed_ms", sql.BigInteger, nullable=False),
)
_members = sql.Table(
    "tandemq_members",
    _metadata,
    sql.Column("cluster", sql.String(127), primary_key=True),
    sql.Column("broker_name", sql.String(127), primary_key=True),
    sql.Column("broker_id", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("role", sql.String(10), nullable=False),
    sql.Column("permission", sql.String(10), nullable=False),
    sql.Column("weight", sql.Integer, nullable=False),
    sql.Column("priority", sql.Integer, nullable=False),
)

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
            self._create_tables()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    def _create_tables(self) -> None:
        for table in _metadata.sorted_tables:
            try:
                table.create(self._engine, checkfirst=True)
            except SQLAlchemyError:  # another process has created it after the check, so the next check finds it
                table.create(self._engine, checkfirst=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
            raise NetworkError(f"the database {self.name} cannot be used: {reason}") from error

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
        joined = _groups.outerjoin(
            _members, sql.and_(_groups.c.cluster == _members.c.cluster, _groups.c.broker_name == _members.c.broker_name)
        )
        query = sql.select(
            _groups,
            _members.c.broker_id,
            _members.c.role,
            _members.c.permission,
            _members.c.weight,
            _members.c.priority,
        ).select_from(joined)
        for column, value in where:
            query = query.where(_groups.c[column] == value)
        query = query.order_by(_groups.c.cluster, _groups.c.broker_name, _members.c.broker_id)
        rows: dict[tuple[str, str], list[Any]] = {}
        for row in connection.execute(query):
            rows.setdefault((row.cluster, row.broker_name), []).append(row)
        return [_stored(found) for found in rows.values()]

    # Changing.

    def change(self, cluster: str, broker_name: str, change: Change, *, wall_ms: int) -> StoredGroup:
        """Change one group in one transaction, retrying if others change it at the same time.

        Args:
            change: returns the new configuration, None to remove the group; may be called several times.

        Raises:
            ConfigError: the result is not valid (nothing was changed), or `change` raised it.
            LocalError: others change the group all the time.
            NetworkError: the database cannot be used; unknown outcome.
        """
        check_name("cluster name", cluster)
        check_name("broker name", broker_name)
        for _ in range(ATTEMPTS_MAX):
            before = self.group(cluster, broker_name)
            after = change(before.config if before is not None else None)
            if after is not None:
                check_config(broker_name, after)
            elif before is None or before.config is None:
                raise ConfigError(f"group {broker_name} does not exist in cluster {cluster}")
            with self._errors():
                revision = self._store(cluster, broker_name, before, after, wall_ms)
            if revision is not None:
                carried = 0 if before is None else before.carried_revision
                return StoredGroup(cluster, broker_name, after, revision, carried, wall_ms)
        raise LocalError(f"group {broker_name} is changed by others all the time", hint="try again")

    def _store(
        self, cluster: str, broker_name: str, before: StoredGroup | None, after: GroupConfig | None, wall_ms: int
    ) -> int | None:
        """Write the group and return its new revision; None, with no change, if it was changed since it was read."""
        revision = 1 if before is None else before.revision + 1
        row = {
            "mode": Mode.STATIC.value if after is None else after.mode.value,
            "is_removed": after is None,
            "revision": revision,
            "changed_ms": wall_ms,
        }
        try:
            with self._engine.begin() as connection:
                if before is None:
                    new = {"cluster": cluster, "broker_name": broker_name, "carried_revision": 0, **row}
                    connection.execute(sql.insert(_groups), new)
                elif connection.execute(sql.update(_groups).where(*_is(before)).values(**row)).rowcount != 1:
                    return None
                connection.execute(
                    sql.delete(_members).where(_members.c.cluster == cluster, _members.c.broker_name == broker_name)
                )
                if after is not None:
                    members = [_member_row(cluster, broker_name, each) for each in after.members]
                    connection.execute(sql.insert(_members), members)
        except IntegrityError:
            return None
        return revision

    def mark_applied(self, group: StoredGroup) -> bool:
        """Record that this revision was applied to the registry; delete the row of a removed group.

        Returns:
            False, with no change, if the group has another revision by now.
        """
        with self._errors(), self._engine.begin() as connection:
            if group.config is None:
                statement: sql.Delete | sql.Update = sql.delete(_groups).where(*_is(group))
            else:
                statement = sql.update(_groups).where(*_is(group)).values(carried_revision=group.revision)
            return connection.execute(statement).rowcount == 1


def _is(group: StoredGroup) -> tuple[sql.ColumnElement[bool], ...]:
    """Return the condition for the group's row with this revision."""
    return (
        _groups.c.cluster == group.cluster,
        _groups.c.broker_name == group.broker_name,
        _groups.c.revision == group.revision,
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
