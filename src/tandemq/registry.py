"""The registry in words: versioned nodes, sessions, ephemeral nodes, one-shot watches, compare-and-set.

    machine ──Ask(token, operation)──► a registry ──Answer(token, outcome, sent_ms)──► machine
                                            └──────SessionUp, SessionSuspended, SessionLost, Changed, Confirmed──►

A registry is ZooKeeper, the one a name server hosts, or the simulated one; whoever asks cannot tell which.

Nodes. A path is "/a/b/c"; a node has data and a version: 0 when created, one more with every write. There is no write
and no deletion without the version it is meant for. Missing parents are made when a node is created. An ephemeral node
goes with the session that made it, and has no children.

Sessions. SessionUp comes when a session is there: with a new id, or with the id from before when a connection was lost
and another found in time. After every SessionUp all watches are void: read again what matters. SessionSuspended says
only that nobody answers: the session lives on as far as anybody knows, and so do its nodes. SessionLost says that the
registry ended it; its ephemeral nodes are gone.

Watches fire once: Changed(path) says that data, existence or children of a path whose watch was asked for may be
different. A watch may fire for nothing; it never stays silent, but for the SessionUp rule above.

Outcomes. Unknown is not a failure: the operation may have happened, may still happen before what is asked after the
next SessionUp, or never did. Who asks while no session is up gets Unknown at once, and asks again after SessionUp.

Time. Confirmed(sent_ms) comes for each request, ping or operation, of which the registry as a whole has shown that the
session was alive; `sent_ms` is the monotonic time before the request left. Leases run from there.

Source: docs/internals/failover.md, "The registry"; ZooKeeper's programmer's guide.
"""

from dataclasses import dataclass
from typing import Protocol

from tandemq.errors import LocalError

DATA_BYTES_MAX = 256 << 10
"""Of one node; ZooKeeper's own limit is 1 MiB for a whole request."""
PATH_CHARACTERS_MAX = 1024
PERSISTENT = 0
"""Owner of a node that no session owns."""


# Operations.


@dataclass(frozen=True, slots=True)
class Read:
    """Data and version of a node. `watch`: Changed(path) when it is written, deleted, or, if missing, created."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class ReadChildren:
    """Names of the nodes below. `watch`: Changed(path) when one comes or goes, or, if missing, the node is created."""

    path: str
    watch: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """A new node, version 0. An ephemeral one goes with the session."""

    path: str
    data: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Guard:
    """A node that must still have `version` when another is written."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class Write:
    """New data for a node that still has `version`, if `guard` holds too: both in one step, or Conflict."""

    path: str
    data: bytes
    version: int
    guard: Guard | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a node that still has `version` and nothing below it."""

    path: str
    version: int


Operation = Read | ReadChildren | Create | Write | Delete


# Outcomes.


@dataclass(frozen=True, slots=True)
class NodeFound:
    """Answer to Read. `owner`: the session of an ephemeral node, PERSISTENT (0) for others."""

    data: bytes
    version: int
    owner: int = PERSISTENT


@dataclass(frozen=True, slots=True)
class Names:
    """Answer to ReadChildren: names without the path, sorted."""

    children: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Done:
    """Created, written (`version` is the new one) or deleted (`version` is the last one)."""

    version: int


@dataclass(frozen=True, slots=True)
class NodeMissing:
    """There is no such node."""


@dataclass(frozen=True, slots=True)
class Exists:
    """Create: there is one already."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """Write, Delete: the node has another version. Write: the guard has another one, or is missing."""


@dataclass(frozen=True, slots=True)
class RegistryRefused:
    """The registry does not do this at all: data too long, a child below an ephemeral node, children below a deleted
    one, no permission. Nothing happened, and the same again would be refused again."""

    reason: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """No answer: it may have happened or not. Never a failure; read before anything else is done."""


Outcome = NodeFound | Names | Done | NodeMissing | Exists | Conflict | RegistryRefused | Unknown


# Between a machine and a registry.


@dataclass(frozen=True, slots=True)
class RegistryRequest:
    """An operation and the asker's own number for it. Operations of a session are carried out and answered in order."""

    token: int
    operation: Operation


