"""What clients saw, and whether it can be true.

I1   what was answered SEND_OK is delivered
I3   a queue offset names one message
I5   a group's offset never goes back, but in `slave-consume` from a master to a slave that was cut off from it
I2   never two members may be read, or written (intervals from the brokers' logs)
I7   when the faults are over the group serves again
"""

from __future__ import annotations

import re
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime

from chaos.world import Broker, World
from tandemq import ConsumeFrom
from tandemq.client.blocking import BlockingConsumer, BlockingProducer
from tandemq.coordination.records import Mode
from tandemq.errors import TandemError
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import Message, SendStatus
from tandemq.run.ask import try_ask

TOPIC, CONSUMERS = "Chaos", "chaos"
QUEUES = 4
DRAIN_SECONDS = 60.0
OVERLAP_SECONDS = 0.1
"""A line of a log may be late by so much on a busy machine."""
_LINE = re.compile(
    r"(\S+ \S+),(\d{3}) \w+ failover: epoch=\d+ may (neither )?be (read and written|read|written|read nor written):"
)


@dataclass(slots=True)
class History:
    """Filled by threads while faults happen."""

    acknowledged: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bodies answered SEND_OK, and their queue and offset."""
    statuses: dict[str, int] = field(default_factory=dict)
    delivered: dict[str, tuple[int, int]] = field(default_factory=dict)
    duplicates: int = 0
    failed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """What failed sends were told, and how often."""
    violations: list[str] = field(default_factory=list)
    longest_write_gap_s: float = 0.0
    longest_read_gap_s: float = 0.0
    offsets_behind: int = 0
    """How often a slave began to be read at lower offsets than its master had told: see `Clients._went_back`."""


class Clients:
    """Two producers, a consumer, and somebody who looks at its offsets."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.history = History()
        self._is_over = threading.Event()
        self._drained = threading.Event()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (
            lambda: self._produce("a"), lambda: self._produce("b"), self._consume, self._watch_offsets,
        )]  # fmt: skip
        self._places: dict[tuple[int, int], str] = {}

    def start(self) -> None:
        """Begin, once the topic is there: nobody creates one while the group has no master."""
        with BlockingProducer(self._world.name_server.address, group="chaos", queues_per_new_topic=QUEUES) as first:
            result = first.send(Message(TOPIC, b"first"))
            self.history.acknowledged["first"] = (result.queue.queue_id, result.queue_offset)
        for thread in self._threads:
            thread.start()

    def _produce(self, name: str) -> None:
        history, number, last = self.history, 0, time.monotonic()
        with BlockingProducer(
            self._world.name_server.address, group=f"chaos-{name}", queues_per_new_topic=QUEUES
        ) as one:
            while not self._is_over.wait(0.002):
                number += 1
                body = f"{name}-{number}"
                try:
                    result = one.send(Message(TOPIC, body.encode()))
                except TandemError as error:
                    history.failed += 1
                    text = f"{type(error).__name__}: {str(error)[:120]}"
                    history.errors[text] = history.errors.get(text, 0) + 1
                    continue
                history.statuses[result.status.name] = history.statuses.get(result.status.name, 0) + 1
                history.longest_write_gap_s = max(history.longest_write_gap_s, time.monotonic() - last)
                last = time.monotonic()
                if result.status is SendStatus.SEND_OK:
                    history.acknowledged[body] = (result.queue.queue_id, result.queue_offset)

    def _consume(self) -> None:
        history, last = self.history, time.monotonic()
        with BlockingConsumer(
            self._world.name_server.address, group=CONSUMERS, topics={TOPIC: "*"}, consume_from=ConsumeFrom.FIRST
        ) as consumer:
            while not self._drained.is_set():
                message = consumer.receive(0.2)
                if message is None:
                    continue
                history.longest_read_gap_s = max(history.longest_read_gap_s, time.monotonic() - last)
                last = time.monotonic()
                self._seen(message.body.decode(), (message.queue.queue_id, message.stored.queue_offset))
                message.ack()

    def _seen(self, body: str, place: tuple[int, int]) -> None:
        history = self.history
        other = self._places.setdefault(place, body)
        if other != body:
            history.violations.append(f"I3: queue {place[0]} offset {place[1]} was {other}, then {body}")
        if body in history.delivered:
            history.duplicates += 1
        history.delivered[body] = place

    def _watch_offsets(self) -> None:
        highest: dict[int, tuple[int, Broker]] = {}
        while not self._drained.wait(0.2):
            for broker in self._world.brokers:
                if not broker.is_running or not broker.told:
                    continue
                for queue_id in range(QUEUES):
                    fields = {"consumerGroup": CONSUMERS, "topic": TOPIC, "queueId": str(queue_id)}
                    fields["setZeroIfNotFound"] = "false"
                    answer = try_ask(broker.own_address, Command(RequestCode.QUERY_CONSUMER_OFFSET, fields=fields))
                    if answer is None or answer.code != ResponseCode.SUCCESS:
                        break  # it may not serve, so nobody asks it for offsets
                    offset = int(answer.fields["offset"])
                    before, teller = highest.get(queue_id, (0, broker))
                    if offset < before:
                        self._went_back(f"queue {queue_id} went back from {before} to {offset}", teller, broker)
                    highest[queue_id] = (offset, broker)

    def _went_back(self, what: str, before: Broker, now: Broker) -> None:
        """In `slave-consume` commits do not wait for the slave: cut off, it may begin with older ones."""
        if self._world.mode is Mode.SLAVE_CONSUME and self._world.may_lag and before is not now:
            self.history.offsets_behind += 1
        else:
            self.history.violations.append(f"I5: {what} at {now.name}")

    def finish(self) -> None:
        """Stop producing, wait until everything acknowledged was delivered, check it."""
        history = self.history
        self._is_over.set()
        for thread in self._threads[:2]:
            thread.join(120)
        until = time.monotonic() + DRAIN_SECONDS
        while history.acknowledged.keys() - history.delivered.keys() and time.monotonic() < until:
            time.sleep(0.05)
        self._drained.set()
        for thread in self._threads[2:]:
            thread.join(60)
        missing = sorted(history.acknowledged.keys() - history.delivered.keys())
        if missing:
            history.violations.append(f"I1: {len(missing)} acknowledged and never delivered, first {missing[:3]}")
        for body, place in history.acknowledged.items():
            other = self._places.get(place, body)
            if other != body:
                history.violations.append(f"I3: {body} was acknowledged at {place}, where {other} was delivered")


