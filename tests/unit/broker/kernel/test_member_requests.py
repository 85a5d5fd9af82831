"""Authenticated requests between members: unauthenticated peers and replayed requests change nothing."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tandemq.broker.kernel import member_requests
from tandemq.broker.kernel.member_requests import CHALLENGE, NONCE, NONCES_MAX, PROOF
from tandemq.codec.remoting.fastjson import dumps_java
from tandemq.codec.remoting.frame import encode_command
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.replication.authentication import Keyring
from tests.spec import spec
from tests.unit.broker.harness import Harness
from tests.unit.broker.roles.registry_group import RegistryGroup

SECRET, OTHER = b"the secret of this group", b"the secret of another one"
OK, NO_PERMISSION = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
RANGE = {"offset": "0", "size": "100"}
REQUESTS = {
    Code.TANDEM_LOG_RECORDS: RANGE,
    Code.TANDEM_LOG_SUSPECT: {"offset": "0", "brokerId": "1", "reason": "damaged"},
    Code.TANDEM_HAND_OFFSETS: {"from": "1", "token": "1"},
}


@pytest.fixture
def broker(tmp_path: Path) -> Harness:
    return Harness(tmp_path, keyring=Keyring(lambda: (SECRET, OTHER), Random(1)))


def challenge(broker: Harness, link: int = 1) -> str:
    answer = broker.ask(Code.TANDEM_CHALLENGE, link=link)
    assert answer.code == OK
    return answer.fields[CHALLENGE]


def proven(code: int, fields: dict[str, str], nonce: str, secret: bytes = SECRET, body: bytes = b"") -> Command:
    """Return a request with the proof of a member."""
    all_fields = {**fields, CHALLENGE: nonce, NONCE: "b3du"}
    command = Command(code, 77, fields=all_fields, body=body)
    command.fields[PROOF] = member_requests._text(member_requests._request_proof(secret, command))
    return command


def ask(broker: Harness, command: Command, link: int = 1) -> Command:
    broker.turn([(link, encode_command(command))])
    answer = broker.answer_to(command.opaque, link=link)
    assert answer is not None
    return answer


@spec("H24")
@pytest.mark.parametrize("code", sorted(REQUESTS))
def test_request_of_members_without_a_proof_is_refused_counted_and_logged_once_a_minute(
    broker: Harness, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    fields = REQUESTS[Code(code)]
    for _ in range(3):
        answer = broker.ask(code, fields, b"{}")
        assert answer.code == NO_PERMISSION
        assert "without a proof: members of the group prove their haSecretFile" in str(answer.remark)
        assert not answer.body
    table = broker.json(Code.GET_BROKER_RUNTIME_INFO)["table"]
    assert table["haRefusedTimes"] == "3"
    lines = [line for line in caplog.messages if "refused times=" in line]
    assert lines == [f"replication: peer=10.0.0.1:30001 refused times=1 reason='{Code(code).name} without a proof'"]
    broker.pass_time(60_000)
    broker.ask(code, fields, b"{}")
    assert [line for line in caplog.messages if "refused times=3" in line]


def test_requests_without_a_secret_are_unchanged(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    broker.send("TopicA")
    end = broker.node.store.log.written_end
    assert broker.ask(Code.TANDEM_LOG_RECORDS, {"offset": 0, "size": end}).body
    assert broker.ask(Code.TANDEM_LOG_SUSPECT, {"offset": 0, "brokerId": 1}).code == OK
    assert broker.ask(Code.TANDEM_HAND_OFFSETS, REQUESTS[Code.TANDEM_HAND_OFFSETS], b"{}").code == OK
    assert "no haSecretFile" in str(broker.ask(Code.TANDEM_CHALLENGE).remark)


@spec("H24")
def test_operators_need_no_secret(broker: Harness) -> None:
    broker.send("TopicA")
    asked = {
        Code.TANDEM_SWITCH: {"target": 1},
        Code.TANDEM_FORCE_MASTER: {},
        Code.TANDEM_FAILOVER_STATUS: {},
        Code.TANDEM_SCRUB: {},
        Code.TANDEM_LOG_DIGEST: {"offset": 0, "size": 10},
        Code.TANDEM_PEER_INFO: {},
    }
    for code, fields in asked.items():
        assert broker.ask(code, fields).code != NO_PERMISSION


@spec("H24")
def test_proven_request_is_answered_with_a_proof_for_every_secret(broker: Harness) -> None:
    broker.send("TopicA")
    for secret in (SECRET, OTHER):
        end = str(broker.node.store.log.written_end)
        request = proven(Code.TANDEM_LOG_RECORDS, {"offset": "0", "size": end}, challenge(broker), secret)
        answer = ask(broker, request)
        assert answer.code == OK
        assert answer.body
        expected = member_requests._answer_proof(secret, request, answer)
        assert answer.fields[PROOF] == member_requests._text(expected)
        answer.body += b"x"
        assert answer.fields[PROOF] != member_requests._text(member_requests._answer_proof(secret, request, answer))


def changed_field(command: Command) -> None:
    command.fields["size"] = "99"


def more_fields(command: Command) -> None:
    command.fields["before"] = "1"


def changed_body(command: Command) -> None:
    command.body = b"{}"


def changed_code(command: Command) -> None:
    command.code = Code.TANDEM_LOG_SUSPECT
    command.fields |= {"brokerId": "1"}


def reflected(command: Command) -> None:
    command.fields[PROOF] = member_requests._text(member_requests._answer_proof(SECRET, command, command))


def no_base64(command: Command) -> None:
    command.fields[PROOF] = "=§"


@spec("H24")
@pytest.mark.parametrize("change", [changed_field, more_fields, changed_body, changed_code, reflected, no_base64])
def test_request_changed_in_flight_is_refused(broker: Harness, change: Callable[[Command], None]) -> None:
    request = proven(Code.TANDEM_LOG_RECORDS, RANGE, challenge(broker))
    change(request)
    answer = ask(broker, request)
    assert answer.code == NO_PERMISSION
    assert "with a wrong proof" in str(answer.remark)


@spec("H24")
def test_nonce_is_valid_for_one_request_on_its_own_connection(broker: Harness) -> None:
    broker.send("TopicA")
    broker.open(2)
    request = proven(Code.TANDEM_LOG_RECORDS, RANGE, challenge(broker))
    assert ask(broker, request, link=2).code == NO_PERMISSION
    assert ask(broker, request).code == OK
    assert ask(broker, request).code == NO_PERMISSION, "a replayed request"
    assert ask(broker, proven(Code.TANDEM_LOG_RECORDS, RANGE, "")).code == NO_PERMISSION
    assert (
        ask(broker, proven(Code.TANDEM_LOG_RECORDS, RANGE, challenge(broker), b"not known here")).code == NO_PERMISSION
    )


def test_number_of_unused_nonces_is_limited(broker: Harness) -> None:
    broker.send("TopicA")
    nonces = [challenge(broker) for _ in range(NONCES_MAX + 1)]
    assert len(broker.node.links[1].nonces) == NONCES_MAX
    assert ask(broker, proven(Code.TANDEM_LOG_RECORDS, RANGE, nonces[0])).code == NO_PERMISSION
    assert ask(broker, proven(Code.TANDEM_LOG_RECORDS, RANGE, nonces[1])).code == OK


# In a group.


@spec("H24", "F22", "F26")
@pytest.mark.parametrize("secret", [None, SECRET])
def test_replayed_handover_moves_no_offset_back(
    tmp_path: Path, secret: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, secret=secret)
    group.send(group.brokers[0])
    group.brokers[0].commit(2)
    slave = group.let_slave_read()
    slave.commit(5)
    recorded: list[Command] = []
    call = slave.node.kernel.peers.call

    def record(address: str, command: Command, *rest: Any) -> None:
        if command.code == Code.TANDEM_HAND_OFFSETS:
            recorded.append(command)
        call(address, command, *rest)

    monkeypatch.setattr(slave.node.kernel.peers, "call", record)
    master = group.start(0)
    group.pass_time(3_000)
    assert (master.may, slave.may) == ("RW", "")
    assert master.committed() == 5
    master.commit(9)
    (request,) = recorded
    assert (PROOF in request.fields) is (secret is not None)
    unauthenticated = 900
    master.open(unauthenticated)
    answer = ask(master, request, link=unauthenticated)
    assert answer.code == (ResponseCode.SYSTEM_ERROR if secret is None else NO_PERMISSION)
    assert master.committed() == 9
    # Even if it were accepted, the higher offset would win.
    monkeypatch.setattr(master.failover.member, "may_take_offsets", lambda *_: True)
    master.failover.take_offsets(1, 1, {"offsets": {"offsetTable": {"TopicA@group": {"0": 5}}}})
    assert master.committed() == 9


@spec("H24")
def test_unauthenticated_peer_cannot_hand_over_offsets(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.SLAVE_CONSUME, secret=SECRET)
    group.send(group.brokers[0])
    group.brokers[0].commit(1)
    group.let_slave_read()
    master = group.start(0)
    group.apart.add(1)
    group.pass_time(2_000)
    assert master.stage == "awaiting hand-back"
    token = master.failover.member.view.version
    body = dumps_java({"offsets": {"offsetTable": {"TopicA@group": {0: 1_000}}}, "delays": {}})
    answer = master.ask(Code.TANDEM_HAND_OFFSETS, {"from": 1, "token": token}, body)
    assert answer.code == NO_PERMISSION
    assert master.node.offsets.get("TopicA", "group", 0) == 1
    group.apart.clear()
    group.pass_time(4_000)
    assert (master.may, master.committed()) == ("RW", 1)


@spec("H24", "V18")
def test_switch_moves_offsets_with_proofs(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, secret=SECRET)
    group.send(group.brokers[0])
    group.brokers[0].commit(1)
    opaque = group.brokers[0].send_request(Code.TANDEM_SWITCH, {"target": 1})
    group.pass_time(1_000)
    answer = group.brokers[0].answer_to(opaque)
    assert answer is not None
    assert answer.code == OK, answer.remark
    assert group.serving is group.brokers[1]
    assert group.serving.committed() == 1


@spec("H24")
def test_response_without_a_proof_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asking = Harness(tmp_path, keyring=Keyring(lambda: (SECRET,), Random(1)))
    responses: list[Command | None] = []
    nonce = member_requests._text(bytes(32))

    def begin() -> None:
        command = Command(Code.TANDEM_LOG_SUSPECT, fields=dict(REQUESTS[Code.TANDEM_LOG_SUSPECT]))
        asking.node.kernel.schedule.at(
            asking.now.mono_ms,
            lambda now: asking.node.kernel.members.call(
                "10.0.0.9:10911",
                command,
                3_000,
                lambda answer, _: responses.append(answer),
                asking.node.kernel.turn.out,
                now,
            ),
        )
        asking.turn()

    def asked() -> Command:
        """Return the request itself, after its challenge was answered."""
        begin()
        (first,) = asking.take_requests(Code.TANDEM_CHALLENGE, link=link)
        asking.turn([(link, encode_command(first.answer(OK, fields={CHALLENGE: nonce})))])
        (request,) = asking.take_requests(Code.TANDEM_LOG_SUSPECT, link=link)
        return request

    begin()
    (connect,) = [each for each in asking.connects if each.address == "10.0.0.9:10911"]
    link = connect.link
    asking.open(link, connect.kind, connect.address)
    (first,) = asking.take_requests(Code.TANDEM_CHALLENGE, link=link)
    # The peer has no secret, or sends something else than a nonce.
    asking.reply(first, link=link, code=ResponseCode.SYSTEM_ERROR)
    assert responses == [None]
    for proof in ("", "AAAA", "self"):
        request = asked()
        false = request.answer(OK, fields={PROOF: request.fields[PROOF] if proof == "self" else proof})
        asking.turn([(link, encode_command(false))])
    assert responses == [None] * 4
    assert len([line for line in caplog.messages if "does not prove that it knows haSecretFile" in line]) == 1
    request = asked()
    true = asking.node.kernel.members.sealed(request, request.answer(OK))
    asking.turn([(link, encode_command(true))])
    assert responses[-1] is not None
