"""Messages: found, shown without effect of their content, sent again; no address of a user is connected to."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from starlette.requests import Request

from tandemq.client.aio.admin import Admin
from tandemq.console.access.accounts import ConsoleRole
from tandemq.console.cluster.messages import (
    BODY_SHOWN_MAX,
    RESENT_FROM,
    MessageFinder,
    copy_of,
    listed,
    shown_body,
)
from tandemq.console.pages import tail
from tandemq.console.services import Console, ConsoleSettings, wall_ms
from tandemq.console.visit import Visit
from tandemq.errors import LocalError
from tandemq.groupdb.audit import Actor, AuditEntry
from tests.unit.console.conftest import Browser
from tests.unit.console.fakes import FakeAdmin, FakeProducer, stored

BrowserOf = Callable[[str], Browser]
ONE = "/messages/Orders/broker-a/0/0"
EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>{{7*7}}"


@pytest.fixture
def cluster() -> FakeAdmin:
    return FakeAdmin(messages=[stored("Orders", n, b'{"n": %d}' % n) for n in range(5)])


def test_messages_are_found_by_key_id_offset_and_time(browser_of: BrowserOf) -> None:
    browser = browser_of("viewer")
    identifier = stored("Orders", 3).offset_message_id
    for query, place in (
        ("by=key&topic=Orders&key=k2", "/0/2"),
        ("by=unique&topic=Orders&key=UK1", "/0/1"),
        (f"by=id&key={identifier}", "/0/3"),
        ("by=offset&topic=Orders&broker=broker-a&queue=0&offset=4", "/0/4"),
        ("by=time&topic=Orders&begin=1700000000004", "/0/4"),
    ):
        page = browser.get(f"/messages?search=1&{query}").text
        assert f"/messages/Orders/broker-a{place}" in page, query
        assert "1 messages" in page


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("by=key&topic=Orders", "give a key"),
        ("by=id&key=0A06", "is not an offset message id"),
        ("by=key&topic=&key=x", "the topic name is empty"),
        ("by=key&topic=..%2Fx&key=x", "illegal characters"),
        ("by=key&topic=Nothing&key=x", "no name server knows Nothing"),
        ("by=offset&topic=Orders&broker=broker-a&queue=x&offset=1", "queue: a whole number is expected"),
        ("by=offset&topic=Orders&broker=broker-a&queue=-1&offset=1", "queue: -1 is not between"),
        ("by=time&topic=Orders&begin=yesterday", "begin: a time like"),
    ],
)
def test_wrong_search_says_what_is_wrong(browser_of: BrowserOf, query: str, why: str) -> None:
    response = browser_of("viewer").get(f"/messages?search=1&{query}")
    assert response.status_code == 400
    assert why in response.text


def test_address_in_an_id_is_not_connected_to(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    for address in ("A9FEA9FE00000050", "7F00000100001F90", "0A00000200000016"):
        response = browser_of("viewer").get(f"/messages?search=1&by=id&key={address}{0:016X}")
        assert response.status_code == 400
        assert "not that of a broker of this cluster" in response.text
    assert not [call for call in cluster.calls if call[0] == "message_by_id"]


def test_message_is_shown_with_its_place_and_groups(browser_of: BrowserOf) -> None:
    page = browser_of("viewer").get(ONE).text
    assert "10.0.0.1:10911" in page and "UK0" in page and "&#34;n&#34;: 0" in page


def test_missing_messages_and_wrong_places_are_not_found(browser_of: BrowserOf) -> None:
    browser = browser_of("viewer")
    for path in ("Orders/broker-a/0/99", "Nothing/broker-a/0/0", "Orders/other/0/0", "a%20b/broker-a/0/0"):
        assert browser.get(f"/messages/{path}").status_code == 404, path
    assert browser.get(f"/messages/Orders/broker-a/0/{1 << 70}").status_code == 404
    assert browser.get("/messages/..%2F..%2Fetc/broker-a/0/0").status_code == 404
    assert browser.get("/static/..%2f..%2fserver.py").status_code == 404


def test_content_of_messages_has_no_effect(browser_of: BrowserOf, cluster: FakeAdmin) -> None:
    cluster.messages = [stored("Orders", 0, EVIL.encode(), properties={EVIL: EVIL, "KEYS": EVIL, "TAGS": EVIL})]
    browser = browser_of("viewer")
    for path in (ONE, "/messages?search=1&by=offset&topic=Orders&broker=broker-a&queue=0&offset=0"):
        page = browser.get(path).text
        assert "<script>alert" not in page and "<img" not in page
        assert "{{7*7}}" in page and "&lt;script&gt;" in page
    for field in ("topic", "key", "broker", "queue", "begin", "by"):
        page = browser.get("/messages", params={"search": "1", field: EVIL}).text
        assert "<script>alert" not in page and "<img" not in page


def test_body_is_downloaded_as_a_file(browser_of: BrowserOf) -> None:
    response = browser_of("viewer").get(f"{ONE}/body")
    assert response.content == b'{"n": 0}'
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["content-disposition"].startswith("attachment")


def test_bodies_as_json_text_and_hex() -> None:
    assert shown_body(stored("T", 0, b'{"a":[1]}')).kind == "JSON"
    assert shown_body(stored("T", 0, b"{not json")).kind == "text"
    assert shown_body(stored("T", 0, b"[NaN]")).kind == "text"
    assert shown_body(stored("T", 0, b"[" * 50_000)).kind == "text"
    assert shown_body(stored("T", 0, b"a\x00\x1b[31m")).text == "a\ufffd\ufffd[31m"
    shown = shown_body(stored("T", 0, bytes(range(256))))
    assert shown.kind == "hex" and shown.text.startswith("00000000  00 01 02")
    assert shown_body(stored("T", 0, b"x" * 100_000)).is_cut


def test_json_is_indented_and_its_tokens_are_shown_as_they_are_stored() -> None:
    body = (
        rb'{"a":12345678901234567.89,"b":[1.10,1E400,-0,true],"a":"\u00e9\"{,:","c":{},"d":[ ],"n":'
        + b"9" * 5_000
        + b"}"
    )
    shown = shown_body(stored("T", 0, body))
    assert shown.kind == "JSON"
    assert shown.text.splitlines() == [
        "{",
        '  "a": 12345678901234567.89,',
        '  "b": [',
        "    1.10,",
        "    1E400,",
        "    -0,",
        "    true",
        "  ],",
        r'  "a": "\u00e9\"{,:",',
        '  "c": {},',
        '  "d": [],',
        '  "n": ' + "9" * 5_000,
        "}",
    ]
    nested = shown_body(stored("T", 0, b"[" * 500 + b"]" * 500))
    assert nested.kind == "JSON" and nested.is_cut and len(nested.text) == 64 << 10


def test_line_breaks_of_a_form_are_stored_as_they_were_typed(browser_of: BrowserOf, producer: FakeProducer) -> None:
    """Browsers send CR LF for each line break of a text area."""
    browser_of("operator").post("/topics/Orders/send", {"body": "a\r\nb\r\n", "properties": "x=1\u2028\r\ny=2"})
    (message,) = producer.sent
    assert message.body == b"a\nb\n" and message.properties["y"] == "2"
    assert message.properties["x"] == "1"


@pytest.mark.parametrize("begin", [b"", b"x", b"xx", b"xxx"])
def test_list_keeps_the_part_of_a_body_that_is_shown(begin: bytes) -> None:
    """Bodies of a few kilobytes as stored may be of 64 MiB each."""
    body = begin + "\N{GRINNING FACE}".encode() * (1 << 20)
    kept = listed(stored("T", 0, body)).body
    assert BODY_SHOWN_MAX - 4 < len(kept) <= BODY_SHOWN_MAX
    assert body.startswith(kept) and shown_body(stored("T", 0, kept)).kind == "text"
    assert listed(stored("T", 0, b"short")).body == b"short"
    assert len(listed(stored("T", 0, b"\x80" * 100_000)).body) > BODY_SHOWN_MAX - 5


def test_lists_hold_no_large_bodies(cluster: FakeAdmin) -> None:
    cluster.messages = [stored("Orders", n, b"x" * 1_000_000) for n in range(5)]

    async def found() -> list[int]:
        finder = MessageFinder(cast("Admin", cluster))
        some = await finder.newest("Orders", 5) + await finder.by_time("Orders", 0)
        return [len(one.message.body) for one in some]

    assert asyncio.run(found()) == [BODY_SHOWN_MAX] * 10


def test_copy_has_body_keys_and_properties_of_its_own() -> None:
    one = stored("Orders", 0, properties={"UNIQ_KEY": "U", "KEYS": "a b", "TAGS": "t", "x": "y", "__CRC32#": "1"})
    copy = copy_of(one)
    assert (copy.topic, copy.body, copy.tags, tuple(copy.keys)) == ("Orders", b"body", "t", ("a", "b"))
    assert copy.properties == {"x": "y", RESENT_FROM: "U"}
    with pytest.raises(LocalError, match="cannot be sent again"):
        copy_of(stored("Orders", 0, fault="too large"))


def test_resent_message_is_sent_and_in_the_audit_log(
    browser_of: BrowserOf, producer: FakeProducer, audit: Callable[[], list[AuditEntry]]
) -> None:
    response = browser_of("operator").post(f"{ONE}/resend")
    assert response.status_code == 303
    assert [one.body for one in producer.sent] == [b'{"n": 0}']
    (entry,) = audit()
    assert (entry.action, entry.by.name, entry.target) == ("message.resend", "operator", "Orders/broker-a/0@0")
    assert entry.outcome == "done"


def test_failed_resend_is_reported_and_in_the_audit_log(
    browser_of: BrowserOf, producer: FakeProducer, audit: Callable[[], list[AuditEntry]]
) -> None:
    producer.failing_topic = "Orders"
    response = browser_of("operator").post(f"{ONE}/resend")
    assert response.status_code == 502 and "the broker refuses" in response.text
    assert audit()[0].outcome == "failed: the broker refuses"


class TestHiddenBodies:
    @pytest.fixture
    def settings(self) -> ConsoleSettings:
        return ConsoleSettings(hides_bodies=True)

    def test_viewers_see_neither_body_nor_properties(self, browser_of: BrowserOf, cluster: FakeAdmin) -> None:
        cluster.messages = [stored("Orders", 0, b"secret body", properties={"KEYS": "secret key", "p": "secret value"})]
        viewer = browser_of("viewer")
        found = "/messages?search=1&by=offset&topic=Orders&broker=broker-a&queue=0&offset=0"
        for path in (ONE, f"{ONE}/body", found):
            assert "secret" not in viewer.get(path).text, path
        assert viewer.get(f"{ONE}/body").status_code == 404
        assert "secret body" in browser_of("operator").get(ONE).text

    def test_stream_ends_when_the_user_may_see_bodies_no_more(
        self, console: Console, cluster: FakeAdmin, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.messages = [stored("Orders", 0, b"secret body")]
        monkeypatch.setattr(tail, "TICK_S", 0.001)
        accounts, now_ms = console.accounts, wall_ms()
        by = Actor("root", "127.0.0.1")
        user = accounts.add("ada", ConsoleRole.OPERATOR, "a long password", by, now_ms)
        session = accounts.open_session(user, "127.0.0.1", now_ms)
        request = Request(
            {
                "type": "http",
                "path": "/topics/Orders/tail",
                "path_params": {"topic": "Orders"},
                "headers": [],
                "query_string": b"",
            }
        )
        visit = Visit(request, console, "127.0.0.1", user, session, "", "en")

        async def run() -> list[str]:
            found = []
            async for text in tail._events(visit):
                found.append(text)
                if len(found) == 1:
                    accounts.set_role("ada", ConsoleRole.VIEWER, by, now_ms)
                    cluster.messages = [stored("Orders", 0, b"secret body"), stored("Orders", 1, b"another secret")]
            return found

        first, last = asyncio.run(run())
        assert "secret body" in first
        assert "over" in last and "secret" not in last
