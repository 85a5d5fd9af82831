"""Comparison of two brokers that receive the same bytes, one with the engine and one that does all in Python."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest

from lab.sim.world.disk import SimDisk
from tandemq.boundary import LinkKind, Now, Turn
from tandemq.broker.features.sends.processor import SendPath
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.features.transactions.open_transactions import OpenTransactions
from tandemq.broker.features.transactions.service import Transactions
from tandemq.broker.kernel.acknowledgements import joined
from tandemq.engine import Ack, python
from tandemq.model.topic import SCHEDULE_TOPIC, TIMER_TOPIC, TopicConfig
from tandemq.storage import store
from tandemq.storage.log import range_reader
from tests.unit.broker.harness import CLIENT, Harness

LINKS = (CLIENT, 2, 3)
BIG: dict[str, Any] = {"segment_bytes": 1 << 20, "message_bytes_max": 64 * 1024}
TOPICS = (
    TopicConfig("T", 12, 12),
    TopicConfig("Other", 4, 4),
    TopicConfig("Long" + 123 * "g", 4, 4),
    TopicConfig("Long" + 124 * "g", 4, 4),
    TopicConfig("Wide", 8, 4),
    TopicConfig("ReadOnly", 4, 4, 4),
)

Sent = Sequence[tuple[int, bytes]]
"""What connections send within a turn."""


class Recorder(Harness):
    """A broker whose responses are kept as bytes, and whose closed connections are opened again."""

    def __init__(self, disk: SimDisk, links: Sequence[int] = LINKS, **changes: Any) -> None:
        self.sent: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._peers = changes.pop("peers", {})
        self._step_ms = changes.pop("step_ms", 0)
        opens_queues = changes.pop("opens_queues", True)
        self.disk_in_memory = disk
        super().__init__(disk, **changes)
        self.acks: list[Ack] = []
        committed = self.node.acknowledgements.acknowledge

        def record(acks: list[Ack], needed: int, turn: Turn, now: Now) -> None:
            self.acks += joined(acks)
            committed(acks, needed, turn, now)

        self.node.acknowledgements.acknowledge = record  # type: ignore[method-assign]
        for topic in TOPICS:
            self.node.topics.put(topic, self.now.wall_ms)
        if opens_queues:
            self._open_queues()
        for link in links:
            if link != CLIENT:
                self.open(link, peer=self._peers.get(link, ""))
        if CLIENT in self._peers:
            self._reopen(CLIENT)

    def _take(self, turn: Turn) -> None:
        for link, buffers in turn.sends.items():
            self.sent[link] += b"".join(buffers)
        super()._take(turn)

    def _open_queues(self) -> None:
        """Open the queues, which the first message otherwise does: on the decoded path."""
        self.node.topics.create_internal(TIMER_TOPIC, 1, self.now.wall_ms)
        for topic in (*TOPICS, TopicConfig(SCHEDULE_TOPIC, 18, 18), TopicConfig(TIMER_TOPIC, 1, 1)):
            for queue_id in range(topic.write_queue_nums):
                self.node.topics.queue(self.node.topics.table[topic.topic_name], queue_id)

    def receive(self, sent: Sent) -> None:
        """Run a turn with what connections sent."""
        for link, _ in self.turn(list(sent)).closes:
            self._reopen(link)
        if self._step_ms:
            self.pass_time(self._step_ms)

    def _reopen(self, link: int) -> None:
        self.close(link)
        self._decoders.pop(link, None)
        self.open(link, LinkKind.REMOTING, self._peers.get(link, ""))


Script = Callable[[Recorder], None]
"""What happens to a broker."""


def run_script(script: Script, *, uses_engine: bool, links: Sequence[int] = LINKS, **changes: Any) -> Recorder:
    """Return a broker after a script, with or without the engine."""
    broker = Recorder(SimDisk(Random(1)), links, **(BIG | changes))
    with pytest.MonkeyPatch.context() as patch:
        if not uses_engine:
            patch.setattr(SendPath, "take_ordinary", lambda _self, _link, _data, at, *_: at)
            patch.setattr(SendPath, "take_large", lambda *_: False)
            patch.setattr(store, "key_rows", python.key_rows)
            patch.setattr(range_reader, "gather_messages", python.gather_messages)
        script(broker)
    return broker


def difference(first: Recorder, second: Recorder) -> str:
    """Return what two brokers did differently, "" if nothing; both are closed."""
    for name, of in _OBSERVED.items():
        one, other = of(first), of(second)
        if one != other:
            return f"{name}: {_first_difference(one, other)}"
    for broker in (first, second):
        if not broker.node.store.log.refused:
            broker.node.close()
    disk, other_disk = first.disk_in_memory, second.disk_in_memory
    if disk.paths() != other_disk.paths():
        return f"files: {sorted(set(disk.paths()) ^ set(other_disk.paths()))}"
    for path in disk.paths():
        one, other = disk.read(path), other_disk.read(path)
        if one != other:
            return f"{path}: {_first_difference(one, other)}"
    return ""


def compare(script: Script, **changes: Any) -> Recorder:
    """Assert that a script has the same result with and without the engine; return the broker with the engine."""
    broker = run_script(script, uses_engine=True, **changes)
    found = difference(broker, run_script(script, uses_engine=False, **changes))
    assert not found, found
    assert not broker.node.faults, "an exception ended a connection"
    return broker


def compare_turns(turns: Sequence[Sent], **changes: Any) -> Recorder:
    """Assert that turns have the same result with and without the engine; return the broker with the engine."""

    def script(broker: Recorder) -> None:
        for sent in turns:
            broker.receive(sent)

    return compare(script, **changes)


def _waiting(broker: Recorder) -> Any:
    """Return the timed messages that wait, by their times, and how many by topic."""
    table = broker.node.features.find(TimedMessages).table
    if table is None:
        return None
    return ({out_ms: list(slot.messages) for out_ms, slot in table.slots.items()}, table.counts, len(table))


def _transactions(broker: Recorder) -> Any:
    """Return the open transactions, those that are over, how many by topic, and the op records."""
    transactions = broker.node.features.find(Transactions)
    table = transactions.table or OpenTransactions()
    return dict(table.entries), dict(table._over), dict(table.counts), list(transactions._ops)


_OBSERVED: dict[str, Callable[[Recorder], Any]] = {
    "responses": lambda broker: {link: bytes(data) for link, data in broker.sent.items() if data},
    "acknowledgements": lambda broker: broker.acks,
    "closed connections": lambda broker: broker.closes,
    "errors of ours": lambda broker: broker.node.faults,
    "messages": lambda broker: (broker.node.puts.count, broker.node.puts.bytes),
    "failed messages": lambda broker: broker.node.puts.failures,
    "log end": lambda broker: (broker.node.store.log.end, broker.node.store.log.written_end),
    "newest store time": lambda broker: broker.node.store.last_store_ms,
    "queues": lambda broker: {
        key: (queue.min_offset, queue.max_offset, queue.next_offset, queue.last_log_end)
        for key, queue in broker.node.store.queues.items()
    },
    "order of dirty queues": lambda broker: [(queue.topic, queue.queue_id) for queue in broker.node.store.dirty_queues],
    "pending keys": lambda broker: bytes(broker.node.store.index.pending) if broker.node.store.index else b"",
    "topics": lambda broker: broker.node.topics.as_json(),
    "timed messages": _waiting,
    "transactions": _transactions,
}


def _first_difference(one: Any, other: Any) -> str:
    if isinstance(one, dict):
        key = next(key for key in [*one, *other] if one.get(key) != other.get(key))
        return f"{key}: {_first_difference(one.get(key), other.get(key))}"
    if isinstance(one, bytes) and isinstance(other, bytes):
        same = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
        at = max(0, (min(len(one), len(other)) if same is None else same) - 30)
        return f"from byte {at} on {one[at : at + 400]!r}, without the engine {other[at : at + 400]!r}"
    return f"{one!r}, without the engine {other!r}"[:2000]
