"""Tables of the database, and their version.

    tandemq_groups        cluster, broker_name | mode, is_removed, revision, carried_revision, changed_ms
    tandemq_members       cluster, broker_name, broker_id | role, permission, weight, priority
    tandemq_publications  cluster, broker_name | the last attempt to apply a group, with the reason of a refusal
    tandemq_publishers    name | when this publisher last ran
    tandemq_audit         number | who changed what, from where, before and after, with the outcome
    tandemq_users         name | role, password hash, preferences
    tandemq_sessions      hash of the session id | user, times
    tandemq_tokens        number | hash of an API token, user, role, times
    tandemq_schema        version

Version 1, without `tandemq_schema`, has the first two tables; version 2 adds the others, and version 3 the tokens.
Versions differ by whole tables only, so that opening a database of an earlier version creates what is missing and keeps
all rows. A database of a later version is refused.
"""

import sqlalchemy as sql
from sqlalchemy.exc import SQLAlchemyError

from tandemq.errors import ConfigError

VERSION = 3
metadata = sql.MetaData()
groups = sql.Table(
    "tandemq_groups",
    metadata,
    sql.Column("cluster", sql.String(127), primary_key=True),
    sql.Column("broker_name", sql.String(127), primary_key=True),
    sql.Column("mode", sql.String(20), nullable=False),
    sql.Column("is_removed", sql.Boolean, nullable=False),
    sql.Column("revision", sql.Integer, nullable=False),
    sql.Column("carried_revision", sql.Integer, nullable=False),
    sql.Column("changed_ms", sql.BigInteger, nullable=False),
)
members = sql.Table(
    "tandemq_members",
    metadata,
    sql.Column("cluster", sql.String(127), primary_key=True),
    sql.Column("broker_name", sql.String(127), primary_key=True),
    sql.Column("broker_id", sql.Integer, primary_key=True, autoincrement=False),
    sql.Column("role", sql.String(10), nullable=False),
    sql.Column("permission", sql.String(10), nullable=False),
    sql.Column("weight", sql.Integer, nullable=False),
    sql.Column("priority", sql.Integer, nullable=False),
)
publications = sql.Table(
    "tandemq_publications",
    metadata,
    sql.Column("cluster", sql.String(127), primary_key=True),
    sql.Column("broker_name", sql.String(127), primary_key=True),
    sql.Column("revision", sql.Integer, nullable=False),
    sql.Column("outcome", sql.String(20), nullable=False),
    sql.Column("reason", sql.Text, nullable=False),
    sql.Column("publisher", sql.String(255), nullable=False),
    sql.Column("at_ms", sql.BigInteger, nullable=False),
)
publishers = sql.Table(
    "tandemq_publishers",
    metadata,
    sql.Column("name", sql.String(255), primary_key=True),
    sql.Column("seen_ms", sql.BigInteger, nullable=False),
)
audit = sql.Table(
    "tandemq_audit",
    metadata,
    sql.Column("number", sql.BigInteger().with_variant(sql.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sql.Column("at_ms", sql.BigInteger, nullable=False, index=True),
    sql.Column("who", sql.String(255), nullable=False),
    sql.Column("address", sql.String(127), nullable=False),
    sql.Column("action", sql.String(40), nullable=False),
    sql.Column("cluster", sql.String(127), nullable=False),
    sql.Column("target", sql.String(512), nullable=False),
    sql.Column("before", sql.Text, nullable=False),
    sql.Column("after", sql.Text, nullable=False),
    sql.Column("outcome", sql.Text, nullable=False),
)
users = sql.Table(
    "tandemq_users",
    metadata,
    sql.Column("name", sql.String(64), primary_key=True),
    sql.Column("role", sql.String(20), nullable=False),
    sql.Column("password", sql.String(255), nullable=False),
    sql.Column("language", sql.String(10), nullable=False),
    sql.Column("theme", sql.String(10), nullable=False),
    sql.Column("created_ms", sql.BigInteger, nullable=False),
)
sessions = sql.Table(
    "tandemq_sessions",
    metadata,
    sql.Column("id_hash", sql.String(64), primary_key=True),
    sql.Column("user_name", sql.String(64), nullable=False, index=True),
    sql.Column("address", sql.String(127), nullable=False),
    sql.Column("created_ms", sql.BigInteger, nullable=False),
    sql.Column("seen_ms", sql.BigInteger, nullable=False),
)
tokens = sql.Table(
    "tandemq_tokens",
    metadata,
    sql.Column("number", sql.Integer, primary_key=True, autoincrement=True),
    sql.Column("token_hash", sql.String(64), nullable=False, unique=True),
    sql.Column("user_name", sql.String(64), nullable=False, index=True),
    sql.Column("name", sql.String(64), nullable=False),
    sql.Column("role", sql.String(20), nullable=False),
    sql.Column("created_ms", sql.BigInteger, nullable=False),
    sql.Column("expires_ms", sql.BigInteger, nullable=False),
    sql.Column("used_ms", sql.BigInteger, nullable=False),
    sql.Column("address", sql.String(127), nullable=False),
    sqlite_autoincrement=True,  # the number of a revoked token is not used again
)
schema = sql.Table("tandemq_schema", metadata, sql.Column("version", sql.Integer, primary_key=True))


def create(engine: sql.Engine) -> None:
    """Create the tables that are missing, and check the version.

    Raises:
        ConfigError: the database belongs to a later release.
        SQLAlchemyError: the database cannot be used.
    """
    for table in metadata.sorted_tables:
        try:
            table.create(engine, checkfirst=True)
        except SQLAlchemyError:  # another process has created it after the check, so the next check finds it
            table.create(engine, checkfirst=True)
    with engine.connect() as connection:
        version = connection.execute(sql.select(sql.func.max(schema.c.version))).scalar()
    if version is not None and version > VERSION:
        raise ConfigError(
            f"the database has schema version {version}, this program knows {VERSION}",
            hint="use the release that has written it, or a later one",
        )
    if version != VERSION:
        try:
            with engine.begin() as connection:
                connection.execute(sql.insert(schema), {"version": VERSION})
        except sql.exc.IntegrityError:  # another process was faster
            return