@dataclass(frozen=True, slots=True)
class RegistryResponse:
    """Comes once per Ask. `sent_ms`: monotonic time before the request left."""

    token: int
    outcome: Outcome
    sent_ms: int


@dataclass(frozen=True, slots=True)
class SessionUp:
    """A session is there, new (`session_id` never seen before) or found again. Watches are void: read again.

    `timeout_ms` is what the registry agreed to, which may be longer than what was asked for.
    """

    session_id: int
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class SessionSuspended:
    """The registry does not answer. The session and its nodes may live on; nothing is lost yet."""


@dataclass(frozen=True, slots=True)
class SessionLost:
    """The registry ended the session; its ephemeral nodes are gone. Another session is being asked for."""


@dataclass(frozen=True, slots=True)
class Changed:
    """A watch on this path fired and is gone."""

    path: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The session was alive, at the registry, at some moment after `sent_ms`."""

    sent_ms: int


class RegistrySession(Protocol):
    """A registry as the shell of a node speaks it."""

    @property
    def problem(self) -> str:
        """Why there is no session at present; empty while there is one."""

    def ask(self, ask: RegistryRequest) -> None:
        """Begin an operation."""

    def take_events(self) -> "list[RegistryEvent]":
        """What happened since the last call, in order."""


RegistryEvent = RegistryResponse | SessionUp | SessionSuspended | SessionLost | Changed | Confirmed


ZOOKEEPER = "zookeeper"
NAME_SERVER = "namesrv"


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Where a registry is. `hosts`: "host:port,host:port" of ZooKeeper, "host:port" of a name server."""

    kind: str
    hosts: str

    def __str__(self) -> str:
        """As it is written in settings."""
        return f"{self.kind}://{self.hosts}"


def parse_address(text: str) -> RegistryAddress:
    """The address of a registry, from "zookeeper://h1:2181,h2:2181" or "namesrv://127.0.0.1:9876".

    Raises:
        LocalError: says what is wrong with it.
    """
    kind, separator, hosts = text.strip().partition("://")
    hint = "write zookeeper://host:2181,host:2181 or namesrv://host:9876"
    if not separator or kind not in (ZOOKEEPER, NAME_SERVER):
        raise LocalError(f"{text[:200]!r} is no registry", hint=hint)
    for host in hosts.split(","):
        name, _, port = host.rpartition(":")
        if not name or not name.isprintable() or " " in name or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise LocalError(f"{host[:200]!r} is no host:port of a registry", hint=hint)
    if kind == NAME_SERVER and "," in hosts:
        raise LocalError(f"{hosts[:200]!r}: one name server hosts the registry, not several", hint=hint)
    return RegistryAddress(kind, hosts)


def check_path(path: str) -> None:
    """Refuse what is no path of a node: "/a/b", no empty or dotted names, no control characters.

    Raises:
        LocalError: says what is wrong with it.
    """
    names = path.split("/")
    if len(path) > PATH_CHARACTERS_MAX:
        raise LocalError(f"a registry path has at most {PATH_CHARACTERS_MAX} characters, this one {len(path)}")
    if names[0] or len(names) < 2 or any(name in ("", ".", "..") for name in names[1:]):
        raise LocalError(f"{path!r} is no registry path", hint='paths look like "/tandemq/cluster/groups"')
    if not path.isprintable():
        raise LocalError(f"{path!r} is no registry path: it has control characters")


def refusal(operation: Operation) -> str | None:
    """Why no registry carries out this operation; None if nothing speaks against it so far."""
    try:
        check_path(operation.path)
        if isinstance(operation, Write) and operation.guard is not None:
            check_path(operation.guard.path)
    except LocalError as error:
        return str(error)
    if isinstance(operation, Create | Write) and len(operation.data) > DATA_BYTES_MAX:
        return f"{operation.path}: a node has at most {DATA_BYTES_MAX} bytes, these are {len(operation.data)}"
    return None


def parent_of(path: str) -> str:
    """The path above; "" for a node at the top."""
    return path.rpartition("/")[0]
