"""Connections of the console: limits of time, of number, and of log lines."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tandemq.console import connections
from tandemq.console.connections import BoundedProtocol, LineLimit, Listener, busy_descriptors

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n"
WAIT_S = 60.0


async def application(arrived: asyncio.Queue[None], scope: Scope, receive: Receive, send: Send) -> None:
    """Return the body, after all of it has arrived; at /held never, at /endless a body without end."""
    body = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body += message["body"]
        if not message["more_body"]:
            break
    if scope["path"] == "/held":
        arrived.put_nowait(None)
        await receive()
        return
    if scope["path"] == "/endless":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        left = asyncio.ensure_future(receive())
        while not left.done():
            await send({"type": "http.response.body", "body": bytes(1 << 16), "more_body": True})
            await asyncio.sleep(0)
        arrived.put_nowait(None)
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def served(most: int) -> AsyncIterator[tuple[int, asyncio.Queue[None]]]:
    """Serve the application; yields the port, and a queue with an item for each request of /held, and for each
    response of /endless that has ended."""
    arrived: asyncio.Queue[None] = asyncio.Queue()
    config = uvicorn.Config(
        partial(application, arrived),
        interface="asgi3",
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
    )
    state = ServerState()
    loop = asyncio.get_running_loop()
    listener = Listener(socket.AF_INET, most, socket.create_server(("127.0.0.1", 0)).detach())
    listener.busy = lambda: busy_descriptors(state.connections)
    server = await loop.create_server(lambda: BoundedProtocol(config, state, {}), sock=listener, backlog=1)
    try:
        yield int(listener.getsockname()[1]), arrived
    finally:
        server.close()
        for one in list(state.connections):
            assert isinstance(one, BoundedProtocol)
            one.transport.abort()
        await asyncio.gather(*state.tasks)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes a connection."""
    with contextlib.suppress(ConnectionResetError):
        return await asyncio.wait_for(reader.read(), WAIT_S) == b""
    return True


@pytest.mark.parametrize("part", [b"", HEAD, HEAD + b"\r\nab"])
def test_requests_that_do_not_arrive_in_time_are_disconnected(part: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)
    monkeypatch.setattr(connections, "BODY_S", 0.05)

    async def run() -> None:
        async with served(10) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(part)
            assert await is_closed(reader)
            writer.close()

    asyncio.run(run())


def test_bytes_that_arrive_slowly_do_not_prolong_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.2)

    async def run() -> None:
        async with served(10) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            ended = asyncio.create_task(is_closed(reader))
            with contextlib.suppress(ConnectionError):
                while not ended.done():
                    writer.write(b"GET /")
                    await writer.drain()
                    await asyncio.wait([ended], timeout=0.02)
            assert await ended
            writer.close()

    asyncio.run(run())


def test_peer_that_does_not_read_a_streamed_response_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_S", 0.05)

    async def run() -> None:
        async with served(10) as (port, ended):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
                await asyncio.wait_for(ended.get(), WAIT_S)

    asyncio.run(run())


def test_peer_that_reads_a_streamed_response_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[bool] = []

    def noting(name: str) -> None:
        original = getattr(BoundedProtocol, name)

        def call(protocol: BoundedProtocol) -> None:
            original(protocol)
            limits.append(protocol._timer is not None)

        monkeypatch.setattr(BoundedProtocol, name, call)

    async def run() -> None:
        loop = asyncio.get_running_loop()
        async with served(10) as (port, _), asyncio.timeout(WAIT_S):
            with socket.create_connection(("127.0.0.1", port)) as peer:
                peer.sendall(b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n")
                peer.setblocking(False)
                while len(limits) < 2:
                    if limits:
                        await loop.sock_recv(peer, 1 << 20)
                    await asyncio.sleep(0)

    noting("pause_writing")
    noting("resume_writing")
    asyncio.run(run())
    assert limits[:2] == [True, False]


def test_several_requests_use_one_connection() -> None:
    async def run() -> None:
        async with served(10) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for body in (b"abcd", b"efgh"):
                writer.write(HEAD + b"\r\n" + body)
                assert (await asyncio.wait_for(reader.readuntil(body), WAIT_S)).startswith(b"HTTP/1.1 200 ")
            writer.close()

    asyncio.run(run())


@pytest.mark.parametrize("head", ["1.1\r\nContent-Length: 4", "1.0"])
def test_request_that_a_proxy_may_frame_otherwise_is_refused(head: str) -> None:
    async def run() -> bytes:
        async with served(10) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"POST / HTTP/{head}\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode())
            response = await asyncio.wait_for(reader.read(), WAIT_S)
            writer.close()
            return response

    assert asyncio.run(run()).startswith(b"HTTP/1.1 400 ")


def test_one_more_connection_closes_the_oldest_that_waits_for_its_peer() -> None:
    async def run() -> None:
        async with served(3) as (port, arrived):
            held = await asyncio.open_connection("127.0.0.1", port)
            held[1].write(b"GET /held HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(arrived.get(), WAIT_S)
            pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            for _, writer in pairs:
                writer.write(HEAD)
            assert await is_closed(pairs[0][0])
            pairs[2][1].write(b"\r\nabcd")
            assert b"abcd" in await asyncio.wait_for(pairs[2][0].readuntil(b"abcd"), WAIT_S)
            assert not held[0].at_eof() and not pairs[1][0].at_eof()
            for _, writer in [held, *pairs]:
                writer.close()

    asyncio.run(run())


def test_one_more_connection_is_closed_if_all_others_are_busy() -> None:
    async def run() -> None:
        async with served(2) as (port, arrived):
            pairs = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
            for _, writer in pairs:
                writer.write(HEAD.replace(b"/", b"/held", 1) + b"\r\nabcd")
                await asyncio.wait_for(arrived.get(), WAIT_S)
            third = await asyncio.open_connection("127.0.0.1", port)
            third[1].write(HEAD)
            assert await is_closed(third[0])
            assert not any(reader.at_eof() for reader, _ in pairs)
            for _, writer in [*pairs, third]:
                writer.close()

    asyncio.run(run())


def test_busy_connection_whose_socket_is_gone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the transport of a TLS connection that has ended."""
    monkeypatch.setattr(BoundedProtocol, "is_busy", True)

    async def run() -> set[int]:
        found: list[BoundedProtocol] = []
        config = uvicorn.Config(application, http=BoundedProtocol, ws="none", lifespan="off", log_config=None)
        for own in (None, SimpleNamespace(fileno=lambda: 7)):
            protocol: Any = BoundedProtocol(config, ServerState(), {})
            protocol.transport = SimpleNamespace(get_extra_info=lambda _name, own=own: own)
            found.append(protocol)
        return busy_descriptors(found)

    assert asyncio.run(run()) == {7}


def test_log_lines_are_limited_by_minute_and_counted() -> None:
    now = 0.0
    limit = LineLimit(lambda: now)

    def logged() -> str:
        record = logging.LogRecord("a", logging.WARNING, "", 0, "line %d", (1,), None)
        return record.getMessage() if limit.filter(record) else ""

    assert [logged() for _ in range(100)] == ["line 1"] * 20 + [""] * 80
    now = 61.0
    assert logged() == "line 1 (80 lines before were left out)"
    assert logged() == "line 1"
