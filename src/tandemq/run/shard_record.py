"""The shards that run, as a process that starts them leaves them for the next one: files in the store of shard 0.

    shards/lock                held by the process that starts the shards
    shards/run/                private, and removed after a clean stop
      shards.json              process, settings and startup report of each shard
      metrics.token            credentials for the metrics of the shards
      0, 1, …                  sockets of their reports; elsewhere if the path is too long for them
      tandemq-….conf           settings of a shard that starts

A process that starts the shards and is killed leaves them running, with these files. The next one adopts those whose
settings have not changed, and stops the others.
"""

import contextlib
import fcntl
import json
import logging
import os
import shutil
import socket
import sys
import threading
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp
from typing import IO, Any, NamedTuple

from tandemq import __version__
from tandemq.config.shards import DIRECTORY
from tandemq.errors import LocalError
from tandemq.run.adopted_process import AdoptedProcess, ProcessIdentity, identify
from tandemq.run.shard_metrics import make_token

log = logging.getLogger(__name__)
_FILE = "shards.json"
_PROBE = "64"
"""Name of a socket that no shard has, as long as any."""


class LeftShard(NamedTuple):
    """A process that another one has left."""

    process: AdoptedProcess
    settings: str
    """Digest of its settings."""
    startup: Mapping[str, Any]
    """Its startup report; empty if it was not ready."""


class ShardRecord:
    """The files: opened by the process that starts the shards."""

    def __init__(self, store_path: str) -> None:
        """Lock the store's shards, and read what the last process has left.

        Raises:
            LocalError: another process starts the shards of this store, or the directory cannot be written.
        """
        directory = Path(store_path).expanduser() / DIRECTORY
        self.directory = directory / "run"
        """Private directory."""
        self._lock: IO[bytes] | None = None
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = (directory / "lock").open("ab")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.directory.mkdir(mode=0o700, exist_ok=True)
            self.left, others, sockets = self._read()
            self.token = make_token(self.directory)
            self.sockets = self._sockets(sockets)
        except BlockingIOError:
            self.release()
            raise LocalError(
                f"another process starts the shards of {store_path}",
                hint="stop that process, or give this one its own storePathRootDir",
            ) from None
        except OSError as error:
            self.release()
            raise LocalError(f"{directory}: {error.strerror or error}", hint="correct its permissions") from error
        self.others = others
        """Further processes that were left: a proxy."""
        self._guard = threading.Lock()
        self._shards: dict[str, dict[str, Any]] = {}
        self._others: list[ProcessIdentity] = []
        for name, found in self.left.items():
            self._shards[name] = {
                "process": identify(found.process.pid),
                "settings": found.settings,
                "startup": found.startup,
            }

    def _read(self) -> tuple[dict[str, LeftShard], list[AdoptedProcess], str]:
        """Return the shards that run, by name, other processes, and the directory of the sockets."""
        for path in self.directory.glob("*.conf"):
            path.unlink()
        try:
            table = json.loads((self.directory / _FILE).read_text(encoding="utf-8"))
            left = {
                str(name): LeftShard(process, str(row["settings"]), dict(row["startup"]))
                for name, row in table["shards"].items()
                if (process := _running(row["process"])) is not None
            }
            others = [found for row in table["others"] if (found := _running(row)) is not None]
            return left, others, str(table["sockets"])
        except FileNotFoundError:
            return {}, [], ""
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("shards: %s cannot be used: %s", self.directory / _FILE, error)
            return {}, [], ""

    def _sockets(self, used: str) -> Path:
        """Return the directory of the sockets: the one in use if shards run, else one whose path is short enough."""
        if used and used != str(self.directory):
            if self.left and Path(used).is_dir():
                return Path(used)
            shutil.rmtree(used, ignore_errors=True)
        try:
            bind_reports(self.directory / _PROBE).close()
        except OSError:
            return Path(mkdtemp(prefix="tandemq-shards-"))
        (self.directory / _PROBE).unlink()
        return self.directory

    def digest(self, words: Iterable[str], settings: Mapping[str, str]) -> str:
        """Return a digest of what a shard is started with; keyed, since the settings may contain passwords."""
        facts = [__version__, sys.executable, *words, *(f"{key}={settings[key]}" for key in sorted(settings))]
        return sha256("\n".join([self.token.read_text(encoding="ascii"), *facts]).encode()).hexdigest()

    def note(self, name: str, pid: int, settings: str, startup: Mapping[str, Any]) -> None:
        """Record a shard that was started; `startup` is empty until it is ready."""
        with self._guard, contextlib.suppress(ProcessLookupError):
            self._shards[name] = {"process": identify(pid), "settings": settings, "startup": dict(startup)}
            self._write()

    def note_other(self, pid: int) -> None:
        """Record the proxy that was started."""
        with self._guard, contextlib.suppress(ProcessLookupError):
            self._others = [identify(pid)]
            self._write()

    def _write(self) -> None:
        table = {"shards": self._shards, "others": self._others, "sockets": str(self.sockets)}
        draft = self.directory / f"{_FILE}.new"
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
                json.dump(table, file)
            draft.replace(self.directory / _FILE)
        except OSError as error:  # a full disk: only a killed process would have needed it
            log.warning("shards: %s was not written: %s", self.directory / _FILE, error)

    def release(self) -> None:
        """Release the lock only, as the end of the process does; callable many times."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def close(self) -> None:
        """Remove the files, and release the lock; callable many times."""
        if self._lock is not None:
            shutil.rmtree(self.directory, ignore_errors=True)
            if self.sockets != self.directory:
                shutil.rmtree(self.sockets, ignore_errors=True)
            self.release()


def bind_reports(address: Path) -> socket.socket:
    """Return a socket for reports at an address, in place of one that another process has left.

    Raises:
        OSError: the path is too long, or cannot be used.
    """
    address.unlink(missing_ok=True)
    found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        found.bind(str(address))
    except OSError:
        found.close()
        raise
    return found


def _running(row: list[Any]) -> AdoptedProcess | None:
    """Return a recorded process; None if it has ended."""
    pid, began, boot = row
    try:
        return AdoptedProcess(ProcessIdentity(int(pid), int(began), str(boot)))
    except ProcessLookupError:
        return None
