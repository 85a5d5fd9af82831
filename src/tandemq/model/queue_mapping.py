"""Static topics: a fixed number of logical queues, each a sequence of segments in queues of brokers.

    logical queue 0     offsets 0 …          10000 …         20000 …
    segment             broker-a, queue 0    broker-b, 2     broker-a, 5      the last one takes messages

A segment maps logical offsets to those of a broker's queue: `logicOffset` is the logical offset of `startOffset`. It
ends where the next one begins. A segment whose `logicOffset` is negative takes messages, which nobody reads before its
place is known: a queue that moves is first opened on the new broker, then closed on the old one, and then the new
segment gets an offset above the last one of the old segment.

Source: docs/reference/requests.md, "static topics"; RocketMQ TopicQueueMappingDetail, LogicQueueMappingItem,
TopicQueueMappingUtils.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from tandemq.model.java_types import Int32, Int64
from tandemq.model.topic import topic_name_error

GLOBAL_SCOPE = "__global__"
LOGICAL_BROKER_PREFIX = "__syslo__"
"""Prefix of the broker name that clients give the logical queues of a static topic."""
SEGMENTS_MAX = 128
"""Maximum number of segments of a logical queue; empty ones are removed from time to time."""
OFFSET_MAX = 1 << 58
"""Largest offset in a segment of a request: no queue has more entries, and sums of two fit into 64 bits."""
EPOCH_MAX = 1 << 53
"""Largest epoch in a request, so that later ones can be larger; tools use milliseconds."""


class QueueSegment(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a logical queue, in a queue of one broker; field names on the wire are RocketMQ's."""

    gen: Int32
    """Grows from segment to segment."""
    queue_id: Int32
    bname: str
    """Name of the broker."""
    logic_offset: Int64
    """Logical offset of `start_offset`; negative while it is not known."""
    start_offset: Int64 = 0
    end_offset: Int64 = -1
    """Offset behind the last message of the segment, in the broker's queue; at most `start_offset`: not known."""
    time_of_start: Int64 = -1
    time_of_end: Int64 = -1

    def logical(self, physical: int) -> int:
        """Return the logical offset of an offset in the broker's queue; -1 while that is not known."""
        return -1 if self.logic_offset < 0 else self.logic_offset + max(0, physical - self.start_offset)

    def physical(self, logical: int) -> int:
        """Return the offset in the broker's queue of a logical offset; negative below the segment."""
        return logical - self.logic_offset + self.start_offset


class LogicalQueue(NamedTuple):
    """The segments of a logical queue, the oldest first."""

    segments: tuple[QueueSegment, ...]

    @property
    def leader(self) -> QueueSegment:
        """The segment that takes messages."""
        return self.segments[-1]

    def placed(self) -> tuple[QueueSegment, ...]:
        """Return the segments whose logical offsets are known."""
        return tuple(segment for segment in self.segments if segment.logic_offset >= 0)

    def at(self, logical: int) -> QueueSegment | None:
        """Return the segment of a logical offset, the first one for offsets below it; None if no offset is known."""
        placed = self.placed()
        first = placed[0] if placed else None
        return next((segment for segment in reversed(placed) if segment.logic_offset <= logical), first)

    def following(self, segment: QueueSegment) -> QueueSegment | None:
        """Return the next segment, if its offsets are known."""
        return next((known for known in self.placed() if known.gen > segment.gen), None)

    def end_of(self, segment: QueueSegment) -> int | None:
        """Return the offset in the broker's queue behind a segment; None: it is the last one, and grows."""
        has_end = segment.end_offset > segment.start_offset and segment.gen != self.segments[-1].gen
        ends: list[int] = [segment.end_offset] if has_end else []
        following = self.following(segment)
        if following is not None:
            ends.append(segment.physical(following.logic_offset))
        return min(ends, default=None)


