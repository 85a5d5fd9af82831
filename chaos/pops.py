"""A consumer group that pops beside the other clients, and what it must and must not get.

    popped ─► acknowledged, confirmed ─► never popped again from its queue (in groups that elect)
       └───► sent back, the first time, one in `_RETURNED_EVERY` ─► popped again, from the retry topic

I25  what is due is popped and acknowledged in the end; in `elect` no message whose acknowledgement was confirmed is
     popped again from the same place. One from a retry topic may be: a kill in the middle of a write repeats it
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chaos.history import Place, Stored
from chaos.recorder import Recorder
from tandemq import ConsumeFrom
from tandemq.client.blocking import BlockingPopConsumer
from tandemq.errors import TandemError
from tandemq.model.message import REAL_TOPIC
from tandemq.model.topic import REVIVE_TOPIC_PREFIX, retry_topic

GROUP = "chaos-pop"
INVISIBLE_S = 10
"""How long a pop whose answer was lost keeps its messages from the group."""
_BACK_S = 1.0
"""After how long a message that is sent back comes back."""
_RETURNED_EVERY = 41
_SHOWN = 3


def is_returned(body: str) -> bool:
    """Return whether the consumer sends a message back at its first delivery."""
    number = body.rpartition("-")[2]
    return number.isdecimal() and int(number) % _RETURNED_EVERY == 0


def is_of_pop(record: Stored) -> bool:
    """Return whether a timed record is a checkpoint or an acknowledgement, and no message."""
    return record.properties.get(REAL_TOPIC, "").startswith(REVIVE_TOPIC_PREFIX)


@dataclass(slots=True)
class PopHistory:
    """The deliveries to the group."""

    elects: bool
    """Whether a confirmed acknowledgement is final whatever happens to the master."""
    group: str = GROUP
    bodies: set[str] = field(default_factory=set)
    """Messages whose acknowledgement was confirmed."""
    ended: dict[Place, str] = field(default_factory=dict)
    """Places in the topic's queues whose message was acknowledged, confirmed."""
    places: dict[Place, str] = field(default_factory=dict)
    received_bodies: set[str] = field(default_factory=set)
    """Messages that were delivered, those included of which nobody knows whether they were stored."""
    came_back: int = 0
    unknown: set[str] = field(default_factory=set)
    """Messages of which an acknowledgement was asked for, but not confirmed: it may count."""
    recorder: Recorder | None = None
    """Writes the history for the judge."""
    repeated: int = 0
    """Deliveries after a confirmed acknowledgement in groups that do not elect."""
    violations: list[str] = field(default_factory=list)

    def received(self, body: str, place: Place | None, at: float) -> None:
        """Record a delivery. `place`: None: from a retry topic. `at`: time of the pop, s since 1970."""
        if self.recorder is not None:
            self._record(self.recorder, body, place, at)
        self.received_bodies.add(body)
        self.bodies.discard(body)  # each delivery is to be acknowledged
        if place is None:
            self.came_back += 1
            return
        other = self.places.setdefault(place, body)
        if other != body:
            self.violations.append(f"I5: {place} was {other} and {body} for {self.group}")
        if place in self.ended and self.elects:
            self.violations.append(
                f"I25: {body[:80]!r} at {place} was popped again after {self.group} had acknowledged it"
            )
        self.repeated += place in self.ended

    def _record(self, recorder: Recorder, body: str, place: Place | None, at: float) -> None:
        queue_id, offset = place or (0, -1)
        queue = recorder.queue(queue_id, "" if place else retry_topic(self.group))
        recorder.popped(self.group, queue, offset, body, INVISIBLE_S * 1_000, at)

    def acknowledging(self, place: Place | None) -> int:
        """Record that an acknowledgement is requested; return its number, 0 if it is not recorded."""
        if self.recorder is None or place is None:
            return 0
        return self.recorder.acking(self.group, self.recorder.queue(place.queue_id), place.offset)

    def outcome(self, op: int, *, is_confirmed: bool) -> None:
        """Record the outcome of such a request."""
        if self.recorder is not None and op:
            self.recorder.acked(self.group, op, is_confirmed=is_confirmed)

    def changing(self, place: Place | None, seconds: float) -> int:
        """Record that a message is to come back at another time; return the number of the request, as above."""
        if self.recorder is None or place is None:
            return 0
        return self.recorder.changing(self.group, self.recorder.queue(place.queue_id), place.offset, seconds * 1_000)

    def changed(self, op: int, *, is_confirmed: bool) -> None:
        """Record the outcome of that."""
        if self.recorder is not None and op:
            self.recorder.changed(self.group, op, is_confirmed=is_confirmed)

    def acknowledged(self, body: str, place: Place | None) -> None:
        """Record a confirmed acknowledgement."""
        self.bodies.add(body)
        if place is not None:
            self.ended[place] = body

    def missing(self, due: Iterable[str]) -> set[str]:
        """Return the messages that are due and surely not acknowledged."""
        return set(due) - self.bodies - self.unknown

    def awaited(self, due: Iterable[str]) -> set[str]:
        """Return the same, and those that were delivered and surely not acknowledged, so that they come back."""
        return self.missing(self.received_bodies.union(due))

    def check(self, due: Iterable[str]) -> list[str]:
        """Return the violations. `due`: bodies that a group with every message gets."""
        lost = sorted(self.missing(due))
        first = (
            [f"I25: {len(lost)} never popped and acknowledged by {self.group}, first {lost[:_SHOWN]}"] if lost else []
        )
        return self.violations + first

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {
            "acknowledged": len(self.bodies),
            "came_back": self.came_back,
            "unknown": len(self.unknown - self.bodies),
            "repeated": self.repeated,
        }


def consume(name_server: str, topic: str, history: PopHistory, drained: threading.Event) -> None:
    """Pop and acknowledge until everything is drained."""
    returned: set[str] = set()
    with BlockingPopConsumer(
        name_server, group=GROUP, topics={topic: "*"}, consume_from=ConsumeFrom.FIRST, invisible_s=INVISIBLE_S
    ) as consumer:
        while not drained.is_set():
            message = consumer.receive(0.2)
            if message is None:
                continue
            stored = message.stored
            body = stored.body.decode(errors="replace")
            place = Place(message.queue.queue_id, stored.queue_offset) if message.delivery_count == 1 else None
            history.received(body, place, message.popped_at)
            is_ack = not is_returned(body) or body in returned
            returned.add(body)
            if not is_ack:
                op = history.changing(place, _BACK_S)
                with contextlib.suppress(TandemError):
                    message.retry(_BACK_S)
                history.changed(op, is_confirmed=False)  # whether a broker confirms that or not
                continue
            op = history.acknowledging(place)
            try:
                message.ack()
                history.outcome(op, is_confirmed=True)
                history.acknowledged(body, place)
            except TandemError:  # a message that is not acknowledged comes back when its time is over
                history.outcome(op, is_confirmed=False)
                history.unknown.add(body)
