"""The operator's commands of RocketMQ, mqadmin 4.9.8 and 5.3.3, unmodified: what they print must tell the truth."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from tests.interop.checks import Events, bodies, contains, exactly, lose_one, messages, prove, sent, without_log
from tests.interop.conftest import Pair
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.wire import GET_ALL_GROUPS, GET_ROUTE, QUERY_OFFSET, RESET_OFFSET, ask, loads_lenient
from tests.spec import spec

_numbers = itertools.count(1)
Rows = list[list[str]]


@pytest.fixture
def run(pair: Pair, java: JavaDriver) -> Callable[..., str]:
    """Run a command against the pair's name server; a Java exception in what it prints is a failure."""

    def command(name: str, *arguments: str) -> str:
        printed = without_log(java.mqadmin(name, "-n", pair.namesrv.address, *arguments))
        assert "Exception" not in printed, printed
        return printed

    return command


@pytest.fixture
def topic(pair: Pair, java: JavaDriver) -> str:
    """A topic of two queues with six messages, three in each."""
    name = pair.make_topic(java, f"Admin{next(_numbers)}", queues=2)
    java.call("produce", topic=name, count=6, queues=2, keys="key", tags="T")
    return name


def _rows(text: str, first: str) -> Rows:
    """The words of the lines that begin with a word."""
    return [line.split() for line in text.splitlines() if line.split()[:1] == [first]]


def _same(expected: Rows) -> Callable[[Rows], None]:
    def check(rows: Rows) -> None:
        assert rows == expected

    return check


def _drop(rows: Rows) -> None:
    rows.pop()


def _alter(rows: Rows) -> None:
    rows[0][-1] += "0"


def _mute(texts: list[str]) -> None:
    texts[0] = ""


def test_update_topic_creates_and_changes_queues(pair: Pair, run: Callable[..., str]) -> None:
    name = f"Admin{next(_numbers)}"
    for queues in ("3", "5"):
        printed = run("updateTopic", "-b", pair.broker.address, "-t", name, "-r", queues, "-w", queues)
        prove(contains(f"create topic to {pair.broker.address} success", f"writeQueueNums={queues}"), [printed], _mute)
        wait_until(lambda: name in run("topicList"), what=f"{name} listed", within_s=20, every_s=0.5)
    wait_until(
        lambda: re.search(r'"writeQueueNums":\s*5', run("topicRoute", "-t", name)),
        what="five queues in the route",
        within_s=20,
        every_s=0.5,
    )


def test_update_topic_by_cluster_reaches_its_broker(pair: Pair, run: Callable[..., str]) -> None:
    name = f"Admin{next(_numbers)}"
    printed = run("updateTopic", "-c", "DefaultCluster", "-t", name, "-r", "2", "-w", "2")
    prove(contains(f"create topic to {pair.broker.address} success"), [printed], _mute)


def test_delete_topic_removes_it_from_broker_and_name_server(
    pair: Pair, topic: str, java: JavaDriver, run: Callable[..., str]
) -> None:
    printed = run("deleteTopic", "-c", "DefaultCluster", "-t", topic)
    prove(
        contains(
            f"delete topic [{topic}] from cluster [DefaultCluster] success",
            f"delete topic [{topic}] from NameServer success",
        ),
        [printed],
        _mute,
    )
    assert topic not in run("topicList").split()
    assert ask(pair.namesrv.port, GET_ROUTE, {"topic": topic}).fields["code"] == 17
    pair.make_topic(java, topic, queues=2)
    empty = [[pair.broker.conf["brokerName"], str(queue), "0", "0"] for queue in range(2)]
    rows = [row[:4] for row in _rows(run("topicStatus", "-t", topic), str(pair.broker.conf["brokerName"]))]
    prove(_same(empty), rows, _drop, _alter)  # type: ignore[arg-type]


def test_topic_list_names_topics(topic: str, run: Callable[..., str]) -> None:
    prove(contains(topic, "TBW102", "SELF_TEST_TOPIC"), [run("topicList")], _mute)


