"""Access control of a name server: rights of each code, users of settings, secrets and files, and their reload."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tandemq.boundary import LinkKind, Opened
from tandemq.codec.proofs import Keyring
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.signature import member_credentials, signed
from tandemq.config.file_accounts import CHECK_MS
from tandemq.config.settings import NameServerConfig
from tandemq.config.validation import validate
from tandemq.errors import ConfigError
from tandemq.model.access import NOT_AUTHENTICATED, Credentials
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tests.unit.nameserver.driver import Driver, registration

OK, REFUSED = ResponseCode.SUCCESS, ResponseCode.NO_PERMISSION
SECRET, NEW_SECRET = b"s" * 32, b"n" * 32
BROKER = member_credentials(SECRET)
ROOT, INNER = Credentials("root", "root-key"), Credentials("inner", "inner-key")
ADMIN, BOUND, SHOP = (
    Credentials("admin-1", "admin-key"),
    Credentials("bound-1", "bound-key"),
    Credentials("shop-app", "shop-key"),
)
FILE = """\
globalWhiteRemoteAddresses:
- 10.9.9.*
accounts:
- accessKey: admin-1
  secretKey: admin-key
  admin: true
- accessKey: bound-1
  secretKey: bound-key
  admin: true
  topicPerms:
  - Orders=SUB
- accessKey: shop-app
  secretKey: shop-key
  whiteRemoteAddress: 10.1.1.1
