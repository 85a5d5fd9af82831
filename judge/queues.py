"""The queues: which message each offset has, by acknowledgements and reads, and the ranges in which a reader got none.

    acknowledged at 5 ─┐                        ┌─ in a gap of a reader, read by nobody     lost
    read at 5 ─────────┴─► offset 5 has a message ─ in a gap of a later complete read       vanished
                                                └─ in a gap of a reader's position          skipped

Rules: diverging, lost, vanished, skipped.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from judge.anomalies import Findings
from judge.history import Line
from judge.messages import INDIRECT, KEPT, REPORTED, Faults, Messages, broker_of, topic_of

_LINE_BITS = 40
_END = 1 << 62


class Gap(NamedTuple):
    """Offsets `[first, end)` that a read at `line` covered, and for which it gave no message."""

    first: int
    end: int
    line: int
    is_read: bool
    """Whether it is of a complete read of a range, not of a reader's position."""


class Queue:
    """What is known of one queue."""

    __slots__ = ("broker", "entries", "gaps", "name", "topic", "unread")

    def __init__(self, name: str) -> None:
        """`name`: topic/broker/number."""
        self.name = name
        self.topic = topic_of(name)
        self.broker = broker_of(name)
        self.entries: dict[int, int] = {}
        """Offset to its message's number, and the line of its first read, or else of its acknowledgement."""
        self.unread: set[int] = set()
        """Offsets whose line is that of an acknowledgement: nobody has read them."""
        self.gaps: list[Gap] = []


class Queues:
    """All queues."""

    def __init__(self, messages: Messages, findings: Findings, faults: Faults) -> None:
        self._messages = messages
        self._findings = findings
        self._faults = faults
        self.by_name: dict[str, Queue] = {}
        self._told: set[tuple[str, int, int]] = set()

    def get(self, name: str) -> Queue:
        """Return a queue."""
        queue = self.by_name.get(name)
        if queue is None:
            queue = self.by_name[name] = Queue(name)
        return queue

    def message_at(self, queue: Queue, offset: int) -> int:
        """Return the number of the message of a known offset."""
        return queue.entries[offset] >> _LINE_BITS

    def claim(self, queue: Queue, offset: int, message: int, line: int, *, is_read: bool) -> bool:
        """Record that an offset has a message; return False if it is known to have another one."""
        known = queue.entries.get(offset)
        if known is not None and known >> _LINE_BITS != message:
            return self._conflict(queue, offset, message, line, is_read=is_read)
        if known is None:
            queue.entries[offset] = message << _LINE_BITS | line
            if not is_read:
                queue.unread.add(offset)
            if queue.topic == self._messages.topics[message]:
                self._messages.place(message, queue.name, offset, line)
        elif is_read and offset in queue.unread:
            queue.unread.discard(offset)
            queue.entries[offset] = message << _LINE_BITS | line
        return True

    def _conflict(self, queue: Queue, offset: int, message: int, line: int, *, is_read: bool) -> bool:
        """Handle a second message at an offset: after a fault the broker may have given the offset again."""
        known = queue.entries[offset]
        other, other_line = known >> _LINE_BITS, known & ((1 << _LINE_BITS) - 1)
        sent, messages = self._messages.sent, self._messages
        if self._faults.after(min(sent[message], sent[other]), queue.broker):
            if sent[message] > sent[other]:
                del queue.entries[offset]
                queue.unread.discard(offset)
                return self.claim(queue, offset, message, line, is_read=is_read)
            return False
        if (queue.name, offset, message) not in self._told:
            self._told.add((queue.name, offset, message))
            names = f"{messages.names[other]}, then {messages.names[message]}"
            self._findings.add("diverging", f"{queue.name}@{offset} is {names}", other_line, line)
        return False

    def gap(self, queue: Queue, first: int, end: int, line: int, *, is_read: bool) -> None:
        """Record that a read covered offsets and gave nothing for them."""
        if first < end:
            queue.gaps.append(Gap(first, end, line, is_read))

    def read(self, number: int, line: Line) -> None:
        """Record the gaps of a read of a range."""
        queue, cursor = self.get(line["q"]), int(line["from"])
        for message in line["messages"]:
            self.gap(queue, cursor, message[0], number, is_read=True)
            cursor = max(cursor, message[0] + 1)
        end = int(line["next"])
        self.gap(queue, cursor, _END if line.get("complete") else end, number, is_read=True)

    def judge(self) -> None:
        """Add the anomalies that are certain at the end of the history."""
        for queue in self.by_name.values():
            if queue.gaps:
                offsets = sorted(queue.entries)
                judged: set[tuple[int, bool]] = set()
                for gap in queue.gaps:
                    for index in range(bisect_left(offsets, gap.first), bisect_left(offsets, gap.end)):
                        if (offsets[index], gap.is_read) not in judged and self._judge_gap(queue, offsets[index], gap):
                            judged.add((offsets[index], gap.is_read))

    def _judge_gap(self, queue: Queue, offset: int, gap: Gap) -> bool:
        """Judge an offset that has a message, and lies in a gap; return whether there is an anomaly."""
        known, messages = queue.entries[offset], self._messages
        message, line = known >> _LINE_BITS, known & ((1 << _LINE_BITS) - 1)
        where = f"{messages.names[message]} at {queue.name}@{offset}"
        if gap.end == _END and line > gap.line:
            return False  # it was stored after the read of the whole queue
        if offset in queue.unread:
            flags = messages.flags[message]
            if not flags & KEPT or flags & (INDIRECT | REPORTED) or messages.read[message]:
                return False
            if self._faults.after(messages.acked[message], queue.broker, messages.status(message)):
                return False
            messages.flags[message] |= REPORTED
            self._findings.add("lost", f"{where} is missing", messages.sent[message], messages.acked[message], gap.line)
            return True
        if self._faults.after(messages.sent[message], queue.broker):
            return False
        if gap.is_read and line < gap.line:
            self._findings.add("vanished", f"{where} was read, and is missing later", line, gap.line)
        else:
            self._findings.add("skipped", f"{where} was passed over", messages.sent[message], line, gap.line)
        return True
