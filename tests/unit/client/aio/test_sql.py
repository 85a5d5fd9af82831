"""Consumers that select messages by SQL92 expressions, over sockets."""

from pathlib import Path

import pytest

from tandemq import ConsumeFrom, Message, Producer, PullConsumer, PushConsumer, Sql
from tandemq.errors import ConfigError
from tandemq.run.local import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.tandemq(enablePropertyFilter=True)]
FIRST = ConsumeFrom.FIRST


@pytest.fixture(autouse=True)
def _offsets_in_a_directory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / "offsets"))


async def send_amounts(cluster: LocalCluster, count: int = 20) -> None:
    async with Producer(cluster.name_servers, group="p") as producer:
        for number in range(count):
            await producer.send(Message("T", b"%d" % number, properties={"amount": str(number)}))


async def test_push_consumer_gets_what_matches_and_can_change_its_mind(tandemq_broker: LocalCluster) -> None:
    await send_amounts(tandemq_broker)
    topics = {"T": Sql("amount BETWEEN 5 AND 7")}
    async with PushConsumer(tandemq_broker.name_servers, group="g", topics=topics, consume_from=FIRST) as consumer:
        found = []
        for _ in range(3):
            message = await consumer.receive(120)
            assert message is not None
            found.append(int(message.body))
            await message.ack()
        assert sorted(found) == [5, 6, 7]
        assert await consumer.receive(0.3) is None
        await consumer.subscribe("T", Sql("amount > 17"))
        await send_amounts(tandemq_broker)
        later = [await consumer.receive(120) for _ in range(2)]
        assert sorted(int(message.body) for message in later if message is not None) == [18, 19]


async def test_pull_consumer_gets_what_matches(tandemq_broker: LocalCluster) -> None:
    await send_amounts(tandemq_broker)
    async with PullConsumer(tandemq_broker.name_servers, group="g", consume_from=FIRST) as consumer:
        consumer.subscribe("T", Sql("amount >= 18 OR amount = 3"))
        consumer.assign(await consumer.queues("T"))
        found: list[int] = []
        while len(found) < 3:
            messages = await consumer.poll(timeout_s=60)
            assert messages
            found += [int(message.body) for message in messages]
        assert sorted(found) == [3, 18, 19]
        assert await consumer.poll(timeout_s=0.3) == []


async def test_expression_that_does_not_compile_is_refused_at_the_start(tandemq_broker: LocalCluster) -> None:
    await send_amounts(tandemq_broker, 1)
    consumer = PushConsumer(tandemq_broker.name_servers, group="g", topics={"T": Sql("amount >")})
    with pytest.raises(ConfigError, match="refuses the expression for T"):
        await consumer.start()


@pytest.mark.tandemq(enablePropertyFilter=False)
async def test_broker_without_filters_refuses_expressions(tandemq_broker: LocalCluster) -> None:
    await send_amounts(tandemq_broker, 1)
    async with PushConsumer(tandemq_broker.name_servers, group="g") as consumer:
        with pytest.raises(ConfigError, match="does not support") as refused:
            await consumer.subscribe("T", Sql("amount > 1"))
        assert "enablePropertyFilter=true" in str(refused.value)
