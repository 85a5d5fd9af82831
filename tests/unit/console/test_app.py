"""What is checked before a page is shown: host, session, role, origin, token; headers; log in and out."""

import re
from collections.abc import Callable

import pytest

from tandemq.console import app
from tandemq.console.access.accounts import ROLES
from tandemq.console.routes import PAGES, Page
from tandemq.console.services import Console, wall_ms
from tandemq.console.visit import local_path
from tests.spec import spec
from tests.unit.console.conftest import PASSWORD, Browser
from tests.unit.console.fakes import FakeAdmin

BrowserOf = Callable[[str], Browser]
NewBrowser = Callable[[], Browser]
PARTS = {
    "topic": "Orders",
    "broker": "broker-a",
    "queue:number": "0",
    "offset:number": "0",
    "group": "billing",
    "token": "x",
    "number:number": "1",
    "name": "viewer",
}


def path_of(page: Page) -> str:
    return re.sub(r"\{([\w:]+)\}", lambda found: PARTS[found[1]], page.path)


def request(browser: Browser, page: Page) -> int:
    response = browser.get(path_of(page)) if page.method == "GET" else browser.post(path_of(page))
    return int(response.status_code)


@spec("C01")
def test_every_page_refuses_visitors_without_session(new_browser: NewBrowser) -> None:
    browser = new_browser()
    for page in PAGES:
        if page.role is not None:
            expected = 401 if page.is_api or page.method != "GET" else 303
            assert request(browser, page) == expected, page.name


