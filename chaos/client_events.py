"""What drivers of other clients report, made into a history for the judge and into violations.

    Sent, Decided, Delivered ─► Observed ─┬─► write: lines of the history, all sends first
                                          └─► violations: what a group did not get, or got after an acknowledgement

Clients report a send when it has ended; when its requests arrived is not known. So the history has all sends, then the
decisions of transactions, then the deliveries in the order of each group, then what the queues hold at the end.

A group that consumes in order is one process with a position in each queue. It may begin again at a former offset, as
after a loss of its lock: that is a new assignment, and counted. A message that is passed over is an anomaly. Of a group
that consumes message groups in order, each of these is a process, and its first deliveries follow the offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from chaos.brokers import GROUP
from chaos.reading import Held
from chaos.recorder import content_hash
from judge.writing import HistoryWriter
from tandemq.model.topic import HALF_TOPIC

SEND_OK = "SEND_OK"
_SHOWN = 3


class Sent(NamedTuple):
    """A send that has ended. `status`: "" if it failed; `queue_id`, `offset`: -1 if the client does not tell."""

    process: str
    topic: str
    body: str
    at_ms: float
    status: str = ""
    queue_id: int = -1
    offset: int = -1
    is_half: bool = False


class Decided(NamedTuple):
    """A decision of a transaction. `is_check`: a broker asked."""

    process: str
    body: str
    is_commit: bool
    at_ms: float
    is_check: bool = False


class Delivered(NamedTuple):
    """A delivery to a consumer group. `queue_id`, `offset`: -1 if not known, or of a retry topic."""

    group: str
    topic: str
    body: str
    at_ms: float
    queue_id: int = -1
    offset: int = -1


@dataclass(slots=True)
class Observed:
    """What the clients of one run have reported."""

    sent: list[Sent] = field(default_factory=list)
    decided: list[Decided] = field(default_factory=list)
    delivered: list[Delivered] = field(default_factory=list)
    ordered: set[str] = field(default_factory=set)
    """Groups that consume in order, and tell the offsets."""
    fifo: dict[str, int] = field(default_factory=dict)
    """Groups that consume message groups in order, and how many these are: i modulo that is the one of message i."""
    confirmed: Counter[str] = field(default_factory=Counter)
    """Bodies to the confirmed acknowledgements of their first deliveries, by a group that pops."""
    errors: Counter[str] = field(default_factory=Counter)
    """Errors of failed sends."""
    sends: int = 1
    """How often a client sends a message at most."""
    rewinds: int = 0
    """How often a group that consumes in order began again at a former offset."""

    def due(self, topic: str) -> set[str]:
        """Return the bodies that each group of a topic must get: acknowledged, and of a transaction committed."""
        stored = {one.body: one for one in self.sent if one.status == SEND_OK and one.topic == topic}
        ends = {one.body: one.is_commit for one in self.decided}
        return {body for body, one in stored.items() if not one.is_half or ends.get(body, False)}

    def undecided(self) -> set[str]:
        """Return the acknowledged half messages without a decision."""
        halves = {one.body for one in self.sent if one.is_half and one.status == SEND_OK}
        return halves - {one.body for one in self.decided}

    def missing(self) -> dict[str, set[str]]:
        """Return for each group the bodies that it must get and did not."""
        got: dict[tuple[str, str], set[str]] = {}
        for one in self.delivered:
            got.setdefault((one.group, one.topic), set()).add(one.body)
        return {group: lost for (group, topic), bodies in got.items() if (lost := self.due(topic) - bodies)}

    def violations(self, held: Iterable[Held], groups: Mapping[str, str], *, has_acks: bool) -> list[str]:
        """Return what the judge does not see. `groups`: the consumer groups and their topics."""
        found = []
        silent = set(groups) - {one.group for one in self.delivered}
        missing = self.missing() | {group: lost for group in silent if (lost := self.due(groups[group]))}
        for group, lost in sorted(missing.items()):
            first = sorted(lost)[:_SHOWN]
            found.append(f"I1: {len(lost)} acknowledged and never delivered to {group}, first {first}")
        if has_acks:
            copies = Counter(body for queue in held for _, body in queue.messages)
            again = sorted(body for body, count in self.confirmed.items() if count > copies[body])
            if again:
                text = f"I25: {len(again)} popped again after a confirmed acknowledgement"
                found.append(f"{text}, first {again[:_SHOWN]}")
        return found

    def place(self, held: Iterable[Held]) -> None:
        """Give deliveries of groups that consume message groups in order the places that the queues hold.

        A message that is at two places keeps none: which one was delivered is not known.
        """
        places: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for queue in held:
            for offset, body in queue.messages:
                places.setdefault((queue.topic, body), []).append((queue.queue_id, offset))
        self.delivered = [
            one._replace(queue_id=known[0][0], offset=known[0][1])
            if one.group in self.fifo and len(known := places.get((one.topic, one.body), [])) == 1
            else one
            for one in self.delivered
        ]

    def write(self, writer: HistoryWriter, held: Iterable[Held]) -> None:
        """Write the history."""
        for sent in sorted(self.sent, key=lambda one: one.at_ms):
            self._write_send(writer, sent)
        for decided in sorted(self.decided, key=lambda one: one.at_ms):
            outcome = "commit" if decided.is_commit else "rollback"
            writer.invoke(decided.process, "end", t=decided.at_ms, id=decided.body, outcome=outcome)
        positions: dict[tuple[str, str], int] = {}
        known: set[tuple[str, str]] = set()
        for delivered in self.delivered:
            is_first = (delivered.group, delivered.body) not in known
            known.add((delivered.group, delivered.body))
            self._write_delivery(writer, delivered, positions, is_first=is_first)
        for queue in held:
            messages = [[offset, body, _hash_of(body)] for offset, body in queue.messages]
            fields: dict[str, Any] = {"from": 0, "next": queue.end, "messages": messages, "complete": True}
            writer.note("broker", "read", q=_queue(queue.topic, queue.queue_id), node="broker", **fields)
        writer.note("run", "settled")

    def _write_send(self, writer: HistoryWriter, sent: Sent) -> None:
        fields: dict[str, Any] = {"tx": True} if sent.is_half else {}
        digest = _hash_of(sent.body)
        op = writer.invoke(
            sent.process, "send", t=sent.at_ms, id=sent.body, topic=sent.topic, hash=digest, sends=self.sends, **fields
        )
        if not sent.status:
            writer.end(sent.process, "send", op, "unknown", t=sent.at_ms)
            return
        has_place = sent.queue_id >= 0 and not sent.is_half
        place: dict[str, Any] = {"q": _queue(sent.topic, sent.queue_id), "offset": sent.offset} if has_place else {}
        if sent.is_half:
            place = {"q": _queue(HALF_TOPIC, 0)}
        writer.end(sent.process, "send", op, t=sent.at_ms, status=sent.status, **place)

    def _write_delivery(
        self, writer: HistoryWriter, delivered: Delivered, positions: dict[tuple[str, str], int], *, is_first: bool
    ) -> None:
        group, queue = delivered.group, _queue(delivered.topic, max(0, delivered.queue_id))
        message = [delivered.offset, delivered.body, _hash_of(delivered.body)]
        fields: dict[str, Any] = {"group": group, "q": queue, "messages": [message]}
        if group in self.fifo and is_first and delivered.offset >= 0:
            process = f"{group}-{int(delivered.body.rpartition('-')[2]) % self.fifo[group]}"
            writer.note(process, "poll", t=delivered.at_ms, partial=True, **fields)
            return
        if group not in self.ordered or delivered.offset < 0:
            writer.note(group, "poll", t=delivered.at_ms, partial=True, unordered=True, **fields)
            return
        position = positions.get((group, queue))
        if position is None:
            fields["from"] = 0
        elif delivered.offset < position:
            self.rewinds += 1
            writer.note(group, "assign", t=delivered.at_ms, group=group, queues=[queue])
        positions[group, queue] = delivered.offset + 1
        writer.note(group, "poll", t=delivered.at_ms, **fields)

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON, named as those of `chaos.run`."""
        statuses = Counter(one.status for one in self.sent if one.status)
        deliveries = Counter((one.group, one.body) for one in self.delivered)
        ends = {one.body: one.is_commit for one in self.decided}
        return {
            "statuses": dict(statuses),
            "acknowledged": statuses[SEND_OK],
            "failed": sum(not one.status for one in self.sent),
            "errors": dict(self.errors.most_common(20)),
            "delivered": len({one.body for one in self.delivered}),
            "duplicates": len(self.delivered) - len(deliveries),
            "rewinds": self.rewinds,
            "pops": {"acknowledged": len(self.confirmed)},
            "transactions": {
                "stored": sum(one.is_half and one.status == SEND_OK for one in self.sent),
                "committed": sum(ends.values()),
                "rolled_back": len(ends) - sum(ends.values()),
                "checks": sum(one.is_check for one in self.decided),
            },
        }


def _queue(topic: str, queue_id: int) -> str:
    return f"{topic}/{GROUP}/{queue_id}"


def _hash_of(body: str) -> str:
    return content_hash(body, "")
