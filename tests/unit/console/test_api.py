"""The JSON API: tokens, roles, errors, limits; and what its operations do."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tandemq.client.admin.groups import ConsumeProgress
from tandemq.console.access.accounts import ROLES
from tandemq.console.api import endpoint
from tandemq.console.api.openapi import document
from tandemq.console.api.operation import Operation
from tandemq.console.api.routes import OPERATIONS
from tandemq.console.app import build_app
from tandemq.console.operations import dead_letters
from tandemq.console.pipeline_files import PipelinePaths
from tandemq.console.services import API_BURST, REFUSED_BURST, Console, ConsoleSettings, wall_ms
from tandemq.errors import NotConnected, OutcomeUnknown, RemoteError
from tandemq.groupdb.audit import Actor, AuditEntry
from tandemq.model.message import MessageQueue
from tandemq.model.topic import TopicConfig
from tests.spec import spec
from tests.unit.console.conftest import BASE, Browser
from tests.unit.console.fakes import MASTER, FakeAdmin, FakeProducer, stored

Api = Callable[[str], "Client"]
ONE = "/topics/Orders/queues/broker-a/0/messages/0"
PARTS = {"topic": "Orders", "broker": "broker-a", "queue": "0", "offset": "0", "group": "billing", "name": "broker-a"}


class Client:
    """A program with a token."""

    def __init__(self, client: TestClient, secret: str) -> None:
        self.client = client
        self.secret = secret

    def call(self, method: str, path: str, **options: Any) -> Any:
        headers = {"authorization": f"Bearer {self.secret}", **options.pop("headers", {})}
        return self.client.request(method, f"/api/v1{path}", headers=headers, **options)

    def get(self, path: str, **options: Any) -> Any:
        return self.call("GET", path, **options)


@pytest.fixture
def cluster() -> FakeAdmin:
    queue = MessageQueue("Orders", "broker-a", 0)
    return FakeAdmin(
        messages=[stored("Orders", n, b'{"n": %d}' % n) for n in range(5)],
        groups_progress={"billing": {queue: ConsumeProgress(5, 2, 1_700_000_000_000)}},
    )


@pytest.fixture
def api(console: Console) -> Iterator[Api]:
    """Make programs by the role of their users; the token has the same one."""
    with TestClient(build_app(console), base_url=BASE, follow_redirects=False) as client:

        def make(role: str) -> Client:
            secret, _ = console.tokens.create(role, "test", ROLES[role], 1, Actor("test"), wall_ms())
            return Client(client, secret)

        yield make


def path_of(operation: Operation) -> str:
    return operation.path.format(**PARTS)


def is_problem(response: Any, status: int) -> bool:
    found = response.json()
    return bool(
        response.status_code == found["status"] == status
        and response.headers["content-type"] == "application/problem+json"
        and {"title", "status", "detail"} <= found.keys()
    )


# Tokens and roles.


@spec("C02", "C03")
def test_every_operation_needs_a_valid_token(api: Api, cluster: FakeAdmin) -> None:
    client = api("admin").client
    for operation in OPERATIONS:
        response = client.request(operation.method, f"/api/v1{path_of(operation)}")
        assert is_problem(response, 401), operation.name
        assert response.headers["www-authenticate"].startswith("Bearer")
    assert cluster.calls == []


@spec("C02")
def test_every_operation_refuses_lower_roles_before_it_asks_a_broker(api: Api, cluster: FakeAdmin) -> None:
    for name, role in ROLES.items():
        program = api(name)
        for operation in OPERATIONS:
            if operation.role > role:
                assert is_problem(program.call(operation.method, path_of(operation)), 403), operation.name
    assert cluster.calls == []


@spec("C04")
def test_cookies_of_a_session_do_not_count(browser_of: Callable[[str], Browser], console: Console) -> None:
    """So a page of another site cannot make a browser change anything through the API, with or without a form."""
    browser = browser_of("admin")
    same = {"sec-fetch-site": "same-origin", "x-csrf-token": browser.csrf}
    for headers in ({}, same, {"authorization": ""}, {"authorization": f"Bearer {browser.client.cookies['tandemq']}"}):
        for operation in OPERATIONS:
            response = browser.client.request(
                operation.method, f"/api/v1{path_of(operation)}", headers=headers, data={"csrf": browser.csrf}
            )
            assert response.status_code in (401, 429), operation.name
    assert console.refused_tokens.wait_ms("testclient", wall_ms()) > 0


@spec("C04")
def test_responses_set_no_cookie_and_allow_no_other_origin(api: Api) -> None:
    for origin in ("http://evil.example", "null"):
        response = api("viewer").get("/cluster", headers={"origin": origin})
        assert response.status_code == 200
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert "set-cookie" not in response.headers
        assert response.headers["cache-control"] == "no-store"
        assert is_problem(api("viewer").call("OPTIONS", "/cluster", headers={"origin": origin}), 405)


@spec("C04")
def test_guessing_tokens_has_to_wait(api: Api) -> None:
    program = api("admin")
    codes = [
        program.client.get("/api/v1/token", headers={"authorization": f"Bearer tq_{n:043}"}).status_code
        for n in range(REFUSED_BURST + 2)
    ]
    assert codes == [401] * REFUSED_BURST + [429] * 2
    refused = program.get("/token")
    assert is_problem(refused, 429) and int(refused.headers["retry-after"]) >= 1, "also with a valid token"
    forwarded = {"x-forwarded-for": "10.1.1.1"}
    assert program.get("/token", headers=forwarded).status_code == 429, "another address is not believed"


@spec("C04")
@pytest.mark.parametrize("given", ["Basic YTpi", "Bearer", "Bearer a b", "Bearer \t", "bearer", "Token x", "Bearer é"])
def test_malformed_authorization_is_refused(api: Api, given: str) -> None:
    headers = [(b"authorization", given.encode("utf-8"))]
    assert is_problem(api("viewer").client.get("/api/v1/token", headers=headers), 401)


def test_two_authorizations_are_refused(api: Api) -> None:
    program = api("viewer")
    good = f"Bearer {program.secret}".encode()
    twice = [(b"authorization", good), (b"authorization", good)]
    assert is_problem(program.client.get("/api/v1/token", headers=twice), 401)


@spec("C03")
def test_revoked_token_is_refused_at_once(api: Api, console: Console) -> None:
    program = api("viewer")
    number = program.get("/token").json()["number"]
    console.tokens.revoke(number, Actor("test"), wall_ms())
    assert is_problem(program.get("/token"), 401)


def test_token_reports_itself_without_its_secret(api: Api) -> None:
    program = api("operator")
    response = program.get("/token")
    found = response.json()
    assert (found["user"], found["name"], found["role"]) == ("operator", "test", "operator")
    assert program.secret not in response.text


# Limits and errors.


@spec("C05")
def test_rate_of_a_token_is_limited_and_others_are_not(
    api: Api, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, other = api("viewer"), api("viewer")
    now_ms = wall_ms()
    monkeypatch.setattr(endpoint, "wall_ms", lambda: now_ms)
    codes = [program.get("/token").status_code for _ in range(API_BURST + 2)]
    assert codes == [200] * API_BURST + [429] * 2
    refused = program.get("/token")
    assert is_problem(refused, 429) and refused.headers["retry-after"] == "1"
    assert other.get("/token").status_code == 200
    now_ms += 1_000
    codes = [program.get("/token").status_code for _ in range(int(console.settings.api_per_s) + 1)]
    assert codes == [200] * (len(codes) - 1) + [429]


@spec("C05")
def test_open_requests_of_a_token_are_limited(api: Api, console: Console) -> None:
    program = api("viewer")
    number = program.get("/token").json()["number"]
    console.api_open[number] = endpoint.OPEN_MAX
    assert is_problem(program.get("/token"), 429)
    console.api_open[number] -= 1
    assert program.get("/token").status_code == 200
    assert console.api_open == {number: endpoint.OPEN_MAX - 1}


@spec("C05")
def test_errors_have_one_form(api: Api, cluster: FakeAdmin) -> None:
    program = api("admin")
    json_type = {"content-type": "application/json"}
    for status, response in {
        404: program.get("/nothing"),
        405: program.call("PATCH", "/topics"),
        400: program.call("POST", "/topics", content=b"{", headers=json_type),
        415: program.call("POST", "/topics", data={"name": "A"}),
        413: program.call("POST", "/topics", content=b" " * (endpoint.BODY_BYTES_MAX + 1), headers=json_type),
        422: program.call("DELETE", "/topics/Orders", params={"confirm": "Order"}),
        421: program.get("/topics", headers={"host": "evil.example"}),
    }.items():
        assert is_problem(response, status), response.text
    allowed = program.call("PATCH", "/topics").headers["allow"]
    assert set(allowed.split(", ")) == {"GET", "HEAD", "POST"}
    for error, status in ((RemoteError("no"), 502), (NotConnected("no"), 504), (OutcomeUnknown("no"), 504)):
        cluster.refusal = error
        assert is_problem(program.call("POST", "/consumer-groups", json={"name": "g"}), status)


@spec("C05")
@pytest.mark.parametrize(
    ("query", "why"),
    [
        ("limit=0", "limit"),
        ("limit=501", "limit"),
        ("limit=1&limit=2", "several times"),
        ("limits=1", "unknown field"),
        ("q=%ff", "decoded"),
        ("kind=odd", "kind"),
        ("q=" + "x" * 9_000, "characters"),
        ("&".join(f"a{n}=" for n in range(60)), "decoded"),
    ],
)
def test_parameters_are_checked(api: Api, query: str, why: str) -> None:
    response = api("viewer").get(f"/topics?{query}")
    assert is_problem(response, 400) and why in response.json()["detail"]


@spec("C05")
@pytest.mark.parametrize(
    "body",
    [
        b'{"name": "A", "other": 1}',
        b'{"name": "A", "queues": "8"}',
        b'{"name": "A", "queues": 1e400}',
        b'{"name": "A", "queues": ' + b"9" * 10_000 + b"}",
        b'{"name": "A\\ud800"}',
        b'{"name": "a b"}',
        b'{"name": "\xff"}',
        b"[" * 100_000,
        b'{"name": ' + b'{"a":' * 100_000,
        b"null",
        b"",
    ],
)
def test_bodies_are_checked(api: Api, cluster: FakeAdmin, body: bytes) -> None:
    response = api("operator").call("POST", "/topics", content=body, headers={"content-type": "application/json"})
    assert is_problem(response, 400)
    assert not [call for call in cluster.calls if call[0] == "create_topic"]


@spec("C04")
def test_addresses_in_requests_are_not_connected_to(api: Api, cluster: FakeAdmin) -> None:
    program, victim = api("admin"), "10.6.6.6:80"
    found = [
        program.get("/messages/by-id", params={"id": "0A06060600000050" + "0" * 16}),
        program.get(f"/topics/Orders/queues/{victim}/0/messages/0"),
        program.get(f"/topics/Orders/queues/{victim}/0/messages"),
        program.get(f"/broker-groups/{victim}"),
        program.call("POST", f"/broker-groups/{victim}/switch", json={"target": 1, "confirm": victim}),
        program.call("POST", "/broker-groups/broker-a/takeover", json={"target": victim, "confirm": "broker-a"}),
        program.call("POST", "/broker-groups/broker-a/takeover", json={"target": 77, "confirm": "broker-a"}),
    ]
    assert [one.status_code for one in found] == [422, 400, 400, 400, 400, 400, 422]
    assert not [call for call in cluster.calls if any(victim.split(":", maxsplit=1)[0] in str(part) for part in call)]


@spec("C04")
def test_texts_of_requests_reach_no_header(api: Api) -> None:
    program = api("admin")
    for text in ("a%0d%0aset-cookie:x=1", "%0d%0a%0d%0a<script>", "a%00b"):
        for path in (f"/topics/{text}", f"/topics?q={text}", f"/audit?q={text}", f"/{text}"):
            response = program.get(path)
            assert "set-cookie" not in response.headers and response.status_code in (200, 400, 404), path
            assert "json" in response.headers["content-type"], path


# Operations.


def test_lists_come_in_parts(api: Api, cluster: FakeAdmin) -> None:
    names = sorted(f"T{number:03}" for number in range(25))
    cluster.configs = {name: {"broker-a": TopicConfig(name, 4, 4)} for name in reversed(names)}
    program, found, cursor, parts = api("viewer"), [], "", 0
    while cursor is not None:
        part = program.get("/topics", params={"limit": 10, "cursor": cursor}).json()
        found += [one["name"] for one in part["items"]]
        cursor, parts = part["next"], parts + 1
    assert (found, parts) == (names, 3)
    assert len(program.get("/topics?q=t00").json()["items"]) == 10


@spec("C06")
def test_topic_is_created_changed_and_deleted_with_entries_in_the_audit_log(
    api: Api, cluster: FakeAdmin, audit: Callable[[], list[AuditEntry]]
) -> None:
    program = api("operator")
    assert program.call("POST", "/topics", json={"name": "New", "queues": 4}).status_code == 201
    assert is_problem(program.call("POST", "/topics", json={"name": "New"}), 409)
    assert program.call("PUT", "/topics/New", json={"queues": 8, "perm": 4, "order": True}).status_code == 200
    assert is_problem(program.call("PUT", "/topics/Nothing", json={}), 404)
    assert is_problem(program.call("DELETE", "/topics/New", params={"confirm": "no"}), 422)
    assert program.call("DELETE", "/topics/New", params={"confirm": "New"}).status_code == 204
    assert [call[0] for call in cluster.calls if "topic" in str(call[0]) and call[0] != "topic_configs"] == [
        "create_topic",
        "create_topic",
        "delete_topic",
    ]
    found = [one for one in audit() if one.action.startswith("topic.")]
    assert [(one.action, one.outcome) for one in found] == [
        ("topic.create", "done"),
        ("topic.change", "done"),
        ("topic.delete", "done"),
    ]
    assert {one.by.name for one in found} == {"operator (token 1, test)"} and found[0].by.address == "testclient"


@spec("C06")
def test_limits_are_set_listed_and_deleted_with_entries_in_the_audit_log(
    api: Api, cluster: FakeAdmin, audit: Callable[[], list[AuditEntry]]
) -> None:
    program, order = api("admin"), {"kind": "group", "name": "billing", "messagesPerSecond": 5, "inFlight": 9}
    assert program.call("PUT", "/limits", json=order).status_code == 200
    assert program.call("PUT", "/limits", json={"kind": "user", "name": "*", "connections": 2}).status_code == 200
    for wrong in ({"kind": "topic", "name": "T"}, {**order, "slows": True}, {**order, "name": "no spaces"}):
        assert is_problem(program.call("PUT", "/limits", json=wrong), 422)
    part = program.get("/limits", params={"limit": 1}).json()
    assert part["items"][0] | order == part["items"][0] and part["items"][0]["refused"] == 0
    assert [one["name"] for one in program.get("/limits", params={"cursor": part["next"]}).json()["items"]] == ["*"]
    assert program.call("DELETE", "/limits", params={"kind": "group", "name": "billing"}).status_code == 204
    assert is_problem(program.call("DELETE", "/limits", params={"kind": "group", "name": "billing"}), 404)
    assert list(cluster.limits) == [("user", "*")]
    assert [(one.action, one.target) for one in audit() if one.action.startswith("quota.")] == [
        ("quota.set", "group billing"),
        ("quota.set", "user *"),
        ("quota.delete", "group billing"),
    ]


@spec("C06")
def test_failed_change_is_in_the_audit_log(api: Api, cluster: FakeAdmin, audit: Callable[[], list[AuditEntry]]) -> None:
    cluster.refusal = OutcomeUnknown("no answer")
    assert is_problem(api("operator").call("POST", "/consumer-groups", json={"name": "g"}), 504)
    assert audit()[-1].outcome == "unknown: no answer"


def test_messages_are_found_and_shown(api: Api) -> None:
    program = api("viewer")
    identifier = stored("Orders", 3).offset_message_id
    for path, offset in (
        ("/messages?topic=Orders&key=k2", 2),
        ("/messages?topic=Orders&key=UK1&unique=true", 1),
        (f"/messages/by-id?id={identifier}", 3),
        ("/topics/Orders/messages?begin=1700000000004", 4),
    ):
        (found,) = program.get(path).json()["items"]
        assert (found["offset"], found["keys"]) == (offset, [f"k{offset}"]), path
    first = program.get("/topics/Orders/queues/broker-a/0/messages?limit=3").json()
    rest = program.get(f"/topics/Orders/queues/broker-a/0/messages?cursor={first['next']}").json()
    assert [one["offset"] for one in (*first["items"], *rest["items"])] == [0, 1, 2, 3, 4] and rest["next"] is None
    one = program.get(ONE).json()
    assert (one["body"], one["properties"]["TAGS"], one["consumed"]) == ('{"n": 0}', "paid", {"billing": True})
    assert is_problem(program.get(ONE[:-1] + "99"), 404)


def test_bodies_that_are_no_text_are_in_base64(api: Api, cluster: FakeAdmin, producer: FakeProducer) -> None:
    cluster.messages = [stored("Orders", 0, b"\xff\xfe")]
    program = api("operator")
    found = program.get(ONE).json()
    assert (found["body"], found["bodyBase64"]) == (None, "//4=")
    for body, sent in (({"bodyBase64": "//4="}, b"\xff\xfe"), ({"body": "é"}, "é".encode()), ({}, b"")):
        assert program.call("POST", "/topics/Orders/messages", json=body).status_code == 201
        assert producer.sent[-1].body == sent
    assert is_problem(program.call("POST", "/topics/Orders/messages", json={"body": "a", "bodyBase64": "YQ=="}), 422)
    assert is_problem(program.call("POST", "/topics/Orders/messages", json={"body": "a", "tag": "a|b\x01"}), 422)


class TestHiddenBodies:
    @pytest.fixture
    def settings(self) -> ConsoleSettings:
        return ConsoleSettings(hides_bodies=True)

    @spec("C02")
    def test_viewers_get_neither_body_nor_properties(self, api: Api, cluster: FakeAdmin) -> None:
        cluster.messages = [stored("Orders", 0, b"secret body", properties={"KEYS": "secret", "p": "secret value"})]
        cluster.configs["%DLQ%billing"] = {"broker-a": TopicConfig("%DLQ%billing", 1, 1)}
        cluster.messages.append(stored("%DLQ%billing", 0, b"secret", properties={"KEYS": "secret", "TAGS": "secret"}))
        viewer = api("viewer")
        for path in (ONE, "/topics/Orders/messages", "/topics/Orders/queues/broker-a/0/messages"):
            assert "secret" not in viewer.get(path).text, path
        letters = viewer.get("/consumer-groups/billing/dead-letters")
        assert letters.json()["items"] and "secret" not in letters.text
        assert "secret body" in api("operator").get(ONE).text


def test_message_is_sent_again(api: Api, producer: FakeProducer, audit: Callable[[], list[AuditEntry]]) -> None:
    response = api("operator").call("POST", f"{ONE}/resend")
    assert response.status_code == 201 and response.json()["offset"] == 77
    assert [one.body for one in producer.sent] == [b'{"n": 0}']
    assert audit()[-1].action == "message.resend"


def test_offsets_are_reset_after_a_preview(api: Api, cluster: FakeAdmin) -> None:
    program = api("operator")
    plan = {"topic": "Orders", "to": {"kind": "offset", "offset": 1}}
    for path, body in (("preview", plan), ("", {**plan, "confirm": "billing"})):
        found = program.call("POST", f"/consumer-groups/billing/offsets/{path}".rstrip("/"), json=body).json()
        assert found["items"] == [
            {"topic": "Orders", "broker": "broker-a", "queue": 0, "before": 2, "after": 1, "again": 1, "skipped": 0}
        ]
        assert len([call for call in cluster.calls if call[0] == "reset_offsets"]) == (0 if path else 1)
    wrong = program.call("POST", "/consumer-groups/billing/offsets", json={**plan, "confirm": "x"})
    assert is_problem(wrong, 422)
    for to in ({"kind": "earliest"}, {"kind": "latest"}, {"kind": "time", "time": 1}):
        body = {"topic": "Orders", "to": to, "queue": {"broker": "broker-a", "queue": 0}}
        assert program.call("POST", "/consumer-groups/billing/offsets/preview", json=body).status_code == 200


def test_consumer_groups_are_listed_created_and_deleted(api: Api, cluster: FakeAdmin) -> None:
    program = api("operator")
    assert program.get("/consumer-groups").json()["items"][0]["lag"] == 3
    assert program.get("/consumer-groups/billing").json()["progress"][0]["committed"] == 2
    assert program.call("POST", "/consumer-groups", json={"name": "new", "retries": 3}).status_code == 201
    assert is_problem(program.call("POST", "/consumer-groups", json={"name": "billing"}), 409)
    assert program.call("DELETE", "/consumer-groups/new", params={"confirm": "new"}).status_code == 204
    assert is_problem(program.get("/consumer-groups/nothing"), 404)
    assert ("delete_group", "new", True) in cluster.calls


def test_dead_letters_are_read_in_parts_and_sent_again(api: Api, cluster: FakeAdmin, producer: FakeProducer) -> None:
    program, path = api("operator"), "/consumer-groups/billing/dead-letters"
    assert program.get(path).json() == {"items": [], "next": None}
    topic = "%DLQ%billing"
    cluster.configs[topic] = {"broker-a": TopicConfig(topic, 1, 1)}
    cluster.messages += [stored(topic, n) for n in range(40)]
    found, cursor = [], ""
    while cursor is not None:
        part = program.get(path, params={"limit": 15, "cursor": cursor}).json()
        found += [one["place"] for one in part["items"]]
        cursor = part["next"]
    assert found == [f"broker-a/0@{n}" for n in range(40)]
    chosen = {"letters": {"kind": "chosen", "places": found[:2]}}
    result = program.call("POST", f"{path}/resend", json=chosen).json()
    assert [one["place"] for one in result["items"]] == found[:2] and {one.topic for one in producer.sent} == {
        "%RETRY%billing"
    }
    assert is_problem(program.call("POST", f"{path}/resend", json={"letters": {"kind": "all", "confirm": "x"}}), 422)
    gone = {"letters": {"kind": "chosen", "places": ["broker-a/0@99"]}}
    assert is_problem(program.call("POST", f"{path}/resend", json=gone), 404)


def test_dead_letters_that_are_too_large_together_are_left(
    api: Api, cluster: FakeAdmin, producer: FakeProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a group can be millions; only what is sent is held."""
    monkeypatch.setattr(dead_letters, "SENT_BYTES_MAX", 1_000)
    topic = "%DLQ%billing"
    cluster.configs[topic] = {"broker-a": TopicConfig(topic, 1, 1)}
    cluster.messages += [stored(topic, n, b"x" * size) for n, size in enumerate((2_000, 1, 1))]
    everything = {"letters": {"kind": "all", "confirm": "billing"}}
    result = api("operator").call("POST", "/consumer-groups/billing/dead-letters/resend", json=everything).json()
    assert (len(result["items"]), result["left"], len(producer.sent)) == (1, 2, 1)


