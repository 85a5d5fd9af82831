"""Pops from one broker as fast as it answers, and the acknowledgement of each message.

    python -m bench.pop_load 127.0.0.1:10911 --topic T --group g --connections 16 --seconds 5

Each connection has one pop in the air. Its messages are acknowledged at once, one request each as Java's push consumers
do, or with `--acks batch` one request for each pop as proxies do; `none` leaves them in flight. The next pop follows
when they are answered. With `--acks later` nothing is acknowledged while pops go on; then all is, with 64 requests in
flight per connection, and `ack_seconds` is the time of these alone. It prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time
from collections import Counter

from msgspec.json import decode

from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.pops import AckedMessage, PopQuery, batch_ack_request, pop_request
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.pop import Handle, TopicKind, pop_retry_topic

_RECEIVE_BYTES = 1 << 20
_BROKER = "broker-a"
_WINDOW = 64
_OPAQUE = b'"opaque":7,'
"""In each acknowledgement and its response, and in no pop."""


class Popping:
    """One connection."""

    def __init__(self, args: argparse.Namespace) -> None:
        """Connect."""
        host, _, port = args.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._acks = args.acks
        self._group, self._topic = args.group, args.topic
        query = PopQuery(args.group, args.topic, args.batch, args.invisible_ms, "*", "TAG", starts_at_end=False)
        self._pop = encode_command(pop_request(query, 1_000))
        self._buffer = b""
        self._waiting = 0
        """Acknowledgements that are not answered."""
        self.popped = self.acked = self.pops = 0
        self.failures: Counter[int] = Counter()
        self._later: list[bytes] = []
        self.socket.sendall(self._pop)

    def receive(self) -> None:
        """Handle what has arrived."""
        for header in self._headers():
            self._answered(header)

    def _headers(self) -> list[bytes]:
        """Receive, and return the headers of whole responses."""
        headers: list[bytes] = []
        data = self._buffer + self.socket.recv(_RECEIVE_BYTES)
        at = 0
        while len(data) - at >= 8:
            size = int.from_bytes(data[at : at + 4])
            if len(data) - at < 4 + size:
                break
            header_bytes = int.from_bytes(data[at + 5 : at + 8])
            headers.append(data[at + 8 : at + 8 + header_bytes])
            at += 4 + size
        self._buffer = data[at:]
        return headers

    def acknowledge(self) -> bool:
        """Send the first of the requests that `--acks later` kept; return whether there are any."""
        self._send(_WINDOW)
        return self._waiting > 0

    def receive_acks(self) -> bool:
        """Count responses, and send as many further requests; return whether any are not answered."""
        headers = [header for header in self._headers() if _OPAQUE in header]  # the last pop is answered too
        for header in headers:
            if b'"code":0,' not in header:
                self.failures[decode(header)["code"]] += 1
        self._waiting -= len(headers)
        self.acked += len(headers)
        self._send(len(headers))
        return self._waiting > 0

    def _send(self, count: int) -> None:
        frames = [self._later.pop() for _ in range(min(count, len(self._later)))]
        self._waiting += len(frames)
        self.socket.sendall(b"".join(frames))

    def _answered(self, header: bytes) -> None:
        answer = decode(header)
        if self._waiting:
            self._waiting -= 1
            if answer["code"] != ResponseCode.SUCCESS:
                self.failures[answer["code"]] += 1
            if not self._waiting:
                self.socket.sendall(self._pop)
            return
        self.pops += 1
        if answer["code"] != ResponseCode.SUCCESS:
            if answer["code"] not in (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND):
                self.failures[answer["code"]] += 1
            self.socket.sendall(self._pop)
            return
        requests, count = self._requests(answer["extFields"])
        self.popped += count
        if self._acks == "later":
            self._later += requests
            self.socket.sendall(self._pop)
            return
        self.acked += count if requests else 0
        self._waiting = len(requests)
        self.socket.sendall(b"".join(requests) or self._pop)

    def _requests(self, fields: dict[str, str]) -> tuple[list[bytes], int]:
        """Return the acknowledgements of a pop, and the number of its messages."""
        pop_ms, invisible_ms, revive_queue = fields["popTime"], fields["invisibleTime"], fields["reviveQid"]
        starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
        frames: list[bytes] = []
        acked: list[AckedMessage] = []
        count = 0
        for part in fields["msgOffsetInfo"].split(";"):
            kind, queue_id, listed = part.split(" ")
            offsets = listed.split(",")
            count += len(offsets)
            start = starts[f"{kind} {queue_id}"]
            if self._acks == "batch":
                handle = Handle(
                    int(start),
                    int(pop_ms),
                    int(invisible_ms),
                    int(revive_queue),
                    TopicKind(int(kind)),
                    _BROKER,
                    int(queue_id),
                    0,
                )
                acked += [AckedMessage(handle._replace(offset=int(offset)), self._topic) for offset in offsets]
            elif self._acks in ("each", "later"):
                topic = pop_retry_topic(self._group, self._topic, TopicKind(int(kind)))
                about = f"{start} {pop_ms} {invisible_ms} {revive_queue} {kind} {_BROKER} {queue_id}"
                frames += [_ack(self._group, topic, queue_id, offset, about) for offset in offsets]
        return ([encode_command(batch_ack_request(acked, self._group, _BROKER))] if acked else frames), count


def _ack(group: str, topic: str, queue_id: str, offset: str, about: str) -> bytes:
    header = (
        f'{{"code":{RequestCode.ACK_MESSAGE:d},"extFields":{{"consumerGroup":"{group}","topic":"{topic}",'
        f'"queueId":"{queue_id}","offset":"{offset}","extraInfo":"{about} {offset}"}},"flag":0,"language":"JAVA",'
        f'{_OPAQUE.decode()}"serializeTypeCurrentRPC":"JSON","version":475}}'
    ).encode()
    return (len(header) + 4).to_bytes(4) + len(header).to_bytes(4) + header


def main() -> None:
    """Pop, and print what was done."""
    parser = argparse.ArgumentParser(prog="python -m bench.pop_load", description=__doc__)
    parser.add_argument("address", help="ip:port of a broker")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--batch", type=int, default=32, help="messages of a pop, at most")
    parser.add_argument("--acks", choices=("each", "batch", "none", "later"), default="each")
    parser.add_argument("--invisible-ms", type=int, default=60_000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--count", type=int, default=0, help="messages after which it ends earlier; 0: it does not")
    args = parser.parse_args()
    began = time.perf_counter()
    with selectors.DefaultSelector() as selector:
        links = [Popping(args) for _ in range(args.connections)]
        for link in links:
            selector.register(link.socket, selectors.EVENT_READ, link)
        while time.perf_counter() - began < args.seconds:
            for key, _ in selector.select(0.1):
                key.data.receive()
            if args.count and sum(link.popped for link in links) >= args.count:
                break
        seconds = time.perf_counter() - began
        began = time.perf_counter()
        waiting = {link for link in links if link.acknowledge()}
        while waiting:
            for key, _ in selector.select():
                if not key.data.receive_acks():
                    waiting.discard(key.data)
        ack_seconds = time.perf_counter() - began
    failures: Counter[int] = sum((link.failures for link in links), Counter())
    found = {
        "popped": sum(link.popped for link in links),
        "acked": sum(link.acked for link in links),
        "pops": sum(link.pops for link in links),
        "seconds": seconds,
        "ack_seconds": ack_seconds,
        "failures": failures,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
