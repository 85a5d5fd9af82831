"""A broker in memory with the requests that the load generator uses: sends, pulls with long poll, two queries.

One thread, one epoll loop, no storage. It responses as RocketMQ does; what it holds can be looked at by the test.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any


def record(queue_id: int, queue_offset: int, log_offset: int, body: bytes) -> bytes:
    """Return a commit log record with IPv4 hosts, with valid sizes and offsets only."""
    size = 91 + len(body)
    head = struct.pack(">IIIIIqqI", size, 0xDAA320A7, 0, queue_id, 0, queue_offset, log_offset, 0)
    hosts_and_times = bytes(8 + 8 + 8 + 8 + 4 + 8)
    return head + hosts_and_times + struct.pack(">I", len(body)) + body + b"\0" + b"\0\0"


@dataclass
class Held:
    """A held pull."""

    connection: socket.socket
    opaque: int
    queue_offset: int


@dataclass
class FakeBroker:
    """Queues of one topic; a message is stored in the queue that its request names."""

    queue_count: int = 4
    per_answer: int = 32
    code: int = 0  # What sends are answered with.
    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0), backlog=512))
    queues: list[list[bytes]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    held: dict[int, list[Held]] = field(default_factory=dict)
    log_end: int = 0
    keep_requests: bool = False
    sends: int = 0
    busy_at: frozenset[int] = frozenset()  # Numbers of sends that are answered SYSTEM_BUSY.
    halves: dict[int, dict[str, Any]] = field(default_factory=dict)  # Fields of half messages, by queue offset.
    commits: list[dict[str, Any]] = field(default_factory=list)  # Fields of END_TRANSACTION.
    end_code: int = 0  # What ends of transactions are answered with.

    def __post_init__(self) -> None:
        self.queues = [[] for _ in range(self.queue_count)]

    @property
    def address(self) -> str:
        host, port = self.listener.getsockname()
        return f"{host}:{port}"

    def fill(self, per_queue: int, body: bytes) -> None:
        for queue_id in range(self.queue_count):
            for _ in range(per_queue):
                self.append(queue_id, body)

    def append(self, queue_id: int, body: bytes) -> None:
        queue = self.queues[queue_id]
        queue.append(record(queue_id, len(queue), self.log_end, body))
        self.log_end += len(queue[-1])
        for waiting in self.held.pop(queue_id, ()):
            self.answer_pull(waiting.connection, waiting.opaque, queue_id, waiting.queue_offset, hold=False)

    def handle(self, connection: socket.socket, header: dict[str, Any], body: bytes) -> None:
        if self.keep_requests:
            self.requests.append(header)
        fields, opaque = header.get("extFields", {}), header["opaque"]
        match header["code"]:
            case 310:
                self.sends += 1
                code = 2 if self.sends in self.busy_at else self.code
                if code == 0 and "TRAN_MSG\x01true" in fields["i"]:
                    number = len(self.halves)
                    self.halves[number] = fields
                    ids = {"msgId": f"7F00000100002A9F{number * 512:016X}", "queueOffset": str(number)}
                    self.reply(connection, opaque, code, ids | {"queueId": fields["e"]})
                    return
                if code == 0:
                    self.append(int(fields["e"]), body)
                self.reply(connection, opaque, code, {"msgId": "0" * 32, "queueId": fields["e"]})
            case 37:
                self.commits.append(fields)
                self.reply(connection, opaque, self.end_code, {})
            case 11:
                hold = bool(int(fields["sysFlag"]) & 2)
                self.answer_pull(connection, opaque, int(fields["queueId"]), int(fields["queueOffset"]), hold=hold)
            case 17:
                self.reply(connection, opaque, 0, {})
            case 30:
                self.reply(connection, opaque, 0, {"offset": str(len(self.queues[int(fields["queueId"])]))})
            case 28:
                table = json.dumps({"table": {"commitLogMaxOffset": str(self.log_end)}}).encode()
                self.reply(connection, opaque, 0, {}, table)
            case code:
                self.reply(connection, opaque, 3, {}, remark=f" request type {code} not supported")

    def answer_pull(
        self, connection: socket.socket, opaque: int, queue_id: int, queue_offset: int, *, hold: bool
    ) -> None:
        queue = self.queues[queue_id]
        found = queue[queue_offset : queue_offset + self.per_answer]
        if not found and hold:
            self.held.setdefault(queue_id, []).append(Held(connection, opaque, queue_offset))
            return
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(queue_offset + len(found)),
            "minOffset": "0",
            "maxOffset": str(len(queue)),
        }
        self.reply(connection, opaque, 0 if found else 19, fields, b"".join(found))

    def reply(
        self,
        connection: socket.socket,
        opaque: int,
        code: int,
        fields: dict[str, str],
        body: bytes = b"",
        remark: str = "",
    ) -> None:
        header: dict[str, Any] = {"code": code, "extFields": fields, "flag": 1, "language": "JAVA", "opaque": opaque}
        if remark or code:
            header["remark"] = remark or "refused"
        text = json.dumps(header, separators=(",", ":")).encode()
        connection.setblocking(True)
        connection.sendall(struct.pack(">II", 4 + len(text) + len(body), len(text)) + text + body)

    def serve(self, stopping: threading.Event) -> None:
        epoll = select.epoll()
        epoll.register(self.listener.fileno(), select.EPOLLIN)
        connections: dict[int, tuple[socket.socket, bytearray]] = {}
        while not stopping.is_set():
            for fd, _ in epoll.poll(0.02):
                if fd == self.listener.fileno():
                    connection, _ = self.listener.accept()
                    connections[connection.fileno()] = (connection, bytearray())
                    epoll.register(connection.fileno(), select.EPOLLIN)
                else:
                    self.read(connections, fd)
        for connection, _ in connections.values():
            connection.close()
        epoll.close()

    def read(self, connections: dict[int, tuple[socket.socket, bytearray]], fd: int) -> None:
        connection, pending = connections[fd]
        try:
            data = connection.recv(1 << 16)
            pending += data
            while len(pending) >= 8 and len(pending) >= (size := 4 + struct.unpack_from(">I", pending)[0]):
                header_bytes = struct.unpack_from(">I", pending, 4)[0]
                header = json.loads(pending[8 : 8 + header_bytes])
                body = bytes(pending[8 + header_bytes : size])
                del pending[:size]
                self.handle(connection, header, body)
        except (ConnectionResetError, BrokenPipeError):
            data = b""
        if not data:
            for number, held in self.held.items():
                self.held[number] = [one for one in held if one.connection is not connection]
            connections.pop(fd)[0].close()


@contextlib.contextmanager
def running(broker: FakeBroker) -> Iterator[FakeBroker]:
    """Serve in a thread while the body of the `with` runs."""
    stopping = threading.Event()
    thread = threading.Thread(target=broker.serve, args=(stopping,), daemon=True)
    thread.start()
    try:
        yield broker
    finally:
        stopping.set()
        thread.join(60)
        broker.listener.close()
