"""Mutations of static topics."""

# ruff: noqa: ARG005  # a replacement has the signature of what it replaces
from contextlib import AbstractContextManager
from typing import Any

from lab.sim.world.plan import has_static_topic
from tandemq.broker.features.static_topics import processor, pull_views
from tandemq.broker.features.static_topics.update import StaticTopicProcessor
from tandemq.broker.kernel.feature import Request
from tandemq.broker.kernel.pulls import PullAnswer
from tandemq.broker.state import queue_mappings as mappings
from tandemq.model.codes import RequestCode as Code
from tandemq.model.queue_mapping import LogicalQueue, QueueMapping, QueueSegment
from tests.mutations.patch import Mutation, patched

PLACES, MAPPINGS = frozenset({"I23"}), frozenset({"I24"})


def older_mapping_accepted() -> AbstractContextManager[Any]:
    """A mapping replaces a newer one."""
    return patched(mappings.QueueMappings, "problem", lambda self, wanted, *, is_forced: None)


def moved_queue_not_closed() -> AbstractContextManager[Any]:
    """A broker confirms that a queue moved away, and takes its messages as before."""
    put = mappings.QueueMappings.put

    def stay(self: mappings.QueueMappings, mapping: QueueMapping, wall_ms: int) -> None:
        present = self.table.get(mapping.topic)
        kept = present.queues if present is not None else {}
        queues = {
            number: kept[number]
            if number in kept and kept[number].leader.bname == mapping.bname != queue.leader.bname
            else queue
            for number, queue in mapping.queues.items()
        }
        put(self, mapping._replace(queues=queues), wall_ms)

    return patched(mappings.QueueMappings, "put", stay)


def mapping_not_saved() -> AbstractContextManager[Any]:
    """A change of a mapping is confirmed, and not saved."""

    def save(self: mappings.QueueMappings) -> None:
        if not self.table or max(mapping.epoch for mapping in self.table.values()) % 2:
            self._saver.later(mappings.FILE, self._file)

    return patched(mappings.QueueMappings, "_save", save)


def mapping_not_copied() -> AbstractContextManager[Any]:
    """Slaves do not copy the mapping."""
    return patched(mappings.QueueMappings, "follow", lambda self, tables: False)


def start_not_added() -> AbstractContextManager[Any]:
    """Logical offsets are those of the broker's queue, without the start of the segment."""

    def logical(self: QueueSegment, physical: int) -> int:
        return -1 if self.logic_offset < 0 else max(0, physical - self.start_offset)

    return patched(QueueSegment, "logical", logical)


def older_segments_skipped() -> AbstractContextManager[Any]:
    """A consumer in an older segment is sent to the next one before it has read it to its end."""
    shown = pull_views.SegmentView.shown

    def skip(self: pull_views.SegmentView, answer: PullAnswer, written_end: int) -> PullAnswer:
        found = shown(self, answer, written_end)
        if not self.is_leader and self.queue.following(self.segment) is not None:
            return self.next_segment()
        return found

    return patched(pull_views.SegmentView, "shown", skip)


def older_offsets_not_found() -> AbstractContextManager[Any]:
    """The offset of a group is looked for in the leading segment only."""
    query = processor.StaticTopics._query_from

    def newest(self: processor.StaticTopics, request: Any, left: list[QueueSegment], *rest: Any) -> None:
        query(self, request, left if left == list(request.queue.segments) else [], *rest)

    return patched(processor.StaticTopics, "_query_from", newest)


def commits_in_the_leading_segment() -> AbstractContextManager[Any]:
    """An offset is committed beside the leading segment, as if it were one of its broker's queue."""

    def placed(self: processor.StaticTopics, request: Any, logical: int) -> QueueSegment:
        leader: QueueSegment = request.queue.leader
        return QueueSegment(leader.gen, leader.queue_id, leader.bname, 0)

    return patched(processor.StaticTopics, "_placed", placed)


def late_messages_taken() -> AbstractContextManager[Any]:
    """Messages that are due later are stored in logical queues."""
    return patched(processor, "_check_properties", lambda properties: None)


def unread_end_is_unknown() -> AbstractContextManager[Any]:
    """An older segment has no end: its queue's messages are delivered even at offsets of the next one."""
    return patched(LogicalQueue, "following", lambda self, segment: None)


def confirmed_without_slaves() -> AbstractContextManager[Any]:
    """An elected master confirms a mapping that the next master may not have."""
    requests = StaticTopicProcessor.requests

    def without_copies(self: StaticTopicProcessor) -> dict[Code, Request]:
        return {code: request._replace(is_copied=False) for code, request in requests(self).items()}

    return patched(StaticTopicProcessor, "requests", without_copies)


STATIC_TOPIC_SEEDS = tuple(seed for seed in range(1, 300) if has_static_topic(seed))
"""Seeds with a static topic."""
STATIC_TOPIC_MUTATIONS: dict[str, Mutation] = {
    "older-mapping-accepted": Mutation(older_mapping_accepted, MAPPINGS),
    "moved-queue-not-closed": Mutation(moved_queue_not_closed, MAPPINGS | PLACES),
    "mapping-not-saved": Mutation(mapping_not_saved, MAPPINGS),
    "mapping-not-copied": Mutation(mapping_not_copied, MAPPINGS),
    "start-not-added": Mutation(start_not_added, PLACES),
    "older-segments-skipped": Mutation(older_segments_skipped, PLACES),
    "older-offsets-not-found": Mutation(older_offsets_not_found, PLACES),
    "commits-in-the-leading-segment": Mutation(commits_in_the_leading_segment, PLACES | {"I7"}),
    "late-messages-taken": Mutation(late_messages_taken, frozenset({"I17", "I2", "I12"})),
    "segments-have-no-end": Mutation(unread_end_is_unknown, PLACES),
}
"""Mutations with fixed roles by name."""
STATIC_TOPIC_GROUP_MUTATIONS: dict[str, Mutation] = {
    "mapping-confirmed-without-slaves": Mutation(confirmed_without_slaves, MAPPINGS),
}
"""Mutations of groups with a registry by name."""
