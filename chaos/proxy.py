"""TCP proxy between two processes that can disturb the traffic.

pass    forward bytes both ways
cut     reset open connections, refuse new ones
stall   accept connections and forward nothing; when it ends, everything that waited
hole    accept connections, read and drop all bytes: the other side sees no error
slow    forward SLOW_BYTES a second each way, over all connections together
jitter  forward each piece after up to JITTER_SECONDS, in order

stall-in, hole-in     one direction only: towards the target; responses pass
stall-out, hole-out   from the target; requests pass
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from random import Random
from typing import Literal, get_args

Behaviour = Literal["pass", "cut", "stall", "stall-in", "stall-out", "hole", "hole-in", "hole-out", "slow", "jitter"]
BEHAVIOURS: tuple[Behaviour, ...] = get_args(Behaviour)
SLOW_BYTES = 50_000
JITTER_SECONDS = 0.2
_PIECE_BYTES = 64 * 1024
_SLOW_PIECE_BYTES = 2_048
_IN, _OUT = "in", "out"


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
        await asyncio.sleep(0)  # what has just been accepted begins, and ends its connection when it is cancelled
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
        self._passes = {_IN: asyncio.Event(), _OUT: asyncio.Event()}
        for passes in self._passes.values():
            passes.set()
        self._free_at = {_IN: 0.0, _OUT: 0.0}
        """When a slow direction has forwarded what it has taken."""
        self._random = Random(0)
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
        for direction, passes in self._passes.items():
            passes.clear() if behaviour in ("stall", f"stall-{direction}") else passes.set()
        if behaviour == "cut" or before.startswith("hole"):  # bytes are missing, so the connection cannot continue
            for writer in list(self._open):
                writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut():
            writer.transport.abort()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except (OSError, asyncio.CancelledError):
            writer.transport.abort()
            return
        if self._is_cut():  # meanwhile
            writer.transport.abort()
            far_writer.transport.abort()
            return
        self._open |= {writer, far_writer}
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(self._carry(reader, far_writer, _IN), self._carry(far_reader, writer, _OUT))
        self._open -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        try:
            while data := await reader.read(_PIECE_BYTES):
                while data:
                    size = _SLOW_PIECE_BYTES if self._behaviour == "slow" else len(data)
                    await self._forward(data[:size], writer, direction)
                    data = data[size:]
        except asyncio.CancelledError:
            writer.transport.abort()  # at the end nobody waits until all is sent
            raise
        finally:
            writer.transport.abort() if self._is_cut() else writer.close()

    def _is_cut(self) -> bool:
        return self._behaviour == "cut"

    async def _forward(self, data: bytes, writer: asyncio.StreamWriter, direction: str) -> None:
        if self._behaviour == "slow":
            now = self._where.loop.time()
            self._free_at[direction] = max(now, self._free_at[direction]) + len(data) / SLOW_BYTES
            await asyncio.sleep(self._free_at[direction] - now)
        elif self._behaviour == "jitter":
            await asyncio.sleep(self._random.uniform(0.0, JITTER_SECONDS))
        await self._passes[direction].wait()
        if self._behaviour not in ("hole", f"hole-{direction}"):
            writer.write(data)
            await writer.drain()
