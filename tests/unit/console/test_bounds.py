"""Values out of bounds in every segment of an address and every field: a refusal, never an internal error."""

import inspect
import re
import sys
from collections.abc import Callable
from urllib.parse import quote

import pytest

from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.api.openapi import BASE
from tandemq.console.api.routes import OPERATIONS
from tandemq.console.routes import PAGES, Page
from tandemq.console.services import Console, ConsoleSettings, wall_ms
from tandemq.groupdb.audit import Actor
from tests.unit.console.conftest import PASSWORD, Browser
from tests.unit.console.test_app import PARTS

pytestmark = pytest.mark.system

BrowserOf = Callable[[str], Browser]
VALUES = ("9" * 5_000, "9" * 30, str(1 << 63), "-1", "1e400", "\u0661", "x\0y", "a" * 3_000, "9999-12-31T23:59-23:59")
"""More digits than int() takes, than SQLite stores, than 64 bits; other digits; a character that PostgreSQL refuses."""
FIELD_VALUES = (VALUES[0], VALUES[1], VALUES[6], VALUES[8], "0001-01-01T00:00+23:00")


@pytest.fixture
def settings() -> ConsoleSettings:
    return ConsoleSettings(resend_per_s=1e6)


def parts_of(path: str) -> list[str]:
    return re.findall(r"\{([\w:]+)\}", path)


def filled(path: str, parts: dict[str, str], name: str, value: str) -> str:
    """Return an address with one segment replaced."""
    return re.sub(r"\{([\w:]+)\}", lambda found: quote(value if found[1] == name else parts[found[1]], safe=""), path)


def field_names(page: Page) -> list[str]:
    """Return the names of the fields that the module of a page reads."""
    text = inspect.getsource(sys.modules[page.show.__module__])
    found = set(re.findall(r'\.(?:text|raw|all|integer|time_ms|has)\("(\w+)"', text))
    return sorted(found | ({"id", "role", "permission", "weight", "priority"} if "read_form" in text else set()))


def test_addresses_without_session_are_bounded(new_browser: Callable[[], Browser]) -> None:
    browser = new_browser()
    for page in PAGES:
        for name in parts_of(page.path):
            for value in VALUES:
                path = filled(page.path, PARTS, name, value)
                status = (browser.get(path) if page.method == "GET" else browser.post(path)).status_code
                assert status in (303, 400, 401, 404), f"{page.name}: {name}={value[:30]!r}"


def test_addresses_with_session_are_bounded(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    for page in PAGES:
        if page.path.endswith("/live"):  # a stream, of names that are valid too
            continue
        for name in parts_of(page.path):
            for value in VALUES:
                path = filled(page.path, PARTS, name, value)
                status = (browser.get(path) if page.method == "GET" else browser.post(path)).status_code
                assert status in (200, 303, 400, 404, 429), f"{page.name}: {name}={value[:30]!r}: {status}"


@pytest.mark.parametrize("value", FIELD_VALUES)
def test_fields_are_bounded(browser_of: BrowserOf, value: str) -> None:
    """One field at a time is out of bounds in queries; in forms each field by itself, beside valid ones."""
    assert {"offset", "queue", "begin"} <= {name for page in PAGES for name in field_names(page)}
    words = (
        "topic=Orders broker=broker-a queue=0 offset=0 key=k queues=8 perm=6 confirm=broker-a role=viewer days=9 "
        "mode=elect id=0 permission=FULL weight=100 priority=0 to=offset name=broker-x cluster=C group=billing search=1"
    )
    valid = {"password": PASSWORD, **dict(one.split("=") for one in words.split())}
    browser = browser_of("admin")
    ends = ("/logout", "/sessions", "/remove", "/me/password", "/login", "/role", "/live")
    for page in PAGES:
        if page.path.endswith(ends):
            continue
        path = re.sub(r"\{([\w:]+)\}", lambda found: PARTS[found[1]], page.path)
        for name in field_names(page):
            fields = {**valid, name: value}
            if page.method == "GET":
                kinds: tuple[dict[str, str], ...] = ({"by": "offset"}, {"by": "time"}, {"by": "key"}, {"to": "time"})
                for kind in kinds if page.path in ("/messages", "/consumers/{group}/offsets") else ({},):
                    status = browser.get(path, params={**fields, **kind}).status_code
                    assert status in (200, 303, 400, 404), f"{page.name}: {name}: {status}"
            else:
                status = browser.post(path, fields).status_code
                assert status in (200, 303, 400, 403, 404, 409), f"{page.name}: {name}: {status}"


def test_parameters_of_the_api_are_bounded(new_browser: Callable[[], Browser], console: Console) -> None:
    secret, _ = console.tokens.create("admin", "t", ConsoleRole.ADMIN, 9, Actor("test"), wall_ms())
    console.api_limit._burst = 1 << 30
    client = new_browser().client
    headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    parts = {name.partition(":")[0]: value for name, value in PARTS.items()}
    for operation in OPERATIONS:
        types = operation.types
        plain = re.sub(r"\{(\w+)\}", lambda found: parts[found[1]], operation.path)
        for value in VALUES:
            for name in parts_of(operation.path):
                path = BASE + filled(operation.path, parts, name, value)
                status = client.request(operation.method, path, headers=headers, content=b"{}").status_code
                assert status < 500, f"{operation.name}: {name}={value[:30]!r}: {status}"
            for name in types["query"].__struct_encode_fields__ if "query" in types else ():
                params = {"topic": "Orders", "key": "k", "id": "0" * 32, name: value}
                params = {one: params[one] for one in types["query"].__struct_encode_fields__ if one in params}
                status = client.get(BASE + plain, params=params, headers=headers).status_code
                assert status < 500, f"{operation.name}: {name}={value[:30]!r}: {status}"
            for number in ("9" * 5_000, "1e400", "1e308", str(1 << 64)) if "body" in types else ():
                for name in types["body"].__struct_encode_fields__:
                    body = f'{{"{name}": {number}}}'.encode()
                    status = client.request(operation.method, BASE + plain, headers=headers, content=body).status_code
                    assert status < 500, f"{operation.name}: {name}={number[:30]}: {status}"
