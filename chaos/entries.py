"""A reader of queue entries and of messages without bodies, at any member, as Spark's source reads them.

    member, queue, offset ─┬─► entries ──────────────────► log offset of each place ─┐
                           └─► messages without bodies ──► keys of each place ───────┴─► compared with the logs

I5   a place has one message, whichever member shows it, and at which log offset
I19  what a member shows is in the log
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from chaos.history import Place, Stored
from tandemq.client.connection import try_request
from tandemq.client.core.pulled import decode_pulled
from tandemq.codec.record.entries import QUEUE_ENTRY, is_hole
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import Command

COUNT = 64
PACE_S = 0.1
_SHOWN = 3
Ask = Callable[[str, Command], Command | None]
"""Sends a request to an address; returns the response, None if there is none."""


@dataclass(slots=True)
class ShownEntries:
    """What members have shown of a topic's queues."""

    log_offsets: dict[Place, int] = field(default_factory=dict)
    keys: dict[Place, str] = field(default_factory=dict)
    refused: int = 0
    """Requests without a response, and those that a member refused."""
    violations: list[str] = field(default_factory=list)

    def entry(self, place: Place, log_offset: int) -> None:
        """Record an entry."""
        other = self.log_offsets.setdefault(place, log_offset)
        if other != log_offset:
            self.violations.append(f"I5: entries of {place} name the log offsets {other} and {log_offset}")

    def head(self, place: Place, keys: str, log_offset: int) -> None:
        """Record a message without its body."""
        self.entry(place, log_offset)
        other = self.keys.setdefault(place, keys)
        if other != keys:
            self.violations.append(f"I5: {place} was shown with the keys {other!r} and {keys!r}")

    def check_log(self, name: str, messages: Iterable[Stored]) -> list[str]:
        """Return the violations in a member's log."""
        held = {record.place: record for record in messages}
        gone = [
            (place, log_offset)
            for place, log_offset in self.log_offsets.items()
            if place not in held or held[place].log_offset != log_offset
        ]
        wrong = [(place, keys) for place, keys in self.keys.items() if place in held and held[place].key != keys]
        found = []
        if gone:
            found.append(f"I19: {len(gone)} shown by entries, not there in the log of {name}, first {gone[:_SHOWN]}")
        if wrong:
            found.append(f"I5: {len(wrong)} shown without bodies, others in the log of {name}, first {wrong[:_SHOWN]}")
        return found

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {"entries": len(self.log_offsets), "heads": len(self.keys), "refused": self.refused}


def read_some(shown: ShownEntries, address: str, topic: str, queue_id: int, random: Random, ask: Ask) -> None:
    """Ask a member once: for entries or messages without bodies, behind the last one known or before it."""
    end = max((place.offset + 1 for place in list(shown.log_offsets) if place.queue_id == queue_id), default=0)
    start = random.choice((end, random.randrange(end + 1)))
    fields = {"topic": topic, "queueId": str(queue_id), "index": str(start), "count": str(COUNT)}
    has_bodies_left_out = random.random() < 0.5
    code = RequestCode.TANDEM_QUEUE_HEADS if has_bodies_left_out else RequestCode.TANDEM_QUEUE_ENTRIES
    answer = ask(address, Command(code, fields=fields))
    if answer is None or answer.code != ResponseCode.SUCCESS:
        shown.refused += 1
        return
    if has_bodies_left_out:
        for message in decode_pulled(answer.body).messages:
            shown.head(Place(queue_id, message.queue_offset), " ".join(message.keys), message.log_offset)
        return
    for number, (log_offset, size, code_of_tag) in enumerate(QUEUE_ENTRY.iter_unpack(answer.body)):
        if not is_hole(size, code_of_tag):
            shown.entry(Place(queue_id, start + number), log_offset)


def read(
    addresses: Callable[[], Sequence[str]], topic: str, queues: int, shown: ShownEntries, drained: threading.Event
) -> None:
    """Read at members, drawn, until everything is drained. `addresses`: of the members that run."""
    random = Random(topic)
    while not drained.wait(PACE_S):
        members = addresses()
        if members:
            read_some(shown, random.choice(members), topic, random.randrange(queues), random, try_request)
