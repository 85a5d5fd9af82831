"""Request-reply: Java and our clients ask each other, over our broker and over Java's."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, ReceivedMessage
from tests.interop.conftest import Pair
from tests.interop.driver import Event, JavaDriver, Running
from tests.interop.java import SERVER_VERSIONS
from tests.interop.peers import SMALL_STORE, Broker, broker, name_server, start_registered
from tests.interop.wire import ask, wait_topic
from tests.spec import spec

SEND_REPLY_V2, UPDATE_TOPIC = 325, 17
COUNT = 12
_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=["ours", *SERVER_VERSIONS])
def place(request: pytest.FixtureRequest, pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A name server and a broker of each kind."""
    if request.param == "ours":
        yield pair
        return
    directory = tmp_path_factory.mktemp("asked")
    with (
        name_server(request.param, directory / "namesrv") as namesrv,
        broker(request.param, directory / "broker", namesrv, settings=SMALL_STORE) as java,
    ):
        namesrv.start()
        start_registered(java, namesrv)
        yield Pair(namesrv, java)


@pytest.fixture
def topic(place: Pair) -> str:
    name = f"Asked{next(_numbers)}"
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


@pytest.fixture
def client(java: JavaDriver, place: Pair) -> JavaDriver:
    """A Java client of each version at the place."""
    return java.at(place.namesrv.address)


def replies(events: list[Event]) -> dict[int, str]:
    assert [event for event in events if event["event"] != "reply"] == []
    return {event["index"]: event["body"] for event in events}


def replied(responder: Running) -> list[Event]:
    """Wait until the responder has the answers to its replies, then end it."""
    found = responder.wait_for(lambda event: event["event"] != "started", within_s=30, count=COUNT)
    responder.end()
    return found


def test_java_asks_java(client: JavaDriver, topic: str) -> None:
    responder = client.begin("respond", topic=topic, group=f"{topic}-g")
    responder.wait_for(lambda event: event["event"] == "started", within_s=60)
    found = client.call("request", topic=topic, count=COUNT, timeout_ms=30_000)
    assert replies(found) == {n: f"re:ask-{n}" for n in range(COUNT)}
    properties = found[0]["properties"]
    assert properties["MSG_TYPE"] == "reply"
    assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= properties.keys()
    sent = replied(responder)
    assert [event.get("status", event) for event in sent] == ["SEND_OK"] * COUNT
    assert len({event["offsetMsgId"] for event in sent}) == COUNT, "each is stored"


@spec("S07")
def test_java_asks_and_our_consumer_replies(client: JavaDriver, place: Pair, topic: str) -> None:
    async def answer(message: ReceivedMessage) -> None:
        await message.reply(b"ours:" + message.body)

    async def story() -> None:
        async with PushConsumer(
            place.namesrv.address, group=f"{topic}-g", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            task = asyncio.create_task(consumer.run(answer, concurrency=4))
            order = client.begin("request", topic=topic, count=COUNT, size=6_000, timeout_ms=30_000)
            found = replies(await asyncio.to_thread(order.result))
            task.cancel()
        assert {n: text.rstrip(".") for n, text in found.items()} == {n: f"ours:ask-{n}" for n in range(COUNT)}
        assert {len(text) for text in found.values()} == {6_005}

    asyncio.run(story())


@spec("S07")
def test_we_ask_and_java_replies(client: JavaDriver, place: Pair, topic: str) -> None:
    responder = client.begin("respond", topic=topic, group=f"{topic}-g", size=6_000)
    responder.wait_for(lambda event: event["event"] == "started", within_s=60)

    async def story() -> None:
        async with Producer(place.namesrv.address, group="p") as producer:
            found = await asyncio.gather(
                *[producer.request(Message(topic, b"our-%d" % n), timeout_s=30) for n in range(COUNT)]
            )
        assert [reply.body.rstrip(b".") for reply in found] == [b"re:our-%d" % n for n in range(COUNT)]
        assert {len(reply.body) for reply in found} == {6_000}
        assert found[0].born_host.startswith("127.0.0.1:")

    asyncio.run(story())
    sent = replied(responder)
    assert [event.get("status", event) for event in sent] == ["SEND_OK"] * COUNT


def test_we_ask_and_reply(place: Pair, topic: str) -> None:
    async def answer(message: ReceivedMessage) -> None:
        await message.reply(b"re:" + message.body)

    async def story() -> None:
        async with (
            PushConsumer(
                place.namesrv.address, group=f"{topic}-g", topics={topic: "*"}, consume_from=ConsumeFrom.FIRST
            ) as consumer,
            Producer(place.namesrv.address, group="p") as producer,
        ):
            task = asyncio.create_task(consumer.run(answer))
            reply = await producer.request(Message(topic, b"x"), timeout_s=30)
            assert reply.body == b"re:x"
            task.cancel()

    asyncio.run(story())


@spec("S07")
@pytest.mark.parametrize(
    ("properties", "remark"),
    [
        ("MSG_TYPE\x01reply\x02", "reply message properties[REPLY_TO_CLIENT] is null"),
        ("REPLY_TO_CLIENT\x01nobody\x02", "push reply message fail, channel of <nobody> not found."),
    ],
)
def test_reply_that_reaches_nobody_is_answered_alike_by_all_brokers(place: Pair, properties: str, remark: str) -> None:
    cluster = str(place.broker.conf["brokerClusterName"])
    answer = _reply(place.broker, f"{cluster}_REPLY_TOPIC", properties)
    assert answer["code"] == 1
    assert answer["remark"] == remark
    assert answer["extFields"].keys() >= {"MSG_REGION", "TRACE_ON", "msgId", "queueId", "queueOffset"}
    assert len(answer["extFields"]["msgId"]) == 32, "it is stored all the same"


def _reply(which: Broker, topic: str, properties: str) -> Event:
    fields = {
        "a": "G",
        "b": topic,
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return ask(which.port, SEND_REPLY_V2, fields, b"body").fields
