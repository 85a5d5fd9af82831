"""Three servers of ZooKeeper or etcd that agree, as child processes: which of them leads, and whether all take part."""

from __future__ import annotations

import http.client
import json
import socket
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.interop import etcd, zookeeper
from tests.interop.etcd import Etcd
from tests.interop.java import LOOPBACK, wait_until
from tests.interop.zookeeper import ZooKeeper

KINDS = ("zookeeper", "etcd")
ZOOKEEPER_TICK_MS = 500
"""The longest with which a session of 2 s is granted."""
LEADER, FOLLOWER = "leader", "follower"
Server = ZooKeeper | Etcd


class Ensemble:
    """The servers of one registry; a context manager that starts and kills them."""

    def __init__(self, kind: str, directory: Path) -> None:
        """`kind`: one of KINDS."""
        zookeepers = zookeeper.quorum(directory, tick_ms=ZOOKEEPER_TICK_MS) if kind == "zookeeper" else []
        self.servers: list[Server] = [*zookeepers] or [*etcd.quorum(directory)]
        self.hosts = ",".join(server.address for server in self.servers)
        self.address = f"{kind}://{self.hosts}"
        """As brokers have it."""

    def __enter__(self) -> Self:
        """Start all; return when they agree."""
        for server in self.servers:
            server.begin_start()
        self.wait_whole()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill all."""
        for server in self.servers:
            server.kill()

    def wait_whole(self) -> None:
        """Wait until one server leads and all others follow it."""
        wait_until(self.is_whole, what="all servers of the registry take part", within_s=60)

    def is_whole(self) -> bool:
        """Return whether one server leads and all others follow it."""
        roles = sorted(map(role_of, self.servers))
        return roles == [*[FOLLOWER] * (len(roles) - 1), LEADER]

    @property
    def leader(self) -> Server:
        """Return the server that leads; only while one does."""
        return next(server for server in self.servers if role_of(server) == LEADER)


def role_of(server: Server) -> str:
    """Return LEADER, FOLLOWER, or "" if the server does not answer or knows no leader."""
    try:
        return _role_of_etcd(server) if isinstance(server, Etcd) else _role_of_zookeeper(server)
    except (OSError, http.client.HTTPException):
        return ""


def _role_of_zookeeper(server: ZooKeeper) -> str:
    with socket.create_connection((LOOPBACK, server.port), 2) as asking:
        asking.sendall(b"srvr")
        answer = asking.makefile("rb").read().decode()
    found = [line.removeprefix("Mode: ") for line in answer.splitlines() if line.startswith("Mode: ")]
    return found[0] if found and found[0] in (LEADER, FOLLOWER) else ""


def _role_of_etcd(server: Etcd) -> str:
    asking = http.client.HTTPConnection(server.address, timeout=2)
    try:
        asking.request("POST", "/v3/maintenance/status", b"{}")
        answer = json.loads(asking.getresponse().read())
    finally:
        asking.close()
    leader = answer.get("leader", "0")
    if leader == "0":
        return ""
    return LEADER if leader == answer["header"]["member_id"] else FOLLOWER
