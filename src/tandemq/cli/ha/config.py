"""`tandemq ha config`: edit the configuration of broker groups in a database and publish it to the registry.

Every change is validated as a whole before it is stored. `apply` publishes the stored configuration to the registry; it
may be interrupted at any point and run again.
"""

import getpass
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support import registries
from tandemq.cli.support.client_session import quiet
from tandemq.cli.support.output import echo_wrapped, show_json, show_rows, table_options, time_text
from tandemq.config.shards import shard_name
from tandemq.config.validation import SHARDS_MAX
from tandemq.errors import ConfigError, NetworkError, RemoteError, TandemError

if TYPE_CHECKING:
    from tandemq.coordination.registry.records import GroupConfig, GroupMember
    from tandemq.groupdb.audit import Actor
    from tandemq.groupdb.database import GroupDatabase, StoredGroup
    from tandemq.groupdb.publisher import AppliedGroup

EXIT_REFUSED = 3
FOLLOW_SECONDS = 1.0
DATABASE_FILE = "~/.tandemq/groups.db"

database_option = click.option(
    "--database",
    "database_url",
    envvar="TANDEMQ_DATABASE",
    metavar="URL",
    show_envvar=True,
    help=f"URL of the database in SQLAlchemy's format; default: SQLite in {DATABASE_FILE}.",
)
registry_option = registries.registry_option(
    f"Registry: {registries.ADDRESSES}.",
    default="namesrv://127.0.0.1:9876",
    show_default=True,
)
cluster_option = click.option("--cluster", default="DefaultCluster", show_default=True, help="Cluster of the group.")
shards_option = click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    help="Also the groups of the other shards of brokers with this many: GROUP-1, GROUP-2, …",
)


@click.group()
def config() -> None:
    """Configure broker groups: members, roles, permissions, weights, mode.

    Brokers with registryAddr read the configuration when they start and when it changes. A new mode takes effect at
    their next start.
    """


@contextmanager
def open_database(url: str | None) -> "Iterator[GroupDatabase]":
    """Open the database at a URL, by default the one in the user's directory.

    Raises:
        ConfigError: SQLAlchemy is not installed, or the URL is malformed.
        NetworkError: the database cannot be used.
    """
    try:
        from tandemq.groupdb.database import GroupDatabase  # noqa: PLC0415  # an extra
    except ImportError as error:
        raise ConfigError(
            "the database needs SQLAlchemy, which is not installed",
            hint="pip install 'tandemq[console]'",
        ) from error
    if url is None:
        file = Path(DATABASE_FILE).expanduser()
        file.parent.mkdir(parents=True, exist_ok=True)
        url = f"sqlite:///{file}"
    with GroupDatabase(url) as opened:
        yield opened


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def actor() -> "Actor":
    """Return who runs this command, for the audit log."""
    from tandemq.groupdb.audit import Actor  # noqa: PLC0415

    return Actor(_user_at_host())


def _user_at_host() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without an account
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


# Showing.


@config.command("list")
@click.option("--cluster", help="Only groups of this cluster.")
@database_option
@table_options
def list_groups(cluster: str | None, database_url: str | None, as_json: bool) -> None:
    """List the groups in the database, and whether each is applied to the registry."""
    with open_database(database_url) as database:
        rows = [_row(group) for group in database.groups(cluster)]
    show_rows(rows, as_json=as_json, empty="no group is configured")


def _row(group: "StoredGroup") -> dict[str, Any]:
    config = group.config
    return {
        "cluster": group.cluster,
        "group": group.broker_name,
        "mode": "removed" if config is None else config.mode.value,
        "members": 0 if config is None else len(config.members),
        "revision": group.revision,
        "applied": group.is_applied,
        "changed": time_text(group.changed_ms),
    }


@config.command()
@click.argument("group")
@shards_option
@cluster_option
@database_option
@table_options
def show(group: str, shards: int | None, cluster: str, database_url: str | None, as_json: bool) -> None:
    """Show the mode and the members of a group."""
    found = []
    with open_database(database_url) as database:
        for name in _names(group, shards):
            stored = database.group(cluster, name)
            if stored is None or stored.config is None:
                raise ConfigError(f"group {name} does not exist in cluster {cluster}")
            found.append(stored)
    _show_all(found, as_list=shards is not None, as_json=as_json)


