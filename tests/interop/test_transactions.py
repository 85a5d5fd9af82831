"""Transactions of Java producers: each outcome, checks, and giving up."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq.model.topic import CHECK_MAX_TIME_TOPIC
from tests.interop.conftest import Pair
from tests.interop.driver import JavaDriver
from tests.interop.peers import SMALL_STORE, SUBJECT, broker, name_server, start_registered
from tests.interop.wire import ask, wait_topic

COUNT = 5
UPDATE_TOPIC = 17
SHORT_CHECKS = SMALL_STORE | {
    "transactionCheckInterval": "4000",
    "transactionTimeOut": "1000",
    "transactionCheckMax": "3",
    "transactionOpBatchInterval": "100",
}


@pytest.fixture(scope="session")
def java(any_java: JavaDriver) -> JavaDriver:
    return any_java


@pytest.fixture(scope="module", params=[SUBJECT])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A name server and a broker with short checks."""
    directory: Path = tmp_path_factory.mktemp("transactions")
    with (
        name_server(request.param, directory / "namesrv") as namesrv,
        broker(request.param, directory / "broker", namesrv, settings=SHORT_CHECKS) as node,
    ):
        namesrv.start()
        start_registered(node, namesrv)
        yield Pair(namesrv, node)


def create_topic(place: Pair, name: str) -> str:
    fields = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": "2",
        "writeQueueNums": "2",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": "0",
        "order": "false",
    }
    assert ask(place.broker.port, UPDATE_TOPIC, fields).fields["code"] == 0
    wait_topic(place.namesrv.port, name)
    return name


def test_committed_messages_are_delivered_once_and_open_ones_are_checked(java: JavaDriver, place: Pair) -> None:
    client = java.at(place.namesrv.address)
    topic = create_topic(place, f"Transacted{java.version.replace('.', '')}")
    order = client.begin("transact", topic=topic, group=f"{topic}-p", count=COUNT, deadline_ms=90_000)
    sent = order.wait_for(lambda event: event["event"] == "sent", within_s=60, count=4 * COUNT)
    assert {event["status"] for event in sent} == {"SEND_OK"}
    consumer = client.begin("push", topic=topic, group=f"{topic}-c", deadline_ms=90_000)
    delivered = consumer.wait_for(lambda event: event["event"] == "message", within_s=60, count=2 * COUNT)
    parked = client.begin("push", topic=CHECK_MAX_TIME_TOPIC, group=f"{topic}-parked", deadline_ms=90_000)
    given_up = parked.wait_for(
        lambda event: (
            event["event"] == "message"
            and event["properties"]["REAL_TOPIC"] == topic
            and event["body"].startswith("never")
        ),
        within_s=60,
        count=COUNT,
    )
    order.stop()
    checked = order.end()
    delivered = [event for event in consumer.end() if event["event"] == "message"] or delivered
    parked.end()
    assert Counter(event["body"] for event in delivered) == Counter(
        f"{kind}-{at}" for kind in ("commit", "late") for at in range(COUNT)
    )
    assert {event["tags"] for event in delivered} == {"tag"}
    assert {event["sysFlag"] & 0xC for event in delivered} == {8}
    assert {event["body"] for event in given_up} == {f"never-{at}" for at in range(COUNT)}
    checks = Counter(event["body"] for event in checked if event["event"] == "checked")
    # A client that answers slowly is asked once more; it is asked no more often than the limit.
    assert {checks.pop(f"never-{at}") for at in range(COUNT)} == {3}
    assert checks.keys() == {f"late-{at}" for at in range(COUNT)}
    assert set(checks.values()) <= {2, 3}
    assert {event["topic"] for event in checked if event["event"] == "checked"} == {topic}
