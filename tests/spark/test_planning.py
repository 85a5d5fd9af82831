"""Planning of queries on many topics and queues: round trips and requests in flight."""

import pytest

from tandemq.client.core.operations import REQUESTS_AT_ONCE
from tandemq.model.codes import RequestCode as Code
from tandemq.spark.sources.cluster.backlog import AGES_MAX, LAG
from tandemq.spark.sources.cluster.resolve import MESSAGES_AT_ONCE
from tests.spark.far import FarCluster
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
    # The names of the topics, the epochs of the broker group, and either the first offset or the end of each queue.
    assert sum(far.requests.values()) == 1 + topics + 1 + topics * queues
    assert far.rounds <= 2 + rounds_of(topics) + rounds_of(topics * queues)
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
    } | ({Code.PULL_MESSAGE: witnesses} if witnesses else {})
    rounds = far.rounds - before
    assert rounds <= 2 + rounds_of(topics) + rounds_of(topics * queues) + rounds_of(witnesses, MESSAGES_AT_ONCE)
    assert rounds * FAR_MS <= SLOWEST_MS / 2


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
