"""Static topics with mqadmin and clients of 5.3.3: logical queues that move between our brokers and Java's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interop.checks import Events, exactly, invent_one, lose_one, messages, prove, repeat_one, sent
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.peers import SMALL_STORE, Broker, broker, name_server, start_registered
from tests.interop.wire import ask, loads_lenient
from tests.samples import slow
from tests.spec import spec

NEW = "5.3.3"
TOPIC = "Static"
QUEUES = 4
EACH = 20
ROUTE = 105


def remap(java: JavaDriver, names: str, port: int, target: str) -> None:
    """Move all logical queues to a broker, and wait until the name server's route says so."""
    printed = java.mqadmin("remappingStaticTopic", "-n", names, "-t", TOPIC, "-b", target)
    assert ".after" in printed, printed  # the name of the file with the new mapping
    wait_route(port, {target: QUEUES})


def wait_route(port: int, expected: dict[str, int]) -> None:
    """Wait until the route has these numbers of logical queues by broker."""

    def led() -> bool:
        answer = ask(port, ROUTE, {"topic": TOPIC})
        if answer.fields["code"] != 0:
            return False
        mappings = loads_lenient(answer.body)["topicQueueMappingByBroker"]
        found = {name: len(info["currIdMap"]) for name, info in mappings.items() if info["currIdMap"]}
        return found == expected

    wait_until(led, what=f"a route with {expected}", within_s=40)


def produce(java: JavaDriver, names: str, stage: str) -> list[str]:
    """Send to all logical queues; every message is stored in the queue it was sent to."""
    events = sent(java.at(names).call("produce", topic=TOPIC, count=EACH, queues=QUEUES, prefix=stage))
    assert [event["status"] for event in events] == ["SEND_OK"] * EACH, events
    return [f"{stage}-{number}" for number in range(EACH)]


def in_order(events: Events) -> None:
    """In each logical queue the offsets grow, with gaps where it moved."""
    last: dict[int, int] = {}
    for event in messages(events):
        assert event["queueOffset"] > last.get(event["queueId"], -1), event
        last[event["queueId"]] = event["queueOffset"]


def consume(java: JavaDriver, names: str, group: str, expected: list[str]) -> None:
    """Read everything with a new group, in the order of each logical queue."""
    order = java.at(names).begin("push", topic=TOPIC, group=group, count=len(expected), orderly=True, linger_ms=500)
    found = messages(order.result(within_s=90))
    prove(exactly(expected), found, lose_one, repeat_one, invent_one)
    prove(in_order, found, repeat_one)


@spec("L02", "L04", "L05")
@pytest.mark.parametrize("kind", [slow("ours"), NEW])
def test_logical_queues_move_between_our_broker_and_a_java_broker_and_their_stores_change_hands(
    kind: str, drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    java = drivers(NEW)
    stores = {name: tmp_path / f"store-{name}" for name in ("broker-a", "broker-b")}

    with name_server(kind, tmp_path / "namesrv") as server:
        server.start()
        names = server.address

        def start(maker: str, name: str, stage: str) -> Broker:
            started = broker(
                maker,
                tmp_path / f"{stage}-{name}",
                server,
                settings=SMALL_STORE,
                brokerName=name,
                store=str(stores[name]),
            )
            start_registered(started, server)
            return started

        with start("ours", "broker-a", "first") as ours, start(NEW, "broker-b", "first") as other:
            arguments = ("-n", names, "-t", TOPIC, "-qn", str(QUEUES), "-b", "broker-a,broker-b")
            printed = java.at(names).mqadmin("updateStaticTopic", *arguments)
            assert ".after" in printed, printed
            wait_route(server.port, {"broker-a": QUEUES // 2, "broker-b": QUEUES // 2})
            bodies = produce(java, names, "both")
            early = java.at(names).begin("push", topic=TOPIC, group="early", count=4 * EACH)
            for number, target in enumerate(("broker-b", "broker-a", "broker-b")):
                remap(java, names, server.port, target)
                bodies += produce(java, names, f"move{number}")
            prove(exactly(bodies), messages(early.result(within_s=90)), lose_one)
            consume(java, names, "late", bodies)
            ours.stop()
            other.stop()

        with start(NEW, "broker-a", "second"), start("ours", "broker-b", "second"):
            wait_route(server.port, {"broker-b": QUEUES})
            consume(java, names, "exchanged", bodies)
            remap(java, names, server.port, "broker-a")
            bodies += produce(java, names, "last")
            consume(java, names, "all", bodies)