MEMBERS = [{"id": 0, "role": "master"}, {"id": 1, "role": "slave", "permission": "READ", "weight": 50}]


@spec("C06")
def test_configuration_is_stored_and_a_conflict_has_the_present_one(api: Api) -> None:
    program = api("admin")
    order = {"revision": 0, "mode": "elect", "members": MEMBERS}
    first = program.call("PUT", "/broker-groups/broker-a", json=order)
    assert first.status_code == 200 and first.json()["revision"] == 1
    conflict = program.call("PUT", "/broker-groups/broker-a", json=order)
    assert is_problem(conflict, 409)
    assert conflict.json()["current"] == {**first.json()}
    wrong = {**order, "revision": 1, "members": [{"id": 0, "role": "master"}, {"id": 0, "role": "master"}]}
    refused = program.call("PUT", "/broker-groups/broker-a", json=wrong)
    assert is_problem(refused, 422) and len(refused.json()["errors"]) >= 2
    stale = {"revision": 7, "confirm": "broker-a"}
    assert is_problem(program.call("DELETE", "/broker-groups/broker-a", params=stale), 409)
    known = program.get("/broker-groups/broker-a").json()
    assert known["configured"]["revision"] == 1 and known["running"]["mode"] == "elect"
    right = {"revision": 1, "confirm": "broker-a"}
    assert program.call("DELETE", "/broker-groups/broker-a", params=right).status_code == 204
    assert program.get("/broker-groups").json()["items"][0]["configured"]["mode"] is None


