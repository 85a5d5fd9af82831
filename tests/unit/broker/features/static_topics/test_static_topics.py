"""Requests about logical queues: of one broker, and of queues that moved between brokers."""

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from lab.sim.workload.static_topic_requests import segment
from tandemq.broker.features.static_topics.cleaning import leaders_in
from tandemq.broker.features.static_topics.forwarding import FORWARDED_MAX
from tandemq.broker.kernel.pulls import LINK_BYTES_MAX
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.queue_mapping import LogicalQueue, QueueMapping, QueueSegment
from tandemq.model.topic import TopicConfig
from tests.serving import let
from tests.spec import spec
from tests.unit.broker.features.static_topics.wired import EPOCH, WiredBrokers, gens, mapping_of
from tests.unit.broker.harness import CLIENT, SUSPEND, Harness, messages_in, send_fields

TOPIC = "Static"
BLOCK = 10_000
GROUP = {"consumerGroup": "group", "topic": TOPIC}


@pytest.fixture
def brokers(tmp_path: Path) -> WiredBrokers:
    """Two brokers; logical queue 0 is queue 1 of a, logical queue 1 is queue 0 of b."""
    wired = WiredBrokers(tmp_path, "a", "b")
    wired.create(TOPIC, {0: [segment(0, "a", 1, 0)], 1: [segment(0, "b", 0, 0)]})
    return wired


def move(brokers: WiredBrokers, queue_id: int, segments: list[dict[str, object]], *, epoch: int) -> None:
    """Move a logical queue to the broker of the last segment, in the steps of `mqadmin remappingStaticTopic`."""
    old, new = str(segments[-2]["bname"]), str(segments[-1]["bname"])
    others = {name: broker.node.topics.mappings.table[TOPIC] for name, broker in brokers.brokers.items()}
    unplaced = [*segments[:-1], segments[-1] | {"logicOffset": -1}]
    for name, last in ((new, unplaced), (old, unplaced), (new, segments)):
        assert others[name].topic == TOPIC
        answer = brokers.update(name, mapping_of(TOPIC, name, {queue_id: last}, epoch=epoch), queues=4)
        assert answer.code == ResponseCode.SUCCESS, answer.remark
    for name in brokers.brokers.keys() - {old, new}:
        assert brokers.update(name, mapping_of(TOPIC, name, {}, epoch=epoch), queues=4).code == 0


@spec("L01")
def test_send_to_logical_queue_is_stored_in_the_queue_that_it_is_mapped_to(brokers: WiredBrokers) -> None:
    first, second = (brokers.send("a", TOPIC, 0, body) for body in (b"one", b"two"))

    assert (first.code, first.fields["queueId"], first.fields["queueOffset"]) == (0, "0", "0")
    assert second.fields["queueOffset"] == "1"
    assert brokers["a"].node.store.queues[TOPIC, 1].max_offset == 2
    assert (TOPIC, 0) not in brokers["a"].node.store.queues
    answer = brokers.pull("a", TOPIC, 0, 0)
    assert [message.body for message in messages_in(answer)] == [b"one", b"two"]
    assert (answer.fields["nextBeginOffset"], answer.fields["offsetDelta"]) == ("2", "0")


@spec("L01")
def test_broker_that_does_not_lead_a_logical_queue_refuses_all_its_requests(brokers: WiredBrokers) -> None:
    codes = (
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_MIN_OFFSET,
        RequestCode.QUERY_CONSUMER_OFFSET,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_EARLIEST_MSG_STORETIME,
    )
    fields = GROUP | {"queueId": 0, "commitOffset": 1, "timestamp": 0}
    refused = [
        brokers.send("b", TOPIC, 0, b"x"),
        brokers.pull("b", TOPIC, 0, 0),
        brokers.pull("a", TOPIC, 7, 0),
        *[brokers.ask("b", code, fields) for code in codes],
    ]

    assert {answer.code for answer in refused} == {ResponseCode.NOT_LEADER_FOR_QUEUE}
    assert "another broker takes its messages" in (refused[0].remark or "")
    assert not brokers["b"].node.store.log.written_end


