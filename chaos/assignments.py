"""Two push consumers of one group: one stays, the other one comes and goes. Which queues each of them holds.

The judge finds queues that both hold for longer than `SHARED_MS`: a consumer learns of another one from a broker at
once, or, if it cannot be reached, when it next requests the members. It keeps its queues while it reaches no broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading

from chaos.recorder import Recorder
from tandemq import ConsumeFrom, PushConsumer
from tandemq.errors import TandemError

GROUP = "chaos-shared"
SHARED_MS = 30_000.0
_REBALANCE_MS = 2_000
_STAYS_S, _AWAY_S = 4.0, 2.0
_LOOK_S = 0.05


def consume(name_server: str, topic: str, tag: str, recorder: Recorder, drained: threading.Event) -> None:
    """Consume the messages with a tag until everything is drained."""
    asyncio.run(_consume(name_server, topic, tag, recorder, drained))


async def _consume(name_server: str, topic: str, tag: str, recorder: Recorder, drained: threading.Event) -> None:
    async def member(process: str, stays_s: float) -> None:
        async with PushConsumer(
            name_server,
            group=GROUP,
            topics={topic: tag},
            consume_from=ConsumeFrom.FIRST,
            rebalance_ms=_REBALANCE_MS,
        ) as consumer:
            await _hold(consumer, process, recorder, drained, stays_s)
        recorder.holding(GROUP, process, [])

    staying = asyncio.create_task(member("shared-1", float("inf")))
    while not drained.is_set():
        with contextlib.suppress(TandemError):  # no broker could be reached to join the group
            await member("shared-2", _STAYS_S)
        await asyncio.sleep(_AWAY_S)
    await staying


async def _hold(
    consumer: PushConsumer, process: str, recorder: Recorder, drained: threading.Event, stays_s: float
) -> None:
    """Acknowledge what comes, and record the queues whenever they change."""
    loop = asyncio.get_running_loop()
    until, before = loop.time() + stays_s, [""]
    while not drained.is_set() and loop.time() < until:
        queues = [
            recorder.queue(queue.queue_id, queue.topic)
            for queue in consumer.assigned()
            if queue.broker_name == recorder.broker
        ]
        if queues != before:
            recorder.holding(GROUP, process, queues)
            before = queues
        message = await consumer.receive(_LOOK_S)
        if message is not None:
            await message.ack()
