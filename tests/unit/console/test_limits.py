"""The page of limits: seen by all, changed by admins, with an entry for each change."""

import json
from collections.abc import Callable

import pytest

from tandemq.client.admin.quotas import Exceeded
from tandemq.errors import RemoteError
from tandemq.groupdb.audit import AuditEntry
from tandemq.model.quota import GROUP, TOPIC, USER, Quota
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import FakeAdmin

BrowserOf = Callable[[str], Browser]
Audit = Callable[[], list[AuditEntry]]
ORDERS = Quota(TOPIC, "Orders", 2_000, 4_000_000, slows=True)
EACH = Quota(USER, "*", 500)


@pytest.fixture
def cluster() -> FakeAdmin:
    shared = Quota(USER, "bob", 500)
    limits = (ORDERS, EACH, shared, Quota(GROUP, "billing", in_flight=9))
    return FakeAdmin(
        limits={one.key: one for one in limits},
        exceeded={ORDERS.key: Exceeded(*ORDERS.key, 7, 1_234), shared.key: Exceeded(*shared.key, 3)},
    )


def test_limits_are_shown_with_how_often_they_were_exceeded(browser_of: BrowserOf) -> None:
    page = browser_of("viewer").get("/limits").text
    for text in ("2,000", "4,000,000", "1,234", "waits, then refused", ">waits<", "by the limit of each, *"):
        assert text in page, text
    assert page.count('method="post"') == 1, "viewers can only log out"


def test_admin_sets_and_deletes_a_limit_and_the_audit_log_has_both(
    browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit
) -> None:
    browser = browser_of("admin")
    form = {"kind": "topic", "name": "Orders", "messages": "100", "bytes": "", "connections": "5", "in_flight": "6"}
    assert browser.post("/limits", form).headers["location"] == "/limits"
    assert cluster.limits[ORDERS.key] == Quota(TOPIC, "Orders", 100), "fields of other kinds do not count"
    assert browser.post("/limits/delete", {"kind": "topic", "name": "Orders"}).status_code == 303
    assert ORDERS.key not in cluster.limits
    assert browser.post("/limits/delete", {"kind": "topic", "name": "Orders"}).status_code == 404
    first, second = audit()
    assert (first.action, first.target, first.outcome) == ("quota.set", "topic Orders", "done")
    assert (
        json.loads(first.before)["messagesPerSecond"] == 2_000 and json.loads(first.after)["messagesPerSecond"] == 100
    )
    assert (second.action, second.target, second.outcome) == ("quota.delete", "topic Orders", "done")


def test_limit_of_an_address_is_filled_in(browser_of: BrowserOf) -> None:
    browser = browser_of("admin")
    page = browser.get("/limits?kind=topic&name=Orders").text
    assert 'name="bytes" type="number" value="4000000"' in page and 'name="slows" value="1" checked' in page
    page = browser.get("/limits?kind=group&name=billing").text
    assert 'name="in_flight" type="number" value="9"' in page and '<option value="group" selected>' in page


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"kind": "topic", "name": "Orders"}, "nothing is limited"),
        ({"kind": "king", "name": "Orders", "messages": "1"}, "choose user, topic or group"),
        ({"kind": "topic", "name": "<script>", "messages": "1"}, "illegal characters"),
        ({"kind": "user", "name": "bob", "messages": "x"}, "a whole number is expected"),
        ({"kind": "user", "name": "", "messages": "1"}, "1 to 255 printable characters"),
    ],
)
def test_wrong_limit_is_refused_and_the_form_keeps_its_values(
    browser_of: BrowserOf, cluster: FakeAdmin, audit: Audit, form: dict[str, str], why: str
) -> None:
    response = browser_of("admin").post("/limits", form)
    assert response.status_code == 400 and why in response.text and "<script>" not in response.text.split("</head>")[1]
    assert not [call for call in cluster.calls if call[0] == "set_quotas"] and audit() == []


def test_many_limits_are_listed_in_parts(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    limits = [Quota(USER, f"u{number:05}", 7) for number in range(1_000)]
    cluster.limits |= {one.key: one for one in limits}
    cluster.configs |= {f"T{number:05}": cluster.configs["Orders"] for number in range(9_000)}
    browser = browser_of("admin")
    page = browser.get("/limits").text
    assert "1 to 50 of 1004" in page and len(page) < 100_000
    assert "u00047" not in page and "u00047" in browser.get("/limits?at=50").text
    assert "1 to 1 of 1" in browser.get("/limits?q=user+u00777").text


def test_operators_may_not_change_limits(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    browser = browser_of("operator")
    for path in ("/limits", "/limits/delete"):
        assert browser.post(path, {"kind": "topic", "name": "Orders", "messages": "1"}).status_code == 403
    assert cluster.limits[ORDERS.key] == ORDERS


def test_brokers_without_limits_are_said(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.refusal = RemoteError("request type 7330 not supported")
    response = browser_of("admin").get("/limits")
    assert response.status_code == 502 and "request type 7330 not supported" in response.text
