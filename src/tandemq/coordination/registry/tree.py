"""A registry as a plain object: nodes, sessions, watches. Used by the name server and the simulation.

    execute(session, operation, now) ─► decide ─► changes ─► apply ─► outcome
                                                    │          └────► watches that fire
                                                    └► journal

Every modification of nodes and sessions is a *change*; applying the same changes in the same order gives the same tree
(`restore`). Watches and times are not part of it: after a restart a session gets its full timeout, and a resumed
session has no watches.

Limits: `NODES_MAX` nodes, `BYTES_MAX` of data in total, `SESSIONS_MAX` sessions, `WATCHES_MAX` watches per session.
Single owner, no locks. Uses no connections, no disk and no clock (the time is passed in).
Source: docs/internals/failover.md, "The registry".
"""

import logging
from collections.abc import Iterator, Sequence

import msgspec

from tandemq.errors import RemoteError
from tandemq.registry import (
    PERSISTENT,
    Conflict,
    Create,
    Delete,
    Done,
    Exists,
    Guard,
    Names,
    NodeFound,
    NodeMissing,
    Operation,
    Outcome,
    Read,
    ReadChildren,
    RegistryRefused,
    Write,
    parent_of,
    refusal,
)

NODES_MAX = 10_000
BYTES_MAX = 16 << 20
SESSIONS_MAX = 1_000
WATCHES_MAX = 1_000
TIMEOUT_MS_MIN = 100
TIMEOUT_MS_MAX = 60_000
_log = logging.getLogger(__name__)


# Changes, the records of a journal.


class NodeCreated(msgspec.Struct, frozen=True, tag="create"):
    """A node was created. `version` is above 0 only in snapshots."""

    path: str
    data: bytes
    owner: int = PERSISTENT
    version: int = 0


class NodeWritten(msgspec.Struct, frozen=True, tag="write"):
    """A node's data were replaced, and its version increased by one."""

    path: str
    data: bytes


class NodeDeleted(msgspec.Struct, frozen=True, tag="delete"):
    """A node was deleted."""

    path: str


class SessionOpened(msgspec.Struct, frozen=True, tag="open"):
    """A session was opened. `client`: unique name of its owner, required to resume it."""

    session: int
    timeout_ms: int
    client: str


class SessionEnded(msgspec.Struct, frozen=True, tag="end"):
    """A session ended, and its ephemeral nodes were deleted."""

    session: int


Change = NodeCreated | NodeWritten | NodeDeleted | SessionOpened | SessionEnded


class _Node:
    __slots__ = ("children", "data", "owner", "version")

    def __init__(self, data: bytes, version: int, owner: int) -> None:
        self.data = data
        self.version = version
        self.owner = owner
        self.children: set[str] = set()


class _Session:
    __slots__ = ("client", "heard_ms", "nodes", "timeout_ms", "watches")

    def __init__(self, timeout_ms: int, client: str) -> None:
        self.timeout_ms = timeout_ms
        self.client = client
        self.heard_ms: int | None = None
        self.nodes: set[str] = set()
        self.watches: set[tuple[str, bool]] = set()


