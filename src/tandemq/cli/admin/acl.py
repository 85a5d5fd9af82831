"""`tandemq acl`: users, and what each may do."""

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.support.client_session import namesrv_option, with_admin
from tandemq.cli.support.output import json_option, plain, show_facts, show_json, show_rows, table_options
from tandemq.config.account_files import AccountFile, parse_account_file
from tandemq.errors import ConfigError, LocalError
from tandemq.model.access import ACTIONS
from tandemq.model.accounts import Translated

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin

KEY_BYTES = 24
ADMIN = "admin"


@click.group()
def acl() -> None:
    """Manage users, and what each may do.

    Commands sign with the credentials in TANDEMQ_CREDENTIALS, a file with lines accessKey: … and secretKey: …, or in
    TANDEMQ_ACCESS_KEY and TANDEMQ_SECRET_KEY.
    """


def _print_key(name: str, key: str, *, as_json: bool) -> None:
    if as_json:
        show_json({"accessKey": name, "secretKey": key})
    else:
        click.echo(f"accessKey: {name}\nsecretKey: {key}")


@acl.command()
@click.option("--user", "name", default=ADMIN, show_default=True, help="Name of the user.")
@namesrv_option
@json_option
def init(name: str, name_servers: str, as_json: bool) -> None:
    """Create the first super user, and print its key, which is shown only once.

    The output is a file for TANDEMQ_CREDENTIALS, and for mqadmin as conf/tools.yml.
    """
    key = secrets.token_urlsafe(KEY_BYTES)

    async def create(admin: "Admin") -> None:
        if any(user["type"] == "Super" for user in (await admin.users()).values()):
            raise LocalError("there is a super user already", hint="tandemq acl user list")
        await admin.create_user(name, key, is_super=True)

    with_admin(name_servers, create)
    _print_key(name, key, as_json=as_json)


@acl.group()
def user() -> None:
    """Create, change, delete and list users."""


@user.command()
@click.argument("name")
@click.option("--super", "is_super", is_flag=True, help="It may do everything.")
@namesrv_option
@json_option
def create(name: str, is_super: bool, name_servers: str, as_json: bool) -> None:
    """Create the user NAME, and print its key, which is shown only once."""
    key = secrets.token_urlsafe(KEY_BYTES)
    with_admin(name_servers, lambda admin: admin.create_user(name, key, is_super=is_super))
    _print_key(name, key, as_json=as_json)


@user.command()
@click.argument("name")
@click.option("--new-key", is_flag=True, help="Give it another key, which is printed.")
@click.option("--enable/--disable", "is_enabled", default=None, help="Whether its requests are accepted.")
@namesrv_option
@json_option
def update(name: str, new_key: bool, is_enabled: bool | None, name_servers: str, as_json: bool) -> None:
    """Change the user NAME."""
    if not new_key and is_enabled is None:
        raise click.UsageError("nothing is to be changed; see --help")
    key = secrets.token_urlsafe(KEY_BYTES) if new_key else None
    with_admin(name_servers, lambda admin: admin.update_user(name, key=key, is_enabled=is_enabled))
    if key is not None:
        _print_key(name, key, as_json=as_json)
    else:
        show_facts({"user": name, "status": "enable" if is_enabled else "disable"}, as_json=as_json)


@user.command()
@click.argument("name")
@namesrv_option
@json_option
def delete(name: str, name_servers: str, as_json: bool) -> None:
    """Delete the user NAME and its policies."""

    async def requests(admin: "Admin") -> None:
        if name not in await admin.users():
            raise LocalError(f"user {name} does not exist", hint="tandemq acl user list shows the users")
        await admin.delete_user(name)

    with_admin(name_servers, requests)
    show_facts({"user": name, "deleted": True}, as_json=as_json)


@user.command(name="list")
@namesrv_option
@table_options
def list_users(name_servers: str, as_json: bool) -> None:
    """List the users."""
    found = with_admin(name_servers, lambda admin: admin.users())
    rows = [{"user": name, **about} for name, about in sorted(found.items())]
    show_rows(rows, as_json=as_json)


def _put(name: str, resource: str, actions: tuple[str, ...], decision: str, sources: tuple[str, ...], at: str) -> None:
    with_admin(at, lambda admin: admin.put_policy(name, resource, actions, decision=decision, sources=sources))


_action_option = click.option(
    "--action",
    "actions",
    multiple=True,
    required=True,
    type=click.Choice(ACTIONS, case_sensitive=False),
    help="What it concerns; repeatable.",
)
_source_option = click.option("--from", "sources", multiple=True, help="IP address or range; repeatable.")


@acl.command()
@click.argument("name")
@click.argument("resource")
@_action_option
@_source_option
@namesrv_option
@json_option
def allow(
    name: str, resource: str, actions: tuple[str, ...], sources: tuple[str, ...], name_servers: str, as_json: bool
) -> None:
    """Allow the user NAME actions on RESOURCE: Topic:name, Group:name, Cluster:name, a prefix like Topic:shop-*, or *.

    It replaces what was decided for the same RESOURCE.
    """
    _put(name, resource, actions, "Allow", sources, name_servers)
    show_facts({"user": name, "resource": resource, "allowed": ", ".join(actions)}, as_json=as_json)


