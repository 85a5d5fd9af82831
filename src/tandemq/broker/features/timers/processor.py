"""RECALL_MESSAGE (370), GET_TIMER_CHECK_POINT (60), GET_TIMER_METRICS (61).

A recall stores a delete request of the message's time; the response waits for flush and replicas, as that to a send.
A message that is unknown, or was delivered already, is not noticed, as in RocketMQ.

Source: docs/reference/timers.md; RocketMQ RecallMessageProcessor, AdminBrokerProcessor.
"""

from tandemq.boundary import Now
from tandemq.broker.features.timers.service import TimedMessages
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.messages.timed_message import requested_time
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.recall_handle import RecallHandle, decode_handle
from tandemq.codec.remoting.requests import RecallFields, read_fields
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import (
    CLUSTER,
    NAME_VALUE_SEPARATOR,
    PRODUCER_GROUP,
    PROPERTY_SEPARATOR,
    TAGS,
    TIMER_DELETE,
    TIMER_DELIVER_MS,
    UNIQ_KEY,
    encode_properties,
)

RECALL_TAG = "_RECALL_TAG_"
RECALL_BODY = b"0"


class TimerProcessor(Feature):
    """Recall timed messages, and report the progress to slaves."""

    def __init__(self, kernel: Kernel, timers: TimedMessages) -> None:
        """Begin."""
        self._store = kernel.store
        self._topics = kernel.topics
        self._puts = kernel.puts
        self._timers = timers
        self._turn = kernel.turn
        self._current = kernel.current

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {
            Code.RECALL_MESSAGE: Request(self._on_recall),
            Code.GET_TIMER_CHECK_POINT: Request(self._on_check_point),
        }

    # RECALL_MESSAGE.

    def _on_recall(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(RecallFields, command.fields)
        try:
            handle = self._checked(fields, now)
            end = self._store_request(link, fields, handle, now)
        except SendRefused as refused:
            return command.answer(refused.code, remark=refused.remark)
        except RecordTooLarge as error:
            return command.answer(ResponseCode.MESSAGE_ILLEGAL, remark=str(error))
        answer = None
        if not command.is_oneway:
            region = {"msgId": handle.unique_key, "MSG_REGION": self._current.config.region}
            answer = encode_command(command.answer(ResponseCode.SUCCESS, fields=region))
        self._puts.acks.append((link.number, answer, end, True, 1))
        return None

    def _checked(self, fields: RecallFields, now: Now) -> RecallHandle:
        """Return the handle of a recall that is accepted.

        Raises:
            SendRefused: it is not.
        """
        config = self._current.config
        if not config.recall_enable:
            raise SendRefused(ResponseCode.NO_PERMISSION, "recall failed, recallMessageEnable is false on this broker")
        if not self._turn.serving.is_master:
            raise SendRefused(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, a slave recalls no messages")
        if self._puts.refusal is not None:
            raise SendRefused(*self._puts.refusal)
        if self._topics.get(fields.topic) is None:
            raise SendRefused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{fields.topic}] does not exist")
        try:
            handle = decode_handle(fields.recall_handle)
        except ProtocolError as error:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, str(error)) from error
        if NAME_VALUE_SEPARATOR in fields.producer_group or PROPERTY_SEPARATOR in fields.producer_group:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, the producer group is no name")
        if handle.topic != fields.topic:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != config.broker_name:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        if not now.wall_ms < handle.time_ms < now.wall_ms + config.timer_delay_max_s * 1000:
            raise SendRefused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        return handle

    def _store_request(self, link: Link, fields: RecallFields, handle: RecallHandle, now: Now) -> int:
        """Append the delete request; return the log offset behind it."""
        properties = {
            TAGS: RECALL_TAG,
            UNIQ_KEY: handle.unique_key,
            TIMER_DELETE: f"{handle.topic}+{handle.unique_key}",
            TIMER_DELIVER_MS: str(handle.time_ms),
            "BORN_TIMESTAMP": str(now.wall_ms),
            "TRACE_CONTEXT": "",
            PRODUCER_GROUP: fields.producer_group,
        }
        topic = self._topics.get(handle.topic)
        out_ms = requested_time(properties, self._current.config, now.wall_ms)
        assert topic is not None and out_ms is not None, "checked before"
        wheel, queue_id = self._puts.as_timed(topic, 0, properties, out_ms, now.wall_ms)
        properties[CLUSTER] = self._current.config.cluster
        stored = self._store.put(
            self._topics.queue(wheel, queue_id),
            body=RECALL_BODY,
            properties=encode_properties(properties).encode(),
            flag=0,
            sys_flag=0,
            born_ms=now.wall_ms,
            born_host=link.born_host,
            store_ms=now.wall_ms,
            store_host=self._puts.store_host,
            reconsume_times=0,
        )
        self._puts.note_timed(stored, properties, out_ms)
        return stored.log_offset + stored.size

    # What slaves copy.

    def _on_check_point(self, _link: Link, command: Command, now: Now) -> Command | None:
        check = self._timers.check(now)
        if check is None:
            return command.answer(ResponseCode.SYSTEM_ERROR, remark="no master, or the timed messages are being read")
        return command.answer(ResponseCode.SUCCESS, body=check.encode())
