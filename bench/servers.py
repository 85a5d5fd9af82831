"""Brokers under test: ours and two of Java's, each with a name server of its own kind, as child processes.

    with BrokerGroup(OURS, directory, {"flushDiskType": "SYNC_FLUSH"}) as group:
        group.start_master()
        … group.master.address, group.master.pid …

All get the same broker.conf but for the keys a cell sets. Leaving the `with` kills everything and deletes the stores.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from bench.cells import OURS
from bench.probe import wait_for_port
from tests.interop.java import LOOPBACK, JavaBroker, JavaNameServer
from tests.interop.ours import OurBroker, OurNameServer

Conf = Mapping[str, str | int | bool]

JVM = ("-Xms4g", "-Xmx4g", "-XX:+UseG1GC")
_BOOT_S = 60.0
_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of Linux: the clock of a whole process, with the complement of its number in the higher bits."""


Broker = OurBroker | JavaBroker
NameServer = OurNameServer | JavaNameServer


class BrokerGroup:
    """One master, a slave if the cell asks for it, and their name server, all of one kind."""

    def __init__(self, kind: str, directory: Path, conf: Conf | None = None) -> None:
        """`kind` is "ours" or a version of RocketMQ; `conf` holds further keys of broker.conf, for both brokers."""
        self.kind = kind
        self.directory = directory.resolve()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self._conf = dict(conf or {})
        self.name_server: NameServer = (
            OurNameServer(self.directory / "namesrv")
            if kind == OURS
            else JavaNameServer(kind, self.directory / "namesrv")
        )
        self.master = self._broker("master", self._conf)
        self.slave = self._broker("slave", {**self._conf, "brokerRole": "SLAVE", "brokerId": 1})

    def _broker(self, name: str, conf: Conf) -> Broker:
        directory = self.directory / name
        namesrv = self.name_server.address
        if self.kind == OURS:
            # The generator's raw slave sends no hello; it is admitted by address, as a Java slave is.
            settings = {**conf, "haClassicPeers": LOOPBACK}
            return OurBroker(directory, namesrv=namesrv, name=name, settings=settings)
        return JavaBroker(self.kind, directory, namesrv=namesrv, name=name, jvm_options=JVM, settings=conf, quiet=False)

    @property
    def pids(self) -> list[int]:
        """Return the processes of the brokers that run."""
        return [broker.pid for broker in (self.master, self.slave) if broker.is_running]

    def start_name_server(self) -> None:
        """Start it and wait until it listens."""
        self.name_server.begin_start()
        wait_for_port(self.name_server.address, _BOOT_S)

    def start_master(self) -> None:
        """Start name server and master, and wait until both listen."""
        self.start_name_server()
        self.start(self.master)

    def start(self, broker: Broker) -> None:
        """Start one broker and wait until it listens."""
        broker.begin_start()
        wait_for_port(broker.address, _BOOT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if "shards" in self._conf:  # shards outlive a killed process that started them
            self.slave.stop()
            self.master.stop()
        for process in (self.slave, self.master, self.name_server):
            process.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process, 10^6 bytes."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found.group(1)) * 1024 / 1e6


def cpu_seconds(pid: int) -> float:
    """Return the user and system time that a process has used so far, to the nanosecond.

    Raises:
        OSError: it has ended.
    """
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


def machine_cpu_seconds() -> float:
    """Return the CPU time of the whole machine so far, without idling and waiting."""
    first_line = Path("/proc/stat").read_text().splitlines()[0]
    user, nice, system, _idle, _wait, *interrupts = map(int, first_line.split()[1:8])
    return (user + nice + system + sum(interrupts)) / 100
