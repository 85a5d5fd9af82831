"""Requests that create or change static topics: reserved names, and numbers outside their ranges."""

from pathlib import Path

import pytest

from lab.sim.workload.static_topic_requests import segment, update_request
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.model.codes import RequestCode, ResponseCode
from tests.spec import spec
from tests.unit.broker.features.static_topics.wired import EPOCH, WiredBrokers, mapping_of

TOPIC = "Static"
LONG_MAX = (1 << 63) - 1
NUMBERS = {
    "logicOffset": [-1, -2, (1 << 58) + 1, LONG_MAX],
    "startOffset": [-1, LONG_MAX],
    "endOffset": [-2, LONG_MAX],
    "timeOfStart": [-2, LONG_MAX],
    "timeOfEnd": [-LONG_MAX, LONG_MAX],
    "epoch": [-1, LONG_MAX],
    "totalQueues": [-1, 0, 20_000],
    "gen": [-1, 1 << 31],
    "queueId": [-1, 2, 1 << 31],
}
"""Values of a mapping's numbers that are refused."""


@pytest.fixture
def brokers(tmp_path: Path) -> WiredBrokers:
    """Two brokers; logical queue 0 is queue 1 of a, logical queue 1 is queue 0 of b."""
    wired = WiredBrokers(tmp_path, "a", "b")
    wired.create(TOPIC, {0: [segment(0, "a", 1, 0)], 1: [segment(0, "b", 0, 0)]})
    return wired


@spec("L06")
@pytest.mark.parametrize(
    "name",
    [
        "%RETRY%group",
        "%DLQ%group",
        "DefaultCluster_REPLY_TOPIC",
        "X_REPLY_TOPIC",
        "rmq_sys_foo",
        "RMQ_SYS_TRACE_TOPIC",
        "SCHEDULE_TOPIC_XXXX",
        "DefaultCluster",
        "a",
    ],
)
def test_reserved_name_is_not_that_of_a_static_topic(brokers: WiredBrokers, name: str) -> None:
    answer = brokers.update("a", mapping_of(name, "a", {0: [segment(0, "a", 0, 0)]}))

    assert (answer.code, name in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert name not in brokers["a"].node.topics.mappings.table


@spec("L06")
@pytest.mark.parametrize(("name", "values"), NUMBERS.items())
@pytest.mark.parametrize("is_forced", [False, True])
def test_number_outside_its_range_is_refused(tmp_path: Path, name: str, values: list[int], is_forced: bool) -> None:
    wired = WiredBrokers(tmp_path, "a")
    one = segment(0, "a", 1, 0)
    body = mapping_of(TOPIC, "a", {0: [one]})
    assert name in one or name in body
    for value in values:
        body = mapping_of(TOPIC, "a", {0: [one | {name: value}]}) | {name: value}
        answer = wired.update("a", body, force=is_forced)
        assert answer.code == ResponseCode.SYSTEM_ERROR, value
    assert wired["a"].node.topics.mappings.table == {}


@spec("L06")
def test_later_segment_is_without_its_place_for_a_while_but_not_at_another_negative_one(brokers: WiredBrokers) -> None:
    for offset, code in ((-2, ResponseCode.SYSTEM_ERROR), (-1, ResponseCode.SUCCESS)):
        segments = [segment(0, "a", 1, 0), segment(1, "b", 1, offset)]
        assert brokers.update("a", mapping_of(TOPIC, "a", {0: segments}, epoch=EPOCH + 1)).code == code


@spec("L06")
def test_scope_is_a_short_name(tmp_path: Path) -> None:
    wired = WiredBrokers(tmp_path, "a")
    body = mapping_of(TOPIC, "a", {0: [segment(0, "a", 1, 0)]})
    for scope in ("", "x" * 128, "a b"):
        answer = wired.update("a", body | {"scope": scope})
        assert (answer.code, "scope" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)


@spec("L06")
def test_stored_mapping_with_other_numbers_is_kept(brokers: WiredBrokers) -> None:
    """A broker accepted it before there were limits."""
    broker = brokers["a"]
    stored = loads(broker.disk.read("config/topicQueueMapping.json") or b"")
    first = stored["topicQueueMappingInfoMap"][TOPIC]["hostedQueues"]["0"][0]
    broker.node.close()
    broker.disk.replace(
        "config/topicQueueMapping.json", dumps(stored).replace(dumps(first), dumps(first | {"logicOffset": -5}))
    )
    assert broker.restart(clean=False).node.topics.mappings.table[TOPIC].queues[0].leader.logic_offset == -5


@spec("L06")
def test_malformed_mapping_is_read_from_the_backup(brokers: WiredBrokers) -> None:
    broker = brokers["a"]
    broker.node.close()
    stored = broker.disk.read("config/topicQueueMapping.json") or b""
    broker.disk.replace("config/topicQueueMapping.json.bak", stored)
    broker.disk.replace("config/topicQueueMapping.json", b'{"topicQueueMappingInfoMap": {"T": {"totalQueues": -1}}}')
    assert TOPIC in broker.restart(clean=False).node.topics.mappings.table


@spec("L06")
def test_kill_before_the_mapping_is_written_leaves_no_ordinary_topic(tmp_path: Path) -> None:
    wired = WiredBrokers(tmp_path, "a")
    broker = wired["a"]
    broker.create_topic("Other")  # from then on changes go to a journal first
    broker.pass_time(20_000)
    body = mapping_of(TOPIC, "a", {0: [segment(0, "a", 0, 0)]})
    broker.run_jobs = False
    broker.send_request(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC, update_request(body, 1).fields, update_request(body, 1).body
    )
    assert broker.disk.read("config/topicQueueMapping.json") is None
    topics = broker.restart(clean=False).node.topics
    assert TOPIC in topics.table
    assert list(topics.mappings.table) == [TOPIC]