def test_master_is_switched_and_forced_with_a_confirmation(api: Api, cluster: FakeAdmin) -> None:
    program, path = api("admin"), "/broker-groups/broker-a"
    assert is_problem(program.call("POST", f"{path}/switch", json={"target": 1, "confirm": "no"}), 422)
    switched = program.call("POST", f"{path}/switch", json={"target": 1, "confirm": "broker-a"}).json()
    assert [one["id"] for one in switched["running"]["members"] if one["isMaster"]] == [1]
    assert program.get(f"{path}/takeover").json() == {"losses": {"0": "512 bytes may be lost"}, "refusals": {}}
    forced = program.call("POST", f"{path}/takeover", json={"target": 0, "confirm": "broker-a"})
    assert forced.json() == {"lost": "512 bytes may be lost"}
    assert [call for call in cluster.calls if call[0] in ("switch_master", "force_master")] == [
        ("switch_master", MASTER, 1),
        ("force_master", MASTER),
    ]


def test_audit_log_is_read_in_parts(api: Api) -> None:
    program, found, cursor = api("admin"), [], ""
    for number in range(5):
        program.call("POST", "/consumer-groups", json={"name": f"g{number}"})
    while cursor is not None:
        part = program.get("/audit", params={"q": "group.create", "limit": 2, "cursor": cursor}).json()
        found += [one["target"] for one in part["items"]]
        cursor = part["next"]
    assert found == ["g4", "g3", "g2", "g1", "g0"]


class TestPipeline:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> ConsoleSettings:
        log = tmp_path / "lake" / "_delta_log"
        log.mkdir(parents=True)
        lines = ({"commitInfo": {"timestamp": 9}}, {"txn": {"appId": "tandemq-log:broker-a", "version": 96}})
        (log / f"{0:020}.json").write_text("".join(json.dumps(one) + "\n" for one in lines))
        return ConsoleSettings(pipeline=PipelinePaths((tmp_path / "lake",), (tmp_path / "none",)))

    def test_state_of_the_pipeline_is_that_of_the_page(self, api: Api) -> None:
        found = api("viewer").get("/pipeline").json()
        (log,) = found["lakes"][0]["logs"]
        assert (log["position"], log["logEnd"], log["behind"]) == (96, 4_096, 4_000)
        assert found["checks"][0]["error"] == "there is no such file yet"


def test_document_describes_every_operation_and_needs_no_token(api: Api) -> None:
    response = api("viewer").client.get("/api/v1/openapi.json")
    assert response.json() == document()
    described = {(method.upper(), path) for path, one in document()["paths"].items() for method in one}
    assert described == {(one.method, one.path) for one in OPERATIONS}
    assert len({one.name for one in OPERATIONS}) == len(OPERATIONS)
