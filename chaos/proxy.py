"""TCP proxy between two processes that can disturb the traffic.

pass    forward bytes both ways
cut     reset open connections, refuse new ones
stall   accept connections and forward nothing; when it ends, everything that waited
hole    accept connections, read and drop all bytes: the other side sees no error
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal

Behaviour = Literal["pass", "cut", "stall", "hole"]
_PIECE_BYTES = 64 * 1024


class ProxyLoop:
    """The thread in which all proxies run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self.loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and with it every listener and connection."""
        asyncio.run_coroutine_threadsafe(self._end(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _end(self) -> None:
        for server in self.servers:
            server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Proxies:
    """Proxies of one broker to all servers of its registry, which behave alike."""

    def __init__(self, where: ProxyLoop, hosts: str) -> None:
        """Start to listen; `hosts`: "host:port,host:port" of the servers."""
        targets = [host.rpartition(":") for host in hosts.split(",")]
        self._proxies = [Proxy(where, ("127.0.0.1", 0), (name, int(port))) for name, _, port in targets]
        self.address = ",".join(proxy.address for proxy in self._proxies)

    def behave(self, behaviour: Behaviour) -> None:
        """Change the behaviour; callable from any thread."""
        for proxy in self._proxies:
            proxy.behave(behaviour)


class Proxy:
    """Forwards connections from one address to another."""

    def __init__(self, where: ProxyLoop, listen: tuple[str, int], target: tuple[str, int]) -> None:
        """Start to listen; port 0 takes a free one, see `address`."""
        self._where = where
        self._target = target
        self._behaviour: Behaviour = "pass"
        self._passes = asyncio.Event()
        self._passes.set()
        self._open: set[asyncio.StreamWriter] = set()
        begun = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._accept, *listen), where.loop)
        where.servers.append(begun.result())
        host, port = where.servers[-1].sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"

    def behave(self, behaviour: Behaviour) -> None:
        """Change the behaviour; callable from any thread."""
        self._where.loop.call_soon_threadsafe(self._behave, behaviour)

    def _behave(self, behaviour: Behaviour) -> None:
        before, self._behaviour = self._behaviour, behaviour
        if behaviour == "stall":
            self._passes.clear()
        else:
            self._passes.set()
        if behaviour == "cut" or before == "hole":  # bytes are missing, so the connection cannot continue
            for writer in list(self._open):
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._behaviour == "cut":
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._carry(reader, far_writer), self._carry(far_reader, writer))
        self._open -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                await self._passes.wait()
                if self._behaviour != "hole":
                    writer.write(data)
                    await writer.drain()
        finally:
            writer.transport.abort() if self._behaviour == "cut" else writer.close()
