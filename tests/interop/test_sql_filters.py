"""SQL92 filters: Java clients at our broker, and every expression of our tests at Java's brokers."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, Sql
from tandemq.errors import ConfigError
from tests.interop.checks import exactly, invent_one, lose_one, messages, prove, repeat_one
from tests.interop.conftest import Pair
from tests.interop.driver import JavaDriver
from tests.interop.java import SERVER_VERSIONS, PeerError, wait_until
from tests.interop.peers import SMALL_STORE, broker, name_server, start_registered
from tests.interop.wire import ask
from tests.spec import spec
from tests.unit.broker.filter.test_expressions import PROPERTIES, REFUSED, VALUES

SEND, PULL, CREATE_TOPIC, CHECK_CLIENT_CONFIG = 310, 11, 17, 46
FOUND, PARSE_FAILED = 0, 23
ONLY_IN_5 = ("CONTAINS", "STARTSWITH", "ENDSWITH")
_numbers = itertools.count(1)


@pytest.fixture
def topic(pair: Pair, java: JavaDriver) -> str:
    """A topic with twenty messages, whose property `colour` ends in their number."""
    name = pair.make_topic(java, f"Filtered{next(_numbers)}")
    java.call("produce", topic=name, count=20, queues=4, tags="A,B", property="colour")
    return name


@spec("S05")
@pytest.mark.parametrize(
    ("expression", "wanted"),
    [
        ("colour IN ('colour3', 'colour7')", [3, 7]),
        ("TAGS = 'B' AND colour ENDSWITH '5'", [5, 15]),
        ("colour IS NULL", []),
        ("colour > 3", []),
        ("NOT (colour STARTSWITH 'colour1')", [0, 2, 3, 4, 5, 6, 7, 8, 9]),
    ],
)
def test_java_consumer_gets_the_messages_that_match(
    java: JavaDriver, topic: str, expression: str, wanted: list[int]
) -> None:
    bodies = [f"body-{number}" for number in wanted]
    group = f"sql-{next(_numbers)}"
    pushed = java.begin(
        "push", topic=topic, group=group, sql=expression, count=len(bodies), linger_ms=500, deadline_ms=60000
    )
    if not bodies:
        pushed.wait_for(lambda event: event["event"] == "started", within_s=60)
        pushed.stop()
    if bodies:
        prove(exactly(bodies), pushed.result(), lose_one, repeat_one, invent_one)
    else:
        assert messages(pushed.result()) == []


def test_java_consumer_with_an_invalid_expression_does_not_start(java: JavaDriver, topic: str) -> None:
    with pytest.raises(PeerError, match=r"expected a property or a constant"):
        java.call("push", topic=topic, group="sql-invalid", sql="colour >", count=1, deadline_ms=10000)


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_our_consumers_get_the_messages_that_match_at_a_java_broker(version: str, tmp_path: Path) -> None:
    async def story(servers: str) -> None:
        first = ConsumeFrom.FIRST
        async with Producer(servers, group="p") as producer:
            for number in range(20):
                await producer.send(Message("Amounts", b"%d" % number, properties={"amount": str(number)}))
        topics = {"Amounts": Sql("amount BETWEEN 5 AND 7")}
        async with PushConsumer(servers, group="push", topics=topics, consume_from=first) as pushed:
            found = [await pushed.receive(30) for _ in range(3)]
            assert sorted(int(message.body) for message in found if message is not None) == [5, 6, 7]
            assert await pushed.receive(1) is None
            with pytest.raises(ConfigError, match="refuses the expression"):
                await pushed.subscribe("Amounts", Sql("amount >"))
        async with PullConsumer(servers, group="pull", consume_from=first) as pulled:
            pulled.subscribe("Amounts", Sql("amount >= 18"))
            pulled.assign(await pulled.queues("Amounts"))
            polled: list[int] = []
            while len(polled) < 2:
                messages = await pulled.poll(timeout_s=30)
                assert messages
                polled += [int(message.body) for message in messages]
            assert sorted(polled) == [18, 19]
            assert await pulled.poll(timeout_s=1) == []

    with (
        name_server(version, tmp_path / "namesrv") as namesrv,
        broker(version, tmp_path / "broker", namesrv, settings=SMALL_STORE, enablePropertyFilter=True) as java,
    ):
        namesrv.start()
        start_registered(java, namesrv)
        asyncio.run(story(namesrv.address))


@spec("S05")
@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_every_expression_of_our_tests_has_the_same_value_at_a_java_broker(version: str, tmp_path: Path) -> None:
    with (
        name_server(version, tmp_path / "namesrv") as namesrv,
        broker(version, tmp_path / "broker", namesrv, settings=SMALL_STORE, enablePropertyFilter=True) as java,
    ):
        namesrv.start()
        start_registered(java, namesrv)
        fields = {
            "topic": "Values", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        assert ask(java.port, CREATE_TOPIC, fields).fields["code"] == 0
        assert ask(java.port, SEND, _send_fields(), b"body").fields["code"] == 0
        wait_until(lambda: _pulled(java.port, "TRUE") == FOUND, what="a message that can be read", within_s=30)
        differences = [
            f"{text!r}: {found} instead of {expected}"
            for text, expected in _expressions(version)
            if (found := _value(java.port, text)) != expected
        ]
    assert not differences, "\n".join(differences)


def _expressions(version: str) -> Iterator[tuple[str, str]]:
    """Expressions, and whether they are refused, match or do not."""
    for value, texts in VALUES.items():
        for text in texts:
            if version.startswith("4") and any(word in text.upper() for word in ONLY_IN_5):
                continue
            if re.search(r"\be\b", text):  # a broker drops properties without a value
                continue
            yield text, REFUSED if value == REFUSED else "matches" if value is True else "does not match"


def _value(port: int, expression: str) -> str:
    subscription = {"topic": "Values", "subString": expression, "expressionType": "SQL92", "subVersion": 1}
    body = {"clientId": "c", "group": "G", "subscriptionData": subscription, "namespace": ""}
    code = ask(port, CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode()).fields["code"]
    if code:
        assert code == PARSE_FAILED
        return REFUSED
    return "matches" if _pulled(port, expression) == FOUND else "does not match"


def _pulled(port: int, expression: str) -> int:
    fields = {
        "consumerGroup": "G", "topic": "Values", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1", "sysFlag": "4",
        "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": expression, "subVersion": "1",
        "expressionType": "SQL92",
    }  # fmt: skip
    return int(ask(port, PULL, fields).fields["code"])


def _send_fields() -> dict[str, str]:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in PROPERTIES.items())
    return {
        "a": "G", "b": "Values", "c": "TBW102", "d": "1", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
