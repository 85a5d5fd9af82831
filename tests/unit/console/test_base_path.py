"""The console below a path of a proxy: pages, forms, redirects, cookies, static files, the API's description."""

import re
from collections.abc import Callable, Iterator

import pytest
from starlette.testclient import TestClient

from tandemq.console.app import build_app
from tandemq.console.routes import PAGES, base_path
from tandemq.console.services import Console, ConsoleSettings
from tandemq.errors import ConfigError
from tests.unit.console.conftest import BASE, Browser
from tests.unit.console.fakes import FakeAdmin, stored
from tests.unit.console.test_app import path_of

PREFIX = "/ops/tandemq"
LINKS = re.compile(r'(?:href|src|action|hx-sse:connect)="([^"]*)"')


@pytest.fixture
def settings() -> ConsoleSettings:
    return ConsoleSettings(base_path=PREFIX)


@pytest.fixture
def cluster() -> FakeAdmin:
    return FakeAdmin(messages=[stored("Orders", n) for n in range(5)])


def test_all_links_forms_and_redirects_of_all_pages_have_the_base_path(browser_of: Callable[[str], Browser]) -> None:
    browser = browser_of("admin")
    seen = 0
    for page in PAGES:
        if page.method != "GET" or page.is_api:
            continue
        for path in (PREFIX + path_of(page), path_of(page)):  # a proxy passes the base path on, or removes it
            response = browser.get(path)
            links = LINKS.findall(response.text) if "html" in response.headers.get("content-type", "") else []
            links += [response.headers["location"]] if "location" in response.headers else []
            for link in links:
                assert link.startswith(f"{PREFIX}/") or link[:1] in ("#", "") or re.match(r"data:|-?\d+$", link), link
            seen += len(links)
    assert seen > 500


def test_login_comes_back_to_the_page_and_its_cookie_has_the_path(new_browser: Callable[[], Browser]) -> None:
    browser = new_browser()
    response = browser.get(f"{PREFIX}/topics?q=a")
    assert response.headers["location"] == f"{PREFIX}/login?next=%2Ftopics%3Fq%3Da"
    response = browser.post(f"{PREFIX}/login", {"name": "admin", "password": "correct horse", "next": "/topics?q=a"})
    assert response.headers["location"] == f"{PREFIX}/topics?q=a"
    assert f"Path={PREFIX};" in response.headers["set-cookie"]
    assert browser.get(PREFIX).status_code == 200
    assert browser.get(f"{PREFIX}x").status_code == 404
    assert browser.get(f"{PREFIX}/topics/").headers["location"] == f"{BASE}{PREFIX}/topics"


def test_static_files_and_the_description_of_the_api_have_the_base_path(new_browser: Callable[[], Browser]) -> None:
    browser = new_browser()
    response = browser.get(f"{PREFIX}/static/console.css")
    assert response.status_code == 200 and "immutable" in response.headers["cache-control"]
    assert browser.get(f"{PREFIX}/api/v1/openapi.json").json()["servers"] == [{"url": f"{PREFIX}/api/v1"}]
    assert browser.get(f"{PREFIX}/api/v1/none").headers["content-type"] == "application/problem+json"


@pytest.fixture
def proxied(console: Console) -> Iterator[TestClient]:
    """A client whose address is that of a proxy; browsers use HTTPS."""
    console.settings = ConsoleSettings(proxies=frozenset({"testclient"}), is_secure=True)
    with TestClient(build_app(console), base_url=BASE, follow_redirects=False) as client:
        yield client


def test_prefix_of_a_known_proxy_counts_and_others_are_ignored(proxied: TestClient, console: Console) -> None:
    headers = {"x-forwarded-prefix": "/other/"}
    for path in ("/topics", "/other/topics"):
        assert proxied.get(path, headers=headers).headers["location"].startswith("/other/login?")
    assert proxied.get("/api/v1/openapi.json", headers=headers).json()["servers"] == [{"url": "/other/api/v1"}]
    form = {"name": "admin", "password": "correct horse"}
    response = proxied.post("/login", data=form, headers={**headers, "sec-fetch-site": "same-origin"})
    assert response.headers["set-cookie"].startswith("__Secure-tandemq=")
    assert "Path=/other;" in response.headers["set-cookie"]
    response = proxied.get("/login", headers={"x-forwarded-prefix": "//evil.example"})
    assert response.status_code == 400 and "X-Forwarded-Prefix" in response.text
    console.settings = ConsoleSettings(is_secure=True)
    assert proxied.get("/topics", headers=headers).headers["location"].startswith("/login?")


def test_empty_prefix_of_a_proxy_leaves_the_base_path_as_it_is(proxied: TestClient, console: Console) -> None:
    console.settings = ConsoleSettings(proxies=frozenset({"testclient"}), base_path=PREFIX, is_secure=True)
    for path in ("/topics", f"{PREFIX}/topics"):
        response = proxied.get(path, headers={"x-forwarded-prefix": " "})
        assert response.headers["location"].startswith(f"{PREFIX}/login?")


def test_refusals_of_static_files_are_not_stored(proxied: TestClient) -> None:
    wrong = [{"x-forwarded-prefix": "ops"}, {"host": "evil"}]
    refused = [proxied.get("/static/console.css", headers=headers) for headers in wrong]
    refused += [proxied.get("/static/none.css"), proxied.post("/static/console.css")]
    assert [response.status_code for response in refused] == [400, 421, 404, 405]
    assert {response.headers["cache-control"] for response in refused} == {"no-store"}


def test_base_paths_are_checked() -> None:
    assert [base_path(text) for text in ("", "/", "/a", "/a/b.c/")] == ["", "", "/a", "/a/b.c"]
    for text in ("a", "//a", "/a//b", "/..", "/a/../b", "/a?b", '/a"', "/topics", "/api/x", "/static", "/" + "a" * 200):
        with pytest.raises(ConfigError):
            base_path(text)
