"""A session at members of etcd that answer as a script tells them.

With real ones: tests/unit/boundary/test_registry.py, tests/interop/test_registries.py.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tandemq.real.etcd import session
from tandemq.registry import (
    Confirmed,
    Create,
    Done,
    NodeMissing,
    Read,
    ReadChildren,
    RegistryRefused,
    RegistryResponse,
    SessionLost,
    SessionSuspended,
    SessionUp,
    Unknown,
    Write,
)
from tests.blackbox.programs import wait_until
from tests.unit.real.etcd.scripted_gateway import CUT, LEASE, Answer, Client, ScriptedGateway, error, event

Begin = Callable[..., Client]


@pytest.fixture(autouse=True)
def quick_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PINGS_PER_TIMEOUT", 30)


@pytest.fixture
def gateway() -> Iterator[ScriptedGateway]:
    opened = ScriptedGateway()
    yield opened
    opened.close()


@pytest.fixture
def begin(gateway: ScriptedGateway) -> Iterator[Begin]:
    with ExitStack() as stack:

        def begun(*gateways: ScriptedGateway, **settings: str) -> Client:
            client = Client(*(gateways or (gateway,)), **settings)
            stack.callback(client.registry.close)
            return client

        yield begun


@pytest.fixture
def client(begin: Begin) -> Client:
    begun = begin()
    begun.wait(Confirmed)
    return begun


def wait_pings(gateway: ScriptedGateway, count: int) -> None:
    """Wait until so many more pings have begun and ended."""
    before = gateway.count("lease/keepalive")
    wait_until(lambda: gateway.count("lease/keepalive") > before + count, f"{count} pings")


# Proof that the session is alive.


def test_session_is_confirmed_by_pings_in_one_term(client: Client) -> None:
    client.wait(Confirmed, 3)
    assert client.events[0] == SessionUp(LEASE, 3_000)
    sent = [found.sent_ms for found in client.events if isinstance(found, Confirmed)]
    assert sent == sorted(sent)


def test_ping_across_a_change_of_the_term_confirms_nothing(gateway: ScriptedGateway, client: Client) -> None:
    """Its keep-alive may have been answered by the leader of the term before."""

    def later_term(request: dict[str, object]) -> tuple[int, dict[str, object]]:
        gateway.term += 1
        return 200, gateway.usual("kv/range", request)

    gateway.script["ping"].extend([later_term] * 200)
    wait_pings(gateway, 1)
    before = client.count(Confirmed)
    wait_pings(gateway, 3)
    assert client.count(Confirmed) == before
    gateway.script["ping"].clear()
    client.wait(Confirmed, before + 1)
    assert client.kinds() == ["SessionUp"]


def test_ping_answered_by_two_members_confirms_nothing(gateway: ScriptedGateway, client: Client) -> None:
    """As behind a load balancer."""

    def other_member(request: dict[str, object]) -> tuple[int, dict[str, object]]:
        answer = gateway.usual("lease/keepalive", request)
        answer["result"]["header"]["member_id"] = "5"
        return 200, answer

    gateway.script["lease/keepalive"].extend([other_member] * 200)
    wait_pings(gateway, 1)
    before = client.count(Confirmed)
    wait_pings(gateway, 3)
    assert client.count(Confirmed) == before


def test_lease_unknown_to_one_server_is_not_lost_while_its_key_exists(gateway: ScriptedGateway, client: Client) -> None:
    no_lease = (200, {"result": {"header": gateway.header(), "ID": str(LEASE)}})
    gateway.script["lease/keepalive"].extend([lambda _: no_lease] * 200)
    wait_pings(gateway, 1)
    before = client.count(Confirmed)
    wait_pings(gateway, 3)
    assert client.count(Confirmed) == before
    gateway.script["lease/keepalive"].clear()
    client.wait(Confirmed, before + 1)
    assert client.kinds() == ["SessionUp"]


# The end of a session.


def test_session_whose_key_is_gone_is_lost_and_another_begins(gateway: ScriptedGateway, client: Client) -> None:
    gateway.key_version = 0
    client.wait(SessionUp, 2)
    assert client.kinds() == ["SessionUp", "SessionSuspended", "SessionLost", "SessionUp"]
    assert gateway.count("lease/revoke") == 1, "so that no ephemeral node is left"
    assert gateway.count("lease/grant") == 2


def test_lease_that_ended_with_its_key_is_lost_too(gateway: ScriptedGateway, client: Client) -> None:
    gateway.script["ping"].append(lambda _: CUT)
    gateway.script["kv/txn"].append(lambda _: error(404, 5, "requested lease not found"))
    gateway.script["lease/revoke"].append(lambda _: error(404, 5, "requested lease not found"))
    client.wait(SessionUp, 2)
    assert client.kinds() == ["SessionUp", "SessionSuspended", "SessionLost", "SessionUp"]


def test_write_after_another_connection_took_the_session_is_unknown(gateway: ScriptedGateway, client: Client) -> None:
    moved = {"header": gateway.header(), "responses": [{"response_range": {"kvs": [{"key": "YQ==", "version": "9"}]}}]}
    gateway.script["kv/txn"].append(lambda _: (200, moved))
    assert client.do(Write("/a", b"", 0)) == Unknown()
    client.wait(SessionUp, 2)
    assert client.count(SessionLost) == 0


@pytest.mark.parametrize("answer", [CUT, (200, {"header": {}, "succeeded": True})])
def test_session_that_was_never_up_is_not_lost(gateway: ScriptedGateway, begin: Begin, answer: Answer) -> None:
    gateway.script["kv/txn"].append(lambda _: answer)
    client = begin()
    client.wait(SessionUp)
    assert client.kinds() == ["SessionUp"]
    assert gateway.count("lease/revoke") == 1


def test_close_ends_the_lease(gateway: ScriptedGateway, begin: Begin) -> None:
    client = begin()
    client.wait(SessionUp)
    client.registry.close()
    assert gateway.requests[-1][:2] == ("lease/revoke", {"ID": str(LEASE)})


# Lost connections.


def test_operations_in_flight_are_unknown_and_another_member_is_tried(gateway: ScriptedGateway, begin: Begin) -> None:
    other = ScriptedGateway()
    try:
        client = begin(gateway, other)
        client.wait(SessionUp)
        other.key_version = gateway.key_version
        gateway.script["kv/txn"].append(lambda _: CUT)
        tokens = [client.begin(Write("/a", b"", 0)), client.begin(Read("/a"))]
        client.wait(SessionUp, 2)
        answers = [found for found in client.events if isinstance(found, RegistryResponse)]
        assert [(found.token, found.outcome) for found in answers] == [(asked, Unknown()) for asked in tokens]
        assert client.kinds() == ["SessionUp", *["RegistryResponse"] * 2, "SessionSuspended", "SessionUp"]
        assert client.do(Write("/a", b"", 0)) == Done(1)
        assert other.key_version == gateway.key_version + 1, "it has taken the session"
    finally:
        client.registry.close()
        other.close()


def test_member_that_does_not_answer_is_left_for_another(gateway: ScriptedGateway, begin: Begin) -> None:
    other = ScriptedGateway()
    try:
        client = begin(gateway, other)
        client.wait(SessionUp)
        other.key_version = gateway.key_version
        gateway.holds.clear()
        client.wait(SessionUp, 2)
        assert client.registry.problem == ""
        assert other.count("lease/grant") == 0
    finally:
        client.registry.close()
        other.close()


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((404, {}), "etcd 3.4 or newer is needed, with its gRPC gateway"),
        ((502, {}), "HTTP status 502"),
        ((200, {"header": []}), "etcd's answer is not understood"),
        (error(503, 14, "no leader"), "no leader"),
    ],
)
def test_problem_says_why_there_is_no_session(
    gateway: ScriptedGateway, begin: Begin, answer: tuple[int, dict[str, object]], problem: str
) -> None:
    gateway.script["lease/grant"].extend([lambda _: answer] * 3)
    client = begin()
    wait_until(lambda: problem in client.registry.problem, problem)
    assert client.registry.refusal == ""
    assert client.do(Read("/a")) == Unknown()
    client.wait(SessionUp)
    assert client.registry.problem == ""


def test_malformed_answer_suspends_the_session(gateway: ScriptedGateway, client: Client) -> None:
    gateway.script["ping"].append(lambda _: (200, {"header": {"revision": "many"}}))
    client.wait(SessionUp, 2)
    assert client.kinds() == ["SessionUp", "SessionSuspended", "SessionUp"]


# Access control.

USER = {"parameters": "?user=mq&passwordFile=/unused", "password": "secret"}


def token(gateway: ScriptedGateway, text: str) -> None:
    gateway.script["auth/authenticate"].append(lambda _: (200, {"header": gateway.header(), "token": text}))


def test_expired_token_is_renewed_and_the_request_sent_again(gateway: ScriptedGateway, begin: Begin) -> None:
    token(gateway, "first")
    client = begin(**USER)
    client.wait(SessionUp)
    token(gateway, "second")
    gateway.script["kv/txn"].append(lambda _: error(401, 16, "invalid auth token"))
    assert client.do(Create("/a", b"")) == Done(0)
    assert gateway.requests[0][:2] == ("auth/authenticate", {"name": "mq", "password": "secret"})
    assert [used for method, _, used in gateway.requests if method == "kv/txn"] == ["first", "first", "second"]
    assert client.count(SessionSuspended) == 0


def test_server_without_access_control_needs_no_token(gateway: ScriptedGateway, begin: Begin) -> None:
    gateway.script["auth/authenticate"].append(lambda _: error(400, 9, "authentication is not enabled"))
    begin(**USER).wait(SessionUp)


def test_wrong_password_is_a_refusal(gateway: ScriptedGateway, begin: Begin) -> None:
    failed = error(400, 3, "authentication failed, invalid user ID or password")
    gateway.script["auth/authenticate"].extend([lambda _: failed] * 100)
    client = begin(**USER)
    wait_until(lambda: "invalid user ID or password" in client.registry.refusal, "refused")


def test_missing_user_is_a_refusal_that_says_what_to_do(gateway: ScriptedGateway, begin: Begin) -> None:
    gateway.script["lease/grant"].extend([lambda _: error(400, 3, "user name is empty")] * 100)
    client = begin()
    wait_until(lambda: "add user=NAME&passwordFile=FILE to the address" in client.registry.refusal, "refused")


def test_operation_without_permission_is_refused_with_the_command(gateway: ScriptedGateway, begin: Begin) -> None:
    token(gateway, "one")
    client = begin(parameters="/apps?user=mq&passwordFile=/unused", password="secret")
    client.wait(SessionUp)
    gateway.script["kv/txn"].append(lambda _: error(403, 7, "permission denied"))
    outcome = client.do(Create("/a", b""))
    assert isinstance(outcome, RegistryRefused)
    assert "--prefix=true readwrite /apps/tandemq" in outcome.reason
    assert client.do(Create("/a", b"")) == Done(0)
    assert client.count(SessionSuspended) == 0


def test_full_database_refuses_writes_and_an_overloaded_one_is_unknown(
    gateway: ScriptedGateway, client: Client
) -> None:
    gateway.script["kv/txn"].append(lambda _: error(429, 8, "mvcc: database space exceeded"))
    assert isinstance(client.do(Create("/a", b"")), RegistryRefused)
    gateway.script["kv/txn"].append(lambda _: error(429, 8, "too many requests"))
    assert client.do(Create("/a", b"")) == Unknown()


# Watches.


def test_watch_follows_the_read_and_one_stream_serves_a_directory(gateway: ScriptedGateway, client: Client) -> None:
    assert client.do(Read("/g/a/state", watch=True)) == NodeMissing()
    request, messages = gateway.streams.get(timeout=60)
    assert (request["start_revision"], request["key"], request["range_end"]) == ("11", "L2cvYS8=", "L2cvYTA=")
    assert client.do(ReadChildren("/g/a/live", watch=True)) == NodeMissing()
    messages.put(event("/g/a/state", 10, 1))  # what the read has seen
    messages.put(event("/g/a/other", 11, 1))
    messages.put(event("/g/a/live/1", 12, 2))  # no child that comes or goes
    messages.put(event("/g/a/state", 13, 1))
    messages.put(event("/g/a/live/1", 14, 0))
    messages.put(event("/g/a/live/1", 15, 1))  # the watch has fired
    wait_until(lambda: len(client.changed()) >= 2, "both watches fire")
    assert client.changed() == ["/g/a/state", "/g/a/live"]
    # Another directory widens the stream, which continues behind the last change.
    assert client.do(Read("/g/b/state", watch=True)) == NodeMissing()
    wider, messages = gateway.streams.get(timeout=60)
    assert (wider["start_revision"], wider["key"], wider["range_end"]) == ("16", "L2cv", "L2cw")
    messages.put(event("/g/b/state", 16, 1))
    wait_until(lambda: client.changed()[2:] == ["/g/b/state"], "it fires")


def test_change_while_the_read_is_in_flight_fires_behind_its_answer(gateway: ScriptedGateway, client: Client) -> None:
    def changed_meanwhile(request: dict[str, object]) -> tuple[int, dict[str, object]]:
        answer = gateway.usual("kv/range", request)
        _, messages = gateway.streams.get(timeout=60)
        messages.put(event("/g/state", 11, 1))
        wait_until(lambda: client.registry._watches.seen == 11, "the change was seen")
        return 200, answer

    gateway.script["kv/range"].append(changed_meanwhile)
    client.begin(Read("/g/state", watch=True))
    wait_until(lambda: client.changed() == ["/g/state"], "it fires")
    kinds = client.kinds()
    assert kinds.index("Changed") == kinds.index("RegistryResponse") + 1


def test_compacted_changes_fire_all_watches(gateway: ScriptedGateway, client: Client) -> None:
    client.do(Read("/g/a", watch=True))
    client.do(ReadChildren("/g/b", watch=True))
    _, messages = gateway.streams.get(timeout=60)
    messages.put({"result": {"canceled": True, "compact_revision": "50"}})
    request, _ = gateway.streams.get(timeout=60)
    assert request["start_revision"] == "50"
    wait_until(lambda: len(client.changed()) == 2, "both fire")
    assert sorted(client.changed()) == ["/g/a", "/g/b"]
    assert client.count(SessionSuspended) == 0


def test_stream_that_ends_is_continued(
    gateway: ScriptedGateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "STEADY_SECONDS", 0.0)
    client.do(Read("/g/a", watch=True))
    _, messages = gateway.streams.get(timeout=60)
    messages.put(event("/g/b", 20, 1))
    messages.put(None)
    request, messages = gateway.streams.get(timeout=60)
    assert request["start_revision"] == "21"
    messages.put(event("/g/a", 21, 1))
    wait_until(lambda: client.changed() == ["/g/a"], "it fires")
    assert client.count(SessionSuspended) == 0


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        (None, "the stream of watch ended"),
        ({"result": {"canceled": True, "cancel_reason": "permission denied"}}, "permission denied"),
        ({"error": {"message": "no leader"}}, "no leader"),
    ],
)
def test_stream_that_does_not_last_suspends_the_session(
    gateway: ScriptedGateway,
    client: Client,
    end: dict[str, object] | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    client.do(Read("/g/a", watch=True))
    _, messages = gateway.streams.get(timeout=60)
    messages.put(end)
    client.wait(SessionUp, 2)
    assert client.kinds() == ["SessionUp", "RegistryResponse", "SessionSuspended", "SessionUp"]
    (line,) = (found.message for found in caplog.records if "registry suspended" in found.message)
    assert "the watch was lost: " in line
    assert reason in line