"""
WHITE_LINK, HOME_LINK = 8, 9


class Files:
    """A file of accounts in memory."""

    def __init__(self) -> None:
        self.text = FILE
        self._known = ""

    def read(self) -> Mapping[str, bytes | ConfigError] | None:
        if self.text == self._known:
            return None
        self._known = self.text
        return {"plain_acl.yml": self.text.encode()}


class Guarded(Driver):
    """A name server with access control."""

    def __init__(self, path: Path, **changes: object) -> None:
        self.files, self.secrets = Files(), [SECRET]
        config = NameServerConfig(
            authentication_enable=True,
            acl_path="conf",
            init_user=json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
            inner_credentials=json.dumps({"accessKey": INNER.access_key, "secretKey": INNER.secret_key}),
            ha_secret_file="secret",
        )
        keyring = Keyring(lambda: tuple(self.secrets), Random(1))
        super().__init__(path, validate(replace(config, **changes)), None, keyring, self.files)  # type: ignore[arg-type]
        self.open(1)
        for link, host in ((WHITE_LINK, "10.9.9.200"), (HOME_LINK, "[::ffff:10.1.1.1]")):
            self.node.turn([], [Opened(link, LinkKind.REMOTING, f"{host}:50000")], self.now)

    def as_user(
        self,
        user: Credentials | None,
        code: int,
        fields: Mapping[str, str] | None = None,
        body: bytes = b"",
        link: int = 1,
    ) -> Command:
        own = dict(fields or {}) if user is None else signed(fields or {}, body, user)
        return self.ask(link, Command(code, fields=own, body=body))

    def register_as(self, user: Credentials | None, name: str = "broker-a") -> int:
        given = registration(name)
        return self.as_user(user, Code.REGISTER_BROKER, given.fields, given.body).code

    def may_change(self, user: Credentials | None, link: int = 1) -> bool:
        fields = {"namespace": "n", "key": "k", "value": "v"}
        return self.as_user(user, Code.PUT_KV_CONFIG, fields, link=link).code == OK

    def may_read(self, user: Credentials | None, link: int = 1) -> bool:
        return self.as_user(user, Code.GET_BROKER_CLUSTER_INFO, link=link).code == OK

    def may_route(self, user: Credentials | None, link: int = 1) -> bool:
        found = self.as_user(user, Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "TopicA"}, link=link).code
        assert found in (OK, REFUSED)
        return found == OK


@pytest.fixture
def server(tmp_path: Path) -> Guarded:
    server = Guarded(tmp_path)
    assert server.register_as(BROKER) == OK
    return server


def test_changes_need_a_super_user_and_routes_any_user(server: Guarded) -> None:
    for user in (BROKER, ROOT, INNER, ADMIN, BOUND):
        assert server.may_change(user) and server.may_read(user) and server.may_route(user), user
    assert not server.may_change(SHOP)
    assert server.may_read(SHOP) and server.may_route(SHOP)
    for unknown in (None, Credentials("nobody", "x"), ROOT._replace(secret_key="x"), SHOP._replace(secret_key="x")):
        assert not (server.may_change(unknown) or server.may_read(unknown) or server.may_route(unknown))


def test_only_super_users_register_and_unregister_brokers(server: Guarded) -> None:
    gone = registration().fields
    for user in (None, SHOP, member_credentials(NEW_SECRET)):
        assert server.register_as(user, "broker-b") == REFUSED
        assert server.as_user(user, Code.UNREGISTER_BROKER, gone).code == REFUSED
    assert list(loads(server.as_user(ROOT, Code.GET_BROKER_CLUSTER_INFO).body)["brokerAddrTable"]) == ["broker-a"]
    assert server.as_user(BROKER, Code.UNREGISTER_BROKER, gone).code == OK


def test_refusals_do_not_tell_whether_a_user_exists(server: Guarded) -> None:
    users = (None, Credentials("nobody", "x"), ROOT._replace(secret_key="x"), BROKER._replace(secret_key="x"))
    remarks = [str(server.as_user(user, Code.GET_BROKER_CLUSTER_INFO).remark) for user in users]
    assert len(set(remarks)) == 1 and NOT_AUTHENTICATED in remarks[0]


def test_routes_can_be_open(tmp_path: Path) -> None:
    server = Guarded(tmp_path, route_authentication=False)
    server.register_as(BROKER)
    assert server.may_route(None) and server.may_route(SHOP._replace(secret_key="x"))
    assert not server.may_read(None) and not server.may_change(None)


def test_white_addresses_need_no_signature(server: Guarded) -> None:
    """Brokers of 4.9 do not sign: their addresses are white."""
    assert server.may_change(None, WHITE_LINK)
    unsigned = SHOP._replace(secret_key="x")
    assert server.may_read(unsigned, HOME_LINK) and not server.may_read(unsigned)
    assert not server.may_change(unsigned, HOME_LINK) and not server.may_read(None, HOME_LINK)


def test_changed_files_and_secrets_count_without_a_restart(server: Guarded) -> None:
    new = Credentials("new-user", "new-user-key")
    server.files.text = (
        FILE.replace("admin-1", "admin-2") + f"- accessKey: {new.access_key}\n  secretKey: {new.secret_key}\n"
    )
    assert server.may_change(ADMIN) and not server.may_read(new)
    server.pass_time(CHECK_MS)
    assert not server.may_read(ADMIN) and server.may_read(new) and not server.may_change(new)
    server.secrets[:] = [NEW_SECRET, SECRET]
    assert server.may_change(member_credentials(NEW_SECRET)) and server.may_change(BROKER)
    server.secrets.remove(SECRET)
    assert not server.may_change(BROKER)


def test_a_malformed_file_keeps_the_users(server: Guarded) -> None:
    server.files.text = FILE + "nonsense"
    server.pass_time(CHECK_MS)
    assert server.may_change(ADMIN)


def test_access_control_is_switched_off_by_a_request_only_if_the_black_list_lets_it(tmp_path: Path) -> None:
    off = b"authenticationEnabled=false"
    server = Guarded(tmp_path / "1")
    assert server.as_user(ROOT, Code.UPDATE_NAMESRV_CONFIG, body=off).code == REFUSED and not server.may_read(None)
    free = Guarded(tmp_path / "2", config_black_list=())
    assert free.as_user(SHOP, Code.UPDATE_NAMESRV_CONFIG, body=off).code == REFUSED
    assert free.as_user(ROOT, Code.UPDATE_NAMESRV_CONFIG, body=off).code == OK and free.may_change(None)


def test_keys_of_users_are_not_shown(server: Guarded) -> None:
    shown = server.as_user(ROOT, Code.GET_NAMESRV_CONFIG).body.decode()
    assert "authenticationEnabled=true" in shown
    assert ROOT.secret_key not in shown and INNER.secret_key not in shown
    assert server.as_user(SHOP, Code.GET_NAMESRV_CONFIG).code == REFUSED


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"ha_secret_file": "", "acl_path": "", "init_user": "", "inner_credentials": ""}, "no users"),
        ({"ha_secret_file": "", "registry_enable": True}, "haSecretFile"),
        ({"inner_credentials": "x"}, "JSON"),
        ({"init_user": "x"}, "JSON"),
    ],
)
def test_settings_are_checked(tmp_path: Path, changes: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Guarded(tmp_path, **changes)
