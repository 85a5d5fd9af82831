"""A broker of one version, what each feature has left in its store, and the same read again from another version.

fill()    plain messages and committed offsets, pops in flight, delayed and timed messages, transactions without an
          end, a static topic, users and policies, limits, settings of a group and the broker, a deleted topic
facts()   what requests of administrators return, and every message
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from chaos.brokers import GROUP
from chaos.reading import read_to_end
from lab.sim.workload.static_topic_requests import mapping_body, part_in, read_request, segment, update_request
from tandemq import Admin, ConsumeFrom, Message, Producer, PullConsumer
from tandemq.client.blocking import BlockingPopConsumer, BlockingPoppedMessage, BlockingTransactionProducer
from tandemq.client.connection import try_request
from tandemq.config.samples import ON_ANY_DISK
from tandemq.coordination.registry.records import Mode
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import PRODUCER_GROUP, TRAN_MSG, StoredMessage
from tandemq.model.transactions import TransactionState
from tandemq.run.children import BrokerChild, ChildCluster
from tandemq.run.ports import Setting
from tests.blackbox.programs import wait_until
from tests.versions.world import TREE, Version

PLAIN, TIMED, HALF, POPPED, STATIC, DELETED = "Plain", "Timed", "Half", "Popped", "Static", "Deleted"
READERS, POPPERS, TRANSACTING = "readers", "poppers", "transacting"
QUEUES, MESSAGES, BATCH = 4, 200, 20
READ = 7
"""Committed offset of the readers in each queue."""
IN_FLIGHT, ACKNOWLEDGED = 4, 8
"""Of the popped messages."""
OPEN, ENDED = ("open-0", "open-1", "open-2"), {"commit-0": True, "commit-1": True, "rollback-0": False}
WAIT_S = 12.0
"""How long timed messages wait: they become due after the store has been opened again."""
INVISIBLE_S = 15.0
DEADLINE_S = 60.0
SETTINGS: dict[str, Setting] = {
    **ON_ANY_DISK,
    "mappedFileSizeCommitLog": 1 << 20,
    "messageDelayLevel": "12s 1s",
    "transactionCheckInterval": 1_000,
    "transactionTimeOut": 1_000,
    "transactionCheckMax": 10_000,
    "recallMessageEnable": "true",
    "timerPrecisionMs": 100,
    "registerNameServerPeriod": 10_000,
}


class Alone:
    """A name server and one master, whose version changes."""

    def __init__(self, cluster: ChildCluster) -> None:
        self._cluster = cluster
        self.at = cluster.name_servers

    @property
    def broker(self) -> BrokerChild:
        """The master."""
        return self._cluster.brokers[0]

    def reopen(self, version: Version, *, killed: bool = False) -> None:
        """Stop the broker, or kill it (-9), and open its store with a version."""
        if killed:
            self.broker.kill()
        else:
            assert self.broker.stop(), self.broker.last_lines()
        version.install(self.broker)
        self.broker.start()
        self._cluster.wait_until(self._cluster.all_registered)

    def stop(self) -> Path:
        """Stop the broker; return its store."""
        assert self.broker.stop(), self.broker.last_lines()
        return self.broker.store

    def tandemq(self, *words: str, version: Version = TREE) -> str:
        """Run a command of `tandemq` with the name server; return its output."""
        return run(version.command(*words, "--namesrv", self.at))

    def ask(self, command: Command) -> Command:
        """Return the broker's response to a request."""
        answer = try_request(self.broker.address, command)
        assert answer is not None and answer.code == ResponseCode.SUCCESS, (command, answer)
        return answer


class VersionedCluster(ChildCluster):
    """A group whose processes start with one version."""

    def __init__(
        self, directory: Path, version: Version, *, slaves: int, mode: Mode, settings: Mapping[str, Setting]
    ) -> None:
        super().__init__(directory, groups=1, slaves=slaves, mode=mode, settings=settings)
        self._version = version
        version.install(self.name_server)

    def _make(self, number: int, broker_id: int) -> BrokerChild:
        made = super()._make(number, broker_id)
        self._version.install(made)
        return made


@contextmanager
def alone(directory: Path, version: Version) -> Iterator[Alone]:
    """Start a name server and a master of a version."""
    with VersionedCluster(directory, version, slaves=0, mode=Mode.STATIC, settings=SETTINGS) as cluster:
        yield Alone(cluster)


