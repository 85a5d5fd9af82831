"""A slave that copies its master's log: rate, cost, and whether the copy is good.

    seed       (Java) the slave gets a first message, so that it does not begin at the master's last file
    copy_log   start the slave, wait until the master has its confirmation of everything, kill it

A slave of Java that has nothing is sent the last file only. The time begins with the first confirmed bytes: the slave's
start and the connection are no part of it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.loads import LoadFailed
from bench.probe import log_end
from bench.servers import BrokerGroup, cpu_seconds
from tandemq.errors import NetworkError
from tandemq.load import LoadError
from tandemq.load.wire.sockets import connect
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.interop.java import wait_until

_WAIT_S = 180.0
_EVERY_S = 0.01


@dataclass(frozen=True, slots=True)
class LogCopy:
    """One copy of a log."""

    mb_per_s: float  # 10^6 bytes.
    bytes: int
    seconds: float
    master_cpu: float  # Share of a core.
    slave_cpu: float
    confirmed_by: Literal["master", "slave"]
    """Whose figures said that the copy is complete; a master 4.9 does not report its slaves."""


def acknowledged_offset(status: bytes) -> int:
    """Return the largest offset that a slave has confirmed; 0 without one. `status`: of GET_BROKER_HA_STATUS."""
    slaves = json.loads(status).get("haConnectionInfo") or []
    return max((int(slave["slaveAckOffset"]) for slave in slaves), default=0)


@contextmanager
def _confirmations(group: BrokerGroup) -> Iterator[tuple[Literal["master", "slave"], Callable[[], int]]]:
    """Give the end of what the slave has: as the master knows it, or as the slave reports it."""
    with connect(group.master.address, 30) as master:
        status = Command(RequestCode.GET_BROKER_HA_STATUS)
        if master.request(status).code == ResponseCode.SUCCESS:
            yield "master", lambda: acknowledged_offset(master.request(status).body)
        else:
            yield "slave", lambda: slave_log_end(group)


def copy_log(group: BrokerGroup, end: int, begin: int = 0) -> LogCopy:
    """Let the slave copy the running master's log from `begin`, where its own ends, to `end`, and kill it.

    Raises:
        TimeoutError: it did not within minutes.
    """
    group.start(group.slave)
    pids = group.master.pid, group.slave.pid
    with _confirmations(group) as (confirmed_by, confirmed):
        wait_until(lambda: confirmed() > begin, what="the slave's first bytes", within_s=_WAIT_S, every_s=0.002)
        first, started, before = confirmed(), time.perf_counter(), [cpu_seconds(pid) for pid in pids]
        wait_until(lambda: confirmed() >= end, what=f"the slave's log end {end}", within_s=_WAIT_S, every_s=_EVERY_S)
        seconds = time.perf_counter() - started
        used = [cpu_seconds(pid) - cpu for pid, cpu in zip(pids, before, strict=True)]
    group.slave.kill()
    rate = round((end - first) / seconds / 1e6, 1)
    master_cpu, slave_cpu = (round(one / seconds, 2) for one in used)
    return LogCopy(rate, end - first, round(seconds, 2), master_cpu, slave_cpu, confirmed_by)


def slave_log_end(group: BrokerGroup) -> int:
    """Return the end of the slave's log; 0 if it does not answer, or is a Java broker in its first second."""
    try:
        with connect(group.slave.address) as slave:
            return log_end(slave)
    except (LoadError, NetworkError):
        return 0


def seed(group: BrokerGroup) -> int:
    """Start the slave of a running master that has a message, wait until it has that, kill it, and keep its store.

    Returns the end of its log.
    """
    group.start(group.slave)
    with connect(group.master.address) as master:
        end = log_end(master)
    wait_until(lambda: slave_log_end(group) >= end > 0, what="the slave's first message", within_s=_WAIT_S)
    group.slave.kill()
    _copy_files(_store(group), _seed(group))
    return end


def forget_copy(group: BrokerGroup) -> None:
    """Remove the slave's store; put that of `seed` in its place, if there is one."""
    shutil.rmtree(_store(group))
    if _seed(group).is_dir():
        _copy_files(_seed(group), _store(group))


def verify(store: Path) -> float:
    """Verify a store of a broker that does not run; return the seconds it took.

    Raises:
        LoadFailed: it is damaged.
    """
    started = time.perf_counter()
    command = [sys.executable, "-m", "tandemq", "log", "verify", str(store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadFailed(f"log verify {store}: {(done.stdout + done.stderr).strip()[-300:]}")
    return time.perf_counter() - started


def _store(group: BrokerGroup) -> Path:
    return Path(str(group.slave.conf["storePathRootDir"]))


def _seed(group: BrokerGroup) -> Path:
    return _store(group).with_name("seed")


def _copy_files(source: Path, target: Path) -> None:
    # Java's files are sparse and have a gigabyte each.
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
