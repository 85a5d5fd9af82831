"""The servers of a group's registry: killed one by one, and replaced by an older copy of their data.

    namesrv             the name server, whose data are the files registry.*
    zookeeper, etcd     one server, or three that agree

    copy: all servers stand still (SIGSTOP), so each copy is what a crash at this moment would leave
    restore: kill -9 of all, their data are replaced by the copy, then they are started

What the brokers promise then: docs/internals/failover.md, "When the registry has an older record".
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

from tandemq.errors import LocalError
from tandemq.run.children import Child
from tests.interop.ensembles import Ensemble, Server

REFUSES = "which does not continue the newest one"
"""Part of a member's reason when it refuses an older record."""
_DATA = "data"
_LOOK_SECONDS = 0.05


class RegistryServers:
    """The servers of one registry, in the order of their numbers."""

    def __init__(self, servers: Sequence[Child | Server], data: Sequence[Path], wait_whole: Callable[[], None]) -> None:
        """See `of_name_server`, `of_server`, `of_ensemble`.

        Args:
            servers: the processes, which run.
            data: the directory of each server that holds its data.
            wait_whole: waits until all servers take part.
        """
        self.servers = list(servers)
        self._data = list(data)
        self._wait_whole = wait_whole

    @classmethod
    def of_name_server(cls, child: Child, data: Path) -> RegistryServers:
        """Return the registry in a name server. `data`: its directory."""
        return cls([child], [data], lambda: None)

    @classmethod
    def of_server(cls, server: Server) -> RegistryServers:
        """Return a single server of ZooKeeper or etcd."""
        return cls([server], [server.directory / _DATA], lambda: None)

    @classmethod
    def of_ensemble(cls, ensemble: Ensemble) -> RegistryServers:
        """Return three servers that agree."""
        return cls(ensemble.servers, [server.directory / _DATA for server in ensemble.servers], ensemble.wait_whole)

    def kill(self, number: int) -> str:
        """Kill a server; return its name."""
        self.servers[number].kill()
        return self.servers[number].name

    def start(self, number: int) -> None:
        """Start a server again; return when all take part.

        Raises:
            LocalError, PeerError, TimeoutError: they do not.
        """
        self._begin([number])

    def _begin(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            server = self.servers[number]
            if isinstance(server, Child) or len(self.servers) == 1:
                server.start()
            else:
                server.begin_start()
        self._wait_whole()

    def copy(self, target: Path) -> None:
        """Copy the data of all servers as they are at one moment."""
        with self._standing_still():
            for number, data in enumerate(self._data):
                shutil.rmtree(target / str(number), ignore_errors=True)
                target.mkdir(parents=True, exist_ok=True)
                _copy(data, target / str(number))

    def restore(self, copy: Path, seconds: float = 0.0) -> None:
        """Replace the data of all servers by a copy. `seconds`: how long none of them runs."""
        for server in self.servers:
            server.kill()
        for number, data in enumerate(self._data):
            shutil.rmtree(data)
            _copy(copy / str(number), data)
        time.sleep(seconds)
        self._begin(range(len(self.servers)))

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        for server in self.servers:
            os.kill(server.pid, signal.SIGSTOP)
        try:
            for server in self.servers:
                _wait_stopped(server.pid)
            yield
        finally:
            for server in self.servers:
                os.kill(server.pid, signal.SIGCONT)

    def ended(self) -> list[str]:
        """Return a violation of I16 for each server of ours that ended by itself."""
        return [
            f"I16: {server.name} ended by itself: {''.join(server.last_lines(1))}"
            for server in self.servers
            if isinstance(server, Child) and not server.is_running
        ]


def _copy(source: Path, target: Path) -> None:
    """Copy a directory; files of etcd are allocated far beyond their content."""
    command = ["cp", "-a", "--sparse=always", str(source), str(target)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  # a fixed program
    if done.returncode:
        raise LocalError(f"the data of the registry cannot be copied: {done.stderr.strip()}")


def _wait_stopped(pid: int) -> None:
    """Wait until no thread of a process runs."""
    while any(_state(task) not in "TtZ" for task in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(_LOOK_SECONDS / 10)


def _state(task: Path) -> str:
    try:
        return (task / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except OSError:  # it has ended
        return "Z"


def refusing(reasons: dict[int, str]) -> list[int]:
    """Return the members that refuse the registry's record as an older one, from their reasons by broker id."""
    return sorted(broker_id for broker_id, why in reasons.items() if REFUSES in why)


def chosen(reasons: dict[int, str], serving: Sequence[int], random: Random) -> int | None:
    """Return the member that an operator forces to serve by the advice of `ha status`; None: nothing is to be done.

    Args:
        reasons: why each member may or may not serve, by broker id; "" of one that does not answer.
        serving: members that serve, by an older record that they alone can believe.
        random: draws among the members that refuse, which all were in sync.
    """
    found = refusing(reasons)
    if not found or not all(reasons.values()):
        return None
    return serving[0] if serving else random.choice(found)
