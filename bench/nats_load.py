"""Publishes to a JetStream stream: `python -m bench.nats_load ADDRESS CONNECTIONS WINDOW SECONDS SETTLE_SECONDS`.

    PUB bench.2 _INBOX.15.311 512 | body          each connection has WINDOW publishes without acknowledgement
    MSG _INBOX.15.311 1 30 | {"stream":"BENCH", "seq":4711}

Bodies are those of varied messages (`tandemq.load.wire.frames`); the subject is one of four, as there are four queues;
there are no headers. Requests are rendered before the run; acknowledgements are counted and not decoded. At the end the
stream must have every acknowledged message. Prints a line of JSON.
"""

from __future__ import annotations

import gc
import json
import re
import select
import socket
import sys
import time
from contextlib import closing
from itertools import accumulate
from random import Random
from typing import Any

from tandemq.errors import TandemError
from tandemq.load import LoadError
from tandemq.load.results.report import Stopwatch
from tandemq.load.wire.frames import VARIED_BODY_MAX, VARIED_BODY_MIN, body_text
from tandemq.load.wire.sockets import LoadConnection, connect

STREAM = "BENCH"
_SUBJECTS = 4
_MESSAGES = 20_000  # Different ones, of all connections.
_MESSAGES_MIN = 256  # Of each connection.
_POLL_S = 0.1
_SILENCE_S = 30.0
_DRAIN_S = 10.0
_CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"bench","version":"1"}\r\n'
_MESSAGE = re.compile(rb"MSG \S+ \S+ (\d+)\r\n")


class AckCounter:
    """Counts acknowledgements in received bytes, whole lines at a time."""

    def __init__(self) -> None:
        """Start with none."""
        self.stored = self.refused = 0
        self.first_refusal = ""
        self._rest = b""

    def feed(self, data: bytes) -> bool:
        """Count what is complete; return whether the server asks for a PONG.

        Raises:
            LoadError: the server reports an error of the protocol.
        """
        whole = self._rest + data
        end = whole.rfind(b"\n") + 1
        lines, self._rest = whole[:end], whole[end:]
        self.stored += lines.count(b'"seq":')
        if b'"error":' in lines:
            refusals = [line for line in lines.splitlines() if line.startswith(b'{"error":')]
            self.refused += len(refusals)
            self.stored -= sum(b'"seq":' in line for line in refusals)
            self.first_refusal = self.first_refusal or refusals[0].decode(errors="replace")
        if b"-ERR" in lines:
            raise LoadError(lines[lines.index(b"-ERR") :].splitlines()[0].decode(errors="replace"))
        return b"PING\r\n" in lines

    @property
    def answered(self) -> int:
        """Return the number of publishes that were answered."""
        return self.stored + self.refused


class Publishes:
    """Prepared publishes of one connection, used again and again."""

    def __init__(self, connection: int, count: int) -> None:
        """Render them; `connection` numbers the inbox that the acknowledgements come to."""
        random, text = Random(connection), body_text(1 << 15)
        frames, sizes = [], []
        for number in range(count):
            size = random.randint(VARIED_BODY_MIN, VARIED_BODY_MAX)
            at = random.randrange(len(text) - size)
            head = b"PUB bench.%d _INBOX.%d.%d %d\r\n" % (random.randrange(_SUBJECTS), connection, number, size)
            frames.append(b"".join([head, text[at : at + size], b"\r\n"]))
            sizes.append(size)
        self._view = memoryview(b"".join(frames))
        self._ends = [0, *accumulate(map(len, frames))]
        self._next = 0
        self.count = count
        self.mean_body_bytes = sum(sizes) / count

    def take(self, count: int) -> memoryview | bytes:
        """Return `count` publishes, at most as many as there are, in one piece."""
        first, self._next = self._next, self._next + count
        if self._next <= self.count:
            return self._view[self._ends[first] : self._ends[self._next]]
        self._next -= self.count
        return bytes(self._view[self._ends[first] :]) + bytes(self._view[: self._ends[self._next]])


class _Publisher:
    def __init__(self, address: str, epoll: select.epoll, number: int, count: int) -> None:
        self.link = LoadConnection(address, epoll)
        self.publishes = Publishes(number, count)
        self.acks = AckCounter()
        self.link.send(_CONNECT + b"SUB _INBOX.%d.* 1\r\n" % number)

    def send(self, count: int) -> None:
        self.link.send(self.publishes.take(count))

    def receive(self) -> int:
        """Return the number of publishes that were answered."""
        before = self.acks.answered
        if self.acks.feed(self.link.receive()):
            self.link.send(b"PONG\r\n")
        return self.acks.answered - before


