"""The Java client of the interop tests: one JVM, many orders (see driver/Driver.java).

    with JavaDriver("5.3.3", directory) as java:
        sent = java.call("produce", namesrv=address, topic="T", count=10)        # events until "done"
        consumer = java.begin("push", namesrv=address, topic="T", group="G")     # goes on beside others
        consumer.wait_for(lambda event: event["event"] == "message", within_s=30)
        events = consumer.end()

An event is one JSON object that the driver printed. The driver's sources are compiled once per client version and per
state of the sources, and kept beside the jars.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, Self

from tests.interop.java import HERE, PATIENCE, JavaJars, Kind, PeerError, java_command, java_executable

Event = dict[str, Any]

_SOURCES = HERE / "driver"
SMALL_CLIENT = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def compiled_driver(version: str) -> Path:
    """The directory with the driver's classes for a client version; compiled if the sources are new.

    Raises:
        PeerError: javac refused the sources.
    """
    return compiled("driver", "client", version, sorted(_SOURCES.glob("*.java")))


def compiled(name: str, kind: Kind, version: str, sources: Sequence[Path]) -> Path:
    """The directory with the classes of a program, compiled against one set of jars if its sources are new.

    Raises:
        PeerError: javac refused the sources.
    """
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    directory = JavaJars.cache() / f"{name}-{version}-{digest}"
    if directory.is_dir():
        return directory
    partial = directory.with_name(f"{directory.name}.{time.monotonic_ns()}")
    command = [
        java_executable("javac"),
        "-nowarn",
        "-Xlint:-options",
        "-encoding",
        "UTF-8",
        "--release",
        "11",
        "-cp",
        JavaJars.class_path(kind, version),
        "-d",
        str(partial),
        *map(str, sources),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PeerError(f"javac refused the {name} for {version}:\n{done.stderr}")
    try:
        partial.rename(directory)
    except OSError:
        # Another process was faster; its classes are the same.
        shutil.rmtree(partial)
    return directory


class Running:
    """An order under way; its events in the order in which they were printed."""

    def __init__(self, driver: LineDriver, order_id: str, what: str) -> None:
        self._driver = driver
        self._id = order_id
        self._what = what
        self._events: list[Event] = []
        self._changed = threading.Condition()
        self._ended = False

    def _add(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._ended |= event["event"] in {"done", "error", "gone"}
            self._changed.notify_all()

    def events(self, kind: str | None = None) -> list[Event]:
        """What was printed so far, or only events of one kind."""
        with self._changed:
            return [event for event in self._events if kind is None or event["event"] == kind]

    def wait_for(self, wanted: Callable[[Event], bool], within_s: float, count: int = 1) -> list[Event]:
        """Wait until `count` events are `wanted` and return those.

        Raises:
            PeerError: the order ended before, or `within_s` times `PATIENCE` seconds passed; the message holds the last
                events.
        """
        within_s *= PATIENCE
        deadline = time.monotonic() + within_s
        with self._changed:
            while True:
                found = [event for event in self._events if wanted(event)]
                if len(found) >= count:
                    return found
                left = deadline - time.monotonic()
                if self._ended or left <= 0:
                    reason = "ended" if self._ended else f"not within {within_s:g} s"
                    raise PeerError(f"{self._what}: {len(found)} of {count} events, {reason}\n{self._tail()}")
                self._changed.wait(left)

    def stop(self) -> None:
        """Ask the order to come to its end."""
        self._driver.write(f"{self._id} stop")

    def rest(self) -> None:
        """Ask the order to send nothing more, and to stay."""
        self._driver.write(f"{self._id} rest")

    def end(self, within_s: float = 60) -> list[Event]:
        """Stop the order, wait for its end, and return all its events but the last."""
        self.stop()
        return self.result(within_s)

    def result(self, within_s: float = 60) -> list[Event]:
        """Wait for the end and return all events but the last.

        Raises:
            PeerError: the order failed (its stack trace is in the message) or did not end in time.
        """
        within_s *= PATIENCE
        deadline = time.monotonic() + within_s
        with self._changed:
            while not self._ended:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise PeerError(f"{self._what}: no end within {within_s:g} s\n{self._tail()}")
                self._changed.wait(left)
            last = self._events[-1]
            if last["event"] != "done":
                raise PeerError(f"{self._what}: {last.get('text', last)}\n{self._driver.log_tail()}")
            return self._events[:-1]

    def _tail(self) -> str:
        return "\n".join(json.dumps(event)[:300] for event in self._events[-5:]) + "\n" + self._driver.log_tail()


class LineDriver(ABC):
    """A process with an unmodified client library that takes orders.

    Args:
        name: of the process and of its log file.
        directory: working directory and log.
        defaults: values given to every order that does not set them, for example namesrv.
    """

    def __init__(self, name: str, directory: Path, **defaults: str | int) -> None:
        self.name = name
        self.directory = directory.resolve()
        self.defaults = defaults
        self._process: subprocess.Popen[str] | None = None
        self._orders: dict[str, Running] = {}
        self._ready = threading.Event()
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ids = itertools.count(1)

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command line."""

    def environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        return dict(os.environ)

    def start(self, within_s: float = 60) -> Self:
        """Start the process."""
        self.directory.mkdir(parents=True, exist_ok=True)
        command = self.command()
        with self._log_path.open("a") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=self.directory,
                env=self.environment(),
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        if not self._ready.wait(within_s * PATIENCE):
            self.close()
            raise PeerError(f"{self.name} did not start\n{self.log_tail()}")
        return self

    def at(self, namesrv: str) -> Self:
        """The same process for orders that go to another name server; neither of the two need be closed apart."""
        other = copy.copy(self)
        other.defaults = {**self.defaults, "namesrv": namesrv}
        return other

    def close(self) -> None:
        """End the process; orders under way are cut off."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(60)
            if self._reader is not None:
                self._reader.join(5)
            self._process = None

    def begin(self, verb: str, **values: str | int | bool) -> Running:
        """Give an order and return without waiting."""
        order_id = str(next(self._ids))
        running = Running(self, order_id, f"{self.name} {verb} {str(values)[:500]}")
        self._orders[order_id] = running
        words = {**self.defaults, **values}
        text = " ".join(f"{key}={_encode(value)}" for key, value in words.items())
        self.write(f"{order_id} {verb} {text}")
        return running

    def call(self, verb: str, *, within_s: float = 60, **values: str | int | bool) -> list[Event]:
        """Give an order, wait for its end and return its events."""
        return self.begin(verb, **values).result(within_s)

    def write(self, line: str) -> None:
        """Write one line to the driver."""
        assert self._process is not None and self._process.stdin is not None, "the driver is not started"
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def log_tail(self, count: int = 30) -> str:
        """The last lines of what the process printed to standard error."""
        lines = self._log_path.read_text(errors="replace").splitlines() if self._log_path.exists() else []
        return "\n".join([f"--- {self._log_path}", *lines[-count:]])

    @property
    def _log_path(self) -> Path:
        return self.directory / f"{self.name}.log"

    def _read(self, source: IO[str]) -> None:
        with source:
            for line in source:
                event: Event = json.loads(line)
                if event["event"] == "ready":
                    self._ready.set()
                else:
                    self._orders[event["id"]]._add(event)
        for running in list(self._orders.values()):
            running._add({"event": "gone", "text": f"{self.name} ended"})

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()


class JavaDriver(LineDriver):
    """A JVM with an unmodified client library that takes orders.

    Args:
        version: of the client library, 4.9.8, 5.3.3 or 5.5.0.
        directory: home and log.
        jvm_options: further options, for example -Drocketmq.serialize.type=ROCKETMQ.
        defaults: values given to every order that does not set them, for example namesrv.
    """

    def __init__(
        self, version: str, directory: Path, *, jvm_options: Sequence[str] = (), **defaults: str | int
    ) -> None:
        super().__init__(f"driver-{version}", directory, **defaults)
        self.version = version
        self.jvm_options = tuple(jvm_options)

    def command(self) -> list[str]:
        """Return the command line."""
        return java_command(
            "client",
            self.version,
            "Driver",
            home=self.directory / "home",
            jvm_options=[*SMALL_CLIENT, "-Drocketmq.client.rebalance.waitInterval=2000", *self.jvm_options],
            first=[compiled_driver(self.version)],
        )

    def mqadmin(self, *arguments: str, within_s: float = 60) -> str:
        """Run one mqadmin command in this JVM; returns what it printed (mqadmin knows no exit codes).

        It waits for 5 s per request. Topics are made by nearly every test: that command is repeated, on a busy machine.
        """
        encoded = "&".join(urllib.parse.quote(argument, safe="") for argument in arguments)
        attempts = PATIENCE if arguments[0] == "updateTopic" else 1
        while True:
            [printed] = self.call("admin", within_s=within_s, arguments=encoded)
            attempts -= 1
            if not attempts or "RemotingTimeoutException" not in printed["text"]:
                return str(printed["text"])


def _encode(value: str | int | bool) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return urllib.parse.quote(text, safe="")
