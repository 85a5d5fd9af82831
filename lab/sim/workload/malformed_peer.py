"""Peer that connects to every port and sends malformed input, which must have no effect.

    random bytes · lengths beyond all limits · truncated frames · invalid headers · unknown codes, missing fields ·
    requests in the wrong form · reports and hellos at replication ports

It sends nothing that is a valid request of a client: without authentication brokers accept those from anyone.
"""

import json
from collections.abc import Sequence
from random import Random

from lab.sim.world.network import Network
from tandemq.boundary import Connect, Event, LinkKind, Now, Opened, Turn
from tandemq.client.core.calls import Timers
from tandemq.codec.ha import HELLO_MARK, REPORT, SlaveHello, encode_hello
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.command import Command

CODES = (0, 3, 9, 10, 11, 12, 14, 15, 29, 30, 31, 32, 33, 36, 41, 42, 103, 104, 105, 310, 320, 322, 7301, 65_535, -1)


class MalformedPeer:
    """Connects to a random port, sends one thing, waits a while, disconnects. See `boundary.Node`."""

    name = "malformed-peer"

    def __init__(self, random: Random, network: Network) -> None:
        """`network`: lists the open ports."""
        self.random = random
        self._network = network
        self._timers = Timers()
        self._timers.at(2_000, self._talk)
        self._count = 0
        self._out = Turn()
        self._unsent: dict[int, bytes] = {}
        """Bytes to send on connections that are not open yet."""

    def turn(self, _received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """See `boundary.Node`. Responses are ignored."""
        for event in events:
            if isinstance(event, Opened) and event.link in self._unsent:
                self._out.send(event.link, self._unsent.pop(event.link))
        self._timers.run(now)
        out, self._out = self._out, Turn()
        return out

    def deadline_ms(self) -> int | None:
        """See `boundary.Node`."""
        return self._timers.next_ms()

    def _talk(self, now: Now) -> None:
        ports = self._network.addresses()
        if ports:
            address, kind = self.random.choice(ports)
            self._count += 1
            link = -self._count
            self._unsent[link] = self._words_for_replication() if kind is LinkKind.HA_MASTER else self._words()
            self._out.connects.append(Connect(link, LinkKind.PEER, address))
            self._timers.at(now.mono_ms + self.random.randrange(100, 3_000), lambda _: self._leave(link))
        self._timers.at(now.mono_ms + self.random.randrange(400, 4_000), self._talk)

    def _leave(self, link: int) -> None:
        self._unsent.pop(link, None)
        self._out.closes.append((link, "enough"))

    def _words(self) -> bytes:
        random = self.random
        kind = random.randrange(7)
        if kind == 0:
            return random.randbytes(random.randrange(1, 300))
        if kind == 1:
            return random.choice((0, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 24)).to_bytes(4) + random.randbytes(12)
        if kind == 2:
            return (20).to_bytes(4) + (10).to_bytes(4) + random.randbytes(16)
        if kind == 3:
            header = random.choice(
                (b"{}", b"[]", b"null", b'{"code":', b'{"code":310}', b'{"code":11,"extFields":{"topic":[]}}')
            )
            return (4 + len(header)).to_bytes(4) + len(header).to_bytes(4) + header
        if kind == 4:
            whole = encode_command(Command(random.choice(CODES), 7, fields={"topic": "No such topic", "queueId": "-5"}))
            return whole[: random.randrange(1, len(whole))]
        if kind == 5:
            command = Command(random.choice(CODES), 7, random.choice((0, 2)), fields={}, binary=random.random() < 0.5)
            return encode_command(command)
        body = random.choice((b"", b"{", json.dumps({"mqSet": 5}).encode(), random.randbytes(30)))
        return encode_command(Command(random.choice((34, 41, 42, 46, 103, 322)), 9, body=body))

    def _words_for_replication(self) -> bytes:
        random = self.random
        kind = random.randrange(5)
        if kind == 0:
            return random.randbytes(random.randrange(1, 100))
        if kind == 1:
            return REPORT.pack(random.choice((0, 1, 100_000, (1 << 62), -1))) * random.randrange(1, 4)
        if kind == 2:
            return HELLO_MARK + random.choice((b"\x7f\xff\xff\xff", b"\0\0\0\2{}", b"\0\0\0\5[1,2]", b"\0\0\0\0"))
        if kind == 3:
            return HELLO_MARK[: random.randrange(1, 8)]
        hello = SlaveHello(
            "Another", random.choice(("broker-a", "broker-z")), random.choice((-1, 0, 7)), 1, 0, 1 << 20, 1 << 14
        )
        return encode_hello(hello) + b"\0" + REPORT.pack(1 << 20)
