"""Messages that a consumer sends back: stored in the retry topic of its group after a delay, finally as dead letters.

The response does not wait for flush and replicas, as in RocketMQ. In `elect` it does: the next master truncates what
not all members in sync have, and by then the consumer would have skipped the message.

Source: docs/reference/requests.md, "retry"; RocketMQ SendMessageProcessor.
"""

from tandemq.boundary import Now
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.sends import VERSION_3_4_9
from tandemq.broker.kernel.serving import Right
from tandemq.broker.kernel.statistics import Statistics
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.record import Record, message_id, property_value, unpack_head
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import SendBackFields, read_fields
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.java_types import INT32_MAX
from tandemq.model.message import (
    DELAY,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    TIMER_NAMES,
    WAIT,
    decode_properties,
)
from tandemq.model.topic import Permission, dead_letter_topic, retry_topic

FIRST_RETRY_LEVEL = 3
REPORT_MS = 10_000
"""Interval at which dead letters that were not logged yet are."""


class SendBackProcessor(Feature):
    """Store messages that consumers send back in the retry or dead letter topic of their group."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin, and log dead letters from time to time."""
        self._log_store = kernel.store
        self._topics = kernel.topics
        self._groups = kernel.groups
        self._puts = kernel.puts
        dead_letters = kernel.puts.dead_letters
        kernel.every(REPORT_MS, lambda now: dead_letters.report(now.mono_ms))
        self._statistics = kernel.features.find(Statistics)
        self._random = kernel.random
        self._turn = kernel.turn
        self._current = kernel.current

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.CONSUMER_SEND_MSG_BACK: Request(self._on_send_back, Right.WRITE)}

    def _on_send_back(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(SendBackFields, command.fields)
        group = self._groups.find(fields.group, now.wall_ms)
        if group is None:
            return command.answer(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark=f"subscription group not exist, {fields.group}"
            )
        if self._puts.refusal is not None:
            return command.answer(self._puts.refusal[0], remark=self._puts.refusal[1])
        if not self._current.config.permission & Permission.WRITE:
            return command.answer(ResponseCode.NO_PERMISSION, remark="the broker accepts no messages")
        if group.retry_queue_nums <= 0:
            return command.answer(ResponseCode.SUCCESS)
        found = self._log_store.queued_record_at(fields.offset)
        if found is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark=f"look message by offset failed, {fields.offset}")
        record, data = found
        if not _is_of(record, fields.origin_topic):
            return command.answer(
                ResponseCode.SYSTEM_ERROR,
                remark=f"look message by offset failed, {fields.offset} is not of topic {fields.origin_topic[:255]}",
            )
        head = unpack_head(data, 0)
        retries_max = group.retry_max_times
        if command.version >= VERSION_3_4_9 and fields.max_reconsume_times is not None:
            retries_max = fields.max_reconsume_times if fields.max_reconsume_times >= 0 else retries_max
        topic, queue_id, level = self._target(fields, group.retry_queue_nums, head.reconsume_times, retries_max, now)
        if topic is None:
            return command.answer(
                ResponseCode.SYSTEM_ERROR, remark="no room for the group's retry or dead letter topic"
            )
        if not topic.config.perm & Permission.WRITE:
            return command.answer(
                ResponseCode.NO_PERMISSION, remark=f"the topic[{topic.config.topic_name}] sending message is forbidden"
            )
        origin = (property_value(record.properties, RETRY_TOPIC.encode()) or b"").decode("utf-8", "replace")
        if self._topics.get(origin) is None:  # of a first delivery; or a producer has set another text
            origin = record.topic.decode("utf-8", "replace")
        change = {WAIT: "false", DELAY: str(level)} if level else {WAIT: "false"}
        target, target_id = self._puts.redirect_delayed(topic, queue_id, change)
        _, log_offset, size = self._puts.put_again(
            self._topics.queue(target, target_id),
            data,
            now,
            sys_flag=record.sys_flag,
            change=change,
            drop=(DELAY,) if target is topic else TIMER_NAMES,
            defaults={
                RETRY_TOPIC: record.topic.decode("utf-8", "replace"),
                ORIGIN_MESSAGE_ID: message_id(head.store_host, record.log_offset),
            },
            store_host=self._puts.store_host,
            reconsume_times=min(head.reconsume_times + 1, INT32_MAX),  # a producer may have set any
        )
        answer = None if command.is_oneway else encode_command(command.answer(ResponseCode.SUCCESS))
        self._puts.acks.append((link.number, answer, log_offset + size, self._turn.serving.is_elect, 1))
        if topic.config.topic_name == dead_letter_topic(fields.group):
            properties = decode_properties(record.properties.decode("utf-8", "replace"))
            self._puts.dead_letters.note(
                fields.group, origin, properties, head.reconsume_times, log_offset, now.mono_ms
            )
        self._statistics.add("SNDBCK_PUT_NUMS", f"{origin}@{fields.group}", 1, 1)
        return None

    def _target(
        self, fields: SendBackFields, queue_nums: int, reconsume_times: int, retries_max: int, now: Now
    ) -> tuple[Topic | None, int, int]:
        """Return topic, queue and delay level, 0 for a dead letter; no topic if there is no room for it."""
        topics = self._topics
        if reconsume_times >= retries_max or fields.delay_level < 0:
            return topics.create_internal(dead_letter_topic(fields.group), 1, now.wall_ms), 0, 0
        topic = topics.create_internal(retry_topic(fields.group), queue_nums, now.wall_ms)
        queue_id = self._random.randrange(queue_nums)
        return topic, queue_id, fields.delay_level or FIRST_RETRY_LEVEL + reconsume_times


def _is_of(record: Record, origin: str) -> bool:
    """Return whether a record may be the message that a consumer got of a topic; "": the client does not say which."""
    first = property_value(record.properties, RETRY_TOPIC.encode()) or b""
    names = [name.decode("utf-8", "replace") for name in (record.topic, first)]
    # Clients leave out a namespace.
    return not origin or any(name == origin or name.endswith(f"%{origin}") for name in names)
