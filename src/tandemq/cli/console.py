"""`tandemq console`: the web pages for operators, their users, and tokens of the JSON API."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tandemq.cli.ha.config import actor, database_option, open_database
from tandemq.cli.support import registries
from tandemq.cli.support.client_session import namesrv_option, quiet
from tandemq.cli.support.output import json_flag, json_option, show_facts, show_rows, table_options, time_text
from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError
from tandemq.real.service_manager import ServiceManager

if TYPE_CHECKING:
    from tandemq.console.access.accounts import Accounts
    from tandemq.console.access.tokens import ApiTokens
    from tandemq.groupdb.database import GroupDatabase

DEFAULT_PORT = 8377
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PATH = click.Path(path_type=Path)
ROLE_NAMES = ("viewer", "operator", "admin")


def need_packages() -> None:
    """Check that the packages of the console are installed. Raises ConfigError if not."""
    try:
        import starlette  # noqa: F401, PLC0415  # an extra
        import uvicorn  # noqa: F401, PLC0415
    except ImportError as error:
        raise ConfigError(
            "tandemq console needs packages that are not installed", hint="pip install 'tandemq[console]'"
        ) from error


@click.group(invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="IP address to listen on.")
@click.option(
    "--port", "-p", default=DEFAULT_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port; 0: a free one."
)
@click.option("--host-name", "names", multiple=True, help="Host name under which browsers reach it; repeatable.")
@click.option("--certificate", type=click.Path(exists=True, dir_okay=False), help="TLS certificate, PEM.")
@click.option("--key", type=click.Path(exists=True, dir_okay=False), help="Private key of the certificate, PEM.")
@click.option(
    "--behind-proxy",
    "proxies",
    multiple=True,
    metavar="IP",
    help="Address of a proxy in front of it, which does TLS and sets X-Forwarded-For, and perhaps X-Forwarded-Prefix; "
    "repeatable.",
)
@click.option(
    "--credentials",
    type=click.Path(dir_okay=False),
    help="File with lines accessKey: … and secretKey: … of the user as which it signs requests to brokers; by default "
    "that of TANDEMQ_CREDENTIALS, or of TANDEMQ_ACCESS_KEY and TANDEMQ_SECRET_KEY.",
)
@click.option("--base-path", default="", metavar="PATH", help="Path below which browsers reach it, as /ops/tandemq.")
@click.option("--hide-bodies", is_flag=True, help="Viewers see no bodies, properties, tags and keys of messages.")
@click.option("--lake", "lakes", multiple=True, type=_PATH, help="Directory of a lake to show; repeatable.")
@click.option(
    "--job-state",
    "states",
    multiple=True,
    type=_PATH,
    help="File of --state of `tandemq spark scrub` or `audit` to show; repeatable.",
)
@click.option(
    "--report", "reports", multiple=True, type=_PATH, help="Page of `tandemq spark report` to offer; repeatable."
)
@click.option(
    "--project",
    "projects",
    multiple=True,
    type=_PATH,
    help="Directory of a pipeline project, whose streaming queries to show; repeatable.",
)
@click.option(
    "--api-rate",
    default=20.0,
    show_default=True,
    type=click.FloatRange(0.1, 10_000),
    help="Requests per second that one token may make to the JSON API.",
)
@click.option("--publish", is_flag=True, help="Also apply stored group configurations to --registry, every second.")
@registries.registry_option(f"Registry for --publish: {registries.ADDRESSES}.")
@database_option
@namesrv_option
@json_flag("Print the link as one line of JSON.")
@click.option(
    "--while-stdin", is_flag=True, help="Stop when standard input is closed; for programs that start this one."
)
@click.pass_context
def console(context: click.Context, /, **options: Any) -> None:
    """Serve web pages on which operators watch and change a cluster.

    Runs until SIGTERM or SIGINT. The first start prints a link that works once: it creates the first user. Other
    addresses than loopback need --certificate and --key, or --behind-proxy.
    """
    if context.invoked_subcommand is None:
        need_packages()
        _serve(options)
    else:
        _pass_on(context, options["database_url"])


def _pass_on(context: click.Context, database_url: str | None) -> None:
    """Pass --database on to the subcommand. Raises UsageError for an option that only the server has."""
    given = [
        option.opts[0]
        for option in context.command.params
        if option.name != "database_url"
        and option.name is not None
        and context.get_parameter_source(option.name) is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise click.UsageError(
            f"{given[0]} is an option of `tandemq console` alone; write options of "
            f"`tandemq console {context.invoked_subcommand}` behind it",
            context,
        )
    context.obj = database_url


def _check(options: dict[str, Any]) -> None:
    if bool(options["certificate"]) != bool(options["key"]):
        raise ConfigError("--certificate and --key need each other")
    if options["host"] not in LOOPBACK and not options["certificate"] and not options["proxies"]:
        raise ConfigError(
            f"--host {options['host']} is reachable from other machines, and passwords would be sent in clear text",
            hint="give --certificate and --key, or --behind-proxy with the proxy's address",
        )
    if options["publish"] and not options["registry"]:
        raise ConfigError("--publish needs --registry")


def _serve(options: dict[str, Any]) -> None:
    import asyncio  # noqa: PLC0415  # --help needs none of these

    from tandemq.client.credentials import read_credentials  # noqa: PLC0415
    from tandemq.console.pipeline_files import PipelinePaths  # noqa: PLC0415
    from tandemq.console.publishing import PublisherThread  # noqa: PLC0415
    from tandemq.console.routes import base_path  # noqa: PLC0415
    from tandemq.console.server import ListenAddress, listen, serve  # noqa: PLC0415
    from tandemq.console.services import ConsoleSettings  # noqa: PLC0415

    _check(options)
    host = options["host"]
    own = {f"[{host}]" if ":" in host else host, "127.0.0.1", "localhost", "[::1]"}
    settings = ConsoleSettings(
        hosts=frozenset(own | {name.lower() for name in options["names"]}),
        is_secure=bool(options["certificate"]) or bool(options["proxies"]),
        hides_bodies=options["hide_bodies"],
        proxies=frozenset(options["proxies"]),
        base_path=base_path(options["base_path"]),
        tls=client_tls(),
        credentials=read_credentials(options["credentials"]) if options["credentials"] else None,
        api_per_s=options["api_rate"],
        pipeline=PipelinePaths(options["lakes"], options["states"], options["reports"], options["projects"]),
    )
    address = ListenAddress(host, options["port"], options["certificate"] or "", options["key"] or "")
    if options["while_stdin"]:
        threading.Thread(target=_wait_for_end, name="stdin", daemon=True).start()
    with ExitStack() as stack:
        stack.enter_context(quiet())
        database = stack.enter_context(open_database(options["database_url"]))
        listeners = [stack.enter_context(listener) for listener in listen(address)]
        if options["publish"]:
            secret = registries.secret_file()
            stack.callback(PublisherThread(database, options["registry"], secret, settings.tls).close)
        ready = _printer(as_json=options["as_json"])
        manager = ServiceManager.of_environment(os.environ)
        asyncio.run(serve(settings, database, options["name_servers"], address, listeners, ready, manager))


def _wait_for_end() -> None:
    while os.read(sys.stdin.fileno(), 4096):
        continue
    os.kill(os.getpid(), signal.SIGTERM)


def _printer(*, as_json: bool) -> Callable[[str], None]:
    def ready(link: str) -> None:
        if as_json:
            click.echo(json.dumps({"link": link, "address": link.split("/")[2], "pid": os.getpid()}))
        elif "/setup/" in link:
            click.echo(f"open this link once, within 15 minutes, to create the first user:\n{link}")
        else:
            click.echo(f"console: {link}")

    return ready


# Users.


@console.group()
def user() -> None:
    """Administer the users of the console."""


def _database(context: click.Context, database_url: str | None) -> "GroupDatabase":
    """Open the database that the subcommand names, or that `tandemq console` does."""
    is_own = context.get_parameter_source("database_url") is click.core.ParameterSource.COMMANDLINE
    return context.with_resource(open_database(database_url if is_own else context.obj))


def _accounts(context: click.Context, database_url: str | None) -> "Accounts":
    need_packages()
    from tandemq.console.access.accounts import Accounts  # noqa: PLC0415

    return Accounts(_database(context, database_url))


def _password(path: str | None) -> str:
    """Return the password in a file, or one that is typed twice."""
    if path is None:
        typed: str = click.prompt("Password", hide_input=True, confirmation_prompt=True)
        return typed
    text = sys.stdin.read() if path == "-" else Path(path).read_text(encoding="utf-8")
    return text.rstrip("\r\n")


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _done(as_json: bool, **facts: object) -> None:
    show_facts(facts, as_json=as_json)


password_option = click.option(
    "--password-file",
    "path",
    type=click.Path(dir_okay=False, allow_dash=True),
    help="Read the password from this file; - is stdin. Default: it is asked for.",
)
role_option = click.option(
    "--role", required=True, type=click.Choice(ROLE_NAMES), help="What the user may do; each includes the one before."
)


@user.command("add")
@click.argument("name")
@role_option
@password_option
@database_option
@json_option
@click.pass_context
def add_user(
    context: click.Context, name: str, role: str, path: str | None, database_url: str | None, as_json: bool
) -> None:
    """Add a user."""
    from tandemq.console.access.accounts import ROLES  # noqa: PLC0415

    _accounts(context, database_url).add(name, ROLES[role], _password(path), actor(), _wall_ms())
    _done(as_json, user=name, role=role)


@user.command("list")
@database_option
@table_options
@click.pass_context
def list_users(context: click.Context, database_url: str | None, as_json: bool) -> None:
    """List the users."""
    accounts = _accounts(context, database_url)
    rows = [
        {
            "user": account.name,
            "role": account.role.text,
            "sessions": len(found := accounts.sessions_of(account.name, _wall_ms())),
            "lastRequest": time_text(max((each.seen_ms for each in found), default=0)),
        }
        for account in accounts.users()
    ]
    show_rows(rows, as_json=as_json, empty="no user exists")


@user.command("role")
@click.argument("name")
@role_option
@database_option
@json_option
@click.pass_context
def set_role(context: click.Context, name: str, role: str, database_url: str | None, as_json: bool) -> None:
    """Change the role of a user."""
    from tandemq.console.access.accounts import ROLES  # noqa: PLC0415

    _accounts(context, database_url).set_role(name, ROLES[role], actor(), _wall_ms())
    _done(as_json, user=name, role=role)


@user.command("password")
@click.argument("name")
@password_option
@database_option
@json_option
@click.pass_context
def set_password(context: click.Context, name: str, path: str | None, database_url: str | None, as_json: bool) -> None:
    """Change the password of a user, and end the user's sessions."""
    _accounts(context, database_url).set_password(name, _password(path), actor(), _wall_ms())
    _done(as_json, user=name, changed="password")


