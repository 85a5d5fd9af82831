"""Requests of operators to set the offsets of a group: by time, to an offset, or to those of another group.

The new offset is committed at once, and is pending until the consumer of the queue has applied it (`PendingResets`).
Online members are notified, as by a 4.9 broker, but at most once per NOTICE_GAP_MS: Java, Go and C++ clients stop for
10 seconds per notice, one after the other, so that eight queues reset one by one would take 80 seconds. A member that
was notified within that time gets its held pulls answered with OFFSET_MOVED instead, as by a 5.x broker; it applies
these at once. For a whole topic of an offline group the response is CONSUMER_NOT_ONLINE; the tools then set the offsets
one by one.
Source: docs/reference/requests.md, "Resetting offsets"; RocketMQ Broker2Client, ConsumerOffsetManager.
"""

import logging

from tandemq.boundary import Now
from tandemq.broker.kernel.client_requests import notify
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.serving import Right
from tandemq.broker.state.clients import ConsumerGroup
from tandemq.broker.state.consumer_offsets import OFFSET_BYTES_MAX
from tandemq.codec.remoting.admin_requests import CloneOffsetFields, CorrectionFields, ResetOffsetFields
from tandemq.codec.remoting.fastjson import dumps, dumps_java, queue_key
from tandemq.codec.remoting.requests import PullFields, read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.text import brief
from tandemq.model.topic import group_name_error

log = logging.getLogger(__name__)
JAVA_LONG_MAX = (1 << 63) - 1
CPP = "CPP"
NOTICE_GAP_MS = 10_000


