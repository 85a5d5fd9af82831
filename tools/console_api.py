"""The page of the console's JSON API, from the OpenAPI document; written by tools/reference.py."""

from collections.abc import Iterator
from typing import Any

from tandemq.console.api.openapi import document
from tandemq.console.api.routes import OPERATIONS

_HEAD = """\
# Console API

Every operation of the console's JSON API, below `/api/v1`, and its objects. Made from the code. Tokens, errors, parts
of lists and limits: [guide](../guides/console-api.md). The same as OpenAPI 3.1: `/api/v1/openapi.json` of a running
console.
"""


def api_page() -> str:
    """Return the page as Markdown."""
    found = document()
    lines = [*_HEAD.splitlines(), "", "## Operations"]
    for operation in OPERATIONS:
        one = found["paths"][operation.path][operation.method.lower()]
        title, text = f"### `{operation.method} {operation.path}`", f"{one['summary']}. Role: {operation.role.text}."
        lines += ["", title, "", text]
        lines += _operation(one)
    lines += ["", "## Objects"]
    for name, schema in sorted(found["components"]["schemas"].items()):
        lines += ["", f"### {name}", "", *_object(schema)]
    return "\n".join(lines) + "\n"


def _operation(one: dict[str, Any]) -> Iterator[str]:
    parameters = [parameter for parameter in one.get("parameters", ()) if parameter["in"] == "query"]
    if parameters:
        yield from ("", "| Parameter | Type | Default | Meaning |", "|---|---|---|---|")
        for parameter in parameters:
            schema = parameter["schema"]
            default = "required" if parameter["required"] else f"`{schema['default']}`" if schema.get("default") else ""
            text = parameter.get("description", "")
            yield f"| `{parameter['name']}` | {_type(schema)} | {default} | {text} |"
    if "requestBody" in one:
        yield from ("", f"Body: {_type(one['requestBody']['content']['application/json']['schema'])}.")
    status, good = next(iter(one["responses"].items()))
    content = good.get("content")
    result = _type(content["application/json"]["schema"]) if content else "nothing"
    yield from ("", f"Response {status}: {result}.")


def _object(schema: dict[str, Any]) -> Iterator[str]:
    if text := schema.get("description"):
        yield from (text, "")
    if "enum" in schema:
        yield f"One of {', '.join(f'`{one}`' for one in schema['enum'])}."
        return
    if not schema.get("properties"):
        return
    yield from ("| Field | Type | Required | Meaning |", "|---|---|---|---|")
    for name, one in schema["properties"].items():
        required = "yes" if name in schema.get("required", ()) else ""
        yield f"| `{name}` | {_type(one)} | {required} | {one.get('description', '')} |"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(f"`{one}`" for one in schema["enum"] if one != "")
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        return f"object of {_type(schema.get('additionalProperties', {}))}"
    names = (("minimum", "at least {}"), ("maximum", "at most {}"), ("maxLength", "at most {} characters"))
    limits = [text.format(schema[key]) for key, text in names if key in schema]
    kind = "base64" if schema.get("contentEncoding") == "base64" else kind
    return f"{kind}, {', '.join(limits)}" if limits else str(kind)