@spec("C01")
def test_every_page_refuses_lower_roles(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    for name, role in ROLES.items():
        browser = browser_of(name)
        for page in PAGES:
            if page.role is not None and page.role > role:
                cluster.calls.clear()
                assert request(browser, page) == 403, f"{name}: {page.name}"
                assert cluster.calls == [], f"{name}: {page.name} has asked brokers"


@spec("C01")
def test_every_change_needs_token_and_origin(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    for page in PAGES:
        if page.method == "GET" or page.role is None:
            continue
        path, good = path_of(page), {"csrf": browser.csrf}
        same = {"sec-fetch-site": "same-origin"}
        refused = [
            browser.client.post(path, data={}, headers=same),
            browser.client.post(path, data={"csrf": "0" * 64}, headers=same),
            browser.client.post(path, data=good),
            browser.client.post(path, data=good, headers={"sec-fetch-site": "cross-site"}),
            browser.client.post(path, data=good, headers={"sec-fetch-site": "same-site"}),
            browser.client.post(path, data=good, headers={"origin": "http://evil.example"}),
            browser.client.post(path, data=good, headers={"origin": "null"}),
        ]
        assert [one.status_code for one in refused] == [403] * len(refused), page.name


def test_no_page_changes_anything_with_get() -> None:
    changing = {"delete", "remove", "resend", "logout"}
    assert not [
        page.name for page in PAGES if page.method == "GET" and page.path.split("/")[-1] in {"logout", "resend"}
    ]
    assert {page.path.split("/")[-1] for page in PAGES if page.method == "POST"} & changing


def test_unknown_host_names_see_nothing(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.nip.io", "", "localhost:x", "localhost:80:80"):
        assert browser.get("/", headers={"host": host}).status_code == 421, host
    assert browser.get("/login", headers={"host": "LOCALHOST:8377"}).status_code in (200, 303)


def test_every_response_has_the_security_headers(browser_of: BrowserOf) -> None:
    browser = browser_of("viewer")
    for path in ("/", "/nothing", "/login", "/messages?search=1&by=key", "/static/console.css"):
        headers = browser.get(path).headers
        assert headers["content-security-policy"] == app.POLICY, path
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == (
            "no-store" if "static" not in path else "public, max-age=31536000, immutable"
        )
    assert "unsafe" not in app.POLICY and "*" not in app.POLICY


def test_login_gives_a_new_session_whatever_the_cookie_was(new_browser: NewBrowser, console: Console) -> None:
    browser = new_browser()
    browser.client.cookies.set("tandemq", "chosen-by-an-attacker", domain="localhost.local")
    response = browser.log_in("viewer")
    cookie = response.headers["set-cookie"]
    assert "chosen-by" not in cookie
    assert all(part in cookie for part in ("HttpOnly", "SameSite=strict", "Path=/"))
    assert console.accounts.user_of("chosen-by-an-attacker", wall_ms()) is None


def test_login_ends_the_session_before_and_logout_the_present_one(browser_of: BrowserOf, console: Console) -> None:
    browser = browser_of("viewer")
    first = browser.client.cookies["tandemq"]
    browser.log_in("operator")
    second = browser.client.cookies["tandemq"]
    assert console.accounts.user_of(first, wall_ms()) is None
    browser.post("/logout")
    assert console.accounts.user_of(second, wall_ms()) is None
    assert browser.get("/").status_code == 303


def test_login_needs_the_same_origin(new_browser: NewBrowser) -> None:
    client = new_browser().client
    form = {"name": "viewer", "password": PASSWORD}
    assert client.post("/login", data=form).status_code == 403
    assert client.post("/login", data=form, headers={"sec-fetch-site": "cross-site"}).status_code == 403
    assert client.post("/login", data=form, headers={"origin": "http://localhost"}).status_code == 303


def test_brute_force_has_to_wait(new_browser: NewBrowser) -> None:
    browser = new_browser()
    codes = [browser.log_in("admin", f"guess number {n}").status_code for n in range(7)]
    assert codes == [403] * 5 + [429] * 2
    refused = browser.log_in("admin")
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1, "also with the right password"
    assert browser.log_in("viewer").status_code == 303, "others log in"


@pytest.mark.parametrize(
    "target",
    ["//evil.example", "https://evil.example", "/\\evil.example", "javascript:1", "/a\r\nset-cookie: x=1", "é"],
)
def test_login_leads_to_pages_of_this_console_only(new_browser: NewBrowser, target: str) -> None:
    assert local_path(target) == "/"
    response = new_browser().post("/login", {"name": "viewer", "password": PASSWORD, "next": target})
    assert response.status_code == 303 and response.headers["location"] == "/"
    assert local_path("/messages?by=key&topic=A") == "/messages?by=key&topic=A"


def test_first_user_is_made_by_a_link_that_works_once(new_browser: NewBrowser, console: Console) -> None:
    console.setup_token, console.setup_until_ms = "token", wall_ms() + 60_000
    browser = new_browser()
    assert browser.get("/setup/wrong").status_code == 404
    assert browser.get("/setup/token").status_code == 200
    form = {"name": "root", "password": PASSWORD}
    assert browser.post("/setup/token", form).status_code == 404, "there are users already"
    for name in ROLES:
        with console.database.transaction() as connection:
            connection.exec_driver_sql(f"delete from tandemq_users where name = '{name}'")
    console.setup_token = "token"
    assert browser.post("/setup/token", {"name": "root", "password": "short"}).status_code == 400
    assert browser.post("/setup/token", form).status_code == 303
    assert browser.get("/").status_code == 200
    assert browser.post("/setup/token", form).status_code == 404
    assert [(one.name, one.role.text) for one in console.accounts.users()] == [("root", "admin")]


def test_link_for_the_first_user_expires(new_browser: NewBrowser, console: Console) -> None:
    console.setup_token, console.setup_until_ms = "token", wall_ms() - 1
    assert new_browser().get("/setup/token").status_code == 404


def test_language_and_theme_are_those_of_the_account(browser_of: BrowserOf) -> None:
    browser = browser_of("viewer")
    assert 'lang="en"' in browser.get("/me").text
    assert 'lang="en"' in browser.get("/me", headers={"accept-language": "fr, en;q=0.5"}).text
    assert browser.post("/me", {"language": "en", "theme": "dark"}).status_code == 303
    assert 'data-theme="dark"' in browser.get("/me").text
    assert browser.post("/me", {"language": "xx", "theme": ""}).status_code == 400


def test_forms_have_limits(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    assert browser.post("/me", {"language": "x" * 300_000}).status_code == 403
    assert browser.post("/me", {f"f{n}": "1" for n in range(1_100)}).status_code == 400
    same = {"sec-fetch-site": "same-origin", "content-type": "application/json", "x-csrf-token": browser.csrf}
    assert browser.client.post("/me", content=b"{}", headers=same).status_code == 403


def test_own_password_is_changed_with_the_present_one(browser_of: BrowserOf, new_browser: NewBrowser) -> None:
    browser, other = browser_of("viewer"), browser_of("viewer")
    assert browser.post("/me/password", {"old": "wrong horse", "new": "another horse"}).status_code == 400
    assert browser.post("/me/password", {"old": PASSWORD, "new": "another horse"}).status_code == 303
    assert browser.get("/me").status_code == 200 and other.get("/me").status_code == 303
    assert new_browser().log_in("viewer", "another horse").status_code == 303
