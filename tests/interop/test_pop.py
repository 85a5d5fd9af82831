"""Java push consumers that pop, and stores that change hands with popped messages in flight."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.checks import bodies, messages
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.peers import (
    CLIENT_OF,
    NEWEST_VERSION,
    SMALL_STORE,
    Broker,
    NameServer,
    broker,
    name_server,
    start_registered,
)
from tests.interop.pops import Popper
from tests.interop.wire import wait_topic
from tests.spec import spec

POPPING = ("5.3.3", NEWEST_VERSION)
"""Versions with POP."""
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


@spec("K01")
@pytest.mark.parametrize(
    ("kind", "version"), [*(("ours", version) for version in POPPING), *((version, version) for version in POPPING)]
)
def test_push_consumer_pops_each_message_and_again_after_a_failure(
    drivers: Callable[[str], JavaDriver], tmp_path: Path, kind: str, version: str
) -> None:
    with (
        name_server(kind, tmp_path / "namesrv") as namesrv,
        broker(kind, tmp_path / "broker", namesrv, settings=SETTINGS) as keeper,
    ):
        namesrv.start()
        client = drivers(CLIENT_OF[version]).at(namesrv.address)
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


@spec("K02")
@pytest.mark.parametrize("version", POPPING)
@pytest.mark.parametrize("way", ["to Java", "from Java", "between Java brokers"])
def test_popped_messages_in_flight_survive_a_change_of_the_broker(
    drivers: Callable[[str], JavaDriver], tmp_path: Path, version: str, way: str
) -> None:
    """A consumer leaves with messages that it has not acknowledged; the store goes to the other broker."""
    first, second = {"to Java": ("ours", version), "from Java": (version, "ours")}.get(way, (version, version))
    store = tmp_path / "store"
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        client = drivers(CLIENT_OF[version]).at(namesrv.address)
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


@spec("K02")
@pytest.mark.parametrize("version", POPPING)
@pytest.mark.parametrize("way", ["to Java", "from Java", "between Java brokers"])
def test_ordered_batches_and_messages_put_off_survive_a_change_of_the_broker(
    drivers: Callable[[str], JavaDriver], tmp_path: Path, version: str, way: str
) -> None:
    """Of an ordered batch two messages of five are acknowledged when the store goes to the other broker."""
    first, second = {"to Java": ("ours", version), "from Java": (version, "ours")}.get(way, (version, version))
    knows_put_off = version == NEWEST_VERSION
    store = tmp_path / "store"
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        client = drivers(CLIENT_OF[version]).at(namesrv.address)
        with broker(first, tmp_path / "first", namesrv, settings=SETTINGS, store=str(store)) as keeper:
            ready(client, namesrv, keeper)
            client.mqadmin("updateSubGroup", "-n", namesrv.address, "-b", keeper.address, "-g", "ordered")
            sent = produce(client, "d")
            consumer = Popper(keeper.port, TOPIC, "ordered")
            batch = consumer.pop(queueId=1, maxMsgNums=5, order=True, invisibleTime=40_000)
            queue = sent[sent.index(batch[0].text) :: 4]
            assert [taken.text for taken in batch] == queue
            assert [consumer.ack(taken) for taken in batch[:2]] == [0, 0]
            loose = Popper(keeper.port, TOPIC, GROUP)
            failed, put_off = loose.pop(queueId=2, maxMsgNums=1)[0], loose.pop(queueId=3, maxMsgNums=1)[0]
            assert loose.change_time(failed, 20_000) == 0
            assert loose.change_time(put_off, 20_000, suspend=True) == 0
            keeper.stop()
        with broker(second, tmp_path / "second", namesrv, settings=SETTINGS, store=str(store)) as keeper:
            ready(client, namesrv, keeper, first=False)
            consumer.port = loose.port = keeper.port
            assert consumer.pop(queueId=1, order=True) == [], "the batch is handed out"
            again = consumer.await_messages(3, queueId=1, order=True)
            assert [taken.text for taken in again] == queue[2:]
            assert again[0].answer["orderCountInfo"] == "0 qo1%2 1;0 qo1%3 1;0 qo1%4 1;0 1 1"
            assert [consumer.ack(taken) for taken in again] == [0, 0, 0]
            back = {failed.text: 1, put_off.text: 0 if knows_put_off else 1}
            came: dict[str, int] = {}

            def are_back() -> bool:
                popped = [taken for taken in loose.pop() if taken.text in back]
                came.update({taken.text: taken.message.reconsume_times for taken in popped})
                return came.keys() == back.keys()

            wait_until(are_back, what=f"{back} back", within_s=60, every_s=0.5)
            assert came == back
