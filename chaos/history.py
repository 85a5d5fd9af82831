"""Observations of clients and content of the stores at the end, checked for consistency.

The rules are named as in docs/internals/simulation.md.

I1   a message answered SEND_OK is delivered, and in the log at the place in the response
I2   body, tag and key of a delivered or stored message are those of a message that was sent
I3   a message is stored under one unique key, however often it was sent
I4   new messages of a queue arrive in the order of their offsets; a message sent after a response has a higher offset
I5   a queue offset refers to one message: for producers, consumers and in the log
I7   a group's offset never moves back, except in `slave-consume` from a master to a slave that was cut off from it
I12  a delayed or timed message does not arrive early
I13  a rejected message is redelivered
I19  a delivered message is in the log at the end

The response to a delayed message has its place in the topic of delayed messages, that to a timed one in the topic of
waiting messages, unless its time had come when a broker accepted it. A rejected message is redelivered from the retry
topic, or from its own queue if it could not be sent back. So places belong to one topic each. A response to a gRPC
client has an offset, and no queue.

Owner: one run; `chaos.clients` fills it from several threads. Does not know: brokers, processes, clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.recorder import Recorder
from tandemq.model.topic import retry_topic

_SHOWN = 3
_EARLY_S = 0.002
"""Tolerance: brokers count whole milliseconds."""


class Place(NamedTuple):
    """The place of a message in a topic."""

    queue_id: int
    offset: int

    def __repr__(self) -> str:
        return f"({self.queue_id}, {self.offset})"


class Stored(NamedTuple):
    """A record of the log."""

    place: Place
    body: str
    tag: str
    key: str
    unique_key: str
    log_offset: int = 0
    properties: Mapping[str, str] = {}


@dataclass(slots=True)
class History:
    """The observations of one run, and their violations."""

    acknowledged: dict[str, Place] = field(default_factory=dict)
    """Bodies answered SEND_OK, with their places; those of one producer in the order of sending."""
    delayed: dict[str, Place] = field(default_factory=dict)
    """Those of them that were sent with a delay level, with their places among the delayed messages."""
    timed: dict[str, Place] = field(default_factory=dict)
    """Those that were sent with a time, with their places among the waiting messages."""
    unplaced: dict[str, int] = field(default_factory=dict)
    """Those whose response has only the offset in their queue."""
    recalled: set[str] = field(default_factory=set)
    """Timed messages that a producer has tried to take back: they may be delivered or not."""
    statuses: dict[str, int] = field(default_factory=dict)
    delivered: dict[Place, str] = field(default_factory=dict)
    retried: dict[Place, str] = field(default_factory=dict)
    """Deliveries from the retry topic."""
    duplicates: int = 0
    rejected: int = 0
    redelivered: int = 0
    """Rejected messages that were redelivered, from either topic."""
    latest_delayed_s: float = 0.0
    """Maximum lateness of a delayed message."""
    latest_timed_s: float = 0.0
    """And of a timed one."""
    failed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    """Errors of failed sends, and how often each occurred."""
    violations: list[str] = field(default_factory=list)
    longest_write_gap_s: float = 0.0
    longest_read_gap_s: float = 0.0
    offsets_behind: int = 0
    """How often a slave that took over reading had lower offsets than its master: see `offset_reported`."""
    recorder: Recorder | None = None
    """Writes the history for the judge."""
    group: str = ""
    """The consumer group of the deliveries, for the recorder."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards the counters that two producers share."""
    _sent: dict[str, str] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    """Earliest delivery of delayed and timed messages, seconds of the caller's clock."""
    _timed: set[str] = field(default_factory=set)
    """Those of them that have a time."""
    _outstanding: dict[str, int] = field(default_factory=dict)
    """Rejections that no redelivery has followed yet."""
    _bodies: set[str] = field(default_factory=set)
    _ends: dict[int, int] = field(default_factory=dict)
    _offsets: dict[int, tuple[int, str]] = field(default_factory=dict)

    @property
    def awaited(self) -> set[str]:
        """Bodies acknowledged and not yet delivered, or rejected and not yet redelivered."""
        return self.due - self._bodies | set(self._outstanding)

    @property
    def due(self) -> set[str]:
        """Bodies acknowledged, which must be delivered."""
        return {*self.acknowledged, *self.delayed, *self.timed, *self.unplaced} - self.recalled

    @property
    def bodies(self) -> set[str]:
        """Bodies that were delivered."""
        return set(self._bodies)

    def sending(self, body: str, tag: str, *, due: float = 0.0, is_timed: bool = False, is_half: bool = False) -> None:
        """Record a send; the message's key is its body. `due`: earliest delivery of a delayed or timed message."""
        if self.recorder is not None:
            self.recorder.sending(tag, body, due=due, is_timed=is_timed, is_half=is_half)
        self._sent[body] = tag
        if due:
            self._due[body] = due
        if is_timed:
            self._timed.add(body)

    def answered(self, body: str, status: str, place: Place, *, is_ok: bool, was_due: bool = False) -> None:
        """Record a response that says the message is stored. `was_due`: a timed one in its topic at once."""
        with self._lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1
        if self.recorder is not None:
            self._record_answer(self.recorder, body, "SEND_OK" if is_ok else status, place, was_due=was_due)
        if not is_ok:
            return
        if body in self._timed and not was_due:
            self.timed[body] = place
        elif body in self._due and not was_due:
            self.delayed[body] = place
        else:
            self.acknowledged[body] = place

    def _record_answer(self, recorder: Recorder, body: str, status: str, place: Place, *, was_due: bool) -> None:
        queue_id, offset = place
        if body in self._due and not was_due:
            recorder.answered_waiting(body, status, queue_id, offset, is_timed=body in self._timed)
        else:
            recorder.answered(body, status, recorder.queue(queue_id), offset)

    def recalling(self, body: str) -> None:
        """Record that a producer takes a timed message back."""
        self.recalled.add(body)
        if self.recorder is not None:
            self.recorder.recalling(self._sent[body], body)

    def recall_confirmed(self, body: str) -> None:
        """Record that a broker has confirmed this."""
        if self.recorder is not None:
            self.recorder.recalled(self._sent[body], body)

    def answered_without_queue(self, body: str, offset: int) -> None:
        """Record a response that says the message is stored, and at which offset of its queue."""
        with self._lock:
            self.statuses["OK"] = self.statuses.get("OK", 0) + 1
        if self.recorder is not None:
            self.recorder.answered(body, "SEND_OK")
        self.unplaced[body] = offset

    def refused(self, error: str) -> None:
        """Record a send that failed, or whose outcome is unknown."""
        with self._lock:
            self.failed += 1
            self.errors[error] = self.errors.get(error, 0) + 1

    def received(self, body: str, tag: str, key: str, place: Place, *, at: float = 0.0, is_retry: bool = False) -> None:
        """Record a delivery at a time; `is_retry`: from the retry topic."""
        if self.recorder is not None:
            queue = self.recorder.queue(place.queue_id, retry_topic(self.group) if is_retry else "")
            self.recorder.delivered(self.group, queue, place.offset, body, tag)
        self._check_sent(body, tag, key, f"given at {place}")
        if is_retry:
            self._name(self.retried, place, body, "retry queue")
        else:
            self._first_at(place)
            self._name(self.delivered, place, body, "queue")
        if body in self._due and body not in self._bodies:
            late = at - self._due[body]
            if body in self._timed:
                self.latest_timed_s = max(self.latest_timed_s, late)
            else:
                self.latest_delayed_s = max(self.latest_delayed_s, late)
            if late < -_EARLY_S:
                self.violations.append(f"I12: {body} came {-late:.3f} s before its time")
        if body in self._outstanding:
            self.redelivered += 1
            self._outstanding[body] -= 1
            if not self._outstanding[body]:
                del self._outstanding[body]
        else:
            self.duplicates += body in self._bodies
        self._bodies.add(body)

    def sent_back(self, body: str, place: Place | None = None) -> None:
        """Record that the consumer is about to reject a message. `place`: of its delivery."""
        if self.recorder is not None and place is not None:
            self.recorder.sent_back(self.group, self.recorder.queue(place.queue_id), place.offset, body)
        self.rejected += 1
        self._outstanding[body] = self._outstanding.get(body, 0) + 1

    def _first_at(self, place: Place) -> None:
        """I4: check that a first delivery has a higher offset than all before."""
        queue_id, offset = place
        if place not in self.delivered:
            end = self._ends.get(queue_id, 0)
            if offset < end:
                self.violations.append(f"I4: queue {queue_id} gave offset {offset} for the first time after {end - 1}")
            self._ends[queue_id] = max(end, offset + 1)

    def _name(self, given: dict[Place, str], place: Place, body: str, what: str) -> None:
        """I5: check that a place has one message."""
        other = given.get(place, body)
        if other != body:
            self.violations.append(f"I5: {what} {place.queue_id} offset {place.offset} was {other}, then {body}")
        given[place] = body

    def offset_reported(self, queue_id: int, offset: int, broker: str, *, may_be_behind: bool) -> None:
        """Record the group's offset as reported by a broker with permission.

        `may_be_behind`: commits need not have reached all members, so that another one may start with older offsets.
        """
        before, former = self._offsets.get(queue_id, (0, broker))
        self._offsets[queue_id] = (offset, broker)
        if offset >= before:
            return
        if may_be_behind and broker != former:
            self.offsets_behind += 1
        else:
            self.violations.append(f"I7: queue {queue_id} went back from {before} to {offset} at {broker}")

    def check_clients(self) -> None:
        """Check the clients' observations at the end."""
        missing = sorted(self.awaited - set(self._outstanding))
        if self._outstanding:
            lost = sorted(self._outstanding)
            self.violations.append(f"I13: {len(lost)} rejected and never delivered again, first {lost[:_SHOWN]}")
        if missing:
            self.violations.append(f"I1: {len(missing)} acknowledged and never delivered, first {missing[:_SHOWN]}")
        named: dict[Place, str] = {}
        last: dict[tuple[str, int], tuple[str, int]] = {}
        for body, place in list(self.acknowledged.items()):
            other = self.delivered.get(place, body)
            if other != body:
                self.violations.append(f"I5: {body} was acknowledged at {place}, where {other} was delivered")
            other = named.setdefault(place, body)
            if other != body:
                self.violations.append(f"I5: {other} and {body} were both acknowledged at {place}")
            queue_id, offset = place
            stream = (self._sent.get(body, ""), queue_id)
            former, end = last.get(stream, ("", -1))
            if offset <= end:
                self.violations.append(f"I4: {body} was sent after {former} and lies before it: {place}, {end}")
            last[stream] = (body, offset)

    def check_log(self, name: str, records: Iterable[Stored]) -> None:
        """Check the topic's content in a member's log at the end."""
        keys: dict[str, str] = {}
        held = self._held(name, records, keys)
        self._check_held(name, held, self.acknowledged, self.delivered)
        stored = {(body, place.offset) for place, body in held.items()}
        lost = [(body, offset) for body, offset in self.unplaced.items() if (body, offset) not in stored]
        if lost:
            text = f"I1: {len(lost)} acknowledged and in no queue of the log of {name} at their offset"
            self.violations.append(f"{text}, first {lost[:_SHOWN]}")

    def check_aside(
        self, name: str, delayed: Iterable[Stored], retried: Iterable[Stored], timed: Iterable[Stored] = ()
    ) -> None:
        """Check the topic of delayed messages, in which rejected ones wait too, the retry topic, and waiting messages.

        Copies in the first two may have unique keys of their own.
        """
        self._check_held(name, self._held(name, timed, {}), self.timed, {})
        self._check_held(name, self._held(name, delayed, None), self.delayed, {})
        self._check_held(name, self._held(name, retried, None), {}, self.retried)

    def _held(self, name: str, records: Iterable[Stored], keys: dict[str, str] | None) -> dict[Place, str]:
        """Return the places of a topic in a log, after checking that each has one message that was sent."""
        held: dict[Place, str] = {}
        for record in records:
            self._check_sent(record.body, record.tag, record.key, f"in the log of {name} at {record.place}")
            other = held.setdefault(record.place, record.body)
            if other != record.body:
                self.violations.append(f"I5: {record.place} is {other} and {record.body} in the log of {name}")
            if keys is not None and keys.setdefault(record.body, record.unique_key) != record.unique_key:
                self.violations.append(f"I3: {record.body} is in the log of {name} under two unique keys")
        return held

    def _check_held(
        self, name: str, held: dict[Place, str], reported: dict[str, Place], given: dict[Place, str]
    ) -> None:
        lost = [body for body, place in reported.items() if held.get(place) != body]
        if lost:
            first = [(body, reported[body]) for body in lost[:_SHOWN]]
            self.violations.append(f"I1: {len(lost)} acknowledged and not in the log of {name}, first {first}")
        gone = [(body, place) for place, body in given.items() if held.get(place) != body]
        if gone:
            self.violations.append(f"I19: {len(gone)} delivered and not in the log of {name}, first {gone[:_SHOWN]}")

    def _check_sent(self, body: str, tag: str, key: str, where: str) -> None:
        sent = self._sent.get(body)
        if sent is None:
            self.violations.append(f"I2: {body[:80]!r}, {where}, was never sent")
        elif (tag, key) != (sent, body):
            self.violations.append(f"I2: {body}, {where}, has tag {tag!r} and key {key!r}, not {sent!r} and {body!r}")

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON, without the violations."""
        return {
            "statuses": self.statuses,
            "duplicates": self.duplicates,
            "failed": self.failed,
            "errors": self.errors,
            "longest_write_gap_s": self.longest_write_gap_s,
            "longest_read_gap_s": self.longest_read_gap_s,
            "offsets_behind": self.offsets_behind,
            "acknowledged": len(self.acknowledged) + len(self.unplaced),
            "delayed": len(self.delayed),
            "latest_delayed_s": round(self.latest_delayed_s, 3),
            "timed": len(self.timed),
            "latest_timed_s": round(self.latest_timed_s, 3),
            "rejected": self.rejected,
            "redelivered": self.redelivered,
            "from_retry_topic": len(self.retried),
            "delivered": len(self._bodies),
        }