@spec("L01")
def test_logical_queue_with_the_id_of_another_queue_is_not_confused_with_it(tmp_path: Path) -> None:
    wired = WiredBrokers(tmp_path, "a")
    wired.create(TOPIC, {0: [segment(0, "a", 1, 0)], 1: [segment(0, "a", 0, 0)]})
    for _ in range(2):  # from the second time on the queues are open
        for queue_id in (0, 1):
            assert wired.send("a", TOPIC, queue_id, b"%d" % queue_id).fields["queueId"] == str(queue_id)

    assert set(wired.consume("a", TOPIC, 0).values()) == {b"0"}
    assert set(wired.consume("a", TOPIC, 1).values()) == {b"1"}


def test_send_without_a_queue_goes_to_one_that_the_broker_leads(brokers: WiredBrokers) -> None:
    assert brokers.send("b", TOPIC, -1, b"any").fields["queueId"] == "1"


def test_other_topics_are_not_touched(brokers: WiredBrokers) -> None:
    sent = brokers.send("a", "Plain", 3, b"plain")

    assert (sent.code, sent.fields["queueId"]) == (0, "3")
    assert "offsetDelta" not in brokers.pull("a", "Plain", 3, 0).fields


def test_request_with_lo_false_is_about_the_queue_of_the_broker(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"one")

    answer = brokers.ask("a", RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": 1, "lo": "false"})
    assert answer.fields == {"offset": "1"}


@spec("L02")
def test_consumer_reads_a_queue_across_brokers_in_order_and_once(brokers: WiredBrokers) -> None:
    segments = [segment(0, "a", 1, 0)]
    for gen, (holder, queue_id) in enumerate((("b", 2), ("a", 3)), start=1):
        for number in range(3):
            sent = brokers.send(str(segments[-1]["bname"]), TOPIC, 0, b"%d-%d" % (gen, number))
            assert sent.fields["queueOffset"] == str((gen - 1) * BLOCK + number)
        segments.append(segment(gen, holder, queue_id, gen * BLOCK))
        move(brokers, 0, segments, epoch=EPOCH + gen)
    brokers.send("a", TOPIC, 0, b"3-0")

    found = brokers.consume("a", TOPIC, 0)

    assert found == {
        **{number: b"1-%d" % number for number in range(3)},
        **{BLOCK + number: b"2-%d" % number for number in range(3)},
        2 * BLOCK: b"3-0",
    }
    assert brokers.send("b", TOPIC, 0, b"x").code == ResponseCode.NOT_LEADER_FOR_QUEUE
    assert brokers.offset("a", RequestCode.GET_MAX_OFFSET, TOPIC, 0) == 2 * BLOCK + 1
    assert brokers.offset("a", RequestCode.GET_MIN_OFFSET, TOPIC, 0) == 0


@spec("L02")
def test_offsets_of_a_group_are_kept_with_the_segment_and_found_there(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"one")
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    query = {"queueId": 0, **GROUP}

    assert brokers.ask("b", RequestCode.QUERY_CONSUMER_OFFSET, query).code == ResponseCode.QUERY_NOT_FOUND
    assert brokers.ask("b", RequestCode.UPDATE_CONSUMER_OFFSET, query | {"commitOffset": 1}).code == 0
    assert brokers["a"].node.offsets.get(TOPIC, "group", 1) == 1
    assert brokers.offset("b", RequestCode.QUERY_CONSUMER_OFFSET, TOPIC, 0, consumerGroup="group") == 1
    brokers.pull("b", TOPIC, 0, BLOCK, flags=1, commit=BLOCK + 5)
    assert brokers["b"].node.offsets.get(TOPIC, "group", 2) == 5
    assert brokers.offset("b", RequestCode.QUERY_CONSUMER_OFFSET, TOPIC, 0, consumerGroup="group") == BLOCK + 5


def test_offset_of_a_time_is_found_in_the_segment_with_the_message(brokers: WiredBrokers) -> None:
    early = brokers["a"].now.wall_ms
    brokers.send("a", TOPIC, 0, b"one")
    brokers.pass_time(60_000)
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    late = brokers["b"].now.wall_ms
    brokers.send("b", TOPIC, 0, b"two")
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP

    assert brokers.offset("b", search, TOPIC, 0, timestamp=early) == 0
    assert brokers.offset("b", search, TOPIC, 0, timestamp=early + 1) == BLOCK
    assert brokers.offset("b", search, TOPIC, 0, timestamp=late) == BLOCK
    earliest = brokers.ask("b", RequestCode.GET_EARLIEST_MSG_STORETIME, {"topic": TOPIC, "queueId": 0})
    assert earliest.fields == {"timestamp": str(early)}


def test_queue_that_is_being_moved_takes_messages_that_are_read_once_it_has_its_place(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"old")
    unplaced = [segment(0, "a", 1, 0), segment(1, "b", 2, -1)]
    assert brokers.update("b", mapping_of(TOPIC, "b", {0: unplaced}, epoch=EPOCH + 1), queues=4).code == 0

    sent = brokers.send("b", TOPIC, 0, b"new")
    assert (sent.code, sent.fields["queueOffset"]) == (0, "-1")
    assert brokers.consume("b", TOPIC, 0) == {0: b"old"}
    placed = mapping_of(TOPIC, "b", {0: [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)]}, epoch=EPOCH + 1)
    assert brokers.update("b", placed, queues=4).code == 0
    assert brokers.consume("b", TOPIC, 0) == {0: b"old", BLOCK: b"new"}


