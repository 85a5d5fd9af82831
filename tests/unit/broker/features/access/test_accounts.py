"""Accounts of ACL 1.0 at a broker: who may do what, changes of the files, and the admin codes of mqadmin 4.9."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tandemq.boundary import LinkKind
from tandemq.codec.remoting.signature import signed
from tandemq.config import file_accounts
from tandemq.config.account_files import AccountFile, parse_account_file
from tandemq.config.file_accounts import CHECK_MS
from tandemq.errors import ConfigError
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TRACE_TOPIC
from tests.spec import spec
from tests.unit.broker.harness import Harness

PATH, OTHER = "/conf/plain_acl.yml", "/conf/acl/more.yml"
ADMIN = Credentials("admin-1", "admin-key")
SHOP = Credentials("shop-app", "shop-key")
HOME_LINK, WHITE_LINK = 7, 8
FILE = """\
globalWhiteRemoteAddresses:
- 10.9.9.*
accounts:
- accessKey: admin-1
  secretKey: admin-key
  admin: true
- accessKey: shop-app
  secretKey: shop-key
  whiteRemoteAddress: 10.1.1.1
  topicPerms:
  - Orders=PUB
  - Stock=SUB
  groupPerms:
  - stock-readers=SUB
"""


class Files:
    """Files of accounts in memory."""

    def __init__(self, **contents: str) -> None:
        self.contents: dict[str, bytes | ConfigError] = {}
        self.error: ConfigError | None = None
        self._known: dict[str, bytes | ConfigError] | None = None
        for path, text in contents.items():
            self.put(path, text)

    def put(self, path: str, text: str) -> None:
        self.contents[path] = text.encode()

    def read(self) -> Mapping[str, bytes | ConfigError] | None:
        if self.error is not None:
            raise self.error
        if self.contents == self._known:
            return None
        self._known = dict(self.contents)
        return self._known


class Broker(Harness):
    """A broker with files of accounts."""

    def __init__(self, path: Path, files: Files, **changes: Any) -> None:
        super().__init__(path, account_files=files, **({"acl_enable": True} | changes))
        self.open(HOME_LINK, peer="10.1.1.1:50000")
        self.open(WHITE_LINK, peer="10.9.9.200:50000")

    def signed(
        self, user: Credentials, code: int, fields: Mapping[str, object] | None = None, body: bytes = b"", **more: Any
    ) -> Command:
        return self.ask(
            code, signed({name: str(value) for name, value in (fields or {}).items()}, body, user), body, **more
        )

    def sends(self, user: Credentials, topic: str) -> bool:
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 0, "h": 0, "i": "", "j": 0}
        return self.signed(user, Code.SEND_MESSAGE_V2, fields, b"body").code == 0

    def reads(self, user: Credentials, topic: str, group: str) -> bool:
        fields = {"topic": topic, "consumerGroup": group, "queueId": 0}
        return self.signed(user, Code.QUERY_CONSUMER_OFFSET, fields).code != ResponseCode.NO_PERMISSION

    def version(self) -> dict[str, Any]:
        answer = self.signed(ADMIN, Code.GET_BROKER_CLUSTER_ACL_INFO)
        found: dict[str, Any] = json.loads(answer.fields["allAclFileVersion"])
        assert json.loads(answer.fields["version"]) == found["config/accessControl.json"]
        return found


@pytest.fixture
def files() -> Files:
    found = Files()
    found.put(PATH, FILE)
    return found


@pytest.fixture
def broker(tmp_path: Path, files: Files) -> Broker:
    return Broker(tmp_path, files)


def change(broker: Broker, user: Credentials = ADMIN, /, **fields: object) -> Command:
    return broker.signed(user, Code.UPDATE_AND_CREATE_ACL_CONFIG, fields)


# What accounts may do.


@spec("A04")
def test_an_account_may_do_what_its_lists_have(broker: Broker) -> None:
    assert broker.sends(SHOP, "Orders") and not broker.sends(SHOP, "Stock") and not broker.sends(SHOP, "Other")
    assert broker.reads(SHOP, "Stock", "stock-readers")
    assert not broker.reads(SHOP, "Stock", "others") and not broker.reads(SHOP, "Orders", "stock-readers")
    assert broker.sends(SHOP, TRACE_TOPIC)
    assert broker.signed(SHOP, Code.GET_BROKER_CONFIG).code == ResponseCode.NO_PERMISSION


def test_an_admin_may_do_everything(broker: Broker) -> None:
    assert broker.sends(ADMIN, "Other")
    assert broker.signed(ADMIN, Code.GET_BROKER_CONFIG).code == 0


def test_refusals_do_not_tell_whether_an_account_exists(broker: Broker) -> None:
    wrong = [Credentials("shop-app", "wrong"), Credentials("nobody-1", "wrong"), Credentials("", "wrong")]
    assert {broker.signed(user, Code.GET_BROKER_CONFIG).remark for user in wrong} == {NOT_AUTHENTICATED}
    assert broker.ask(Code.GET_BROKER_CONFIG).remark == NOT_AUTHENTICATED


@spec("A04")
@pytest.mark.parametrize("code", [320, 324, 325])
def test_gaps_of_java_are_closed_for_sends(broker: Broker, code: int) -> None:
    fields = {
        "a": "p",
        "b": "Other",
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 0,
        "h": 0,
        "i": "",
        "j": 0,
        "topic": "Other",
    }
    assert broker.signed(SHOP, code, fields, b"body").code == ResponseCode.NO_PERMISSION


@spec("A04")
@pytest.mark.parametrize("code", [14, 37, 41, 42, 50, 51, 52, 53, 200, 361])
def test_gaps_of_java_are_closed_for_other_requests(broker: Broker, code: int) -> None:
    body = json.dumps({"consumerGroup": "g", "groupName": "g", "mqSet": [{"topic": "Other"}]}).encode()
    fields = {
        "topic": "Other",
        "consumerGroup": "g",
        "queueId": 0,
        "producerGroup": "p",
        "accessKey": "evil-app",
        "secretKey": "evil-key",
        "admin": "true",
        "globalWhiteAddrs": "*",
    }
    assert broker.signed(SHOP, code, fields, body).code == ResponseCode.NO_PERMISSION


@spec("A02")
def test_keys_of_all_accounts_are_shown_to_nobody(broker: Broker) -> None:
    answer = broker.signed(ADMIN, 54)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED and "tandemq acl list" in (answer.remark or "")


def test_requests_from_global_white_addresses_need_no_account(broker: Broker) -> None:
    assert broker.ask(Code.GET_BROKER_CONFIG, link=WHITE_LINK).code == 0
    assert broker.ask(Code.GET_BROKER_CONFIG, link=HOME_LINK).code == ResponseCode.NO_PERMISSION


def test_an_account_needs_no_signature_from_its_white_address(broker: Broker) -> None:
    fields = {"topic": "Any", "queueId": 0, "AccessKey": "shop-app"}
    assert broker.ask(Code.GET_MAX_OFFSET, fields, link=HOME_LINK).code == 0
    assert (
        broker.ask(Code.GET_MAX_OFFSET, fields | {"AccessKey": "nobody-1"}, link=HOME_LINK).remark == NOT_AUTHENTICATED
    )
    assert broker.ask(Code.GET_MAX_OFFSET, fields).remark == NOT_AUTHENTICATED
    seen = broker.ask(Code.AUTH_GET_USER, {"username": "admin-1", "AccessKey": "shop-app"}, link=HOME_LINK)
    assert b"admin-key" not in seen.body


def test_white_addresses_count_only_with_acl_enable(tmp_path: Path, files: Files) -> None:
    init = json.dumps({"username": "admin-1", "password": "admin-key"})
    settings = {"acl_enable": False, "authentication_enable": True, "authorization_enable": True, "init_user": init}
    broker = Broker(tmp_path, Files(), **settings)
    assert broker.ask(Code.GET_BROKER_CONFIG, link=WHITE_LINK).code == ResponseCode.NO_PERMISSION
    for code, failed in ((50, 209), (51, 210), (53, 211)):
        answer = broker.signed(ADMIN, code, {"accessKey": "shop-app", "secretKey": "shop-key", "globalWhiteAddrs": "*"})
        assert (answer.code, "aclEnable is false" in (answer.remark or "")) == (failed, True)


def test_users_and_accounts_are_listed_together(broker: Broker) -> None:
    users = broker.signed(ADMIN, Code.AUTH_LIST_USER)
    assert {user["username"] for user in json.loads(users.body)} == {"admin-1", "shop-app"}
    acls = json.loads(broker.signed(ADMIN, Code.AUTH_LIST_ACL).body)
    assert [acl["subject"] for acl in acls] == ["User:shop-app"]
    one = json.loads(broker.signed(ADMIN, Code.AUTH_GET_ACL, {"subject": "User:shop-app"}).body)
    assert one == acls[0]


# Changes of the files.


def test_changed_files_count_after_the_next_look(broker: Broker, files: Files) -> None:
    files.put(PATH, FILE.replace("Orders=PUB", "Orders=DENY").replace("10.9.9.*", "10.9.8.*"))
    files.put(OTHER, "accounts:\n- accessKey: other-app\n  secretKey: other-key\n  defaultTopicPerm: PUB\n")
    other = Credentials("other-app", "other-key")
    assert broker.sends(SHOP, "Orders") and not broker.sends(other, "Orders")
    broker.pass_time(CHECK_MS)
    assert not broker.sends(SHOP, "Orders") and broker.sends(other, "Orders")
    assert broker.ask(Code.GET_BROKER_CONFIG, link=WHITE_LINK).code == ResponseCode.NO_PERMISSION
    del files.contents[OTHER]
    broker.pass_time(CHECK_MS)
    assert not broker.sends(other, "Orders")


def test_files_are_read_by_a_job_and_never_twice_at_a_time(broker: Broker, files: Files) -> None:
    broker.run_jobs = False
    broker.pass_time(3 * CHECK_MS)
    assert [job.name for job in broker.jobs if job.name == "read accounts"] == ["read accounts"]


def test_only_files_that_have_changed_are_parsed_again(
    broker: Broker, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[bytes] = []

    def parse(data: bytes) -> AccountFile:
        parsed.append(data)
        return parse_account_file(data)

    monkeypatch.setattr(file_accounts, "parse_account_file", parse)
    files.put(OTHER, "accounts:\n- accessKey: more-app\n  secretKey: more-key\n  topicPerms: [Orders=PUB]\n")
    broker.pass_time(CHECK_MS)
    assert parsed == [files.contents[OTHER]]
    assert broker.sends(Credentials("more-app", "more-key"), "Orders") and broker.sends(SHOP, "Orders")


def test_a_malformed_file_keeps_what_it_had_and_is_logged_once(
    broker: Broker, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    files.put(PATH, FILE + "- accessKey: &x evil\n")
    files.put(OTHER, "accounts:\n- accessKey: other-app\n  secretKey: other-key\n  defaultTopicPerm: PUB\n")
    broker.pass_time(CHECK_MS)
    assert broker.sends(SHOP, "Orders") and broker.sends(Credentials("other-app", "other-key"), "Orders")
    files.put(OTHER, "")
    broker.pass_time(3 * CHECK_MS)
    lines = [record.getMessage() for record in caplog.records if PATH in record.getMessage()]
    assert len(lines) == 1 and f"{PATH}: line 15: " in lines[0] and "the accounts are as before" in lines[0]
    assert "-key" not in caplog.text
    files.contents[PATH] = ConfigError("Permission denied")
    broker.pass_time(CHECK_MS)
    assert broker.sends(SHOP, "Orders") and f"{PATH}: Permission denied" in caplog.text
    files.error = ConfigError("aclPath /conf: it is no directory")
    broker.pass_time(CHECK_MS)
    assert broker.sends(SHOP, "Orders") and "aclPath /conf: it is no directory" in caplog.text
    files.error = None
    files.put(PATH, FILE.replace("Orders=PUB", "Orders=DENY"))
    broker.pass_time(CHECK_MS)
    assert not broker.sends(SHOP, "Orders")


def test_a_malformed_file_ends_the_start(tmp_path: Path) -> None:
    files = Files()
    files.put(PATH, "accounts:\n- accessKey: short\n")
    with pytest.raises(ConfigError, match=f"{PATH}: line 2: "):
        Broker(tmp_path, files)


def test_an_account_in_several_files_counts_in_the_first_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = Files()
    files.put(OTHER, "accounts:\n- accessKey: shop-app\n  secretKey: other-key\n  defaultTopicPerm: PUB\n")
    files.put(PATH, FILE)
    broker = Broker(tmp_path, files)
    assert broker.sends(Credentials("shop-app", "other-key"), "Any") and not broker.sends(SHOP, "Orders")
    assert f"{PATH}:7: the account shop-app counts as in {OTHER}:2" in caplog.text


# The admin codes.


def test_an_account_is_created_changed_and_deleted(broker: Broker) -> None:
    app = Credentials("web-app", "web-key")
    assert (
        change(broker, accessKey="web-app", secretKey="web-key", topicPerms="a=PUB,b=SUB", groupPerms="g=SUB").code == 0
    )
    assert broker.sends(app, "a") and not broker.sends(app, "b") and broker.reads(app, "b", "g")
    assert change(broker, accessKey="web-app", secretKey="web-key-2", topicPerms="b=PUB|SUB").code == 0
    after = Credentials("web-app", "web-key-2")
    assert not broker.sends(app, "b") and broker.sends(after, "b") and not broker.sends(after, "a")
    assert broker.reads(after, "b", "g")
    assert broker.signed(ADMIN, Code.DELETE_ACL_CONFIG, {"accessKey": "web-app"}).code == 0
    assert not broker.sends(after, "b")
    assert broker.signed(ADMIN, Code.DELETE_ACL_CONFIG, {"accessKey": "web-app"}).code == 210
    assert broker.version()["config/accessControl.json"]["counter"] == 3


def test_white_addresses_of_an_account_are_given_and_taken(broker: Broker) -> None:
    assert change(broker, accessKey="web-app", secretKey="web-key", whiteRemoteAddress="10.1.1.{1,2}").code == 0
    fields = {"topic": "Any", "queueId": 0, "AccessKey": "web-app"}
    assert broker.ask(Code.GET_MAX_OFFSET, fields, link=HOME_LINK).code == 0
    assert broker.signed(ADMIN, Code.AUTH_UPDATE_USER, {"username": "web-app"}, b'{"password":"new-key"}').code == 0
    assert broker.ask(Code.GET_MAX_OFFSET, fields, link=HOME_LINK).code == 0
    assert change(broker, accessKey="web-app", secretKey="web-key", whiteRemoteAddress="").code == 0
    assert broker.ask(Code.GET_MAX_OFFSET, fields, link=HOME_LINK).remark == NOT_AUTHENTICATED


@pytest.mark.parametrize(
    "fields",
    [
        {"accessKey": "short", "secretKey": "web-key"},
        {"accessKey": "web-app", "secretKey": "short"},
        {"accessKey": "web-app"},
        {"accessKey": "tandemq-member-1", "secretKey": "web-key"},
        {"accessKey": "web-app", "secretKey": "web-key", "topicPerms": "a"},
        {"accessKey": "web-app", "secretKey": "web-key", "topicPerms": "a=PUBB"},
        {"accessKey": "web-app", "secretKey": "web-key", "topicPerms": "a*=PUB"},
        {"accessKey": "web-app", "secretKey": "web-key", "defaultTopicPerm": "ALL"},
        {"accessKey": "web-app", "secretKey": "web-key", "whiteRemoteAddress": "10.0.0"},
    ],
)
def test_an_invalid_account_is_refused_with_209(broker: Broker, fields: dict[str, str]) -> None:
    answer = change(broker, **fields)
    assert answer.code == 209 and answer.remark
    assert "web-app" not in broker.signed(ADMIN, Code.AUTH_LIST_USER).body.decode()


def test_a_changed_account_of_a_file_counts_in_the_table_and_is_deleted_in_the_file(
    broker: Broker, files: Files
) -> None:
    answer = broker.signed(ADMIN, Code.DELETE_ACL_CONFIG, {"accessKey": "shop-app"})
    assert answer.code == 210 and f"{PATH}:7" in (answer.remark or "")
    assert change(broker, accessKey="shop-app", secretKey="shop-key", topicPerms="Returns=PUB").code == 0
    assert broker.sends(SHOP, "Returns") and not broker.sends(SHOP, "Orders") and broker.reads(SHOP, "x", "x") is False
    files.put(PATH, FILE.replace("Orders=PUB", "Orders=PUB|SUB"))
    broker.pass_time(CHECK_MS)
    assert not broker.sends(SHOP, "Orders")
    assert broker.signed(ADMIN, Code.DELETE_ACL_CONFIG, {"accessKey": "shop-app"}).code == 210
    files.put(PATH, FILE.replace("shop-app", "shop-old"))
    broker.pass_time(CHECK_MS)
    assert broker.signed(ADMIN, Code.DELETE_ACL_CONFIG, {"accessKey": "shop-app"}).code == 0
    assert not broker.sends(SHOP, "Returns")


def test_users_and_policies_of_accounts_are_changed_by_the_requests_of_acl_2(broker: Broker) -> None:
    entry = {"resource": "Topic:Returns", "actions": ["Pub"], "decision": "Allow"}
    body = json.dumps({"policies": [{"policyType": "Custom", "entries": [entry]}]}).encode()
    assert broker.signed(ADMIN, Code.AUTH_UPDATE_ACL, {"subject": "User:shop-app"}, body).code == 0
    assert broker.sends(SHOP, "Returns") and broker.sends(SHOP, "Orders")
    fields = {"subject": "User:shop-app", "resource": "Topic:Orders"}
    assert broker.signed(ADMIN, Code.AUTH_DELETE_ACL, fields).code == 0
    assert broker.sends(SHOP, "Returns") and not broker.sends(SHOP, "Orders")
    assert broker.signed(ADMIN, Code.AUTH_DELETE_USER, {"username": "shop-app"}).code == ResponseCode.NO_PERMISSION
    assert broker.signed(ADMIN, Code.AUTH_UPDATE_USER, {"username": "shop-app"}, b'{"userStatus":"disable"}').code == 0
    assert not broker.sends(SHOP, "Returns")


def test_an_account_of_a_file_can_be_created_as_a_user(broker: Broker, files: Files) -> None:
    body = b'{"password":"shop-key","userType":"Normal"}'
    assert broker.signed(ADMIN, Code.AUTH_CREATE_USER, {"username": "shop-app"}, body).code == 0
    assert broker.sends(SHOP, "Orders")
    assert (
        broker.signed(ADMIN, Code.AUTH_CREATE_USER, {"username": "shop-app"}, body).code == ResponseCode.NO_PERMISSION
    )
    del files.contents[PATH]
    files.put(OTHER, "accounts:\n- accessKey: admin-1\n  secretKey: admin-key\n  admin: true\n")
    broker.pass_time(CHECK_MS)
    assert broker.sends(SHOP, "Orders")


def test_the_list_of_global_white_addresses_is_replaced_but_for_what_files_have(broker: Broker) -> None:
    answer = broker.signed(ADMIN, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": "10.1.1.{1,2}"})
    assert answer.code == 211 and "10.9.9.*" in (answer.remark or "")
    for given in ("10.9.9.*,10.1.1.{1,2}", "10.9.9.*"):
        assert broker.signed(ADMIN, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, {"globalWhiteAddrs": given}).code == 0
        is_white = broker.ask(Code.GET_BROKER_CONFIG, link=HOME_LINK).code == 0
        assert is_white == ("10.1.1" in given)
        assert broker.ask(Code.GET_BROKER_CONFIG, link=WHITE_LINK).code == 0
    for fields in ({"globalWhiteAddrs": "10.9.9.*,host"}, {"globalWhiteAddrs": "10.9.9.*", "aclFileFullPath": PATH}):
        assert broker.signed(ADMIN, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields).code == 211


@spec("A03")
def test_changes_survive_a_restart(broker: Broker, files: Files) -> None:
    assert (
        change(
            broker, accessKey="web-app", secretKey="web-key", defaultTopicPerm="PUB", whiteRemoteAddress="10.3.3.3"
        ).code
        == 0
    )
    fields = {"globalWhiteAddrs": "10.9.9.*,10.1.1.1"}
    assert broker.signed(ADMIN, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields).code == 0
    before = broker.version()
    broker.node.close()
    after = Broker(broker.disk, Files())  # type: ignore[arg-type]  # a disk will do
    assert after.sends(Credentials("web-app", "web-key"), "any")
    assert after.ask(Code.GET_BROKER_CONFIG, link=HOME_LINK).code == 0
    answer = after.ask(Code.GET_BROKER_CLUSTER_ACL_INFO, link=HOME_LINK)
    assert json.loads(answer.fields["version"]) == before["config/accessControl.json"]


def test_versions_of_files_are_those_that_java_wrote(broker: Broker, files: Files) -> None:
    files.put(PATH, FILE + "dataVersion:\n- counter: 4\n  timestamp: 1600000000000\n")
    broker.pass_time(CHECK_MS)
    assert broker.version()[PATH] == {"counter": 4, "timestamp": 1_600_000_000_000}
    answer = broker.signed(ADMIN, Code.GET_BROKER_CLUSTER_ACL_INFO)
    assert {"brokerName", "brokerAddr", "clusterName"} <= answer.fields.keys()


def test_an_admin_with_lists_makes_no_admins(tmp_path: Path) -> None:
    files = Files()
    files.put(
        PATH, FILE + "- accessKey: bound-admin\n  secretKey: bound-key\n  admin: true\n  topicPerms: [Orders=PUB]\n"
    )
    broker, bound = Broker(tmp_path, files), Credentials("bound-admin", "bound-key")
    assert broker.sends(bound, "Orders") and not broker.sends(bound, "Stock")
    assert change(broker, bound, accessKey="web-app", secretKey="web-key", topicPerms="a=PUB").code == 0
    assert change(broker, bound, accessKey="web-app", secretKey="web-key", admin="true").code == 0
    for fields in (
        {"accessKey": "new-admin", "admin": "true"},
        {"accessKey": "admin-1"},
        {"accessKey": "web-app", "whiteRemoteAddress": "*"},
    ):
        assert change(broker, bound, secretKey="some-key", **fields).code == 209
    fields = {"globalWhiteAddrs": "10.9.9.*,*"}
    assert broker.signed(bound, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, fields).code == 211


def test_white_addresses_count_on_the_fast_port(broker: Broker) -> None:
    broker.open(9, LinkKind.FAST, peer="10.9.9.1:1")
    assert broker.ask(Code.GET_BROKER_CONFIG, link=9).code == 0


def test_each_file_may_have_the_maximum_of_white_addresses(tmp_path: Path) -> None:
    files = Files()
    for number in range(3):
        listed = "".join(f"- 10.{number}.{n // 250}.{n % 250}\n" for n in range(9_000))
        files.put(f"/conf/acl/{number}.yml", f"globalWhiteRemoteAddresses:\n{listed}")
    broker = Broker(tmp_path, files)
    assert broker.ask(Code.GET_BROKER_CONFIG, link=HOME_LINK).code == 0
    assert broker.ask(Code.GET_BROKER_CONFIG, link=WHITE_LINK).code == ResponseCode.NO_PERMISSION
