"""The client for the length of one command."""

import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import click

from tandemq.cli.support.name_servers import explained

if TYPE_CHECKING:
    from tandemq.client.aio.admin import Admin

T = TypeVar("T")
DEFAULT_NAME_SERVERS = "127.0.0.1:9876"
_LEVELS = {"kazoo": logging.CRITICAL, "tandemq.client.consumer.unreadable": logging.WARNING}

namesrv_option = click.option(
    "--namesrv",
    "-n",
    "name_servers",
    default=DEFAULT_NAME_SERVERS,
    envvar="TANDEMQ_NAMESRV",
    show_default=True,
    show_envvar=True,
    help="Name servers, host:port;host:port.",
)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the log of clients to errors: what they say of their connections is for programs that live longer. A message
    that is passed over is still said."""
    loggers = [logging.getLogger("tandemq")]
    if not logging.getLogger().isEnabledFor(logging.DEBUG):  # tandemq -v: every attempt of ZooKeeper's client is shown
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


def ask(name_servers: str, story: "Callable[[Admin], Awaitable[T]]") -> T:
    """The outcome of what `story` asks of a cluster."""
    from tandemq.client.aio.admin import Admin  # noqa: PLC0415  # --help needs no client

    async def told() -> T:
        async with Admin(name_servers) as admin:
            return await story(admin)

    import asyncio  # noqa: PLC0415  # and no loop

    with quiet(), explained(name_servers):
        return asyncio.run(told())
