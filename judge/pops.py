"""Messages that groups pop: held for their invisible time, acknowledged, popped again.

A message that was sent once is one for its group wherever it lies, also in a retry topic. Of others each place counts;
one that came back by a retry topic too early is an anomaly if its topic turns out to have it at one offset.

Rules: pop-overlap, pop-again, pop-lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from judge.anomalies import Findings
from judge.history import Line, Promises
from judge.messages import Faults, Messages, broker_of

_Place = tuple[str, str, int]
"""(consumer group, queue, offset)."""
NEVER = float("inf")


@dataclass(slots=True)
class Hold:
    """A message that a group holds."""

    message: int
    line: int
    since_ms: float
    until_ms: float
    """Earliest time at which it may be given again."""
    acked_ms: float = NEVER
    """When its acknowledgement was confirmed, if that was in time."""
    acked: int = 0
    """The line of that."""
    is_open: bool = True
    """Whether no acknowledgement was requested."""


class Pops:
    """All pops."""

    def __init__(self, messages: Messages, promises: Promises, findings: Findings, faults: Faults) -> None:
        self._messages = messages
        self._promises = promises
        self._findings = findings
        self._faults = faults
        self._holds: dict[_Place, Hold] = {}
        self._single: dict[tuple[str, int], Hold] = {}
        """The same by consumer group and message, for those that were sent once."""
        self._placed: dict[tuple[str, int], Hold] = {}
        """(group, message) to its last hold from a place in the topic."""
        self._early: list[tuple[int, str, int, int]] = []
        """Messages that came back too early if they have one place, with the text and lines of the anomaly."""
        self._last: dict[tuple[str, int], int] = {}
        """(group, message) to the line of its last pop."""
        self._open: dict[tuple[str, int], tuple[Hold, float]] = {}
        """Operation to its message, and the time until which it is to be invisible."""

    def pop(self, number: int, line: Line, messages: list[int]) -> None:
        """Judge a pop. `messages`: numbers of its messages, -1 of those that were not sent."""
        group, q = line["group"], line["q"]
        until_ms = line["since"] + line["invisible_ms"]
        for given, message in zip(line["messages"], messages, strict=True):
            if message >= 0:
                self._last[group, message] = number
            place = group, q, given[0]
            is_single = message >= 0 and self._messages.is_single(message)
            known = self._single.get((group, message)) if is_single else self._holds.get(place)
            if known is not None and line["since"] < known.since_ms:
                continue  # a late response: the message has come back to another pop since
            if known is None and message >= 0 and given[0] < 0:
                self._note_early(group, message, number, line)
            is_wrong = known is not None and self._promises.pops == "final" and self._judge(known, number, line, place)
            hold = Hold(message, number, line["since"], until_ms, is_open=not is_wrong)
            if given[0] >= 0:
                self._holds[place] = hold
                if message >= 0:
                    self._placed[group, message] = hold
            if is_single:
                self._single[group, message] = hold

    def _note_early(self, group: str, message: int, number: int, line: Line) -> None:
        """Note that a message came back from a retry topic while the group held it."""
        known = self._placed.get((group, message))
        if known is None or self._promises.pops != "final" or self._faults.after(known.line, broker_of(line["q"])):
            return
        early_ms = known.until_ms - self._promises.pop_slack_ms - line["t"]
        if known.acked_ms == NEVER and early_ms > 0:
            text = f"{group} got {self._messages.names[message]} from its retry topic {early_ms:.0f} ms too early"
            self._early.append((message, text, known.line, number))

    def judge(self) -> None:
        """Add the messages that came back too early, of those with one place in their topic."""
        for message, text, *lines in self._early:
            if message not in self._messages.copies:
                self._findings.add("pop-overlap", text, *lines)

    def polled(self, number: int, line: Line, messages: list[int]) -> None:
        """Record that a group got messages by a poll, which counts as given again."""
        for message in messages if self._last else ():
            if (line["group"], message) in self._last:
                self._last[line["group"], message] = number

    def _judge(self, known: Hold, number: int, line: Line, place: _Place) -> bool:
        """Judge that a message is given again; return whether there is an anomaly."""
        group, q, offset = place
        if self._faults.after(known.line, broker_of(q)):
            return False
        if known.acked_ms < line["since"]:
            text = f"{group} got {q}@{offset} again after its acknowledgement"
            self._findings.add("pop-again", text, known.line, known.acked, number)
            return True
        if known.acked_ms == NEVER and line["t"] < known.until_ms - self._promises.pop_slack_ms:
            text = f"{group} got {q}@{offset} again {known.until_ms - line['t']:.0f} ms too early"
            self._findings.add("pop-overlap", text, known.line, number)
            return True
        return False

    def ack(self, number: int, line: Line) -> None:
        """Record an acknowledgement, or its outcome."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            hold = self._holds.get((line["group"], line["q"], int(line["offset"])))
            if hold is not None:
                hold.is_open = False
                self._open[key] = hold, 0.0
            return
        started = self._open.pop(key, None)
        if started is not None and line["type"] == "ok" and line["t"] < started[0].until_ms:
            started[0].acked_ms, started[0].acked = line["t"], number

    def invisible(self, _number: int, line: Line) -> None:
        """Record that the invisible time is changed, or the outcome of that."""
        key = line["p"], line["op"]
        if line["type"] == "invoke":
            hold = self._holds.get((line["group"], line["q"], int(line["offset"])))
            if hold is not None:
                until_ms = line["t"] + line["invisible_ms"]
                hold.until_ms = min(hold.until_ms, until_ms)
                self._open[key] = hold, until_ms
            return
        started = self._open.pop(key, None)
        if started is not None and line["type"] == "ok":
            started[0].until_ms = started[1]

    def judge_settled(self, settled: int) -> None:
        """Add the messages that were neither acknowledged nor popped again."""
        for (group, q, offset), hold in self._holds.items():
            is_last = hold.message < 0 or self._last[group, hold.message] == hold.line
            if hold.is_open and is_last and not self._faults.after(hold.line, broker_of(q)):
                text = f"{group} got {q}@{offset}, did not acknowledge it, and did not get it again"
                self._findings.add("pop-lost", text, hold.line, settled)
