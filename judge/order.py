"""The order of acknowledged sends of one process, or of all, in each queue.

Rule: order.
"""

from __future__ import annotations

from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line, Promises
from judge.messages import Faults, Started, broker_of


class Acknowledged(NamedTuple):
    """The highest offset that was acknowledged by a line."""

    line: int
    offset: int
    message: int


class Order:
    """The acknowledged offsets by process and queue."""

    def __init__(self, promises: Promises, findings: Findings, faults: Faults) -> None:
        self._promised = promises.order
        self._findings = findings
        self._faults = faults
        self._open: dict[str, dict[int, None]] = {}
        """Process to the lines of its sends without an outcome, the oldest first."""
        self._highest: dict[tuple[str, str], list[Acknowledged]] = {}
        """(process, queue) to rising offsets; those before the oldest open send are reduced to the last one."""
        self.reported: set[int] = set()
        """Messages with an anomaly."""

    def _process(self, line: Line) -> str:
        return "" if self._promised == "realtime" else line["p"]

    def begin(self, number: int, line: Line) -> None:
        """Record the beginning of a send."""
        self._open.setdefault(self._process(line), {})[number] = None

    def end(self, number: int, line: Line, started: Started, name: str, *, is_kept: bool) -> None:
        """Judge the outcome of a send. `is_kept`: whether its place is promised."""
        process = self._process(line)
        opened = self._open[process]
        opened.pop(started.line, None)
        if not is_kept or "q" not in line or "offset" not in line or self._promised == "none":
            return
        q, offset = line["q"], int(line["offset"])
        known = self._highest.setdefault((process, q), [])
        before = next((one for one in reversed(known) if one.line < started.line), None)
        if before is not None and offset <= before.offset and not self._faults.after(before.line, broker_of(q)):
            if before.message != started.number:
                self.reported.add(started.number)
                text = f"{name} is at {q}@{offset}, and was sent after {before.offset} was acknowledged"
                self._findings.add("order", text, before.line, started.line, number)
        elif not known or offset > known[-1].offset:
            known.append(Acknowledged(number, offset, started.number))
            oldest = next(iter(opened), number)
            while len(known) > 1 and known[1].line < oldest:
                del known[0]
