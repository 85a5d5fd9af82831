"""Static topics with mqadmin and clients of 5.3.3: logical queues that move between our brokers and Java's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, PopConsumer
from tests.interop.checks import Events, exactly, invent_one, lose_one, messages, prove, repeat_one, sent
from tests.interop.driver import JavaDriver
from tests.interop.java import wait_until
from tests.interop.peers import SMALL_STORE, Broker, broker, name_server, start_registered
from tests.interop.pops import Popper
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


@spec("L09")
def test_pops_of_a_static_topic_get_each_message_once_while_its_queues_move(
    drivers: Callable[[str], JavaDriver], tmp_path: Path
) -> None:
    """Ours and a Java broker have a logical queue each; all of them move to one, and back, with messages in flight."""
    java = drivers(NEW)
    settings = SMALL_STORE | {"reviveQueueNum": 2}
    with (
        name_server("ours", tmp_path / "namesrv") as server,
        broker("ours", tmp_path / "a", server, settings=settings, brokerName="broker-a") as ours,
        broker(NEW, tmp_path / "b", server, settings=settings, brokerName="broker-b") as other,
    ):
        server.start()
        for started in (ours, other):
            start_registered(started, server)
        names = server.address
        arguments = ("-n", names, "-t", TOPIC, "-qn", str(QUEUES), "-b", "broker-a,broker-b")
        assert ".after" in java.at(names).mqadmin("updateStaticTopic", *arguments)
        wait_route(server.port, {"broker-a": QUEUES // 2, "broker-b": QUEUES // 2})
        for started in (ours, other):
            java.at(names).mqadmin("updateSubGroup", "-n", names, "-b", started.address, "-g", "poppers")
        poppers = [Popper(ours.port, TOPIC, "poppers", "broker-a"), Popper(other.port, TOPIC, "poppers", "broker-b")]
        bodies = produce(java, names, "first")
        done, lost, late = [], [], []
        for popper in poppers:
            acked, forgotten, *held = popper.await_messages(EACH // 2, invisibleTime=40_000)
            assert popper.ack(acked) == 0
            done.append(acked.text)
            lost.append(forgotten.text)
            late += [(popper, taken) for taken in held]
        for target in ("broker-b", "broker-a"):
            remap(java, names, server.port, target)
            bodies += produce(java, names, target)
        assert {popper.ack(taken) for popper, taken in late} == {0}
        done += [taken.text for _, taken in late]
        rest = Counter(bodies) - Counter(done)
        found: Counter[str] = Counter()

        def came() -> bool:
            for popper in poppers:
                for taken in popper.pop():
                    assert popper.ack(taken) == 0
                    assert (taken.text in lost) == (taken.message.reconsume_times == 1), taken
                    found[taken.text] += 1
            return found.keys() >= rest.keys()

        wait_until(came, what="all messages popped", within_s=90, every_s=0.3)
        assert found == rest
        assert asyncio.run(pop_all(names, len(bodies))) == Counter(bodies)
        for started in (ours, other):
            at = "-n", names, "-b", started.address
            java.at(names).mqadmin("updateSubGroup", *at, "-g", "java")
            java.at(names).mqadmin("setConsumeMode", *at, "-t", TOPIC, "-g", "java", "-m", "POP", "-q", "0")
        order = java.at(names).begin("push", topic=TOPIC, group="java", pop=True, count=len(bodies), linger_ms=500)
        popped = messages(order.result(within_s=90))
        prove(exactly(bodies), popped, lose_one, repeat_one, invent_one)
        assert all("POP_CK" in event["properties"] for event in popped)


async def pop_all(names: str, count: int) -> Counter[str]:
    """Pop everything with a new group of our client."""
    found: Counter[str] = Counter()
    async with PopConsumer(names, group="late", topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST) as consumer:
        while found.total() < count:
            message = await consumer.receive(60)
            assert message is not None, f"{found.total()} of {count} messages came"
            found[message.body.decode()] += 1
            await message.ack()
    return found