def _names(group: str, shards: int | None) -> list[str]:
    """Return the names of a group, and of those of the other shards of its brokers."""
    return [shard_name(group, number) for number in range(shards or 1)]


def _show_all(found: "list[StoredGroup]", *, as_list: bool, as_json: bool) -> None:
    """Show groups; `as_list`: as one JSON list."""
    if as_json and as_list:
        show_json([_facts(stored) for stored in found])
        return
    for number, stored in enumerate(found):
        if number:
            click.echo()
        _show(stored, as_json=as_json)


def _facts(found: "StoredGroup") -> dict[str, Any]:
    assert found.config is not None
    return {**_row(found), "members": [_member_row(member) for member in found.config.members]}


def _show(found: "StoredGroup", *, as_json: bool) -> None:
    assert found.config is not None
    if as_json:
        show_json(_facts(found))
        return
    state = "applied" if found.is_applied else "not applied yet"
    echo_wrapped(f"{found.broker_name}: {found.config.mode.value}, revision {found.revision}, {state}", indent="  ")
    click.echo()
    show_rows(_facts(found)["members"], as_json=False)


def _member_row(member: "GroupMember") -> dict[str, Any]:
    return {
        "id": member.broker_id,
        "role": member.role.value,
        "permission": member.permission.value,
        "weight": member.weight,
        "priority": member.priority,
    }


# Changing.


@config.command("set")
@click.argument("group")
@click.option("--mode", type=click.Choice(["static", "slave-consume", "elect"]), help="Failover mode of the group.")
@click.option(
    "--member",
    "members",
    multiple=True,
    metavar="ID[,KEY=VALUE]…",
    help="Add or change a member: role (master, slave), permission (FULL, WRITE, READ, NONE), weight, priority; "
    "repeatable.",
)
@click.option("--drop", "dropped", type=int, multiple=True, metavar="ID", help="Remove a member; repeatable.")
@click.option(
    "--add-only", is_flag=True, help="Only create the group, or add members that it lacks; keep all that is stored."
)
@shards_option
@cluster_option
@database_option
@table_options
def set_group(
    group: str,
    mode: str | None,
    members: tuple[str, ...],
    dropped: tuple[int, ...],
    add_only: bool,
    shards: int | None,
    cluster: str,
    database_url: str | None,
    as_json: bool,
) -> None:
    """Create or change a group. Options that are not given keep their values; an invalid result changes nothing.

    With --shards it changes one group after the other, and ends at the first that would become invalid.

    tandemq ha config set broker-a --mode slave-consume --member 0,role=master --member 1,role=slave
    """

    if add_only and dropped:
        raise ConfigError("--add-only and --drop contradict each other")

    def changed(name: str, before: "GroupConfig | None") -> "GroupConfig":
        if add_only and before is not None:
            return _changed(name, before, None, _lacking(before, members), ())
        return _changed(name, before, mode, members, dropped)

    found = []
    with open_database(database_url) as database:
        for name in _names(group, shards):
            stored = database.group(cluster, name) if add_only else None
            if stored is None or stored.config is None or _lacking(stored.config, members):
                stored = database.change(cluster, name, partial(changed, name), wall_ms=_wall_ms(), by=actor())
            found.append(stored)
    _show_all(found, as_list=shards is not None, as_json=as_json)


def _lacking(config: "GroupConfig", members: tuple[str, ...]) -> tuple[str, ...]:
    """Return those --member options whose broker is not in the configuration."""
    known = {member.broker_id for member in config.members}
    return tuple(text for text in members if _integer(text, "the broker id", text.split(",")[0]) not in known)


