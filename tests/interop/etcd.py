"""A real etcd as child processes, from Debian's package etcd-server: one server, or a quorum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.interop.java import LOOPBACK, Process, free_port

HEARTBEAT_MS = 100
ELECTION_MS = 1_000
"""Times of a quorum, etcd's defaults. The shortest lease is three halves of the election timeout, in whole seconds."""
ALONE_HEARTBEAT_MS, ALONE_ELECTION_MS = 10, 100
"""Times of a single server, which grants leases of one second."""


class Etcd(Process):
    """One server; alone, or `number` of a quorum whose servers listen to each other on `peers`."""

    def __init__(
        self, directory: Path, *, number: int = 1, peers: Sequence[int] = (), more: Sequence[str] = ()
    ) -> None:
        """A server that is not started; `more`: further arguments, for instance for TLS (then `scheme` is https)."""
        self.port = free_port()
        self.scheme = "https" if any("--cert-file" in word for word in more) else "http"
        self._number = number
        self._peers = list(peers) or [free_port()]
        self._more = more
        self._times = (HEARTBEAT_MS, ELECTION_MS) if peers else (ALONE_HEARTBEAT_MS, ALONE_ELECTION_MS)
        super().__init__(f"etcd-{number}", directory, command=self._command_line, ready=self.port)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _command_line(self) -> list[str]:
        own, peer = f"{self.scheme}://{self.address}", f"http://{LOOPBACK}:{self._peers[self._number - 1]}"
        servers = [f"etcd-{n}=http://{LOOPBACK}:{port}" for n, port in enumerate(self._peers, start=1)]
        heartbeat_ms, election_ms = self._times
        return [
            "etcd",
            f"--name=etcd-{self._number}",
            f"--data-dir={self.directory / 'data'}",
            f"--listen-client-urls={own}",
            f"--advertise-client-urls={own}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster={','.join(servers)}",
            f"--heartbeat-interval={heartbeat_ms}",
            f"--election-timeout={election_ms}",
            *self._more,
        ]


def quorum(directory: Path, count: int = 3) -> list[Etcd]:
    """Servers that agree; not started."""
    peers = [free_port() for _ in range(count)]
    return [Etcd(directory / f"etcd-{n}", number=n, peers=peers) for n in range(1, count + 1)]
