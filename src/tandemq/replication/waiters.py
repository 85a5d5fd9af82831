"""Answers that wait until the log is flushed, or copied, up to an offset.

Entries come in log order with equal timeouts, so both offsets and deadlines only grow: the head decides. Those that
wait for a replica and those of which it is known already that none will have them stand in rows of their own.

Source: docs/ha.md, "synchronous wait"; requirements W04-W08, W11, W12.
"""

from collections import deque

from tandemq.model.codes import ResponseCode

Waiting = tuple[int, bytes, int, int, int, ResponseCode | None]
"""Link, answer, log offset it needs, when the flush is too late, when the replica is, and the verdict on replication if
it was known beforehand (None: it must be waited for). A plain tuple: one is made per message."""

_OK = ResponseCode.SUCCESS


class Waiters:
    """Answers in log order."""

    def __init__(self) -> None:
        """Nobody waits."""
        self._for_flush: deque[Waiting] = deque()
        self._for_replica: deque[Waiting] = deque()

    def __len__(self) -> int:
        """How many wait."""
        return len(self._for_flush) + len(self._for_replica)

    def add(self, waiting: Waiting) -> None:
        """Wait; the offset must not be lower than the last one's."""
        (self._for_replica if waiting[5] is None else self._for_flush).append(waiting)

    def release(self, flushed: int, copied: int, now_ms: int) -> list[tuple[int, bytes, ResponseCode]]:
        """Links, answers and what held, of those that may leave: all was reached, or a time is over."""
        done: list[tuple[int, bytes, ResponseCode]] = []
        reached = min(flushed, copied)
        for queue, limit in ((self._for_replica, reached), (self._for_flush, flushed)):
            while queue:
                link, answer, end, flush_due_ms, replica_due_ms, replica_code = queue[0]
                code: ResponseCode | None = replica_code or _OK
                if end > limit:
                    code = _verdict(end <= flushed, end <= copied, now_ms, flush_due_ms, replica_due_ms, replica_code)
                if code is None:
                    break
                queue.popleft()
                done.append((link, answer, code))
        return done

    def take_all(self) -> list[tuple[int, bytes]]:
        """Links and answers of everything that waits; nobody waits afterwards."""
        everything = [(waiting[0], waiting[1]) for waiting in (*self._for_replica, *self._for_flush)]
        self._for_replica.clear()
        self._for_flush.clear()
        return everything

    def deadline_ms(self, flushed: int) -> int | None:
        """When a head's next timeout is; `flushed`: a flush that was reached has none."""
        due = [queue[0][3] for queue in (self._for_flush, self._for_replica) if queue and queue[0][2] > flushed]
        if self._for_replica:
            due.append(self._for_replica[0][4])
        return min(due, default=None)


def _verdict(
    is_flushed: bool, is_copied: bool, now_ms: int, flush_due_ms: int, replica_due_ms: int,
    replica_code: ResponseCode | None,
) -> ResponseCode | None:  # fmt: skip
    """What to answer, None to go on waiting. A missing replica outranks a missing flush, as in RocketMQ."""
    if not is_flushed and now_ms < flush_due_ms:
        return None
    if replica_code is None and not is_copied:
        if now_ms < replica_due_ms:
            return None
        replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    if replica_code is not None and replica_code is not _OK:
        return replica_code
    return _OK if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT
