"""Registration at name servers: repeated, retried on a new connection, and of single topics when they change."""

from pathlib import Path
from random import Random
from typing import Any

from lab.samples import tiny_name_server
from lab.sim.world.disk import SimDisk
from tandemq.boundary import LinkKind, Opened
from tandemq.broker.ha.registration import CHANGES_MAX
from tandemq.codec.remoting.fastjson import loads
from tandemq.codec.remoting.frame import FrameDecoder, decode_command, encode_command
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tandemq.nameserver.node import NameServer
from tests.spec import spec
from tests.unit.broker.harness import Harness

SILENT, OTHER = "10.0.0.8:9876", "10.0.0.9:9876"


class Registered:
    """A broker with two name servers, of which one may stop responding while it stays connected."""

    def __init__(self, path: Path) -> None:
        self.broker = Harness(path, name_servers=(SILENT, OTHER))
        self.is_silent = False
        self.registrations: dict[str, list[int]] = {SILENT: [], OTHER: []}
        """Times of the registrations at each name server."""
        self._links: dict[int, str] = {}
        self._seen_closes = 0

    def run(self, ms: int) -> None:
        """Advance the time second by second; name servers accept connections, and respond unless they are silent."""
        for _ in range(ms // 1_000):
            self.broker.pass_time(1_000)
            self._carry()

    def _carry(self) -> None:
        broker = self.broker
        for connect in broker.connects:
            self._links[connect.link] = connect.address
            broker.open(connect.link, connect.kind, connect.address)
        broker.connects.clear()
        for link, address in self._links.items():
            for command in broker.inbox.pop(link, []):
                assert command.code == RequestCode.REGISTER_BROKER
                self.registrations[address].append(broker.now.mono_ms)
                if not (self.is_silent and address == SILENT):
                    broker.turn([(link, encode_command(command.answer(ResponseCode.SUCCESS)))])
        for link, _ in broker.closes[self._seen_closes :]:
            del self._links[link]
            broker.close(link)
        self._seen_closes = len(broker.closes)

    @property
    def registered(self) -> set[str]:
        return self.broker.node.registration.registered


@spec("G03")
def test_registration_at_a_silent_name_server_times_out_after_6s_and_the_other_gets_all(tmp_path: Path) -> None:
    assert BrokerConfig().register_ms == 30_000
    assert BrokerConfig().register_timeout_ms == 6_000
    between = Registered(tmp_path)
    between.run(5_000)
    assert between.registered == {SILENT, OTHER}
    between.is_silent = True
    between.run(37_000)
    (reason,) = {reason for _, reason in between.broker.closes}
    assert reason == "no answer in time"
    assert between.registered == {OTHER}
    before = {address: len(times) for address, times in between.registrations.items()}
    between.run(60_000)
    assert len(between.registrations[SILENT]) - before[SILENT] >= 5, "on a new connection each time"
    assert between.registered == {OTHER}
    assert (
        max(
            after - at
            for at, after in zip(between.registrations[OTHER], between.registrations[OTHER][1:], strict=False)
        )
        <= 31_000
    )
    between.is_silent = False
    between.run(10_000)
    assert between.registered == {SILENT, OTHER}


# Changed topics.


class Changing:
    """A broker with one name server, which accepted all topics and responds when it is told to."""

    def __init__(self, path: Path, **changes: Any) -> None:
        self.broker = Harness(path, name_servers=(OTHER,), **changes)
        self.link = 0
        self.connect()
        self.answer(self.sent())

    def connect(self) -> None:
        [connect] = [found for found in self.broker.connects if found.address == OTHER]
        self.broker.connects.clear()
        self.link = connect.link
        self.broker.open(connect.link, connect.kind, OTHER)

    def sent(self) -> list[Command]:
        return self.broker.take_requests(RequestCode.REGISTER_BROKER, link=self.link)

    def answer(self, requests: list[Command], code: int = ResponseCode.SUCCESS) -> None:
        for request in requests:
            self.broker.reply(request, link=self.link, code=code)

    def topics_sent(self) -> list[set[str]]:
        return [set(wrapper(request)["topicConfigTable"]) for request in self.sent()]

    def every_topic(self) -> set[str]:
        return set(self.broker.node.topics.table)


def wrapper(request: Command) -> dict[str, Any]:
    found: dict[str, Any] = loads(request.body)["topicConfigSerializeWrapper"]
    return found


def test_change_is_registered_alone_and_at_once_with_the_new_version(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    for name in ("TopicA", "TopicB"):
        peer.broker.create_topic(name)
        [request] = peer.sent()
        table = wrapper(request)
        assert set(table["topicConfigTable"]) == {name}
        assert table["dataVersion"] == peer.broker.node.topics.version.as_json() == table["tandemDataVersion"]
        assert request.fields["brokerId"] == "0"
    peer.broker.send("TopicC")
    assert peer.topics_sent() == [{"TopicC"}], "although the others are not answered yet"
    peer.broker.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "TopicA"})
    assert peer.sent() == [], "name servers keep what a registration lacks"
    peer.broker.pass_time(30_000)
    assert peer.topics_sent() == [peer.every_topic()]


