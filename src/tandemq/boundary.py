"""Interface between the deterministic core and its shell: disk, time, connections, jobs.

The core consists of nodes (broker, name server, client). A shell (`real.loop` or the simulation) calls a node once
per turn of its event loop:

    turn = node.turn(received, events, now)        pass in everything that arrived
    node.deadline_ms()                             when the next call is due at the latest

and carries out the returned actions in order: send bytes, close and open connections, run jobs.
The core writes to disk itself, through `Disk`: synchronously, with errors raised, before any response is sent.
Blocking work (fdatasync, bulk copies) is a `Job`: run on another thread, reported back as `JobDone`.

`now.mono_ms` is used for deadlines, `now.wall_ms` is stored in records; a node never reads a clock itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from tandemq.registry import RegistryEvent, RegistryRequest

Buffer = bytes | bytearray | memoryview
READS_AT_ONCE = 4
"""Number of reads of the device for clients in progress at a time."""


def split_buffers(parts: Sequence[Buffer], count: int) -> tuple[list[Buffer], list[Buffer]]:
    """Split buffers, which hold bytes one behind the other, after the first `count` bytes, without a copy."""
    for at, part in enumerate(parts):
        if count < len(part):
            if not count:
                return list(parts[:at]), list(parts[at:])
            view = memoryview(part)
            return [*parts[:at], view[:count]], [view[count:], *parts[at + 1 :]]
        count -= len(part)
    return list(parts), []


class Now(msgspec.Struct, eq=False, gc=False):
    """One moment on both clocks, milliseconds. Mutable, so that a shell may reuse one object."""

    mono_ms: int
    """Monotonic time."""
    wall_ms: int
    """Calendar time since 1970."""


class File(Protocol):
    """A file with random access. Errors are raised as StoreErrors."""

    path: str
    """Where it is, for messages."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all bytes at a position.

        Raises:
            DiskFull: no space; some of the bytes may have been written.
            DiskFailed: the device failed.
        """

    def pwritev(self, parts: Sequence[Buffer], position: int) -> None:
        """Write all bytes of several buffers, one behind the other, at a position; otherwise as `pwrite`."""

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes from a position; fewer at the end of the file.

        Raises:
            DiskFailed: the device failed.
        """

    def pread_cached(self, size: int, position: int) -> bytes | None:
        """Return bytes as `pread` does, if that needs no wait for the device; else None.

        Raises:
            DiskFailed: the device failed.
        """

    def will_read(self, size: int, position: int) -> None:
        """Have the kernel begin to read bytes that `pread` will soon ask for; a hint."""

    def fileno(self) -> int:
        """Return the descriptor, with which the engine reads what the page cache has; -1 if there is none."""

    def datasync(self) -> None:
        """Wait until all written bytes are on the device; blocking, for jobs only.

        Raises:
            DiskFailed: the device failed; bytes written since the last success may be lost.
        """

    def truncate(self, size: int) -> None:
        """Set the file's length in bytes; added bytes read as zero and take no space."""

    def size(self) -> int:
        """Return the file's length in bytes."""

    def next_data(self, position: int) -> int:
        """Return the first position at or after `position` that may hold data (SEEK_DATA); the size if none does."""

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Capacity and free space of a device, bytes; neither counts what the file system reserves for the root user."""

    total_bytes: int
    free_bytes: int

    @property
    def ratio(self) -> float:
        """Used fraction, 0…1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class Disk(Protocol):
    """A directory tree. Paths are relative to its root and use `/`."""

    open_files_max: int
    """Number of files that may stay open only because they are likely to be used again."""

    def open(self, path: str, *, create: bool = False, is_secret: bool = False) -> File:
        """Open a file for reading and writing.

        `is_secret`: whether only the process's own user may read a file that is created.

        Raises:
            DiskFailed: the file does not exist (and `create` is False), or the device failed.
        """

    def list(self, path: str) -> list[str]:
        """Return the names in a directory, sorted; an empty list if the directory does not exist."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory exists."""

    def read(self, path: str) -> bytes | None:
        """Return the content of a small file, None if it does not exist."""

    def replace(self, path: str, data: bytes, *, is_secret: bool = False) -> None:
        """Replace a small file atomically: write a temporary file, sync it, rename it, sync the directory.

        `is_secret`: whether only the process's own user may read it.
        """

    def remove(self, path: str) -> None:
        """Delete a file, or a directory and its content; harmless if it does not exist."""

    def modified_ms(self, path: str) -> int:
        """Return the modification time of a file, ms since 1970."""

    def usage(self) -> DiskUsage:
        """Return the capacity and free space of the device."""


