"""Delayed and timed messages, and recalls.

Rules: early, late, recalled-read.
"""

from __future__ import annotations

from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line, Promises
from judge.messages import NO_DUE, RECALLED, Messages


class Recall(NamedTuple):
    """A confirmed recall."""

    line: int
    at_ms: float


class Timers:
    """All messages that have a time."""

    def __init__(self, messages: Messages, promises: Promises, findings: Findings) -> None:
        self._messages = messages
        self._promises = promises
        self._findings = findings
        self._recalls: dict[int, Recall] = {}
        self._open: dict[tuple[str, int], int] = {}
        self._told: set[int] = set()

    def recall(self, number: int, line: Line) -> None:
        """Record a recall, or its confirmation."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            message = self._messages.numbers.get(line["id"])
            if message is not None:
                self._messages.flags[message] |= RECALLED
                self._open[key] = message
            return
        message = self._open.pop(key, None)
        if message is not None and line["type"] == "ok":
            self._recalls.setdefault(message, Recall(number, line["t"]))

    def seen(self, message: int, number: int, at_ms: float, *, is_first: bool) -> None:
        """Judge a read of a message."""
        due = self._messages.due[message]
        if due == NO_DUE or message in self._told:
            return
        name, sent, promises = self._messages.names[message], self._messages.sent[message], self._promises
        if at_ms < due - promises.early_ms:
            self._told.add(message)
            self._findings.add("early", f"{name} was read {due - at_ms:.0f} ms before its time", sent, number)
        elif is_first and 0 <= promises.late_ms < at_ms - due:
            self._findings.add("late", f"{name} was read {at_ms - due:.0f} ms after its time", sent, number)
        recall = self._recalls.get(message)
        if recall is not None and recall.at_ms <= due - promises.recall_ms:
            self._told.add(message)
            text = f"{name} was read, and recalled {due - recall.at_ms:.0f} ms before its time"
            self._findings.add("recalled-read", text, sent, recall.line, number)
