"""Calls with users: the proxy decides by the users and policies of the brokers, and signs its own requests."""

import json

import pytest

from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.proxy import access
from tandemq.proxy.access import KEPT_MS, NEEDS
from tandemq.proxy.protocol import messaging_pb2 as pb
from tests.spec import spec
from tests.unit.proxy.cluster import Client, ProxyCluster, code, message, resource

ROOT = Credentials("root", "root-key")
ALICE = Credentials("alice", "alice-key")
ON = {"authentication_enable": True, "authorization_enable": True}


class Guarded(ProxyCluster):
    """A cluster with access control, and the user alice."""

    def __init__(self) -> None:
        init = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})
        super().__init__(credentials=ROOT, proxy=ON, init_user=init, **ON)
        self.topic("T")
        self.group("G")
        self.change(RequestCode.AUTH_CREATE_USER, {"username": "alice"}, {"password": ALICE.secret_key})

    def change(self, request: RequestCode, fields: dict[str, str], body: object) -> None:
        answer = self.ask(Command(request, fields=fields, body=json.dumps(body).encode()))
        assert answer.code == 0, answer.remark

    def allow(self, resource: str, *actions: str) -> None:
        entry = {"resource": resource, "actions": actions, "decision": "Allow"}
        body = {"policies": [{"entries": [entry]}]}
        self.change(RequestCode.AUTH_CREATE_ACL, {"subject": "User:alice"}, body)

    def forget(self) -> None:
        """Let the proxy's copies of users grow too old."""
        self.run(KEPT_MS + 1)

    def as_user(self, user: Credentials | None, name: str = "c-1") -> Client:
        client = self.client(name)
        client.user = user
        return client


@pytest.fixture
def cluster() -> Guarded:
    return Guarded()


@spec("A01")
def test_each_method_says_what_it_needs() -> None:
    methods = pb.DESCRIPTOR.services_by_name["MessagingService"].methods
    unserved = {"PullMessage", "UpdateOffset", "GetOffset", "QueryOffset", "Telemetry"}
    served = {method.input_type.full_name for method in methods if method.name not in unserved}
    assert {kind.DESCRIPTOR.full_name for kind in NEEDS} == served | {pb.Settings.DESCRIPTOR.full_name}


@spec("A01")
def test_calls_without_a_valid_signature_are_refused_alike(cluster: Guarded) -> None:
    for user in (None, Credentials("alice", "wrong"), Credentials("nobody", "x")):
        client = cluster.as_user(user)
        answer = client.call("QueryRoute", pb.QueryRouteRequest(topic=resource("T")), pb.QueryRouteResponse)
        assert (code(answer.status), answer.status.message) == ("UNAUTHORIZED", NOT_AUTHENTICATED)
        assert code(client.send(message("T")).status) == "UNAUTHORIZED"
        assert client.receive("G", "T").code == "UNAUTHORIZED"
        stream = client.produce("T")
        assert code(stream.commands[0].status) == "UNAUTHORIZED" and stream.call.status == 0


def test_super_users_may_do_everything(cluster: Guarded) -> None:
    client = cluster.as_user(ROOT)
    assert code(client.send(message("T", b"one")).status) == "OK"
    found = client.receive("G", "T")
    assert found.bodies == [b"one"]
    assert code(client.ack("G", "T", found.messages).status) == "OK"


def test_policies_decide(cluster: Guarded) -> None:
    client = cluster.as_user(ALICE)
    refused = client.send(message("T"))
    assert code(refused.status) == "UNAUTHORIZED" and "Topic:T" in refused.status.message
    cluster.allow("Topic:T", "Pub")
    cluster.forget()
    assert code(client.send(message("T", b"one")).status) == "OK"
    assert client.receive("G", "T").code == "UNAUTHORIZED"
    cluster.allow("Topic:T", "Pub", "Sub")
    cluster.allow("Group:G", "Sub")
    cluster.forget()
    assert client.receive("G", "T").bodies == [b"one"]
    assert client.consume("G", "T").settings.subscription.group.name == "G"
    assert client.receive("Other", "T").code == "UNAUTHORIZED"


def test_a_known_user_is_served_while_no_broker_answers(cluster: Guarded) -> None:
    client = cluster.as_user(ROOT)
    assert code(client.send(message("T")).status) == "OK"
    cluster.forget()
    cluster.broker.restart_after(1_500)
    assert code(client.send(message("T")).status) == "OK"


def test_a_flood_of_unknown_users_takes_no_place_from_users(cluster: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "USERS_KEPT_MAX", 1)
    monkeypatch.setattr(access, "UNKNOWN_KEPT_MAX", 2)
    client = cluster.as_user(ROOT)
    assert code(client.send(message("T")).status) == "OK"
    unknown = cluster.client("c-2")
    for number in range(5):
        unknown.user = Credentials(f"unknown-{number}", "key")
        assert code(unknown.send(message("T")).status) == "UNAUTHORIZED"
    cluster.forget()
    cluster.broker.restart_after(1_500)
    assert code(client.send(message("T")).status) == "OK", "the user is still known"


