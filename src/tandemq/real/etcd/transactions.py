"""Operations on nodes as requests to etcd, and their outcomes.

    Read            range                                 a linearizable read
    ReadChildren    transaction of two ranges             the node, and the keys below it, of which the names are used
    Create          compare: no key, no parent has a lease     then: put missing parents, put the key
    Write           compare: version, version of the guard     then: put, which keeps the lease of the key
    Delete          compare: version, no key below             then: delete

Each write also compares the version of the session's key (`Fence`). If a comparison fails, the transaction reads the
compared keys instead, from which the outcome follows. Versions are etcd's minus one: both count from the creation of
the node, so a version means here what it means in ZooKeeper.
Source: docs/internals/failover.md, "The registry".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tandemq.real.etcd.messages import KeyValue, RangeAnswer, TransactionAnswer
from tandemq.registry import (
    Conflict,
    Create,
    Delete,
    Done,
    Exists,
    Names,
    NodeFound,
    NodeMissing,
    Outcome,
    Read,
    ReadChildren,
    RegistryRefused,
    Unknown,
    Write,
    parent_of,
)

RANGE = "kv/range"
TRANSACTION = "kv/txn"
Request = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Keys:
    """Names of keys. `prefix`: a path that all begin with, or ""."""

    prefix: str

    def of(self, path: str) -> bytes:
        """Return the key of a node."""
        return f"{self.prefix}{path}".encode()

    def session(self, lease: int) -> bytes:
        """Return the key that exists as long as a session."""
        return f"{self.prefix}/tandemq-sessions/{lease:x}".encode()

    def path(self, key: bytes) -> str:
        """Return the path of a node."""
        return key.decode(errors="replace").removeprefix(self.prefix)


@dataclass(frozen=True, slots=True)
class Fence:
    """The session's key, and the version that it has while this connection has the session."""

    key: bytes
    version: int

    def is_in(self, found: Sequence[KeyValue]) -> bool:
        """Whether the key that was found has that version."""
        return bool(found) and found[0].version == self.version


def below(directory: bytes) -> tuple[bytes, bytes]:
    """Return the half-open range of the keys that begin with "DIRECTORY/"."""
    return directory + b"/", directory + b"0"


# Reads.


def reading(operation: Read, keys: Keys) -> Request:
    """Return the range request of a read."""
    return {"key": keys.of(operation.path)}


def read_outcome(answer: RangeAnswer) -> Outcome:
    """Return the outcome of a read."""
    if not answer.kvs:
        return NodeMissing()
    found = answer.kvs[0]
    return NodeFound(found.value, found.version - 1, found.lease)


def listing(operation: ReadChildren, keys: Keys) -> Request:
    """Return the transaction that lists children."""
    key = keys.of(operation.path)
    start, end = below(key)
    return {"success": [_look(key), {"request_range": {"key": start, "range_end": end, "keys_only": True}}]}


def listing_outcome(operation: ReadChildren, answer: TransactionAnswer, keys: Keys) -> Outcome:
    """Return the outcome of a list of children."""
    if not answer.found(0):
        return NodeMissing()
    start = f"{operation.path}/"
    names = (keys.path(found.key).removeprefix(start) for found in answer.found(1))
    return Names(tuple(sorted(name for name in names if "/" not in name)))


# Writes.


def writing(operation: Create | Write | Delete, keys: Keys, lease: int, fence: Fence) -> Request:
    """Return the transaction of a write. `lease`: of the session, for ephemeral nodes."""
    match operation:
        case Create():
            return _fenced(_creation(operation, keys, lease), fence)
        case Write():
            return _fenced(_replacement(operation, keys), fence)
        case Delete():
            return _fenced(_deletion(operation, keys), fence)


def _fenced(request: Request, fence: Fence) -> Request:
    return {
        "compare": [_version_is(fence.key, fence.version), *request["compare"]],
        "success": request["success"],
        "failure": [_look(fence.key), *request["failure"]],
    }