def overlaps(brokers: list[Broker]) -> list[str]:
    """Violations of I2: times at which two members had the same right, by their own logs."""
    found = []
    for what in ("read", "written"):
        spans = [(broker.broker_id, *span) for broker in brokers for span in _spans(broker, what)]
        spans.sort(key=lambda span: span[1])
        for at, (one, begun, ended) in enumerate(spans):
            for other, begun_too, ended_too in spans[at + 1 :]:
                both = min(ended, ended_too) - max(begun, begun_too)
                if other != one and both > OVERLAP_SECONDS:
                    when = time.strftime("%H:%M:%S", time.localtime(begun_too))
                    found.append(f"I2: brokers {one} and {other} could be {what} at once for {both:.2f} s at {when}")
    return found


def _spans(broker: Broker, what: str) -> list[tuple[float, float]]:
    """When it had the right: from its log, less the time it was stopped, ended by its death."""
    spans: list[tuple[float, float]] = []
    begun: float | None = None
    for line in broker.log_path.read_text(encoding="utf-8", errors="replace").splitlines():
        match = _LINE.match(line)
        if match is None:
            continue
        at = datetime.fromisoformat(f"{match[1]}.{match[2]}").timestamp()
        died = next((death for death in broker.deaths if begun is not None and begun < death < at), None)
        if begun is not None and died is not None:
            spans.append((begun, died))
            begun = None
        has = match[3] is None and what in match[4]
        if has and begun is None:
            begun = at
        elif not has and begun is not None:
            spans.append((begun, at))
            begun = None
    if begun is not None:
        start = begun
        spans.append((start, next((death for death in broker.deaths if death > start), time.time())))
    return [piece for span in spans for piece in _without(span, broker.stops)]


def _without(span: tuple[float, float], stops: list[tuple[float, float]]) -> list[tuple[float, float]]:
    pieces = [span]
    for begun, ended in stops:
        pieces = [
            piece for start, end in pieces
            for piece in ((start, min(end, begun)), (max(start, ended), end)) if piece[0] < piece[1]
        ]  # fmt: skip
    return pieces
