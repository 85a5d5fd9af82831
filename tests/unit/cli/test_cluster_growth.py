"""`tandemq cluster add-group` and `drain`: broker groups that join and leave under traffic."""

import asyncio
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tandemq import ConsumeFrom, Message, Producer, PushConsumer, TransactionProducer
from tandemq.cli import main
from tandemq.cli.support.client_session import with_admin
from tandemq.client.aio import elastic, transport
from tandemq.client.core.settings import ClientConfig
from tandemq.errors import NetworkError
from tandemq.model.group import SubscriptionGroupConfig
from tandemq.model.message import StoredMessage
from tandemq.model.topic import Permission
from tandemq.model.transactions import TransactionState
from tandemq.run.local import LocalCluster

Run = Callable[..., Any]


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Two broker groups, for clients that look for routes often."""
    monkeypatch.setattr(transport, "ClientConfig", partial(ClientConfig, route_poll_ms=200))
    monkeypatch.setattr(elastic, "ROUTES_S", 2.0)
    with LocalCluster(tmp_path, groups=2) as running:
        yield running


@pytest.fixture
def command(two: LocalCluster) -> Run:
    """Run a command with --json, and return its parsed output, or with another exit code its errors."""

    def run(*words: str, code: int = 0) -> Any:
        result = CliRunner().invoke(main, [*words, "--json", "--namesrv", two.name_servers])
        assert result.exit_code == code, f"{words}: {result.output}{result.exception!r}"
        return result.stderr if code else json.loads(result.stdout)

    return run


class Traffic:
    """A producer that sends one message after another, and a consumer of them that begins at the end of each queue."""

    def __init__(self, cluster: LocalCluster) -> None:
        self.sent: list[str] = []
        self.brokers: set[str] = set()
        self.received: set[str] = set()
        self._producer = Producer(cluster.name_servers, group="p")
        self._consumer = PushConsumer(cluster.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.LAST)
        self._stop = asyncio.Event()

    async def __aenter__(self) -> Self:
        await self._producer.start()
        await self._consumer.start()
        self._consuming = asyncio.create_task(self._consumer.run(self._handle, handle_signals=False))
        self._sending = asyncio.create_task(self._send())
        await self.until(lambda: bool(self.received))
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._stop.set()
        await self._sending
        await self.until(lambda: self.received >= set(self.sent[self.sent.index(min(self.received, key=int)) :]))
        await self._consumer.close()
        await self._consuming
        await self._producer.close()

    async def _send(self) -> None:
        while not self._stop.is_set():
            body = str(len(self.sent))
            result = await self._producer.send(Message("T", body.encode()))
            self.sent.append(body)
            self.brokers.add(result.queue.broker_name)

    async def _handle(self, message: Any) -> None:
        self.received.add(message.body.decode())

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(120):
            while not is_true():  # noqa: ASYNC110  # several conditions
                await asyncio.sleep(0)


def test_group_joins_and_another_leaves_under_traffic_without_a_failed_or_missed_message(
    two: LocalCluster, command: Run
) -> None:
    command("topic", "create", "T", "--queues", "4", "--broker", "broker-a")
    asyncio.run(_join_and_leave(two, command))
    again = command("cluster", "add-group", "broker-b")
    assert (again["topics"], again["groups"]) == ([], [])


async def _join_and_leave(two: LocalCluster, command: Run) -> None:
    async with Traffic(two) as traffic:
        assert traffic.brokers == {"broker-a"}
        joined = await asyncio.to_thread(command, "cluster", "add-group", "broker-b")
        assert (joined["topics"], joined["leftOut"], joined["lateGroups"]) == (["T"], {}, [])
        await traffic.until(lambda: traffic.brokers == {"broker-a", "broker-b"})

        left = await asyncio.to_thread(command, "cluster", "drain", "broker-a")
        assert left == {"broker": "broker-a", "drained": True, "waiting": "", "todo": ""}
        traffic.brokers.clear()
        count = len(traffic.sent)
        await traffic.until(lambda: len(traffic.sent) >= count + 50)
        assert traffic.brokers == {"broker-b"}

        assert not (await asyncio.to_thread(command, "cluster", "drain", "broker-a", "--undo"))["drained"]
        await traffic.until(lambda: traffic.brokers == {"broker-a", "broker-b"})


def test_new_group_gets_what_the_others_have(two: LocalCluster, command: Run) -> None:
    config = SubscriptionGroupConfig("few", retry_max_times=3)
    with_admin(two.name_servers, lambda admin: admin.create_group(config, broker_name="broker-a"))
    command("topic", "create", "T", "--queues", "3", "--broker", "broker-a", "--type", "delay")
    command("topic", "create", "Fixed", "--broker", "broker-a", "--order")
    command("topic", "create", "Keyed", "--broker", "broker-a", "--type", "fifo")
    joined = command("cluster", "add-group", "broker-b")
    assert (joined["topics"], joined["groups"]) == (["T"], ["few"])
    assert with_admin(two.name_servers, lambda admin: admin.groups("broker-b"))["few"].retry_max_times == 3
    assert joined["leftOut"].keys() == {"Fixed", "Keyed"}
    rows = [row | {"broker": "", "addresses": ""} for row in command("topic", "show", "T")["brokers"]]
    assert len(rows) == 2
    assert rows[0] == rows[1]
    assert command("cluster", "add-group", "broker-b", "--topic", "Keyed")["topics"] == ["Keyed"]


def test_group_that_is_not_registered_is_named(command: Run) -> None:
    assert "broker-a, broker-b" in command("cluster", "add-group", "broker-c", code=1)
    assert "broker-a, broker-b" in command("cluster", "drain", "broker-c", code=1)
    assert "Missing" in command("cluster", "add-group", "broker-b", "--topic", "Missing", code=1)


def test_drain_that_would_leave_a_topic_without_queues_is_refused(command: Run) -> None:
    command("topic", "create", "Only", "--broker", "broker-a")
    refused = command("cluster", "drain", "broker-a", code=1)
    assert "Only" in refused
    assert "add-group" in refused
    assert command("cluster", "drain", "broker-a", "--force", "--wait", "0")["drained"]
    command("topic", "create", "Both")
    assert "Both" in command("cluster", "drain", "broker-b", code=1), "the other group is drained"
    command("cluster", "drain", "broker-a", "--undo")


def test_drain_waits_for_lag_and_delayed_messages(two: LocalCluster, command: Run) -> None:
    command("topic", "create", "T", "--queues", "1")
    asyncio.run(_send_and_consume_some(two))
    words = ("cluster", "drain", "broker-a", "--wait", "0", "--limit", "0")
    result = CliRunner().invoke(main, [*words, "--json", "--namesrv", two.name_servers])
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["drained"]
    assert "g lags by" in found["waiting"]
    assert "4 delayed messages wait (4 of level 17)" in found["waiting"]
    assert "keep the group running" in found["todo"]
    command("cluster", "drain", "broker-a", "--undo")


async def _send_and_consume_some(two: LocalCluster) -> None:
    async with (
        Producer(two.name_servers, group="p") as producer,
        PushConsumer(two.name_servers, group="g", topics={"T": "*"}, consume_from=ConsumeFrom.FIRST) as consumer,
        asyncio.timeout(120),
    ):
        for _ in range(8):
            await producer.send(Message("T", b"x"))
        for _ in range(8):
            message = await consumer.receive()
            assert message is not None
            await message.ack()
        await consumer.close()
        for _ in range(8):
            await producer.send(Message("T", b"x"))
        for _ in range(8):
            await producer.send(Message("T", b"later", delay_level=17))


def test_topic_that_an_operator_made_readable_only_stays_so_unless_it_is_named(two: LocalCluster, command: Run) -> None:
    command("topic", "create", "Closed")
    command("topic", "create", "T", "--broker", "broker-a")
    closed = with_admin(two.name_servers, lambda admin: admin.topic_config("Closed"))["broker-b"]
    readable = replace(closed, perm=Permission.READ)
    with_admin(two.name_servers, lambda admin: admin.put_topic(readable, "broker-b"))

    def permission(topic: str) -> int:
        return with_admin(two.name_servers, lambda admin: admin.topic_config(topic))["broker-b"].perm

    plan = with_admin(two.name_servers, lambda admin: elastic.plan_joining(admin, "broker-b", ()))
    assert [topic.topic_name for topic in plan.topics] == ["T"]
    with_admin(two.name_servers, partial(_interrupted, plan))
    assert permission("T") == Permission.READ, "the first run ended before producers may send"

    joined = command("cluster", "add-group", "broker-b")
    assert (joined["topics"], joined["leftOut"].keys()) == (["T"], {"Closed"})
    assert (permission("T"), permission("Closed")) == (Permission.READ_WRITE, Permission.READ)
    assert command("cluster", "add-group", "broker-b")["leftOut"].keys() == {"Closed"}
    assert command("cluster", "add-group", "broker-b", "--topic", "Closed")["topics"] == ["Closed"]
    assert permission("Closed") == Permission.READ_WRITE


async def _interrupted(plan: elastic.Joining, admin: Any) -> None:
    """Give a group its topics, but fail when they are to become writable."""
    put, writable = admin.put_topic, []

    async def put_readable(config: Any, broker_name: str) -> None:
        if config.perm & Permission.WRITE:
            writable.append(config)
            raise NetworkError("interrupted")
        await put(config, broker_name)

    admin.put_topic = put_readable
    with pytest.raises(NetworkError, match="interrupted"):
        await elastic.join(admin, plan, 0, lambda _: None)
    assert writable


def test_drain_waits_for_open_transactions_and_names_their_topic(two: LocalCluster, command: Run) -> None:
    command("topic", "create", "T", "--queues", "1", "--broker", "broker-b")
    command("topic", "create", "Pay", "--queues", "1", "--broker", "broker-a", "--type", "transaction")
    drained, left = asyncio.run(_drain_with_open_transaction(two, command))
    assert not left["drained"]
    assert left["waiting"] == "1 transactions are open (Pay 1)"
    assert "commit or roll back" in left["todo"]
    assert drained["drained"]


async def _drain_with_open_transaction(two: LocalCluster, command: Run) -> tuple[Any, Any]:
    words = ("cluster", "drain", "broker-a", "--force", "--wait", "0")
    limited = [*words, "--limit", "0", "--json", "--namesrv", two.name_servers]

    async def unknown(_message: StoredMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with TransactionProducer(two.name_servers, group="p", check=unknown) as producer:
        async with producer.transaction(Message("Pay", b"x")) as transaction:
            while True:
                result = await asyncio.to_thread(CliRunner().invoke, main, limited)
                assert result.exit_code == 1, result.output
                if "reads its open transactions" not in result.stdout:  # as after each start
                    break
            await transaction.commit()
            assert transaction.is_confirmed, "a drained broker ends transactions"
        return await asyncio.to_thread(command, *words), json.loads(result.stdout)
