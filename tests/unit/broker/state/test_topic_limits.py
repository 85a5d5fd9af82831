"""Limits of topics, so that name servers and slaves accept all of them: attributes, number, size of the table; handling
of a table that exceeds them already; registration in pieces."""

import json
import logging
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import Closed, LinkKind, Opened
from tandemq.broker.features.delay.service import DelayedMessages
from tandemq.broker.ha import registration
from tandemq.broker.kernel import serving
from tandemq.broker.state import topics
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.frame import FRAME_BYTES_MAX, encode_command
from tandemq.config.settings import NameServerConfig
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.topic import TopicConfig
from tandemq.nameserver import NameServer
from tandemq.storage.json_tables import DataVersion
from tests.request_fields import topic_fields
from tests.serving import let
from tests.unit.broker.harness import ADDRESS, Harness
from tests.unit.nameserver.driver import answers_in

NAME_SERVER = "10.0.0.9:9876"
FRAME_BYTES = 16 << 20


class Registered:
    """A broker and a name server, connected by the broker's connection."""

    def __init__(self, path: Path) -> None:
        self.server = NameServer(NameServerConfig(), SimDisk(Random(1)))
        self.broker = Harness(path, name_servers=(NAME_SERVER,), frame_bytes_max=FRAME_BYTES)
        self.server_closes: list[tuple[int, str]] = []
        self._link = 0
        self.carry()

    def carry(self) -> None:
        """Exchange requests and responses until there are none."""
        broker = self.broker
        for connect in broker.connects:
            self._link = connect.link
            self.server.turn([], [Opened(1, LinkKind.REMOTING, "10.0.0.1:5000")], broker.now)
            broker.open(connect.link, connect.kind, NAME_SERVER)
        broker.connects.clear()
        while requests := broker.inbox.pop(self._link, []):
            data = b"".join(map(encode_command, requests))
            turn = self.server.turn([(1, data)], [], broker.now)
            self.server_closes += turn.closes
            answers = answers_in(turn, 1)
            if answers:
                broker.turn([(self._link, b"".join(map(encode_command, answers)))])

    def run(self, ms: int) -> None:
        for _ in range(ms // 1_000):
            self.broker.pass_time(1_000)
            self.server.turn([], [], self.broker.now)
            self.carry()

    def restart(self) -> None:
        """Restart the broker on its store."""
        self.server.turn([], [Closed(1, "the peer closed it")], self.broker.now)
        self.broker = self.broker.restart(name_servers=(NAME_SERVER,), frame_bytes_max=FRAME_BYTES)
        self.carry()

    def ask(self, code: int, **fields: str) -> Command:
        request = Command(code, 1, fields=fields)
        self.server.turn([], [Opened(2, LinkKind.REMOTING, "10.0.0.2:5000")], self.broker.now)
        [answer] = answers_in(self.server.turn([(2, encode_command(request))], [], self.broker.now), 2)
        self.server.turn([], [Closed(2, "done")], self.broker.now)
        return answer

    def is_in_route(self, topic: str) -> bool:
        answer = self.ask(Code.GET_ROUTEINFO_BY_TOPIC, topic=topic)
        return answer.code == ResponseCode.SUCCESS and ADDRESS.encode() in answer.body

    def routed_topics(self) -> set[str]:
        return set(json.loads(self.ask(Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).body)["topicList"])


def create(broker: Harness, topic: str, **changes: object) -> Command:
    return broker.ask(Code.UPDATE_AND_CREATE_TOPIC, topic_fields(topic) | changes)


def create_many(broker: Harness, first: int, stop: int) -> Command:
    table = [{"topicName": f"T{number:06}", "readQueueNums": 1, "writeQueueNums": 1} for number in range(first, stop)]
    return broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, dumps({"topicConfigList": table}))


def stored_topics(path: Path, **attributes: dict[str, str]) -> None:
    """Write a table of topics in the form of RocketMQ 5."""
    table = {
        name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "attributes": found}
        for name, found in attributes.items()
    }
    (path / "config").mkdir(parents=True)
    (path / "config" / "topics.json").write_bytes(dumps({"dataVersion": {"counter": 7}, "topicConfigTable": table}))


