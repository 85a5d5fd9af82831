"""The registry of a name server with a secret: unauthenticated peers can neither read nor write."""

from collections.abc import Callable

import pytest

from tandemq.boundary import Closed, LinkKind, Opened
from tandemq.codec.proofs import CHALLENGE, NONCE, PROOF, answer_proof, from_text, request_proof, to_text
from tandemq.codec.registry import ROLES, encode_operation
from tandemq.coordination.registry.interface import Create, Delete, Operation, Read, ReadChildren, Write
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.spec import spec
from tests.unit.nameserver.test_registry import TIMEOUT_MS, Host

SECRET, OTHER = b"s" * 32, b"o" * 32


@pytest.fixture
def host() -> Host:
    """Return a registry with a node, and connections 1 to 3."""
    host = Host(None, SECRET)
    for link in (1, 2, 3):
        host.turn([], Opened(link, LinkKind.REMOTING, f"10.0.0.{link}:1"))
    session = connect(host, 1)
    host.do(1, session, Create("/group/state", b"epoch 1"))
    host.sync()
    assert host.outcomes(1) == ["done"]
    return host


def ask(host: Host, link: int, command: Command) -> Command:
    host.send(link, command)
    host.sync()
    [answer] = host.answers.pop(link)
    return answer


def challenge(host: Host, link: int) -> str:
    return ask(host, link, Command(RequestCode.TANDEM_REGISTRY_CHALLENGE)).fields[CHALLENGE]


def connecting(nonce: str, *, secret: bytes = SECRET, session: int = 0, client: str = "me") -> Command:
    """Return an authenticated CONNECT."""
    fields = {"client": client, "timeoutMs": str(TIMEOUT_MS), "sessionId": str(session)}
    request = Command(RequestCode.TANDEM_REGISTRY_CONNECT, fields=fields | {CHALLENGE: nonce, NONCE: "bm9uY2U="})
    request.fields[PROOF] = to_text(request_proof(ROLES, secret, request))
    return request


def connect(host: Host, link: int) -> int:
    answer = ask(host, link, connecting(challenge(host, link)))
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    return int(answer.fields["sessionId"])


def refused(answer: Command) -> bool:
    return answer.code == ResponseCode.NO_PERMISSION and "haSecretFile" in (answer.remark or "")


def test_authenticated_session_gets_an_authenticated_response_and_full_access(host: Host) -> None:
    request = connecting(challenge(host, 2))
    answer = ask(host, 2, request)
    assert from_text(answer.fields[PROOF]) == answer_proof(ROLES, SECRET, request, answer)
    host.do(2, int(answer.fields["sessionId"]), Write("/group/state", b"epoch 2", 0))
    host.sync()
    assert host.outcomes(2) == ["done"]


@pytest.mark.parametrize(
    "operation",
    [
        Write("/group/state", b"epoch 2", 0),
        Read("/group/state"),
        ReadChildren("/group"),
        Create("/x", b""),
        Delete("/group/state", 0),
    ],
)
def test_unauthenticated_connection_cannot_read_or_write_in_any_session(host: Host, operation: Operation) -> None:
    for session in (0, 1, 2):
        assert refused(ask(host, 2, encode_operation(session, operation)))
    for code in (
        RequestCode.TANDEM_REGISTRY_EVENTS,
        RequestCode.TANDEM_REGISTRY_PING,
        RequestCode.TANDEM_REGISTRY_CLOSE,
    ):
        assert refused(ask(host, 2, Command(code, fields={"sessionId": "1"})))
    fields = {"client": "me", "timeoutMs": str(TIMEOUT_MS), "sessionId": "1"}
    assert refused(ask(host, 2, Command(RequestCode.TANDEM_REGISTRY_CONNECT, fields=fields)))
    assert host.node.registry is not None
    assert host.node.registry.session_count == 1


def changed_client(request: Command) -> None:
    request.fields["client"] = "you"


def changed_session(request: Command) -> None:
    request.fields["sessionId"] = "1"


def changed_body(request: Command) -> None:
    request.body = b"x"


def without_proof(request: Command) -> None:
    del request.fields[PROOF]


def without_challenge(request: Command) -> None:
    del request.fields[CHALLENGE]


def no_base64(request: Command) -> None:
    request.fields[PROOF] = request.fields[CHALLENGE] = "*"


def of_another_role(request: Command) -> None:
    request.fields[PROOF] = to_text(answer_proof(ROLES, SECRET, request, request))


def of_another_secret(request: Command) -> None:
    request.fields[PROOF] = to_text(request_proof(ROLES, OTHER, request))


@pytest.mark.parametrize(
    "change",
    [
        changed_client,
        changed_session,
        changed_body,
        without_proof,
        without_challenge,
        no_base64,
        of_another_role,
        of_another_secret,
    ],
)
def test_changed_connect_is_refused(host: Host, change: Callable[[Command], None]) -> None:
    request = connecting(challenge(host, 2))
    change(request)
    assert refused(ask(host, 2, request))


@spec("H24")
def test_replayed_connect_is_refused_on_the_same_and_on_another_connection(host: Host) -> None:
    nonce = challenge(host, 2)
    recorded = connecting(nonce)
    assert ask(host, 2, recorded).code == ResponseCode.SUCCESS
    assert refused(ask(host, 2, recorded)), "its nonce was used"
    challenge(host, 2)
    assert refused(ask(host, 2, recorded)), "another nonce is asked for"
    assert refused(ask(host, 3, recorded)), "its nonce is of another connection"
    challenge(host, 3)
    assert refused(ask(host, 3, recorded))
    nonce = challenge(host, 2)
    assert refused(ask(host, 3, connecting(nonce))), "a proof for one connection is none on another"


def test_nonce_of_a_wrong_proof_cannot_be_reused(host: Host) -> None:
    nonce = challenge(host, 2)
    assert refused(ask(host, 2, connecting(nonce, secret=OTHER)))
    assert refused(ask(host, 2, connecting(nonce)))


def test_closed_connection_loses_its_authentication(host: Host) -> None:
    session = connect(host, 2)
    host.turn([], Closed(2, "gone"))
    host.turn([], Opened(2, LinkKind.REMOTING, "10.0.0.9:1"))
    assert refused(ask(host, 2, encode_operation(session, Read("/group/state"))))
    registry = host.node.registry
    assert registry is not None
    host.turn([], Closed(2, "gone"), Closed(1, "gone"), Closed(3, "gone"))
    assert (registry._nonces, registry._proven) == ({}, set())


def test_name_server_without_a_secret_requires_no_authentication() -> None:
    host = Host()
    host.turn([], Opened(1, LinkKind.REMOTING, "10.0.0.1:1"))
    answer = ask(host, 1, Command(RequestCode.TANDEM_REGISTRY_CHALLENGE))
    assert "has no haSecretFile" in (answer.remark or "")
    host.ask_session(1, "me", 0)
    host.sync()
    assert host.outcomes(1) == ["connected"]
