"""Users and policies at the other members of a group: they hold from the instant that a member may be used."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tandemq.codec.remoting.signature import signed
from tandemq.coordination.registry.records import Mode
from tandemq.model.access import Credentials
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tests.request_fields import topic_fields
from tests.spec import spec
from tests.unit.broker.ha.group import Group, Member
from tests.unit.broker.roles.registry_group import RegistryGroup

TOPIC = "T"
ROOT = Credentials("root", "root-key")
ALICE = Credentials("alice", "alice-key")
SETTINGS: dict[str, Any] = {
    "authentication_enable": True,
    "authorization_enable": True,
    "init_user": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
}
SECRET = b"of the members"


def ask(
    broker: Member, user: Credentials, code: RequestCode, fields: Mapping[str, object], body: bytes = b""
) -> Command:
    return broker.ask(code, signed({name: str(value) for name, value in fields.items()}, body, user), body)


def send_as(broker: Member, user: Credentials) -> int:
    fields = {"a": "p", "b": TOPIC, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
    return ask(broker, user, RequestCode.SEND_MESSAGE_V2, fields, b"body").code


def give(broker: Member, user: Credentials) -> None:
    """Create a user that may send to the topic."""
    body = json.dumps({"password": user.secret_key, "userType": "Normal"}).encode()
    assert ask(broker, ROOT, RequestCode.AUTH_CREATE_USER, {"username": user.access_key}, body).code == 0
    entry = {"resource": f"Topic:{TOPIC}", "actions": ["Pub"], "decision": "Allow"}
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
    answer = ask(broker, ROOT, RequestCode.AUTH_CREATE_ACL, {"subject": f"User:{user.access_key}"}, body)
    assert answer.code == 0, answer.remark


def failed_over(group: RegistryGroup) -> Member:
    """Kill the active member, and return the next one the moment that it may be written."""
    number = next(number for number, broker in group.brokers.items() if broker is group.serving)
    group.kill(number)
    for _ in range(2_000):
        group.pass_time(20)
        for broker in group.brokers.values():
            if "W" in broker.may:
                return broker
    raise AssertionError("no member is active")


@pytest.fixture
def group(tmp_path: Path) -> RegistryGroup:
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3, secret=SECRET, **SETTINGS)
    assert ask(group.serving, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 1)).code == 0
    return group


@spec("A03")
def test_new_master_knows_users_and_policies_at_once(group: RegistryGroup) -> None:
    give(group.serving, ALICE)
    assert send_as(group.serving, ALICE) == ResponseCode.SUCCESS
    after = failed_over(group)
    assert send_as(after, ALICE) == ResponseCode.SUCCESS
    assert send_as(after, Credentials(ALICE.access_key, "wrong")) == ResponseCode.NO_PERMISSION


@spec("A03")
def test_new_master_does_not_bring_back_a_user_that_was_deleted(group: RegistryGroup) -> None:
    give(group.serving, ALICE)
    group.pass_time(2_000)
    answer = ask(group.serving, ROOT, RequestCode.AUTH_DELETE_USER, {"username": ALICE.access_key})
    assert answer.code == ResponseCode.SUCCESS
    assert send_as(failed_over(group), ALICE) == ResponseCode.NO_PERMISSION


def test_new_master_has_accounts_and_white_addresses_of_acl_1(tmp_path: Path) -> None:
    group = RegistryGroup(tmp_path, Mode.ELECT, members=3, secret=SECRET, **SETTINGS, acl_enable=True)
    assert ask(group.serving, ROOT, RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(TOPIC, 1)).code == 0
    fields = {"accessKey": "web-app", "secretKey": "web-key", "topicPerms": f"{TOPIC}=PUB"}
    assert ask(group.serving, ROOT, RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, fields).code == 0
    white = {"globalWhiteAddrs": "10.0.0.*"}
    assert ask(group.serving, ROOT, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, white).code == 0
    before = group.serving
    after = failed_over(group)
    assert after is not before
    version = after.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).fields["version"]
    assert json.loads(version)["counter"] == 2
    taken = {"globalWhiteAddrs": ""}
    assert ask(after, ROOT, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, taken).code == 0
    assert after.ask(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {}).code == ResponseCode.NO_PERMISSION
    assert send_as(after, Credentials("web-app", "web-key")) == ResponseCode.SUCCESS


def test_slave_of_a_static_master_copies_users_and_policies(tmp_path: Path) -> None:
    group = Group(tmp_path, secrets={0: SECRET, 1: SECRET}, **SETTINGS)
    for slave in group.slaves:
        group.tell_master(slave)
    give(group.master, ALICE)
    group.pass_time(20_000)
    users = ask(group.slave, ROOT, RequestCode.AUTH_LIST_USER, {})
    assert [user["username"] for user in json.loads(users.body)] == ["alice", "root"]
