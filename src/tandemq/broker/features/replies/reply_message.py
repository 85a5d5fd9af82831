"""Replies to requests: pushed to the client that sent the request, then stored, then answered.

    responder ── 324, 325 ──► checked as a send ──► 326 on the requester's connection
                                                     │ its response, or none in time
    responder ◄── response, after the commit ◄───────┴► stored, if `storeReplyMessageEnable`

The requester is the client with a producer whose id is the reply's REPLY_TO_CLIENT. The response says whether the reply
reached it; whether the reply is stored does not matter for the code, and does not wait for flush or replicas.

A reply to a static topic names a logical queue. It is stored in the queue that the logical one is mapped to by then.

What waits for requesters is bounded, in all and per requester, together with what its connection has not taken yet. A
reply beyond that is answered SYSTEM_BUSY.

Source: docs/reference/requests.md, "request-reply"; RocketMQ ReplyMessageProcessor.
"""

import logging
from collections.abc import Mapping
from functools import partial

import msgspec
from msgspec.structs import replace

from tandemq.boundary import Now
from tandemq.broker.kernel.client_requests import WAITING_MAX, Missing
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import MESSAGE_BYTES_MAX, Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.messages.refused import SendRefused
from tandemq.broker.kernel.puts import trace_fields
from tandemq.broker.kernel.sends import SendPlace, Sends, read_send_fields
from tandemq.codec.record.record import decode_host, message_id
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import SendFields
from tandemq.errors import StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.message import RECORD_CRC, SysFlag, decode_properties, encode_properties
from tandemq.model.queue_mapping import QueueMapping
from tandemq.model.replies import PUSH_REPLY_TIME, REPLY_TO_CLIENT
from tandemq.model.text import brief
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
PUSH_TIMEOUT_MS = 10_000
PENDING_MAX = WAITING_MAX - 1_000
"""Maximum number of replies that wait for requesters. The rest of what may wait is left to operators' requests."""
PENDING_BYTES_MAX = 64 << 20
PENDING_PER_REQUESTER_MAX = 2_000
BYTES_PER_REQUESTER_MAX = 16 << 20
_KEPT_FLAGS = int(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)


class _Reply(msgspec.Struct, frozen=True):
    """A reply that was accepted."""

    link: Link
    """The responder's connection."""
    command: Command
    fields: SendFields
    properties: dict[str, str]
    queue_id: int
    """Of the response: of a static topic the logical queue, else that of the broker."""
    requester: str

    @property
    def size(self) -> int:
        return len(self.command.body) + len(self.fields.properties)


class _Pending(msgspec.Struct):
    """Number and bytes of replies that wait."""

    count: int = 0
    size: int = 0

    def add(self, count: int, size: int) -> None:
        self.count += count
        self.size += size