def run(words: list[str]) -> str:
    """Run a command; return its output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (words, done.stdout[-2000:], done.stderr[-2000:])
    return done.stdout


def succeeds(words: list[str]) -> bool:
    """Run a command; return whether it succeeds."""
    return subprocess.run(words, capture_output=True, timeout=120, check=False).returncode == 0


def fill(broker: Alone) -> None:
    """Use every feature; what waits becomes due `WAIT_S` and `INVISIBLE_S` later."""
    asyncio.run(_send(broker.at))
    _pop(broker.at)
    _transact(broker.at)
    _make_static(broker)
    broker.tandemq("acl", "init")
    broker.tandemq("acl", "user", "create", "shop")
    broker.tandemq("acl", "allow", "shop", f"Topic:{PLAIN}", "--action", "Pub")
    broker.tandemq("quota", "set", "topic", PLAIN, "--messages", "100000")
    broker.tandemq("quota", "set", "group", READERS, "--in-flight", "5000")
    broker.tandemq("group", "create", "few-retries", "--retry-max", "3")
    broker.tandemq("cluster", "broker-config", GROUP, "--set", "maxMessageSize=3000000")
    broker.tandemq("topic", "delete", DELETED, "--yes")


async def _send(at: str) -> None:
    async with Admin(at) as admin, Producer(at, group="filling", compress_above_bytes=1_000) as producer:
        for topic in (PLAIN, HALF, POPPED, DELETED):
            await admin.create_topic(topic, queues=QUEUES, broker_name=GROUP)
        await admin.create_topic(TIMED, queues=1, broker_name=GROUP)
        for number in range(MESSAGES):
            body = f"plain-{number}".encode() * (400 if number % 50 == 0 else 1)
            properties = {"number": str(number)}
            await producer.send(Message(PLAIN, body, tags=f"t{number % 3}", keys=[f"k{number}"], properties=properties))
        await producer.send_batch([Message(PLAIN, f"batch-{number}".encode()) for number in range(BATCH)])
        for number in range(IN_FLIGHT + ACKNOWLEDGED):
            await producer.send(Message(POPPED, f"pop-{number}".encode()))
        await producer.send(Message(DELETED, b"deleted"))
        for number in range(3):
            await producer.send(Message(TIMED, f"timed-{number}".encode(), deliver_at=time.time() + WAIT_S))
        await producer.send(Message(TIMED, b"delayed", delay_level=1))
        recalled = await producer.send(Message(TIMED, b"recalled", deliver_at=time.time() + WAIT_S))
        await producer.recall(recalled)
    async with PullConsumer(at, group=READERS) as consumer:
        queues = await consumer.queues(PLAIN)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek(queue, READ)
        await consumer.commit()


def _pop(at: str) -> None:
    """Pop all, and acknowledge some: the others are in flight."""
    with closing(pops(at)) as found:
        for number in range(IN_FLIGHT + ACKNOWLEDGED):
            message = next(found)
            if number < ACKNOWLEDGED:
                message.ack()


def pops(at: str) -> Generator[BlockingPoppedMessage, None, None]:
    """Pop as the group of the popped messages; each waits `INVISIBLE_S` for its acknowledgement."""
    with BlockingPopConsumer(
        at, group=POPPERS, topics={POPPED: "*"}, consume_from=ConsumeFrom.FIRST, invisible_s=INVISIBLE_S
    ) as consumer:
        until = time.monotonic() + DEADLINE_S
        while time.monotonic() < until:
            message = consumer.receive(0.2)
            if message is not None:
                yield message
    raise AssertionError(f"nothing more is popped within {DEADLINE_S:g} s")


def _transact(at: str) -> None:
    """End some transactions, and leave some open, as a process that dies."""
    with BlockingTransactionProducer(at, group=TRANSACTING, check=lambda _: TransactionState.UNKNOWN) as producer:
        for body, is_commit in ENDED.items():
            try:
                with producer.transaction(Message(HALF, body.encode())):
                    if not is_commit:
                        raise _RolledBack
            except _RolledBack:
                pass
        marks = {TRAN_MSG: "true", PRODUCER_GROUP: TRANSACTING}
        for body in OPEN:
            producer.send(Message(HALF, body.encode(), properties=marks))


class _RolledBack(Exception):
    """Ends a transaction with a rollback."""


def end_open(at: str) -> set[str]:
    """Answer the broker's checks until all open transactions were asked for: all but the last are committed."""
    asked: set[str] = set()

    def check(message: StoredMessage) -> TransactionState:
        body = message.body.decode()
        asked.add(body)
        return TransactionState.ROLLBACK if body == OPEN[-1] else TransactionState.COMMIT

    with BlockingTransactionProducer(at, group=TRANSACTING, check=check, topics=[HALF]):
        wait_until(lambda: asked >= set(OPEN), "the broker asks for all open transactions", seconds=DEADLINE_S)
    return asked


def _make_static(broker: Alone) -> None:
    hosted = {number: [segment(0, GROUP, number, 0)] for number in range(2)}
    mapping = mapping_body(STATIC, GROUP, hosted, epoch=time.time_ns() // 1_000_000, total_queues=2)
    broker.ask(update_request(mapping, 2))


def bodies(at: str, topic: str) -> list[tuple[int, int, str]]:
    """Return queue, offset and body of all messages of a topic, in order."""
    held = asyncio.run(read_to_end(at, (topic,), group="inspecting", within_s=DEADLINE_S))
    return sorted((queue.queue_id, *message) for queue in held for message in queue.messages)


def facts(broker: Alone) -> dict[str, Any]:
    """Return everything that does not change while nobody uses the broker."""
    return asyncio.run(_tables(broker)) | {
        "plain": bodies(broker.at, PLAIN),
        "offsets": _committed(broker),
        "static": part_in(broker.ask(read_request(STATIC))),
    }


async def _tables(broker: Alone) -> dict[str, Any]:
    async with Admin(broker.at) as admin:
        return {
            "topics": sorted(name for name in await admin.topics() if name.isalpha()),
            "users": await admin.users(),
            "policies": await admin.policies(),
            "limits": [quota for quota, _ in await admin.quotas()],
            "retries": (await admin.groups(GROUP))["few-retries"].retry_max_times,
            "changed setting": (await admin.broker_config(broker.broker.address))["maxMessageSize"],
        }


def _committed(broker: Alone) -> list[int]:
    names = {"consumerGroup": READERS, "topic": PLAIN}
    asked = (
        broker.ask(Command(RequestCode.QUERY_CONSUMER_OFFSET, fields={**names, "queueId": str(number)}))
        for number in range(QUEUES)
    )
    return [int(answer.fields["offset"]) for answer in asked]
