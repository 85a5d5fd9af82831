"""RocketMQ's Go client as a peer: the program in `go/`, built with the modules whose hashes its go.sum has."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path
from typing import IO, Any, Self

from tests.interop.java import HERE, PATIENCE, JavaJars, PeerError

Event = dict[str, Any]
_SOURCES = HERE / "go"


def built_peer() -> Path:
    """The program, built if its sources are new.

    Raises:
        PeerError: there is no Go, or it refused the sources.
    """
    sources = [_SOURCES / name for name in ("go.mod", "go.sum", "main.go")]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
    program = JavaJars.cache() / f"gopeer-{digest}"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise PeerError("these tests need Go 1.19 or newer; there is no command `go`")
    partial = program.with_name(f"{program.name}.{time.monotonic_ns()}")
    done = subprocess.run(
        [go, "build", "-mod=readonly", "-trimpath", "-o", str(partial), "."],
        cwd=_SOURCES,
        env={**os.environ, "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise PeerError(f"go refused {_SOURCES}:\n{done.stderr}")
    partial.rename(program)
    return program


class GoPeer:
    """One run of the program; `events` grows while it runs.

    Args:
        verb, values: its command line.
        directory: home of the client, for the offsets of broadcasting consumers, and its log.
    """

    def __init__(self, verb: str, directory: Path, **values: str | int) -> None:
        self.name = f"go {verb} {values}"
        self.events: list[Event] = []
        self._changed = threading.Condition()
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / f"{verb}-{time.monotonic_ns()}.log"
        words = [f"{key}={value}" for key, value in values.items()]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [str(built_peer()), verb, *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=directory,
                env={**os.environ, "HOME": str(directory)},
            )
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def _read(self, source: IO[str]) -> None:
        with source:
            for line in source:
                if line.startswith("{"):
                    with self._changed:
                        self.events.append(json.loads(line))
                        self._changed.notify_all()
        with self._changed:
            self.events.append({"event": "gone"})
            self._changed.notify_all()

    def wait(self, event: str, count: int = 1, within_s: float = 60) -> list[Event]:
        """Wait for `count` events of a kind and return them.

        Raises:
            PeerError: the program ended without them, or the time, multiplied by `PATIENCE`, passed.
        """
        within_s *= PATIENCE
        deadline = time.monotonic() + within_s
        with self._changed:
            while len(found := self.of(event)) < count:
                left = deadline - time.monotonic()
                if left <= 0 or self.events[-1:] == [{"event": "gone"}]:
                    raise PeerError(f"{self.name}: {len(found)} of {count} {event}\n{self.events[-5:]}\n{self._tail()}")
                self._changed.wait(left)
        return found

    def of(self, event: str) -> list[Event]:
        """Return the events of a kind so far."""
        return [each for each in list(self.events) if each["event"] == event]

    def result(self, within_s: float = 60) -> list[Event]:
        """Wait for the end of the run; return its events without the last."""
        self.wait("done", within_s=within_s)
        self._process.wait(60)
        self._reader.join(60)
        return [each for each in self.events if each["event"] not in ("done", "gone")]

    def rest(self) -> None:
        """Have a run that goes on send nothing more."""
        assert self._process.stdin is not None
        self._process.stdin.write(".")
        self._process.stdin.flush()

    def end(self, within_s: float = 60) -> list[Event]:
        """End standard input, on which some runs wait, then wait for the end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self.result(within_s)

    def _tail(self) -> str:
        return self._log.read_text(errors="replace")[-2_000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)
        self._reader.join(60)
        if self._process.stdin is not None:
            self._process.stdin.close()
