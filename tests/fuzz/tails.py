"""The same operations on the queue tails of both engines."""

from random import Random
from types import ModuleType
from typing import Any

from tandemq.codec.record.entries import QUEUE_ENTRY
from tandemq.engine import python


class TailPair:
    """The same operations on a tail of each engine."""

    def __init__(self, compiled: ModuleType) -> None:
        self.compiled = compiled
        self.tails: tuple[Any, Any] = (compiled.QueueTail(), python.QueueTail())

    def call(self, name: str, *arguments: Any) -> Any:
        one, other = (getattr(tail, name)(*arguments) for tail in self.tails)
        assert one == other, (name, arguments)
        self.check()
        return one

    def check(self) -> None:
        states = [
            (
                tail.tail_start,
                tail.max_offset,
                tail.next_offset,
                tail.last_log_end,
                tail.staged_log_end(),
                tail.tail(tail.tail_start, tail.next_offset),
            )
            for tail in self.tails
        ]
        assert states[0] == states[1]

    def commit(self) -> None:
        """Commit by the function for many tails; those with held pulls are noted."""
        woken: list[list[Any]] = [[], []]
        self.compiled.commit_staged([self.tails[0]], woken[0])
        python.commit_staged([self.tails[1]], woken[1])
        assert len(woken[0]) == len(woken[1]) == (self.tails[0].held is not None)
        self.check()

    def step(self, random: Random) -> None:
        """Do one operation that the owner of a tail may do."""
        tail = self.tails[1]
        log_offset = random.randrange(1 << 40)
        entry = log_offset, random.choice((91, 500, 0x7FFFFFFF)), random.choice((0, -1, 1 << 62, -(1 << 63), 99))
        is_staged = tail.next_offset > tail.max_offset
        operation = random.randrange(11)
        if operation < 3:
            self.call("stage_entry", *entry)
        elif operation == 3:
            self.call("stage_entry", *entry, random.choice((1, 2, 300)))
        elif operation == 4:
            self.call("stage_packed", QUEUE_ENTRY.pack(*entry) * random.randrange(4))
        elif operation == 5:
            self.call("commit_staged") if random.random() < 0.5 else self.commit()
        elif operation == 6:
            self.call("drop_staged")
        elif operation == 7 and not is_staged:
            self.call("advance_tail", random.randrange(tail.max_offset - tail.tail_start + 1))
        elif operation == 8 and not is_staged:
            self.call("cut_tail", random.randrange(tail.tail_start, tail.max_offset + 1))
        elif operation == 9 and tail.max_offset > tail.tail_start:
            at = random.randrange(tail.tail_start, tail.max_offset)
            count = random.randrange(tail.max_offset - at + 1)
            self.call("rewrite_tail", at, QUEUE_ENTRY.pack(*entry) * count)
            self.call("tail", at, at + count)
        elif operation == 10 and random.random() < 0.2:
            self.call("start_tail", random.choice((0, 50, 1 << 40)))
