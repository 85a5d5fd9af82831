"""Registry interface: versioned nodes, sessions, ephemeral nodes, one-shot watches, compare-and-set.

    machine ──RegistryRequest(token, operation)──► registry ──RegistryResponse(token, outcome, sent_ms)──► machine
                                                      └─ SessionUp, SessionSuspended, SessionLost, Changed, Confirmed ─►

A registry is ZooKeeper, etcd, the registry hosted by a name server, or the simulated one. Callers cannot tell which.

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
ETCD = "etcd"
NAME_SERVER = "namesrv"
ADDRESS_EXAMPLES = "zookeeper://host:2181,host:2181, etcd://host:2379,host:2379 or namesrv://host:9876"
"""Addresses of registries, for help and messages."""


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """How clients reach etcd: the parameters of its address, which name files and have no secrets."""

    tls: bool = False
    """Whether connections use TLS; with `ca_file` they always do."""
    ca_file: str = ""
    """Trusted authorities, PEM; "": those of the system."""
    cert_file: str = ""
    """Certificate of the client, for servers that require one."""
    key_file: str = ""
    """Its private key."""
    user: str = ""
    """User of etcd's access control; "": none."""
    password_file: str = ""
    """File whose first line is the user's password."""


_PARAMETERS = {
    "tls": "tls",
    "ca": "ca_file",
    "cert": "cert_file",
    "key": "key_file",
    "user": "user",
    "passwordFile": "password_file",
}


@dataclass(frozen=True, slots=True)
class RegistryAddress:
    """Address of a registry. `hosts`: "host:port,host:port" of ZooKeeper or etcd, "host:port" of a name server."""

    kind: str
    hosts: str
    prefix: str = ""
    """Of etcd: path that all keys begin with, like "/apps"; "": none."""
    access: EtcdAccess = EtcdAccess()

    def __str__(self) -> str:
        """Return the address as written in settings."""
        values = ((key, getattr(self.access, name)) for key, name in _PARAMETERS.items())
        given = "&".join(f"{key}={'true' if value is True else value}" for key, value in values if value)
        return f"{self.kind}://{self.hosts}{self.prefix}" + (f"?{given}" if given else "")


def parse_address(text: str) -> RegistryAddress:
    """Parse the address of a registry.

    Examples: "zookeeper://h1:2181,h2:2181", "namesrv://127.0.0.1:9876", "etcd://h1:2379,h2:2379/apps?ca=/etc/ca.pem".

    Raises:
        LocalError: the address is malformed; the text says why.
    """
    kind, separator, rest = text.strip().partition("://")
    hint = f"write {ADDRESS_EXAMPLES}"
    if not separator or kind not in (ZOOKEEPER, ETCD, NAME_SERVER):
        raise LocalError(f"{text[:200]!r} is not the address of a registry", hint=hint)
    prefix, access = "", EtcdAccess()
    if kind == ETCD:
        rest, _, parameters = rest.partition("?")
        rest, slash, path = rest.partition("/")
        prefix, access = _parse_prefix(slash + path), _parse_access(parameters)
    for host in rest.split(","):
        name, _, port = host.rpartition(":")
        if not name or not name.isprintable() or " " in name or not port.isdecimal() or not 0 < int(port) <= 65_535:
            raise LocalError(f"{host[:200]!r} is not the host:port of a registry", hint=hint)
    if kind == NAME_SERVER and "," in rest:
        raise LocalError(f"{rest[:200]!r}: give the one name server that hosts the registry", hint=hint)
    return RegistryAddress(kind, rest, prefix, access)


def _parse_prefix(path: str) -> str:
    prefix = path.rstrip("/")
    if prefix:
        check_path(prefix)
    return prefix


def _parse_access(parameters: str) -> EtcdAccess:
    """Parse "key=value&key=value". Raises LocalError."""
    hint = "etcd://host:2379/prefix?ca=FILE&cert=FILE&key=FILE&user=NAME&passwordFile=FILE, each of them optional"
    values: dict[str, str] = {}
    for parameter in filter(None, parameters.split("&")):
        key, _, value = parameter.partition("=")
        if key not in _PARAMETERS or not value or not value.isprintable():
            raise LocalError(f"{parameter[:200]!r} is not a parameter of etcd's address", hint=hint)
        if key in values:
            raise LocalError(f"{key!r} is given twice in etcd's address", hint=hint)
        values[key] = value
    if values.get("tls", "true") != "true":
        raise LocalError(f"tls={values['tls'][:200]} in etcd's address: write tls=true, or leave it out", hint=hint)
    for one, other in (("cert", "key"), ("key", "cert"), ("user", "passwordFile"), ("passwordFile", "user")):
        if one in values and other not in values:
            raise LocalError(f"{one!r} without {other!r} in etcd's address: they belong together", hint=hint)
    if "cert" in values and not ("ca" in values or "tls" in values):
        raise LocalError("'cert' without TLS in etcd's address: give ca=FILE, or tls=true", hint=hint)
    return EtcdAccess(
        "tls" in values or "ca" in values,
        **{name: values.get(key, "") for key, name in _PARAMETERS.items() if key != "tls"},
    )


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
