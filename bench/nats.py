"""NATS JetStream as a peer for scale: one server, one stream with one replica and file storage.

    NatsServer(executable(), directory)     a Process; Debian's nats-server, fetched once to build/nats

Like a master with asynchronous flush it acknowledges what it has written to its file, and syncs later.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.clocks import Clocks
from bench.loads import LoadFailed
from bench.matrix import SEND_LOADS, SHAPES
from bench.setting import Bench, Figure
from tests.interop.java import LOOPBACK, REPOSITORY, PeerError, Process, free_port

_CACHE = REPOSITORY / "build" / "nats"
_PACKAGE = "nats-server"


def executable() -> Path:
    """Return the server's program: of the path, or of Debian's package, which is fetched once.

    Raises:
        PeerError: neither is to be had; the text has apt's reason.
    """
    program = _CACHE / "usr" / "sbin" / _PACKAGE
    if program.is_file():
        return program
    if installed := shutil.which(_PACKAGE):
        return Path(installed)
    _CACHE.mkdir(parents=True, exist_ok=True)
    try:
        _fetch(_CACHE)
    except FileNotFoundError as error:
        raise PeerError(f"{_PACKAGE} is not installed, and apt is not there to fetch it: {error}") from error
    except subprocess.CalledProcessError as error:
        raise PeerError(f"{_PACKAGE} could not be fetched: {error.stderr.strip() or error.stdout.strip()}") from error
    return program


def _fetch(directory: Path) -> None:
    """Fetch and unpack the package; with package lists of its own if those of the system lack it."""
    try:
        _run(directory, "apt-get", "download", _PACKAGE)
    except subprocess.CalledProcessError:
        (directory / "lists" / "partial").mkdir(parents=True, exist_ok=True)
        own = ("-o", f"Dir::State::Lists={directory / 'lists'}", "-o", "APT::Sandbox::User=root")
        _run(directory, "apt-get", "-qq", *own, "update")
        _run(directory, "apt-get", *own, "download", _PACKAGE)
    package = max(directory.glob(f"{_PACKAGE}_*.deb"))
    _run(directory, "dpkg", "-x", package.name, ".")


def _run(directory: Path, *command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, cwd=directory)


def version() -> str:
    """Return what the program prints as its version, for example `v2.9.10`."""
    printed = subprocess.run([executable(), "--version"], check=True, capture_output=True, text=True).stdout
    return printed.strip().rpartition(" ")[2]


class NatsServer(Process):
    """A server with JetStream on the loopback address; its store lies below `directory`."""

    def __init__(self, program: Path, directory: Path) -> None:
        """Choose a port."""
        self.port = free_port()
        self._program = program
        super().__init__("nats", directory, command=self._command_line, ready=self.port)

    @property
    def address(self) -> str:
        """Return host:port for clients."""
        return f"{LOOPBACK}:{self.port}"

    def _command_line(self) -> list[str]:
        conf = self.directory / "nats.conf"
        conf.write_text(
            f"listen: {LOOPBACK}:{self.port}\n"
            f'jetstream {{ store_dir: "{self.directory / "store"}", max_mem: 1G, max_file: 100G }}\n'
        )
        return [str(self._program), "-c", str(conf)]


def send(bench: Bench) -> Iterator[Figure]:
    """Measure publishes that wait for their acknowledgements, with the bodies of varied messages.

    Raises:
        LoadFailed: the server refused the load, or has fewer messages than it acknowledged.
    """
    try:
        with NatsServer(executable(), bench.place) as server:
            server.start()
            loads = [(cell, SEND_LOADS[cell.name]) for cell in bench.cells]
            bench.say("warm-up")
            _load(server.address, "16x32", bench.warmup_s, 0.0)
            for cell, load in sorted(loads, key=lambda one: -one[1].open_requests):
                bench.say(cell.title)
                with Clocks([server.pid]) as clocks:
                    result = _load(server.address, load.shape, bench.pace.measure_s, bench.pace.settle_s)
                detail = {**result, **clocks.shares(result, bench.pace.measure_s)}
                yield bench.figure(cell.name, result["messages_per_s"], detail)
    finally:
        shutil.rmtree(bench.place, ignore_errors=True)


def _load(address: str, shape: str, seconds: float, settle_s: float) -> dict[str, Any]:
    connections, window = SHAPES[shape]
    numbers = map(str, (connections, window, seconds, settle_s))
    command = [sys.executable, "-m", "bench.nats_load", address, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    if done.returncode != 0:
        raise LoadFailed((done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1])
    result: dict[str, Any] = json.loads(done.stdout)
    return result
