"""Broker groups in a database: SQLite, PostgreSQL, or whatever SQLAlchemy has a driver for.

    tandemq_groups    cluster, broker_name | mode, is_removed, revision, carried_revision, changed_ms
    tandemq_members   cluster, broker_name, broker_id | role, permission, weight, priority

A change is one transaction: what is there is read, the new configuration is checked as a whole (`records`), and written
if the revision is still the one that was read. So what is in the database never contradicts itself, whoever writes.

A removed group stays as a row, marked, until its removal is carried to the registry: what merely is not in this
database is nobody's to remove. `carried_revision` tells how far the registry was brought, for people to see.

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
"""Times a change is begun anew because somebody else changed the same group."""
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
"""From a group's configuration to its new one; None: there is no such group."""


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as the database has it."""

    cluster: str
    broker_name: str
    config: GroupConfig | None
    """None: removed, and the registry may still have it."""
    revision: int
    """One more with each change."""
    carried_revision: int
    """The revision the registry was last brought to; 0: none."""
    changed_ms: int
    """Calendar time of the last change."""

    @property
    def is_applied(self) -> bool:
        """Whether the registry was brought to what is here."""
        return self.carried_revision == self.revision


class GroupDatabase:
    """The configurations of all broker groups."""

    def __init__(self, url: str) -> None:
        """Connect, and make the tables if they are not there.

        Args:
            url: of SQLAlchemy: "sqlite:////var/lib/tandemq/groups.db", "postgresql+psycopg://user@host/name".

        Raises:
            ConfigError: the URL is none, or its driver is not installed.
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
        """Give the connections back."""
        self._engine.dispose()

    def _create_tables(self) -> None:
        for table in _metadata.sorted_tables:
            try:
                table.create(self._engine, checkfirst=True)
            except SQLAlchemyError:  # somebody else made it after it was looked for: now it is there
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
        """All groups, those removed and not carried yet included, by cluster and name."""
        with self._errors(), self._engine.connect() as connection:
            return self._read(connection, [] if cluster is None else [("cluster", cluster)])

    def group(self, cluster: str, broker_name: str) -> StoredGroup | None:
        """One group; None if the database does not know it."""
        with self._errors(), self._engine.connect() as connection:
            return next(iter(self._read(connection, [("cluster", cluster), ("broker_name", broker_name)])), None)

    def _read(self, connection: sql.Connection, where: list[tuple[str, str]]) -> list[StoredGroup]:
        """One statement for both tables, so that what is read belongs together."""
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
        """Change one group, as one transaction; begun anew if somebody else changed it meanwhile.

        Args:
            change: may be called several times; what it returns is checked and stored, None removes the group.

        Raises:
            ConfigError: the result contradicts itself (nothing changed), or what `change` raises.
            NetworkError: the database cannot be used; whether it changed is unknown.
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
        raise LocalError(f"group {broker_name} is changed all the time by somebody else", hint="try again")

    def _store(
        self, cluster: str, broker_name: str, before: StoredGroup | None, after: GroupConfig | None, wall_ms: int
    ) -> int | None:
        """The new revision; None: somebody else was faster, and nothing changed."""
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
        """Note that the registry says what this revision says; a removed group's row goes now.

        Returns:
            False: the group has another revision by now, and nothing was noted.
        """
        with self._errors(), self._engine.begin() as connection:
            if group.config is None:
                statement: sql.Delete | sql.Update = sql.delete(_groups).where(*_is(group))
            else:
                statement = sql.update(_groups).where(*_is(group)).values(carried_revision=group.revision)
            return connection.execute(statement).rowcount == 1


def _is(group: StoredGroup) -> tuple[sql.ColumnElement[bool], ...]:
    """The group's row, if it still has this revision."""
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