def test_topic_route_names_broker_and_queues(pair: Pair, topic: str, run: Callable[..., str]) -> None:
    printed = re.sub(r"\s", "", run("topicRoute", "-t", topic))
    wanted = (f'0:"{pair.broker.address}"', '"brokerName":"broker-a"', '"readQueueNums":2', '"writeQueueNums":2')
    prove(contains(*wanted), [printed.replace('"0":', "0:")], _mute)


def test_topic_status_tells_offsets_of_each_queue(topic: str, run: Callable[..., str]) -> None:
    printed = run("topicStatus", "-t", topic)
    rows = _rows(printed, "broker-a")
    prove(_same([["broker-a", "0", "0", "3"], ["broker-a", "1", "0", "3"]]), [row[:4] for row in rows], _drop, _alter)
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}", " ".join(row[4:])) for row in rows), printed


def test_cluster_list_shows_the_broker(pair: Pair, run: Callable[..., str]) -> None:
    rows = [row[:4] for row in _rows(run("clusterList"), "DefaultCluster")]
    prove(_same([["DefaultCluster", "broker-a", "0", pair.broker.address]]), rows, _drop, _alter)


def test_cluster_list_counts_messages(topic: str, java: JavaDriver, run: Callable[..., str]) -> None:
    def came_in_today() -> list[int]:
        return [int(row[-2]) for row in _rows(run("clusterList", "-m"), "DefaultCluster")]

    [before] = came_in_today()
    java.call("produce", topic=topic, count=3, queues=2)

    def has_grown(counts: list[int]) -> None:
        assert [count >= before + 3 for count in counts] == [True]

    def count_nothing(counts: list[int]) -> None:
        counts[0] = before

    assert before >= 6
    prove(has_grown, came_in_today(), count_nothing, list.clear)


def test_broker_status_tells_version_offsets_and_counts(pair: Pair, topic: str, run: Callable[..., str]) -> None:
    printed = run("brokerStatus", "-b", pair.broker.address)
    table = dict(re.findall(r"^(\S+)\s*: (.*)$", printed, re.MULTILINE))

    def is_plausible(values: dict[str, str]) -> None:
        assert values["brokerVersionDesc"].startswith("V")
        assert int(values["commitLogMaxOffset"]) > int(values["commitLogMinOffset"]) >= 0
        assert int(values["msgPutTotalTodayNow"]) >= 6
        assert 0 <= float(values["commitLogDiskRatio"]) <= 1
        # A fresh Java broker has only the first of the three means, over 10, 60 and 600 seconds.
        assert values["putTps"].split()
        assert all(float(each) >= 0 for each in values["putTps"].split())
        assert re.fullmatch(r"\[ \d+ days, \d+ hours, \d+ minutes, \d+ seconds \]", values["runtime"])

    def count_nothing(values: dict[str, str]) -> None:
        values["msgPutTotalTodayNow"] = "0"

    def hide_runtime(values: dict[str, str]) -> None:
        values["runtime"] = ""

    def hide_rates(values: dict[str, str]) -> None:
        values["putTps"] = ""

    def write_less_than_nothing(values: dict[str, str]) -> None:
        values["putTps"] = "1.0 -1.0 1.0"

    assert topic
    prove(is_plausible, table, count_nothing, hide_runtime, hide_rates, write_less_than_nothing)


def test_broker_config_can_be_read_and_changed(pair: Pair, run: Callable[..., str]) -> None:
    address = pair.broker.address

    def queried_at_most() -> str:
        [number] = re.findall(r"^maxMsgsNumBatch\s*=\s*(\d+)", run("getBrokerConfig", "-b", address), re.MULTILINE)
        return str(number)

    prove(
        contains("brokerName", "broker-a", "listenPort", str(pair.broker.port), "storePathRootDir"),
        [run("getBrokerConfig", "-b", address)],
        _mute,
    )
    for number in ("63", "64"):
        printed = run("updateBrokerConfig", "-b", address, "-k", "maxMsgsNumBatch", "-v", number)
        prove(contains(f"update broker config success, {address}"), [printed], _mute)
        assert queried_at_most() == number


