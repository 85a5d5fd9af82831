"""A consumer group with an SQL92 expression beside the other clients, and what it must and must not get.

    number of a message ─► properties ─► EXPRESSION, evaluated by brokers ─► deliveries
                      └──► matches ──────────────────────────────────────► the deliveries that are due

I21  what is delivered matches, and what matches is delivered: each acknowledged message, and each one in the log below
     the last delivery of its queue
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from chaos.history import Place, Stored
from chaos.recorder import Recorder
from tandemq import ConsumeFrom, Sql
from tandemq.client.blocking import BlockingConsumer
from tandemq.run.ports import Setting

SETTINGS: dict[str, Setting] = {"enablePropertyFilter": "true"}
"""Setting of brokers that accept expressions."""
EXPRESSION = "(amount BETWEEN 3 AND 6 AND kind IN ('a', 'c')) OR urgent IS NOT NULL"
GROUP = "chaos-filter"
_AMOUNTS, _KINDS, _URGENT_EVERY = 10, "abc", 11
_SHOWN = 3


def _number(body: str) -> int:
    number = body.rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def properties_of(body: str) -> dict[str, str]:
    """Return the properties of a message."""
    number = _number(body)
    found = {"amount": str(number % _AMOUNTS), "kind": _KINDS[number % len(_KINDS)]}
    return found if number % _URGENT_EVERY else {**found, "urgent": "yes"}


def matches(body: str) -> bool:
    """Return whether the expression selects a message; written without brokers' code."""
    number = _number(body)
    return number % _URGENT_EVERY == 0 or (3 <= number % _AMOUNTS <= 6 and number % len(_KINDS) != 1)


@dataclass(slots=True)
class FilterHistory:
    """The deliveries to the group."""

    delivered: dict[Place, str] = field(default_factory=dict)
    bodies: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    recorder: Recorder | None = None
    """Writes the history for the judge."""

    def received(self, body: str, place: Place) -> None:
        """Record a delivery."""
        if self.recorder is not None:
            self.recorder.delivered(GROUP, self.recorder.queue(place.queue_id), place.offset, body)
        if not matches(body):
            self.violations.append(f"I21: {body[:80]!r}, given at {place}, does not match")
        other = self.delivered.setdefault(place, body)
        if other != body:
            self.violations.append(f"I5: {place} was {other} and {body} for the group with an expression")
        self.bodies.add(body)

    def missing(self, due: Iterable[str]) -> set[str]:
        """Return the messages that match and have not been delivered, of those that must be."""
        return {body for body in due if matches(body)} - self.bodies

    def check(self, due: Iterable[str]) -> list[str]:
        """Return the violations among the deliveries. `due`: bodies that a group with every message gets."""
        lost = sorted(self.missing(due))
        first = [f"I21: {len(lost)} matching and never delivered, first {lost[:_SHOWN]}"] if lost else []
        return self.violations + first

    def check_log(self, name: str, messages: Iterable[Stored]) -> list[str]:
        """Return the violations in a member's log: messages that were passed over, and deliveries that it lacks."""
        ends: dict[int, int] = {}
        for queue_id, offset in self.delivered:
            ends[queue_id] = max(ends.get(queue_id, -1), offset)
        held = {record.place: record.body for record in messages}
        passed = [
            (body, place)
            for place, body in held.items()
            if place.offset < ends.get(place.queue_id, -1) and matches(body) and place not in self.delivered
        ]
        gone = [(body, place) for place, body in self.delivered.items() if held.get(place) != body]
        found = []
        if passed:
            found.append(f"I21: {len(passed)} matching and passed over, in the log of {name}, first {passed[:_SHOWN]}")
        if gone:
            found.append(f"I19: {len(gone)} delivered by an expression, not in the log of {name}, {gone[:_SHOWN]}")
        return found

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {"delivered": len(self.bodies), "places": len(self.delivered)}


def consume(name_server: str, topic: str, history: FilterHistory, drained: threading.Event) -> None:
    """Consume what matches until everything is drained."""
    topics = {topic: Sql(EXPRESSION)}
    with BlockingConsumer(name_server, group=GROUP, topics=topics, consume_from=ConsumeFrom.FIRST) as consumer:
        while not drained.is_set():
            message = consumer.receive(0.2)
            if message is not None:
                stored = message.stored
                place = Place(message.queue.queue_id, stored.queue_offset)
                history.received(stored.body.decode(errors="replace"), place)
                message.ack()
