"""Requests of consumers beside the pull: heartbeats, membership, offsets, queue locks.

Source: docs/reference/requests.md, "offsets", "group membership", "orderly consumption".
"""

from typing import TYPE_CHECKING, Any

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import Link
from tandemq.broker.state.clients import CLIENT_ID_CHARACTERS_MAX, Member
from tandemq.broker.state.consumer_offsets import OFFSET_BYTES_MAX
from tandemq.codec.remoting.bodies import decode_body
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.codec.remoting.header import LANGUAGES, UNKNOWN_LANGUAGE
from tandemq.codec.remoting.requests import (
    CommitOffsetFields,
    GroupFields,
    QueryOffsetFields,
    QueueFields,
    SearchOffsetFields,
    UnregisterClientFields,
    read_fields,
)
from tandemq.errors import ProtocolError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.group import HeartbeatData
from tandemq.model.java_types import Int32
from tandemq.model.topic import group_name_error, retry_topic
from tandemq.storage.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from tandemq.broker.node import Broker, Handler


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Consume(broker)
    return {
        Code.HEART_BEAT: on.heartbeat,
        Code.UNREGISTER_CLIENT: on.unregister,
        Code.GET_CONSUMER_LIST_BY_GROUP: on.members,
        Code.CHECK_CLIENT_CONFIG: on.check_config,
        Code.QUERY_CONSUMER_OFFSET: on.query_offset,
        Code.UPDATE_CONSUMER_OFFSET: on.commit_offset,
        Code.GET_MAX_OFFSET: on.max_offset,
        Code.GET_MIN_OFFSET: on.min_offset,
        Code.SEARCH_OFFSET_BY_TIMESTAMP: on.search_offset,
        Code.GET_EARLIEST_MSG_STORETIME: on.earliest,
        Code.LOCK_BATCH_MQ: on.lock,
        Code.UNLOCK_BATCH_MQ: on.unlock,
    }


