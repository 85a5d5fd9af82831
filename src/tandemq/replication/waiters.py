"""Responses to sends that wait until the log is flushed and replicated up to an offset.

They are added in log order with equal timeouts, so offsets and deadlines only grow and only the head of a queue is
checked. Responses that wait for replicas, and those whose replication result is known already, have separate queues.

Source: docs/internals/ha.md, "synchronous wait"; requirements W04-W08, W11, W12.
"""

from collections import deque

from tandemq.model.codes import ResponseCode

Waiting = tuple[int, bytes, int, int, int, ResponseCode | None, int, bool]
"""Connection, encoded responses, log offset they need, deadline of the flush, deadline of the replication, result of
the replication if it is known already (None: wait for it), number of messages, whether the responses stay as they are
whatever the outcome. A plain tuple: one per response."""

_OK = ResponseCode.SUCCESS


class Waiters:
    """Waiting responses, in log order."""

    def __init__(self) -> None:
        """Begin with no waiting response."""
        self._copying: deque[Waiting] = deque()
        self._known: deque[Waiting] = deque()
        self._due_ms: int | None = None
        self.released: list[tuple[int, int]] = []
        """Messages whose responses the last `release` returned: (deadline of the flush, number of messages)."""

    def __len__(self) -> int:
        """Number of waiting responses."""
        return len(self._copying) + len(self._known)

    def add(self, waiting: Waiting) -> None:
        """Add a response; its offset must not be lower than that of the previous one."""
        (self._copying if waiting[5] is None else self._known).append(waiting)

    def release(self, flushed: int, copied: int, now_ms: int) -> list[tuple[int, bytes, ResponseCode | None]]:
        """Return (connection, responses, code) of all that are flushed and replicated, or whose deadline has passed.

        The code is None for those that stay as they are and whose deadline has passed. Plain tuples: one per response.
        """
        self.released = []
        done: list[tuple[int, bytes, ResponseCode | None]] = []
        for queue in (self._copying, self._known):
            self._release_from(queue, flushed, copied, now_ms, done)
        dues = [_due_ms(queue[0], flushed, copied) for queue in (self._copying, self._known) if queue]
        self._due_ms = min(dues, default=None)
        return done

    def _release_from(
        self,
        queue: deque[Waiting],
        flushed: int,
        copied: int,
        now_ms: int,
        done: list[tuple[int, bytes, ResponseCode | None]],
    ) -> None:
        before = count = 0
        while queue:
            link, answer, end, flush_due_ms, replica_due_ms, replica_code, messages, is_fixed = queue[0]
            if end <= flushed and (end <= copied or replica_code is _OK) and replica_code in (None, _OK):
                code = _OK
            else:
                verdict = _verdict(end <= flushed, end <= copied, now_ms, flush_due_ms, replica_due_ms, replica_code)
                if verdict is None:
                    break
                code = verdict
            queue.popleft()
            if flush_due_ms != before:
                if count:
                    self.released.append((before, count))
                before, count = flush_due_ms, 0
            count += messages
            done.append((link, answer, None if is_fixed and code is not _OK else code))
        if count:
            self.released.append((before, count))

    def take_all(self) -> list[tuple[int, bytes]]:
        """Remove all waiting responses and return (connection, responses) of each."""
        everything = [(waiting[0], waiting[1]) for queue in (self._copying, self._known) for waiting in queue]
        self._copying.clear()
        self._known.clear()
        return everything

    def deadline_ms(self) -> int | None:
        """Return the next deadline of a waiting response, as of the last `release`; None if none waits."""
        return self._due_ms if len(self) else None


def _due_ms(waiting: Waiting, flushed: int, copied: int) -> int:
    """Return when a wait ends at the latest: when the deadline of everything still missing has passed."""
    _, _, end, flush_due_ms, replica_due_ms, replica_code, _, _ = waiting
    if end <= flushed:
        return replica_due_ms
    return flush_due_ms if replica_code is not None or end <= copied else max(flush_due_ms, replica_due_ms)


def _verdict(
    is_flushed: bool,
    is_copied: bool,
    now_ms: int,
    flush_due_ms: int,
    replica_due_ms: int,
    replica_code: ResponseCode | None,
) -> ResponseCode | None:
    """Return the response code, None to wait on. A missing replica outranks a missing flush, as in RocketMQ."""
    if not is_flushed and now_ms < flush_due_ms:
        return None
    if replica_code is None and not is_copied:
        if now_ms < replica_due_ms:
            return None
        replica_code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    if replica_code is not None and replica_code is not _OK:
        return replica_code
    return _OK if is_flushed else ResponseCode.FLUSH_DISK_TIMEOUT
