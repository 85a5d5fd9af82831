"""Brokers as processes, connections to them, and a proxy that breaks, discards or throttles connections.

Nothing here uses the internals of a broker: only sockets, signals and files.
"""

import contextlib
import json
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from tandemq.client.connection import BlockingConnection
from tandemq.codec.record.record import decode_messages
from tandemq.codec.remoting.fastjson import loads
from tandemq.config.samples import ON_ANY_DISK
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import UNIQ_KEY, encode_properties
from tandemq.run.ports import FAST_PORT_DISTANCE, ReservedPorts
from tests.request_fields import pull_fields

WAIT_S = 120.0
QUICK = {
    "bindAddress": "127.0.0.1",
    "brokerIP1": "127.0.0.1",
    "brokerIP2": "127.0.0.1",
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2_000,
    "haSendHeartbeatInterval": 100,
    "haHousekeepingInterval": 800,
    "haReconnectInterval": 50,
    "slaveTimeout": 800,
    "metadataSyncInterval": 200,
    "haProtocol": "tandemq",
    **ON_ANY_DISK,
}
"""Settings with small files, and with tenths of a second where the defaults are seconds; unit tests assert the
defaults."""


def wait_until(holds: Callable[[], bool], what: str, *, seconds: float = WAIT_S) -> None:
    """Poll a condition until it holds. `what`: its name in the failure after the deadline."""
    deadline, pause = time.monotonic() + seconds, threading.Event()
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
        pause.wait(0.01)


def memory_kib(pid: int) -> int:
    """Return the resident memory of a process, KiB."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def runs(pid: int) -> bool:
    """Whether a process runs: one that has ended and was not waited for does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


class Program:
    """A process `tandemq broker` with its own store directory; restarts keep its ports."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._ports = ReservedPorts()
        self.settings: dict[str, object] = (
            QUICK
            | {
                "storePathRootDir": directory / "store",
                "listenPort": self._ports.reserve(-FAST_PORT_DISTANCE),
                "haListenPort": self._ports.reserve(),
            }
            | settings
        )
        self.start_report: Mapping[str, object] = {}
        """The JSON object that it prints once it is started, with its addresses."""
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        conf = self.directory / "broker.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()), encoding="utf-8")
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tandemq", "broker", "-c", str(conf), "--json", "--while-stdin"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], WAIT_S)
        line = self._process.stdout.readline() if readable else b""
        assert line, f"the broker did not start: {self.log_text()[-2000:]}"
        self.start_report = json.loads(line)

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the broker has not been started"
        return self._process

    @property
    def port(self) -> int:
        return int(str(self.settings["listenPort"]))

    @property
    def ha_port(self) -> int:
        return int(str(self.settings["haListenPort"]))

    def log_text(self) -> str:
        return (self.directory / "log").read_text(encoding="utf-8", errors="replace")

    def kill(self) -> None:
        """Kill the process (SIGKILL)."""
        self.process.kill()
        self._reap()

    def stop(self) -> int:
        """Stop the process (SIGTERM) and return its exit status."""
        self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        return self.process.wait(WAIT_S)

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the process, even a frozen one, and release its ports."""
        if self.process.poll() is None:
            self.thaw()
        self.kill()
        self._ports.close()

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    def sockets(self) -> int:
        """Return the number of open sockets. Files are not counted: a broker opens more of them by itself."""
        found = 0
        for descriptor in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                found += descriptor.readlink().name.startswith("socket:")
        return found

    def threads(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/task").iterdir()))

    def memory_kib(self) -> int:
        """Return its resident memory, KiB."""
        return memory_kib(self.process.pid)

    def log_files(self) -> list[Path]:
        """Return the files of the commit log, in order."""
        return sorted((self.directory / "store" / "commitlog").iterdir())

    def log_bytes(self) -> bytes:
        """Return the content of all files of the commit log."""
        return b"".join(file.read_bytes() for file in self.log_files())

    def log_end(self) -> int:
        with Caller(self.port) as caller:
            return int(caller.ask(RequestCode.TANDEM_PEER_INFO).fields["logEnd"])

    def ha_status(self) -> Any:
        """Return the broker's status of its replication connections."""
        with Caller(self.port) as caller:
            return loads(caller.ask(RequestCode.GET_BROKER_HA_STATUS).body)


class Caller(BlockingConnection):
    """A connection to a port of this machine, with short methods for requests."""

    def __init__(self, port: int, seconds: float = WAIT_S, *, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(f"127.0.0.1:{port}", seconds=seconds, tls=tls)
        self._name = uuid4().hex[:16]
        self._count = 0

    def read_end(self) -> bytes:
        """Wait for the end of the connection, and return b"" if it is closed in order, or a byte received before.

        Raises:
            ConnectionResetError: the connection was reset.
        """
        return self.socket.recv(1)

    def begin_request(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> int:
        """Send a request without waiting for the response; return its opaque."""
        return self.begin(_command(code, fields, body))

    def ask(self, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"") -> Command:
        return self.request(_command(code, fields, body))

    def begin_send(self, body: bytes, topic: str = "TopicA") -> int:
        """Send a message without waiting for the response; return the opaque of the request."""
        return self.begin(self._message(body, topic))

    def send(self, body: bytes, topic: str = "TopicA") -> int:
        """Send a message and return the response code."""
        return self.request(self._message(body, topic)).code

    def _message(self, body: bytes, topic: str) -> Command:
        """Return a send request; the message has a unique key, as clients set one."""
        self._count += 1
        fields = {
            "a": "p",
            "b": topic,
            "c": "TBW102",
            "d": 1,
            "e": 0,
            "f": 0,
            "g": 0,
            "h": 0,
            "i": encode_properties({UNIQ_KEY: f"{self._name}{self._count}"}),
            "j": 0,
        }
        return _command(RequestCode.SEND_MESSAGE_V2, fields, body)

    def read_all(self, topic: str = "TopicA") -> list[bytes]:
        """Return the bodies of all messages in queue 0 of a topic."""
        bodies: list[bytes] = []
        offset = 0
        while True:
            answer = self.ask(RequestCode.PULL_MESSAGE, pull_fields(topic, offset))
            if answer.code:
                return bodies
            bodies += [message.body for message in decode_messages(answer.body)]
            offset = int(answer.fields["nextBeginOffset"])


def _command(code: int, fields: Mapping[str, object] | None, body: bytes) -> Command:
    return Command(code, fields={key: str(value) for key, value in (fields or {}).items()}, body=body)


class Proxy:
    """Forwards connections to a port of this machine; a test can have it break, discard or throttle them."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.swallows = False
        """Whether received bytes are discarded while the connections stay open."""
        self.bytes_per_second = 0
        """Maximum rate of each direction of a connection; 0: no limit."""
        self.accepted = 0
        """Number of accepted connections."""
        self.seen: bytearray | None = None
        """Set to a bytearray to record all bytes received, in both directions."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._open: set[socket.socket] = set()
        self._is_over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            try:
                far = socket.create_connection(("127.0.0.1", self.target), 5)
            except OSError:
                near.close()
                continue
            far.settimeout(None)
            self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1024 if self.bytes_per_second else 65_536):
                if self.bytes_per_second:
                    self._is_over.wait(len(data) / self.bytes_per_second)
                if self.seen is not None:
                    self.seen += data
                if not self.swallows:
                    sink.sendall(data)
        for sock in (source, sink):
            self._open.discard(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def cut(self) -> None:
        """Shut down every connection."""
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