class Tree:
    """All nodes and sessions. Times are milliseconds of one monotonic clock."""

    def __init__(self) -> None:
        """Create a tree with only the root, which has no data and cannot be written."""
        self._nodes: dict[str, _Node] = {"": _Node(b"", 0, PERSISTENT)}
        self._sessions: dict[int, _Session] = {}
        self._watchers: dict[tuple[str, bool], set[int]] = {}
        """Sessions by (path, whether its children are watched)."""
        self._bytes = 0
        self._changes: list[Change] = []
        self._fired: list[tuple[int, str]] = []
        self.last_session = 0
        """The highest session id ever used; ids are not reused."""

    # Sessions.

    def open_session(self, timeout_ms: int, client: str, now_ms: int, *, before: int = 0) -> int:
        """Open a session and return its id, which is new and above `before`.

        Args:
            timeout_ms: requested timeout; limited to TIMEOUT_MS_MIN to TIMEOUT_MS_MAX.
            client: unique name of the owner.
            now_ms: monotonic time.
            before: id of the client's previous session, maybe at a registry whose data are lost.
        Raises:
            RemoteError: there are already SESSIONS_MAX sessions.
        """
        if len(self._sessions) >= SESSIONS_MAX:
            raise RemoteError(f"the registry has {SESSIONS_MAX} sessions, the maximum")
        session = max(self.last_session, before) + 1
        self._change(SessionOpened(session, max(TIMEOUT_MS_MIN, min(timeout_ms, TIMEOUT_MS_MAX)), client))
        self._sessions[session].heard_ms = now_ms
        return session

    def resume_session(self, session: int, client: str, now_ms: int) -> bool:
        """Resume a session after its connection was lost, without its watches. False if the session has ended."""
        found = self._sessions.get(session)
        if found is None or found.client != client:
            return False
        found.heard_ms = now_ms
        self._drop_watches(session, found)
        self._fired = [each for each in self._fired if each[0] != session]
        return True

    def close_session(self, session: int) -> None:
        """End a session by its owner's request; does nothing if it has ended."""
        if session in self._sessions:
            self._change(SessionEnded(session))

    def touch(self, session: int, now_ms: int) -> bool:
        """Record a sign of life of a session's owner. False if the session has ended."""
        found = self._sessions.get(session)
        if found is None:
            return False
        found.heard_ms = now_ms
        return True

    def timeout_ms(self, session: int) -> int:
        """Return the timeout of an active session."""
        return self._sessions[session].timeout_ms

    def expire(self, now_ms: int) -> list[int]:
        """End the sessions whose timeout has passed, and return their ids. Restored sessions get their full timeout."""
        silent = []
        for session, found in self._sessions.items():
            if found.heard_ms is None:
                found.heard_ms = now_ms
            elif now_ms - found.heard_ms > found.timeout_ms:
                silent.append(session)
        for session in silent:
            _log.info("registry session expired session=%d client=%s", session, self._sessions[session].client)
            self._change(SessionEnded(session))
        return silent

    def deadline_ms(self) -> int | None:
        """Return when `expire` is needed next; None without sessions."""
        return (
            min(
                (0 if found.heard_ms is None else found.heard_ms + found.timeout_ms + 1)
                for found in self._sessions.values()
            )
            if self._sessions
            else None
        )

    @property
    def session_count(self) -> int:
        """Number of active sessions."""
        return len(self._sessions)

    # Operations.

    def execute(self, session: int, operation: Operation) -> Outcome:
        """Execute an operation of an active session."""
        assert session in self._sessions, f"session {session} has ended"
        reason = refusal(operation)
        if reason is not None:
            return RegistryRefused(reason)
        match operation:
            case Read() | ReadChildren():
                return self._read(session, operation)
            case Create():
                return self._create(session, operation)
            case Write():
                return self._write(operation)
            case Delete():
                return self._delete(operation)

    def _read(self, session: int, operation: Read | ReadChildren) -> Outcome:
        path = operation.path
        if operation.watch and not self._watch(session, path, children=isinstance(operation, ReadChildren)):
            return RegistryRefused(f"a session may have {WATCHES_MAX} watches")
        node = self._nodes.get(path)
        if node is None:
            return NodeMissing()
        if isinstance(operation, ReadChildren):
            return Names(tuple(sorted(node.children)))
        return NodeFound(node.data, node.version, node.owner)

    def _create(self, session: int, operation: Create) -> Outcome:
        path = operation.path
        if path in self._nodes:
            return Exists()
        missing = []
        parent = parent_of(path)
        while parent not in self._nodes:
            missing.append(parent)
            parent = parent_of(parent)
        if self._nodes[parent].owner != PERSISTENT:
            return RegistryRefused(f"{parent} is ephemeral and cannot have children")
        full = self._full(len(missing) + 1, len(operation.data))
        if full is not None:
            return full
        for each in reversed(missing):
            self._change(NodeCreated(each, b""))
        self._change(NodeCreated(path, operation.data, session if operation.ephemeral else PERSISTENT))
        return Done(0)

    def _write(self, operation: Write) -> Outcome:
        node = self._nodes.get(operation.path)
        if node is None:
            return NodeMissing()
        if node.version != operation.version or not self._holds(operation.guard):
            return Conflict()
        full = self._full(0, len(operation.data) - len(node.data))
        if full is not None:
            return full
        self._change(NodeWritten(operation.path, operation.data))
        return Done(node.version)

    def _holds(self, guard: Guard | None) -> bool:
        if guard is None:
            return True
        node = self._nodes.get(guard.path)
        return node is not None and node.version == guard.version

    def _delete(self, operation: Delete) -> Outcome:
        node = self._nodes.get(operation.path)
        if node is None:
            return NodeMissing()
        if node.version != operation.version:
            return Conflict()
        if node.children:
            return RegistryRefused(f"{operation.path} has children")
        self._change(NodeDeleted(operation.path))
        return Done(node.version)

    def _full(self, nodes: int, size: int) -> RegistryRefused | None:
        if len(self._nodes) + nodes > NODES_MAX:
            return RegistryRefused(f"the registry has {len(self._nodes)} nodes; the maximum is {NODES_MAX}")
        if self._bytes + size > BYTES_MAX:
            return RegistryRefused(f"the registry has {self._bytes} bytes of data; the maximum is {BYTES_MAX}")
        return None

    # Watches.

    def take_fired(self) -> list[tuple[int, str]]:
        """Return the watches that fired since the last call, as (session, path) in order."""
        fired, self._fired = self._fired, []
        return fired

    def _watch(self, session: int, path: str, *, children: bool) -> bool:
        watches = self._sessions[session].watches
        if (path, children) not in watches and len(watches) >= WATCHES_MAX:
            return False
        watches.add((path, children))
        self._watchers.setdefault((path, children), set()).add(session)
        return True

    def _drop_watches(self, session: int, found: _Session) -> None:
        for key in found.watches:
            watchers = self._watchers[key]
            watchers.discard(session)
            if not watchers:
                del self._watchers[key]
        found.watches.clear()

    def _fire(self, path: str, *, children: bool) -> None:
        for session in sorted(self._watchers.pop((path, children), ())):
            self._sessions[session].watches.discard((path, children))
            self._fired.append((session, path))

    # Changes.

    def take_changes(self) -> list[Change]:
        """Return the changes since the last call, for a journal."""
        changes, self._changes = self._changes, []
        return changes

    def restore(self, changes: Sequence[Change]) -> None:
        """Apply changes of a journal or a snapshot, without reporting them again.

        Raises:
            ValueError: a change refers to a missing node or session.
        """
        for change in changes:
            try:
                self._apply(change)
            except KeyError as error:
                raise ValueError(f"{change} cannot be applied: there is no {error}") from error
        self._fired.clear()

    def snapshot(self) -> list[Change]:
        """Return the changes that create this tree from an empty one."""
        return [*self._session_changes(), *self._node_changes()]

    def _session_changes(self) -> Iterator[Change]:
        for session, found in sorted(self._sessions.items()):
            yield SessionOpened(session, found.timeout_ms, found.client)

    def _node_changes(self) -> Iterator[Change]:
        for path, node in sorted(self._nodes.items()):  # a parent's path sorts before those of its children
            if path:
                yield NodeCreated(path, node.data, node.owner, node.version)

    def _change(self, change: Change) -> None:
        self._apply(change)
        self._changes.append(change)

    def _apply(self, change: Change) -> None:
        match change:
            case NodeCreated():
                self._apply_created(change)
            case NodeWritten():
                node = self._nodes[change.path]
                self._bytes += len(change.data) - len(node.data)
                node.data = change.data
                node.version += 1
                self._fire(change.path, children=False)
            case NodeDeleted():
                self._remove(change.path)
            case SessionOpened():
                self._sessions[change.session] = _Session(change.timeout_ms, change.client)
                self.last_session = max(self.last_session, change.session)
            case SessionEnded():
                found = self._sessions[change.session]
                self._drop_watches(change.session, found)
                for path in sorted(found.nodes):
                    self._remove(path)
                del self._sessions[change.session]

    def _apply_created(self, change: NodeCreated) -> None:
        parent, _, name = change.path.rpartition("/")
        self._nodes[parent].children.add(name)
        if change.owner != PERSISTENT:
            self._sessions[change.owner].nodes.add(change.path)
        self._nodes[change.path] = _Node(change.data, change.version, change.owner)
        self._bytes += len(change.data)
        self._fire(change.path, children=False)
        self._fire(change.path, children=True)
        self._fire(parent, children=True)

    def _remove(self, path: str) -> None:
        node = self._nodes.pop(path)
        parent, _, name = path.rpartition("/")
        self._nodes[parent].children.discard(name)
        if node.owner != PERSISTENT:
            self._sessions[node.owner].nodes.discard(path)
        self._bytes -= len(node.data)
        self._fire(path, children=False)
        self._fire(path, children=True)
        self._fire(parent, children=True)