def written_outcome(operation: Create | Write | Delete, answer: TransactionAnswer, fence: Fence) -> Outcome | None:
    """Return the outcome of a write; None if the connection no longer has the session, so that nothing happened."""
    if answer.succeeded:
        match operation:
            case Create():
                return Done(0)
            case Write(version=version):
                return Done(version + 1)
            case Delete(version=version):
                return Done(version)
    if not fence.is_in(answer.found(0)):
        return None
    match operation:
        case Create():
            return _creation_failure(operation, answer)
        case Write():
            return Conflict() if answer.found(1) else NodeMissing()
        case Delete():
            return _deletion_failure(operation, answer)


def _creation(operation: Create, keys: Keys, lease: int) -> Request:
    key, parents = keys.of(operation.path), [keys.of(path) for path in _parents(operation.path)]
    put: Request = {"key": key, "value": operation.data}
    if operation.ephemeral:
        put["lease"] = str(lease)
    making = [
        {"request_txn": {"compare": [_version_is(parent, 0)], "success": [{"request_put": {"key": parent}}]}}
        for parent in parents
    ]
    return {
        "compare": [
            _version_is(key, 0),
            *({"target": "LEASE", "result": "EQUAL", "key": parent, "lease": "0"} for parent in parents),
        ],
        "success": [*making, {"request_put": put}],
        # With `keys_only`, etcd 3.7 leaves out the lease.
        "failure": [_look(key), *({"request_range": {"key": parent}} for parent in parents)],
    }


def _creation_failure(operation: Create, answer: TransactionAnswer) -> Outcome:
    if answer.found(1):
        return Exists()
    for index, parent in enumerate(_parents(operation.path), start=2):
        found = answer.found(index)
        if found and found[0].lease:
            return RegistryRefused(f"{parent} is ephemeral and cannot have children")
    return Unknown()


def _replacement(operation: Write, keys: Keys) -> Request:
    key = keys.of(operation.path)
    compare = [_version_is(key, operation.version + 1)]
    if operation.guard is not None:
        compare.append(_version_is(keys.of(operation.guard.path), operation.guard.version + 1))
    return {
        "compare": compare,
        "success": [{"request_put": {"key": key, "value": operation.data, "ignore_lease": True}}],
        "failure": [_look(key)],
    }


def _deletion(operation: Delete, keys: Keys) -> Request:
    key = keys.of(operation.path)
    start, end = below(key)
    # A comparison of a range holds if it holds for each key in it.
    nothing_below = {"target": "VERSION", "result": "EQUAL", "key": start, "range_end": end, "version": "0"}
    return {
        "compare": [_version_is(key, operation.version + 1), nothing_below],
        "success": [{"request_delete_range": {"key": key}}],
        "failure": [_look(key)],
    }


def _deletion_failure(operation: Delete, answer: TransactionAnswer) -> Outcome:
    found = answer.found(1)
    if not found:
        return NodeMissing()
    if found[0].version != operation.version + 1:
        return Conflict()
    return RegistryRefused(f"{operation.path} has children")


def _version_is(key: bytes, version: int) -> Request:
    """Return a comparison; version 0: there is no such key."""
    return {"target": "VERSION", "result": "EQUAL", "key": key, "version": str(version)}


def _look(key: bytes) -> Request:
    return {"request_range": {"key": key, "keys_only": True}}


def _parents(path: str) -> list[str]:
    """Return the parents of a path, the outermost first."""
    found = []
    parent = parent_of(path)
    while parent:
        found.append(parent)
        parent = parent_of(parent)
    return found[::-1]


# The session's key.


def taking(key: bytes, lease: int, *, is_new: bool) -> Request:
    """Return the transaction by which a connection takes a session: it writes the key, and reads its version."""
    request: Request = {"success": [{"request_put": {"key": key, "lease": str(lease)}}, _look(key)]}
    if not is_new:
        request["compare"] = [{"target": "VERSION", "result": "GREATER", "key": key, "version": "0"}]
    return request
