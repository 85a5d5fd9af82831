"""RocketMQ's gRPC clients, unmodified, as child processes, each with as many producers and consumers as ordered.

    with GrpcClient("python", directory, endpoints="127.0.0.1:8081") as client:
        producer = client.producer(topics="T")
        sent = producer.send(topic="T", body="hello", tag="a")
        consumer = client.simple(group="G", topic="T")
        [message] = consumer.receive()
        consumer.ack(message)

The programs are in grpc_drivers/, one for each language; all take the same orders. An order is a line
`id verb key=value …` with percent-encoded values, an event is a line of JSON with the id of its order:

    producer, simple, push              open a client; `open`, then `message` or `check`, until `id stop`
    send, burst, transact, recall       by the producer `client=`; `sent`, `ended`, `recalled`
    receive, ack, change                by the simple consumer `client=`; `message`, `received`, `acked`, `changed`

What a client raises is the event `refused` with the class of the exception, the status code of the proxy, or null, and
the text. The last event of an order is `done`, or `error`.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from tests.interop.checks import Events
from tests.interop.driver import SMALL_CLIENT, Event, LineDriver, Running, compiled
from tests.interop.java import HERE, REPOSITORY, JavaJars, PeerError, java_command, wait_until

LANGUAGES = ("python", "java-5.0.7", "java-5.2.0", "node", "rust")
"""Clients, with their version where there are several: Python 5.1.2, Node.js 1.0.8, Rust 5.0.0."""
CAN_RECALL = ("python", "java-5.2.0", "node")
CAN_PUSH = ("python", "java-5.0.7", "java-5.2.0", "node")
"""Those with push consumers; they can also change the invisible duration of a message."""

_DRIVERS = HERE / "grpc_drivers"
_JAVA_SOURCES = (*sorted((_DRIVERS / "java").glob("*.java")), HERE / "driver" / "Json.java")
_numbers = itertools.count(1)
_UNSETTLED = 'because "settings" is null', "failed to fetch topic:"


def installed(name: str, sources: Iterable[Path], *commands: list[str], copied: Iterable[Path] = ()) -> Path:
    """Return a directory of the cache where the commands have run; `{}` in them is that directory.

    Raises:
        PeerError: a command is missing or failed.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    directory = JavaJars.cache() / f"{name}-{digest}"
    if (directory / ".ready").exists():
        return directory
    partial = directory.with_name(f"{directory.name}.{time.monotonic_ns()}")
    partial.mkdir(parents=True)
    for path in copied:
        shutil.copy(path, partial)
    for command in commands:
        words = [word.replace("{}", str(partial)) for word in command]
        try:
            subprocess.run(words, check=True, capture_output=True, text=True, cwd=partial)
        except FileNotFoundError as error:
            raise PeerError(f"{name}: there is no command {words[0]}") from error
        except subprocess.CalledProcessError as error:
            raise PeerError(f"{name}: {' '.join(words)} failed:\n{error.stdout}{error.stderr}") from error
    (partial / ".ready").touch()
    try:
        partial.rename(directory)
    except OSError:
        # Another process was faster; its files are the same.
        shutil.rmtree(partial)
    return directory


def python_environment() -> Path:
    """Return the virtual environment of the Python client; made if its lock file is new."""
    lock = REPOSITORY / "requirements-grpc-client.lock"
    install = ["{}/bin/python", "-m", "pip", "install", "--quiet", "--no-compile", "--require-hashes", "-r", str(lock)]
    return installed("grpc-python", [lock], [sys.executable, "-m", "venv", "{}"], install)


def node_packages() -> Path:
    """Return the directory with the Node.js client and its driver; made if one of them is new."""
    names = ("package.json", "package-lock.json", "driver.js")
    sources = [_DRIVERS / "node" / name for name in names]
    return installed("grpc-node", sources, ["npm", "ci", "--ignore-scripts", "--no-audit"], copied=sources)


def rust_program() -> Path:
    """Return the program with the Rust client; compiled if its sources are new."""
    root = _DRIVERS / "rust"
    sources = [root / "Cargo.toml", root / "Cargo.lock", root / "src" / "main.rs"]
    command = ["cargo", "build", "--locked", "--quiet", "--manifest-path", str(sources[0]), "--target-dir", "{}/target"]
    return installed("grpc-rust", sources, command) / "target" / "debug" / "driver"


class Opened:
    """A producer or consumer of a client; closed at the end of the client, or earlier."""

    def __init__(self, client: GrpcClient, verb: str, within_s: float, **values: str | int | bool) -> None:
        self.name = f"{verb}{next(_numbers)}"
        self.client = client
        self.running: Running = client.begin(verb, client=self.name, **values)
        client.opened.append(self)
        self.running.wait_for(lambda event: event["event"] == "open", within_s)

    def close(self, within_s: float = 60) -> Events:
        """Close it, and return the events that it printed."""
        return [event for event in self.running.end(within_s) if event["event"] != "open"]

    def messages(self) -> Events:
        """Return the messages that a push consumer has got so far."""
        return self.running.events("message")

    def wait_bodies(self, bodies: Iterable[str], within_s: float = 30) -> Events:
        """Wait until a push consumer has got all of these bodies; return its messages."""
        missing = set(bodies)

        def completes(event: Event) -> bool:
            missing.discard(str(event.get("body")))
            return not missing

        self.running.wait_for(completes, within_s)
        return self.messages()

    def _call(self, verb: str, **values: str | int | bool) -> Events:
        return self.client.begin(verb, client=self.name, **values).result()