def test_changes_beyond_the_window_are_gathered(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    for number in range(CHANGES_MAX + 5):
        peer.broker.create_topic(f"Topic{number}")
    sent = peer.sent()
    assert len(sent) == CHANGES_MAX
    peer.answer(sent[:1])
    assert peer.topics_sent() == [{f"Topic{CHANGES_MAX + number}" for number in range(5)}]


def test_refused_change_has_all_topics_sent_with_a_version_that_the_name_server_does_not_know(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    peer.broker.create_topic("TopicA")
    first = peer.sent()
    peer.broker.create_topic("TopicB")
    second = peer.sent()
    peer.answer(first, ResponseCode.SYSTEM_BUSY)
    assert peer.broker.node.registration.registered == set()
    peer.answer(second)
    peer.broker.pass_time(30_000)
    [request] = peer.sent()
    assert set(wrapper(request)["topicConfigTable"]) == peer.every_topic()
    assert wrapper(request)["dataVersion"] != wrapper(second[0])["dataVersion"], (
        "RocketMQ skips the topics of a known one"
    )
    assert wrapper(request)["tandemDataVersion"] == wrapper(second[0])["dataVersion"]
    peer.answer([request])
    assert peer.broker.node.registration.registered == {OTHER}
    peer.broker.create_topic("TopicC")
    assert peer.topics_sent() == [{"TopicC"}]


def test_change_refused_while_all_topics_are_in_flight_has_them_sent_again(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    peer.broker.pass_time(30_000)
    every = peer.sent()
    peer.broker.create_topic("TopicA")
    peer.answer(peer.sent(), ResponseCode.SYSTEM_BUSY)
    assert peer.sent() == []
    peer.answer(every)
    again = peer.sent()
    assert set(wrapper(again[0])["topicConfigTable"]) == peer.every_topic()
    peer.answer(again)
    assert peer.sent() == []


def test_name_server_that_is_connected_anew_gets_all_topics_before_changes(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    peer.broker.close(peer.link)
    peer.broker.create_topic("TopicA")
    peer.connect()
    [request] = peer.sent()
    assert set(wrapper(request)["topicConfigTable"]) == peer.every_topic()
    peer.broker.create_topic("TopicB")
    assert peer.sent() == [], "it is not known yet whether it accepts the others"
    peer.answer([request])
    assert peer.topics_sent() == [{"TopicB"}]


def test_change_of_all_topics_while_they_are_in_flight_is_sent_when_they_are_answered(tmp_path: Path) -> None:
    peer = Changing(tmp_path)
    peer.broker.pass_time(30_000)
    every = peer.sent()
    body = b"brokerPermission=4"
    assert peer.broker.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body).code == ResponseCode.SUCCESS
    assert peer.sent() == []
    peer.answer(every)
    [request] = peer.sent()
    assert {config["perm"] & 2 for config in wrapper(request)["topicConfigTable"].values()} == {0}


def test_single_topics_are_registered_in_requests_of_their_own_if_set(tmp_path: Path) -> None:
    peer = Changing(tmp_path, single_topic_register=True)
    for name in ("TopicA", "TopicB"):
        peer.broker.create_topic(name, 3)
    assert peer.sent() == []
    requests = peer.broker.take_requests(RequestCode.REGISTER_TOPIC_IN_NAMESRV, link=peer.link)
    assert [request.fields["topic"] for request in requests] == ["TopicA", "TopicB"]
    [queues] = loads(requests[1].body)["queueDatas"]
    assert queues == {"brokerName": "broker-a", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 3}
    server = NameServer(tiny_name_server(), SimDisk(Random(1)))
    now, link = peer.broker.now, 7
    server.turn([], [Opened(link, LinkKind.REMOTING, "10.0.0.1:40000")], now)
    peer.broker.pass_time(30_000)
    for request in [*peer.sent(), *requests]:
        assert len(server.turn([(link, encode_command(request))], [], now).sends[link]) == 1
    assert len(server.broker_hosts()) == 1
    peer.answer(requests[:1])
    peer.answer(requests[1:], ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
    peer.broker.create_topic("TopicC")
    assert peer.sent() == [], "all topics are in flight"


def test_slave_leaves_single_topics_to_its_master(tmp_path: Path) -> None:
    peer = Changing(tmp_path, single_topic_register=True, role="SLAVE", broker_id=1, ha_master_address="10.0.0.1:1")
    topics = peer.broker.node.topics
    version = topics.version.copy()
    version.next(peer.broker.now.wall_ms)
    topics.follow([TopicConfig("TopicA")], [], version)
    peer.broker.turn()
    assert peer.broker.take_requests(RequestCode.REGISTER_TOPIC_IN_NAMESRV, link=peer.link) == []


def test_routes_of_a_name_server_follow_single_changes(tmp_path: Path) -> None:
    server = NameServer(tiny_name_server(), SimDisk(Random(1)))
    peer = Changing(tmp_path)
    now, link = peer.broker.now, 7
    server.turn([], [Opened(link, LinkKind.REMOTING, "10.0.0.1:40000")], now)
    peer.broker.pass_time(30_000)

    def carry() -> None:
        for request in peer.sent():
            server.turn([(link, encode_command(request))], [], now)
            peer.answer([request])

    def queues(topic: str) -> int:
        route = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 1, fields={"topic": topic}, version=477)
        sends = server.turn([(link, encode_command(route))], [], now).sends[link]
        decoder = FrameDecoder()
        [frame] = decoder.feed(b"".join(sends))
        body = decode_command(frame).body
        return int(loads(body)["queueDatas"][0]["writeQueueNums"]) if body else 0

    carry()
    for name, count in (("TopicA", 4), ("TopicB", 2), ("TopicA", 6)):
        peer.broker.create_topic(name, count)
        carry()
    assert [queues(name) for name in ("TopicA", "TopicB", "SELF_TEST_TOPIC", "TopicC")] == [6, 2, 1, 0]
