"""The server of Kafka consumers: connections and their limits.

A connection's requests are answered one after the other, and the next one is read when the response has been taken.
Malformed requests and ones that are not served close the connection.

Source: docs/guides/kafka-consumers.md.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
from asyncio import StreamReader, StreamWriter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tandemq.errors import ConfigError, LocalError, NetworkError, ProtocolError, TandemError
from tandemq.kafka.front import KafkaFront
from tandemq.real.network.addresses import text_of
from tandemq.real.network.listening import ALL_INTERFACES, bind
from tandemq.real.network.tls import TlsFiles, server_context
from tandemq.real.service_manager import ServiceManager
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
FRAME_BYTES_MAX = 1 << 20
"""Largest request."""
CONNECTIONS_MAX = 1_000
IDLE_S = 600.0
"""Time without a request after which a connection is closed, as by Kafka's brokers."""
SIGN_IN_S = 15.0
"""The same of one that has not signed in yet, if consumers have to; for a TLS handshake too."""
REQUEST_S = 30.0
"""Time within which a request must be complete once it has begun, and a response be taken."""
HELD_S = 30.0
"""Time without a request after which messages are let go that were pulled for a connection."""
READ_BYTES = 1 << 16
"""Received bytes that wait to be read, of one connection."""
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class KafkaAddress:
    """Where the server listens, how consumers reach it, and its certificate."""

    host: str = "127.0.0.1"
    port: int = 9092
    advertised_host: str = ""
    """Host that consumers connect to; "": `host`."""
    certificate: str = ""
    """TLS certificate, PEM; "": no TLS."""
    key: str = ""
    client_authorities: str = ""
    """Authorities, PEM, of the certificates that consumers must present; "": they need none."""

    def context(self) -> ssl.SSLContext | None:
        """Return the context of TLS; None without.

        Raises:
            ConfigError: a file cannot be used, or one is missing.
        """
        if bool(self.certificate) != bool(self.key):
            raise ConfigError("--certificate and --key need each other")
        if not self.certificate:
            if self.client_authorities:
                raise ConfigError("--client-ca needs --certificate and --key")
            return None
        files = TlsFiles(
            self.certificate,
            self.key,
            self.client_authorities,
            cert_setting="--certificate",
            key_setting="--key",
            ca_setting="--client-ca",
        )
        return server_context(files, ssl.CERT_REQUIRED if self.client_authorities else ssl.CERT_NONE)

    @property
    def advertised(self) -> str:
        """Host in responses to consumers.

        Raises:
            ConfigError: the server listens on all interfaces, and none is named.
        """
        if not self.advertised_host and self.host in ALL_INTERFACES:
            raise ConfigError(f"--host {self.host} is no address that consumers can connect to: give --advertised-host")
        return self.advertised_host or self.host

    def listen(self) -> list[socket.socket]:
        """Return listening sockets, one per family for all interfaces.

        Raises:
            LocalError: the address cannot be used.
        """
        try:
            return bind(self.host, self.port)
        except OSError as error:
            where = text_of((self.host, self.port))
            raise LocalError(f"cannot listen on {where}: {error.strerror}", hint="choose another --port") from error


class KafkaServer:
    """Serves connections until it is closed."""

    def __init__(self, front: KafkaFront, context: ssl.SSLContext | None = None) -> None:
        """`context`: of TLS; None: without."""
        self._front = front
        self._context = context
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refusals = Refusals()
        self.refused = 0
        """Connections closed for what they sent, or since there were too many."""

    @property
    def connection_count(self) -> int:
        """Number of open connections."""
        return len(self._tasks)

    async def start(self, listeners: list[socket.socket]) -> None:
        """Accept connections."""
        for listener in listeners:
            server = await asyncio.start_server(
                self._accept,
                sock=listener,
                ssl=self._context,
                ssl_handshake_timeout=None if self._context is None else SIGN_IN_S,
                limit=READ_BYTES,
                backlog=BACKLOG,
            )
            self._servers.append(server)

    async def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _accept(self, reader: StreamReader, writer: StreamWriter) -> None:
        if len(self._tasks) >= CONNECTIONS_MAX:
            self.refused += 1
            self._warn("", f"a connection is refused: there are {len(self._tasks)}")
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        session = self._front.session()
        # asyncio does it only for sockets that name their protocol.
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = writer.get_extra_info("peername")[:2]
        peer = text_of((host, port))
        try:
            while True:
                release = asyncio.get_running_loop().call_later(HELD_S, session.close)
                try:
                    frame = await _read_frame(reader, SIGN_IN_S if session.cluster is None else IDLE_S)
                finally:
                    release.cancel()
                if frame is None:
                    return
                writer.write(await self._front.answer(frame, session))
                async with asyncio.timeout(REQUEST_S):
                    await writer.drain()
                await asyncio.sleep(0)  # others have their turn, too, while requests of this connection wait
        except ProtocolError as error:
            self.refused += 1
            self._warn(host, f"the connection of {peer} is closed: {error}")
        except NetworkError as error:
            self._warn(host, f"the connection of {peer} is closed, brokers do not answer: {error}")
        except TandemError as error:
            log.error("the connection of %s is closed: %s", peer, error)
        except (TimeoutError, OSError, EOFError) as error:
            log.info("the connection of %s ended: %r", peer, error)
        finally:
            self._front.end(session)
            writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def _warn(self, host: str, text: str) -> None:
        """Log why a connection ended, at most once a minute for each host."""
        times = self._refusals.note(host, int(asyncio.get_running_loop().time() * 1000))
        if times:
            log.warning("times=%d %s", times, text)


async def _read_frame(reader: StreamReader, idle_s: float) -> bytes | None:
    """Return the next request; None if the peer has closed the connection, or sent none within `idle_s`.

    Raises:
        ProtocolError: it states an impossible size.
        TimeoutError, EOFError: it was not completed.
    """
    try:
        async with asyncio.timeout(idle_s):
            first = await reader.read(1)
    except TimeoutError:
        return None
    if not first:
        return None
    async with asyncio.timeout(REQUEST_S):
        size = int.from_bytes(first + await reader.readexactly(3), "big")
        if size > FRAME_BYTES_MAX:
            raise ProtocolError(f"a request of {size} bytes: {FRAME_BYTES_MAX} are allowed")
        return await reader.readexactly(size)


async def wait_for_signal(
    ready: Callable[[], None], manager: ServiceManager, where: str, not_ready: Callable[[], Awaitable[str]]
) -> None:
    """Call `ready`, report to the service manager that the loop turns, and return at SIGTERM or SIGINT.

    `where`: the address; `not_ready`: returns why consumers get errors now, or "".
    """
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    ready()
    reason, report_s = "", manager.report_ns / 1e9

    async def look() -> None:
        nonlocal reason
        while True:
            reason = await not_ready()
            await asyncio.sleep(report_s)

    looking = loop.create_task(look())
    while not stopped.is_set():
        manager.alive(f"not ready: {reason}" if reason else f"serving at {where}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), report_s)
    looking.cancel()
    manager.stopping()
