"""The messages of a history: what was sent, with which outcome, where each message lies, who read it.

Rules: phantom, corrupt, failed-read, duplicate, unseen.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line, Promises

DELAYED, TRANSACTION, KEPT, RECALLED, INDIRECT, REPORTED = 1, 2, 4, 8, 16, 32
"""Flags: has a delay level or a time; half message; acknowledged with a status that promises to keep it; its recall
was requested; acknowledged at a place of another topic, or at none; already reported as missing."""
LEVEL = 64
"""Flag: its delay may be repeated."""
NO_DUE = float("-inf")


class Copy(NamedTuple):
    """A further place of a message in its topic."""

    queue: str
    offset: int
    line: int


class Started(NamedTuple):
    """A send without an outcome."""

    number: int
    line: int
    sends: int


class Faults:
    """The faults after which a broker may lack what it had, and what each kept."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._losing: dict[tuple[str, str], int] = {}
        self._keeping: dict[str, list[tuple[int, frozenset[str]]]] = {}

    def add(self, number: int, line: Line) -> None:
        """Add a fault."""
        self._last[line["broker"]] = number
        self._keeping.setdefault(line["broker"], []).append((number, frozenset(line.get("keeps", ()))))

    def after(self, line: int, broker: str, status: str = "") -> bool:
        """Return whether the broker had a fault after a line that did not keep messages of the status."""
        if self._last.get(broker, 0) <= line:
            return False
        return any(at > line and status not in kept for at, kept in self._keeping[broker])

    def anywhere_after(self, line: int, status: str = "") -> bool:
        """Return whether any broker had such a fault."""
        return any(self.after(line, broker, status) for broker in self._last)