@acl.command()
@click.argument("name")
@click.argument("resource")
@_action_option
@_source_option
@namesrv_option
@json_option
def deny(
    name: str, resource: str, actions: tuple[str, ...], sources: tuple[str, ...], name_servers: str, as_json: bool
) -> None:
    """Deny the user NAME actions on RESOURCE, also if a less specific resource is allowed."""
    _put(name, resource, actions, "Deny", sources, name_servers)
    show_facts({"user": name, "resource": resource, "denied": ", ".join(actions)}, as_json=as_json)


@acl.command()
@click.argument("name")
@click.argument("resource", required=False, default="")
@namesrv_option
@json_option
def revoke(name: str, resource: str, name_servers: str, as_json: bool) -> None:
    """Delete what was decided for the user NAME and RESOURCE, or for all resources."""
    with_admin(name_servers, lambda admin: admin.delete_policy(name, resource))
    show_facts({"user": name, "resource": resource or "all", "deleted": True}, as_json=as_json)


@acl.command(name="list")
@click.option("--user", "name", help="Only of this user.")
@namesrv_option
@table_options
def list_policies(name: str | None, name_servers: str, as_json: bool) -> None:
    """List what users may do; super users may do everything."""
    found = with_admin(name_servers, lambda admin: admin.policies())
    rows = [
        {
            "user": entry["user"],
            "resource": entry["resource"],
            "decision": entry["decision"],
            "actions": ", ".join(entry["actions"]),
            "from": ", ".join(entry.get("sourceIps") or ()),
        }
        for entry in found
        if name is None or entry["user"] == name
    ]
    show_rows(rows, as_json=as_json)


# Migration.


@acl.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--apply", "is_applied", is_flag=True, help="Create the users and policies that are shown.")
@namesrv_option
@table_options
def migrate(path: Path, is_applied: bool, name_servers: str, as_json: bool) -> None:
    """Show the users and policies that the accounts of RocketMQ 4.9 in PATH would be, without their keys.

    PATH is a file, or a directory with plain_acl.yml and acl/. Users that exist are not changed. White addresses are
    not migrated: they are listed, so that these clients get a user, or its policies a source (--from).
    """
    accounts, white = _read_accounts(path)
    results = dict.fromkeys(accounts, "shown")
    if is_applied:
        results = with_admin(name_servers, lambda admin: _create(admin, accounts))
    if as_json:
        users = [_shown(account) | {"result": results[name]} for name, account in accounts.items()]
        show_json({"users": users, "notMigrated": white})
        return
    show_rows([row | {"result": results[row["user"]]} for row in _rows(accounts)], as_json=False, empty="no accounts")
    for entry in white:
        whose = f"of {entry['user']}" if entry["user"] else "for all"
        click.echo(f"not migrated: white addresses {whose}: {plain(', '.join(entry['addresses']))}")


def _read_accounts(path: Path) -> tuple[dict[str, Translated], list[dict[str, Any]]]:
    """Return the accounts by name, and the white addresses.

    Raises:
        ConfigError: a file is malformed, or there is none; nothing was created.
    """
    from tandemq.run.account_files import account_paths, read_account_file  # noqa: PLC0415  # --help needs no files

    accounts: dict[str, Translated] = {}
    white: list[dict[str, Any]] = []
    paths = account_paths(path) if path.is_dir() else [path]
    if not paths:
        raise ConfigError(f"{path}: there are no files of accounts", hint="plain_acl.yml, or acl/*.yml, is expected")
    for one in paths:
        file = _parsed(one, read_account_file(one))
        if file.white_addresses:
            white.append({"user": "", "addresses": list(file.white_addresses), "file": str(one)})
        for name, (line, account) in file.accounts.items():
            if name in accounts:
                click.echo(f"{one}:{line}: {plain(name)} is in another file, too, which counts", err=True)
                continue
            accounts[name] = account
            if account.user.white_addresses:
                white.append({"user": name, "addresses": [account.user.white_addresses], "file": str(one)})
    return accounts, white


def _parsed(path: Path, content: bytes | ConfigError) -> AccountFile:
    try:
        if isinstance(content, ConfigError):
            raise content
        file = parse_account_file(content)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.args[0]}", hint=error.hint) from error
    for warning in file.warnings:
        click.echo(f"{path}: {plain(warning)}", err=True)
    return file


async def _create(admin: "Admin", accounts: dict[str, Translated]) -> dict[str, str]:
    """Create users and their policies; return `created` or `exists` by name."""
    return {name: "created" if await admin.adopt_user(*account) else "exists" for name, account in accounts.items()}


def _shown(account: Translated) -> dict[str, Any]:
    entries = [
        {"policy": policy.policy_type, "resource": entry.resource, "decision": entry.decision, "actions": entry.actions}
        for policy in account.policies
        for entry in policy.entries
    ]
    return {"user": account.user.username, "type": account.user.user_type, "policies": entries}


def _rows(accounts: dict[str, Translated]) -> Iterator[dict[str, str]]:
    for account in accounts.values():
        about = _shown(account)
        for entry in about["policies"] or [{"policy": "", "resource": "*", "decision": "Allow", "actions": ("All",)}]:
            yield {
                "user": about["user"],
                "type": about["type"],
                "policy": entry["policy"],
                "resource": entry["resource"],
                "decision": entry["decision"],
                "actions": ", ".join(entry["actions"]),
            }