class _Consume:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    # Membership.

    def heartbeat(self, link: Link, command: Command, now: Now) -> Command | None:
        broker = self._broker
        beat = decode_body(command.body, HeartbeatData, "heartbeat")
        language = command.language if command.language in LANGUAGES else UNKNOWN_LANGUAGE
        member = Member(link.number, beat.client_id, link.peer, language, command.version, now.mono_ms)
        broker.groups.check_room([consumer.group_name for consumer in beat.consumers])
        changed = broker.clients.heartbeat(beat, member)
        for consumer in beat.consumers:
            group = broker.groups.find(consumer.group_name, now.wall_ms)
            if group is not None and broker.is_master:
                broker.topics.create_internal(
                    retry_topic(consumer.group_name), max(1, group.retry_queue_nums), now.wall_ms
                )
        broker.notify_members(changed, broker.turn_out)
        return command.answer(ResponseCode.SUCCESS)

    def unregister(self, link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(UnregisterClientFields, command.fields)
        changed = self._broker.clients.leave(link.number, fields.clientID, fields.producerGroup, fields.consumerGroup)
        self._broker.notify_members(changed, self._broker.turn_out)
        return command.answer(ResponseCode.SUCCESS)

    def members(self, _link: Link, command: Command, _now: Now) -> Command | None:
        name = read_fields(GroupFields, command.fields).consumer_group
        group = self._broker.clients.consumers.get(name)
        if group is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"no consumer for this group, {name}")
        return command.answer(ResponseCode.SUCCESS, body=dumps({"consumerIdList": group.client_ids()}))

    def check_config(self, _link: Link, command: Command, _now: Now) -> Command | None:
        body = loads(command.body)
        subscription = body.get("subscriptionData") if isinstance(body, dict) else None
        kind = subscription.get("expressionType") if isinstance(subscription, dict) else None
        if kind not in (None, "TAG"):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"The broker does not support consumer to filter message by {kind}"
            )
        return command.answer(ResponseCode.SUCCESS)

    # Offsets.

    def query_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueryOffsetFields, command.fields)
        offset = self._broker.offsets.get(fields.topic, fields.consumer_group, fields.queue_id)
        if offset is None and fields.set_zero_if_not_found != "false" and self._is_young(fields.topic, fields.queue_id):
            offset = 0
        if offset is None:
            return command.answer(
                ResponseCode.QUERY_NOT_FOUND, remark="Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
            )
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def _is_young(self, topic: str, queue_id: int) -> bool:
        """Whether a new group should read a queue from its start: all of it is still there and not far behind."""
        queue = self._broker.store.queues.get((topic, queue_id))
        if queue is None or queue.max_offset == 0:
            return True
        if queue.min_offset > 0:
            return False
        far = self._broker.machine.memory_bytes * self._broker.config.memory_ratio_max // 100
        place = queue.place(0)  # None if the entry is damaged
        return self._broker.store.log.written_end - (place or 0) <= far

    def commit_offset(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(CommitOffsetFields, command.fields)
        offsets = self._broker.offsets
        if not self._is_queue(fields.topic, fields.queue_id):
            return command.answer(
                ResponseCode.TOPIC_NOT_EXIST, remark=f"no queue {fields.queue_id} of topic[{fields.topic[:64]}]"
            )
        if fields.commit_offset < 0:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"commitOffset {fields.commit_offset} is below 0")
        if not self._broker.groups.may_be(fields.consumer_group):
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                remark=f"subscription group not exist, {fields.consumer_group[:64]}",
            )
        if not offsets.has_room(fields.topic, fields.consumer_group, fields.queue_id):
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark=f"the offsets of all groups take {OFFSET_BYTES_MAX} bytes already"
            )
        group = self._broker.clients.consumers.get(fields.consumer_group)
        place = (fields.topic, fields.consumer_group, fields.queue_id, fields.commit_offset)
        if group is None or link.number not in group.members:  # no consumer's own: an operator's tool
            offsets.reset(*place)
        elif not offsets.commit_of_member(*place, now.mono_ms):
            return command.answer(ResponseCode.SUCCESS, remark="Offset has been previously reset")
        return command.answer(ResponseCode.SUCCESS)

    def _is_queue(self, topic: str, queue_id: int) -> bool:
        """Whether a topic has a queue of this id, with messages or without."""
        known = self._broker.topics.get(topic)
        queues = max(known.config.read_queue_nums, known.config.write_queue_nums) if known is not None else 0
        return 0 <= queue_id < queues or (topic, queue_id) in self._broker.store.queues

    def _queue(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self._broker.store.queues.get((topic, queue_id))

    def max_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        return command.answer(
            ResponseCode.SUCCESS, fields={"offset": str(self._broker.pull.visible_end(queue) if queue else 0)}
        )

    def min_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(queue.min_offset if queue else 0)})

    def search_offset(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(SearchOffsetFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        upper = fields.boundary_type.lower() == "upper"
        offset = 0
        if queue is not None:
            offset = self._broker.store.offset_by_time(queue, fields.timestamp, upper=upper)
            offset = min(offset, self._broker.pull.visible_end(queue))
        return command.answer(ResponseCode.SUCCESS, fields={"offset": str(offset)})

    def earliest(self, _link: Link, command: Command, _now: Now) -> Command | None:
        fields = read_fields(QueueFields, command.fields)
        queue = self._queue(fields.topic, fields.queue_id)
        time_ms = -1
        if queue is not None and queue.min_offset < queue.max_offset:
            time_ms = self._broker.store.stored_ms(queue, queue.min_offset)
        return command.answer(ResponseCode.SUCCESS, fields={"timestamp": str(time_ms)})

    # Locks.

    def lock(self, _link: Link, command: Command, now: Now) -> Command | None:
        group, client, queues = _lock_body(command)
        locks = self._broker.locks
        held = [
            queue
            for queue in queues
            if self._is_queue(queue["topic"], queue["queueId"])
            and locks.lock(group, queue["topic"], queue["queueId"], client, now.mono_ms)
        ]
        return command.answer(ResponseCode.SUCCESS, body=dumps({"lockOKMQSet": held}))

    def unlock(self, _link: Link, command: Command, _now: Now) -> Command | None:
        group, client, queues = _lock_body(command)
        for queue in queues:
            self._broker.locks.unlock(group, queue["topic"], queue["queueId"], client)
        return command.answer(ResponseCode.SUCCESS)


class _Queue(msgspec.Struct, rename="camel"):
    topic: str
    queue_id: Int32
    broker_name: str = ""


class LockBody(msgspec.Struct, rename="camel"):
    """LOCK_BATCH_MQ, UNLOCK_BATCH_MQ: queues that a client locks for its group, or unlocks."""

    consumer_group: str
    client_id: str
    mq_set: list[_Queue] = []


def _lock_body(command: Command) -> tuple[str, str, list[dict[str, Any]]]:
    """Group, client and queues; each queue is an object with `topic`, `queueId` and `brokerName`."""
    body = decode_body(command.body, LockBody, "lock request")
    if (reason := group_name_error(body.consumer_group)) is not None:
        raise ProtocolError(f"lock request: {reason}")
    if len(body.client_id) > CLIENT_ID_CHARACTERS_MAX:
        raise ProtocolError(f"lock request: the client id has more than {CLIENT_ID_CHARACTERS_MAX} characters")
    return body.consumer_group, body.client_id, msgspec.to_builtins(body.mq_set)
