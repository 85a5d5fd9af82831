"""Limits that the kernel keeps for one process by a control group of its own: processor time and memory.

    with cpu_quota(pid, 0.1): …        a tenth of one processor; it stands still for the rest of each period
    with memory_limit(pid, more): …    so much more than it has; beyond that pages of files are dropped, and if that is
                                       too little, the kernel kills it

The group is made below that of the process (version 1 or 2), as root, and is removed at the end of the block. Where
no group can be made, `limit_refusal` returns the reason.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

from tandemq.errors import LocalError

CPU, MEMORY = "cpu", "memory"
PERIOD_US = 100_000
_ROOT = Path("/sys/fs/cgroup")
_GONE = (OSError, ProcessLookupError)
_numbers = itertools.count(1)


def limit_refusal(controller: str) -> str:
    """Return "" if a process of ours can be limited, else why not."""
    try:
        with _group(controller, os.getpid(), moves=False) as group:
            limit = group / _FILES[_version(controller), controller]
            if not os.access(limit, os.W_OK):
                return f"{limit} cannot be written"
    except (LocalError, OSError) as error:
        return str(error)
    return ""


@contextlib.contextmanager
def cpu_quota(pid: int, share: float) -> Iterator[None]:
    """Let a process have no more than a share of one processor."""
    quota = int(share * PERIOD_US)
    with _group(CPU, pid) as group:
        if _version(CPU) == 2:
            (group / _FILES[2, CPU]).write_text(f"{quota} {PERIOD_US}", encoding="ascii")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (group / _FILES[1, CPU]).write_text(str(quota), encoding="ascii")
        yield


@contextlib.contextmanager
def memory_limit(pid: int, more: int) -> Iterator[None]:
    """Limit the bytes of memory that a process allocates from now on, pages of its files included."""
    with _group(MEMORY, pid) as group:
        (group / _FILES[_version(MEMORY), MEMORY]).write_text(str(more), encoding="ascii")
        yield


_FILES = {
    (1, CPU): "cpu.cfs_quota_us",
    (2, CPU): "cpu.max",
    (1, MEMORY): "memory.limit_in_bytes",
    (2, MEMORY): "memory.max",
}
"""Version and controller to the file of the limit."""


def _version(controller: str) -> int:
    return 1 if (_ROOT / controller).is_dir() else 2


def _parent(controller: str, pid: int) -> Path:
    """Return the group that a process is in.

    Raises:
        LocalError: it is in none that has the controller.
    """
    for line in Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return _ROOT / controller / path.lstrip("/")
        if not controllers and _version(controller) == 2:
            return _ROOT / path.lstrip("/")
    raise LocalError(f"process {pid} is in no control group of {controller}")


@contextlib.contextmanager
def _group(controller: str, pid: int, *, moves: bool = True) -> Iterator[Path]:
    """Make a group below that of a process, and move the process there for a while.

    Raises:
        LocalError, OSError: that cannot be done.
    """
    parent = _parent(controller, pid)
    if not parent.is_dir():
        raise LocalError(f"{parent} does not exist")
    if _version(controller) == 2:
        _enable(parent, controller)
    group = parent / f"tandemq-chaos-{os.getpid()}-{next(_numbers)}"
    group.mkdir()
    try:
        if moves:
            (group / "cgroup.procs").write_text(str(pid), encoding="ascii")
        yield group
    finally:
        for each in (group / "cgroup.procs").read_text(encoding="ascii").split():
            with contextlib.suppress(*_GONE):
                (parent / "cgroup.procs").write_text(each, encoding="ascii")
        _remove(group)


def _enable(parent: Path, controller: str) -> None:
    if controller not in (parent / "cgroup.subtree_control").read_text(encoding="ascii").split():
        (parent / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")


def _remove(group: Path) -> None:
    """Remove a group; one whose process was killed a moment ago is busy until that has ended."""
    for _ in range(1_000):
        try:
            group.rmdir()
        except OSError:
            os.sched_yield()
        else:
            return