class ReplyMessageProcessor(Feature):
    """Receive replies and pass them on to the requesting clients."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without replies."""
        self._puts = kernel.puts
        self._sends = kernel.features.find(Sends)
        self._clients = kernel.clients
        self._client_calls = kernel.client_calls
        self._links = kernel.links
        self._outbox = kernel.outbox
        self._current = kernel.current
        self._turn = kernel.turn
        self._all = _Pending()
        self._pending: dict[int, _Pending] = {}
        """By the requester's connection."""
        self._failures = Refusals()

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        request = Request(self._on_reply, body_bytes_max=MESSAGE_BYTES_MAX)
        return {Code.SEND_REPLY_MESSAGE: request, Code.SEND_REPLY_MESSAGE_V2: request}

    def _on_reply(self, link: Link, command: Command, now: Now) -> Command | None:
        fields = read_send_fields(command)
        try:
            place = self._admit(command, fields, now)
        except SendRefused as refused:
            return self._response(command, refused.code, refused.remark)
        properties = decode_properties(fields.properties)
        reply = _Reply(link, command, fields, properties, place.queue_id, properties.get(REPLY_TO_CLIENT, ""))
        if not reply.requester:
            self._finish(reply, f"reply message properties[{REPLY_TO_CLIENT}] is null", now)
            return None
        target = self._clients.producer_link(reply.requester)
        if target is None or target not in self._links:
            self._finish(reply, f"push reply message fail, channel of <{brief(reply.requester)}> not found.", now)
            return None
        busy = self._busy(reply, target)
        if busy is not None:
            return self._response(command, ResponseCode.SYSTEM_BUSY, busy)
        self._push(reply, target, now)
        return None

    def _admit(self, command: Command, fields: SendFields, now: Now) -> SendPlace:
        """Check topic, queue, permission and size of a reply; returns its topic and the queue of the response.

        Raises:
            SendRefused: the reply is not accepted.
        """
        admit, mapping = self._sends.admit, self._mapping(command, fields)
        if mapping is None:
            return admit(fields, command.body, now.wall_ms)
        queue_id = mapping.chosen(fields.queue_id)
        queue = mapping.led_queue(queue_id)
        if queue is None:
            raise SendRefused(ResponseCode.NOT_LEADER_FOR_QUEUE, mapping.not_led_remark(queue_id))
        place = admit(replace(fields, queue_id=queue.leader.queue_id), command.body, now.wall_ms)
        return place._replace(queue_id=queue_id)

    def _mapping(self, command: Command, fields: SendFields) -> QueueMapping | None:
        """Return the mapping of the queue that a reply names; None if that is a queue of this broker."""
        if command.fields.get("lo", "").lower() == "false":
            return None
        return self._puts.topics.mappings.table.get(fields.topic)

    def _busy(self, reply: _Reply, target: int) -> str | None:
        """Return why a reply cannot be passed on now; None if it can."""
        everything, own = self._all, self._pending.get(target, _Pending())
        if everything.count >= PENDING_MAX or everything.size + reply.size > PENDING_BYTES_MAX:
            return f"{everything.count} replies of {everything.size} bytes wait for their requesters; try later"
        size = own.size + self._outbox.backlog(target)
        if own.count >= PENDING_PER_REQUESTER_MAX or size + reply.size > BYTES_PER_REQUESTER_MAX:
            return f"{own.count} replies and {size} bytes wait for <{brief(reply.requester)}>; try later"
        return None

    def _push(self, reply: _Reply, target: int, now: Now) -> None:
        fields = reply.fields
        pushed = {
            "producerGroup": fields.producer_group,
            "topic": fields.topic,
            "defaultTopic": fields.default_topic,
            "defaultTopicQueueNums": str(fields.default_topic_queue_nums),
            "queueId": str(fields.queue_id),
            "sysFlag": str(fields.sys_flag),
            "bornTimestamp": str(fields.born_timestamp),
            "flag": str(fields.flag),
            "properties": encode_properties(reply.properties | {PUSH_REPLY_TIME: str(now.wall_ms)}),
            "reconsumeTimes": str(fields.reconsume_times),
            "unitMode": "false",
            "bornHost": reply.link.peer,
            "storeHost": decode_host(self._puts.store_host),
            "storeTimestamp": str(now.wall_ms),
        }
        for pending in (self._all, self._pending.setdefault(target, _Pending())):
            pending.add(1, reply.size)
        request = Command(Code.PUSH_REPLY_MESSAGE_TO_CLIENT, fields=pushed, body=reply.command.body)
        answered = partial(self._answered, reply, target)
        self._client_calls.call(target, request, PUSH_TIMEOUT_MS, answered, self._turn.out, now)

    def _answered(self, reply: _Reply, target: int, answer: Command | Missing, now: Now) -> None:
        """Take the requester's response, or the reason why there is none."""
        for pending in (self._all, self._pending[target]):
            pending.add(-1, -reply.size)
        if not self._pending[target].count:
            del self._pending[target]
        if isinstance(answer, Command) and answer.code == ResponseCode.SUCCESS:
            self._finish(reply, None, now)
            return
        why = answer.value if isinstance(answer, Missing) else f"{answer.code} {answer.remark or ''}"
        self._note(f"a client did not take a reply: {brief(why)}", reply, now)
        self._finish(reply, f"push reply message to {brief(reply.requester)}fail.", now)

    def _finish(self, reply: _Reply, failure: str | None, now: Now) -> None:
        """Store a reply, and answer the responder with the commit. `failure`: why it was not passed on."""
        ids: dict[str, str] = {}
        end = 0
        if failure is None:
            ids = {"msgId": "0", "queueId": str(reply.queue_id), "queueOffset": "0"}
        if self._current.config.store_replies and self._puts.refusal is None:
            try:
                end = self._store(reply, ids, now)
            except StoreError as error:
                self._note(f"a reply was not stored: {error}", reply, now)
        code = ResponseCode.SUCCESS if failure is None else ResponseCode.SYSTEM_ERROR
        answer = self._response(reply.command, code, failure, ids)
        data = None if reply.command.is_oneway else encode_command(answer)
        self._puts.acks.append((reply.link.number, data, end, False, 1))

    def _store(self, reply: _Reply, ids: dict[str, str], now: Now) -> int:
        """Store a reply and note its ids; returns the log offset of its end.

        Raises:
            StoreError: it is not stored.
        """
        puts, fields, segment = self._puts, reply.fields, None
        topic = puts.topics.get(fields.topic)
        if topic is None:
            raise StoreError(f"the topic {fields.topic} was deleted meanwhile")
        mapping = self._mapping(reply.command, fields)
        if mapping is not None:
            queue = mapping.led_queue(reply.queue_id)
            if queue is None:
                raise StoreError(f"queue {reply.queue_id} of {fields.topic} has moved to another broker meanwhile")
            segment = queue.leader
        properties = {name: value for name, value in reply.properties.items() if name != RECORD_CRC}
        queue_offset, log_offset, size = puts.store.put(
            puts.topics.queue(topic, reply.queue_id if segment is None else segment.queue_id),
            body=reply.command.body,
            properties=encode_properties(properties).encode(),
            flag=fields.flag,
            sys_flag=fields.sys_flag & _KEPT_FLAGS,
            born_ms=fields.born_timestamp,
            born_host=reply.link.born_host,
            store_ms=now.wall_ms,
            store_host=puts.store_host,
            reconsume_times=fields.reconsume_times,
        )
        puts.count_message(len(reply.command.body))
        ids["msgId"] = message_id(puts.store_host, log_offset)
        shown = queue_offset if segment is None else segment.logical(queue_offset)
        ids["queueId"], ids["queueOffset"] = str(reply.queue_id), str(shown)
        return log_offset + size

    def _response(
        self, command: Command, code: int, remark: str | None, ids: Mapping[str, str] | None = None
    ) -> Command:
        fields = {**trace_fields(self._current.config), **(ids or {})}
        return command.answer(code, remark=remark, fields=fields)

    def _note(self, what: str, reply: _Reply, now: Now) -> None:
        times = self._failures.note(reply.link.peer.rpartition(":")[0], now.mono_ms)
        if times:
            log.warning("reply: responder=%s times=%d %s", reply.link.peer, times, what)
