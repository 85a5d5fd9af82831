"""Requests of consumers other than pulls: heartbeats, membership, offsets, queue locks.

Source: docs/reference/requests.md, "offsets", "group membership", "orderly consumption".
"""

import json
from typing import Any

import msgspec

from tandemq.boundary import Now, Turn
from tandemq.broker.features.groups.membership import MembershipNotifier, create_retry_topic
from tandemq.broker.filter.selector import unsupported_kind
from tandemq.broker.filter.tokens import FilterInvalid
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.pulls import Pulls
from tandemq.broker.kernel.serving import Right, Serving
from tandemq.broker.state.clients import CLIENT_ID_CHARACTERS_MAX, Member, QueueLocks
from tandemq.broker.state.consumer_offsets import OFFSET_BYTES_MAX
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.header import LANGUAGES, UNKNOWN_LANGUAGE
from tandemq.codec.remoting.requests import (
    CommitOffsetFields,
    GroupFields,
    QueryOffsetFields,
    QueueBoundsBody,
    QueueFields,
    SearchOffsetFields,
    UnregisterClientFields,
    read_fields,
)
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import SQL_EXPRESSION, TAG_EXPRESSION, HeartbeatData
from tandemq.model.java_types import Int32
from tandemq.model.queue_mapping import LOGICAL_BROKER_PREFIX
from tandemq.model.topic import group_name_error
from tandemq.storage.consume_queue import ConsumeQueue

LISTS_BYTES_MAX = 1 << 20
"""Size of a list of queues in a request."""
LOCKS_EXPIRE_MS = 10_000
BOUNDS_MAX = 2_000
"""Queues whose bounds one response has."""
BOUNDS_BODY_BYTES_MAX = 64 << 10
"""Size of a request for bounds."""
OWN_LANGUAGE = "PYTHON"
"""Language in the heartbeats of TandemQ's client."""


