"""The OpenAPI document (3.1), made from the table of operations and the types of their handlers."""

import inspect
import re
from functools import cache
from http import HTTPStatus
from typing import Any

import msgspec

from tandemq import __version__
from tandemq.console.api.operation import Operation
from tandemq.console.api.responses import Problem
from tandemq.console.api.routes import OPERATIONS

BASE = "/api/v1"
_REFS = "#/components/schemas/{name}"
_DESCRIPTION = """\
Operations of the TandemQ console, for programs. Send a token with each request: `Authorization: Bearer tq_…`.
Times are milliseconds since 1970. Lists come in parts: pass `next` as `cursor`, until it is null.
Errors are problems (RFC 9457).\
"""
_ALWAYS = (400, 401, 403, 404, 422, 429, 502, 504)


@cache
def document() -> dict[str, Any]:
    """Return the document."""
    kinds = {name: kind for operation in OPERATIONS for name, kind in _kinds(operation).items()}
    schemas, components = msgspec.json.schema_components([*kinds.values(), Problem], ref_template=_REFS)
    known = dict(zip(kinds, schemas[:-1], strict=True))
    resolved = {name: components[schema["$ref"].rpartition("/")[2]] for name, schema in known.items()}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation, known, resolved)
    used = {name: schema for name, schema in components.items() if not _is_parameters(name, resolved, components)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "TandemQ console", "version": __version__, "description": _DESCRIPTION},
        "servers": [{"url": BASE}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": used,
            "responses": {str(status): _problem(status) for status in (*_ALWAYS, 409, 413, 415)},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _kinds(operation: Operation) -> dict[str, Any]:
    """Return the types of an operation by "name part"."""
    return {f"{operation.name} {part}": kind for part, kind in operation.types.items() if kind is not type(None)}


def _is_parameters(name: str, resolved: dict[str, Any], components: dict[str, Any]) -> bool:
    """Return whether a schema is that of parameters only: these are described with the operation."""
    return any(
        schema is components[name] and key.endswith((" path", " query")) for key, schema in resolved.items()
    ) and not any(schema is components[name] and key.endswith((" body", " return")) for key, schema in resolved.items())


def _describe(operation: Operation, known: dict[str, Any], resolved: dict[str, Any]) -> dict[str, Any]:
    types, name = operation.types, operation.name
    summary = inspect.cleandoc(operation.handle.__doc__ or "").replace("\n", " ")
    statuses = [*_ALWAYS, *((413, 415) if "body" in types else ()), *((409,) if operation.method != "GET" else ())]
    good: dict[str, Any] = {"description": HTTPStatus(operation.status).phrase}
    if types["return"] is not type(None):
        good["content"] = {"application/json": {"schema": known[f"{name} return"]}}
    found: dict[str, Any] = {
        "operationId": _camel(name),
        "summary": summary.rstrip("."),
        "description": f"{summary} Needs the role {operation.role.text}.",
        "tags": [operation.family],
        "responses": {
            str(operation.status): good,
            **{str(status): {"$ref": f"#/components/responses/{status}"} for status in sorted(statuses)},
        },
    }
    parameters = [
        parameter
        for place in ("path", "query")
        if place in types
        for parameter in _parameters(place, resolved[f"{name} {place}"])
    ]
    if parameters:
        found["parameters"] = parameters
    if "body" in types:
        found["requestBody"] = {"required": True, "content": {"application/json": {"schema": known[f"{name} body"]}}}
    return found


def _parameters(place: str, schema: dict[str, Any]) -> list[dict[str, Any]]:
    found = []
    for name, described in schema["properties"].items():
        inner = {key: value for key, value in described.items() if key != "description"}
        text = described.get("description")
        found.append(
            {
                "name": name,
                "in": place,
                "required": place == "path" or name in schema["required"],
                "schema": inner,
                **({"description": text} if text else {}),
            }
        )
    return found


def _problem(status: int) -> dict[str, Any]:
    headers = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer"}, "required": True}}
    return {
        "description": HTTPStatus(status).phrase,
        **({"headers": headers} if status == HTTPStatus.TOO_MANY_REQUESTS else {}),
        "content": {"application/problem+json": {"schema": {"$ref": _REFS.format(name="Problem")}}},
    }


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)
