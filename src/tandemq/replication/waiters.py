"""Answers that wait until the log is flushed, or copied, up to an offset.

Entries come in log order with equal timeouts, so both offsets and deadlines only grow: the head decides.

Source: docs/ha.md, "synchronous wait"; requirements W04-W08, W11, W12.
"""

from collections import deque
from typing import NamedTuple

from tandemq.model.codes import ResponseCode


class Waiting(NamedTuple):
    """One answer. `replica_code`: the verdict on replication known beforehand, None if it must be waited for."""

    link: int
    answer: bytes
    end: int
    flush_due_ms: int
    replica_due_ms: int
    replica_code: ResponseCode | None


class Waiters:
    """Answers in log order."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._queue: deque[Waiting] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    def add(self, waiting: Waiting) -> None:
        """Wait; `end` must not be lower than the last one's."""
        self._queue.append(waiting)

    def release(self, flushed: int, copied: int, now_ms: int) -> list[tuple[Waiting, ResponseCode]]:
        """Answers that may leave, with what held: flushed and copied, or which of them was not reached in time."""
        done: list[tuple[Waiting, ResponseCode]] = []
        queue = self._queue
        while queue:
            code = _verdict(queue[0], flushed, copied, now_ms)
            if code is None:
                break
            done.append((queue.popleft(), code))
        return done

    def take_all(self) -> list[Waiting]:
        """Everything that waits; nobody waits afterwards."""
        everything = list(self._queue)
        self._queue.clear()
        return everything

    def deadline_ms(self) -> int | None:
        """When the head's next timeout is."""
        if not self._queue:
            return None
        head = self._queue[0]
        return min(head.flush_due_ms, head.replica_due_ms if head.replica_code is None else head.flush_due_ms)


def _verdict(waiting: Waiting, flushed: int, copied: int, now_ms: int) -> ResponseCode | None:
    """What to answer, None to go on waiting. A missing replica outranks a missing flush, as in RocketMQ."""
    flush_late = flushed < waiting.end
    if flush_late and now_ms < waiting.flush_due_ms:
        return None
    replica = waiting.replica_code
    if replica is None:
        if copied >= waiting.end:
            replica = ResponseCode.SUCCESS
        elif now_ms < waiting.replica_due_ms:
            return None
        else:
            replica = ResponseCode.FLUSH_SLAVE_TIMEOUT
    if replica != ResponseCode.SUCCESS:
        return replica
    return ResponseCode.FLUSH_DISK_TIMEOUT if flush_late else ResponseCode.SUCCESS
