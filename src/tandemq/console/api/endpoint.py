"""Checks before an operation runs, and the form of its response.

    request ─► token ─► rate ─► role ─► types of address, parameters and body ─► handler ─► JSON

* Only the header `Authorization: Bearer` counts, never a cookie.
* Unknown tokens are limited by address, valid ones by token, both in rate; a token may have `OPEN_MAX` requests open.
* Errors are problems (RFC 9457). 400: the request is not of the described form; 422: it is, and cannot be done.
"""

import math
import re
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tandemq.console.access.tokens import TokenHolder
from tandemq.console.api.handlers.broker_groups import Contradictory, configured_group
from tandemq.console.api.openapi import BASE, document
from tandemq.console.api.operation import ApiCall, Operation
from tandemq.console.api.responses import Problem
from tandemq.console.api.routes import OPERATIONS
from tandemq.console.services import AlreadyExists, Console, NotFound, wall_ms
from tandemq.console.visit import base_of
from tandemq.errors import LocalError, NetworkError, NoRoute, TandemError
from tandemq.groupdb.database import RevisionConflict

BODY_BYTES_MAX = 6 << 20
"""A message of 4 MiB in base64 fits."""
QUERY_CHARACTERS_MAX = 8 << 10
PARAMETERS_MAX = 50
OPEN_MAX = 8
_BEARER = re.compile(r"bearer +([!-~]{1,200})", re.IGNORECASE)
Endpoint = Callable[[Request], Awaitable[Response]]


class Refusal(Exception):
    """A request that does not reach its operation."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        """Create the refusal."""
        super().__init__(detail)
        self.status = status
        self.headers = dict(headers or {})


def problem(status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any) -> Response:
    """Return an error in the form of all errors of the API."""
    found = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail, **more)
    return _json(found, status, "application/problem+json", headers)


def _json(
    value: object, status: int, media_type: str = "application/json", headers: Mapping[str, str] | None = None
) -> Response:
    return Response(msgspec.json.encode(value), status, dict(headers or {}), media_type)


def api_endpoints(console: Console, address_of: Callable[[Request], str]) -> dict[str, tuple[Endpoint, list[str]]]:
    """Return the endpoints of the API by path, each with its methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in OPERATIONS:
        by_path.setdefault(operation.path, {})[operation.method] = operation
    found = {
        BASE + path: (_endpoint(console, address_of, operations), sorted(operations))
        for path, operations in by_path.items()
    }
    text = document()

    async def describe(request: Request) -> Response:
        return _json({**text, "servers": [{"url": base_of(request) + BASE}]}, 200)

    return {f"{BASE}/openapi.json": (describe, ["GET"]), **found}


def _endpoint(console: Console, address_of: Callable[[Request], str], operations: dict[str, Operation]) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        try:
            return await _run(
                console, request, address_of(request), operations["GET" if request.method == "HEAD" else request.method]
            )
        except Refusal as refusal:
            return problem(refusal.status, str(refusal), refusal.headers)
        except Contradictory as error:
            return problem(422, error.args[0], errors=error.errors)
        except RevisionConflict as error:
            current = None if error.current is None else configured_group(error.current)
            return problem(409, error.args[0], hint=error.hint, current=current)
        except TandemError as error:
            return problem(_status_of(error), error.args[0], hint=error.hint)

    return endpoint


def _status_of(error: TandemError) -> int:
    if isinstance(error, NotFound | NoRoute):
        return 404
    if isinstance(error, AlreadyExists):
        return 409
    if isinstance(error, LocalError):
        return 422
    return 504 if isinstance(error, NetworkError) else 502


async def _run(console: Console, request: Request, address: str, operation: Operation) -> Response:
    holder = await _holder(console, request, address)
    number = holder.token.number
    if wait_ms := console.api_limit.take(str(number), wall_ms()):
        raise Refusal(429, "this token makes too many requests", _after(wait_ms))
    if holder.role < operation.role:
        raise Refusal(403, f"this needs the role {operation.role.text}; the token's is {holder.role.text}")
    if console.api_open.get(number, 0) >= OPEN_MAX:
        raise Refusal(429, f"this token has {OPEN_MAX} requests open", _after(1_000))
    console.api_open[number] = console.api_open.get(number, 0) + 1
    try:
        arguments = await _arguments(request, operation)
        result = await operation.handle(ApiCall(console, holder, address), **arguments)
    finally:
        console.api_open[number] -= 1
        if not console.api_open[number]:
            del console.api_open[number]
    return Response(status_code=operation.status) if result is None else _json(result, operation.status)


def _after(wait_ms: int) -> dict[str, str]:
    return {"retry-after": str(math.ceil(wait_ms / 1000))}


async def _holder(console: Console, request: Request, address: str) -> TokenHolder:
    """Return the holder of the request's token. Raises Refusal if there is none."""
    challenge = {"www-authenticate": 'Bearer realm="tandemq"'}
    given = request.headers.getlist("authorization")
    if not given:
        raise Refusal(401, "a token is needed: Authorization: Bearer …", challenge)
    if wait_ms := console.refused_tokens.wait_ms(address, wall_ms()):
        raise Refusal(429, "too many requests with unknown tokens came from this address", _after(wait_ms))
    found = _BEARER.fullmatch(given[0].strip()) if len(given) == 1 else None
    holder = None if found is None else await console.run(console.tokens.holder_of, found[1], address, wall_ms())
    if holder is None:
        console.refused_tokens.take(address, wall_ms())
        raise Refusal(401, "the token is unknown, has expired, or was revoked", challenge)
    return holder


async def _arguments(request: Request, operation: Operation) -> dict[str, Any]:
    """Return the arguments of the handler. Raises Refusal if the request is not of the described form."""
    types, found = operation.types, {}
    if "path" in types:
        found["path"] = _converted("path", dict(request.path_params), types["path"])
    parameters = _parameters(request.url.query)
    if "query" in types:
        found["query"] = _converted("query", parameters, types["query"])
    elif parameters:
        raise Refusal(400, f"query: there is no parameter {next(iter(parameters))[:40]!r}")
    if "body" in types:
        found["body"] = await _body(request, types["body"])
    return found


def _parameters(query: str) -> dict[str, str]:
    if len(query) > QUERY_CHARACTERS_MAX:
        raise Refusal(400, f"query: it has more than {QUERY_CHARACTERS_MAX} characters")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=PARAMETERS_MAX, errors="strict")
    except ValueError:
        raise Refusal(400, "query: it cannot be decoded") from None
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Refusal(400, "query: a parameter is given several times")
    return found


def _converted(what: str, values: dict[str, str], kind: Any) -> Any:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(400, f"{what}: {error}") from None


async def _body(request: Request, kind: Any) -> Any:
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise Refusal(415, "the body must be JSON, with Content-Type: application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_BYTES_MAX:
            raise Refusal(413, f"the body has more than {BODY_BYTES_MAX} bytes")
    try:
        return msgspec.convert(_whole(msgspec.json.decode(body)), kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refusal(400, f"body: {error}") from None


def _whole(value: Any) -> Any:
    """Return a JSON value with 8.0 as 8: for JSON Schema both are integers."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {name: _whole(item) for name, item in value.items()}
    return value
