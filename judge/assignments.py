"""Queues that consumers of one group hold: each by one of them, but for a while after the group has changed.

Rule: shared, from the moment at which a second one holds a queue to the one at which one of them lets go.
"""

from __future__ import annotations

from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line, Promises


class Held(NamedTuple):
    """A queue held by a process, since a line and time."""

    line: int
    at_ms: float


class Assignments:
    """The queues that each process of each group holds."""

    def __init__(self, promises: Promises, findings: Findings) -> None:
        self._shared_ms = promises.shared_ms
        self._findings = findings
        self._held: dict[tuple[str, str], dict[str, Held]] = {}
        """(group, queue) to process to since when it holds it."""

    def hold(self, number: int, line: Line) -> None:
        """Record all queues that a process holds from now on."""
        group, process, queues = line["group"], line["p"], set(line["queues"])
        now = Held(number, line["t"])
        for (of_group, q), holders in self._held.items():
            if of_group == group and process in holders and q not in queues:
                self._judge(group, q, process, now)
                del holders[process]
        for q in queues:
            self._held.setdefault((group, q), {}).setdefault(process, now)

    def _judge(self, group: str, q: str, process: str, end: Held) -> None:
        """Judge how long others have held a queue that a process lets go."""
        if self._shared_ms < 0:
            return
        holders = self._held[group, q]
        own = holders[process]
        for other, held in holders.items():
            since = max(own, held, key=lambda one: one.at_ms)
            shared_ms = end.at_ms - since.at_ms
            if other != process and shared_ms > self._shared_ms:
                text = f"{process} and {other} of {group} both held {q} for {shared_ms:.0f} ms"
                self._findings.add("shared", text, own.line, held.line, end.line)

    def judge_end(self, number: int, at_ms: float) -> None:
        """Judge what is still held with the last line."""
        end = Held(number, at_ms)
        for (group, q), holders in self._held.items():
            while len(holders) > 1:
                process = next(iter(holders))
                self._judge(group, q, process, end)
                del holders[process]