# Attributes.


def test_topics_with_nine_megabytes_of_attributes_are_refused_and_the_master_stays_in_the_routes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    both = Registered(tmp_path)
    assert create(both.broker, "Good").code == ResponseCode.SUCCESS
    for name in ("Big1", "Big2"):
        answer = create(both.broker, name, attributes="+message.type=" + "x" * 9_000_000)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "at most 16384" in (answer.remark or "")
    body = {"topicConfigList": [{"topicName": "Big3", "attributes": {"+message.type": "x" * 3_000_000}}]}
    answer = both.broker.ask(Code.UPDATE_AND_CREATE_TOPIC_LIST, None, dumps(body))
    assert "at most 16384" in (answer.remark or "")
    assert create(both.broker, "Big4", topicFilterType="x" * 9_000_000).code == ResponseCode.SYSTEM_ERROR
    both.run(150_000)
    assert both.is_in_route("Good")
    both.restart()
    both.run(150_000)
    assert both.is_in_route("Good")
    assert both.server_closes == []
    assert sum(map(len, caplog.messages)) < 20_000


def test_too_long_attributes_of_a_stored_topic_are_dropped_at_the_start(tmp_path: Path) -> None:
    stored_topics(tmp_path, Big={"other": "x" * 9_000_000}, Kept={"newer": "1"})
    both = Registered(tmp_path)
    assert both.is_in_route("Big")
    assert both.broker.json(Code.GET_TOPIC_CONFIG, {"topic": "Big"})["attributes"] == {}
    assert both.broker.json(Code.GET_TOPIC_CONFIG, {"topic": "Kept"})["attributes"] == {"newer": "1"}


def as_batches(path: Path, name: str) -> None:
    """Make a stored topic one of batch queues, as if a Java broker had created it."""
    table = loads((path / "config" / "topics.json").read_bytes())
    table["topicConfigTable"][name]["attributes"] = {"queue.type": "BatchCQ"}
    (path / "config" / "topics.json").write_bytes(dumps(table))
    shutil.rmtree(path / "consumequeue" / name)


def test_topic_of_batch_queues_is_not_served_and_stays_as_it_is_beside_others(tmp_path: Path) -> None:
    before = Harness(tmp_path)
    for topic in ("Batches", "Plain"):
        before.send(topic, b"one")
    before.pass_time(20_000)
    before.node.close()
    as_batches(tmp_path, "Batches")
    queue = tmp_path / "batchconsumequeue" / "Batches" / "0" / ("0" * 20)
    queue.parent.mkdir(parents=True)
    queue.write_bytes(bytes(range(46)))
    (tmp_path / "tandemq.marks").unlink()  # the whole log is read again
    (tmp_path / "abort").touch()

    broker = Harness(tmp_path)

    for refused in (
        broker.send("Batches", b"two"),
        broker.pull("Batches"),
        create(broker, "Batches"),
        broker.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Batches"}),
    ):
        assert refused is not None
        assert refused.code in (ResponseCode.NO_PERMISSION, ResponseCode.SYSTEM_ERROR)
        assert "topic[Batches] has queue.type=BatchCQ" in (refused.remark or "")
    assert broker.send("Plain", b"two").fields["queueOffset"] == "1"
    create(broker, "New")
    broker.node.close()
    table = loads((tmp_path / "config" / "topics.json").read_bytes())["topicConfigTable"]
    assert table["Batches"]["attributes"] == {"queue.type": "BatchCQ"}
    assert queue.read_bytes() == bytes(range(46))
    assert not (tmp_path / "consumequeue" / "Batches").exists()
    assert (tmp_path / "consumequeue" / "Plain").exists()


