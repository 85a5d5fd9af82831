"""Answers to pulls of static topics, in the offsets of the logical queue.

A consumer that has read an older segment to its end continues with the next one. The end of an older segment is that of
its broker's queue, with messages that are not replicated yet and so may not be shown: they still belong to it.

Source: RocketMQ PullMessageProcessor.rewriteResponseForStaticTopic.
"""

from typing import NamedTuple

from tandemq.broker.kernel.pulls import PullAnswer
from tandemq.model.codes import ResponseCode
from tandemq.model.queue_mapping import LogicalQueue, QueueSegment

_FOUND, _AGAIN, _MOVED = ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED
_ENDS = frozenset({_AGAIN, _MOVED, ResponseCode.PULL_NOT_FOUND})
"""Codes of answers that may be due to the end of a segment."""


class PhysicalView(NamedTuple):
    """For a broker that forwards a pull: the queue's own offsets, and its end whether it may be shown or not."""

    def shown(self, answer: PullAnswer, written_end: int) -> PullAnswer:
        """See `AnswerView`."""
        return answer._replace(end=max(answer.end, written_end))


class SegmentView(NamedTuple):
    """For a consumer: one segment as a part of its logical queue."""

    queue: LogicalQueue
    segment: QueueSegment

    @property
    def is_leader(self) -> bool:
        """Whether the segment takes messages, so that pulls may wait for some."""
        return self.segment is self.queue.leader

    def shown(self, answer: PullAnswer, written_end: int) -> PullAnswer:
        """See `AnswerView`."""
        queue, segment = self.queue, self.segment
        end = answer.end if self.is_leader else max(answer.end, written_end)
        segment_end = queue.end_of(segment)
        if segment_end is not None:
            end = min(end, segment_end)
        code, next_offset = answer.code, answer.next_offset
        if code in _ENDS and next_offset >= end and not self.is_leader and queue.following(segment) is not None:
            return self.next_segment()
        if segment_end is not None:
            next_offset = min(next_offset, segment_end)
        if code == _MOVED and not self.is_leader and segment is not queue.placed()[0]:
            code = _AGAIN
        return PullAnswer(
            code,
            segment.logical(next_offset),
            segment.logical(answer.min_offset),
            max(segment.logical(end), queue.placed()[-1].logic_offset),
            segment.logic_offset - segment.start_offset if code == _FOUND else None,
        )

    def next_segment(self) -> PullAnswer:
        """Return the answer that sends the consumer to the next segment."""
        following = self.queue.following(self.segment)
        assert following is not None, "the caller knows that there is one"
        first = self.segment.logic_offset
        return PullAnswer(_AGAIN, following.logic_offset, first, self.queue.placed()[-1].logic_offset)
