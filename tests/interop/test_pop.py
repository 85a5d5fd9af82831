"""Push consumers of 5.3.3 that pop, and stores that change hands with popped messages in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.checks import bodies, messages
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.peers import SMALL_STORE, Broker, NameServer, broker, name_server, start_registered
from tests.interop.wire import wait_topic

JAVA = "5.3.3"
TOPIC, GROUP = "Popped", "poppers"
COUNT = 20
SETTINGS = SMALL_STORE | {"reviveQueueNum": 2}


def ready(java: JavaDriver, namesrv: NameServer, which: Broker, *, first: bool = True) -> None:
    """Start a broker, with a topic that the group pops."""
    start_registered(which, namesrv)
    if not first:
        wait_topic(namesrv.port, TOPIC)
        return
    at = "-n", namesrv.address, "-b", which.address
    java.mqadmin("updateTopic", *at, "-t", TOPIC, "-r", "4", "-w", "4")
    java.mqadmin("updateSubGroup", *at, "-g", GROUP)
    wait_topic(namesrv.port, TOPIC)
    found = java.mqadmin("setConsumeMode", *at, "-t", TOPIC, "-g", GROUP, "-m", "POP", "-q", "0")
    assert "success" in found, found


def produce(java: JavaDriver, prefix: str) -> list[str]:
    """Send messages; returns their bodies."""
    answers = java.call("produce", topic=TOPIC, prefix=prefix, count=COUNT)
    assert [event.get("status") for event in answers] == COUNT * ["SEND_OK"], answers
    return [f"{prefix}-{number}" for number in range(COUNT)]


@pytest.fixture
def java(drivers: Callable[[str], JavaDriver]) -> JavaDriver:
    """A client of 5.3.3."""
    return drivers(JAVA)


@pytest.mark.parametrize("kind", ["ours", JAVA])
def test_push_consumer_pops_each_message_and_again_after_a_failure(java: JavaDriver, tmp_path: Path, kind: str) -> None:
    with (
        name_server(kind, tmp_path / "namesrv") as namesrv,
        broker(kind, tmp_path / "broker", namesrv, settings=SETTINGS) as keeper,
    ):
        namesrv.start()
        client = java.at(namesrv.address)
        ready(client, namesrv, keeper)
        sent = produce(client, "a")
        found = messages(
            client.call("push", topic=TOPIC, group=GROUP, pop=True, count=COUNT, linger_ms=2_000, deadline_ms=60_000)
        )
        assert sorted(bodies(found)) == sorted(sent)
        sent = produce(client, "b")
        found = messages(
            client.call("push", topic=TOPIC, group=GROUP, pop=True, count=2 * COUNT, fail_first=1, deadline_ms=90_000)
        )
        assert sorted(bodies(found)) == sorted(2 * sent)
        assert sorted(event["reconsumeTimes"] for event in found) == COUNT * [0] + COUNT * [1]


@pytest.mark.parametrize(("first", "second"), [("ours", JAVA), (JAVA, "ours"), (JAVA, JAVA)])
def test_popped_messages_in_flight_survive_a_change_of_the_broker(
    java: JavaDriver, tmp_path: Path, first: str, second: str
) -> None:
    """A consumer leaves with messages that it has not acknowledged; the store goes to the other broker."""
    store = tmp_path / "store"
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        client = java.at(namesrv.address)
        with broker(first, tmp_path / "first", namesrv, settings=SETTINGS, store=str(store)) as keeper:
            ready(client, namesrv, keeper)
            sent = produce(client, "c")
            consumer = client.begin(
                "push", topic=TOPIC, group=GROUP, pop=True, consume_ms=200, threads=1, pop_invisible_ms=20_000
            )
            wait_until(lambda: len(messages(consumer.events())) >= 8, what="messages popped", within_s=60)
            consumer.stop()
            before = bodies(messages(consumer.result(30)))
            keeper.stop()
        with broker(second, tmp_path / "second", namesrv, settings=SETTINGS, store=str(store)) as keeper:
            ready(client, namesrv, keeper, first=False)
            rest = len(sent) - len(before)
            found = bodies(
                messages(
                    client.call(
                        "push", topic=TOPIC, group=GROUP, pop=True, count=rest, linger_ms=15_000, deadline_ms=90_000
                    )
                )
            )
        assert set(before) | set(found) == set(sent)
        assert len(found) == len(set(found))
        assert len(set(before) & set(found)) <= 2, "acknowledgements of the last messages may not have been sent"
