"""Requests with users: signatures, rights, changes of users and policies, and that nothing passes unchecked."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.features.access.control import AccessControl
from tandemq.broker.features.access.needs import NEEDS, OPEN
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.signature import signed
from tandemq.config.validation import validate
from tandemq.errors import ConfigError
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import SysFlag
from tests.request_fields import pull_fields
from tests.spec import spec
from tests.unit.broker.harness import CLIENT, Harness, send_fields

ROOT = Credentials("root", "root-key")
ALICE = Credentials("alice", "alice-key")
INIT = json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key})


class Guarded(Harness):
    """A broker with access control."""

    def __init__(self, path: Path, **changes: Any) -> None:
        given: dict[str, Any] = {
            "authentication_enable": True,
            "authorization_enable": True,
            "init_user": INIT,
        } | changes
        super().__init__(path, **given)

    def as_user(
        self, user: Credentials | None, code: int, fields: Mapping[str, object] | None = None, body: bytes = b""
    ) -> Command:
        texts = {name: str(value) for name, value in (fields or {}).items()}
        return self.ask(code, signed(texts, body, user) if user is not None else texts, body)

    def create(self, user: Credentials, kind: str = "Normal") -> None:
        body = json.dumps({"password": user.secret_key, "userType": kind}).encode()
        assert self.as_user(ROOT, Code.AUTH_CREATE_USER, {"username": user.access_key}, body).code == 0

    def allow(self, user: Credentials, resource: str, *actions: str, decision: str = "Allow", **more: Any) -> Command:
        entry = {"resource": resource, "actions": list(actions), "decision": decision} | more
        body = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
        return self.as_user(ROOT, Code.AUTH_CREATE_ACL, {"subject": f"User:{user.access_key}"}, body)

    def send_as(self, user: Credentials | None, topic: str = "T") -> int:
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
        return self.as_user(user, Code.SEND_MESSAGE_V2, fields, b"body").code


@pytest.fixture
def broker(tmp_path: Path) -> Guarded:
    return Guarded(tmp_path)


@spec("A01")
def test_every_request_of_a_feature_says_what_it_needs(broker: Guarded) -> None:
    bound = set(broker.node.features.requests)
    assert bound == set(map(int, NEEDS)) | set(map(int, OPEN))


@spec("A01")
def test_no_request_passes_for_a_user_without_policies(broker: Guarded) -> None:
    broker.create(ALICE)
    free = {Code.CHECK_CLIENT_CONFIG, *OPEN}
    body = json.dumps(
        {
            "consumerGroup": "g",
            "topic": "T",
            "groupName": "g",
            "mqSet": [{"topic": "T"}],
            "acks": [{"c": "g", "t": "T"}],
            "topicConfigList": [{"topicName": "T"}],
            "topics": ["T"],
            "groupConfigList": [{"groupName": "g"}],
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T"}]}],
        }
    ).encode()
    names = (
        "topic",
        "b",
        "consumerGroup",
        "group",
        "groupName",
        "compareGroup",
        "srcGroup",
        "destGroup",
        "producerGroup",
    )
    for code in broker.node.features.requests:
        if code not in free:
            answer = broker.as_user(ALICE, code, dict.fromkeys(names, "x"), body)
            assert answer.code == ResponseCode.NO_PERMISSION, Code(code)


def test_a_super_user_may_do_everything(broker: Guarded) -> None:
    assert broker.send_as(ROOT) == 0
    assert broker.as_user(ROOT, Code.GET_BROKER_CONFIG).code == 0


@spec("A02")
def test_refusals_do_not_tell_whether_a_user_exists(broker: Guarded) -> None:
    broker.create(ALICE)
    wrong = [Credentials("alice", "wrong"), Credentials("nobody", "x"), Credentials("", "x"), None]
    remarks = {broker.as_user(user, Code.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).remark for user in wrong}
    broker.as_user(ROOT, Code.AUTH_UPDATE_USER, {"username": "alice"}, b'{"userStatus":"disable"}')
    remarks.add(broker.as_user(ALICE, Code.GET_MAX_OFFSET, {"topic": "T", "queueId": 0}).remark)
    assert remarks == {NOT_AUTHENTICATED}


@spec("A01")
def test_changed_fields_and_bodies_break_the_signature(broker: Guarded) -> None:
    fields = signed({"topic": "T", "queueId": "0"}, b"", ROOT)
    assert broker.ask(Code.GET_MAX_OFFSET, fields | {"queueId": "1"}).code == ResponseCode.NO_PERMISSION
    assert broker.ask(Code.GET_MAX_OFFSET, fields | {"x": "y"}).code == ResponseCode.NO_PERMISSION
    body = b'{"password":"p"}'
    fields = signed({"username": "mallory"}, body, ROOT)
    assert broker.ask(Code.AUTH_CREATE_USER, fields, body.replace(b"p", b"q")).code == ResponseCode.NO_PERMISSION


def test_sends_need_pub_on_their_topic(broker: Guarded) -> None:
    broker.create(ALICE)
    assert broker.send_as(ALICE) == ResponseCode.NO_PERMISSION
    assert broker.allow(ALICE, "Topic:T*", "Pub").code == 0
    assert broker.send_as(ALICE) == 0
    assert broker.send_as(ALICE, "Other") == ResponseCode.NO_PERMISSION
    assert broker.allow(ALICE, "Topic:T", "Pub", decision="Deny").code == 0
    assert broker.send_as(ALICE) == ResponseCode.NO_PERMISSION
    assert broker.send_as(ALICE, "T2") == 0


def test_many_sends_in_one_read_are_checked_one_by_one(broker: Guarded) -> None:
    broker.create(ALICE)
    broker.allow(ALICE, "Topic:T", "Pub")
    broker.send_as(ROOT, "T")
    broker.send_as(ROOT, "Other")
    frames = []
    for number, topic in enumerate(["T", "Other", "T", "T", "Other"]):
        fields = {
            "a": "p",
            "b": topic,
            "c": "TBW102",
            "d": "4",
            "e": "0",
            "f": "0",
            "g": "0",
            "h": "0",
            "i": "",
            "j": "0",
        }
        command = Command(Code.SEND_MESSAGE_V2, 100 + number, fields=signed(fields, b"x", ALICE), body=b"x")
        frames.append(encode_command(command))
    broker.turn([(CLIENT, b"".join(frames))])
    codes = {answer.opaque: answer.code for answer in broker.inbox[CLIENT] if answer.opaque >= 100}
    assert codes == {100: 0, 101: 16, 102: 0, 103: 0, 104: 16}


def test_pulls_need_sub_on_topic_and_group(broker: Guarded) -> None:
    broker.create(ALICE)
    broker.send_as(ROOT)
    pull = pull_fields("T", 0)
    assert broker.as_user(ALICE, Code.PULL_MESSAGE, dict(pull)).code == ResponseCode.NO_PERMISSION
    broker.allow(ALICE, "Topic:T", "Sub")
    assert broker.as_user(ALICE, Code.PULL_MESSAGE, dict(pull)).code == ResponseCode.NO_PERMISSION
    broker.allow(ALICE, f"Group:{pull['consumerGroup']}", "Sub")
    assert broker.as_user(ALICE, Code.PULL_MESSAGE, dict(pull)).code == 0


def test_source_addresses_count(broker: Guarded) -> None:
    broker.create(ALICE)
    broker.allow(ALICE, "Topic:T", "Pub", sourceIps=["192.168.0.0/16"])
    assert broker.send_as(ALICE) == ResponseCode.NO_PERMISSION
    broker.allow(ALICE, "Topic:T", "Pub", sourceIps=["10.0.0.1"])
    assert broker.send_as(ALICE) == 0


def test_acknowledgements_of_retried_pops_need_the_topic_and_the_group(broker: Guarded) -> None:
    broker.create(ALICE)
    broker.allow(ALICE, "Topic:T", "Sub")
    broker.allow(ALICE, "Group:g", "Sub")
    for topic in ("T", "%RETRY%g_T", "%RETRY%g+T"):
        fields = {"consumerGroup": "g", "topic": topic, "queueId": 0, "extraInfo": "0 1 2 0 0 b 0 0", "offset": 0}
        answer = broker.as_user(ALICE, Code.ACK_MESSAGE, fields)
        assert answer.code != ResponseCode.NO_PERMISSION, answer.remark
    fields = {"consumerGroup": "g", "topic": "%RETRY%g_Other", "queueId": 0, "extraInfo": "x", "offset": 0}
    assert broker.as_user(ALICE, Code.ACK_MESSAGE, fields).code == ResponseCode.NO_PERMISSION


def test_users_are_managed(broker: Guarded) -> None:
    broker.create(ALICE)
    again = broker.as_user(ROOT, Code.AUTH_CREATE_USER, {"username": "alice"}, b'{"password":"p"}')
    assert (again.code, again.remark) == (16, "The user is existed")
    assert broker.as_user(ROOT, Code.AUTH_CREATE_USER, {"username": " "}, b'{"password":"p"}').code == 29
    assert broker.as_user(ROOT, Code.AUTH_CREATE_USER, {"username": "bob"}, b"{}").code == 16
    shown = json.loads(broker.as_user(ROOT, Code.AUTH_GET_USER, {"username": "alice"}).body)
    assert shown == {"password": "alice-key", "userStatus": "enable", "userType": "Normal", "username": "alice"}
    listed = json.loads(broker.as_user(ROOT, Code.AUTH_LIST_USER, {"filter": "o"}).body)
    assert [user["username"] for user in listed] == ["root"]
    assert broker.as_user(ROOT, Code.AUTH_GET_USER, {"username": "nobody"}).body == b""
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": "alice"}).code == 0
    assert broker.as_user(ROOT, Code.AUTH_DELETE_USER, {"username": "alice"}).code == 0
    assert broker.send_as(ALICE) == 16


def test_only_super_users_make_super_users_and_see_passwords(broker: Guarded) -> None:
    broker.create(ALICE)
    broker.allow(ALICE, "Cluster:*", "Get", "Update")
    create = broker.as_user(ALICE, Code.AUTH_CREATE_USER, {"username": "eve"}, b'{"password":"p","userType":"Super"}')
    assert create.code == 16
    assert broker.as_user(ALICE, Code.AUTH_UPDATE_USER, {"username": "root"}, b'{"password":"p"}').code == 16
    assert broker.as_user(ALICE, Code.AUTH_UPDATE_USER, {"username": "alice"}, b'{"userType":"Super"}').code == 16
    assert broker.as_user(ALICE, Code.AUTH_DELETE_USER, {"username": "root"}).code == 16
    assert "password" not in json.loads(broker.as_user(ALICE, Code.AUTH_GET_USER, {"username": "root"}).body)
    assert broker.as_user(ALICE, Code.TANDEM_ACCESS).code == 16


def test_policies_are_managed(broker: Guarded) -> None:
    subject = {"subject": "User:alice"}
    assert broker.as_user(ROOT, Code.AUTH_GET_ACL, subject).code == ResponseCode.NO_PERMISSION
    broker.create(ALICE)
    without = broker.as_user(ROOT, Code.AUTH_GET_ACL, subject)
    assert (without.code, without.body) == (ResponseCode.SUCCESS, b"")
    broker.allow(ALICE, "Topic:T", "Pub", sourceIps=["10.0.0.0/8"])
    broker.allow(ALICE, "Topic:U", "Sub")
    shown = json.loads(broker.as_user(ROOT, Code.AUTH_GET_ACL, subject).body)
    assert shown == {
        "policies": [
            {
                "entries": [
                    {"actions": ["Pub"], "decision": "Allow", "resource": "Topic:T", "sourceIps": ["10.0.0.0/8"]},
                    {"actions": ["Sub"], "decision": "Allow", "resource": "Topic:U"},
                ],
                "policyType": "Custom",
            }
        ],
        "subject": "User:alice",
    }
    listed = json.loads(broker.as_user(ROOT, Code.AUTH_LIST_ACL, {"resourceFilter": "U"}).body)
    assert [entry["resource"] for entry in listed[0]["policies"][0]["entries"]] == ["Topic:U"]
    broker.as_user(ROOT, Code.AUTH_DELETE_ACL, subject | {"resource": "Topic:T"})
    assert broker.send_as(ALICE) == 16
    broker.as_user(ROOT, Code.AUTH_DELETE_ACL, subject)
    assert broker.as_user(ROOT, Code.AUTH_DELETE_ACL, subject).code == 16
    assert broker.allow(Credentials("nobody", ""), "Topic:T", "Pub").code == 16
    assert broker.allow(ALICE, "Tpic:T", "Pub").code == 16


@spec("A03")
def test_users_and_policies_survive_a_restart(tmp_path: Path) -> None:
    broker = Guarded(tmp_path)
    broker.create(ALICE)
    broker.allow(ALICE, "Topic:T", "Pub")
    broker.node.close()
    file = tmp_path / "config" / "accessControl.json"
    assert file.stat().st_mode & 0o077 == 0
    assert Guarded(tmp_path).send_as(ALICE) == 0


def test_access_control_can_be_switched_on_while_clients_send(tmp_path: Path) -> None:
    broker = Guarded(
        tmp_path, authentication_enable=False, authorization_enable=False, config_black_list=("configBlackList",)
    )
    assert broker.send_as(None) == 0
    assert broker.send_as(ALICE) == 0, "signatures of clients that are ahead are ignored"
    broker.create(ALICE)
    broker.allow(ALICE, "Topic:T", "Pub")
    changes = b"authenticationEnabled=true\nauthorizationEnabled=true"
    assert broker.as_user(ROOT, Code.UPDATE_BROKER_CONFIG, body=changes).code == 0
    assert broker.send_as(None) == 16
    assert broker.send_as(ALICE) == 0


@spec("A02")
def test_secrets_of_the_settings_are_not_shown(broker: Guarded) -> None:
    shown = broker.as_user(ROOT, Code.GET_BROKER_CONFIG).body.decode()
    assert ROOT.secret_key not in shown and "initAuthenticationUser=***" in shown
    assert ROOT.secret_key not in repr(broker.config)


def test_settings_are_checked(broker: Guarded) -> None:
    for change in (
        {"authentication_enable": False},
        {"init_user": "admin"},
        {"inner_credentials": '{"accessKey":"a"}'},
    ):
        with pytest.raises(ConfigError):
            validate(replace(broker.config, **change))


@pytest.mark.parametrize(
    ("address", "is_checked", "is_open"),
    [("127.0.0.1", False, False), ("0.0.0.0", False, True), ("0.0.0.0", True, False)],
)
def test_status_says_whether_other_machines_may_do_everything(
    address: str, is_checked: bool, is_open: bool, tmp_path: Path
) -> None:
    broker = Guarded(tmp_path, bind_address=address, authentication_enable=is_checked, authorization_enable=is_checked)
    status = broker.as_user(ROOT, Code.TANDEM_FAILOVER_STATUS)
    assert json.loads(status.body)["isOpen"] is is_open


def test_words_of_users_and_policies_are_taken_in_upper_and_lower_case(broker: Guarded) -> None:
    broker.create(ALICE, "NORMAL")
    assert broker.allow(ALICE, "Topic:T", "PUB", decision="ALLOW").code == ResponseCode.SUCCESS
    assert broker.send_as(ALICE) == ResponseCode.SUCCESS
    wrong = broker.allow(ALICE, "Topic:T", "Pub", decision="Perhaps")
    assert wrong.code != ResponseCode.SUCCESS and "Allow, Deny" in (wrong.remark or "")
    subject = {"subject": "User:alice"}
    deny = {"policies": [{"policyType": "custom", "entries": [{"resource": "Topic:T", "decision": "deny"}]}]}
    deny["policies"][0]["entries"][0]["actions"] = ["Pub"]  # type: ignore[index]
    assert broker.as_user(ROOT, Code.AUTH_UPDATE_ACL, subject, json.dumps(deny).encode()).code == ResponseCode.SUCCESS
    assert broker.send_as(ALICE) == ResponseCode.NO_PERMISSION
    deleted = subject | {"policyType": "CUSTOM", "resource": "Topic:T"}
    assert broker.as_user(ROOT, Code.AUTH_DELETE_ACL, deleted).code == ResponseCode.SUCCESS
    assert broker.as_user(ROOT, Code.AUTH_GET_ACL, subject).body == b""
    assert broker.as_user(ROOT, Code.AUTH_DELETE_ACL, subject | {"policyType": "Other"}).code != ResponseCode.SUCCESS


@pytest.mark.parametrize("stated", [{}, {"topic": "Mine"}])
def test_end_of_a_transaction_needs_the_topic_of_its_half_message(broker: Guarded, stated: dict[str, object]) -> None:
    bob = Credentials("bob", "bob-key")
    for user, topic in ((ALICE, "T"), (bob, "Mine")):
        broker.create(user)
        broker.allow(user, f"Topic:{topic}", "Pub")
    fields = send_fields("T", 0, {"TRAN_MSG": "true", "PGROUP": "p", "UNIQ_KEY": "U"}) | {
        "f": SysFlag.TRANSACTION_PREPARED
    }
    half = broker.as_user(ALICE, Code.SEND_MESSAGE_V2, fields, b"body")
    assert half.code == 0, half.remark
    end = {
        "producerGroup": "p",
        "tranStateTableOffset": half.fields["queueOffset"],
        "commitLogOffset": int(half.fields["msgId"][16:], 16),
        "commitOrRollback": SysFlag.TRANSACTION_COMMIT,
        "fromTransactionCheck": "false",
        "msgId": "U",
        "transactionId": "U",
    } | stated
    refused = broker.as_user(bob, Code.END_TRANSACTION, end)
    assert (refused.code, "Topic:T" in str(refused.remark)) == (ResponseCode.NO_PERMISSION, True)
    assert ("T", 0) not in broker.node.store.queues
    assert broker.as_user(ALICE, Code.END_TRANSACTION, end).code == 0
    assert broker.node.store.queues["T", 0].max_offset == 1


@pytest.mark.parametrize("stated", [{}, {"originTopic": "Mine"}, {"originTopic": "T"}])
@pytest.mark.parametrize("delay_level", [-1, 1])
def test_message_that_is_sent_back_needs_the_topic_in_which_it_lies(
    broker: Guarded, stated: dict[str, object], delay_level: int
) -> None:
    """A consumer group's dead letters must not hold messages of topics that its user may not read."""
    bob = Credentials("bob", "bob-key")
    for user, topic in ((ALICE, "T"), (bob, "Mine")):
        broker.create(user)
        broker.allow(user, f"Topic:{topic}", "Pub", "Sub")
        broker.allow(user, "Group:g", "Sub")
    sent = broker.as_user(ALICE, Code.SEND_MESSAGE_V2, send_fields("T", 0, {"UNIQ_KEY": "U"}), b"the secret")
    assert sent.code == 0, sent.remark
    fields = {"offset": int(sent.fields["msgId"][16:], 16), "group": "g", "delayLevel": delay_level} | stated
    refused = broker.as_user(bob, Code.CONSUMER_SEND_MSG_BACK, fields)
    assert (refused.code, "Topic:T" in str(refused.remark)) == (ResponseCode.NO_PERMISSION, True)
    assert {topic for topic, _ in broker.node.store.queues} == {"T"}
    found = broker.as_user(ALICE, Code.CONSUMER_SEND_MSG_BACK, fields)
    assert (found.code == ResponseCode.SUCCESS) == (stated.get("originTopic") != "Mine"), found.remark


def test_a_refused_send_is_counted_once(broker: Guarded) -> None:
    source = broker.node.features.find(AccessControl).sources()[0]

    def refused() -> float:
        (batch,) = source(broker.now)
        assert batch is not None
        return batch.values["authentication",]

    before = refused()
    assert broker.send_as(ALICE) == ResponseCode.NO_PERMISSION
    assert refused() == before + 1