class LinkKind(Enum):
    """Protocol of a connection, determined by the port that accepted it or by the node that opened it."""

    REMOTING = "remoting"
    FAST = "fast"
    """Remoting on listenPort - 2: all requests except pulls."""
    HA_MASTER = "ha-master"
    """Accepted from a slave on the HA port."""
    HA_SLAVE = "ha-slave"
    """Opened to a master's HA port."""
    PEER = "peer"
    """Remoting connection opened to a name server or another broker."""
    GRPC = "grpc"
    """HTTP/2 with gRPC."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A connection is open. For connections that the node requested, `link` is the id it chose."""

    link: int
    kind: LinkKind
    peer: str
    """"ip:port" of the remote side."""
    local: str = ""
    tls: str = ""
    """TLS version, for example "TLSv1.3"; "" without TLS."""


@dataclass(frozen=True, slots=True)
class HandshakeFailed:
    """A TLS handshake failed. An incoming connection has no id yet; for an outgoing one `Closed` follows."""

    kind: LinkKind
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A connection is closed, or could not be opened. The last event of each connection.

    If the peer closed it, the node has taken all that was received before, in as many turns as it needed. If the node
    itself closed it, or the shell because of a limit, what the node had left is discarded.
    """

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """The send backlog of a connection is empty again."""

    link: int


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job has ended: the value it returned, or the error it raised."""

    job: "Job"
    result: object = None
    error: Exception | None = None


Event = Opened | HandshakeFailed | Closed | Drained | JobDone | RegistryEvent
"""Registry events come from the registry client of the shell (ZooKeeper, etcd), in the order in which they happened."""


Done = Callable[[JobDone, "Turn", Now], None]
"""Takes the result of a job, in the turn that gets it."""


def _ignore(_done: JobDone, _turn: "Turn", _now: Now) -> None:
    """Nobody waits for the result."""


@dataclass(slots=True, eq=False)
class Job:
    """Blocking work. `run` is called on a worker thread and must not touch state of the node that it was not given."""

    name: str
    run: Callable[[], object]
    done: Done = _ignore
    syncs: Sequence[File] = ()
    """Set if `run` only syncs these files: a shell may then submit the syncs to the kernel instead."""
    is_read: bool = False
    """Set if `run` reads the device for clients or slaves, and may hang with it: a shell has READS_AT_ONCE threads for
    such jobs. A node has no more of them in progress for clients, and half as many for slaves."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection. `link` is its id: negative, chosen by the node."""

    link: int
    kind: LinkKind
    address: str


@dataclass(slots=True)
class Turn:
    """Actions a node requests at the end of a turn, in this order: jobs, send, close, connect, registry operations."""

    sends: dict[int, list[Buffer]] = field(default_factory=dict)
    closes: list[tuple[int, str]] = field(default_factory=list)
    connects: list[Connect] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    asks: list[RegistryRequest] = field(default_factory=list)
    """Operations for the shell's registry client, if there is one."""
    unread: list[tuple[int, bytes]] = field(default_factory=list)
    """Received bytes that the time of the turn did not suffice for. The shell passes them in again in the next turn, in
    this order, and reads nothing more from their connections until then."""

    def send(self, link: int, *buffers: Buffer) -> None:
        """Append bytes to the send queue of a connection."""
        queued = self.sends.get(link)
        if queued is None:
            self.sends[link] = list(buffers)
        else:
            queued.extend(buffers)


class Outbox(Protocol):
    """What nodes may ask their shell during a turn: send backlogs, and how long the turn has taken."""

    def backlog(self, link: int) -> int:
        """Return the bytes queued for a connection and not yet accepted by the kernel; 0 for unknown connections."""

    def elapsed_us(self) -> int:
        """Return the time since the turn began, µs."""


class Node(Protocol):
    """What a shell drives: a broker, a name server, a client core."""

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """Process everything that arrived and return the actions to take. Harmless when nothing arrived."""

    def deadline_ms(self) -> int | None:
        """Return the monotonic time at which `turn` is needed even if nothing arrives; None for never."""
