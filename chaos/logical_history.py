"""Observations of a static topic's clients and its messages in the logs at the end, checked for consistency.

    segment                  a part of a logical queue, in one queue of a broker group, as the administrator made it
    logical offset           start of the segment + offset in the broker's queue
    confirmed change         the group that lost the queue takes no message for it from then on

I1   a message answered SEND_OK is delivered, and in the log at the place in the response
I2   what is delivered or stored was sent, to this logical queue
I3   a message is stored under one unique key
I5   a logical offset refers to one message
I19  a delivered message is in the log at the end
I23  offsets of a logical queue grow, are those of its segments, and do not overlap; a reader gets every message in
     turn, with its logical offset; a committed offset is found, wherever the queue is
I24  a broker that has confirmed that a queue moved away takes no message for it; older mappings are refused

Owner: one run; `chaos.static_topics` fills it from several threads. Does not know: brokers, processes, clocks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.history import Stored

_SHOWN = 3
LATE_S = 20.0
"""How much later than its successors a commit may arrive, on a connection that was abandoned."""


@dataclass(slots=True, eq=False)
class Segment:
    """A part of a logical queue; `start` is -1 until the administrator knows it."""

    number: int
    gen: int
    group: str
    queue_id: int
    start: int = -1
    placed_s: float | None = None
    """When its broker confirmed `start`."""
    closed_s: float | None = None
    """When its broker confirmed that it takes no more messages."""

    def __repr__(self) -> str:
        return f"queue {self.number}.{self.gen} in {self.group}/{self.queue_id} from {self.start}"


class Answer(NamedTuple):
    """A SEND_OK: the logical offset, -1 if the broker did not know it, and the offset in the log of the group."""

    body: str
    number: int
    group: str
    sent_s: float
    answered_s: float
    offset: int
    log_offset: int


class Delivery(NamedTuple):
    """A message that a reader got: its logical offset and its place in a queue of a broker."""

    number: int
    offset: int
    group: str
    queue_id: int
    queue_offset: int
    body: str


class _Commit(NamedTuple):
    offset: int
    sent_s: float
    disturbances: int


@dataclass(slots=True)
class LogicalHistory:
    """The observations of one run, and their violations. `may_go_back`: committed offsets may be older ones."""

    may_go_back: bool = False
    violations: list[str] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    delivered: dict[tuple[int, int], Delivery] = field(default_factory=dict)
    """By logical queue and offset."""
    moves: int = 0
    refused: int = 0
    """Mappings that had to be refused, and were."""
    repeated: int = 0
    """Deliveries to readers that began again."""
    statuses: dict[str, int] = field(default_factory=dict)
    segments: dict[int, list[Segment]] = field(default_factory=dict)
    _by_place: dict[tuple[str, int], Segment] = field(default_factory=dict)
    _sent: dict[str, int] = field(default_factory=dict)
    """Bodies, with the logical queue they were sent to."""
    _commits: dict[int, dict[int, float]] = field(default_factory=dict)
    """By logical queue: committed offsets, each with its last commit's time."""
    _confirmed: dict[int, _Commit] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    """Guards what several producers add to."""

    # The administrator's changes.

    def opened(self, number: int, gen: int, group: str, queue_id: int, start: int) -> None:
        """Record a segment, before any broker receives it."""
        segment = Segment(number, gen, group, queue_id, start)
        assert (group, queue_id) not in self._by_place, "a queue of a broker is used once"
        self._by_place[group, queue_id] = segment
        self.segments.setdefault(number, []).append(segment)

    def placed(self, number: int, start: int) -> None:
        """Record the start of the last segment of a queue, before its broker receives it."""
        segment = self.segments[number][-1]
        if segment.start not in (-1, start):
            self.violations.append(f"I24: the end of the segment before {segment} has changed: {start} would follow")
        segment.start = start

    def confirmed(self, group: str, at_s: float, *, has_places: bool) -> None:
        """Record that a group's master confirmed the last mapping; `has_places`: with the starts of all segments."""
        for segments in self.segments.values():
            for segment in segments:
                if segment.group != group:
                    continue
                if segment is not segments[-1] and segment.closed_s is None:
                    segment.closed_s = at_s
                if segment is segments[-1] and has_places and segment.placed_s is None:
                    segment.placed_s = at_s

    def wrongly_taken(self, group: str) -> None:
        """Record that a broker accepted a mapping that it has to refuse."""
        self.violations.append(f"I24: {group} took an older or contradictory mapping")

    # Sends and deliveries.

    def sending(self, body: str, number: int) -> None:
        """Record a send; the message's key is its body."""
        self._sent[body] = number

    def counted(self, status: str) -> None:
        """Count a response to a send."""
        with self._lock:
            self.statuses[status] = self.statuses.get(status, 0) + 1

    def answered(self, answer: Answer) -> None:
        """Record a SEND_OK."""
        self.answers.append(answer)

    def received(self, delivery: Delivery, expected: int) -> None:
        """Record a delivery to a reader that had read up to `expected`."""
        number, offset = delivery.number, delivery.offset
        segment = self._by_place.get((delivery.group, delivery.queue_id))
        if segment is None or segment.number != number or segment.start + delivery.queue_offset != offset:
            self.violations.append(f"I23: {delivery} is not at its place in {segment}")
        elif segment.start < 0 or offset != max(expected, segment.start):
            self.violations.append(f"I23: {delivery} was given, of {segment}, to a reader at {expected}")
        elif (beyond := self._beyond(segment, offset)) is not None:
            self.violations.append(f"I23: {delivery} belongs to {segment}, which ends where {beyond} begins")
        self._check_sent(delivery.body, number, f"given at {offset}")
        other = self.delivered.get((number, offset), delivery)
        if other.body != delivery.body:
            self.violations.append(f"I5: offset {offset} of queue {number} was {other.body}, then {delivery.body}")
        self.repeated += (number, offset) in self.delivered
        self.delivered[number, offset] = delivery

    def sent_back(self, number: int, offset: int, following: int) -> None:
        """Record that a broker sent a reader to an earlier offset."""
        if not self.may_go_back:
            self.violations.append(f"I23: a reader of queue {number} at {offset} was sent back to {following}")

    def unmapped(self, number: int) -> None:
        """Record that a broker delivered messages of a queue without its mapping."""
        self.violations.append(f"I23: a reader of queue {number} was given messages without a logical offset")

    def _beyond(self, segment: Segment, offset: int) -> Segment | None:
        """Return the next segment, if an offset is at its start or behind it."""
        following = next((one for one in self.segments[segment.number] if one.gen > segment.gen), None)
        return following if following is not None and 0 <= following.start <= offset else None

    def _check_sent(self, body: str, number: int, where: str) -> None:
        if body not in self._sent:
            self.violations.append(f"I2: {body[:80]!r}, {where} of queue {number}, was never sent")
        elif self._sent[body] != number:
            self.violations.append(f"I2: {body}, {where} of queue {number}, was sent to queue {self._sent[body]}")

    # Commits.

    def committing(self, number: int, offset: int, at_s: float) -> None:
        """Record a commit, before it is sent."""
        self._commits.setdefault(number, {})[offset] = at_s

    def commit_confirmed(self, number: int, offset: int, sent_s: float, disturbances: int) -> None:
        """Record that a commit was confirmed; `disturbances`: deaths of brokers before it was sent."""
        self._confirmed[number] = _Commit(offset, sent_s, disturbances)

    def found(self, number: int, offset: int | None, disturbances: int) -> None:
        """Check the offset that a broker reports for a logical queue; None: it has none."""
        last, commits = self._confirmed.get(number), self._commits.get(number, {})
        if offset is not None and offset not in commits:
            self.violations.append(f"I23: queue {number} is said to be at {offset}, and nobody committed that")
        if last is None or last.disturbances != disturbances or self.may_go_back:
            return
        recent = [one for one, at_s in commits.items() if at_s >= last.sent_s - LATE_S]
        if offset is None or offset < min(recent, default=last.offset):
            self.violations.append(f"I23: queue {number} is at {offset}, {last.offset} was committed")

    # At the end.

    def missing(self) -> set[str]:
        """Return the bodies that were acknowledged and are not yet delivered."""
        answers, delivered = list(self.answers), list(self.delivered.values())  # other threads add to them
        return {answer.body for answer in answers} - {delivery.body for delivery in delivered}

    def check_clients(self) -> None:
        """Check the clients' observations at the end."""
        lost = sorted(self.missing())
        if lost:
            self.violations.append(
                f"I1: {len(lost)} of the static topic acknowledged and never delivered, first {lost[:_SHOWN]}"
            )
        named: dict[tuple[int, int], str] = {}
        for answer in self.answers:
            place = (answer.number, answer.offset)
            if answer.offset < 0:
                continue
            other = named.setdefault(place, answer.body)
            given = self.delivered.get(place)
            if other != answer.body:
                self.violations.append(f"I5: {other} and {answer.body} were both acknowledged at {place}")
            elif given is not None and given.body != answer.body:
                self.violations.append(f"I5: {answer.body} was acknowledged at {place}, {given.body} delivered there")
        self._check_order()

    def _check_order(self) -> None:
        """Check that a message sent after another was answered is behind it, in whichever group each is."""
        highest: dict[int, int] = {}
        before: dict[int, int] = {}
        for answer, is_answer in self._events():
            if not is_answer:
                before[id(answer)] = highest.get(answer.number, -1)
                continue
            if answer.offset <= before[id(answer)]:
                self.violations.append(f"I23: {answer} was sent after offset {before[id(answer)]} was answered")
            highest[answer.number] = max(answer.offset, highest.get(answer.number, -1))

    def _events(self) -> Iterator[tuple[Answer, bool]]:
        """Yield the sends and their responses, in the order of their times."""
        known = [answer for answer in self.answers if answer.offset >= 0]
        events = [(answer.sent_s, False, answer) for answer in known]
        events += [(answer.answered_s, True, answer) for answer in known]
        for _, is_answer, answer in sorted(events, key=lambda event: event[:2]):
            yield answer, is_answer

    def check_log(self, group: str, records: Iterable[Stored]) -> None:
        """Check the topic's records in the log of one group at the end."""
        held = {record.log_offset: record for record in records}
        keys: dict[str, str] = {}
        ends: dict[int, int] = {}
        for number, offset in self.delivered:
            ends[number] = max(ends.get(number, -1), offset)
        passed: list[str] = []
        for record in held.values():
            queue_id, offset = record.place
            where = f"in the log of {group} at {queue_id}@{offset}"
            segment = self._by_place.get((group, queue_id))
            if keys.setdefault(record.body, record.unique_key) != record.unique_key:
                self.violations.append(f"I3: {record.body} is in the log of {group} under two unique keys")
            if segment is None:
                self.violations.append(f"I23: {record.body}, {where}, is in no logical queue")
                continue
            self._check_sent(record.body, segment.number, where)
            logical = segment.start + offset
            if segment.start >= 0 and (beyond := self._beyond(segment, logical)) is not None:
                self.violations.append(f"I23: {record.body}, {where}, is in {segment}, and {beyond} begins before it")
            if segment.start >= 0 and logical < ends.get(segment.number, -1):
                passed += [record.body] if (segment.number, logical) not in self.delivered else []
        if passed:
            self.violations.append(
                f"I23: {len(passed)} in the log of {group} were passed over, first {passed[:_SHOWN]}"
            )
        for answer in self.answers:
            if answer.group == group:
                self._check_answer(answer, held.get(answer.log_offset))
        places = {(record.place.queue_id, record.place.offset): record.body for record in held.values()}
        gone = [
            delivery
            for delivery in self.delivered.values()
            if delivery.group == group and places.get((delivery.queue_id, delivery.queue_offset)) != delivery.body
        ]
        if gone:
            self.violations.append(
                f"I19: {len(gone)} of the static topic delivered and not in the log of {group}, first {gone[:_SHOWN]}"
            )

    def _check_answer(self, answer: Answer, record: Stored | None) -> None:
        """Check a SEND_OK by the record at the log offset that it names."""
        if record is None or record.body != answer.body:
            self.violations.append(f"I1: {answer} has no record in the log: {record}")
            return
        segment = self._by_place.get((answer.group, record.place.queue_id))
        if segment is None or segment.number != answer.number:
            self.violations.append(f"I23: {answer} was stored in {segment}")
            return
        if answer.offset < 0:
            if segment.placed_s is not None and segment.placed_s < answer.sent_s:
                self.violations.append(f"I23: {answer} has no offset, of {segment}")
        elif segment.start < 0 or segment.start + record.place.offset != answer.offset:
            self.violations.append(f"I23: {answer} is at {record.place} of {segment}")
        if segment.closed_s is not None and segment.closed_s < answer.sent_s:
            self.violations.append(f"I24: {answer} was stored after the queue had moved away: {segment}")

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {
            "moves": self.moves,
            "refused_mappings": self.refused,
            "segments": sum(map(len, self.segments.values())),
            "acknowledged": len(self.answers),
            "unplaced": sum(answer.offset < 0 for answer in self.answers),
            "delivered": len(self.delivered),
            "read_again": self.repeated,
            "statuses": self.statuses,
        }
