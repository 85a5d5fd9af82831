"""All that crosses between the deterministic core and the world: disk, time, links, jobs.

The core is a set of nodes (broker, name server). A shell drives a node once per turn of its loop:

    turn = node.turn(received, events, now)        everything that arrived, in
    node.deadline_ms()                             when it must be driven again at the latest

and carries out what comes back, in order: bytes to send, links to close or open, jobs to run elsewhere.
Disk writes are made by the core itself through `Disk`, at once and with errors raised, before any answer leaves.
Blocking work (fdatasync, bulk copies) is a `Job`: run elsewhere, reported back as `JobDone`.

`now.mono_ms` serves deadlines, `now.wall_ms` goes into records; a node never asks for the time itself.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from tandemq.registry import RegistryEvent, RegistryRequest

Buffer = bytes | bytearray | memoryview


class Now:
    """One moment on both clocks, milliseconds. Mutable so that a shell may reuse one object."""

    __slots__ = ("mono_ms", "wall_ms")

    def __init__(self, mono_ms: int, wall_ms: int) -> None:
        """A moment: monotonic clock, calendar clock since 1970."""
        self.mono_ms = mono_ms
        self.wall_ms = wall_ms


class File(Protocol):
    """A file of which positions are read and written. Errors are StoreErrors, never swallowed."""

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all bytes at a position.

        Raises:
            DiskFull: no space; some of the bytes may be written.
            DiskFailed: the device failed.
        """

    def pread(self, size: int, position: int) -> bytes:
        """Read up to `size` bytes; fewer at the end of the file.

        Raises:
            DiskFailed: the device failed.
        """

    def datasync(self) -> None:
        """Wait until all written bytes are on the device; blocking, for jobs only.

        Raises:
            DiskFailed: the device failed; nothing is known about what was written since the last success.
        """

    def truncate(self, size: int) -> None:
        """Make the file `size` bytes long; new bytes read as zero and take no space."""

    def size(self) -> int:
        """Length in bytes."""

    def next_data(self, position: int) -> int:
        """The first position at or behind `position` where something may have been written; the size if nothing was."""

    def close(self) -> None:
        """Give the file back. Closing twice is harmless."""


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of the device under a path."""

    total_bytes: int
    free_bytes: int

    @property
    def ratio(self) -> float:
        """Used part, 0…1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


class Disk(Protocol):
    """A directory tree. Paths are relative to its root, with `/`."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file for reading and writing.

        Raises:
            DiskFailed: it is not there (and `create` is False), or the device failed.
        """

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty if there is none."""

    def exists(self, path: str) -> bool:
        """Whether a file or directory is there."""

    def read(self, path: str) -> bytes | None:
        """A whole small file, None if it is not there."""

    def replace(self, path: str, data: bytes) -> None:
        """Put a whole small file in place: written beside it, synced, renamed over it, the name synced too."""

    def remove(self, path: str) -> None:
        """Delete a file, or a directory with all that is in it; harmless if it is not there."""

    def modified_ms(self, path: str) -> int:
        """Calendar time of the last change of a file."""

    def usage(self) -> DiskUsage:
        """How full the device is."""


class LinkKind(Enum):
    """What a link speaks, told by the port it came in on, or by the node that asked for it."""

    REMOTING = "remoting"
    FAST = "fast"
    """Remoting on listenPort - 2: everything but pulls."""
    HA_MASTER = "ha-master"
    """A slave connected to our HA port."""
    HA_SLAVE = "ha-slave"
    """Our connection to a master's HA port."""
    PEER = "peer"
    """Our remoting connection to a name server or another broker."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A link is open. For links a node asked for, `link` is the number it gave."""

    link: int
    kind: LinkKind
    peer: str
    """"ip:port" of the other side."""
    local: str = ""
    tls: str = ""
    """The version of TLS that protects it, as "TLSv1.3"; "" if none does."""


@dataclass(frozen=True, slots=True)
class TurnedAway:
    """TLS failed: a peer that connected gets no link; for one we connected to `Closed` follows."""

    kind: LinkKind
    peer: str
    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A link is gone, or could not be opened. Comes once per link, last."""

    link: int
    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Bytes were waiting to leave on this link, and have left."""

    link: int


@dataclass(frozen=True, slots=True)
class JobDone:
    """A job ended. `error` is what it raised; `result` what it returned."""

    job: "Job"
    result: object = None
    error: Exception | None = None


Event = Opened | TurnedAway | Closed | Drained | JobDone | RegistryEvent
"""Registry events come from the registry a shell speaks for its node (ZooKeeper), in the order they happened."""


@dataclass(slots=True, eq=False)
class Job:
    """Blocking work: `run` is called on a worker thread and touches nothing of the node's but what it was given."""

    name: str
    run: Callable[[], object]
    token: object = None
    syncs: Sequence[File] = ()
    """If `run` does no more than sync these: a shell may leave that to the system."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a link. `link` is negative and chosen by the node."""

    link: int
    kind: LinkKind
    address: str


@dataclass(slots=True)
class Turn:
    """What a node wants done after a turn, in this order: jobs, send, close, connect, registry operations."""

    sends: dict[int, list[Buffer]] = field(default_factory=dict)
    closes: list[tuple[int, str]] = field(default_factory=list)
    connects: list[Connect] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    asks: list[RegistryRequest] = field(default_factory=list)
    """For the registry the shell speaks for this node, if it does."""

    def send(self, link: int, *buffers: Buffer) -> None:
        """Queue bytes on a link, behind what is queued there already."""
        queued = self.sends.get(link)
        if queued is None:
            self.sends[link] = list(buffers)
        else:
            queued.extend(buffers)


class Outbox(Protocol):
    """How a node asks the shell what is still waiting to leave."""

    def backlog(self, link: int) -> int:
        """Bytes handed to the shell for this link and not yet taken by the network; 0 for unknown links."""


class Node(Protocol):
    """What a shell drives: a broker, a name server, a client core."""

    def turn(self, received: Sequence[tuple[int, bytes]], events: Sequence[Event], now: Now) -> Turn:
        """Take everything that arrived, give back everything to do. Harmless when nothing arrived."""

    def deadline_ms(self) -> int | None:
        """Monotonic time at which `turn` is needed even if nothing arrives; None for never."""
