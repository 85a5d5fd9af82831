"""Attacks: paths, headers, addresses, templates, spoofed proxies. More: test_app, test_messages.

Nothing may be read outside the static files, and no address that a viewer enters may reach the administration client.
"""

from collections.abc import Callable

import pytest

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.console.services import Console
from tandemq.groupdb.audit import Actor, AuditEntry, record
from tandemq.model.message import MessageQueue
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import MASTER, SLAVE, FakeAdmin, stored

BrowserOf = Callable[[str], Browser]
VICTIM = "10.6.6.6:80"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/..%2fapp.py",
        "/static/%2e%2e/%2e%2e/console/app.py",
        "/static//etc/passwd",
        "/static/..%5capp.py",
        "/topics/..%2f..%2fetc%2fpasswd",
        "/consumers/..%2fusers/dead.jsonl",
        "/groups/..%2f..%2fusers",
        "/messages/Orders/..%2fbroker-a/0/0",
    ],
)
def test_paths_lead_to_no_other_file_and_no_other_page(browser_of: BrowserOf, path: str) -> None:
    response = browser_of("viewer").get(path)
    assert response.status_code in (400, 404), path
    assert "root:" not in response.text and "build_app" not in response.text


def test_addresses_in_fields_are_not_connected_to(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    """Names of brokers, ids and targets may be those of the cluster only."""
    browser = browser_of("admin")
    for path in (
        "/messages?search=1&by=id&key=0A06060600000050" + "0" * 16,
        f"/messages/Orders/{VICTIM}/0/0",
        f"/groups/{VICTIM}",
        f"/groups/{VICTIM}/switch",
        f"/groups/{VICTIM}/force",
    ):
        assert browser.get(path).status_code in (400, 404), path
    browser.post("/groups/broker-a/switch", {"target": VICTIM, "confirm": "broker-a"})
    browser.post("/groups/broker-a/force", {"target": VICTIM, "confirm": "broker-a"})
    browser.post("/topics/Orders/send", {"body": "x", "properties": f"CLUSTER={VICTIM}"})
    assert cluster.calls
    assert not [call for call in cluster.calls if any(VICTIM in str(part) for part in call)]
    asked = {call[1] for call in cluster.calls if str(call[0]).isdecimal()}
    assert asked <= {MASTER, SLAVE}


def test_texts_are_no_templates_and_no_placeholders(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    texts = ("{{1234567*7}}", "{user.name}", "{% for x in y %}", "%(x)s {count}")
    cluster.messages = [stored("Orders", 0, " ".join(texts).encode(), properties={"TAGS": texts[0], "x": texts[1]})]
    cluster.groups_progress = {"g": {MessageQueue("Orders", "broker-a", 0): ConsumeProgress(1, 0, 1)}}
    browser = browser_of("operator")
    for path in (
        "/messages/Orders/broker-a/0/0",
        "/topics/Orders/tail",
        "/topics?q={{1234567*7}}",
        "/consumers?q={count}",
    ):
        response = browser.get(path)
        assert response.status_code == 200, path
        assert "8641969" not in response.text, path
    assert "{user.name}" in browser.get("/messages/Orders/broker-a/0/0").text


def test_exports_have_no_headers_and_no_formulas_from_users(browser_of: BrowserOf, console: Console) -> None:
    with console.database.transaction() as connection:
        record(connection, AuditEntry(1, Actor("=cmd|'/c calc'!A1"), "x\r\nset-cookie: a=b", target="+1", outcome="@x"))
    response = browser_of("admin").get("/audit.csv")
    assert response.headers["content-disposition"] == 'attachment; filename="audit.csv"'
    assert "a=b" not in response.headers.get("set-cookie", "")
    assert "'=cmd" in response.text and "'+1" in response.text and "'@x" in response.text


def test_search_of_the_audit_log_is_no_sql(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    for text in ("' OR 1=1 --", "%'; DROP TABLE tandemq_users; --", "\\", "_%", "\x00"):
        assert browser.get("/audit", params={"q": text}).status_code in (200, 400), text
    assert browser.get("/users").status_code == 200


def test_clients_cannot_claim_another_address(new_browser: Callable[[], Browser]) -> None:
    """Without --behind-proxy the header is ignored, so that it does not evade the limit of attempts."""
    browser = new_browser()
    codes = [
        browser.post(
            "/login",
            {"name": "admin", "password": f"guess {number:05}"},
            headers={"x-forwarded-for": f"10.0.0.{number}"},
        ).status_code
        for number in range(7)
    ]
    assert codes == [403] * 5 + [429] * 2