def test_topic_of_batch_queues_of_the_master_is_not_served_by_its_slave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = Harness(tmp_path)
    broker.send("Batches", b"of an ordinary topic")
    version = DataVersion(broker.now.wall_ms, 500)
    batches = TopicConfig("Batches", attributes={"queue.type": "BatchCQ"})

    broker.node.topics.follow([TopicConfig("Plain"), batches], [], version)

    assert broker.node.topics.get("Plain") is not None
    assert broker.node.topics.get("Batches") is None
    assert any("Batches" in line and "not supported" in line for line in caplog.messages)
    assert broker.node.topics.as_json(["Batches"])["topicConfigTable"] == {"Batches": batches}
    assert not [topic for topic, _ in broker.node.store.queues if topic == "Batches"]
    assert broker.node.store.without_queues == {"Batches"}
    broker.turn()
    again = broker.restart(clean=False)
    assert again.node.topics.unserved_remark("Batches") is not None
    again.node.topics.replace([TopicConfig("Plain")], version)
    assert again.node.topics.unserved_remark("Batches") is None
    assert not again.node.store.without_queues


def test_stored_topic_with_compaction_is_served_with_a_warning_about_deletion_by_age(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored_topics(tmp_path, Compacted={"cleanup.policy": "COMPACTION"})
    broker = Harness(tmp_path)
    assert broker.send("Compacted").code == ResponseCode.SUCCESS
    assert any("topic=Compacted" in line and "deleted by age" in line for line in caplog.messages)


# How many.


def test_hundred_thousand_topics_exceed_the_limit_and_all_accepted_ones_are_routed_and_copied(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    both = Registered(tmp_path)
    answers = []
    for first in range(0, 101_000, 10_000):
        answers.append(create_many(both.broker, first, min(first + 10_000, 101_000)))
        both.carry()
    refused = [answer.remark or "" for answer in answers if answer.code == ResponseCode.SYSTEM_ERROR]
    assert refused
    assert all("at most" in remark and "delete unused topics" in remark for remark in refused)
    taken = {name for name in both.broker.node.topics.table if name.startswith("T0")}
    assert 30_000 <= len(taken) <= 45_000
    assert taken <= both.routed_topics()
    assert create(both.broker, "T000000", readQueueNums=3).code == ResponseCode.SUCCESS, "changes are still accepted"
    both.run(150_000)
    assert both.is_in_route(max(taken))
    both.restart()
    both.run(60_000)
    assert taken <= both.routed_topics()
    assert both.server_closes == []
    table = both.broker.ask(Code.GET_ALL_TOPIC_CONFIG)
    assert len(encode_command(table)) < FRAME_BYTES_MAX
    assert taken <= json.loads(table.body)["topicConfigTable"].keys()
    assert sum(map(len, caplog.messages)) < 20_000


@pytest.fixture
def full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A broker with 20 topics, the maximum that operators and producers may create."""
    monkeypatch.setattr(topics, "TOPICS_MAX", 22)
    broker = Harness(tmp_path)
    while len(broker.node.topics.table) < 19:
        assert create(broker, f"Topic{len(broker.node.topics.table)}").code == ResponseCode.SUCCESS
    return broker


def test_topic_beyond_the_limit_is_refused_where_it_is_created(full: Harness) -> None:
    names = set(full.node.topics.table)
    for answer in (create(full, "More"), create_many(full, 0, 1), full.send("More")):
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "this broker has 19 topics, at most 19 are allowed" in (answer.remark or "")
    assert set(full.node.topics.table) == names
    assert full.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Topic12"}).code == ResponseCode.SUCCESS
    assert full.send("More").code == ResponseCode.SUCCESS


def test_topics_of_consumer_groups_have_a_reserved_share_and_are_then_refused_too(full: Harness) -> None:
    for number in range(5):
        assert full.heartbeat(f"g{number}", client_id=f"c{number}").code == ResponseCode.SUCCESS
    own = [name for name in full.node.topics.table if name.startswith("%RETRY%")]
    assert own == ["%RETRY%g0", "%RETRY%g1", "%RETRY%g2"]
    for name in ("%RETRY%g3", "%DLQ%g3"):
        answer = full.send(name)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "at most" in (answer.remark or "")
    full.ask(Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, dumps({"groupName": "g4"}))
    full.send("Topic12")
    back = full.ask(Code.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "g4", "delayLevel": 0, "unitMode": False})
    assert back.code == ResponseCode.SYSTEM_ERROR
    assert "no room" in (back.remark or "")
    for level in (0, -1):
        back = full.ask(
            Code.CONSUMER_SEND_MSG_BACK, {"offset": 0, "group": "g0", "delayLevel": level, "unitMode": False}
        )
        assert back.code == (ResponseCode.SUCCESS if level == 0 else ResponseCode.SYSTEM_ERROR)


def test_delayed_message_of_a_deleted_topic_is_delivered_although_the_table_is_full(full: Harness) -> None:
    full.send("Topic12", b"late", DELAY="1")
    full.ask(Code.DELETE_TOPIC_IN_BROKER, {"topic": "Topic12"})
    for number in range(4):
        full.heartbeat(f"g{number}", client_id=f"c{number}")
    create(full, "Other")
    full.pass_time(5_000)
    assert full.node.store.queue("Topic12", 0).max_offset == 1
    assert full.node.features.find(DelayedMessages).delivered == 1


def test_size_of_the_table_is_limited_by_the_maximum_frame_of_the_broker(tmp_path: Path) -> None:
    broker = Harness(tmp_path)
    most = broker.config.frame_bytes_max
    names = (f"%RETRY%{'g' * 240}{number}" for number in range(10_000))
    refused = next(answer for answer in (broker.send(name) for name in names) if answer.code)
    assert "so that a slave can copy them" in (refused.remark or "")
    assert most // 2 < len(broker.ask(Code.GET_ALL_TOPIC_CONFIG).body) < most * 3 // 4


def test_table_beyond_the_limit_is_served_and_registered_and_accepts_no_new_topics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_topics(tmp_path, **{f"T{number:04}": {} for number in range(300)})
    monkeypatch.setattr(topics, "TOPICS_MAX", 100)
    monkeypatch.setattr(registration, "PIECE_TOPICS", 40)
    both = Registered(tmp_path)
    assert {f"T{number:04}" for number in range(300)} <= both.routed_topics()
    assert create(both.broker, "More").code == ResponseCode.SYSTEM_ERROR
    assert create(both.broker, "T0001", perm=4).code == ResponseCode.SUCCESS
    assert both.broker.send("T0002").code == ResponseCode.SUCCESS


def test_table_that_does_not_fit_into_a_frame_is_refused_with_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Harness(tmp_path)
    monkeypatch.setattr("tandemq.broker.ha.metadata_tables.FRAME_BYTES_MAX", 64 * 1024 + 100)
    for code in (Code.GET_ALL_TOPIC_CONFIG, Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG):
        answer = broker.ask(code)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "more than" in (answer.remark or "")


@pytest.mark.parametrize(("version", "attributes"), [(409, {"message.type": "FIFO"}), (477, {}), (479, {})])
def test_slaves_without_support_for_attributes_get_the_table_without_them(
    tmp_path: Path, version: int, attributes: dict[str, str]
) -> None:
    broker = Harness(tmp_path)
    fields = {"topic": "Typed", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": "+message.type=FIFO"}
    assert broker.ask(Code.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS
    table = broker.json(Code.GET_ALL_TOPIC_CONFIG, version=version)["topicConfigTable"]
    assert table["Typed"]["attributes"] == attributes
    assert broker.node.topics.table["Typed"].config.attributes == {"message.type": "FIFO"}
    assert broker.ask(Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, version=version).code == ResponseCode.SUCCESS


# Pieces.


def pieces(broker: Harness) -> list[dict[str, Any]]:
    [link] = {connect.link for connect in broker.connects}
    sent = broker.take_requests(Code.REGISTER_BROKER, link=link)
    return [json.loads(command.body)["topicConfigSerializeWrapper"] for command in sent]


@pytest.fixture
def in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """A broker that registers ten topics in pieces of four; its name server is connected and does not respond."""
    monkeypatch.setattr(registration, "PIECE_TOPICS", 4)
    broker = Harness(tmp_path, name_servers=(NAME_SERVER,))
    [connect] = broker.connects
    broker.open(connect.link, connect.kind, NAME_SERVER)
    return broker


def test_each_piece_of_a_registration_has_its_own_data_version(in_pieces: Harness) -> None:
    sent = pieces(in_pieces)
    assert [len(piece["topicConfigTable"]) for piece in sent] == [4, 4, 2]
    whole = in_pieces.node.topics.version.as_json()
    assert [piece["tandemDataVersion"] for piece in sent] == [whole] * 3
    assert [whole["timestamp"] - piece["dataVersion"]["timestamp"] for piece in sent] == [2, 1, 0]
    assert {name for piece in sent for name in piece["topicConfigTable"]} == set(in_pieces.node.topics.table)


@pytest.mark.parametrize("merges_new_topics", [False, True], ids=["4.9", "5.3"])
def test_name_server_of_rocketmq_accepts_every_piece_and_every_change(
    in_pieces: Harness, merges_new_topics: bool
) -> None:
    """Its rule (RouteInfoManager.registerBroker): topics are entered if their data version is a new one; 5.x
    enters unknown topics in any case."""
    stored: dict[str, Any] = {}
    version: object = None

    def register() -> None:
        nonlocal version
        sent = in_pieces.take_requests(Code.REGISTER_BROKER, link=link)
        for command in sent:
            in_pieces.reply(command, link=link)
            piece = json.loads(command.body)["topicConfigSerializeWrapper"]
            is_changed = piece["dataVersion"] != version
            version = piece["dataVersion"]
            for name, config in piece["topicConfigTable"].items():
                if is_changed or (merges_new_topics and name not in stored):
                    stored[name] = config["writeQueueNums"]

    def everything() -> dict[str, int]:
        return {name: topic.config.write_queue_nums for name, topic in in_pieces.node.topics.table.items()}

    [link] = {connect.link for connect in in_pieces.connects}
    register()
    assert stored == everything()
    for queues in (2, 7):  # a new topic, then a change of it
        in_pieces.create_topic("Late", queues)
        register()
        assert stored == everything()


def test_change_while_pieces_are_in_flight_is_sent_when_they_are_answered(in_pieces: Harness) -> None:
    [link] = {connect.link for connect in in_pieces.connects}
    first = in_pieces.take_requests(Code.REGISTER_BROKER, link=link)
    for name in "abc":
        create(in_pieces, name)
    assert pieces(in_pieces) == []
    for request in first[:-1]:
        in_pieces.reply(request, link=link)
    assert in_pieces.node.registration.registered == set()
    in_pieces.reply(first[-1], link=link)
    assert in_pieces.node.registration.registered == {NAME_SERVER}
    sent = pieces(in_pieces)
    assert {"a", "b", "c"} <= {name for piece in sent for name in piece["topicConfigTable"]}


def test_refused_piece_is_logged_with_its_reason(in_pieces: Harness, caplog: pytest.LogCaptureFixture) -> None:
    [link] = {connect.link for connect in in_pieces.connects}
    first = in_pieces.take_requests(Code.REGISTER_BROKER, link=link)
    in_pieces.reply(first[0], link=link)
    in_pieces.reply(first[1], link=link, code=ResponseCode.SYSTEM_ERROR, remark="too many " + "x" * 10_000)
    in_pieces.reply(first[2], link=link)
    assert in_pieces.node.registration.registered == set()
    [line] = [line for line in caplog.messages if "failure=" in line]
    assert "refused: too many xxx" in line
    assert len(line) < 500


def test_new_role_is_registered_at_once_although_pieces_are_in_flight(in_pieces: Harness) -> None:
    pieces(in_pieces)
    node = in_pieces.node
    let(node, registered=serving.Registered(1, 5))
    in_pieces.turn()
    assert [piece["dataVersion"]["stateVersion"] for piece in pieces(in_pieces)] == [5, 5, 5]