class _Run:
    def __init__(self, address: str, connections: int, window: int) -> None:
        self.epoll = select.epoll()
        count = max(_MESSAGES // connections, _MESSAGES_MIN, window)
        publishers = [_Publisher(address, self.epoll, number, count) for number in range(connections)]
        self.publishers = {one.link.fd: one for one in publishers}
        self.window = window
        self.open = 0

    def begin(self) -> None:
        for one in self.publishers.values():
            one.send(self.window)
            self.open += self.window

    def turn(self, sending: bool) -> None:
        for fd, event in self.epoll.poll(_POLL_S):
            one = self.publishers[fd]
            if event != select.EPOLLIN:
                one.link.ready(event)
            if event & ~select.EPOLLOUT and (freed := one.receive()):
                self.open -= freed
                if sending:
                    one.send(freed)
                    self.open += freed

    def until(self, end: float) -> None:
        """Keep the windows full until `end`, of time.perf_counter."""
        while time.perf_counter() < end:
            self.turn(sending=True)

    def drain(self) -> None:
        """Wait for the publishes in flight."""
        end = time.perf_counter() + _DRAIN_S
        while self.open and time.perf_counter() < end:
            self.turn(sending=False)

    def close(self) -> None:
        for one in self.publishers.values():
            one.link.close()
        self.epoll.close()

    @property
    def stored(self) -> int:
        return sum(one.acks.stored for one in self.publishers.values())


def publish(address: str, connections: int, window: int, seconds: float, settle_s: float) -> dict[str, Any]:
    """Create the stream if it is missing, put the load on it, and return rates.

    Raises:
        NotConnected: no connection.
        LoadError: no acknowledgements, or acknowledged messages that the stream lacks.
    """
    before = _stream_messages(address)
    run = _Run(address, connections, window)
    with closing(run):
        run.begin()
        run.until(time.perf_counter() + settle_s)
        stored, watch = run.stored, Stopwatch()
        run.until(watch.wall + seconds)
        elapsed = watch.read()
        messages = run.stored - stored
        run.drain()
    if not messages:
        refusals = [one.acks.first_refusal for one in run.publishers.values() if one.acks.refused]
        raise LoadError(f"nothing is acknowledged; {refusals[0] if refusals else 'no response'}")
    if (added := _stream_messages(address) - before) < run.stored:
        raise LoadError(f"{run.stored:,} messages were acknowledged, but the stream has {added:,}")
    mean = sum(one.publishes.mean_body_bytes for one in run.publishers.values()) / connections
    return {
        "messages": messages,
        "seconds": round(elapsed.seconds, 3),
        "messages_per_s": round(messages / elapsed.seconds, 1),
        "mb_per_s": round(messages * mean / elapsed.seconds / 1e6, 2),
        "refused": sum(one.acks.refused for one in run.publishers.values()),
        "unanswered": run.open,
        "cpu_share": elapsed.cpu_share,
    }


def _stream_messages(address: str) -> int:
    """Return the number of messages in the stream; create it first."""
    config = {"name": STREAM, "subjects": ["bench.*"], "storage": "file", "num_replicas": 1, "retention": "limits"}
    with connect(address, _SILENCE_S) as server:
        found = _request(server.socket, f"STREAM.INFO.{STREAM}", {})
        if "error" in found:
            found = _request(server.socket, f"STREAM.CREATE.{STREAM}", config)
        if "error" in found:
            raise LoadError(f"the stream was refused: {found['error']}")
        return int(found["state"]["messages"])


def _request(sock: socket.socket, subject: str, content: dict[str, Any]) -> dict[str, Any]:
    """Send one request to JetStream's API on a connection and return the response."""
    body = json.dumps(content).encode()
    publish = f"PUB $JS.API.{subject} _INBOX.api {len(body)}\r\n".encode()
    sock.sendall(_CONNECT + b"SUB _INBOX.api 1\r\nUNSUB 1 1\r\n" + publish + body + b"\r\n")
    received = b""
    while True:
        piece = sock.recv(1 << 16)
        if not piece:
            raise LoadError("the server closed the connection")
        received += piece
        head = _MESSAGE.search(received)
        if head is not None and len(received) >= head.end() + int(head[1]):
            response: dict[str, Any] = json.loads(received[head.end() : head.end() + int(head[1])])
            return response


def main(arguments: list[str]) -> int:
    """Run the load; return the exit code."""
    address, connections, window, seconds, settle_s = arguments
    try:
        result = publish(address, int(connections), int(window), float(seconds), float(settle_s))
    except (TandemError, OSError) as error:
        sys.stderr.write(f"nats_load: {error}\n")
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    gc.disable()  # As tandemq.load does.
    sys.exit(main(sys.argv[1:]))