def test_update_sub_group_creates_group_with_its_limit_of_retries(pair: Pair, run: Callable[..., str]) -> None:
    group = f"made{next(_numbers)}"
    printed = run("updateSubGroup", "-b", pair.broker.address, "-g", group, "-r", "1")
    prove(
        contains(
            f"create subscription group to {pair.broker.address} success", f"groupName={group}", "retryMaxTimes=1"
        ),
        [printed],
        _mute,
    )

    def is_limited(limits: dict[str, int]) -> None:
        assert limits.get(group) == 1

    def limit_to_default(limits: dict[str, int]) -> None:
        limits[group] = 16

    prove(is_limited, _retry_limits(pair), dict.clear, limit_to_default)


def _retry_limits(pair: Pair) -> dict[str, int]:
    """How often each consumer group gets a message again, as the broker has it."""
    table = loads_lenient(ask(pair.broker.port, GET_ALL_GROUPS).body)["subscriptionGroupTable"]
    return {name: config["retryMaxTimes"] for name, config in table.items()}


def test_consumer_progress_tells_lag_of_each_queue(topic: str, java: JavaDriver, run: Callable[..., str]) -> None:
    group = f"lagging{next(_numbers)}"
    # A group is known to mqadmin by its retry topic, which the first heartbeat of a push consumer makes.
    java.call("push", topic=topic, group=group, count=6)
    java.call("produce", topic=topic, count=4, queues=2)

    def progress() -> Rows:
        return sorted(row[:6] for row in _rows(run("consumerProgress", "-g", group), topic))

    wait_until(progress, what="progress of the group", within_s=20, every_s=0.5)
    expected = [[topic, "broker-a", str(queue), "5", "3", "2"] for queue in range(2)]
    prove(_same(expected), progress(), _drop, _alter)
    assert re.search(r"Diff Total: 4\b", run("consumerProgress", "-g", group))


def test_consumer_connection_shows_members_and_subscription(
    topic: str, java: JavaDriver, run: Callable[..., str]
) -> None:
    group = f"online{next(_numbers)}"
    consumer = java.begin("push", topic=topic, group=group, tags="T || U", instance=f"name-{group}", count=0)
    consumer.wait_for(lambda event: event["event"] == "message", 40, count=6)
    printed = run("consumerConnection", "-g", group)
    consumer.end()
    version = f"V{java.version.replace('.', '_')}"
    wanted = (
        f"127.0.0.1@name-{group}",
        "JAVA",
        version,
        topic,
        "T || U",
        f"%RETRY%{group}",
        "CONSUME_PASSIVELY",
        "CLUSTERING",
        "CONSUME_FROM_FIRST_OFFSET",
    )
    prove(contains(*wanted), [printed], _mute)


@spec("G12")
def test_reset_offset_by_time_makes_an_offline_group_read_again(
    topic: str, java: JavaDriver, run: Callable[..., str]
) -> None:
    group = f"reset{next(_numbers)}"
    java.call("pull", topic=topic, group=group, commit=True)
    printed = run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    prove(lambda rows: _has_queues(rows, 2), _rows(printed, "broker-a"), _drop)
    again = java.call("pull", topic=topic, group=group, resume=True)
    prove(exactly([f"body-{index}" for index in range(6)]), again, lose_one)


def _has_queues(rows: Rows, count: int) -> None:
    assert sorted(row[1] for row in rows) == [str(queue) for queue in range(count)]


@spec("G12")
def test_reset_offset_by_time_makes_an_online_group_read_again(
    pair: Pair, topic: str, java: JavaDriver, run: Callable[..., str]
) -> None:
    group = f"reset{next(_numbers)}"
    consumer = java.begin("push", topic=topic, group=group, deadline_ms=90000)
    consumer.wait_for(lambda event: event["event"] == "message", 40, count=6)
    # A client reports its offsets every five seconds; a queue without one cannot be set back. Asked on a connection of
    # its own: a consumer that asks is a member for a moment, and takes a queue away.
    wait_until(
        lambda: [_stored(pair, topic, group, queue_id) for queue_id in range(2)] == [3, 3],
        what="offsets stored",
        within_s=20,
        every_s=0.5,
    )
    run("resetOffsetByTime", "-g", group, "-t", topic, "-s", "0")
    consumer.wait_for(lambda event: event["event"] == "message", 40, count=12)

    def came_twice(events: Events) -> None:
        assert sorted(bodies(events)) == sorted([f"body-{index}" for index in range(6)] * 2)

    prove(came_twice, consumer.end(), lose_one)


