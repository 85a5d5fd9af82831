"""Checks of the directory of a store: space, inodes, file system, permission.

Source: docs/reference/configuration.md; statvfs(3), proc(5).
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tandemq.cli.doctor.findings import DoctorFinding, ok, problem, warning

INODES_FREE_MIN = 1_000
INODES_SCARCE = 0.05
_IN_MEMORY = frozenset({"tmpfs", "ramfs"})
_REMOTE = ("nfs", "cifs", "smb", "fuse", "9p", "virtiofs", "ceph", "gluster", "lustre", "afs")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFacts:
    """The directory of a store, or if it does not exist yet, the nearest one above it."""

    path: str
    exists: bool
    bytes_total: int
    bytes_free: int
    """Neither counts what the file system reserves for the root user, as in `boundary.DiskUsage`."""
    inodes_total: int
    """0: the file system has no fixed number."""
    inodes_free: int
    file_system: str
    """Its type; "" if unknown."""
    is_read_only: bool
    is_writable: bool
    """Whether this user may create files."""
    is_in_use: bool
    """Whether a process has locked the store."""


def read_store(path: Path) -> StoreFacts:
    """Return the facts of a store directory. Raises OSError."""
    path = path.expanduser().absolute()
    found = path
    while not found.exists():
        found = found.parent
    usage = os.statvfs(found)
    return StoreFacts(
        path=str(path),
        exists=found == path,
        bytes_total=(usage.f_blocks - usage.f_bfree + usage.f_bavail) * usage.f_frsize,
        bytes_free=usage.f_bavail * usage.f_frsize,
        inodes_total=usage.f_files,
        inodes_free=usage.f_favail,
        file_system=file_system_of(found.resolve(), Path("/proc/self/mountinfo").read_text),
        is_read_only=bool(usage.f_flag & os.ST_RDONLY),
        is_writable=found.is_dir() and os.access(found, os.W_OK | os.X_OK),
        is_in_use=_is_locked(path / "lock"),
    )


def file_system_of(path: Path, mounts: Callable[[], str]) -> str:
    """Return the type of the file system of a path, by the text of /proc/self/mountinfo; "" if unknown."""
    try:
        lines = mounts().splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        words = left.split(" ")
        if len(words) > 4 and right:  # the mount point is the fifth
            point = Path(words[4].encode("ascii", "backslashreplace").decode("unicode_escape"))
            if path.is_relative_to(point) and len(point.parts) >= best:
                best, kind = len(point.parts), right.split(" ")[0]
    return kind


def _is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB, 1)
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    except OSError:
        return False
    return False


def store_findings(facts: StoreFacts, *, used_max: float, full: float) -> Iterator[DoctorFinding]:
    """Check the directory of a store.

    Args:
        facts: the directory.
        used_max: part of the disk from which on old log files are deleted early.
        full: part from which on messages are refused.
    """
    state = "in use by a broker" if facts.is_in_use else "free" if facts.exists else "does not exist yet"
    if not facts.is_writable and not facts.is_in_use:
        yield problem(
            "store", facts.path, "this user cannot create files there", "chown it to the user that runs the broker"
        )
    elif facts.is_read_only:
        yield problem(
            "store", facts.path, "the file system is mounted read-only", "mount it with rw; see dmesg for why"
        )
    else:
        yield ok("store", facts.path, state)
    yield _space(facts, used_max, full)
    if facts.inodes_total:
        text = f"{facts.inodes_free:,} of {facts.inodes_total:,} inodes are free"
        todo = "delete other files of this file system: each queue of a topic needs some"
        if facts.inodes_free < INODES_FREE_MIN:
            yield problem("inodes", facts.path, text, todo)
        elif facts.inodes_free < INODES_SCARCE * facts.inodes_total:
            yield warning("inodes", facts.path, text, todo)
        else:
            yield ok("inodes", facts.path, text)
    yield from _kind(facts)


def _space(facts: StoreFacts, used_max: float, full: float) -> DoctorFinding:
    used = 1 - facts.bytes_free / max(facts.bytes_total, 1)
    text = f"{facts.bytes_free / 1e9:,.1f} of {facts.bytes_total / 1e9:,.1f} GB are free, {used:.0%} are used"
    todo = "free space, use a larger disk, or lower fileReservedTime"
    if used >= full:
        return problem("disk-space", facts.path, f"{text}; from {full:.0%} on messages are refused", todo)
    if used >= used_max:
        return warning("disk-space", facts.path, f"{text}; from {used_max:.0%} on log files are deleted early", todo)
    return ok("disk-space", facts.path, text)


def _kind(facts: StoreFacts) -> Iterator[DoctorFinding]:
    kind = facts.file_system
    if kind in _IN_MEMORY:
        text = f"{kind} is in memory: all messages are lost when the machine stops"
        yield warning("file-system", facts.path, text, "use a directory on a disk")
    elif kind.startswith(_REMOTE):
        text = f"{kind} may report data as flushed that are not, and locks of dead processes may stay"
        yield warning("file-system", facts.path, text, "use a local disk; slaves protect against its loss")
    elif kind == "overlay":
        text = "overlay is the layer of a container: all messages are lost with the container"
        yield warning("file-system", facts.path, text, "mount a volume, and set storePathRootDir to it")
    elif kind:
        yield ok("file-system", facts.path, kind)