def _changed(
    group: str, before: "GroupConfig | None", mode: str | None, members: tuple[str, ...], dropped: tuple[int, ...]
) -> "GroupConfig":
    from tandemq.coordination.registry.records import GroupConfig, Mode, with_member  # noqa: PLC0415

    config = before or GroupConfig(Mode.STATIC, ())
    if mode is not None:
        config = replace(config, mode=Mode(mode))
    for broker_id in dropped:
        if config.member(broker_id) is None:
            raise ConfigError(f"broker {broker_id} is unknown in group {group}, so it cannot be removed")
        config = replace(config, members=tuple(each for each in config.members if each.broker_id != broker_id))
    for text in members:
        config = with_member(config, _member(group, config, text))
    return config


def _member(group: str, config: "GroupConfig", text: str) -> "GroupMember":
    from tandemq.coordination.registry.records import BrokerPermission, GroupMember, Role  # noqa: PLC0415

    first, *rest = text.split(",")
    pairs = dict(each.partition("=")[::2] for each in rest)
    unknown = sorted(pairs.keys() - {"role", "permission", "weight", "priority"})
    if unknown or len(pairs) < len(rest):
        raise ConfigError(
            f"--member {text}: {unknown[0] if unknown else 'a key'} is unknown or repeated",
            hint="the keys are role, permission, weight and priority, each at most once",
        )
    broker_id = _integer(text, "the broker id", first)
    member = config.member(broker_id)
    if member is None and "role" not in pairs:
        raise ConfigError(f"broker {broker_id} is unknown in group {group}", hint="give role=… to add it")
    if "role" in pairs:
        role = Role(_choice(text, "role", pairs["role"].lower(), [each.value for each in Role]))
        member = GroupMember(broker_id, role) if member is None else replace(member, role=role)
    assert member is not None, "an unknown member has a role"
    if "permission" in pairs:
        choices = [each.value for each in BrokerPermission]
        member = replace(
            member, permission=BrokerPermission(_choice(text, "permission", pairs["permission"].upper(), choices))
        )
    if "weight" in pairs:
        member = replace(member, weight=_integer(text, "weight", pairs["weight"]))
    if "priority" in pairs:
        member = replace(member, priority=_integer(text, "priority", pairs["priority"]))
    return member


def _integer(text: str, what: str, value: str) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise _bad_member(text, f"{what} must be a whole number, not {value!r:.64}") from error


def _choice(text: str, what: str, value: str, choices: list[str]) -> str:
    if value not in choices:
        raise _bad_member(text, f"{what} must be one of {', '.join(choices)}, not {value!r:.64}")
    return value


def _bad_member(text: str, why: str) -> ConfigError:
    return ConfigError(f"--member {text:.128}: {why}", hint="write for instance --member 1,role=slave,permission=READ")


@config.command()
@click.argument("group")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@shards_option
@cluster_option
@database_option
@table_options
def remove(group: str, yes: bool, shards: int | None, cluster: str, database_url: str | None, as_json: bool) -> None:
    """Remove a group's configuration. The state of its brokers is kept, so that its epochs continue."""
    names = _names(group, shards)
    if not yes:
        what = f"group {', '.join(names)}"
        click.confirm(f"Remove the configuration of {what} in cluster {cluster}?", abort=True, err=True)
    with open_database(database_url) as database:
        removed = [database.change(cluster, name, lambda _: None, wall_ms=_wall_ms(), by=actor()) for name in names]
    show_rows(list(map(_row, removed)), as_json=as_json)


# Publishing to the registry.


@config.command("import")
@click.option("--cluster", help="Only groups of this cluster.")
@registry_option
@database_option
@table_options
def import_groups(cluster: str | None, registry: str, database_url: str | None, as_json: bool) -> None:
    """Store the configurations of the registry's groups that the database lacks.

    For a new database of groups that exist. Groups that the database has, also those with a removal that is not
    applied yet, stay as they are.
    """
    with open_database(database_url) as database, quiet():
        rows = [
            _row(_imported(database, name, group, published))
            for name, group, published in _published(registry, cluster)
            if database.group(name, group) is None
        ]
    show_rows(rows, as_json=as_json, empty="the database lacks no group of the registry")


def _imported(database: "GroupDatabase", cluster: str, group: str, published: "GroupConfig") -> "StoredGroup":
    """Store a configuration of the registry as one that is applied."""
    stored = database.change(cluster, group, lambda _: published, wall_ms=_wall_ms(), by=actor(), expected_revision=0)
    database.mark_applied(stored)
    return database.group(cluster, group) or stored


