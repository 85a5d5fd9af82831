"""Remoting commands for registry operations and their outcomes, used with the registry inside a name server.

    request                          fields                                            body
    7310 TANDEM_REGISTRY_CONNECT     client, timeoutMs, sessionId (0: a new session)    -
    7311 TANDEM_REGISTRY_OPERATE     sessionId, op, path, watch | ephemeral | version   data
                                     and for a write guardPath, guardVersion
    7312 TANDEM_REGISTRY_EVENTS      sessionId                                         -
    7313 TANDEM_REGISTRY_PING        sessionId                                         -
    7314 TANDEM_REGISTRY_CLOSE       sessionId                                         -
    7315 TANDEM_REGISTRY_CHALLENGE   -                                                 -

An answer has response code 0 and a field `outcome`; "over" means that the session has ended, or has moved to another
connection. A session belongs to the connection of its last CONNECT.

If the name server has a secret, CONNECT carries the proof of `codec.proofs` over a nonce obtained by CHALLENGE on the
same connection, and its answer is proven too. Further requests of the session on that connection need no proof.

Source: docs/reference/requests.md, "The registry's requests".
"""

from typing import Annotated

import msgspec

from tandemq.codec.proofs import Roles
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.registry import (
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
)

ROLES = Roles(b"tandemq-registry-1 session asks", b"tandemq-registry-1 registry answers")
OVER = "over"
EVENTS = "events"
CONNECTED = "connected"
ALIVE = "alive"


class ConnectFields(msgspec.Struct, rename="camel"):
    """TANDEM_REGISTRY_CONNECT (7310)."""

    client: str
    timeout_ms: int
    session_id: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0


class SessionFields(msgspec.Struct, rename="camel"):
    """TANDEM_REGISTRY_EVENTS, _PING, _CLOSE (7312 to 7314), and the session of 7311."""

    session_id: int


class OperationFields(msgspec.Struct, rename="camel"):
    """TANDEM_REGISTRY_OPERATE (7311)."""

    session_id: int
    op: str
    path: str
    watch: bool = False
    ephemeral: bool = False
    version: int = -1
    guard_path: str = ""
    guard_version: int = -1


def encode_operation(session: int, operation: Operation) -> Command:
    """Return the request for an operation."""
    fields = {"sessionId": str(session), "path": operation.path}
    body = b""
    match operation:
        case Read(watch=watch):
            fields |= {"op": "read", "watch": _flag(watch)}
        case ReadChildren(watch=watch):
            fields |= {"op": "children", "watch": _flag(watch)}
        case Create(data=body, ephemeral=ephemeral):
            fields |= {"op": "create", "ephemeral": _flag(ephemeral)}
        case Write(data=body, version=version, guard=guard):
            fields |= {"op": "write", "version": str(version)}
            if guard is not None:
                fields |= {"guardPath": guard.path, "guardVersion": str(guard.version)}
        case Delete(version=version):
            fields |= {"op": "delete", "version": str(version)}
    return Command(RequestCode.TANDEM_REGISTRY_OPERATE, fields=fields, body=body)


def decode_operation(request: Command) -> tuple[int, Operation]:
    """Return session id and operation of a request.

    Raises:
        ProtocolError: a field is missing or malformed, or the operation is unknown.
    """
    fields = read_fields(OperationFields, request.fields)
    operation: Operation
    match fields.op:
        case "read":
            operation = Read(fields.path, fields.watch)
        case "children":
            operation = ReadChildren(fields.path, fields.watch)
        case "create":
            operation = Create(fields.path, request.body, fields.ephemeral)
        case "write":
            guard = Guard(fields.guard_path, fields.guard_version) if fields.guard_path else None
            operation = Write(fields.path, request.body, fields.version, guard)
        case "delete":
            operation = Delete(fields.path, fields.version)
        case _:
            raise ProtocolError(f"{fields.op!r:.64} is not a registry operation")
    return fields.session_id, operation


_BARE: dict[str, Outcome] = {"missing": NodeMissing(), "exists": Exists(), "conflict": Conflict()}
_BARE_NAMES = {type(outcome): name for name, outcome in _BARE.items()}


def encode_outcome(request: Command, outcome: Outcome) -> Command:
    """Return the answer to an operation."""
    body = b""
    match outcome:
        case NodeFound(data=body, version=version, owner=owner):
            fields = {"outcome": "found", "version": str(version), "owner": str(owner)}
        case Names(children=children):
            fields = {"outcome": "names"}
            body = msgspec.json.encode(children)
        case Done(version=version):
            fields = {"outcome": "done", "version": str(version)}
        case RegistryRefused(reason=reason):
            fields = {"outcome": "refused", "reason": reason}
        case _:
            fields = {"outcome": _BARE_NAMES[type(outcome)]}
    return request.answer(ResponseCode.SUCCESS, fields=fields, body=body)


def decode_outcome(answer: Command) -> Outcome:
    """Return the outcome of an operation.

    Raises:
        ProtocolError: the answer is malformed, or has no known outcome.
    """
    fields = answer.fields
    kind = fields.get("outcome", "")
    try:
        match kind:
            case "found":
                return NodeFound(bytes(answer.body), int(fields["version"]), int(fields["owner"]))
            case "names":
                return Names(tuple(msgspec.json.decode(answer.body, type=list[str])))
            case "done":
                return Done(int(fields["version"]))
            case "refused":
                return RegistryRefused(fields["reason"])
            case _:
                return _BARE[kind]
    except (KeyError, ValueError, msgspec.DecodeError) as error:
        raise ProtocolError(f"a registry's answer is malformed: outcome={kind!r:.64} {error}") from error


def paths_of(answer: Command) -> list[str]:
    """Return the paths whose watches fired, from an answer to TANDEM_REGISTRY_EVENTS.

    Raises:
        ProtocolError: the answer is malformed.
    """
    try:
        return msgspec.json.decode(answer.body, type=list[str])
    except msgspec.DecodeError as error:
        raise ProtocolError(f"a registry's events are malformed: {error}") from error


def _flag(value: bool) -> str:
    return "true" if value else "false"
