"""The judge of one history: it passes each line to the parts that need it, and asks all of them at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from judge import cycles
from judge.anomalies import Anomaly, Findings
from judge.assignments import Assignments
from judge.history import Header, HistoryError, Line, read_header, read_lines
from judge.messages import Faults, Messages
from judge.offsets import Offsets
from judge.order import Order
from judge.pops import Pops
from judge.queues import Queues
from judge.readers import Readers
from judge.timers import Timers
from judge.transactions import Transactions

_WITHOUT_END = "unseen, committed-lost, undecided, pop-lost and not-redelivered are not judged: no line says settled"
_WITHOUT_KEPT = "lost, unseen and order are not judged, diverging by reads alone: no status is kept"
_WITHOUT_READS = "lost, vanished and skipped are not judged: nothing was polled or read"


@dataclass(slots=True)
class Verdict:
    """The result for one history."""

    header: Header
    lines: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    """Lines by "f type"."""
    counts: Counter[str] = field(default_factory=Counter)
    """Anomalies by rule."""
    anomalies: list[Anomaly] = field(default_factory=list)
    not_judged: list[str] = field(default_factory=list)
    """What the history does not suffice for."""

    def summary(self) -> list[str]:
        """Return a line for each rule that found something: how often, and the first anomaly."""
        first: dict[str, Anomaly] = {}
        for anomaly in self.anomalies:
            first.setdefault(anomaly.rule, anomaly)
        return [
            f"{count} {rule}, first: {first[rule].text}, lines {first[rule].lines} of the history"
            for rule, count in self.counts.items()
        ]


class Judge:
    """Judges the lines of one history."""

    def __init__(self, header: Header) -> None:
        promises = header.promises
        self.findings = Findings()
        self._verdict = Verdict(header)
        self._faults = Faults()
        self._messages = Messages(promises, self.findings, self._faults)
        self._queues = Queues(self._messages, self.findings, self._faults)
        self._readers = Readers(self._messages, self._queues, self.findings)
        self._transactions = Transactions(self._messages, self.findings)
        self._timers = Timers(self._messages, promises, self.findings)
        self._offsets = Offsets(promises, self.findings)
        self._pops = Pops(self._messages, promises, self.findings, self._faults)
        self._assignments = Assignments(promises, self.findings)
        self._order = Order(promises, self.findings, self._faults)
        self._graph = cycles.Graph(promises)
        self._kept = promises.kept
        self._open: dict[tuple[str, int], str] = {}
        """Operations without an outcome."""
        self._has_order = promises.order != "none"
        self._settled = 0
        self._settled_ms = 0.0
        self._last_ms = 0.0
        self._handlers: dict[str, Callable[[int, Line], Any]] = {
            "send": self._send,
            "end": self._transactions.end,
            "recall": self._timers.recall,
            "poll": self._poll,
            "assign": self._readers.assign,
            "hold": self._assignments.hold,
            "read": self._read,
            "back": self._readers.back,
            "commit": self._offsets.commit,
            "offset": self._offsets.offset,
            "reset": self._offsets.reset,
            "pop": self._pop,
            "ack": self._pops.ack,
            "invisible": self._pops.invisible,
            "fault": self._fault,
            "settled": self._end,
        }

    def see(self, number: int, line: Line) -> None:
        """Judge a line by those before it.

        Raises:
            HistoryError: it is the outcome of an operation that has not begun, or begins one that is open.
        """
        if "op" in line:
            self._check_operation(number, line)
        self._verdict.operations[f"{line['f']} {line['type']}"] += 1
        self._verdict.lines, self._last_ms = number, line["t"]
        self._handlers[line["f"]](number, line)

    def _check_operation(self, number: int, line: Line) -> None:
        """Check that an operation begins once, and ends after that."""
        key, f = (line["p"], line["op"]), line["f"]
        if line["type"] == "invoke":
            if key in self._open:
                raise HistoryError(number, f"operation {key[1]} of {key[0]} has begun already and has no outcome yet")
            self._open[key] = f
        elif self._open.pop(key, "") != f:
            raise HistoryError(number, f"no {f} with number {key[1]} of {key[0]} has begun")

    def _send(self, number: int, line: Line) -> None:
        if line["type"] == "invoke":
            message = self._messages.begin(number, line)
            self._order.begin(number, line)
            self._graph.begin(message, number, line)
            return
        started = self._messages.end(number, line)
        if started is None:
            return
        is_kept = line["type"] == "ok" and line.get("status", "SEND_OK") in self._kept
        self._order.end(number, line, started, self._messages.names[started.number], is_kept=is_kept)
        if is_kept:  # a place that is not promised may be given again
            self._graph.end(started.number, line)
            if "q" in line and "offset" in line:
                queue = self._queues.get(line["q"])
                self._queues.claim(queue, int(line["offset"]), started.number, number, is_read=False)

    def _given(self, number: int, line: Line) -> list[int]:
        """Record the messages of a poll, a pop or a read; return their numbers."""
        found = []
        queue = self._queues.get(line["q"])
        for one in line["messages"]:
            message = self._messages.seen(one[1], one[2] if len(one) > 2 else "", number)
            found.append(message)
            if message >= 0:
                if one[0] >= 0:
                    self._queues.claim(queue, one[0], message, number, is_read=True)
                self._transactions.seen(message, number)
                is_first = self._messages.read[message] == number
                self._timers.seen(message, number, line["t"], is_first=is_first)
        return found

    def _poll(self, number: int, line: Line) -> None:
        found = self._given(number, line)
        self._readers.poll(number, line)
        self._pops.polled(number, line, found)
        if found:
            self._graph.poll(found[-1], number, line)

    def _read(self, number: int, line: Line) -> None:
        self._given(number, line)
        self._queues.read(number, line)

    def _pop(self, number: int, line: Line) -> None:
        self._pops.pop(number, line, self._given(number, line))

    def _fault(self, number: int, line: Line) -> None:
        self._faults.add(number, line)
        self._offsets.fault(number, line)

    def _end(self, number: int, line: Line) -> None:
        self._settled, self._settled_ms = number, line["t"]

    def verdict(self) -> Verdict:
        """Judge what is certain at the end; return the result."""
        self._queues.judge()
        self._messages.judge()
        self._pops.judge()
        self._assignments.judge_end(self._verdict.lines, self._last_ms)
        if self._has_order:
            self._graph.add_versions(self._messages, self._queues, self._faults, self._order.reported)
            cycles.judge(self._graph, self.findings)
        if self._settled:
            self._messages.judge_settled(self._settled, self._settled_ms)
            for part in (self._transactions, self._pops, self._readers):
                part.judge_settled(self._settled)
        else:
            self._verdict.not_judged.append(_WITHOUT_END)
        if not self._kept:
            self._verdict.not_judged.append(_WITHOUT_KEPT)
        if not {"poll ok", "read ok", "pop ok"} & self._verdict.operations.keys():
            self._verdict.not_judged.append(_WITHOUT_READS)
        self._verdict.counts = self.findings.counts
        self._verdict.anomalies = self.findings.kept
        return self._verdict


def judge(lines: Iterable[str]) -> Verdict:
    """Judge a history, given line by line.

    Raises:
        HistoryError: it cannot be read.
    """
    source = iter(lines)
    judge_ = Judge(read_header(next(source, "")))
    for number, line in read_lines(source):
        judge_.see(number, line)
    return judge_.verdict()
