"""Transactions of the asyncio and blocking clients, over sockets."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tandemq import (
    ConsumeFrom,
    Message,
    PushConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from tandemq.boundary import Now
from tandemq.client.blocking import BlockingConsumer, BlockingTransactionProducer
from tandemq.errors import ConfigError, LocalError
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.run.local import LocalCluster

pytestmark = [pytest.mark.system, pytest.mark.tandemq(transactionCheckInterval=300, transactionTimeOut=200)]
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN
WITHIN_S = 30
Check = Callable[[StoredMessage], Awaitable[TransactionState]]


@pytest.fixture(autouse=True)
def _offsets_in_a_directory_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path / "offsets"))


async def never(_message: StoredMessage) -> TransactionState:
    raise AssertionError("no transaction of another process is open")


def producing(cluster: LocalCluster, check: Check = never) -> TransactionProducer:
    return TransactionProducer(cluster.name_servers, group="p", check=check, topics=["T"])


async def bodies(cluster: LocalCluster, count: int, group: str = "g") -> list[bytes]:
    """Return the first messages of the topic; the last one of a test is sent last."""
    async with PushConsumer(
        cluster.name_servers, group=group, topics={"T": "*"}, consume_from=ConsumeFrom.FIRST
    ) as consumer:
        found: list[bytes] = []
        for _ in range(count):
            message = await consumer.receive(WITHIN_S)
            assert message is not None, found
            found.append(message.body)
            await message.ack()
        return found


async def test_message_is_delivered_when_the_body_returns_and_dropped_when_it_raises(
    tandemq_broker: LocalCluster,
) -> None:
    async with producing(tandemq_broker) as producer:
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message("T", b"dropped"), by_key="k") as dropped:
                raise ZeroDivisionError
        async with producer.transaction(Message("T", b"delivered", tags="t"), by_key="k") as delivered:
            pass
        assert (dropped.state, delivered.state) == (ROLLBACK, COMMIT)
        assert dropped.is_confirmed
        assert delivered.is_confirmed
        await producer.send(Message("T", b"last"), by_key="k")
    assert await bodies(tandemq_broker, 2) == [b"delivered", b"last"]


async def test_body_may_end_its_transaction_itself_once(tandemq_broker: LocalCluster) -> None:
    async with producing(tandemq_broker) as producer:
        async with producer.transaction(Message("T", b"x"), by_key="k") as transaction:
            await transaction.rollback()
            with pytest.raises(LocalError, match="ended before"):
                await transaction.commit()
        async with producer.transaction(Message("T", b"y"), by_key="k") as transaction:
            await transaction.commit()
    assert await bodies(tandemq_broker, 1) == [b"y"]


async def test_many_transactions_at_once_are_each_delivered_once(tandemq_broker: LocalCluster) -> None:
    async def one(producer: TransactionProducer, number: int) -> None:
        async with producer.transaction(Message("T", b"%d" % number)):
            await asyncio.sleep(0)

    async with producing(tandemq_broker) as producer:
        await asyncio.gather(*[one(producer, number) for number in range(100)])
        await producer.send(Message("T", b"last"))
    assert sorted(await bodies(tandemq_broker, 101)) == sorted([b"last", *[b"%d" % number for number in range(100)]])


async def test_transaction_of_a_process_that_died_is_decided_by_a_check(tandemq_broker: LocalCluster) -> None:
    async with producing(tandemq_broker) as producer:
        for body in (b"paid", b"not paid"):
            transaction = producer.transaction(Message("T", body, keys=["42"]))
            await transaction.__aenter__()  # and the process dies

    asked: list[tuple[bytes, list[str]]] = []
    both = asyncio.Event()

    async def check(message: StoredMessage) -> TransactionState:
        asked.append((message.body, message.keys))
        if len(asked) == 2:
            both.set()
        return COMMIT if message.body == b"paid" else ROLLBACK

    async with producing(tandemq_broker, check):
        assert await bodies(tandemq_broker, 1) == [b"paid"]
        await asyncio.wait_for(both.wait(), WITHIN_S)
    assert sorted(asked) == [(b"not paid", ["42"]), (b"paid", ["42"])]


async def test_check_that_fails_or_takes_too_long_is_asked_again(tandemq_broker: LocalCluster) -> None:
    async with producing(tandemq_broker) as producer:
        await producer.transaction(Message("T", b"x")).__aenter__()
    calls = 0

    async def check(_message: StoredMessage) -> TransactionState:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        if calls == 2:
            await asyncio.Event().wait()
        return COMMIT if calls > 3 else UNKNOWN

    servers = tandemq_broker.name_servers
    async with TransactionProducer(servers, group="p", check=check, topics=["T"], check_timeout_s=0.2):
        assert await bodies(tandemq_broker, 1) == [b"x"]
    assert calls == 4


async def test_running_transaction_is_not_decided_by_a_check(tandemq_broker: LocalCluster) -> None:
    async with producing(tandemq_broker) as producer:
        async with producer.transaction(Message("T", b"x")):
            shell, _ = producer.running()
            handled = shell.node.remoting.on_request
            checked, twice = 0, asyncio.Event()

            def handle(address: str, command: Command, now: Now) -> Command | None:
                nonlocal checked
                checked += command.code == RequestCode.CHECK_TRANSACTION_STATE
                if checked == 2:
                    twice.set()
                return handled(address, command, now)

            shell.node.remoting.on_request = handle
            await asyncio.wait_for(twice.wait(), WITHIN_S)
        assert await bodies(tandemq_broker, 1) == [b"x"]


async def test_cancelled_entry_drops_the_message(tandemq_broker: LocalCluster) -> None:
    async def check(message: StoredMessage) -> TransactionState:
        raise AssertionError(f"the process itself knows {message.body!r}")

    async with producing(tandemq_broker, check) as producer:
        await producer.send(Message("T", b"first"), by_key="k")
        entered = asyncio.create_task(producer.transaction(Message("T", b"x"), by_key="k").__aenter__())
        await asyncio.sleep(0)
        entered.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entered
        async with producer.transaction(Message("T", b"last"), by_key="k"):
            pass
    assert await bodies(tandemq_broker, 2) == [b"first", b"last"]


def test_options_are_validated() -> None:
    with pytest.raises(ConfigError, match="checks_at_once"):
        TransactionProducer("127.0.0.1:1", group="p", check=never, checks_at_once=0)


async def test_transaction_begins_once(tandemq_broker: LocalCluster) -> None:
    async with producing(tandemq_broker) as producer:
        transaction = producer.transaction(Message("T", b"x"))
        with pytest.raises(LocalError, match="not begun"):
            _ = transaction.unique_key
        async with transaction:
            with pytest.raises(LocalError, match="begun already"):
                await transaction.__aenter__()


def test_blocking_client_commits_rolls_back_and_answers_checks(tandemq_broker: LocalCluster) -> None:
    servers = tandemq_broker.name_servers
    with BlockingTransactionProducer(servers, group="p", check=lambda _: UNKNOWN, topics=["T"]) as producer:
        with pytest.raises(ZeroDivisionError), producer.transaction(Message("T", b"dropped")) as dropped:
            raise ZeroDivisionError
        with producer.transaction(Message("T", b"delivered")) as delivered:
            pass
        producer.transaction(Message("T", b"open")).__enter__()
        assert (dropped.state, delivered.state, delivered.is_confirmed) == (ROLLBACK, COMMIT, True)
    with (
        BlockingTransactionProducer(servers, group="p", check=lambda _: COMMIT, topics=["T"]),
        BlockingConsumer(servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
    ):
        found = [consumer.receive(WITHIN_S) for _ in range(2)]
        assert sorted(message.body for message in found if message is not None) == [b"delivered", b"open"]
