"""A name server that checks users: Java 5.3.3's broker, clients and mqadmin sign what they send to it, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tandemq.codec.remoting.signature import signed
from tandemq.model.access import Credentials
from tests.interop.checks import bodies, sent
from tests.interop.driver import JavaDriver
from tests.interop.java import Value, wait_until
from tests.interop.ours import OurNameServer
from tests.interop.peers import SMALL_STORE, Broker, broker
from tests.interop.wire import GET_BROKER_CLUSTER_INFO, ask, loads_lenient

JAVA = "5.3.3"
ROOT, SHOP, INNER = (Credentials(name, f"{name}-key") for name in ("root-user", "shop-app", "inner-user"))
INNER_SETTING = json.dumps({"accessKey": INNER.access_key, "secretKey": INNER.secret_key}, separators=(",", ":"))
PROVIDER = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
TOPIC, COUNT = "Guarded", 20
FILE = f"""\
accounts:
- accessKey: {ROOT.access_key}
  secretKey: {ROOT.secret_key}
  admin: true
- accessKey: {SHOP.access_key}
  secretKey: {SHOP.secret_key}
"""
Run = Callable[..., str]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurNameServer]:
    directory = tmp_path_factory.mktemp("namesrv")
    conf = directory / "conf"
    conf.mkdir()
    file = conf / "plain_acl.yml"
    file.write_text(FILE, encoding="utf-8")
    file.chmod(0o600)
    settings = {
        "authenticationEnabled": "true",
        "aclPath": str(conf),
        "innerClientAuthenticationCredentials": INNER_SETTING,
    }
    with OurNameServer(directory, settings=settings) as started:
        started.start()
        yield started


@pytest.fixture(scope="module", params=["ours", JAVA])
def registered(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, namesrv: OurNameServer
) -> Iterator[Broker]:
    """A broker that signs as the inner user; it checks nobody itself."""
    settings: dict[str, Value] = SMALL_STORE | {
        "brokerName": f"broker-{request.param}".replace(".", "-"),
        "innerClientAuthenticationCredentials": INNER_SETTING,
    }
    if request.param != "ours":  # it does not start with such a user and no place to keep it
        settings["authenticationMetadataProvider"] = PROVIDER
    with broker(request.param, tmp_path_factory.mktemp("broker"), namesrv, settings=settings) as started:
        started.start()
        name = str(started.conf["brokerName"])
        wait_until(lambda: name in groups(namesrv), what=f"{name} is registered", within_s=60)
        yield started


def groups(namesrv: OurNameServer) -> dict[str, object]:
    """Return the broker groups that the name server shows to an application."""
    answer = ask(namesrv.port, GET_BROKER_CLUSTER_INFO, signed({}, b"", SHOP))
    table: dict[str, object] = loads_lenient(answer.body)["brokerAddrTable"]
    return table


@pytest.fixture(scope="module")
def as_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Credentials | None], JavaDriver]]:
    """Returns a JVM whose RocketMQ home has the key of a user, or none, in conf/tools.yml."""
    drivers: dict[Credentials | None, JavaDriver] = {}

    def of(user: Credentials | None) -> JavaDriver:
        if user not in drivers:
            directory: Path = tmp_path_factory.mktemp("home")
            driver = JavaDriver(JAVA, directory)
            conf = directory / "home" / "conf"
            conf.mkdir(parents=True, exist_ok=True)
            if user is not None:
                text = f"accessKey: {user.access_key}\nsecretKey: {user.secret_key}\n"
                (conf / "tools.yml").write_text(text, encoding="utf-8")
            drivers[user] = driver.start()
        return drivers[user]

    yield of
    for driver in drivers.values():
        driver.close()


def test_mqadmin_is_served_by_the_rights_of_its_user(
    as_user: Callable[[Credentials | None], JavaDriver], namesrv: OurNameServer, registered: Broker
) -> None:
    def run(user: Credentials | None, name: str, *arguments: str) -> str:
        return as_user(user).mqadmin(name, "-n", namesrv.address, *arguments)

    group = str(registered.conf["brokerName"])
    assert group in run(ROOT, "clusterList")
    assert "success" in run(ROOT, "updateKvConfig", "-s", "ns", "-k", "key", "-v", "value")
    assert "OK, " in run(ROOT, "wipeWritePerm", "-b", group)
    assert "OK, " in run(ROOT, "addWritePerm", "-b", group)
    assert group in run(SHOP, "clusterList")
    for command in (("wipeWritePerm", "-b", group), ("deleteKvConfig", "-s", "ns", "-k", "key")):
        assert "no permission to change" in run(SHOP, *command), command
        assert "authentication failed" in run(None, *command), command
    assert group not in run(None, "clusterList")


def test_java_clients_send_and_receive_with_a_user_and_not_without(
    as_user: Callable[[Credentials | None], JavaDriver], namesrv: OurNameServer, registered: Broker
) -> None:
    topic = f"{TOPIC}-{registered.conf['brokerName']}"
    made = as_user(ROOT).mqadmin(
        "updateTopic", "-n", namesrv.address, "-b", registered.address, "-t", topic, "-r", "2", "-w", "2"
    )
    assert "success" in made, made
    java = as_user(None)
    own: dict[str, Any] = {"namesrv": namesrv.address, "topic": topic}
    keys: dict[str, Any] = {"access_key": SHOP.access_key, "secret_key": SHOP.secret_key}

    def is_routed() -> bool:
        return bool(sent(java.call("produce", count=1, prefix="first", **own, **keys)))

    wait_until(is_routed, what="the topic is routed", within_s=60)
    consumer = java.begin("push", group=f"{topic}-group", count=0, **own, **keys)
    assert len(sent(java.call("produce", count=COUNT, prefix="m", **own, **keys))) == COUNT
    wanted = {f"m-{number}" for number in range(COUNT)}
    consumer.wait_for(lambda event: event["event"] == "message" and bodies([event])[0] in wanted, 60, count=COUNT)
    assert wanted <= set(bodies(consumer.end()))
    refused = java.call("produce", count=1, retries=0, **own)
    assert not sent(refused) and "No route info" in json.dumps(refused), "Java shows no reasons of name servers"