class GrpcProducer(Opened):
    """A producer."""

    def send(self, **values: str | int | bool) -> Event:
        """Send a message; return `sent` or `refused`."""
        return self._call("send", **values)[-1]

    def send_all(self, bodies: Iterable[str], **values: str | int | bool) -> list[str]:
        """Send messages, none of which may be refused; return their bodies."""
        sent = list(bodies)
        for body in sent:
            answer = self.send(body=body, **values)
            assert answer["event"] == "sent", answer
        return sent

    def burst(self, **values: str | int | bool) -> Running:
        """Begin to send one message after the other."""
        return self.client.begin("burst", client=self.name, **values)

    def transact(self, **values: str | int | bool) -> Events:
        """Send a half message, and end the transaction."""
        return self._call("transact", **values)

    def recall(self, topic: str, handle: str) -> Event:
        """Recall a timed message; return `recalled` or `refused`."""
        return self._call("recall", topic=topic, handle=handle)[-1]


class GrpcSimpleConsumer(Opened):
    """A simple consumer."""

    def receive(self, count: int = 16, invisible_ms: int = 15_000) -> Events:
        """Receive once; nothing may be refused.

        The Python client receives before it has sent its settings, which a Java proxy refuses, and without a route, if
        the proxy took too long for it: both are tried again.
        """
        events = wait_until(
            lambda: self._settled(self._call("receive", max=count, invisible_ms=invisible_ms)),
            what="settings at the proxy, and a route",
            within_s=10,
        )
        assert events[-1]["event"] == "received", events[-1]
        return events[:-1]

    @staticmethod
    def _settled(events: Events) -> Events:
        return [] if any(text in str(events[-1].get("text")) for text in _UNSETTLED) else events

    def receive_all(self, count: int, invisible_ms: int = 15_000, within_s: float = 60) -> Events:
        """Receive and acknowledge until there are `count` messages."""
        found: Events = []
        deadline = time.monotonic() + within_s
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count}"
            for message in self.receive(invisible_ms=invisible_ms):
                answer = self.ack(message)
                assert answer["event"] == "acked", answer
                found.append(message)
        return found

    def ack(self, message: Event) -> Event:
        """Acknowledge a message; return `acked` or `refused`."""
        return self._call("ack", message=message["key"])[-1]

    def change(self, message: Event, invisible_ms: int) -> Event:
        """Change the invisible duration of a message; return `changed` or `refused`."""
        return self._call("change", message=message["key"], invisible_ms=invisible_ms)[-1]


class GrpcClient(LineDriver):
    """A process with an unmodified gRPC client.

    Args:
        language: one of `LANGUAGES`.
        directory: home and logs.
        endpoints: address of a proxy, or of several with `;` between.
        authorities: file with the certificates of authorities that the Python and Node.js clients trust. The Java
            clients do not verify servers.
        values: given to each order, for example tls=true.
    """

    def __init__(
        self, language: str, directory: Path, endpoints: str, *, authorities: Path | None = None, **values: str | int
    ) -> None:
        super().__init__(f"grpc-{language}", directory, endpoints=endpoints, **values)
        self.language = language
        self.opened: list[Opened] = []
        self._trusted = {} if authorities is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(authorities)}

    def command(self) -> list[str]:
        """Return the command line."""
        if self.language == "python":
            python = python_environment() / "bin" / "python"
            return [str(python), str(_DRIVERS / "python" / "driver.py")]
        if self.language == "node":
            return ["node", str(node_packages() / "driver.js")]
        if self.language == "rust":
            return [str(rust_program())]
        version = self.language.removeprefix("java-")
        classes = compiled("grpc-driver", "grpc-client", version, _JAVA_SOURCES)
        home = self.directory / "home"
        options = [*SMALL_CLIENT, f"-Drocketmq.log.root={home / 'logs'}"]
        return java_command("grpc-client", version, "Driver", home=home, jvm_options=options, first=[classes])

    def environment(self) -> dict[str, str]:
        """Return the environment: clients write their logs below their home."""
        own = {"HOME": str(self.directory), "PYTHONPATH": str(REPOSITORY)}
        return {**super().environment(), **own, **self._trusted}

    def towards(self, endpoints: str) -> Self:
        """Return the same process for clients of another proxy."""
        other = self.at("")
        other.defaults = {**self.defaults, "endpoints": endpoints}
        other.opened = []
        return other

    def close_all(self) -> None:
        """Begin to close all that is open; a Java push consumer first waits for the end of its poll, up to 20 s."""
        for each in self.opened:
            each.running.stop()
        self.opened.clear()

    def producer(self, *, within_s: float = 30, **values: str | int | bool) -> GrpcProducer:
        """Open a producer. `topics`: `,` between; `check`: how checks of transactions are answered."""
        return GrpcProducer(self, "producer", within_s, **values)

    def simple(self, *, within_s: float = 30, **values: str | int | bool) -> GrpcSimpleConsumer:
        """Open a simple consumer of a `group` and a `topic`."""
        return GrpcSimpleConsumer(self, "simple", within_s, **values)

    def push(self, *, within_s: float = 30, **values: str | int | bool) -> Opened:
        """Open a push consumer of a `group` and a `topic`; `fail_first`: failures of each message."""
        return Opened(self, "push", within_s, **values)


def described(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Return the parts of messages that a producer determines."""
    keys = ("topic", "tag", "keys", "properties", "messageGroup", "size", "digest")
    return [{key: event.get(key) for key in keys} for event in events]
