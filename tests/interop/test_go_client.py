"""RocketMQ's client for Go with our name server and broker: every kind of send and of consumption that it has.

Except replies: those of version 2.1.2 have no body, and a Java broker refuses them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from tests.interop.conftest import Pair
from tests.interop.gopeer import Event, GoPeer
from tests.interop.peers import SHORT_DELAYS, SMALL_STORE, broker, name_server, start_registered
from tests.interop.test_small_requests import make_topic

pytestmark = pytest.mark.slow
"""The client is compiled first."""
COUNT = 20
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory = tmp_path_factory.mktemp("go")
    checks = {"transactionCheckInterval": 1_000, "transactionTimeOut": 1_000}
    settings = {**SMALL_STORE, **SHORT_DELAYS, **checks, "enablePropertyFilter": True}
    with (
        name_server("ours", directory / "namesrv") as namesrv,
        broker("ours", directory / "broker", namesrv, settings=settings) as ours,
    ):
        namesrv.start()
        start_registered(ours, namesrv)
        yield Pair(namesrv, ours)


@pytest.fixture
def topic(place: Pair) -> str:
    name = f"Go{next(_numbers)}"
    make_topic(place.broker, place.namesrv, name, 2)
    return name


@pytest.fixture
def go(place: Pair, topic: str, tmp_path: Path) -> Iterator[Start]:
    started = Start(place, topic, tmp_path)
    yield started
    started.stop()


class Start:
    """Starts Go clients for one topic."""

    def __init__(self, place: Pair, topic: str, directory: Path) -> None:
        self._fixed = {"namesrv": place.namesrv.address, "topic": topic}
        self._directory = directory
        self._running: list[GoPeer] = []

    def __call__(self, verb: str, **values: str | int) -> GoPeer:
        number = len(self._running)
        fixed = {**self._fixed, "instance": f"i{number}", "group": "go-group"}
        self._running.append(GoPeer(verb, self._directory / f"{number}", **{**fixed, **values}))
        return self._running[-1]

    def stop(self) -> None:
        """End those that still run."""
        for each in self._running:
            each.__exit__()


def consumed(place: Pair, topic: str, count: int) -> list[ReceivedMessage]:
    """Return messages of a topic as our client gets them."""

    async def story() -> list[ReceivedMessage]:
        found = []
        async with PushConsumer(
            place.namesrv.address, group=f"{topic}-ours", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            for _ in range(count):
                message = await consumer.receive(30)
                assert message is not None
                found.append(message)
                await message.ack()
        return found

    return asyncio.run(story())


def produce(place: Pair, topic: str, count: int) -> None:
    async def story() -> None:
        async with Producer(place.namesrv.address, group="ours") as producer:
            for number in range(count):
                properties = {"number": str(number)}
                await producer.send(
                    Message(topic, b"our-%d" % number, tags=f"Tag{number % 2}", keys=["k"], properties=properties)
                )

    asyncio.run(story())


def texts(events: list[Event]) -> list[str]:
    return sorted(event["body"] for event in events)


def expected(prefix: str, numbers: range | list[int]) -> list[str]:
    return sorted(f"{prefix}-{number}" for number in numbers)


@pytest.mark.parametrize("way", ["sync", "async", "oneway", "batch"])
def test_messages_of_go_producers_are_stored_as_sent(go: Start, place: Pair, topic: str, way: str) -> None:
    results = go("send", count=COUNT, way=way, size=5_000).result()
    found = consumed(place, topic, COUNT)
    assert sorted(message.body.rstrip(b".").decode() for message in found) == expected("go", range(COUNT))
    assert {len(message.body) for message in found} <= {5_004, 5_005}, "also the compressed ones"
    assert {(message.tags, message.properties["number"][-1] in "13579") for message in found} == {
        ("Tag0", False),
        ("Tag1", True),
    }
    assert {result["status"] for result in results} <= {0}
    assert len(results) == {"oneway": 1, "batch": 1}.get(way, COUNT)
    if way in ("sync", "async"):
        offsets = {(message.queue.queue_id, message.queue_offset) for message in found}
        assert {(result["queue"], result["offset"]) for result in results} == offsets


def test_go_consumer_gets_each_message_and_those_it_refused_again(go: Start, place: Pair, topic: str) -> None:
    produce(place, topic, COUNT)
    events = go("consume", count=COUNT, fail=3).result()
    got = [event for event in events if event["event"] == "message"]
    again = [event for event in got if event["times"]]
    assert texts([event for event in got if not event["times"]]) == expected("our", range(COUNT))
    assert len(again) == 3 and len(set(texts(again))) == 3


@pytest.mark.parametrize(
    ("selector", "numbers"),
    [({"tags": "Tag1"}, range(1, COUNT, 2)), ({"sql": "number > 14"}, range(15, COUNT))],
    ids=["tag", "sql"],
)
def test_go_consumer_gets_what_it_selects(
    go: Start, place: Pair, topic: str, selector: dict[str, str], numbers: range
) -> None:
    produce(place, topic, COUNT)
    events = go("consume", count=len(numbers), **selector).result()
    assert texts([event for event in events if event["event"] == "message"]) == expected("our", numbers)


def test_broadcast_reaches_every_go_consumer(go: Start, place: Pair, topic: str) -> None:
    consumers = [go("consume", count=COUNT, model="broadcast") for _ in range(2)]
    for consumer in consumers:
        consumer.wait("started")
    produce(place, topic, COUNT)
    for consumer in consumers:
        found = [event for event in consumer.result() if event["event"] == "message"]
        assert texts(found) == expected("our", range(COUNT))


def test_orderly_go_consumer_gets_each_queue_in_order_also_after_a_refusal(go: Start, topic: str) -> None:
    go("send", count=COUNT).result()
    found = [event for event in go("consume", count=COUNT, model="orderly", fail=1).result() if "offset" in event]
    accepted = dict.fromkeys((event["queue"], event["offset"]) for event in found)
    assert len(accepted) == COUNT < len(found), "one came twice"
    for queue in (0, 1):
        assert [offset for at, offset in accepted if at == queue] == list(range(COUNT // 2))


def test_delayed_message_of_a_go_producer_comes_after_its_delay(go: Start) -> None:
    consumer = go("consume", count=2)
    consumer.wait("started")
    go("send", count=2, delay=2).result()
    found = [event for event in consumer.result() if event["event"] == "message"]
    assert texts(found) == expected("go", range(2))
    for event in found:
        assert 2_000 <= event["got_ms"] - event["born_ms"] < 8_000


def test_transactions_of_go_are_committed_rolled_back_and_checked(go: Start, place: Pair, topic: str) -> None:
    sender = go("transact", count=9)
    checked = sender.wait("checked", 3)
    assert sorted(event["body"] for event in checked[:3]) == expected("go", [2, 5, 8])
    found = consumed(place, topic, 6)
    sender.end()
    bodies = Counter(message.body.decode() for message in found)
    assert bodies == Counter(expected("go", [0, 2, 3, 5, 6, 8])), "each once, none rolled back"


def test_go_asks_and_our_consumer_replies(go: Start, place: Pair, topic: str) -> None:
    async def answer(message: ReceivedMessage) -> None:
        await message.reply(b"ours:" + message.body)

    async def story() -> list[Event]:
        async with PushConsumer(
            place.namesrv.address, group=f"{topic}-ours", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            task = asyncio.create_task(consumer.run(answer, concurrency=4))
            found = await asyncio.to_thread(go("request", count=3).result)
            task.cancel()
        return found

    assert [event["body"] for event in asyncio.run(story())] == [f"ours:go-{number}" for number in range(3)]


def test_polling_go_consumer_gets_each_message_once(go: Start, place: Pair, topic: str) -> None:
    produce(place, topic, COUNT)
    assert texts(go("pull", count=COUNT).result()) == expected("our", range(COUNT))
