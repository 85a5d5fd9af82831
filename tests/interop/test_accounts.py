"""Accounts of ACL 1.0 as RocketMQ 4.9's tools and clients see them: mqadmin 4.9.7 signs with conf/tools.yml."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.interop.driver import JavaDriver
from tests.interop.peers import SMALL_STORE, SUBJECT, Broker, NameServer, broker, name_server, start_registered

JAVA = "4.9.7"
ADMIN, SHOP = ("admin-app", "admin-key"), ("shop-app", "shop-key")
TOPIC = "Guarded"
FILE = f"""\
globalWhiteRemoteAddresses:
- 10.10.103.*

accounts:
- accessKey: {ADMIN[0]}
  secretKey: {ADMIN[1]}
  whiteRemoteAddress:
  admin: true
- accessKey: {SHOP[0]}
  secretKey: {SHOP[1]}
  defaultTopicPerm: DENY
  topicPerms:
  - {TOPIC}=SUB
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with name_server(SUBJECT, tmp_path_factory.mktemp("namesrv")) as started:
        started.start()
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, namesrv: NameServer) -> Iterator[Broker]:
    directory = tmp_path_factory.mktemp("broker")
    conf = directory / "accounts"
    conf.mkdir()
    (conf / "plain_acl.yml").write_text(FILE, encoding="utf-8")
    settings = SMALL_STORE | {"aclEnable": True, "aclPath": str(conf)}
    with broker(SUBJECT, directory, namesrv, settings=settings) as started:
        start_registered(started, namesrv)
        yield started


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[tuple[str, str]], JavaDriver]]:
    """Returns a JVM whose RocketMQ home has the key of an account in conf/tools.yml."""
    started: dict[tuple[str, str], JavaDriver] = {}

    def of(account: tuple[str, str]) -> JavaDriver:
        if account not in started:
            directory = tmp_path_factory.mktemp("home")
            conf = directory / "home" / "conf"
            conf.mkdir(parents=True, exist_ok=True)
            (conf / "tools.yml").write_text(f"accessKey: {account[0]}\nsecretKey: {account[1]}\n", encoding="utf-8")
            started[account] = JavaDriver(JAVA, directory).start()
        return started[account]

    yield of
    for driver in started.values():
        driver.close()


@pytest.fixture(scope="module")
def as_account(drivers: Callable[[tuple[str, str]], JavaDriver], guarded: Broker) -> Callable[[tuple[str, str]], Run]:
    """Returns mqadmin for an account, against the broker."""
    return lambda account: lambda name, *more: drivers(account).mqadmin(name, "-b", guarded.address, *more)


def test_accounts_are_managed_with_mqadmin(as_account: Callable[[tuple[str, str]], Run]) -> None:
    admin = as_account(ADMIN)
    assert "success" in admin("updateTopic", "-t", TOPIC, "-r", "4", "-w", "4")
    made = admin(
        "updateAclConfig",
        "-a",
        "web-app",
        "-s",
        "web-key",
        "-w",
        "10.1.1.*",
        "-i",
        "DENY",
        "-u",
        "SUB",
        "-t",
        f"{TOPIC}=PUB|SUB,Other=DENY",
        "-g",
        "web=SUB",
        "-m",
        "false",
    )
    assert "create or update plain access config to" in made and "success" in made, made
    assert "web-app" in as_account(("web-app", "web-key"))("updateTopic", "-t", "Other", "-r", "1", "-w", "1")
    assert "longer" not in made and "209" in admin("updateAclConfig", "-a", "web", "-s", "web-key")
    version = admin("clusterAclConfigVersion")
    assert "config/accessControl.json" in version and "plain_acl.yml" in version, version
    changed = admin("updateGlobalWhiteAddr", "-g", "10.10.103.*,10.10.15.*")
    assert "update global white remote addresses to" in changed and "success" in changed, changed
    refused = admin("updateGlobalWhiteAddr", "-g", "10.10.15.*")
    assert "211" in refused and "10.10.103.*" in refused, refused
    assert "success" in admin("deleteAclConfig", "-a", "web-app")
    refused = admin("deleteAclConfig", "-a", SHOP[0])
    assert "210" in refused and "plain_acl.yml:9" in refused, refused
    assert "authentication failed" in as_account(("web-app", "web-key"))("updateTopic", "-t", "O", "-r", "1", "-w", "1")


def test_an_account_of_a_file_may_not_do_what_java_leaves_open(as_account: Callable[[tuple[str, str]], Run]) -> None:
    shop = as_account(SHOP)
    for name, *arguments in (
        ("updateAclConfig", "-a", "evil-app", "-s", "evil-key", "-m", "true"),
        ("deleteAclConfig", "-a", ADMIN[0]),
        ("updateGlobalWhiteAddr", "-g", "*"),
        ("updateTopic", "-t", "Other", "-r", "1", "-w", "1"),
    ):
        assert "has no permission" in shop(name, *arguments)
    assert "evil-app" not in as_account(ADMIN)("clusterAclConfigVersion")
