"""A real ZooKeeper as child processes, from the jars of Maven Central: one server, or a quorum."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.interop.java import LOOPBACK, JavaJars, Process, free_port, java_executable

VERSION = "3.9.5"
TICK_MS = 100
"""The shortest session is two ticks."""
_JVM = ("-Xms32m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


class ZooKeeper(Process):
    """One server; alone, or `number` of a quorum whose servers listen on `peers` (pairs of ports)."""

    def __init__(
        self, directory: Path, *, number: int = 1, peers: Sequence[tuple[int, int]] = (), tick_ms: int = TICK_MS
    ) -> None:
        self.port = free_port()
        self._conf = directory.resolve() / "zoo.cfg"
        data = directory.resolve() / "data"
        data.mkdir(parents=True, exist_ok=True)
        lines = [
            f"tickTime={tick_ms}",
            f"dataDir={data}",
            f"clientPort={self.port}",
            f"clientPortAddress={LOOPBACK}",
            "admin.enableServer=false",
            "initLimit=50",
            "syncLimit=10",
            "maxSessionTimeout=60000",
        ]
        if peers:
            (data / "myid").write_text(f"{number}\n")
            lines += [f"server.{n}={LOOPBACK}:{one}:{two}" for n, (one, two) in enumerate(peers, start=1)]
        self._conf.write_text("\n".join(lines) + "\n")
        super().__init__(f"zookeeper-{number}", directory, command=self._command_line, ready=self.port)

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def _command_line(self) -> list[str]:
        return [
            java_executable(),
            *_JVM,
            "-cp",
            JavaJars.class_path("zookeeper", VERSION),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(self._conf),
        ]


def quorum(directory: Path, count: int = 3, *, tick_ms: int = TICK_MS) -> list[ZooKeeper]:
    """Servers that agree; not started."""
    peers = [(free_port(), free_port()) for _ in range(count)]
    return [ZooKeeper(directory / f"zk-{n}", number=n, peers=peers, tick_ms=tick_ms) for n in range(1, count + 1)]
