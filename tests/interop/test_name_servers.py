"""Name servers and brokers of different make: Java name servers with our broker, ours with Java brokers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tandemq.broker.ha.registration import PIECE_TOPICS
from tandemq.model.codes import RequestCode
from tests.interop.checks import all_sent_ok, exactly, fail_one, lose_one, prove, repeat_one
from tests.interop.driver import JavaDriver
from tests.interop.java import SERVER_VERSIONS, JavaNameServer, wait_until
from tests.interop.peers import (
    CLIENTS,
    SERVERS,
    SMALL_STORE,
    SUBJECT,
    NameServer,
    broker,
    name_server,
    of_each_change,
    start_registered,
)
from tests.interop.wire import GET_ROUTE, ask, loads_lenient, registered_brokers, wait_topic

PAIRS = [(version, SUBJECT) for version in SERVERS] + [(SUBJECT, version) for version in SERVERS]
"""(name server, broker)"""


@pytest.mark.parametrize(
    ("names", "serves"), of_each_change(PAIRS), ids=[f"{names}-names-{serves}" for names, serves in PAIRS]
)
def test_broker_is_found_through_name_server_of_other_make(
    names: str, serves: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    with (
        name_server(names, tmp_path / "namesrv") as namesrv,
        broker(serves, tmp_path / "broker", namesrv, settings=SMALL_STORE) as subject,
    ):
        namesrv.start()
        java = drivers(CLIENTS[-1]).at(namesrv.address)
        start_registered(subject, namesrv)
        at = ("-n", namesrv.address)
        java.mqadmin("updateTopic", *at, "-b", subject.address, "-t", "Crossed", "-r", "3", "-w", "3")
        wait_topic(namesrv.port, "Crossed")
        prove(_route_is_right(subject.address), _route(namesrv.port, "Crossed"), _lose_broker, _lose_queues)
        # Without the fresh route of auto-creation, each new topic would be unknown until the next registration.
        fresh = java.call("produce", topic="CrossedFresh", count=3)
        prove(all_sent_ok(3), fresh, lose_one, fail_one)
        prove(
            all_sent_ok(9),
            java.call("produce", topic="Crossed", count=9, queues=3),
            lose_one,
            fail_one,
        )
        read = java.call("push", topic="Crossed", group="crossers", count=9)
        prove(exactly([f"body-{index}" for index in range(9)]), read, lose_one, repeat_one)
        subject.stop()
        # A broker that stops says so; nobody waits for it to expire after two minutes.
        _wait_brokers(namesrv, {}, within_s=10)
        assert ask(namesrv.port, GET_ROUTE, {"topic": "Crossed"}).fields["code"] == 17


def _route(port: int, topic: str) -> dict[str, Any]:
    value: dict[str, Any] = loads_lenient(ask(port, GET_ROUTE, {"topic": topic}).body)
    return value


def _route_is_right(address: str) -> Callable[[dict[str, Any]], None]:
    def check(route: dict[str, Any]) -> None:
        [data] = route["brokerDatas"]
        assert (data["brokerAddrs"], data["brokerName"], data["cluster"]) == (
            {"0": address},
            "broker-a",
            "DefaultCluster",
        )
        [queues] = route["queueDatas"]
        assert (queues["brokerName"], queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (
            "broker-a",
            3,
            3,
            6,
        )

    return check


def _lose_broker(route: dict[str, Any]) -> None:
    route["brokerDatas"][0]["brokerAddrs"] = {}


def _lose_queues(route: dict[str, Any]) -> None:
    route["queueDatas"][0]["writeQueueNums"] = 2


def _wait_brokers(namesrv: NameServer, brokers: dict[str, dict[str, str]], *, within_s: float) -> None:
    """Wait until a name server knows these brokers and no others."""
    what = f"{namesrv.name} knows {brokers}"
    wait_until(lambda: registered_brokers(namesrv.port) == brokers, what=what, within_s=within_s)


def test_broker_registers_with_name_servers_of_different_make(tmp_path: Path) -> None:
    makes = dict.fromkeys([SUBJECT, *SERVER_VERSIONS])
    servers = [name_server(make, tmp_path / f"namesrv-{make}") for make in makes]
    try:
        for server in servers:
            server.start()
        with broker(
            SUBJECT,
            tmp_path / "broker",
            servers[0],
            settings=SMALL_STORE,
            namesrvAddr=";".join(server.address for server in servers),
        ) as subject:
            for server in servers:
                if not subject.is_running:
                    subject.start()
                _wait_brokers(server, {"broker-a": {"0": subject.address}}, within_s=40)
            subject.stop()
            for server in servers:
                _wait_brokers(server, {}, within_s=10)
    finally:
        for server in servers:
            server.kill()


@pytest.mark.parametrize("names", SERVER_VERSIONS)
def test_name_server_of_rocketmq_takes_all_pieces_of_a_registration(names: str, tmp_path: Path) -> None:
    """It skips topics that come under the data version it has stored: each piece must have its own."""
    with (
        name_server(names, tmp_path / "namesrv") as namesrv,
        broker(SUBJECT, tmp_path / "broker", namesrv, settings=SMALL_STORE) as subject,
    ):
        namesrv.start()
        start_registered(subject, namesrv)
        _write_topics(subject.port, range(PIECE_TOPICS + 500), queues=2)
        _wait_queues(namesrv, f"T{PIECE_TOPICS + 499}", 2)
        _wait_queues(namesrv, "T0", 2)
        for number in (0, PIECE_TOPICS + 499):
            _write_topics(subject.port, range(number, number + 1), queues=7)
            _wait_queues(namesrv, f"T{number}", 7)


def test_single_topics_are_added_where_a_registration_replaces_all_topics(tmp_path: Path) -> None:
    with (
        JavaNameServer("5.3.3", tmp_path / "namesrv", deleteTopicWithBrokerRegistration=True) as namesrv,
        broker(SUBJECT, tmp_path / "broker", namesrv, settings=SMALL_STORE, enableSingleTopicRegister=True) as subject,
    ):
        namesrv.start()
        start_registered(subject, namesrv)
        for number in range(3):
            _write_topics(subject.port, range(number, number + 1), queues=3)
            _wait_queues(namesrv, f"T{number}", 3)
        _write_topics(subject.port, range(1), queues=5)
        for number, queues in ((0, 5), (1, 3), (2, 3)):  # sooner than the next registration of all topics
            _wait_queues(namesrv, f"T{number}", queues, within_s=10)


def _write_topics(port: int, numbers: range, *, queues: int) -> None:
    topics = [
        {"topicName": f"T{number}", "readQueueNums": queues, "writeQueueNums": queues, "perm": 6} for number in numbers
    ]
    body = json.dumps({"topicConfigList": topics}).encode()
    assert ask(port, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {}, body).fields["code"] == 0


def _wait_queues(namesrv: NameServer, topic: str, queues: int, *, within_s: float = 40) -> None:
    def found() -> bool:
        answer = ask(namesrv.port, GET_ROUTE, {"topic": topic})
        if answer.fields["code"] != 0:
            return False
        return bool(loads_lenient(answer.body)["queueDatas"][0]["writeQueueNums"] == queues)

    wait_until(found, what=f"{namesrv.name} knows {topic} with {queues} queues", within_s=within_s)
