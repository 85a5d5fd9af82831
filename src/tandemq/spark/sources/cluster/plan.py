"""Which offsets a query reads next, and how they are shared out to tasks: arithmetic only.

    start, end by queue ─► limit_rows (maxOffsetsPerTrigger) ─► ranges ─► tasks

Large ranges are split so that all have a task of their own, small ones share a task: starting one costs more than
reading a few thousand messages.

Source: docs/guides/pipeline.md, "Offsets"; Spark's KafkaOffsetRangeCalculator for the meaning of minPartitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tandemq.model.message import MessageQueue

SHARED_MESSAGES = 20_000
"""Ranges are put together into tasks of at most this many messages; larger ones stay alone."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of a queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """How many offsets it spans."""
        return self.end - self.start


def limit_rows(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], rows_max: int
) -> dict[MessageQueue, int]:
    """Ends that are `rows_max` offsets from the starts in all, each queue giving up in proportion to what it has.

    A queue that has anything to read gets one offset at least as long as there are any to give, so that none starves.
    """
    sizes = {queue: offset - start.get(queue, offset) for queue, offset in end.items()}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= rows_max:
        return dict(end)
    limited = {queue: end[queue] for queue, size in sizes.items() if size <= 0}
    left = rows_max
    # The smallest first: what rounding leaves goes to those that have most.
    waiting = sorted((queue for queue, size in sizes.items() if size > 0), key=lambda queue: (sizes[queue], queue))
    for queue in waiting:
        share = min(sizes[queue], left, max(1, left * sizes[queue] // total))
        limited[queue] = start[queue] + share
        left -= share
        total -= sizes[queue]
    return limited


def make_ranges(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """What lies between two positions, by queue; queues without anything left out."""
    return [
        QueueRange(queue, start[queue], offset)
        for queue, offset in sorted(end.items())
        if queue in start and offset > start[queue]
    ]


def make_tasks(ranges: Sequence[QueueRange], partitions_min: int | None = None) -> list[list[QueueRange]]:
    """Share ranges out to tasks.

    Args:
        partitions_min: at least so many tasks, if there are as many offsets; None lets small ranges share one.
    """
    if not ranges:
        return []
    if partitions_min is not None:
        return [[piece] for piece in _split(ranges, partitions_min)]
    tasks: list[list[QueueRange]] = []
    room = 0
    for one in sorted(ranges, key=lambda one: -one.size):
        if not tasks or one.size > room:
            tasks.append([])
            room = SHARED_MESSAGES
        tasks[-1].append(one)
        room -= one.size
    return tasks


def _split(ranges: Sequence[QueueRange], count: int) -> list[QueueRange]:
    """At least `count` pieces, as equal as may be; fewer only if there are fewer offsets."""
    pieces = {one.queue: 1 for one in ranges}
    sizes = {one.queue: one.size for one in ranges}
    missing = min(count, sum(sizes.values())) - len(ranges)
    for _ in range(missing):
        largest = max((queue for queue in pieces if pieces[queue] < sizes[queue]), key=lambda q: sizes[q] / pieces[q])
        pieces[largest] += 1
    found = []
    for one in ranges:
        parts = pieces[one.queue]
        edges = [one.start + one.size * number // parts for number in range(parts + 1)]
        found += [QueueRange(one.queue, low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return found
