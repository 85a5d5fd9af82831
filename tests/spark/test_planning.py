"""Planning of queries on many topics and queues: round trips and requests in flight."""

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from tandemq.client.core.operations import REQUESTS_AT_ONCE
from tandemq.errors import NetworkError
from tandemq.model.codes import RequestCode as Code
from tandemq.spark.sources.cluster.backlog import AGES_MAX, BROKERS, LAG
from tandemq.spark.sources.cluster.layout import KEPT_MS, KEPT_QUEUES_MIN
from tandemq.spark.sources.cluster.limits import TOPICS_PER_REQUEST
from tandemq.spark.sources.cluster.lookups import MESSAGES_AT_ONCE
from tests.spark.far import NAME_SERVER, FarCluster
from tests.spec import spec

FAR_MS = 4
"""Latency of the name server and the broker."""
SLOWEST_MS = 10_000


def rounds_of(requests: int, at_once: int = REQUESTS_AT_ONCE) -> int:
    return -(-requests // at_once)


@spec("P38")
@pytest.mark.parametrize(("starting", "topics"), [("earliest", 10_000), ("latest", 1_000)])
def test_ten_thousand_topics_with_a_hundred_thousand_queues_plan_in_few_round_trips(
    monkeypatch: pytest.MonkeyPatch, starting: str, topics: int
) -> None:
    queues = 10
    far = FarCluster({f"T{number:05}": queues for number in range(topics)}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(startingOffsets=starting, maxOffsetsPerTrigger=1_000_000)
    start = reader.initialOffset()
    # The names of the topics, the epochs of the broker group, and either the first offset or the end of each queue;
    # an attempt to get these together.
    assert sum(far.requests.values()) == 1 + topics + 1 + topics * queues + 1
    assert far.rounds <= 4 + rounds_of(topics) + rounds_of(topics * queues)
    assert far.rounds * FAR_MS <= SLOWEST_MS / 10
    assert far.most_at_once <= REQUESTS_AT_ONCE
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    before = far.rounds
    far.requests.clear()
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["T00007"]["a"] == {str(number): 3 for number in range(queues)}
    # Routes, ends, and one message of each topic as a witness.
    witnesses = topics if starting == "earliest" else 0
    assert far.requests == {
        Code.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: 1,
        Code.GET_ROUTEINFO_BY_TOPIC: topics,
        Code.GET_MAX_OFFSET: topics * queues,
        Code.GET_BROKER_EPOCH_CACHE: 1,
        Code.TANDEM_ROUTES_VERSION: 1,
        Code.TANDEM_QUEUE_BOUNDS: 1,
    } | ({Code.PULL_MESSAGE: witnesses} if witnesses else {})
    rounds = far.rounds - before
    assert rounds <= 4 + rounds_of(topics) + rounds_of(topics * queues) + rounds_of(witnesses, MESSAGES_AT_ONCE)
    assert rounds * FAR_MS <= SLOWEST_MS / 2


@spec("P38")
@pytest.mark.parametrize("topics_at_once", [1 << 30, 37])
def test_idle_poll_of_our_cluster_asks_for_what_has_changed(
    monkeypatch: pytest.MonkeyPatch, topics_at_once: int
) -> None:
    topics, queues = 2_000, 10
    names = [f"T{number:05}" for number in range(topics)]
    far = FarCluster(dict.fromkeys(names, queues), messages=3, is_ours=True, monkeypatch=monkeypatch)
    far.topics_at_once = topics_at_once
    far.stream(startingOffsets="earliest").initialOffset()
    assert Code.GET_MIN_OFFSET not in far.requests
    reader = far.stream(startingOffsets="latest")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    start = reader.latestOffset(start, limit)
    far.requests.clear()
    assert reader.latestOffset(start, limit) == start
    parts = 0
    left = topics
    while left:
        parts += -(-left // TOPICS_PER_REQUEST)
        left = sum(
            max(0, min(TOPICS_PER_REQUEST, left - at) - topics_at_once) for at in range(0, left, TOPICS_PER_REQUEST)
        )
    assert far.requests == {
        Code.TANDEM_ROUTES_VERSION: 1,
        Code.TANDEM_QUEUE_BOUNDS: parts,
        Code.GET_BROKER_EPOCH_CACHE: 1,
    }

    report = reader.reportLatestOffset()
    assert report is not None
    assert report.keys() == {LAG, BROKERS}
    assert report[LAG].keys() == set(names)
    far.counts["T00007", 3] = 5
    end = reader.latestOffset(start, ReadMaxRows(1))
    report = reader.reportLatestOffset()
    assert report is not None
    assert report.keys() == {LAG, BROKERS, "T00007"}
    assert report["T00007"]["a"]["3"] == 5
    end = reader.latestOffset(end, limit)
    assert end["T00007"]["a"]["3"] == 5
    far.create("New", 2, 0)
    assert "New" not in reader.latestOffset(end, limit), "the name server tells the same version"
    far.version += 1
    assert reader.latestOffset(end, limit)["New"]["a"] == {"0": 0, "1": 0}
    far.requests.clear()
    far.ms += KEPT_MS
    reader.latestOffset(end, limit)
    assert Code.GET_ROUTEINFO_BY_TOPIC not in far.requests


def test_routes_are_kept_for_a_while_if_another_name_server_may_know_more(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 4}, messages=3, is_ours=True, monkeypatch=monkeypatch)
    reader = far.stream(startingOffsets="latest", nameServer=f"{NAME_SERVER};others:9876")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    reader.latestOffset(start, limit)
    for passed_ms, is_asked in ((KEPT_MS - 1, False), (1, True)):
        far.ms += passed_ms
        far.requests.clear()
        reader.latestOffset(start, limit)
        assert (Code.GET_ROUTEINFO_BY_TOPIC in far.requests) is is_asked


def test_routes_of_many_queues_are_kept_for_a_while_with_name_servers_of_rocketmq(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for queues, is_kept in ((KEPT_QUEUES_MIN, True), (KEPT_QUEUES_MIN - 1, False)):
        far = FarCluster({"A": queues}, messages=3, monkeypatch=monkeypatch)
        reader = far.stream(startingOffsets="latest")
        limit = reader.getDefaultReadLimit()
        start = reader.latestOffset(reader.initialOffset(), limit)
        reader.latestOffset(start, limit)
        for passed_ms, is_asked in ((0, not is_kept), (KEPT_MS - 1, not is_kept), (1, True)):
            far.ms += passed_ms
            far.requests.clear()
            reader.latestOffset(start, limit)
            assert (Code.GET_ROUTEINFO_BY_TOPIC in far.requests) is is_asked


def test_routes_are_asked_for_again_after_a_poll_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 4}, messages=3, is_ours=True, monkeypatch=monkeypatch)
    reader = far.stream(startingOffsets="latest")
    limit = reader.getDefaultReadLimit()
    start = reader.latestOffset(reader.initialOffset(), limit)
    reader.latestOffset(start, limit)
    far.is_up = False
    with pytest.raises(NetworkError):
        reader.latestOffset(start, limit)
    far.is_up = True
    far.requests.clear()
    reader.latestOffset(start, limit)
    assert far.requests[Code.GET_ROUTEINFO_BY_TOPIC] == 1


def test_ages_of_a_backlog_in_many_queues_are_asked_of_those_furthest_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": AGES_MAX, "B": 2}, messages=9, monkeypatch=monkeypatch)
    reader = far.stream(startingOffsets="earliest", maxOffsetsPerTrigger=AGES_MAX)
    start = reader.initialOffset()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    far.requests.clear()
    reader.latestOffset(start, reader.getDefaultReadLimit())
    assert far.requests[Code.PULL_MESSAGE] <= AGES_MAX + 2
    latest = reader.reportLatestOffset()
    assert latest is not None
    assert latest[LAG]["A"]["messages"] + latest[LAG]["B"]["messages"] == 9 * (AGES_MAX + 2) - AGES_MAX
    assert latest[LAG]["B"]["seconds"] is not None


def test_commits_of_a_group_are_sent_together_and_only_of_queues_that_advanced(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 300}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(startingOffsets="earliest", commitGroup="pipeline")
    start = reader.initialOffset()
    end = dict(start)
    for queue_id in range(200):
        end = end | {"A": {"a": {**end["A"]["a"], str(queue_id): 3}}}
    before = far.rounds
    reader.commit(end)
    assert far.requests[Code.UPDATE_CONSUMER_OFFSET] == 200
    assert far.rounds - before == 2  # the group is registered first
    reader.commit(end)
    assert far.requests[Code.UPDATE_CONSUMER_OFFSET] == 200


def test_commits_of_a_group_leave_out_a_queue_that_is_away_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    far = FarCluster({"A": 1, "B": 1}, messages=3, monkeypatch=monkeypatch)
    reader = far.stream(subscribe="A,B", failOnDataLoss="false", commitGroup="pipeline")
    far.listed = {"A"}
    start = {"A": {"a": {"0": 1}}, "B": {"a": {"0": 2}}}
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end["B"] == {"a": {"0": 2}}
    assert far.requests[Code.UPDATE_CONSUMER_OFFSET] == 1
    reader.commit(end)
    assert far.requests[Code.UPDATE_CONSUMER_OFFSET] == 2
    far.listed = {"A", "B"}
    reader.latestOffset(end, reader.getDefaultReadLimit())
    assert far.requests[Code.UPDATE_CONSUMER_OFFSET] == 3
