"""Planning of offset ranges and their distribution over tasks: pure arithmetic.

    start, end by queue ─► limit_rows (maxOffsetsPerTrigger) ─► ranges ─► tasks

With `minPartitions` or `maxRecordsPerPartition` large ranges are split. Without them those of skewed queues are, and
without `minPartitions` small ranges share a task: starting a task costs more than reading a few thousand messages.

Source: docs/guides/pipeline.md, "Offsets"; Spark's KafkaOffsetRangeCalculator for the meaning of minPartitions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from tandemq.model.message import MessageQueue

SHARED_MESSAGES = 20_000
"""Maximum number of messages of a task that several ranges share; a larger range has a task of its own."""

SKEWED_MESSAGES, SKEW = 100_000, 2
"""A range is split if it is longer than this, and as many times as long as the average of all queues."""


@dataclass(frozen=True, slots=True)
class QueueRange:
    """Messages [start, end) of a queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def size(self) -> int:
        """Number of offsets."""
        return self.end - self.start


def limit_rows(
    start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int], rows_max: int
) -> dict[MessageQueue, int]:
    """Limit the ends of queues to `rows_max` offsets in total, distributed in proportion to what each queue has.

    A queue with anything to read gets at least one offset while the limit lasts, so that no queue starves.
    """
    sizes = {queue: offset - start.get(queue, offset) for queue, offset in end.items()}
    total = sum(size for size in sizes.values() if size > 0)
    if total <= rows_max:
        return dict(end)
    limited = {queue: end[queue] for queue, size in sizes.items() if size <= 0}
    left = rows_max
    # Smallest first: rounding remainders go to the largest queues.
    waiting = sorted((queue for queue, size in sizes.items() if size > 0), key=lambda queue: (sizes[queue], queue))
    for queue in waiting:
        share = min(sizes[queue], left, max(1, left * sizes[queue] // total))
        limited[queue] = start[queue] + share
        left -= share
        total -= sizes[queue]
    return limited


def make_ranges(start: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> list[QueueRange]:
    """Return the range of each queue between two positions, without empty ones."""
    return [
        QueueRange(queue, start[queue], offset)
        for queue, offset in sorted(end.items())
        if queue in start and offset > start[queue]
    ]


def make_tasks(
    ranges: Sequence[QueueRange],
    queues: int,
    partitions_min: int | None = None,
    records_max: int | None = None,
) -> list[list[QueueRange]]:
    """Distribute ranges over tasks; the same for the same arguments.

    Args:
        ranges: what is to be read, without empty ranges.
        queues: number of queues of the query.
        partitions_min: minimum number of tasks, if there are as many offsets; None lets small ranges share a task.
        records_max: maximum number of offsets of a task.
    """
    if not ranges:
        return []
    if partitions_min is None and records_max is None:
        average = sum(one.size for one in ranges) // max(queues, len(ranges))
        pieces = _split(ranges, 1, max(SKEWED_MESSAGES, SKEW * average))
    else:
        pieces = _split(ranges, partitions_min or 1, records_max)
    if partitions_min is not None:
        return [[piece] for piece in pieces]
    shared = SHARED_MESSAGES if records_max is None else min(SHARED_MESSAGES, records_max)
    tasks: list[list[QueueRange]] = []
    room = 0
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        if not tasks or piece.size > room:
            tasks.append([])
            room = shared
        tasks[-1].append(piece)
        room -= piece.size
    return tasks


def _split(ranges: Sequence[QueueRange], count: int, records_max: int | None) -> list[QueueRange]:
    """Split ranges into parts of at most `records_max` offsets, and these into at least `count` parts of similar size;
    fewer only if there are fewer offsets."""
    pieces = {queue_range.queue: -(-queue_range.size // (records_max or queue_range.size)) for queue_range in ranges}
    sizes = {queue_range.queue: queue_range.size for queue_range in ranges}
    missing = min(count, sum(sizes.values())) - sum(pieces.values())
    # The range whose parts are the largest is first.
    splittable = [(-sizes[queue] / parts, number, queue) for number, (queue, parts) in enumerate(pieces.items())]
    splittable = [entry for entry in splittable if pieces[entry[2]] < sizes[entry[2]]] if missing > 0 else []
    heapify(splittable)
    for _ in range(missing):
        _, number, largest = splittable[0]
        pieces[largest] += 1
        if pieces[largest] < sizes[largest]:
            heapreplace(splittable, (-sizes[largest] / pieces[largest], number, largest))
        else:
            heappop(splittable)
    found = []
    for queue_range in ranges:
        parts = pieces[queue_range.queue]
        edges = [queue_range.start + queue_range.size * number // parts for number in range(parts + 1)]
        found += [QueueRange(queue_range.queue, low, high) for low, high in zip(edges[:-1], edges[1:], strict=True)]
    return found