@spec("G12")
def test_queues_of_an_online_group_reset_one_by_one_are_read_again_after_one_standstill(
    pair: Pair, java: JavaDriver
) -> None:
    """Java's consumer stops for ten seconds per notice: eight notices were 80 s and more, up to 122."""
    topic, group = pair.make_topic(java, f"Admin{next(_numbers)}", queues=8), f"reset{next(_numbers)}"
    java.call("produce", topic=topic, count=16, queues=8)
    consumer = java.begin("push", topic=topic, group=group, deadline_ms=120000)
    consumer.wait_for(lambda event: event["event"] == "message", 40, count=16)
    wait_until(
        lambda: [_stored(pair, topic, group, queue_id) for queue_id in range(8)] == [2] * 8,
        what="offsets stored",
        within_s=20,
        every_s=0.5,
    )
    for queue_id in range(8):
        fields = {"topic": topic, "group": group, "timestamp": "-1", "isForce": "true", "queueId": str(queue_id)}
        assert ask(pair.broker.port, RESET_OFFSET, fields | {"offset": "0"}).fields["code"] == 0
    consumer.wait_for(lambda event: event["event"] == "message", 50, count=32)

    def came_twice(events: Events) -> None:
        assert sorted(bodies(events)) == sorted([f"body-{index}" for index in range(16)] * 2)

    prove(came_twice, consumer.end(), lose_one)


def _stored(pair: Pair, topic: str, group: str, queue_id: int) -> int | None:
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
    answer = ask(pair.broker.port, QUERY_OFFSET, fields).fields
    return int(answer["extFields"]["offset"]) if answer["code"] == 0 else None


def test_query_commands_find_a_message_by_id_key_unique_key_and_offset(
    topic: str, java: JavaDriver, run: Callable[..., str]
) -> None:
    [answer] = sent(java.call("produce", topic=topic, count=1, start=77, queue=1, keys="key", tags="T"))
    # mqadmin 5.x asks for the topic, 4.9 does not know the option.
    of_topic = ("-t", topic) if java.version.startswith("5") else ()
    expected = (topic, "key77 keyall", answer["msgId"])
    prove(contains(*expected), [run("queryMsgById", *of_topic, "-i", answer["offsetMsgId"])], _mute)
    prove(contains(*expected), [run("queryMsgByUniqueKey", "-t", topic, "-i", answer["msgId"])], _mute)
    by_key = run("queryMsgByKey", "-t", topic, "-k", "key77")
    prove(_same([[answer["msgId"], "1", "3"]]), _rows(by_key, answer["msgId"]), _drop, _alter)
    prove(contains(*expected), [run("queryMsgByOffset", "-t", topic, "-b", "broker-a", "-i", "1", "-o", "3")], _mute)
    assert messages(java.call("key", topic=topic, key="key77"))


def test_ha_status_tells_of_a_master_without_slaves(
    pair: Pair, java: JavaDriver, topic: str, run: Callable[..., str]
) -> None:
    if java.version.startswith("4"):
        # The command came with 5.0; 4.9 says that it has none.
        prove(contains("haStatus not exist"), [java.mqadmin("haStatus", "-b", pair.broker.address)], _mute)
        return
    java.call("produce", topic=topic, count=1)
    printed = run("haStatus", "-b", pair.broker.address)
    table = dict(re.findall(r"^#(\S+)\t(\S+)$", printed, re.MULTILINE))

    def is_a_lonely_master(values: dict[str, str]) -> None:
        assert values["MasterAddr"] == pair.broker.address
        assert values["SlaveNum"] == "0"
        assert int(values["MasterCommitLogMaxOffset"]) > 0

    prove(is_a_lonely_master, table, lambda values: values.update(SlaveNum="1"))
