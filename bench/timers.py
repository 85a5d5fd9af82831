"""Cost of timed messages without sockets: CPU time of one process, on a store in memory.

    python -m bench.timers                     100,000 messages
    python -m bench.timers --messages 1000000

Sends; memory of the index; what a new master reads before it delivers; deliveries of messages that are due at once. The
records of some lie apart from each other, as those due in the same second do if delays differ.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from random import Random

from bench.inside import _MEMORY, _Driven
from tandemq.boundary import LinkKind
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.load.wire.frames import SendFrames, SendShape

PER_TURN = 512
DUE_S = 120
SPREAD_S = 3_600
"""Seconds over which the messages are spread whose records lie apart."""


class Cost:
    """CPU time per message of what was called."""

    def __init__(self, name: str, messages: int) -> None:
        """Begin to measure."""
        self._name = name
        self._messages = messages
        self._began = time.process_time()

    def show(self) -> None:
        """Print it."""
        spent = time.process_time() - self._began
        print(f"{self._name:<44} {spent / self._messages * 1e6:8.2f} µs per message, {spent:6.2f} s in all", flush=True)


def send(broker: _Driven, messages: int, due_s: Callable[[], int]) -> None:
    """Send timed messages, all those of a turn with the same time."""
    done = 0
    while done < messages:
        shape = SendShape("bench", body_bytes=300, queue_count=8, delay_s=due_s())
        source = SendFrames(shape, identity=done, wall_ms=broker.now.wall_ms, frames=8)
        for _ in range(max(1, min(64, (messages - done) // PER_TURN))):
            broker.turn([(1, bytes(source.take(PER_TURN, broker.now.wall_ms)))])
            done += PER_TURN


def restarted(path: Path, before: _Driven) -> _Driven:
    """Return a broker on the store of one that was killed, a little later."""
    broker = _Driven(path)
    broker.now = before.now
    broker.open(1, LinkKind.REMOTING)
    return broker


def measure(path: Path, messages: int, random: Random) -> None:
    """Print all figures of one number of messages."""
    broker = _Driven(path)
    broker.open(1, LinkKind.REMOTING)
    pass_time(broker, 1_000)
    send(broker, 20 * PER_TURN, lambda: 1)  # the topics and queues
    pass_time(broker, 5_000)
    cost = Cost("send, with the generator", messages)
    send(broker, messages, lambda: DUE_S)
    cost.show()
    send(broker, messages // 10, lambda: random.randrange(2 * DUE_S, SPREAD_S))

    tracemalloc.start()
    broker = restarted(path, broker)
    before = tracemalloc.get_traced_memory()[0]
    read(broker)
    table = broker.node.features.find(TimedMessages).table
    assert table is not None
    print(f"index of {len(table):,} messages: {(tracemalloc.get_traced_memory()[0] - before) / len(table):.1f} B each")
    tracemalloc.stop()

    broker = restarted(path, broker)
    cost = Cost("read by a new master", len(table))
    read(broker)
    cost.show()
    table = broker.node.features.find(TimedMessages).table
    assert table is not None
    waiting = len(table)
    pass_time(broker, DUE_S * 1_000)
    cost = Cost("deliver messages due at once", messages)
    while broker.node.features.find(TimedMessages).behind_ms(broker.now) or len(table) > waiting - messages:
        broker.turn([])
    cost.show()
    apart = len(table)
    pass_time(broker, SPREAD_S * 1_000)
    cost = Cost("deliver messages whose records lie apart", apart)
    while len(table):
        broker.turn([])
    cost.show()


def read(broker: _Driven) -> None:
    """Let a new master read its timed messages."""
    while broker.node.features.find(TimedMessages).table is None:
        broker.turn([])


def pass_time(broker: _Driven, ms: int) -> None:
    """Move the clocks, without a turn in between."""
    broker.now.mono_ms += ms
    broker.now.wall_ms += ms
    broker.turn([])


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=100_000)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as directory:
        measure(Path(directory), options.messages, Random(1))


if __name__ == "__main__":
    main()
