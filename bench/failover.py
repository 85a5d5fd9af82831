"""kill -9 of a master under a consumer with a backlog: time until the next message.

    pair, SYNC_MASTER      backlog on both
    consumer (a process)   reads; each delivery is noted with the time
    kill -9 master         nothing of the backlog is lost: reading continues at the slave

The figure is the longest time without a delivery from the kill on. The backlog is much larger than a client's prefetch,
so that messages in the client do not hide the gap.

The consumer is bench.failover_consumer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Protocol

from bench.loads import LoadFailed, run_load

_TOPIC = "failover"
_BACKLOG = 400_000


@dataclass(frozen=True, slots=True)
class Gap:
    """Observation of the consumer."""

    seconds: float  # Longest time without a delivery from the kill on.
    delivered: int  # Distinct messages.
    sent: int


class _Server(Protocol):
    @property
    def address(self) -> str: ...

    def kill(self) -> None: ...


class _Group(Protocol):
    """A started pair."""

    @property
    def name_server(self) -> _Server: ...

    @property
    def master(self) -> _Server: ...


def seconds_without_delivery(group: _Group, *, topic: str = _TOPIC, backlog: int = _BACKLOG) -> Gap:
    """Kill the master of a started pair under load; it stays dead.

    `backlog`: messages sent before, to a new topic.

    Raises:
        LoadFailed: the consumer did not get every message of the backlog.
    """
    master = group.master
    result = run_load(
        "produce", master.address, topic=topic, body=128, batch=32, connections=4, window=4, count=backlog
    )
    sent = int(result["messages"])
    command = [sys.executable, "-m", "bench.failover_consumer", group.name_server.address, topic, str(sent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as consumer:
        try:
            assert consumer.stdout is not None
            if consumer.stdout.readline().strip() != "reading":
                raise LoadFailed("the consumer never began to read")
            killed_at = time.monotonic()
            master.kill()
            seen = json.loads(consumer.stdout.readline() or "null")
        finally:
            consumer.kill()
    if seen is None or seen["delivered"] < sent:
        raise LoadFailed(f"of {sent} messages the consumer got {seen and seen['delivered']}")
    after = [moment for moment in seen["marks"] if moment > killed_at]
    if not after:
        raise LoadFailed("everything was delivered before the master was killed; the backlog is too small")
    moments = [killed_at, *after]
    gap = max(later - earlier for earlier, later in zip(moments, after, strict=False))
    return Gap(gap, seen["delivered"], sent)
