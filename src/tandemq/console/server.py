"""The process of the console: its application on uvicorn, until SIGTERM or SIGINT.

The first start without a user prints a link that works once, for 15 minutes: it creates the first admin.
"""

import asyncio
import contextlib
import logging
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import uvicorn

from tandemq.client.aio.admin import Admin
from tandemq.console.app import build_app
from tandemq.console.cluster.history import sampling_pauses
from tandemq.console.cluster.tables_thread import TablesThread
from tandemq.console.connections import (
    BACKLOG,
    BoundedProtocol,
    LineLimit,
    Listener,
    busy_descriptors,
    connections_max,
)
from tandemq.console.services import Console, ConsoleSettings, wall_ms
from tandemq.errors import LocalError, TandemError
from tandemq.groupdb.database import GroupDatabase
from tandemq.real.network.addresses import text_of
from tandemq.real.network.listening import ALL_INTERFACES, bind
from tandemq.real.service_manager import ServiceManager

log = logging.getLogger(__name__)
SETUP_MS = 15 * 60_000
STOP_S = 3.0
SAMPLE_FIRST_S, SAMPLE_LAST_S = 5.0, 60.0
"""Pauses between samples for the charts: the first one, and those from the tenth minute on."""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the console listens, and with which certificate."""

    host: str = "127.0.0.1"
    port: int = 8377
    certificate: str = ""
    key: str = ""


@asynccontextmanager
async def open_console(settings: ConsoleSettings, database: GroupDatabase, name_servers: str) -> AsyncIterator[Console]:
    """Open a console without a server, for as long as the body runs."""
    tls = settings.tls or False
    user = settings.credentials
    async with Admin(name_servers, tls=tls, credentials=user) as admin:
        with contextlib.closing(TablesThread(Admin(name_servers, tls=tls, credentials=user))) as tables:
            console = Console(settings, database, admin, name_servers, tables)
            if not await console.run(console.accounts.users):
                console.setup_token = secrets.token_urlsafe(24)
                console.setup_until_ms = wall_ms() + SETUP_MS
            sampler = asyncio.create_task(_sample(console))
            try:
                yield console
            finally:
                sampler.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await sampler
                await console.close()


async def _sample(console: Console) -> None:
    """Record rates and lag for the charts."""
    for pause_s in sampling_pauses(SAMPLE_FIRST_S, SAMPLE_LAST_S):
        try:
            await console.sample()
        except TandemError as error:
            log.info("console: rates and lag are unknown now: %s", error)
        await asyncio.sleep(pause_s)


def listen(address: ListenAddress) -> list[Listener]:
    """Return listening sockets, one per family for all interfaces.

    Raises:
        LocalError: the address cannot be used.
    """
    found: list[socket.socket] = []
    try:
        found = bind(address.host, address.port)
        most = connections_max() // len(found)
        for listener in found:
            listener.listen(BACKLOG)
    except OSError as error:
        for listener in found:
            listener.close()
        where = text_of((address.host, address.port))
        raise LocalError(f"cannot listen on {where}: {error.strerror}", hint="choose another --port") from error
    return [Listener(listener.family, most, listener.detach()) for listener in found]


async def serve(
    settings: ConsoleSettings,
    database: GroupDatabase,
    name_servers: str,
    address: ListenAddress,
    listeners: list[Listener],
    ready: Callable[[str], None],
    manager: ServiceManager,
) -> None:
    """Run the console until a signal; `ready` gets the link to print, `manager` the reports of the loop."""
    async with open_console(settings, database, name_servers) as console:
        config = uvicorn.Config(
            build_app(console),
            log_level="warning",
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=int(STOP_S),
            ssl_certfile=address.certificate or None,
            ssl_keyfile=address.key or None,
            http=BoundedProtocol,
            ws="none",
            backlog=BACKLOG,
        )
        for name in ("uvicorn.error", "asyncio"):
            logging.getLogger(name).addFilter(LineLimit())
        server = _Server(config, console, manager)
        for listener in listeners:
            listener.busy = lambda: busy_descriptors(server.server_state.connections)
        link = link_of(console, listeners[0], is_secure=bool(address.certificate))
        server.status = f"serving at {'/'.join(link.split('/')[:3])}"
        ready(link)
        await server.serve(sockets=[*listeners])


class _Server(uvicorn.Server):
    """A server that ends the streams when it shall exit."""

    def __init__(self, config: uvicorn.Config, console: Console, manager: ServiceManager) -> None:
        super().__init__(config)
        self.status = ""
        self._console = console
        self._manager = manager
        self._reports: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections, and report that the loop turns from then on."""
        await super().startup(sockets=sockets)
        if self.started:
            self._reports = asyncio.create_task(self._report())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; the reports go on until the last response is sent."""
        await super().shutdown(sockets=sockets)
        if self._reports is not None:
            self._reports.cancel()

    async def _report(self) -> None:
        while True:
            self._manager.alive(self.status)
            await asyncio.sleep(self._manager.report_ns / 1e9)

    def handle_exit(self, sig: int, frame: object) -> None:  # noqa: ARG002  # the signature of signal handlers
        """Stop; at the second SIGINT at once. uvicorn's handler raises the signal again: the exit code is not 0."""
        self._manager.stopping()
        self._console.ending.set()
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def link_of(console: Console, listener: socket.socket, *, is_secure: bool) -> str:
    """Return the link to open: the one-time link if there is no user yet."""
    host, port = listener.getsockname()[:2]
    shown = text_of(("127.0.0.1" if host in ALL_INTERFACES else host, port))
    path = console.settings.base_path + (f"/setup/{console.setup_token}" if console.setup_token else "/")
    return f"{'https' if is_secure else 'http'}://{shown}{path}"
