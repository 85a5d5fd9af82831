"""A broadcasting group with a Java member and one of ours: each gets every message, and keeps its own offsets."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tandemq import ConsumeFrom, PushConsumer
from tandemq.client.core.settings import MessageModel
from tests.interop.checks import exactly, invent_one, lose_one, prove, repeat_one
from tests.interop.conftest import Pair
from tests.interop.driver import JavaDriver

QUIET_S = 1.0
"""After the last message expected, nothing more comes for so long."""


def test_broadcast_members_of_both_makes_each_get_everything_and_go_on_where_they_were(
    pair: Pair, java: JavaDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEMQ_OFFSETS", str(tmp_path))
    version = java.version.replace(".", "")
    topic = pair.make_topic(java, f"Broadcast{version}")
    group = f"broadcast{version}"
    for start in (0, 12):
        java.call("produce", topic=topic, count=12, start=start, queues=4)
        consumer = java.begin(
            "push",
            topic=topic,
            group=group,
            instance=group,
            broadcast=True,
            count=12,
            linger_ms=1000,
            deadline_ms=60000,
        )
        ours = asyncio.run(_read(pair.namesrv.address, topic, group))
        expected = [f"body-{index}" for index in range(start, start + 12)]
        prove(exactly(expected), consumer.result(), lose_one, repeat_one, invent_one)
        assert sorted(ours) == sorted(expected)


async def _read(namesrv: str, topic: str, group: str) -> list[str]:
    """What our member gets, until it gets nothing more."""
    found: list[str] = []
    async with PushConsumer(
        namesrv, group=group, topics={topic: "*"}, consume_from=ConsumeFrom.FIRST, model=MessageModel.BROADCASTING
    ) as consumer:
        while (message := await consumer.receive(QUIET_S if len(found) >= 12 else 30)) is not None:
            found.append(message.body.decode())
            await message.ack()
    return found
