"""Removal of what static topics no longer need: segments without messages, and queues that moved on twice.

    own queue, first segment empty   its messages were deleted by age: the segment is removed
    queue led by another broker      that broker has moved it on to a third one: our copy of its segments is removed

Only the segments are removed, never messages. Every `PERIOD_MS`, and soon after a change of a mapping; on the master.

Source: RocketMQ TopicQueueMappingCleanService.
"""

import logging
from functools import partial
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.features.static_topics.forwarding import Forwarding
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.queue_mappings import parse_mapping
from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import key_text, loads
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.queue_mapping import QueueMapping, QueueSegment

log = logging.getLogger(__name__)
PERIOD_MS = 300_000
SOON_MS = 1_000
"""Time between a change and the removal that follows it, in which the other brokers get their part."""


class StaticTopicCleaning:
    """Examines the mappings of this broker."""

    def __init__(self, kernel: Kernel, forwarding: Forwarding) -> None:
        """Examine the mappings from time to time."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._forwarding = forwarding
        self._schedule = kernel.schedule
        self._turn = kernel.turn
        self._is_scheduled = False
        kernel.every(PERIOD_MS, self._clean)

    def soon(self, now: Now) -> None:
        """Examine the mappings shortly."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule.at(now.mono_ms + SOON_MS, self._clean)

    def _clean(self, now: Now) -> None:
        self._is_scheduled = False
        if not self._turn.serving.is_master:
            return
        for mapping in list(self._topics.mappings.table.values()):
            self._remove_empty(mapping, now)
            if len(mapping.led()) < len(mapping.queues):
                self._forwarding.routes.route(mapping.topic, partial(self._routed, mapping), now)

    # Empty segments.

    def _remove_empty(self, mapping: QueueMapping, now: Now) -> None:
        """Ask the brokers of the oldest segments whether these still have messages."""
        oldest: dict[str, dict[int, QueueSegment]] = {}
        for queue_id in mapping.led():
            segments = mapping.queues[queue_id].segments
            if len(mapping.queues[queue_id].placed()) > 1:
                oldest.setdefault(segments[0].bname, {})[queue_id] = segments[0]
        for broker, segments_of in oldest.items():
            if broker == mapping.bname:
                bounds = {segment.queue_id: self._bounds(mapping.topic, segment) for segment in segments_of.values()}
                self._drop(mapping, segments_of, bounds, now)
            else:
                request = Command(Code.GET_TOPIC_STATS_INFO, fields=_fields(mapping.topic, broker, is_logical=False))
                on_answer = partial(self._counted, mapping, segments_of)
                self._forwarding.call(mapping.topic, broker, request, on_answer, now)

    def _bounds(self, topic: str, segment: QueueSegment) -> tuple[int, int]:
        queue = self._store.queues.get((topic, segment.queue_id))
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)

    def _counted(
        self, mapping: QueueMapping, segments: dict[int, QueueSegment], answer: Command | None, now: Now
    ) -> None:
        bounds = _bounds_in(answer, mapping.topic, segments)
        self._drop(mapping, segments, bounds, now)

    def _drop(
        self,
        mapping: QueueMapping,
        segments: dict[int, QueueSegment],
        bounds: dict[int, tuple[int, int]],
        now: Now,
    ) -> None:
        """Remove the segments whose queues have no messages, unless the mapping has changed."""
        if self._topics.mappings.table.get(mapping.topic) != mapping:
            return
        after = mapping
        for queue_id, segment in segments.items():
            low, high = bounds.get(segment.queue_id, (0, 1))
            if low == high:
                after = after.without(segment, queue_id)
                log.info("static topics: topic=%s queue=%d lost its empty segment %s", mapping.topic, queue_id, segment)
        self._replace(mapping, after, now)

    def _replace(self, mapping: QueueMapping, after: QueueMapping, now: Now) -> None:
        topic = self._topics.get(mapping.topic)
        if after != mapping and topic is not None and self._turn.serving.is_master:
            self._topics.put_static(topic.config, after, now.wall_ms)

    # Queues that moved on.

    def _routed(self, mapping: QueueMapping, route: dict[str, Any] | None, now: Now) -> None:
        leaders = leaders_in(route, mapping)
        moved: dict[str, list[int]] = {}
        for queue_id, queue in mapping.queues.items():
            leader = leaders.get(queue_id)
            if leader is not None and leader not in (queue.leader.bname, mapping.bname):
                moved.setdefault(leader, []).append(queue_id)
        for broker, queue_ids in moved.items():
            request = Command(Code.GET_TOPIC_CONFIG, fields=_fields(mapping.topic, broker, is_logical=True))
            self._forwarding.call(mapping.topic, broker, request, partial(self._confirmed, mapping, queue_ids), now)

    def _confirmed(self, mapping: QueueMapping, queue_ids: list[int], answer: Command | None, now: Now) -> None:
        """Remove the queues that the broker says it leads, unless the mapping has changed."""
        theirs = _mapping_in(answer)
        if theirs is None or self._topics.mappings.table.get(mapping.topic) != mapping:
            return
        if (theirs.topic, theirs.epoch, theirs.total_queues) != (mapping.topic, mapping.epoch, mapping.total_queues):
            return
        gone = {queue_id for queue_id in queue_ids if theirs.leads(queue_id)}
        kept = {queue_id: queue for queue_id, queue in mapping.queues.items() if queue_id not in gone}
        if gone:
            log.info("static topics: topic=%s queues=%s have moved on to %s", mapping.topic, sorted(gone), theirs.bname)
        self._replace(mapping, mapping._replace(queues=kept), now)


def _fields(topic: str, broker: str, *, is_logical: bool) -> dict[str, str]:
    return {"topic": topic, "bname": broker, "lo": "true" if is_logical else "false"}


def _bounds_in(answer: Command | None, topic: str, segments: dict[int, QueueSegment]) -> dict[int, tuple[int, int]]:
    """Return the first and last offsets of queues in a broker's counts; those that it lacks are left out."""
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return {}
    found: dict[int, tuple[int, int]] = {}
    try:
        table = loads(answer.body, is_trusted=True)["offsetTable"]
        for segment in segments.values():
            key = key_text({"brokerName": segment.bname, "queueId": segment.queue_id, "topic": topic})
            if key in table:
                entry = table[key]
                found[segment.queue_id] = (integer(entry["minOffset"], "minOffset"), integer(entry["maxOffset"], "max"))
    except (ProtocolError, KeyError, TypeError):
        return {}
    return found


def _mapping_in(answer: Command | None) -> QueueMapping | None:
    if answer is None or answer.code != ResponseCode.SUCCESS:
        return None
    try:
        return parse_mapping(loads(answer.body, is_trusted=True)["mappingDetail"], "mapping")
    except (ProtocolError, KeyError, TypeError):
        return None


def leaders_in(route: dict[str, Any] | None, mapping: QueueMapping) -> dict[int, str]:
    """Return the broker that takes the messages of each logical queue, by the route of its topic and our epoch."""
    leaders: dict[int, str] = {}
    infos = (route or {}).get("topicQueueMappingByBroker")
    for broker, info in infos.items() if isinstance(infos, dict) else ():
        try:
            if integer(info["epoch"], "epoch") == mapping.epoch:
                leaders |= {integer(number, "currIdMap"): broker for number in info["currIdMap"]}
        except (ProtocolError, KeyError, TypeError):
            continue
    return leaders