class QueueMapping(NamedTuple):
    """The logical queues of a static topic, as one broker knows them."""

    topic: str
    total_queues: int
    bname: str
    """Name of the broker."""
    epoch: int
    queues: Mapping[int, LogicalQueue]
    """The queues of which the broker has a segment, by logical id."""
    scope: str = GLOBAL_SCOPE

    def led(self) -> dict[int, int]:
        """Return the logical queues that take messages on this broker, with the id of the broker's queue."""
        return {
            number: queue.leader.queue_id
            for number, queue in sorted(self.queues.items())
            if queue.leader.bname == self.bname
        }

    def leads(self, queue_id: int) -> bool:
        """Return whether a logical queue takes messages on this broker."""
        queue = self.queues.get(queue_id)
        return queue is not None and queue.leader.bname == self.bname

    def led_queue(self, queue_id: int) -> LogicalQueue | None:
        """Return a logical queue that takes messages on this broker, None if it does not."""
        return self.queues.get(queue_id) if self.leads(queue_id) else None

    def chosen(self, queue_id: int) -> int:
        """Return the logical queue of a message; a negative one leaves the choice to the broker."""
        return queue_id if queue_id >= 0 else next(iter(self.led()), queue_id)

    def not_led_remark(self, queue_id: int) -> str:
        """Return the remark of a request about a logical queue that takes no messages on this broker."""
        return (
            f"{self.topic}-{queue_id} does not exit in request process of current broker {self.bname}: "
            "another broker takes its messages, ask a name server for the route"
        )

    def local_segments(self) -> Iterator[tuple[int, QueueSegment]]:
        """Yield the segments on this broker, with their logical queues."""
        for number, queue in self.queues.items():
            for segment in queue.segments:
                if segment.bname == self.bname:
                    yield number, segment

    def without(self, segment: QueueSegment, queue_id: int) -> "QueueMapping":
        """Return the mapping without one segment of a logical queue."""
        kept = tuple(other for other in self.queues[queue_id].segments if other != segment)
        return self._replace(queues={**self.queues, queue_id: LogicalQueue(kept)})

    def as_info(self) -> dict[str, Any]:
        """Return the mapping in the form sent to name servers and clients: the queues that this broker leads."""
        return {
            "bname": self.bname,
            "currIdMap": {str(number): queue_id for number, queue_id in self.led().items()},
            "dirty": False,
            "epoch": self.epoch,
            "scope": self.scope,
            "topic": self.topic,
            "totalQueues": self.total_queues,
        }

    def as_detail(self) -> dict[str, Any]:
        """Return all of it, in the form of the file, of slaves, and of operators' tools."""
        hosted = {str(number): list(queue.segments) for number, queue in sorted(self.queues.items())}
        return self.as_info() | {"hostedQueues": hosted}


def segments_problem(segments: tuple[QueueSegment, ...]) -> str | None:
    """Return why these cannot be the segments of a logical queue; None if they can."""
    if not segments:
        return "it has no segment"
    if len(segments) > SEGMENTS_MAX:
        return f"it has {len(segments)} segments, at most {SEGMENTS_MAX} are allowed"
    for segment in segments:
        if segment.gen < 0 or segment.queue_id < 0 or segment.start_offset < 0 or not segment.bname:
            return "gen, queueId and startOffset of a segment are 0 or more, and its bname is not empty"
        if segment.end_offset != -1 and segment.end_offset < segment.start_offset:
            return f"endOffset {segment.end_offset} is below startOffset {segment.start_offset}"
    for older, newer in zip(segments, segments[1:], strict=False):
        if older.gen >= newer.gen:
            return f"segment {newer.gen} follows segment {older.gen}"
        if older.logic_offset < 0:
            return f"only the last segment may be without logicOffset, segment {older.gen} is"
        older_end = older.logical(max(older.end_offset, older.start_offset))
        if 0 <= newer.logic_offset <= older_end:
            return f"logicOffset {newer.logic_offset} of segment {newer.gen} is not above {older_end} of the one before"
    return None


def request_problem(mapping: QueueMapping) -> str | None:
    """Return which number of a requested mapping is outside its range; None if there is none.

    Stored mappings are not checked: one that a broker accepted must not stop a start.
    """
    if mapping.epoch > EPOCH_MAX:
        return f"epoch {mapping.epoch} is above {EPOCH_MAX}"
    problem = topic_name_error(mapping.scope)
    if problem is not None:
        return f"scope: {problem}"
    for number, queue in mapping.queues.items():
        for place, segment in enumerate(queue.segments):
            for name, value, least in (
                ("logicOffset", segment.logic_offset, -1 if place else 0),
                ("startOffset", segment.start_offset, 0),
                ("endOffset", segment.end_offset, -1),
                ("timeOfStart", segment.time_of_start, -1),
                ("timeOfEnd", segment.time_of_end, -1),
            ):
                if not least <= value <= OFFSET_MAX:
                    return (
                        f"logical queue {number}: {name} {value} of segment {segment.gen} is outside {least} to "
                        f"{OFFSET_MAX}"
                    )
    return None


def change_problem(present: LogicalQueue, after: LogicalQueue, *, is_same_epoch: bool) -> str | None:
    """Return why the segments of a logical queue may not be replaced by others; None if they may.

    A segment keeps its place. It may be removed, and more may follow; with the same epoch the last one stays the last.
    """
    by_gen = {segment.gen: segment for segment in present.segments}
    for segment in after.segments:
        before = by_gen.get(segment.gen)
        if before is None:
            continue
        if (before.bname, before.queue_id, before.start_offset) != (
            segment.bname,
            segment.queue_id,
            segment.start_offset,
        ):
            return f"segment {segment.gen} cannot move to another queue"
        if before.logic_offset >= 0 and before.logic_offset != segment.logic_offset:
            return f"logicOffset of segment {segment.gen} is {before.logic_offset} and cannot change"
    if after.leader.gen < present.leader.gen:
        return f"segment {present.leader.gen} takes messages, an older one cannot"
    if is_same_epoch and after.leader.gen != present.leader.gen:
        return "another segment takes messages, but the epoch is the same"
    return None
