"""Registry interface: versioned nodes, sessions, ephemeral nodes, one-shot watches, compare-and-set.

    machine ──RegistryRequest(token, operation)──► registry ──RegistryResponse(token, outcome, sent_ms)──► machine
                                                      └─ SessionUp, SessionSuspended, SessionLost, Changed, Confirmed ─►

A registry is ZooKeeper, the registry hosted by a name server, or the simulated one. Callers cannot tell which.

Nodes. A path is "/a/b/c". A node has data and a version, which is 0 at creation and increases by one with every write.
Every write and every deletion names the version it expects. Creating a node also creates its missing parents. An
ephemeral node is deleted with the session that created it, and has no children.

Sessions. SessionUp reports that a session exists: with a new id, or with the previous id if the client reconnected in
time. Every SessionUp voids all watches: read again what matters. SessionSuspended reports only that no server answers;
the session and its nodes may still exist. SessionLost reports that the registry ended the session and deleted its
ephemeral nodes.

Watches fire once: Changed(path) reports that the data, the existence or the children of a watched path may have
changed. A watch may fire without a change. A change is never missed, except as the SessionUp rule above says.

Outcomes. Unknown is not a failure: the operation may have happened, may still happen before operations that are
requested after the next SessionUp, or may never happen. A request made while no session is up gets Unknown at once;
repeat it after SessionUp.

Time. Confirmed(sent_ms) arrives for each request, ping or operation, whose answer proves that a quorum of the registry
considered the session alive; `sent_ms` is the monotonic time before the request was sent. Leases are counted from it.

Source: docs/internals/failover.md, "The registry"; ZooKeeper's programmer's guide.
"""

from dataclasses import dataclass
from typing import Protocol

from tandemq.errors import LocalError

DATA_BYTES_MAX = 256 << 10
"""Maximum size of a node's data. ZooKeeper limits a whole request to 1 MiB."""
PATH_CHARACTERS_MAX = 1024
PERSISTENT = 0
"""Owner of a node that belongs to no session."""


# Operations.


@dataclass(frozen=True, slots=True)
class Read:
    """Read a node's data and version. `watch`: Changed(path) when it is written or deleted or, if missing, created."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ReadChildren:
    """Read the names of a node's children. `watch`: Changed(path) when a child is created or deleted, or when the
    missing node is created."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node with version 0. An ephemeral node is deleted with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """Condition of a write: another node that must still have `version`."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Write:
    """Replace the data of a node that still has `version`, if `guard` holds too: atomically, or Conflict."""

    path: str
    data: bytes
    version: int
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node that still has `version` and no children."""

    path: str
    version: int


Operation = Read | ReadChildren | Create | Write | Delete


# Outcomes.


@dataclass(frozen=True, slots=True)
class NodeFound:
    """Outcome of Read. `owner`: session id of an ephemeral node, PERSISTENT (0) for others."""

    data: bytes
    version: int
    owner: int = PERSISTENT


@dataclass(frozen=True, slots=True)
class Names:
    """Outcome of ReadChildren: names without the path, sorted."""

    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """The node was created or written (`version` is the new one), or deleted (`version` is the last one)."""

    version: int


@dataclass(frozen=True, slots=True)
class NodeMissing:
    """The node does not exist."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Outcome of Create: the node exists already."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Outcome of Write and Delete: the node, or the guard's node, has another version, or the guard's is missing."""


@dataclass(frozen=True, slots=True)
class RegistryRefused:
    """The registry refuses the operation: data too long, parent is ephemeral, node to delete has children, no
    permission. Nothing happened, and a repetition would be refused too."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """Unknown outcome: there was no answer, so the operation may have happened or not. Not a failure; read the node
    before doing anything else."""


Outcome = NodeFound | Names | Done | NodeMissing | Exists | Conflict | RegistryRefused | Unknown


# Between a machine and a registry.


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """An operation and the caller's number for it. Operations of a session are executed and answered in order."""

    token: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RegistryResponse:
    """Answer to a RegistryRequest, exactly one each. `sent_ms`: monotonic time before the request was sent."""

    token: int
    outcome: Outcome
    sent_ms: int


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A session exists: a new one (`session_id` never seen before), or the previous one. Watches are void: read again.

    `timeout_ms` is the session timeout granted by the registry, which may be longer than the requested one.
    """

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionSuspended:
    """The registry does not answer. The session and its nodes may still exist."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The registry ended the session and deleted its ephemeral nodes. A new session is being requested."""


@dataclass(frozen=True, slots=True)
class Changed:
    """The watch on this path fired; it does not fire again."""

    path: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The registry considered the session alive at some moment after `sent_ms`."""

    sent_ms: int


class RegistrySession(Protocol):
    """A registry as a node's I/O shell uses it."""

    @property
    def problem(self) -> str:
        """Why there is no session at present; "" while there is one."""

    def ask(self, ask: RegistryRequest) -> None:
        """Start an operation."""

    def take_events(self) -> "list[RegistryEvent]":
        """Return the events since the last call, in order."""


RegistryEvent = RegistryResponse | SessionUp | SessionSuspended | SessionLost | Changed | Confirmed


ZOOKEEPER = "zookeeper"
NAME_SERVER = "namesrv"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Address of a registry. `hosts`: "host:port,host:port" of ZooKeeper, "host:port" of a name server."""

    kind: str
    hosts: str

    def __str__(self) -> str:
        """Return the address as written in settings."""
        return f"{self.kind}://{self.hosts}"


def parse_address(text: str) -> RegistryAddress:
    """Parse the address of a registry, "zookeeper://h1:2181,h2:2181" or "namesrv://127.0.0.1:9876".

    Raises:
        LocalError: the address is malformed; the text says why.
    """
    kind, separator, hosts = text.strip().partition("://")
    hint = "write zookeeper://host:2181,host:2181 or namesrv://host:9876"
    if not separator or kind not in (ZOOKEEPER, NAME_SERVER):
        raise LocalError(f"{text[:200]!r} is not the address of a registry", hint=hint)
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        if not name or not name.isprintable() or " " in name or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise LocalError(f"{host[:200]!r} is not the host:port of a registry", hint=hint)
    if kind == NAME_SERVER and "," in hosts:
        raise LocalError(f"{hosts[:200]!r}: give the one name server that hosts the registry", hint=hint)
    return RegistryAddress(kind, hosts)


def check_path(path: str) -> None:
    """Check that a text is the path of a node: like "/a/b", no empty or dotted names, no control characters.

    Raises:
        LocalError: it is not; the text says why.
    """
    names = path.split("/")
    if len(path) > PATH_CHARACTERS_MAX:
        raise LocalError(f"a registry path has at most {PATH_CHARACTERS_MAX} characters, this one {len(path)}")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") for name in names[1:]):
        raise LocalError(f"{path!r} is not a registry path", hint='paths look like "/tandemq/cluster/groups"')
    if not path.isprintable():
        raise LocalError(f"{path!r} is not a registry path: it has control characters")


def refusal(operation: Operation) -> str | None:
    """Return why every registry refuses this operation, by its path and size alone; None if it may be accepted."""
    try:
        check_path(operation.path)
        if isinstance(operation, Write) and operation.guard is not None:
            check_path(operation.guard.path)
    except LocalError as error:
        return str(error)
    if isinstance(operation, Create | Write) and len(operation.data) > DATA_BYTES_MAX:
        return f"{operation.path}: a node has at most {DATA_BYTES_MAX} bytes, not {len(operation.data)}"
    return None


def parent_of(path: str) -> str:
    """Return the path of a node's parent; "" for a top-level node."""
    return path.rpartition("/")[0]
