"""Transactions: a half message, its outcome, and who reads it.

Rules: aborted-read, half-read, committed-lost, undecided.
"""

from __future__ import annotations

from judge.anomalies import Findings
from judge.history import Line
from judge.messages import KEPT, TRANSACTION, Messages


class Transactions:
    """All transactions, each of one message."""

    def __init__(self, messages: Messages, findings: Findings) -> None:
        self._messages = messages
        self._findings = findings
        self._commits: dict[str, int] = {}
        self._rollbacks: dict[str, int] = {}
        self._ends: dict[tuple[str, int], str] = {}
        self._refused: set[str] = set()
        """Messages whose commit was refused."""

    def end(self, number: int, line: Line) -> None:
        """Record a decision, or what became of it."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            decided = self._commits if line["outcome"] == "commit" else self._rollbacks
            decided.setdefault(line["id"], number)
            self._ends[key] = line["id"]
            self._refused.discard(line["id"])
            return
        name = self._ends.pop(key, "")
        if name and line["type"] == "fail":
            self._refused.add(name)

    def seen(self, message: int, number: int) -> None:
        """Judge a read of a message."""
        name = self._messages.names[message]
        if not self._messages.flags[message] & TRANSACTION or name in self._commits:
            return
        sent = self._messages.sent[message]
        if name in self._rollbacks:
            self._findings.add("aborted-read", f"{name} was read and rolled back", sent, self._rollbacks[name], number)
        else:
            self._findings.add("half-read", f"{name} was read before its transaction was decided", sent, number)

    def judge_settled(self, settled: int) -> None:
        """Add the transactions that came to nothing."""
        messages = self._messages
        for message, name in enumerate(messages.names):
            flags = messages.flags[message]
            if not flags & TRANSACTION or not flags & KEPT or messages.read[message] or messages.is_excused(message):
                continue
            sent, acked = messages.sent[message], messages.acked[message]
            if name in self._commits and name not in self._rollbacks and name not in self._refused:
                text = f"{name} was committed and never read"
                self._findings.add("committed-lost", text, sent, acked, self._commits[name], settled)
            elif name not in self._commits and name not in self._rollbacks:
                self._findings.add("undecided", f"the transaction of {name} was never decided", sent, acked, settled)