class ConsumerManageProcessor(Feature):
    """Handle the requests of consumers other than pulls."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without locks."""
        self._kernel = kernel
        self._store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._offsets = kernel.offsets
        self._clients = kernel.clients
        self._filters = kernel.filters
        self._locks = QueueLocks(kernel.current.config.lock_live_ms)
        kernel.every(LOCKS_EXPIRE_MS, lambda now: self._locks.expire(now.mono_ms))
        self._pulls = kernel.features.find(Pulls)
        self._membership = MembershipNotifier(kernel)
        self._memory_bytes = kernel.machine.memory_bytes
        self._current = kernel.current
        self._turn = kernel.turn

    def link_closed(self, link: int, _turn: Turn, now: Now) -> None:
        """See `Feature`: the other members of its groups are notified."""
        self._membership.notify(self._clients.link_closed(link), now)

    def on_serving_change(self, before: Serving, serving: Serving, turn: Turn, _now: Now) -> None:
        """Close the connections of consumers, after their answers, when this slave stops to serve reads.

        TandemQ's client changes the broker by itself.
        """
        if before.commit is not None or serving.commit is None or serving.is_master or serving.consumers is None:
            return
        links = {
            member.link
            for group in self._clients.consumers.values()
            for member in group.members.values()
            if member.language != OWN_LANGUAGE
        }
        reason = serving.commit
        turn.closes += [(link, reason) for link in sorted(links)]

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.HEART_BEAT: Request(self._on_heartbeat),
            Code.UNREGISTER_CLIENT: Request(self._on_unregister),
            Code.GET_CONSUMER_LIST_BY_GROUP: Request(self._on_members),
            Code.CHECK_CLIENT_CONFIG: Request(self._on_check_config, body_bytes_max=256 << 10),
            Code.QUERY_CONSUMER_OFFSET: Request(self._on_query_offset, Right.READ, is_copied=True),
            Code.UPDATE_CONSUMER_OFFSET: Request(self._on_commit_offset, Right.COMMIT, is_copied=True),
            Code.GET_MAX_OFFSET: Request(self._on_max_offset, Right.READ),
            Code.GET_MIN_OFFSET: Request(self._on_min_offset, Right.READ),
            Code.TANDEM_QUEUE_BOUNDS: Request(self._on_queue_bounds, body_bytes_max=LISTS_BYTES_MAX),
            Code.SEARCH_OFFSET_BY_TIMESTAMP: Request(self._on_search_offset, Right.READ, only_reads=True),
            Code.GET_EARLIEST_MSG_STORETIME: Request(self._on_earliest, Right.READ, only_reads=True),
            Code.LOCK_BATCH_MQ: Request(self._on_lock, Right.READ, body_bytes_max=LISTS_BYTES_MAX),
            Code.UNLOCK_BATCH_MQ: Request(self._on_unlock, body_bytes_max=LISTS_BYTES_MAX),
        }

    # Membership.

    def _on_heartbeat(self, link: Link, command: Command, now: Now) -> Command | None:
        beat = decode_body(command.body, HeartbeatData, "heartbeat")
        language = command.language if command.language in LANGUAGES else UNKNOWN_LANGUAGE
        member = Member(link.number, beat.client_id, link.peer, language, command.version, now.mono_ms)
        self._groups.check_room([consumer.group_name for consumer in beat.consumers])
        changed = self._clients.heartbeat(beat, member)
        for consumer in beat.consumers:
            subscriptions = self._clients.consumers[consumer.group_name].subscriptions
            self._filters.follow(consumer.group_name, subscriptions, now.wall_ms)
            create_retry_topic(self._kernel, consumer.group_name, now)
        self._membership.notify(changed, now)
        # The consumer stays registered: it may be served here after a takeover, before its next heartbeat.
        refusal = self._turn.serving.consumers if beat.consumers else None
        if refusal is not None:
            return command.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        return command.answer(ResponseCode.SUCCESS)

    def _on_unregister(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(UnregisterClientFields, command.fields)
        changed = self._clients.leave(link.number, fields.clientID, fields.producerGroup, fields.consumerGroup)
        self._membership.notify(changed, now)
        return command.answer(ResponseCode.SUCCESS)

    def _on_members(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupFields, command.fields).consumer_group
        group = self._clients.consumers.get(name)
        if group is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return command.answer(ResponseCode.SUCCESS, body=dumps({"consumerIdList": group.client_ids()}))

    def _on_check_config(self, _link: Link, command: Command, _now: Now) -> Command | None:
        body = loads(command.body)
        subscription = body.get("subscriptionData") if isinstance(body, dict) else None
        if not isinstance(subscription, dict) or subscription.get("expressionType") in (None, TAG_EXPRESSION):
            return command.answer(ResponseCode.SUCCESS)
        kind = subscription["expressionType"]
        if not self._current.config.property_filter_enable:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=unsupported_kind(kind))
        try:
            if kind != SQL_EXPRESSION:
                raise FilterInvalid(f"there is no expression type {str(kind)[:32]!r}")
            self._filters.expressions.compile(str(subscription.get("subString") or ""))
        except FilterInvalid as error:
            return command.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return command.answer(ResponseCode.SUCCESS)

    # Offsets.

    def _on_query_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueryOffsetFields, command.fields)
        offset = self._offsets.get(fields.topic, fields.consumer_group, fields.queue_id)
        if (
            offset is None
            and fields.set_zero_if_not_found != "false"
            and self._reads_from_start(fields.topic, fields.queue_id)
        ):
            offset = 0
        if offset is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND, remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def _reads_from_start(self, topic: str, queue_id: int) -> bool:
        """Return whether a new group should read a queue from its start: nothing was deleted, and it is in memory."""
        queue = self._store.queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return True
        if queue.min_offset > 0:
            return False
        far = self._memory_bytes * self._current.config.memory_ratio_max // 100
        place = queue.plausible_offset(0)  # None if the entry is damaged
        return self._store.log.written_end - (place or 0) <= far

    def _on_commit_offset(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(CommitOffsetFields, command.fields)
        offsets = self._offsets
        if not self._is_queue(fields.topic, fields.queue_id):
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"no queue {fields.queue_id} of topic[{fields.topic[:64]}]"
            )
        if fields.commit_offset < 0:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"commitOffset {fields.commit_offset} is negative")
        if not self._groups.may_be(fields.consumer_group):
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {fields.consumer_group[:64]}",
            )
        if not offsets.has_room(fields.topic, fields.consumer_group, fields.queue_id):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"the offsets of all groups take {OFFSET_BYTES_MAX} bytes already"
            )
        group = self._clients.consumers.get(fields.consumer_group)
        place = (fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
        if group is None or link.number not in group.members:  # not from a consumer: an operator's tool
            offsets.reset(*place)
        elif not offsets.commit_of_member(*place, now.mono_ms):
            return command.answer(ResponseCode.SUCCESS, remark="Offset has been previously reset")
        return command.answer(ResponseCode.SUCCESS)

    def _is_queue(self, topic: str, queue_id: int) -> bool:
        """Return whether a topic has a queue with this id, with or without messages."""
        known = self._topics.get(topic)
        queues = max(known.config.read_queue_nums, known.config.write_queue_nums) if known is not None else 0
        return 0 <= queue_id < queues or (topic, queue_id) in self._store.queues

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._store.queues.get((topic, queue_id))

    def _on_max_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        return command.answer(
            ResponseCode.SUCCESS, fields={"offset": str(self._pulls.visible_end(queue) if queue else 0)}
        )

    def _on_queue_bounds(self, _link: Link, command: Command, _now: Now) -> Command | None:
        """Return the bounds of all queues of topics, as many as one turn may look at; only starts on a member that
        serves no consumers."""
        if len(command.body) > BOUNDS_BODY_BYTES_MAX:
            raise ProtocolError(f"a request for bounds has {len(command.body)} bytes, at most {BOUNDS_BODY_BYTES_MAX}")
        is_read = self._turn.serving.refusal(Right.READ) is None
        static = self._topics.mappings.table
        starts: list[list[int] | None] = []
        ends: list[list[int] | None] = []
        count = 0
        for topic in decode_body(command.body, QueueBoundsBody, "topics").topics:
            known = self._topics.get(topic)
            queues = 0 if known is None else max(known.config.read_queue_nums, known.config.write_queue_nums)
            if queues > BOUNDS_MAX:
                queues = 0
            count += queues
            if count > BOUNDS_MAX:
                break
            is_here = queues > 0 and topic not in static
            starts.append([self._start(topic, queue_id) for queue_id in range(queues)] if is_here else None)
            if is_read:
                ends.append([self._end(topic, queue_id) for queue_id in range(queues)] if is_here else None)
        body = {"starts": starts, "ends": ends if is_read else None}
        return command.answer(ResponseCode.SUCCESS, body=json.dumps(body).encode())

    def _start(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        return 0 if queue is None else queue.min_offset

    def _end(self, topic: str, queue_id: int) -> int:
        queue = self._queue(topic, queue_id)
        if queue is None:
            return 0
        is_shown = queue.last_log_end <= self._turn.serving.visible_end
        return queue.max_offset if is_shown else self._pulls.visible_end(queue)

    def _on_min_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(queue.min_offset if queue else 0)})

    def _on_search_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(SearchOffsetFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        upper = fields.boundary_type.lower() == "upper"
        offset = 0
        if queue is not None:
            offset = self._store.offset_by_time(queue, fields.timestamp, upper=upper)
            offset = min(offset, self._pulls.visible_end(queue))
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def _on_earliest(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        time_ms = -1
        if queue is not None and queue.min_offset < queue.max_offset:
            time_ms = self._store.stored_ms(queue, queue.min_offset)
        return command.answer(ResponseCode.SUCCESS, fields={"timestamp": str(time_ms)})

    # Locks.

    def _on_lock(self, _link: Link, command: Command, now: Now) -> Command | None:
        group, client, queues = _lock_body(command)
        locks = self._locks
        held = [
            queue
            for queue in queues
            if self._may_lock(queue) and locks.lock(group, queue["topic"], queue["queueId"], client, now.mono_ms)
        ]
        return command.answer(ResponseCode.SUCCESS, body=dumps({"lockOKMQSet": held}))

    def _may_lock(self, queue: dict[str, Any]) -> bool:
        """Return whether this is a queue of this broker, or a logical queue that takes its messages here."""
        mapping = self._topics.mappings.table.get(queue["topic"])
        if mapping is not None and queue["brokerName"].startswith(LOGICAL_BROKER_PREFIX):
            return mapping.leads(queue["queueId"])
        return self._is_queue(queue["topic"], queue["queueId"])

    def _on_unlock(self, _link: Link, command: Command, _now: Now) -> Command | None:
        group, client, queues = _lock_body(command)
        for queue in queues:
            self._locks.unlock(group, queue["topic"], queue["queueId"], client)
        return command.answer(ResponseCode.SUCCESS)


class _Queue(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: Int32
    broker_name: str = ""


class LockBody(msgspec.Struct, rename="camel"):
    """Body of LOCK_BATCH_MQ and UNLOCK_BATCH_MQ: queues that a client locks for its group, or unlocks."""

    consumer_group: str
    client_id: str
    mq_set: list[_Queue] = []


def _lock_body(command: Command) -> tuple[str, str, list[dict[str, Any]]]:
    """Return group, client id and queues; each queue is an object with `topic`, `queueId` and `brokerName`."""
    body = decode_body(command.body, LockBody, "lock request")
    if (reason := group_name_error(body.consumer_group)) is not None:
        raise ProtocolError(f"lock request: {reason}")
    if len(body.client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise ProtocolError(f"lock request: the client id has more than {CLIENT_ID_CHARACTERS_MAX} characters")
    return body.consumer_group, body.client_id, msgspec.to_builtins(body.mq_set)
