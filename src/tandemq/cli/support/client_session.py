"""An admin client for the duration of one command."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tandemq.cli.support.inherited import InheritedOption
from tandemq.cli.support.name_servers import explained
from tandemq.cli.support.tls import client_tls

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin

T = TypeVar("T")
DEFAULT_NAME_SERVERS = "127.0.0.1:9876"
_LEVELS = {"kazoo": logging.CRITICAL, "tandemq.client.consumer.unreadable": logging.WARNING}


def name_servers_option(text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds --namesrv, which the command gets as `name_servers`; `text`: its help."""
    return click.option(
        "--namesrv",
        "-n",
        "name_servers",
        cls=InheritedOption,
        default=DEFAULT_NAME_SERVERS,
        envvar="TANDEMQ_NAMESRV",
        show_default=True,
        show_envvar=True,
        help=text,
    )


namesrv_option = name_servers_option("Name servers, host:port;host:port.")
optional_namesrv_option = click.option(
    "--namesrv", "-n", "name_servers", cls=InheritedOption, help="Name servers, host:port;host:port."
)
"""--namesrv of servers, whose files may name them; None: not given."""


@contextmanager
def quiet() -> Iterator[None]:
    """Limit the clients' log to errors, as their warnings about connections concern long-running programs.

    Warnings about messages that were skipped because they are unreadable are still logged.
    """
    loggers = [logging.getLogger("tandemq")]
    if not logging.getLogger().isEnabledFor(logging.DEBUG):  # tandemq -v shows every attempt of ZooKeeper's client
        loggers.append(logging.getLogger("kazoo"))
    loggers.append(logging.getLogger("tandemq.client.consumer.unreadable"))
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(_LEVELS.get(logger.name, logging.ERROR))
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


def with_admin(name_servers: str, requests: "Callable[[Admin], Awaitable[T]]") -> T:
    """Run `requests` with an admin client of the cluster, and return its result."""
    from tandemq.client.aio.admin import Admin  # noqa: PLC0415  # --help needs no client

    async def run() -> T:
        async with Admin(name_servers, tls=client_tls() or False) as admin:
            return await requests(admin)

    import asyncio  # noqa: PLC0415  # nor asyncio

    with quiet(), explained(name_servers):
        return asyncio.run(run())
