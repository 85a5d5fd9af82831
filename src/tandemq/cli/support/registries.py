"""Options and sessions of commands that use the registry: its address and its secret."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tandemq.cli.support.tls import client_tls
from tandemq.errors import ConfigError, LocalError, RemoteError

if TYPE_CHECKING:
    from tandemq.run.registry_session import RegistryClient

_F = TypeVar("_F", bound=Callable[..., Any])
_META = "tandemq.secret_file"
ADDRESSES = "zookeeper://host:2181,host:2181, etcd://host:2379,host:2379 or namesrv://host:9876"
"""Examples of addresses, for help."""


def registry_option(text: str, **settings: Any) -> Callable[[_F], _F]:
    """Add the options `--registry ADDRESS`, with the help `text`, and `--secret-file`, which `open_registry` reads."""

    def added(command: _F) -> _F:
        command = click.option(
            "--secret-file",
            envvar="TANDEMQ_SECRET_FILE",
            metavar="PATH",
            show_envvar=True,
            expose_value=False,
            callback=_remember,
            help="Secret file of the name server that hosts the registry: its haSecretFile, if set.",
        )(command)
        return click.option(
            "--registry", envvar="TANDEMQ_REGISTRY", metavar="ADDRESS", show_envvar=True, help=text, **settings
        )(command)

    return added


def _remember(context: click.Context, _parameter: click.Parameter, value: str | None) -> None:
    context.meta[_META] = value or ""


def open_registry(address: str) -> "RegistryClient":
    """Open a session at the registry, authenticated with the command's secret file if one was given.

    Raises:
        ConfigError: the address is malformed, or the file cannot be used.
        NotConnected, RemoteError: the registry does not answer, or the authentication fails.
    """
    from tandemq.registry import parse_address  # noqa: PLC0415  # not for --help
    from tandemq.run.registry_session import RegistryClient  # noqa: PLC0415

    try:
        parsed = parse_address(address)
    except LocalError as error:
        raise ConfigError(str(error)) from error
    return RegistryClient(parsed, secret_file=secret_file(), tls=client_tls())


def children(client: "RegistryClient", path: str) -> tuple[str, ...]:
    """Return the names of the nodes below a path of the registry; none if it does not exist.

    Raises:
        RemoteError: the registry does not answer, or refuses.
    """
    from tandemq.registry import Names, NodeMissing, ReadChildren  # noqa: PLC0415

    match client.do(ReadChildren(path)):
        case Names(children=names):
            return tuple(names)
        case NodeMissing():
            return ()
        case outcome:
            raise RemoteError(f"the registry does not list the nodes below {path}: {outcome}")


def secret_file() -> str:
    """Return the secret file that the command was given; "" for none."""
    return str(click.get_current_context().meta.get(_META, ""))
