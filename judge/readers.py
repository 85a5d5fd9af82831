"""The positions of consumers in their queues.

    assign ─► first poll ─► … each poll begins where the one before ended …

Rules: went-back, not-redelivered; skipped by the gaps that `queues` gets.
"""

from __future__ import annotations

from judge.anomalies import Findings
from judge.history import Line
from judge.messages import Messages
from judge.queues import Queue, Queues


class Position:
    """The position of one process in one queue."""

    __slots__ = ("line", "next")

    def __init__(self, next_offset: int, line: int) -> None:
        """`line`: of the poll that ended there."""
        self.next = next_offset
        self.line = line


class Readers:
    """All consumers."""

    def __init__(self, messages: Messages, queues: Queues, findings: Findings) -> None:
        self._messages = messages
        self._queues = queues
        self._findings = findings
        self._positions: dict[str, dict[tuple[str, str], Position]] = {}
        """Process to (consumer group, queue) to its position."""
        self._returned: set[tuple[str, str, int]] = set()
        """(group, queue, offset) of messages sent back: they may come again at the same offset."""
        self._waiting: dict[tuple[str, str], int] = {}
        """(group, message) that was sent back and has not come again, to the line."""

    def assign(self, _number: int, line: Line) -> None:
        """Forget the positions of a process in some queues of a group, or in all."""
        known = self._positions.get(line["p"], {})
        group, queues = line["group"], line.get("queues")
        for key in [key for key in known if key[0] == group and (queues is None or key[1] in queues)]:
            del known[key]

    def back(self, number: int, line: Line) -> None:
        """Record that a message is sent back, or that this was confirmed."""
        if line["type"] == "invoke" and "q" in line:
            self._returned.add((line["group"], line["q"], int(line["offset"])))
        elif line["type"] == "invoke":
            self._waiting.pop((line["group"], line["id"]), None)
        if line["type"] == "invoke":
            self._waiting[line["group"], line["id"]] = number

    def poll(self, number: int, line: Line) -> None:
        """Judge a poll by the position before it, and record its gaps."""
        group, q = line["group"], line["q"]
        for message in line["messages"] if self._waiting else ():
            self._waiting.pop((group, message[1]), None)
        if line.get("unordered"):
            return
        queue, known = self._queues.get(q), self._positions.setdefault(line["p"], {})
        position = known.get((group, q))
        if position is None:
            messages = line["messages"]
            start = line.get("from", messages[0][0] if messages else None)
            if start is None:
                return
            position = known[group, q] = Position(int(start), number)
        elif int(line.get("from", position.next)) < position.next:
            text = f"{line['p']} of {group} polls {q} from {line['from']} after {position.next - 1}"
            self._findings.add("went-back", text, position.line, number)
            position.next = int(line["from"])
        self._advance(number, line, queue, position)

    def _advance(self, number: int, line: Line, queue: Queue, position: Position) -> None:
        is_whole, cursor, before = not line.get("partial"), position.next, position.line
        for message in line["messages"]:
            offset = message[0]
            if offset < cursor:
                if (line["group"], queue.name, offset) not in self._returned:
                    text = f"{line['p']} of {line['group']} got {queue.name}@{offset} after {cursor - 1}"
                    self._findings.add("went-back", text, before, number)
                continue
            if is_whole:
                self._queues.gap(queue, cursor, offset, number, is_read=False)
            cursor, before = offset + 1, number
        end = int(line.get("next", cursor))
        if is_whole:
            self._queues.gap(queue, cursor, end, number, is_read=False)
        position.next, position.line = max(cursor, end), number

    def judge_settled(self, settled: int) -> None:
        """Add the messages that were sent back and did not come again."""
        for (group, name), line in self._waiting.items():
            message = self._messages.numbers.get(name)
            if message is None or not self._messages.is_excused(message):
                text = f"{name} was sent back by {group} and did not come again"
                self._findings.add("not-redelivered", text, line, settled)
