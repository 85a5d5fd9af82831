"""Access control as RocketMQ's tools see it: mqadmin 5.3.3 signs with conf/tools.yml, manages users, and is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.interop.driver import JavaDriver
from tests.interop.peers import SMALL_STORE, SUBJECT, Broker, NameServer, broker, name_server, start_registered

JAVA = "5.3.3"
ROOT = ("root", "root-key")
TOPIC = "Guarded"
INIT = json.dumps({"username": ROOT[0], "password": ROOT[1]})
SETTINGS = SMALL_STORE | {"authenticationEnabled": True, "authorizationEnabled": True, "initAuthenticationUser": INIT}
Run = Callable[..., str]


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NameServer]:
    with name_server(SUBJECT, tmp_path_factory.mktemp("namesrv")) as started:
        started.start()
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, namesrv: NameServer) -> Iterator[Broker]:
    with broker(SUBJECT, tmp_path_factory.mktemp("broker"), namesrv, settings=SETTINGS) as started:
        start_registered(started, namesrv)
        yield started


@pytest.fixture(scope="module")
def as_user(tmp_path_factory: pytest.TempPathFactory, guarded: Broker) -> Iterator[Callable[[tuple[str, str]], Run]]:
    """Returns mqadmin for a user, whose key is in the conf/tools.yml of its RocketMQ home."""
    drivers: dict[tuple[str, str], JavaDriver] = {}

    def of(user: tuple[str, str]) -> Run:
        if user not in drivers:
            directory = tmp_path_factory.mktemp("home")
            driver = JavaDriver(JAVA, directory)
            conf = directory / "home" / "conf"
            conf.mkdir(parents=True, exist_ok=True)
            (conf / "tools.yml").write_text(f"accessKey: {user[0]}\nsecretKey: {user[1]}\n", encoding="utf-8")
            drivers[user] = driver.start()
        return lambda name, *arguments: drivers[user].mqadmin(name, "-b", guarded.address, *arguments)

    yield of
    for driver in drivers.values():
        driver.close()


def test_users_and_policies_are_managed_with_mqadmin(as_user: Callable[[tuple[str, str]], Run]) -> None:
    root = as_user(ROOT)
    assert "success" in root("createUser", "-u", "carol", "-p", "carol-key", "-t", "Normal")
    assert "The user is existed" in root("createUser", "-u", "carol", "-p", "x", "-t", "Normal")
    listed = root("listUser")
    assert "carol" in listed and "root" in listed and "Super" in listed
    assert "carol" in root("getUser", "-u", "carol")
    created = root(
        "createAcl", "-s", "User:carol", "-r", "Topic:a,Topic:b*", "-a", "Pub,Sub", "-d", "Allow", "-i", "10.0.0.0/8"
    )
    assert "success" in created, created
    shown = root("getAcl", "-s", "User:carol")
    assert "Topic:a" in shown and "Topic:b*" in shown and "10.0.0.0/8" in shown, shown
    assert "success" in root("updateAcl", "-s", "User:carol", "-r", "Topic:a", "-a", "All", "-d", "Deny")
    assert "Deny" in root("listAcl", "-s", "carol")
    assert "success" in root("deleteAcl", "-s", "User:carol", "-r", "Topic:a")
    assert "Topic:a" not in root("getAcl", "-s", "User:carol").replace("Topic:b", "")
    assert "success" in root("updateUser", "-u", "carol", "-s", "disable")
    assert "disable" in root("getUser", "-u", "carol")
    assert "success" in root("deleteUser", "-u", "carol")
    assert "carol" not in root("listUser")


def test_signed_requests_of_java_are_accepted_and_others_refused(as_user: Callable[[tuple[str, str]], Run]) -> None:
    root = as_user(ROOT)
    assert "success" in root("updateTopic", "-t", TOPIC, "-r", "4", "-w", "4")
    assert "success" in root("createUser", "-u", "dave", "-p", "dave-key", "-t", "Normal")
    dave, with_wrong_key = as_user(("dave", "dave-key")), as_user(("dave", "wrong"))
    refused = dave("updateTopic", "-t", "Other", "-r", "1", "-w", "1")
    assert "has no permission to access Topic:Other" in refused, refused
    assert "authentication failed" in with_wrong_key("updateTopic", "-t", "Other", "-r", "1", "-w", "1")
    assert "no permission" in dave("getBrokerConfig")
    assert "success" in root("createAcl", "-s", "User:dave", "-r", "Topic:Oth*", "-a", "Create", "-d", "Allow")
    assert "success" in dave("updateTopic", "-t", "Other", "-r", "1", "-w", "1")
