"""Pace of a replay: the maximum number of messages and bytes per second, shared by the tasks that send.

    rate of all tasks ─► each task's share, by its part of the messages ─► slices of 0.1 s

No slice begins before the time of the previous ones is over, so that no second has more than the rate and one slice.
Time lost by a slow cluster is not made up for.

Source: docs/guides/dataset.md, "Replay a time span".
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow.compute as pc

SLICE_S = 0.1
TASK_MESSAGES = 2_000
"""Messages per second that one task is expected to send."""
TASK_BYTES = 8 << 20
"""Bytes per second that one task is expected to send."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Maximum rate of a replay; None: no limit. `bytes` counts bodies and properties."""

    messages: float | None = None
    bytes: float | None = None

    def __bool__(self) -> bool:
        """Return whether there is a limit."""
        return self.messages is not None or self.bytes is not None

    def tasks(self, tasks_max: int) -> int:
        """Return the number of tasks that can reach the rate together."""
        wanted = [
            limit / of_one
            for limit, of_one in ((self.messages, TASK_MESSAGES), (self.bytes, TASK_BYTES))
            if limit is not None
        ]
        return max(1, min(tasks_max, math.ceil(min(wanted, default=tasks_max))))

    def share(self, messages: float, bytes_: float) -> "Rate":
        """Return the rate of one task. `messages`, `bytes_`: its part of all messages and bytes, 0 to 1."""
        return Rate(
            None if self.messages is None else self.messages * messages,
            None if self.bytes is None else self.bytes * bytes_,
        )

    def seconds(self, messages: int, bytes_: int) -> float:
        """Return the minimum time that a number of messages and bytes takes."""
        limited = ((messages, self.messages), (bytes_, self.bytes))
        return max((amount / limit for amount, limit in limited if limit), default=0.0)


def paced(
    batches: Iterable[Any],
    rate: Rate,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Any]:
    """Yield Arrow batches of messages in slices, each when it is due. The reader of a slice returns for the next one
    when the slice is acknowledged."""
    due = clock()
    for batch in batches:
        sizes = message_bytes(batch)
        for start, stop in _slices(sizes, rate):
            wait = due - clock()
            if wait > 0:
                sleep(wait)
            due = max(due, clock()) + rate.seconds(stop - start, int(sizes[start:stop].sum()))
            yield batch.slice(start, stop - start)


def message_bytes(batch: Any) -> Any:
    """Return the bytes of body and properties of each message."""
    lengths = [pc.fill_null(pc.binary_length(batch.column(name)), 0) for name in ("body", "properties")]
    return np.asarray(lengths[0].to_numpy(zero_copy_only=False), dtype=np.int64) + lengths[1].to_numpy(
        zero_copy_only=False
    )


def _slices(sizes: Any, rate: Rate) -> Iterator[tuple[int, int]]:
    """Cut a batch into slices of at most SLICE_S, or of one message."""
    start = messages = bytes_ = 0
    for row, size in enumerate(sizes.tolist()):
        if messages and rate.seconds(messages + 1, bytes_ + size) > SLICE_S:
            yield start, row
            start, messages, bytes_ = row, 0, 0
        messages += 1
        bytes_ += size
    if messages:
        yield start, len(sizes)