def test_a_client_is_ended_and_replaced_by_its_own_user_only(cluster: Guarded) -> None:
    """Ids of clients are no secrets."""
    own = cluster.as_user(ROOT, "victim")
    stream = own.produce("T")
    cluster.allow("Topic:T", "Pub")
    other = cluster.as_user(ALICE, "victim")
    request = pb.NotifyClientTerminationRequest(), pb.NotifyClientTerminationResponse
    assert code(other.call("NotifyClientTermination", *request).status) == "UNAUTHORIZED"
    beat = pb.HeartbeatRequest(client_type=pb.ClientType.PRODUCER), pb.HeartbeatResponse
    assert code(other.call("Heartbeat", *beat).status) == "UNAUTHORIZED"
    assert code(other.produce("T").commands[-1].status) == "UNAUTHORIZED"
    assert stream.call.status is None
    assert code(own.call("Heartbeat", *beat).status) == "OK"
    assert code(own.call("NotifyClientTermination", *request).status) == "OK"


def test_a_disabled_user_is_refused(cluster: Guarded) -> None:
    cluster.allow("Topic:*", "All")
    client = cluster.as_user(ALICE)
    assert code(client.send(message("T")).status) == "OK"
    cluster.change(RequestCode.AUTH_UPDATE_USER, {"username": "alice"}, {"userStatus": "disable"})
    cluster.forget()
    assert code(client.send(message("T")).status) == "UNAUTHORIZED"


# Limits of users.


def limit(cluster: Guarded, name: str, **values: object) -> None:
    """Limit a user, and let the proxy learn it."""
    cluster.change(RequestCode.TANDEM_SET_QUOTAS, {}, {"quotas": [{"kind": "user", "name": name} | values]})
    cluster.forget()


def codes(client: Client, number: int, topic: str = "T", **more: object) -> list[str]:
    """Send messages one by one; return the outcomes."""
    return [code(client.send(message(topic, b"x" * 100, **more)).status) for _ in range(number)]


def exceeded(cluster: Guarded) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(cluster.ask(Command(RequestCode.TANDEM_QUOTAS)).body)["exceeded"]
    return found


@pytest.mark.parametrize("values", [{"messagesPerSecond": 10}, {"bytesPerSecond": 1_000}])
def test_what_a_user_sends_beyond_its_limit_is_refused_at_once(cluster: Guarded, values: dict[str, int]) -> None:
    cluster.allow("Topic:T", "Pub")
    limit(cluster, "alice", **values)
    alice, root = cluster.as_user(ALICE), cluster.as_user(ROOT, "c-2")
    found = codes(alice, 30)
    assert set(found) == {"OK", "TOO_MANY_REQUESTS"} and found[:10] == ["OK"] * 10
    refused = alice.send(message("T"))
    assert "user alice exceeds its limit" in refused.status.message
    count = found.count("TOO_MANY_REQUESTS") + 1
    assert exceeded(cluster) == [{"kind": "user", "name": "alice", "refused": count, "slowed": 0}], "one request each"
    assert codes(root, 30) == ["OK"] * 30
    cluster.run(2_000)
    assert codes(alice, 5) == ["OK"] * 5


def test_ordered_messages_and_batches_use_the_limit_too(cluster: Guarded) -> None:
    cluster.topic("F", kind="FIFO")
    cluster.allow("Topic:*", "Pub")
    limit(cluster, "alice", messagesPerSecond=10)
    alice = cluster.as_user(ALICE)
    found = codes(alice, 20, "F", message_group="g", message_type=pb.MessageType.FIFO)
    assert found[:10] == ["OK"] * 10 and "TOO_MANY_REQUESTS" in found
    cluster.run(2_000)
    response = alice.send(*(message("T") for _ in range(30)))
    outcomes = [code(entry.status) for entry in response.entries]
    assert set(outcomes) == {"OK", "TOO_MANY_REQUESTS"} and outcomes.count("OK") < 20


def test_a_user_that_is_slowed_waits(cluster: Guarded) -> None:
    cluster.allow("Topic:T", "Pub")
    limit(cluster, "*", messagesPerSecond=20, slows=True)
    assert codes(cluster.as_user(ALICE), 40) == ["OK"] * 40
    slowed = {row["name"]: row["slowed"] for row in exceeded(cluster)}
    assert set(slowed) == {"alice"}, "the proxy's own user does not pay for it"


def test_a_user_has_as_many_connections_as_its_limit_allows(cluster: Guarded) -> None:
    cluster.allow("Topic:T", "Pub")
    limit(cluster, "alice", connections=2)
    first, second, third = (cluster.as_user(ALICE, f"c-{number}") for number in range(3))
    assert codes(first, 2) + codes(second, 2) == ["OK"] * 4
    assert codes(third, 2) == ["TOO_MANY_REQUESTS"] * 2
    stream = third.produce("T")
    assert code(stream.commands[0].status) == "TOO_MANY_REQUESTS" and stream.call.status == 0
    assert codes(cluster.as_user(ROOT, "root"), 1) == ["OK"]
    assert codes(first, 1) == ["OK"]
    first.lose()
    cluster.until(lambda: codes(third, 1) == ["OK"])
    limit(cluster, "alice")
    assert codes(cluster.as_user(ALICE, "c-4"), 1) == ["OK"]