def test_message_that_may_not_be_shown_yet_holds_consumers_in_its_segment(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"shown")
    end = brokers["a"].node.store.log.written_end
    brokers.send("a", TOPIC, 0, b"not replicated yet")
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    let(brokers["a"].node, visible_end=end)

    answer = brokers.pull("b", TOPIC, 0, 1)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")
    let(brokers["a"].node, visible_end=1 << 62)
    assert brokers.consume("b", TOPIC, 0) == {0: b"shown", 1: b"not replicated yet"}


def test_pull_at_the_end_of_an_older_segment_does_not_wait(brokers: WiredBrokers) -> None:
    segments = [segment(0, "a", 1, 0)]
    brokers.send("a", TOPIC, 0, b"shown")
    end = brokers["a"].node.store.log.written_end
    brokers.send("a", TOPIC, 0, b"not replicated yet")
    for gen, (holder, queue_id) in enumerate((("b", 2), ("a", 3)), start=1):
        segments.append(segment(gen, holder, queue_id, gen * BLOCK))
        move(brokers, 0, segments, epoch=EPOCH + gen)

    answer = brokers.pull("a", TOPIC, 0, 2, flags=SUSPEND)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(BLOCK))
    answer = brokers.pull("a", TOPIC, 0, BLOCK, flags=SUSPEND)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, str(2 * BLOCK))
    let(brokers["a"].node, visible_end=end)
    answer = brokers.pull("a", TOPIC, 0, 1, flags=SUSPEND)
    assert (answer.code, answer.fields["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "1")


@spec("L03")
@pytest.mark.parametrize("properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "5"}, {"TRAN_MSG": "true", "PGROUP": "p"}])
def test_message_that_becomes_due_later_is_refused(brokers: WiredBrokers, properties: dict[str, str]) -> None:
    answer = brokers.send("a", TOPIC, 0, b"later", **properties)

    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "may not be delayed or transactional" in (answer.remark or "")
    assert not brokers["a"].node.store.log.written_end


def test_broker_that_does_not_answer_is_named_and_its_address_asked_for_again(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"one")
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    brokers.pull("b", TOPIC, 0, 0)
    routes = brokers.routes
    brokers.silent.add("a")
    waiting = brokers["b"]
    opaque = waiting.send_request(
        RequestCode.PULL_MESSAGE,
        GROUP | {"queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4, "subscription": "*"},
    )
    brokers.settle()
    waiting.pass_time(3_000)

    answer = waiting.answer_to(opaque)
    assert answer is not None
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "broker a, which has an older part of this queue, does not answer; try again",
    )
    brokers.silent.clear()
    assert brokers.consume("b", TOPIC, 0) == {0: b"one"}
    assert brokers.routes == routes + 1


def test_pull_that_waits_is_answered_when_its_queue_moves(brokers: WiredBrokers) -> None:
    fields = GROUP | {"queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 4 | SUSPEND, "subscription": "*"}
    opaque = brokers["a"].send_request(RequestCode.PULL_MESSAGE, fields | {"suspendTimeoutMillis": 15_000})
    assert brokers["a"].answer_to(opaque) is None

    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)

    answer = brokers["a"].answer_to(opaque)
    assert answer is not None
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_logical_queue_is_locked_at_its_leader_only(brokers: WiredBrokers) -> None:
    queue = {"topic": TOPIC, "queueId": 1, "brokerName": "__syslo__global__"}
    body = dumps({"consumerGroup": "group", "clientId": "c", "mqSet": [queue]})

    assert brokers["b"].json(RequestCode.LOCK_BATCH_MQ, None, body) == {"lockOKMQSet": [queue]}
    assert brokers["a"].json(RequestCode.LOCK_BATCH_MQ, None, body) == {"lockOKMQSet": []}


# The tables.


@spec("L04")
def test_mapping_is_saved_with_the_answer_and_kept_over_a_kill(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"one")
    stored = loads(brokers["a"].disk.read("config/topicQueueMapping.json") or b"")
    assert stored["topicQueueMappingInfoMap"][TOPIC]["hostedQueues"] == {"0": [segment(0, "a", 1, 0)]}

    again = brokers["a"].restart(clean=False)

    fields = {"topic": TOPIC, "lo": "true"}
    detail = again.json(RequestCode.GET_TOPIC_CONFIG, fields)["mappingDetail"]
    assert (detail["epoch"], detail["totalQueues"], detail["currIdMap"]) == (EPOCH, 2, {"0": 1})
    assert again.send(TOPIC, queue_id=0).fields["queueOffset"] == "1"
    assert "mappingDetail" not in again.json(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC})


@spec("L04")
def test_file_of_a_java_broker_is_read(tmp_path: Path, brokers: WiredBrokers) -> None:
    broker = brokers["a"]
    broker.node.close()
    java = (
        b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1},"topicQueueMappingInfoMap":{"Static":{"bname":"a",'
        b'"currIdMap":{},"dirty":false,"epoch":7,"hostedQueues":{0:[{"bname":"a","endOffset":-1,"gen":0,"logicOffset":0,'
        b'"queueId":0,"startOffset":0,"timeOfEnd":-1,"timeOfStart":-1}]},"scope":"__global__","topic":"Static",'
        b'"totalQueues":1}}}'
    )
    (tmp_path / "a" / "config" / "topicQueueMapping.json").write_bytes(java)

    again = broker.restart(clean=False)

    assert again.node.topics.mappings.table[TOPIC].led() == {0: 0}


@spec("L04")
def test_slave_gets_the_mapping_beside_the_topics(brokers: WiredBrokers, tmp_path: Path) -> None:
    body = brokers["a"].json(RequestCode.GET_ALL_TOPIC_CONFIG)
    slave = WiredBrokers(tmp_path / "slave", "a", broker_id=1)["a"]

    slave.node.topics.follow_mappings(body)

    assert slave.node.topics.mappings.table == brokers["a"].node.topics.mappings.table
    assert slave.ask(RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, {}).code == ResponseCode.SYSTEM_ERROR
    brokers["a"].ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": TOPIC})
    slave.node.topics.follow_mappings(brokers["a"].json(RequestCode.GET_ALL_TOPIC_CONFIG))
    assert not slave.node.topics.mappings.table


@spec("L05")
def test_name_servers_get_the_queues_that_a_broker_leads(brokers: WiredBrokers) -> None:
    wrapper = loads(brokers.registered["a"][-1])["topicConfigSerializeWrapper"]

    assert wrapper["topicQueueMappingInfoMap"][TOPIC] == {
        "bname": "a",
        "currIdMap": {"0": 1},
        "dirty": False,
        "epoch": EPOCH,
        "scope": "__global__",
        "topic": TOPIC,
        "totalQueues": 2,
    }


@spec("L05")
def test_name_servers_get_the_mapping_also_with_registrations_of_single_topics(tmp_path: Path) -> None:
    wired = WiredBrokers(tmp_path, "a", single_topic_register=True)
    wired.create(TOPIC, {0: [segment(0, "a", 1, 0)]})

    wrapper = loads(wired.registered["a"][-1])["topicConfigSerializeWrapper"]
    assert wrapper["topicQueueMappingInfoMap"].keys() == {TOPIC}


REFUSALS: dict[str, tuple[dict[str, Any], str]] = {
    "another broker": ({"bname": "b"}, "the mapping is that of broker 'b', this is a"),
    "another topic": ({"topic": "Other"}, "the header names topic Static, the mapping Other"),
    "small epoch": ({"epoch": EPOCH - 1}, "small epoch"),
    "scope": ({"scope": "c"}, "unmatched scope"),
    "queue out of range": ({"hostedQueues": {"2": [segment(0, "a", 0, 0)]}}, "there are 2 queues"),
    "no segment": ({"hostedQueues": {"0": []}}, "it has no segment"),
    "negative": ({"hostedQueues": {"0": [segment(0, "a", -1, 0)]}}, "are 0 or more"),
    "generations": (
        {"hostedQueues": {"0": [segment(0, "a", 1, 0), segment(0, "b", 1, 5)]}},
        "segment 0 follows",
    ),
    "unplaced": (
        {"hostedQueues": {"0": [segment(0, "a", 1, -1), segment(1, "b", 1, 5)]}},
        "without logicOffset",
    ),
    "falling": ({"hostedQueues": {"0": [segment(0, "a", 1, 0), segment(1, "b", 1, 0)]}}, "is not above 0"),
    "no such queue": (
        {"epoch": EPOCH + 1, "hostedQueues": {"1": [segment(0, "a", 9, 0)]}},
        "in queue 9, of 2 queues",
    ),
    "queue twice": ({"epoch": EPOCH + 1, "hostedQueues": {"1": [segment(0, "a", 1, 0)]}}, "is in two places"),
    "moved segment": ({"epoch": EPOCH + 1, "hostedQueues": {"0": [segment(0, "a", 0, 0)]}}, "cannot move"),
    "moved offset": (
        {"epoch": EPOCH + 1, "hostedQueues": {"0": [segment(0, "a", 1, 5)]}},
        "is 0 and cannot change",
    ),
    "same epoch": (
        {"hostedQueues": {"0": [segment(0, "a", 1, 0), segment(1, "b", 1, 5)]}},
        "another segment takes messages, but the epoch is the same",
    ),
}


@spec("L06")
@pytest.mark.parametrize("name", REFUSALS)
def test_impossible_mapping_is_refused_with_the_reason(brokers: WiredBrokers, name: str) -> None:
    changes, reason = REFUSALS[name]
    before = dict(brokers["a"].node.topics.mappings.table)
    body = mapping_of(TOPIC, "a", {}) | changes

    fields = {"topic": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}
    answer = brokers.ask("a", RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, fields, dumps(body))

    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert reason in (answer.remark or "")
    assert brokers["a"].node.topics.mappings.table == before


@spec("L06")
def test_force_replaces_a_mapping_that_contradicts(brokers: WiredBrokers) -> None:
    body = mapping_of(TOPIC, "a", {0: [segment(0, "a", 0, 0)]}, epoch=1)

    assert brokers.update("a", body).code == ResponseCode.SYSTEM_ERROR
    assert brokers.update("a", body, force=True).code == ResponseCode.SUCCESS
    assert brokers["a"].node.topics.mappings.table[TOPIC].led() == {0: 0}


@spec("L06")
def test_ordinary_topic_does_not_become_static_nor_gets_a_static_one_other_queues(brokers: WiredBrokers) -> None:
    broker = brokers["a"]
    broker.create_topic("Plain")
    plain = brokers.update("a", mapping_of("Plain", "a", {0: [segment(0, "a", 0, 0)]}))
    system = brokers.update("a", mapping_of("TBW102", "a", {0: [segment(0, "a", 0, 0)]}))
    fields = {"topic": TOPIC, "readQueueNums": 2, "writeQueueNums": 2, "perm": 4, "topicFilterType": "SINGLE_TAG"}

    assert (plain.code, plain.remark) == (
        1,
        "topic Plain exists and is an ordinary one; delete it first, or choose another name",
    )
    assert (system.code, system.remark) == (29, "The topic[TBW102] is conflict with system topic.")
    more = broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | {"readQueueNums": 3})
    assert "is static: updateStaticTopic and remappingStaticTopic give it queues" in (more.remark or "")
    assert broker.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SUCCESS
    assert broker.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": TOPIC, "lo": "true"}).body.count(b"mappingDetail") == 1
    reset = {"topic": TOPIC, "group": "group", "timestamp": 0, "isForce": "true"}
    refused = broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, reset, link=CLIENT)
    assert "is static: an offset is set by a commit" in (refused.remark or "")


# Cleaning.


@spec("L07")
def test_segment_without_messages_is_removed_and_one_with_messages_is_not(brokers: WiredBrokers) -> None:
    brokers.send("b", TOPIC, 1, b"kept")
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    move(brokers, 1, [segment(0, "b", 0, 0), segment(1, "a", 2, BLOCK)], epoch=EPOCH + 2)

    brokers.pass_time(300_000)

    assert gens(brokers["b"].node.topics.mappings.table[TOPIC].queues[0].segments) == [1]
    assert gens(brokers["a"].node.topics.mappings.table[TOPIC].queues[1].segments) == [0, 1]
    assert brokers.offset("b", RequestCode.GET_MIN_OFFSET, TOPIC, 0) == BLOCK
    assert brokers.consume("a", TOPIC, 1) == {0: b"kept"}


@spec("L07")
def test_queue_that_has_moved_on_twice_is_forgotten_by_its_first_broker(tmp_path: Path) -> None:
    wired = WiredBrokers(tmp_path, "a", "b", "c")
    wired.create(TOPIC, {0: [segment(0, "a", 0, 0)]}, total=1)
    wired.send("a", TOPIC, 0, b"one")
    segments = [segment(0, "a", 0, 0), segment(1, "b", 0, BLOCK)]
    for epoch, new in ((EPOCH + 1, "b"), (EPOCH + 2, "c")):
        if new == "c":
            segments.append(segment(2, "c", 0, 2 * BLOCK))
        wired.create(TOPIC, {0: segments}, epoch=epoch, total=1)
    before = wired["a"].node.topics.mappings.table[TOPIC].queues[0].segments

    wired.pass_time(1_000)

    assert gens(before) == [0, 1]
    assert wired["a"].node.topics.mappings.table[TOPIC].queues == {}
    assert wired["b"].node.topics.mappings.table[TOPIC].queues.keys() == {0}
    assert wired.consume("c", TOPIC, 0) == {0: b"one"}


def test_leaders_of_a_route_are_those_of_the_same_epoch(brokers: WiredBrokers) -> None:
    mapping = brokers["a"].node.topics.mappings.table[TOPIC]
    infos = {"b": {"epoch": EPOCH, "currIdMap": {"0": 4}}, "c": {"epoch": EPOCH - 1, "currIdMap": {"0": 5, "1": 6}}}

    assert leaders_in({"topicQueueMappingByBroker": infos}, mapping) == {0: "b"}
    assert leaders_in({"topicQueueMappingByBroker": {"b": {"epoch": "x"}}}, mapping) == {}
    assert leaders_in(None, mapping) == {}


def test_progress_of_a_group_without_an_offset_is_not_zero(brokers: WiredBrokers) -> None:
    fields = {"consumerGroup": "group", "topic": TOPIC}
    stats = brokers["a"].json(RequestCode.GET_CONSUME_STATS, fields)
    assert [entry["consumerOffset"] for entry in stats["offsetTable"].values()] == [-1, -1]


def test_requests_to_other_brokers_are_limited(brokers: WiredBrokers) -> None:
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    brokers.silent.add("a")
    leader, fields = brokers["b"], {"topic": TOPIC, "queueId": 0}
    waiting = [leader.send_request(RequestCode.GET_MIN_OFFSET, fields) for _ in range(FORWARDED_MAX)]
    assert leader.ask(RequestCode.GET_MIN_OFFSET, fields).code == ResponseCode.SYSTEM_ERROR
    brokers.settle()
    leader.pass_time(3_000)

    assert {answer.code for one in waiting if (answer := leader.answer_to(one)) is not None} == {1}
    brokers.silent.clear()
    assert brokers.offset("b", RequestCode.GET_MIN_OFFSET, TOPIC, 0) == 0


def test_broker_that_may_not_be_read_forwards_no_pull(brokers: WiredBrokers) -> None:
    brokers.send("a", TOPIC, 0, b"one")
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    leader = brokers["b"].node

    let(leader, read="another member serves")
    assert brokers.pull("b", TOPIC, 0, 0).code == ResponseCode.NO_PERMISSION
    let(leader, read=None)
    leader.pull.checks.permission = 2
    refused = brokers.pull("b", TOPIC, 0, 0)
    assert (refused.code, refused.fields["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "1")
    leader.pull.checks.permission = 6
    assert brokers.pull("b", TOPIC, 0, 0).code == ResponseCode.SUCCESS


def test_broker_that_may_not_be_read_is_not_busy_after_a_change_of_a_mapping(brokers: WiredBrokers) -> None:
    """Found by the simulation: pulls that may not be answered were taken for work, turn after turn."""
    pull = brokers["a"].node.pull
    brokers.create("S", {0: [segment(0, "a", 0, 0)]})
    brokers.send("a", "S", 0, b"first")
    let(brokers["a"].node, read="it takes over")
    brokers.create("S", {0: [segment(0, "a", 0, 0)]}, epoch=EPOCH + 1)
    assert pull.waiting_ms() is None

    let(brokers["a"].node, read=None)
    turn = brokers["a"].node.kernel.turn
    turn.serving = structs.replace(turn.serving, read=None)
    assert pull.waiting_ms() == 0
    brokers["a"].turn()
    assert pull.waiting_ms() is None


def test_consumer_that_takes_no_bytes_gets_none_of_another_broker(brokers: WiredBrokers) -> None:
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    brokers["b"].outbox.waiting[CLIENT] = LINK_BYTES_MAX

    assert brokers.pull("b", TOPIC, 0, 0).code == ResponseCode.SYSTEM_BUSY


def test_offsets_of_a_segment() -> None:
    one = QueueSegment(1, 0, "a", 100, 10)

    assert (one.logical(10), one.logical(15), one.logical(3), one.physical(105)) == (100, 105, 100, 15)
    assert QueueSegment(1, 0, "a", -1).logical(5) == -1


REPLY = {"MSG_TYPE": "reply", "CORRELATION_ID": "c-1", "REPLY_TO_CLIENT": "asker"}


def reply(brokers: WiredBrokers, name: str, queue_id: int, code: int = RequestCode.SEND_REPLY_MESSAGE_V2) -> int:
    return brokers[name].send_request(code, send_fields(TOPIC, queue_id, REPLY), b"pong")


@spec("L01")
def test_reply_to_logical_queue_is_stored_in_the_queue_that_it_is_mapped_to(brokers: WiredBrokers) -> None:
    """The requester is not connected; the reply is stored nevertheless."""
    answers = [brokers["a"].answer_to(reply(brokers, "a", queue_id)) for queue_id in (0, -1)]

    shown = [(one.fields.get("queueId"), one.fields.get("queueOffset")) for one in answers if one is not None]
    assert shown == [("0", "0"), ("0", "1")]
    assert brokers["a"].node.store.queues[TOPIC, 1].max_offset == 2
    assert (TOPIC, 0) not in brokers["a"].node.store.queues
    assert [message.body for message in messages_in(brokers.pull("a", TOPIC, 0, 0))] == [b"pong", b"pong"]


@spec("L01")
def test_reply_to_logical_queue_of_another_broker_is_refused(brokers: WiredBrokers) -> None:
    answer = brokers["b"].answer_to(reply(brokers, "b", 0))

    assert answer is not None
    assert (answer.code, answer.fields.get("msgId")) == (ResponseCode.NOT_LEADER_FOR_QUEUE, None)
    assert "another broker takes its messages" in (answer.remark or "")
    assert not brokers["b"].node.store.log.written_end


@spec("L01")
def test_reply_whose_logical_queue_moves_before_the_requester_answers_is_not_stored(brokers: WiredBrokers) -> None:
    broker = brokers["a"]
    broker.heartbeat("", client_id="asker", producers=["askers"])
    opaque = reply(brokers, "a", 0)
    [push] = broker.take_requests(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT)
    move(brokers, 0, [segment(0, "a", 1, 0), segment(1, "b", 2, BLOCK)], epoch=EPOCH + 1)
    broker.reply(push)

    answer = broker.answer_to(opaque)
    assert answer is not None
    assert (push.fields["queueId"], answer.code, answer.fields["msgId"]) == ("0", ResponseCode.SUCCESS, "0")
    assert not broker.node.store.log.written_end
    assert not brokers["b"].node.store.log.written_end


@spec("L04")
def test_static_topic_gets_the_queues_of_its_mapping_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The change of the topic's table was in a damaged line of the journal."""
    broker = Harness(tmp_path)
    name = broker.node.config.broker_name
    segments = (QueueSegment(0, 0, name, 0, 0), QueueSegment(1, 1, name, 100, 0))
    mapping = QueueMapping(TOPIC, 1, name, 1, {0: LogicalQueue(segments)})
    broker.node.topics.put_static(TopicConfig(TOPIC, 1, 1), mapping, broker.now.wall_ms)
    broker.pass_time(100)
    broker = broker.restart()
    config = broker.node.topics.table[TOPIC].config
    assert (config.read_queue_nums, config.write_queue_nums) == (2, 2)
    assert f"topics: topic={TOPIC} has 1 queues, its mapping names 2" in caplog.text
    broker = broker.restart(clean=False)
    assert broker.node.topics.table[TOPIC].config.write_queue_nums == 2
    assert caplog.text.count("its mapping names") == 1
