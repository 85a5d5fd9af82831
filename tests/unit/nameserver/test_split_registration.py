"""Registrations in several parts, as RocketMQ 5 sends them with enableSplitRegistration, and refused registrations: the
previous one stays valid, and the broker gets the reason."""

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.nameserver import topics
from tests.unit.nameserver.driver import Driver, registration, topic

MAPPING = {
    "topic": "b1",
    "bname": "broker-a",
    "scope": "__global__",
    "totalQueues": 4,
    "epoch": 1,
    "currIdMap": {"0": 0},
}


@pytest.fixture
def server(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.open(1)
    return driver


def pieces(server: Driver, *, counter: int, queues: int = 4, **fields: Any) -> None:
    """Return two parts of one registration: four topics, one version."""
    for names in (("a1", "a2"), ("b1", "b2")):
        told = tuple(topic(name, queues) for name in names)
        assert server.register(1, topics=told, counter=counter, **fields).code == ResponseCode.SUCCESS


def permission(server: Driver, name: str) -> Any:
    return server.route(1, name)["queueDatas"][0]["perm"]


def test_parts_of_one_version_are_all_accepted(server: Driver) -> None:
    pieces(server, counter=1)
    assert all(server.route(1, name) for name in ("a1", "a2", "b1", "b2"))
    pieces(server, counter=2, queues=7)
    assert {server.route(1, name)["queueDatas"][0]["writeQueueNums"] for name in ("a1", "b2")} == {7}


def test_permission_wiped_by_an_operator_is_restored_by_all_parts_of_a_new_version(server: Driver) -> None:
    pieces(server, counter=1)
    server.call(1, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    pieces(server, counter=1)
    assert [permission(server, name) for name in ("a1", "b1")] == [4, 4]
    pieces(server, counter=2)
    assert [permission(server, name) for name in ("a1", "b1")] == [6, 6]


def test_parts_of_a_tandemq_registration_are_one_version(server: Driver) -> None:
    """Each part has its own data version for RocketMQ's name servers; TandemQ uses the version of the table."""

    def register(counter: int) -> None:
        for following, names in ((1, ("a1", "a2")), (0, ("b1", "b2"))):
            table = {"counter": counter, "stateVersion": 0, "timestamp": 1_700_000_000_000}
            wrapper = {
                "dataVersion": table | {"timestamp": table["timestamp"] - following},
                "tandemDataVersion": table,
                "topicConfigTable": {name: topic(name) for name in names},
            }
            command = registration()
            command.body = json.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper}).encode()
            command.fields["bodyCrc32"] = str(zlib.crc32(command.body) & 0x7FFFFFFF)
            assert server.ask(1, command).code == ResponseCode.SUCCESS

    register(1)
    server.call(1, Code.WIPE_WRITE_PERM_OF_BROKER, brokerName="broker-a")
    register(1)
    assert [permission(server, name) for name in ("a1", "b1")] == [4, 4]
    register(2)
    assert [permission(server, name) for name in ("a1", "b1")] == [6, 6]


def test_master_that_registers_again_in_parts_accepts_messages_in_all_its_topics(server: Driver) -> None:
    server.open(2)
    pieces(server, counter=1, enableActingMaster="true")
    slave = registration(broker_id=1, address="10.0.0.2:10911", counter=1, enableActingMaster="true")
    assert server.ask(2, slave).code == ResponseCode.SUCCESS
    server.close(1)
    server.open(1)
    assert permission(server, "b1") == 4
    pieces(server, counter=1, enableActingMaster="true")
    assert [permission(server, name) for name in ("a1", "b1")] == [6, 6]


def test_mappings_in_the_last_part_are_accepted(server: Driver) -> None:
    server.register(1, topics=(topic("a1"), topic("a2")))
    server.register(1, topics=(topic("b1"),), mappings={"b1": MAPPING})
    assert server.route(1, "b1")["topicQueueMappingByBroker"]["broker-a"]["totalQueues"] == 4


def test_malformed_registration_leaves_the_previous_one_in_place(
    server: Driver, caplog: pytest.LogCaptureFixture
) -> None:
    server.register(1)
    for _ in range(10):
        server.pass_time(30_000)
        bad = registration(counter=2)
        bad.body, bad.fields["bodyCrc32"] = b'{"topicConfigSerializeWrapper":[' + b"x" * 100_000, "0"
        answer = server.ask(1, bad)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert answer.remark
    assert server.route(1, "TopicA") is not None
    lines = [line for line in caplog.messages if "request refused" in line]
    assert 5 <= len(lines) <= 6, "once a minute"
    assert max(map(len, lines)) < 1_500
    server.pass_time(130_000)
    server.open(2)
    assert server.route(2, "TopicA") is None


def test_broker_with_too_many_topics_keeps_its_previous_topics(server: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "GROUP_TOPICS_MAX", 3)
    server.register(1, topics=(topic("a"), topic("b")))
    for _ in range(10):
        server.pass_time(30_000)
        answer = server.register(1, topics=(topic("a", 9), topic("c"), topic("d")), counter=2)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "has 2 topics here and registers 2 more, at most 3" in (answer.remark or "")
        assert "registered with the topics known before" in (answer.remark or "")
    assert server.route(1, "a")["queueDatas"][0]["writeQueueNums"] == 9
    assert server.route(1, "c") is None
    assert server.register(1, topics=(topic("c"),), counter=3).code == ResponseCode.SUCCESS
    assert server.route(1, "c") is not None


def test_new_broker_with_too_many_topics_is_still_registered(server: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "TOPIC_PLACES_MAX", 1)
    assert server.register(1).code == ResponseCode.SYSTEM_ERROR
    info = json.loads(server.call(1, Code.GET_BROKER_CLUSTER_INFO).body.replace(b"{0:", b'{"0":'))
    assert list(info["brokerAddrTable"]) == ["broker-a"]
