"""A store with transactions goes to a broker of 4.9, which reads op records of one number only.

The rule of docs/reference/transactions.md: with nothing open at the stop it checks nothing again; behind an open half
message it checks what lists name, and the producer's answers decide again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from chaos.stores import records
from tandemq import Message, Producer, StoredMessage, TransactionProducer, TransactionState
from tandemq.model.message import PRODUCER_GROUP, TRAN_MSG
from tandemq.model.topic import HALF_TOPIC, OP_HALF_TOPIC
from tests.interop.peers import broker, name_server, start_registered
from tests.interop.test_transaction_stores import CHECKED
from tests.interop.wire import wait_topic
from tests.spec import spec

JAVA = "4.9.7"
TOPIC, GROUP = "Downgraded", "downgrading"
COMMITTED = [f"commit-{number}" for number in range(8)]
ROLLED_BACK = [f"rollback-{number}" for number in range(4)]
CHECK_SECONDS = 60


async def forget(name_servers: str, body: str) -> None:
    """Send a half message as a producer that dies behind it."""
    async with Producer(name_servers, group=GROUP) as producer:
        marks = {TRAN_MSG: "true", PRODUCER_GROUP: GROUP}
        await producer.send(Message(TOPIC, body.encode(), properties=marks))


async def end_together(name_servers: str) -> None:
    """Commit and roll back at the same moment, so that op records have lists; then one more, alone."""

    async def undecided(_: StoredMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    async with (
        TransactionProducer(name_servers, group=GROUP, check=undecided) as producer,
        AsyncExitStack() as stack,
    ):
        begun = [
            await stack.enter_async_context(producer.transaction(Message(TOPIC, body.encode())))
            for body in [*COMMITTED, *ROLLED_BACK]
        ]
        middle = len(COMMITTED)
        await asyncio.gather(*(one.commit() for one in begun[:middle]), *(one.rollback() for one in begun[middle:]))
        async with producer.transaction(Message(TOPIC, b"alone")):
            pass


async def answer_checks(name_servers: str, expected: set[str]) -> Counter[str]:
    """Answer the broker's checks until all expected ones have come, and one round more; return what was asked."""
    asked: Counter[str] = Counter()
    changed = asyncio.Event()

    async def check(message: StoredMessage) -> TransactionState:
        body = message.body.decode()
        asked[body] += 1
        changed.set()
        if body == "last" and asked[body] < 2:
            return TransactionState.UNKNOWN  # so that a second round is waited for
        return TransactionState.ROLLBACK if body.startswith("rollback") else TransactionState.COMMIT

    async with (
        TransactionProducer(name_servers, group=GROUP, check=check, topics=[TOPIC]),
        asyncio.timeout(CHECK_SECONDS),
    ):
        await forget(name_servers, "last")
        while not (expected <= asked.keys() and asked["last"] > 1):
            changed.clear()
            await changed.wait()
    return asked


def listed(store: Path) -> set[str]:
    """Bodies of half messages that lists in op records name."""
    halves = {record.place.offset: record.body for record in records(store, HALF_TOPIC)}
    parts = [[int(part) for part in record.body.split(",") if part] for record in records(store, OP_HALF_TOPIC)]
    return {halves[offset] for offsets in parts if len(offsets) > 1 for offset in offsets}


@spec("G09")
@pytest.mark.parametrize("is_one_open", [False, True])
def test_store_with_lists_is_checked_again_by_4_9_only_behind_an_open_one(tmp_path: Path, *, is_one_open: bool) -> None:
    settings = {**CHECKED, "store": str(tmp_path / "store")}
    with name_server("ours", tmp_path / "namesrv") as namesrv:
        namesrv.start()
        at = namesrv.address
        with broker("ours", tmp_path / "0", namesrv, settings=settings, autoCreateTopicEnable=True) as keeper:
            start_registered(keeper, namesrv)
            if is_one_open:
                asyncio.run(forget(at, "open"))
            asyncio.run(end_together(at))
            keeper.stop()
            again = listed(keeper.store)
            assert len(again) > 1, "there are lists"
            assert "alone" not in again
        expected = {"open", *again} if is_one_open else set()
        with broker(JAVA, tmp_path / "1", namesrv, settings=settings, autoCreateTopicEnable=True) as keeper:
            start_registered(keeper, namesrv)
            wait_topic(namesrv.port, TOPIC)
            asked = asyncio.run(answer_checks(at, expected))
            keeper.stop()
            stored = Counter(record.body for record in records(keeper.store, TOPIC))
    assert asked.keys() == {*expected, "last"}
    assert not [body for body in ROLLED_BACK if stored[body]]
    for body in [*COMMITTED, "alone", "last", *(["open"] if is_one_open else [])]:
        twice = is_one_open and body in again
        assert stored[body] in ((2, 3) if twice else (1,)), (body, stored)