def _published(registry: str, cluster: str | None) -> "list[tuple[str, str, GroupConfig]]":
    """Return cluster, name and configuration of the groups that the registry has.

    Raises:
        ConfigError: the registry's address, or a configuration in it, is malformed.
        NetworkError, RemoteError: the registry does not answer, or refuses.
    """
    from tandemq.coordination.registry.records import (  # noqa: PLC0415
        ROOT,
        config_from_json,
        config_path,
        groups_path,
    )
    from tandemq.registry import NodeFound, Read  # noqa: PLC0415

    found = []
    with registries.open_registry(registry) as client:
        for name in registries.children(client, ROOT) if cluster is None else [cluster]:
            for group in registries.children(client, groups_path(name)):
                node = client.do(Read(config_path(name, group)))
                if isinstance(node, NodeFound):
                    found.append((name, group, config_from_json(group, node.data)))
    return found


@config.command()
@click.option("--cluster", help="Only groups of this cluster.")
@click.option(
    "--follow", is_flag=True, help=f"Keep running and publish every change within {FOLLOW_SECONDS:g} s, until Ctrl-C."
)
@registry_option
@database_option
@table_options
def apply(cluster: str | None, follow: bool, registry: str, database_url: str | None, as_json: bool) -> int:
    """Publish the stored configurations to the registry. If interrupted, run it again.

    A group is refused (exit code 3) if its present master, or the broker that serves its reads, is not in its
    configuration.
    """
    with open_database(database_url) as database, quiet():
        if not follow:
            done = _apply(database, registry, cluster)
            show_rows([_applied_row(each) for each in done], as_json=as_json, empty="no group is configured")
            return EXIT_REFUSED if any(each.reason for each in done) else 0
        _follow(database, registry, cluster, as_json=as_json)
    return 0


def _apply(database: "GroupDatabase", registry: str, cluster: str | None) -> "list[AppliedGroup]":
    from tandemq.groupdb.publications import publish  # noqa: PLC0415

    with registries.open_registry(registry) as client:
        return publish(database, client.do, cluster, _publisher(), _wall_ms())


def _publisher() -> str:
    return f"{_user_at_host()}, process {os.getpid()}"


def _follow(database: "GroupDatabase", registry: str, cluster: str | None, *, as_json: bool) -> None:
    """Publish changes as they are stored, and print each once; while the registry does not answer, retry."""
    from tandemq.groupdb.publications import publish  # noqa: PLC0415
    from tandemq.groupdb.publisher import ApplyOutcome  # noqa: PLC0415

    refused: dict[tuple[str, str], str] = {}
    """Reasons already printed, by cluster and group."""
    problem = ""
    while True:
        try:
            with registries.open_registry(registry) as client:
                while True:
                    for done in publish(database, client.do, cluster, _publisher(), _wall_ms()):
                        name = (done.cluster, done.broker_name)
                        if done.what is not ApplyOutcome.UNCHANGED and refused.get(name) != done.reason:
                            _print_change(done, as_json=as_json)
                        if done.what is ApplyOutcome.REFUSED:
                            refused[name] = done.reason
                        else:
                            refused.pop(name, None)
                    problem = ""
                    time.sleep(FOLLOW_SECONDS)
        except (NetworkError, RemoteError) as error:
            if str(error) != problem:
                problem = _print_problem(error)
        time.sleep(FOLLOW_SECONDS)


def _print_problem(error: TandemError) -> str:
    click.echo(f"tandemq: {error}; retrying", err=True)
    return str(error)


def _print_change(done: "AppliedGroup", *, as_json: bool) -> None:
    row = _applied_row(done)
    if as_json:
        show_json(row)
    else:
        click.echo(f"{done.cluster}/{done.broker_name}: {' '.join(filter(None, (row['done'], row['reason'])))}")


def _applied_row(done: "AppliedGroup") -> dict[str, Any]:
    return {"cluster": done.cluster, "group": done.broker_name, "done": done.what.value, "reason": done.reason}