@user.command("remove")
@click.argument("name")
@database_option
@json_option
@click.pass_context
def remove_user(context: click.Context, name: str, database_url: str | None, as_json: bool) -> None:
    """Remove a user, the user's sessions and tokens."""
    _accounts(context, database_url).remove(name, actor(), _wall_ms())
    _done(as_json, user=name, removed=True)


# Tokens of the JSON API.


@console.group()
def token() -> None:
    """Administer the tokens of the JSON API."""


def _tokens(context: click.Context, database_url: str | None) -> "ApiTokens":
    need_packages()
    from tandemq.console.access.tokens import ApiTokens  # noqa: PLC0415

    return ApiTokens(_database(context, database_url))


@token.command("add")
@click.argument("user")
@click.option("--name", required=True, help="What the token is for.")
@role_option
@click.option("--days", default=90, show_default=True, type=click.IntRange(1, 366), help="Days until it expires.")
@database_option
@json_option
@click.pass_context
def add_token(
    context: click.Context, user: str, name: str, role: str, days: int, database_url: str | None, as_json: bool
) -> None:
    """Make a token of USER, and print it; it cannot be printed again."""
    from tandemq.console.access.accounts import ROLES  # noqa: PLC0415

    secret, made = _tokens(context, database_url).create(user, name, ROLES[role], days, actor(), _wall_ms())
    _done(as_json, token=secret, number=made.number, role=role, expires=time_text(made.expires_ms))


@token.command("list")
@database_option
@table_options
@click.pass_context
def list_tokens(context: click.Context, database_url: str | None, as_json: bool) -> None:
    """List the tokens that have not expired."""
    rows = [
        {
            "number": issued.number,
            "user": issued.user,
            "name": issued.name,
            "role": issued.role.text,
            "expires": time_text(issued.expires_ms),
            "lastRequest": time_text(issued.used_ms),
            "from": issued.address,
        }
        for issued in _tokens(context, database_url).tokens(_wall_ms())
    ]
    show_rows(rows, as_json=as_json, empty="no token exists")


@token.command("revoke")
@click.argument("number", type=click.IntRange(1))
@database_option
@json_option
@click.pass_context
def revoke_token(context: click.Context, number: int, database_url: str | None, as_json: bool) -> None:
    """Revoke a token: its next request is refused."""
    _tokens(context, database_url).revoke(number, actor(), _wall_ms())
    _done(as_json, token=number, revoked=True)