class ResetOffsetProcessor(Feature):
    """Handle requests of operators to set the offsets of groups."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._clients = kernel.clients
        self._pulls = kernel.features.find(Pulls)
        self._current = kernel.current
        self._turn = kernel.turn
        self._noticed: dict[tuple[int, str], int] = {}
        """Monotonic time of the last notice to a member (connection, group), if it is within NOTICE_GAP_MS."""

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.INVOKE_BROKER_TO_RESET_OFFSET: Request(self._on_reset, Right.COMMIT),
            Code.QUERY_CORRECTION_OFFSET: Request(self._on_correction),
            Code.CLONE_GROUP_OFFSET: Request(self._on_clone, Right.COMMIT),
        }

    def _on_reset(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ResetOffsetFields, command.fields)
        if not self._turn.serving.is_master:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="Can not reset offset in slave broker")
        topic = self._topics.get(fields.topic)
        if topic is None:
            return command.answer(ResponseCode.TOPIC_NOT_EXIST, remark=f"Topic {fields.topic} does not exist")
        if fields.topic in self._topics.mappings.table:
            remark = f"{fields.topic} is static: an offset is set by a commit to its logical queue, not on each broker"
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=remark)
        queues = max(topic.config.read_queue_nums, topic.config.write_queue_nums)
        if fields.queue_id >= queues:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"{fields.topic} has {queues} queues")
        group = self._clients.consumers.get(fields.group)
        if fields.queue_id >= 0:
            targets, problem = self._one_target(fields)
        elif group is None:
            remark = f"Consumer not online, so can not reset offset, Group: {fields.group} Topic: {fields.topic}"
            return command.answer(ResponseCode.CONSUMER_NOT_ONLINE, remark=f"{remark} Timestamp: {fields.timestamp}")
        else:
            targets, problem = self._all_targets(fields, topic.config.write_queue_nums), None
        if problem is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
        for queue_id, offset in targets.items():
            self._offsets.reset(fields.topic, fields.group, queue_id, offset)
            self._offsets.pending.add(fields.topic, fields.group, queue_id, offset, now.mono_ms)
        if group is not None:
            others = self._notify_members(group, fields, targets, now, is_cpp=command.language == CPP)
            self._move_held_pulls(others, fields, targets, now)
        log.warning(
            "reset: group=%s topic=%s by %s: %s", brief(fields.group), fields.topic, link.peer, brief(targets, 1_000)
        )
        return command.answer(ResponseCode.SUCCESS, body=self._table(fields.topic, targets))

    def _all_targets(self, fields: ResetOffsetFields, queues: int) -> dict[int, int]:
        """Return the new offset of each queue of a topic, by the requested time.

        Without `isForce` a committed offset is only set back. Where none is committed yet, the offset of the time is
        taken, between the beginning and the end of the queue.
        """
        targets: dict[int, int] = {}
        for queue_id in range(queues):
            wanted = self._offset_at(fields.topic, queue_id, fields.timestamp)
            present = self._offsets.get(fields.topic, fields.group, queue_id)
            targets[queue_id] = wanted if fields.is_force or present is None else min(wanted, present)
        return targets

    def _one_target(self, fields: ResetOffsetFields) -> tuple[dict[int, int], str | None]:
        """Return the requested offset, or the one at the requested time, by queue id; or why that is not possible."""
        if self._groups.table.get(fields.group) is None:
            return {}, f"Group {fields.group} does not exist"
        wanted = fields.offset
        if wanted is None or wanted == -1:
            return {fields.queue_id: self._offset_at(fields.topic, fields.queue_id, fields.timestamp)}, None
        queue = self._store.queues.get((fields.topic, fields.queue_id))
        low, high = (queue.min_offset, queue.max_offset) if queue is not None else (0, 0)
        if not low <= wanted <= high:
            return {}, f"Target offset {wanted} not in consume queue range [{low}-{high}]"
        return {fields.queue_id: wanted}, None

    def _offset_at(self, topic: str, queue_id: int, wall_ms: int) -> int:
        queue = self._store.queues.get((topic, queue_id))
        if queue is None:
            return 0
        return queue.max_offset if wall_ms < 0 else self._store.offset_by_time(queue, wall_ms)

    def _notify_members(
        self, group: ConsumerGroup, fields: ResetOffsetFields, targets: dict[int, int], now: Now, *, is_cpp: bool
    ) -> set[int]:
        """Notify the members without a notice within NOTICE_GAP_MS; return the connections of the others."""
        since_ms = now.mono_ms - NOTICE_GAP_MS
        self._noticed = {member: at_ms for member, at_ms in self._noticed.items() if at_ms > since_ms}
        header = {
            "topic": fields.topic,
            "group": fields.group,
            "timestamp": str(fields.timestamp),
            "isForce": str(fields.is_force).lower(),
        }
        others: set[int] = set()
        for link, member in group.members.items():
            if (link, group.name) in self._noticed:
                others.add(link)
                continue
            self._noticed[link, group.name] = now.mono_ms
            takes_list = is_cpp or member.language == CPP
            body = self._list(fields.topic, targets) if takes_list else self._table(fields.topic, targets)
            notify(link, Code.RESET_CONSUMER_CLIENT_OFFSET, header, self._turn.out, body)
        return others

    def _move_held_pulls(self, links: set[int], fields: ResetOffsetFields, targets: dict[int, int], now: Now) -> None:
        """Answer the held pulls of a group on these connections with the new offsets."""

        def offset_for(held: PullFields) -> int | None:
            place = (held.topic, held.consumer_group, held.queue_id)
            if place[:2] != (fields.topic, fields.group) or held.queue_id not in targets:
                return None
            return self._offsets.pending.note_pull(*place, held.queue_offset, now.mono_ms)

        for link in links:
            self._pulls.move_held(link, offset_for, self._turn.out)

    def _table(self, topic: str, targets: dict[int, int]) -> bytes:
        name = self._current.config.broker_name
        table = {queue_key(topic, name, queue_id): offset for queue_id, offset in targets.items()}
        return dumps_java({"offsetTable": table})

    def _list(self, topic: str, targets: dict[int, int]) -> bytes:
        name = self._current.config.broker_name
        return dumps(
            {
                "offsetTable": [
                    {"brokerName": name, "offset": offset, "queueId": queue_id, "topic": topic}
                    for queue_id, offset in targets.items()
                ]
            }
        )

    # Offsets among groups.

    def _on_correction(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Return per queue the lowest offset of all groups; the largest number if the compared group is below it."""
        fields = read_fields(CorrectionFields, command.fields)
        offsets = self._offsets
        excluded = {name.strip() for name in fields.filter_groups.split(",")}
        lowest: dict[int, int] = {}
        for group in offsets.groups_of(fields.topic):
            if group in excluded:
                continue
            for queue_id, offset in offsets.of_group(fields.topic, group).items():
                queue = self._store.queues.get((fields.topic, queue_id))
                if queue is None or offset >= queue.min_offset:
                    lowest[queue_id] = min(offset, lowest.get(queue_id, offset))
        for queue_id, offset in offsets.of_group(fields.topic, fields.compare_group).items():
            if lowest.get(queue_id, -1) > offset:
                lowest[queue_id] = JAVA_LONG_MAX
        return command.answer(ResponseCode.SUCCESS, body=dumps_java({"correctionOffsets": lowest}))

    def _on_clone(self, link: Link, command: Command, _now: Now) -> Command | None:
        """Copy the offsets of one group to another."""
        fields = read_fields(CloneOffsetFields, command.fields)
        problem = group_name_error(fields.dest_group)
        if problem is None and not self._turn.serving.is_master:
            problem = "Can not clone offsets in slave broker"
        if problem is None and not self._groups.may_be(fields.dest_group):
            problem = f"subscription group not exist, {fields.dest_group[:64]}"
        if problem is not None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=problem)
        online = self._clients.consumers.get(fields.src_group)
        wanted = online.subscriptions if online is not None and not fields.offline else {}
        for topic in [fields.topic] if fields.topic.strip() else self._offsets.topics_of(fields.src_group):
            if self._topics.get(topic) is None or (wanted and topic not in wanted):
                continue
            for queue_id, offset in self._offsets.of_group(topic, fields.src_group).items():
                if not self._offsets.has_room(topic, fields.dest_group, queue_id):
                    return command.answer(
                        ResponseCode.SYSTEM_ERROR,
                        remark=f"the offsets of all groups take {OFFSET_BYTES_MAX} bytes: the rest is not cloned",
                    )
                self._offsets.reset(topic, fields.dest_group, queue_id, offset)
        log.warning(
            "reset: group=%s got the offsets of %s by %s", fields.dest_group, brief(fields.src_group), link.peer
        )
        return command.answer(ResponseCode.SUCCESS)