class Messages:
    """All messages, numbered in the order of their first sends."""

    def __init__(self, promises: Promises, findings: Findings, faults: Faults) -> None:
        self._promises = promises
        self._findings = findings
        self._faults = faults
        self.numbers: dict[str, int] = {}
        self.names: list[str] = []
        self.topics: list[str] = []
        self.flags = bytearray()
        self.sent = array("q")
        """Line of the first send."""
        self.acked = array("q")
        """Line of the first acknowledgement; 0 without one."""
        self.read = array("q")
        """Line of the first read; 0 without one."""
        self.due = array("d")
        """Earliest time of a read; `NO_DUE` of others."""
        self._hashes = array("q")
        self._sends = array("i")
        """How many copies its sends can have stored."""
        self._possible = array("i")
        """How many of its sends did not fail."""
        self._first_queues = array("i")
        self._first_offsets = array("q")
        self._queue_numbers: dict[str, int] = {}
        self._queue_names: list[str] = []
        self.copies: dict[int, list[Copy]] = {}
        """Further places in the message's topic."""
        self._open: dict[tuple[str, int], Started] = {}
        self._statuses: dict[int, str] = {}
        self._brokers: dict[int, str] = {}
        """Broker of an acknowledgement that says no place in the message's topic."""
        self._strange: set[str] = set()

    def __len__(self) -> int:
        return len(self.names)

    def begin(self, number: int, line: Line) -> int:
        """Record the beginning of a send; return the message's number."""
        name = line["id"]
        message = self.numbers.get(name)
        sends = int(line.get("sends", 1))
        if message is None:
            message = self.numbers[name] = len(self.names)
            self._add(number, line)
        self._sends[message] += sends
        self._possible[message] += 1
        self._open[line["p"], line["op"]] = Started(message, number, sends)
        return message

    def _add(self, number: int, line: Line) -> None:
        self.names.append(line["id"])
        self.topics.append(line["topic"])
        flags, due = TRANSACTION if line.get("tx") else 0, NO_DUE
        if "due" in line or "delay_ms" in line:
            flags |= DELAYED if "due" in line else DELAYED | LEVEL
            due = float(line["due"] if "due" in line else line["t"] + line["delay_ms"])
        self.flags.append(flags)
        self.due.append(due)
        self.sent.append(number)
        self.acked.append(0)
        self.read.append(0)
        self._hashes.append(hash(line["hash"]) if "hash" in line else 0)
        self._sends.append(0)
        self._possible.append(0)
        self._first_queues.append(-1)
        self._first_offsets.append(0)

    def end(self, number: int, line: Line) -> Started | None:
        """Record the outcome of a send; return its beginning, None if there is none."""
        started = self._open.pop((line["p"], line["op"]), None)
        if started is None:
            return None
        message = started.number
        if line["type"] == "fail":
            self._sends[message] -= started.sends
            self._possible[message] -= 1
        elif line["type"] == "ok":
            self._sends[message] += int(line.get("sends", started.sends)) - started.sends
            self._acknowledged(message, number, line)
        return started

    def _acknowledged(self, message: int, number: int, line: Line) -> None:
        if not self.acked[message]:
            self.acked[message] = number
        status, q = line.get("status", "SEND_OK"), line.get("q", "")
        if status in self._promises.kept and not self.flags[message] & KEPT:
            self.flags[message] |= KEPT
            self.acked[message] = number
            if status != "SEND_OK":
                self._statuses[message] = status
        if topic_of(q) != self.topics[message] or "offset" not in line:
            self.flags[message] |= INDIRECT
            self._brokers[message] = broker_of(q)

    def status(self, message: int) -> str:
        """Return the status of a message that is to be kept."""
        return self._statuses.get(message, "SEND_OK")

    def is_single(self, message: int) -> bool:
        """Return whether there can be only one copy of a message, by the sends so far."""
        is_repeated = self.flags[message] & LEVEL and self._promises.repeated_delays
        return self._sends[message] == 1 and not is_repeated and self._promises.duplicates != "allowed"

    def place(self, message: int, queue: str, offset: int, line: int) -> None:
        """Record a place of a message in its topic."""
        queue_number = self._queue_numbers.get(queue)
        if queue_number is None:
            queue_number = self._queue_numbers[queue] = len(self._queue_names)
            self._queue_names.append(queue)
        if self._first_queues[message] < 0:
            self._first_queues[message] = queue_number
            self._first_offsets[message] = offset
        elif self._first_queues[message] != queue_number or self._first_offsets[message] != offset:
            self.copies.setdefault(message, []).append(Copy(queue, offset, line))

    def place_of(self, message: int) -> str:
        """Return the first known place of a message."""
        return f"{self._queue_names[self._first_queues[message]]}@{self._first_offsets[message]}"

    def seen(self, name: str, digest: str, number: int) -> int:
        """Record a read; return the message's number, -1 of one that was not sent."""
        message = self.numbers.get(name, -1)
        if message < 0:
            if name not in self._strange:
                self._strange.add(name)
                self._findings.add("phantom", f"{name} was read and not sent before", number)
            return -1
        if digest and self._hashes[message] and hash(digest) != self._hashes[message]:
            self._findings.add("corrupt", f"{name} was read with other content than sent", self.sent[message], number)
        if not self.read[message]:
            self.read[message] = number
        return message

    def judge(self) -> None:
        """Add the anomalies that are certain at the end of the history."""
        for message, name in enumerate(self.names):
            if self.read[message] and not self._possible[message]:
                self._findings.add(
                    "failed-read", f"{name} was read and each send failed", self.sent[message], self.read[message]
                )
        for message, copies in self.copies.items():
            self._judge_copies(message, copies)

    def _judge_copies(self, message: int, copies: list[Copy]) -> None:
        if self._promises.duplicates == "allowed":
            return
        if self.flags[message] & LEVEL and self._promises.repeated_delays:
            return
        allowed = max(1, self._sends[message]) if self._promises.duplicates == "sends" else 1
        if len(copies) + 1 > allowed:
            places = ", ".join([self.place_of(message), *(f"{copy.queue}@{copy.offset}" for copy in copies)])
            self._findings.add(
                "duplicate",
                f"{self.names[message]} is at {places}; its sends can have stored {allowed}",
                self.sent[message],
                self.acked[message],
                self.read[message],
                *(copy.line for copy in copies),
            )

    def judge_settled(self, settled: int, settled_ms: float) -> None:
        """Add the messages that nobody has read although the history is settled, and their time has come."""
        for message, name in enumerate(self.names):
            flags = self.flags[message]
            if self.read[message] or not flags & KEPT or flags & (TRANSACTION | RECALLED | REPORTED):
                continue
            if self.due[message] <= settled_ms and not self.is_excused(message):
                self._findings.add(
                    "unseen",
                    f"{name} was acknowledged and never read",
                    self.sent[message],
                    self.acked[message],
                    settled,
                )

    def is_excused(self, message: int) -> bool:
        """Return whether a fault after the acknowledgement may have lost a message."""
        line, status = self.acked[message], self.status(message)
        queue = self._first_queues[message]
        broker = broker_of(self._queue_names[queue]) if queue >= 0 else self._brokers.get(message, "")
        return self._faults.after(line, broker, status) if broker else self._faults.anywhere_after(line, status)


def topic_of(q: str) -> str:
    """Return the topic of a queue."""
    return q.partition("/")[0]


def broker_of(q: str) -> str:
    """Return the broker of a queue; "" of no queue."""
    return q.split("/")[1] if q else ""
