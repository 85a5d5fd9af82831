"""Messages of etcd's JSON gateway that are read here, with the fields that are used.

The gateway writes 64-bit integers as strings, bytes in base64, and leaves out fields with the value zero. Requests are
plain dictionaries, whose bytes `encoded` writes in base64.
Source: etcd's API reference, rpc.proto and kv.proto.
"""

from typing import Any, TypeVar

import msgspec

from tandemq.errors import ProtocolError

_T = TypeVar("_T")


class Header(msgspec.Struct, frozen=True):
    """Header of responses: the member that answered, its Raft term, the revision of its store."""

    member_id: int = 0
    raft_term: int = 0
    revision: int = 0


class KeyValue(msgspec.Struct, frozen=True):
    """A key. `version`: number of writes since its creation, which is the first one; 0 in the event of a deletion."""

    key: bytes
    value: bytes = b""
    version: int = 0
    mod_revision: int = 0
    lease: int = 0


class RangeAnswer(msgspec.Struct, frozen=True):
    """Answer to a range request, alone or in a transaction, where the header has the revision alone."""

    header: Header = Header()
    kvs: tuple[KeyValue, ...] = ()


class OperationAnswer(msgspec.Struct, frozen=True):
    """Answer to an operation of a transaction."""

    response_range: RangeAnswer | None = None


class TransactionAnswer(msgspec.Struct, frozen=True):
    """Answer to a transaction. `succeeded`: all comparisons held."""

    header: Header
    succeeded: bool = False
    responses: tuple[OperationAnswer, ...] = ()

    def found(self, index: int) -> tuple[KeyValue, ...]:
        """Return what the range request at this position of the executed branch found."""
        answer = self.responses[index].response_range if index < len(self.responses) else None
        return answer.kvs if answer is not None else ()


class LeaseAnswer(msgspec.Struct, frozen=True):
    """Answer to a grant or a keep-alive. `ttl`: seconds; 0: there is no such lease."""

    header: Header
    id: int = msgspec.field(default=0, name="ID")
    ttl: int = msgspec.field(default=0, name="TTL")


class KeepAliveAnswer(msgspec.Struct, frozen=True):
    """First message of the stream of a keep-alive."""

    result: LeaseAnswer


class TokenAnswer(msgspec.Struct, frozen=True):
    """Answer to an authentication."""

    token: str = ""


class AnyAnswer(msgspec.Struct, frozen=True):
    """Answer of which nothing is used."""


class WatchEvent(msgspec.Struct, frozen=True):
    """A key was written or deleted."""

    kv: KeyValue


class WatchBatch(msgspec.Struct, frozen=True):
    """Message of a watch. `compact_revision`: with `canceled`, the first revision that is still there."""

    created: bool = False
    canceled: bool = False
    cancel_reason: str = ""
    compact_revision: int = 0
    events: tuple[WatchEvent, ...] = ()


class StreamError(msgspec.Struct, frozen=True):
    """Why a stream ends."""

    message: str = ""


class WatchLine(msgspec.Struct, frozen=True):
    """One line of a watch stream."""

    result: WatchBatch | None = None
    error: StreamError | None = None


class ErrorAnswer(msgspec.Struct, frozen=True):
    """Body of an error. `code`: of gRPC."""

    code: int
    error: str = ""
    message: str = ""


def encoded(request: dict[str, Any]) -> bytes:
    """Return the JSON of a request."""
    return msgspec.json.encode(request)


def decoded(data: bytes, kind: type[_T]) -> _T:
    """Return a message.

    Raises:
        ProtocolError: the bytes are not such a message.
    """
    try:
        return msgspec.json.decode(data, type=kind, strict=False)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"etcd's answer is not understood: {error}") from error
