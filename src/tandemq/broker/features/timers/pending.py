"""The timed messages that wait, by their times: an index of the wheel topic, with 12 bytes per message.

    slot      the messages of one time (TIMER_OUT_MS), and the requests not to deliver some of them
    roll      when a message whose time is far away is stored again, so that the file with its record can expire

Source: docs/reference/timers.md; RocketMQ TimerWheel.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from tandemq.engine import TimedSend

CHUNK = 4_096
"""Number of queue offsets whose waiting messages are counted together."""


class Slot:
    """What waits for one time; queue offsets of the wheel topic, lowest first, and the numbers of their topics."""

    __slots__ = ("delete_topics", "deletes", "message_topics", "messages")

    def __init__(self) -> None:
        """Begin empty."""
        self.messages = array("q")
        self.message_topics = array("I")
        self.deletes = array("q")
        self.delete_topics = array("I")

    def __len__(self) -> int:
        """Return the number of both."""
        return len(self.messages) + len(self.deletes)


class RollTask(NamedTuple):
    """A message that is to be stored again."""

    queue_offset: int
    out_ms: int


def roll_time(out_ms: int, write_ms: int, window_ms: int) -> int:
    """Return when a message is stored again that is stored now.

    Args:
        out_ms: its time, at least the window away.
        write_ms: now, in whole units of time.
        window_ms: how far away the time of a message may be that is not stored again.
    """
    is_near = out_ms - write_ms - window_ms < window_ms // 3
    return write_ms + (window_ms // 2 if is_near else window_ms)


class PendingTimers:
    """The timed messages that wait."""

    def __init__(self) -> None:
        """Begin without messages."""
        self.slots: dict[int, Slot] = {}
        self._times: list[int] = []
        """Heap of the times with a slot; times without one may be in it too."""
        self._rolls: dict[int, array[int]] = {}
        """By time: queue offset and TIMER_OUT_MS of each message, alternating."""
        self._roll_times: list[int] = []
        self.chunks: dict[int, int] = {}
        """Number of waiting messages by chunk of queue offsets, lowest chunk first: messages are added in order."""
        self._count = 0
        self._numbers: dict[str, int] = {}
        """Numbers of topics, as they are in slots."""
        self.topics: list[str] = []
        """Topics by their numbers in slots."""
        self.counts: dict[str, int] = {}
        """Number of messages by topic. A delete request changes none: only at its time it shows what it removes."""
        self.seen = 0
        """Queue offset behind the last message that was added."""

    def __len__(self) -> int:
        """Return the number of messages and delete requests that wait."""
        return self._count

    def count_at(self, out_ms: int) -> int:
        """Return the number of messages and delete requests of one time."""
        return len(self.slots.get(out_ms, ()))

    # Changes.

    def add(self, queue_offset: int, out_ms: int, topic: str, *, is_delete: bool = False) -> None:
        """Add a message, or a delete request, behind all others."""
        self.add_all([(queue_offset, out_ms, topic, is_delete)])

    def add_all(self, timed: Iterable[TimedSend]) -> None:
        """Add messages and delete requests behind all others."""
        slots, chunks, counts, numbers = self.slots, self.chunks, self.counts, self._numbers
        for queue_offset, out_ms, topic, is_delete in timed:
            slot = slots.get(out_ms)
            if slot is None:
                slot = self._slot(out_ms)
            number = numbers.get(topic)
            if number is None:
                number = self._number(topic)
            if is_delete:
                slot.deletes.append(queue_offset)
                slot.delete_topics.append(number)
            else:
                slot.messages.append(queue_offset)
                slot.message_topics.append(number)
                counts[topic] = counts.get(topic, 0) + 1
            chunk = queue_offset // CHUNK
            chunks[chunk] = chunks.get(chunk, 0) + 1
            self._count += 1
            self.seen = queue_offset + 1

    def add_later(self, later: "PendingTimers") -> None:
        """Add all of a table, whose messages are behind all others."""
        numbers = [self._number(topic) for topic in later.topics]
        for out_ms, other in later.slots.items():
            slot = self._slot(out_ms)
            slot.messages.extend(other.messages)
            slot.message_topics.extend([numbers[number] for number in other.message_topics])
            slot.deletes.extend(other.deletes)
            slot.delete_topics.extend([numbers[number] for number in other.delete_topics])
        for chunk, number in later.chunks.items():
            self.chunks[chunk] = self.chunks.get(chunk, 0) + number
        for topic, number in later.counts.items():
            self.count(topic, number)
        self._count += len(later)
        self.seen = max(self.seen, later.seen)

    def restore(self, queue_offset: int, out_ms: int, topic: str, *, is_delete: bool) -> None:
        """Enter a message, which was counted as waiting, in its slot."""
        slot = self._slot(out_ms)
        offsets, topics = (slot.deletes, slot.delete_topics) if is_delete else (slot.messages, slot.message_topics)
        index = bisect_left(offsets, queue_offset)
        offsets.insert(index, queue_offset)
        topics.insert(index, self._number(topic))

    def _number(self, topic: str) -> int:
        """Return the number of a topic."""
        number = self._numbers.setdefault(topic, len(self.topics))
        if number == len(self.topics):
            self.topics.append(topic)
        return number

    def _slot(self, out_ms: int) -> Slot:
        slot = self.slots.get(out_ms)
        if slot is None:
            slot = self.slots[out_ms] = Slot()
            heappush(self._times, out_ms)
        return slot

    def keep(self, queue_offset: int) -> None:
        """Count a message as waiting, in a slot or elsewhere."""
        chunk = queue_offset // CHUNK
        self.chunks[chunk] = self.chunks.get(chunk, 0) + 1
        self._count += 1

    def release(self, queue_offset: int) -> None:
        """Count a message as waiting no more."""
        chunk = queue_offset // CHUNK
        left = self.chunks[chunk] = self.chunks[chunk] - 1
        if not left:
            del self.chunks[chunk]
        self._count -= 1

    def count(self, topic: str, change: int) -> None:
        """Change the number of messages of a topic."""
        self.counts[topic] = self.counts.get(topic, 0) + change

    def take(self, out_ms: int, messages: int, *, with_deletes: bool) -> None:
        """Remove the first messages of a slot, and its delete requests if asked; an empty slot goes.

        The count of the messages is left to the caller.
        """
        slot = self.slots[out_ms]
        del slot.messages[:messages], slot.message_topics[:messages]
        if with_deletes:
            slot.deletes, slot.delete_topics = array("q"), array("I")
        if not len(slot):
            del self.slots[out_ms]

    def is_waiting(self, queue_offset: int, out_ms: int) -> bool:
        """Whether a message waits in its slot."""
        return self._find(queue_offset, out_ms) is not None

    def discard(self, queue_offset: int, out_ms: int) -> bool:
        """Remove a message that is over for another reason than its time; return whether it was waiting."""
        slot, index = self.slots.get(out_ms), self._find(queue_offset, out_ms)
        if slot is None or index is None:
            return False
        del slot.messages[index], slot.message_topics[index]
        if not len(slot):
            del self.slots[out_ms]
        self.release(queue_offset)
        return True

    def _find(self, queue_offset: int, out_ms: int) -> int | None:
        slot = self.slots.get(out_ms)
        if slot is None:
            return None
        index = bisect_left(slot.messages, queue_offset)
        return index if index < len(slot.messages) and slot.messages[index] == queue_offset else None

    # Times.

    def first(self) -> int | None:
        """Return the earliest time with a slot, None if there is none."""
        times = self._times
        while times and times[0] not in self.slots:
            heappop(times)
        return times[0] if times else None

    def until(self, end_ms: int) -> Iterator[int]:
        """Yield the times before one that have a slot, in order; no slot may go meanwhile."""
        times, taken = self._times, list[int]()
        try:
            while times and times[0] < end_ms:
                out_ms = heappop(times)
                if out_ms in self.slots and not (taken and taken[-1] == out_ms):
                    taken.append(out_ms)
                    yield out_ms
        finally:
            for out_ms in taken:
                heappush(times, out_ms)

    def lowest(self) -> int | None:
        """Return a queue offset at or before that of the oldest waiting message, None if none waits."""
        chunk = next(iter(self.chunks), None)
        return None if chunk is None else chunk * CHUNK

    def none_below(self) -> int:
        """Return a queue offset below which no message waits."""
        lowest = self.lowest()
        return self.seen if lowest is None else lowest

    # Rolls.

    def roll_later(self, task: RollTask, roll_ms: int) -> None:
        """Note that a message is to be stored again at a time before its own."""
        tasks = self._rolls.get(roll_ms)
        if tasks is None:
            tasks = self._rolls[roll_ms] = array("q")
            heappush(self._roll_times, roll_ms)
        tasks.extend(task)

    def rolls_before(self, end_ms: int, most: int) -> list[RollTask]:
        """Return messages to be stored again before a time, at most so many; they are not returned again."""
        found: list[RollTask] = []
        while self._roll_times and self._roll_times[0] < end_ms and len(found) < most:
            tasks = self._rolls[self._roll_times[0]]
            part = 2 * (most - len(found))
            found += map(RollTask, tasks[:part:2], tasks[1:part:2])
            del tasks[:part]
            if not tasks:
                del self._rolls[heappop(self._roll_times)]
        return found
