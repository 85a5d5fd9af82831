"""Messages validated, compressed and encoded as send requests.

A batch is a list of messages of one topic in one request; each keeps its own properties and key.
Source: docs/reference/requests.md, "sending"; docs/internals/storage.md, "batches".
"""

from collections.abc import Sequence

import msgspec

from tandemq.client.core.settings import ProducerOptions
from tandemq.codec.record.record import BatchPart, decode_batch, deflate, encode_batch
from tandemq.codec.remoting.frame import JsonRequest
from tandemq.codec.remoting.header import FORM_JSON, decode_header
from tandemq.codec.remoting.signature import ON_BEHALF_OF
from tandemq.engine import SENT_PROPERTIES_MAX, batch_part, plain_properties, send_fields
from tandemq.errors import InvalidMessage, LocalError, RecordTooLarge
from tandemq.model.codes import RequestCode
from tandemq.model.command import Command
from tandemq.model.message import (
    DELAY,
    KEY_SEPARATOR,
    KEYS,
    PRIORITY,
    TAGS,
    UNIQ_KEY,
    WAIT,
    Message,
    MessageQueue,
    SysFlag,
    encode_properties,
)
from tandemq.model.replies import MSG_TYPE, REPLY_TYPE
from tandemq.model.topic import AUTO_CREATE_TOPIC, RETRY_PREFIX, takes_no_sends

PROPERTIES_BYTES_MAX = SENT_PROPERTIES_MAX
_HEADS_MAX = 4096
_encode_json = msgspec.json.Encoder().encode


class SendRequest(msgspec.Struct, frozen=True, gc=False):
    """Content of one send request: a message or a batch, encoded. `unique_keys`: in the order of the messages."""

    topic: str
    body: bytes
    properties: str
    sys_flag: int
    flag: int
    unique_keys: tuple[str, ...]
    is_batch: bool = False
    reconsume_times: int = 0
    max_reconsume_times: int | None = None
    is_reply: bool = False
    on_behalf_of: str = ""
    """User whose limits it uses, if this client is a proxy."""

    @property
    def code(self) -> RequestCode:
        """The code it is sent with."""
        if self.is_reply:
            return RequestCode.SEND_REPLY_MESSAGE_V2
        return RequestCode.SEND_BATCH_MESSAGE if self.is_batch else RequestCode.SEND_MESSAGE_V2

    def command(self, group: str, broker_name: str, queue_id: int, wall_ms: int, queue_nums: int) -> Command:
        """Return the request that sends it to one queue.

        Args:
            wall_ms: when the messages were made, milliseconds since 1970.
            queue_nums: number of queues if a broker has to create the topic.
        """
        fields = {
            "a": group,
            "b": self.topic,
            "c": AUTO_CREATE_TOPIC,
            "d": str(queue_nums),
            "e": str(queue_id),
            "f": str(self.sys_flag),
            "g": str(wall_ms),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "false",
            "m": "true" if self.is_batch else "false",
            "n": broker_name,
        }
        if self.max_reconsume_times is not None:
            fields["l"] = str(self.max_reconsume_times)
        if self.on_behalf_of:
            fields[ON_BEHALF_OF] = self.on_behalf_of
        return Command(self.code, fields=fields, body=self.body)


class SendEncoder:
    """Send requests of one producer as JSON headers; the fields that requests to a queue have in common are kept.

    What it returns is decoded as `SendRequest.command`.
    """

    def __init__(self, group: str, queue_nums: int) -> None:
        """`queue_nums`: number of queues if a broker has to create the topic."""
        self._group = group
        self._queue_nums = queue_nums
        self._heads: dict[MessageQueue, bytes] = {}
        self._batch_heads: dict[MessageQueue, bytes] = {}
        self._reply_heads: dict[MessageQueue, bytes] = {}

    def encode(self, request: SendRequest, queue: MessageQueue, wall_ms: int) -> JsonRequest:
        """Return the request that sends a message or batch to one queue.

        Args:
            wall_ms: when the messages were made, milliseconds since 1970.
        """
        if queue.topic != request.topic:
            queue = MessageQueue(request.topic, queue.broker_name, queue.queue_id)
        head = self._head_of(request, queue)
        fields = send_fields(head, request.sys_flag, wall_ms, request.flag, request.properties, request.reconsume_times)
        if request.max_reconsume_times is not None:
            fields += b',"l":"%d"' % request.max_reconsume_times
        if request.on_behalf_of:
            fields += b',"%b":%b' % (ON_BEHALF_OF.encode(), _encode_json(request.on_behalf_of))
        return JsonRequest(fields, request.body)

    def plain_head(self, queue: MessageQueue) -> bytes:
        """Return the beginning of the headers of ordinary sends to a queue."""
        return self._head_of(SendRequest(queue.topic, b"", "", 0, 0, ()), queue)

    def _head_of(self, request: SendRequest, queue: MessageQueue) -> bytes:
        heads = self._heads
        if request.is_batch or request.is_reply:
            heads = self._batch_heads if request.is_batch else self._reply_heads
        head = heads.get(queue)
        if head is None:
            if len(heads) >= _HEADS_MAX:
                heads.clear()
            head = heads[queue] = self._make_head(request, queue)
        return head

    def _make_head(self, request: SendRequest, queue: MessageQueue) -> bytes:
        shared = {
            name: value
            for name, value in request.command(
                self._group, queue.broker_name, queue.queue_id, 0, self._queue_nums
            ).fields.items()
            if name in "abcdekmn"
        }
        return b'{"code":%d,"extFields":%b' % (request.code, _encode_json(shared)[:-1])


def request_of_frame(frame: bytes, topic: str, unique_key: str) -> SendRequest:
    """Return the send request of an ordinary message from its frame."""
    header_end = 8 + int.from_bytes(frame[5:8])
    fields = decode_header(FORM_JSON, frame[8:header_end], b"").fields
    return SendRequest(topic, frame[header_end:], fields["i"], 0, int(fields["h"]), (unique_key,))


def prepare(message: Message, unique_key: str, options: ProducerOptions) -> SendRequest:
    """Return the send request of one message.

    Raises:
        TypeError: the argument is not a `Message`, or a field of it has another type.
        InvalidMessage: a value is invalid; a ValueError.
        RecordTooLarge: the body or the properties exceed their limit.
    """
    plain = plain_properties(message, unique_key, plain_bytes_max(options))
    if plain is not None:
        return SendRequest(message.topic, message.body, plain, 0, message.flag, (unique_key,))
    if not isinstance(message, Message):
        raise TypeError(f"send a Message, not a {type(message).__name__}; several at once: send_batch")
    properties = general_properties(message, unique_key, options)
    body, sys_flag = _compressed(message.body, options)
    is_reply = bool(message.properties) and message.properties.get(MSG_TYPE) == REPLY_TYPE
    return SendRequest(message.topic, body, properties, sys_flag, message.flag, (unique_key,), is_reply=is_reply)


def plain_bytes_max(options: ProducerOptions) -> int:
    """Return the maximum size of a body that is neither compressed nor refused."""
    return min(options.body_bytes_max, options.compress_above_bytes - 1)


def single_request(
    topic: str, body: bytes, properties: str, unique_key: str, options: ProducerOptions, on_behalf_of: str = ""
) -> SendRequest:
    """Return the send request of one message that is valid.

    Args:
        properties: all of them, encoded.
        on_behalf_of: user whose limits it uses; "": the one that signs.
    """
    body, sys_flag = _compressed(body, options)
    return SendRequest(topic, body, properties, sys_flag, 0, (unique_key,), on_behalf_of=on_behalf_of)


def _compressed(body: bytes, options: ProducerOptions) -> tuple[bytes, int]:
    """Return a body as it is sent, and its system flags."""
    if len(body) >= options.compress_above_bytes:
        packed = deflate(body, options.compress_level)
        if len(packed) < len(body):
            return packed, int(SysFlag.COMPRESSED)
    return body, 0


def general_properties(message: Message, unique_key: str, options: ProducerOptions) -> str:
    """Return the encoded properties of any message; errors as `prepare`."""
    message.validate()
    if takes_no_sends(message.topic):
        raise InvalidMessage(f"the topic {message.topic} is reserved")
    if len(message.body) > options.body_bytes_max:
        raise RecordTooLarge(f"the body has {len(message.body)} bytes, the maximum is {options.body_bytes_max}")
    wait = "true" if message.wait_store_ok else "false"
    text = f"{UNIQ_KEY}\x01{unique_key}\x02{WAIT}\x01{wait}\x02"
    if message.properties:
        text = encode_properties(message.properties) + text
    if message.tags:
        text += f"{TAGS}\x01{message.tags}\x02"
    if message.keys:
        text += f"{KEYS}\x01{KEY_SEPARATOR.join(message.keys)}\x02"
    if message.delay_level:
        if not 0 < message.delay_level <= options.delay_levels:
            raise InvalidMessage(
                f"the delay level is {message.delay_level}; it must be 0 (no delay) to {options.delay_levels}",
                hint="set delay_levels of the producer to the number of levels in the brokers' messageDelayLevel",
            )
        text += f"{DELAY}\x01{message.delay_level}\x02"
    if message.delay is not None or message.deliver_at is not None:
        text += "{}\x01{}\x02".format(*message.timer_property() or ())
    if message.priority is not None:
        text += f"{PRIORITY}\x01{message.priority}\x02"
    if len(text) > PROPERTIES_BYTES_MAX // 4 and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise RecordTooLarge(f"the properties have more than {PROPERTIES_BYTES_MAX} bytes")
    return text


def prepare_batches(
    messages: Sequence[Message], unique_keys: Sequence[str], options: ProducerOptions
) -> list[SendRequest]:
    """Return the send requests of several messages of one topic, each of at most `batch_bytes_max`.

    Raises:
        LocalError: topics differ, a delay or priority is set, or a field of a message is invalid.
        RecordTooLarge: a message exceeds a limit.
    """
    if not messages:
        raise LocalError("the batch is empty")
    topic, wait_store_ok = messages[0].topic, messages[0].wait_store_ok
    if topic.startswith(RETRY_PREFIX):
        raise LocalError("batches cannot be sent to retry topics")
    batches: list[SendRequest] = []
    parts: list[bytes] = []
    keys: list[str] = []
    size = 0
    for message, unique_key in zip(messages, unique_keys, strict=True):
        part = batch_part(message, unique_key, options.body_bytes_max)
        is_batchable = part is not None or message.is_batchable
        if message.topic != topic or message.wait_store_ok != wait_store_ok or not is_batchable:
            raise LocalError(
                "all messages of a batch must have the same topic and wait_store_ok, and neither delay nor priority"
            )
        if part is None:
            properties = general_properties(message, unique_key, options).encode()
            part = encode_batch([BatchPart(message.flag, message.body, properties)])
        if parts and size + len(part) > options.batch_bytes_max:
            batches.append(batch_request(topic, b"".join(parts), tuple(keys), wait_store_ok=wait_store_ok))
            parts, keys, size = [], [], 0
        parts.append(part)
        keys.append(unique_key)
        size += len(part)
    batches.append(batch_request(topic, b"".join(parts), tuple(keys), wait_store_ok=wait_store_ok))
    return batches


def part_of(request: SendRequest) -> bytes:
    """Return one message as part of a batch."""
    return encode_batch([BatchPart(request.flag, request.body, request.properties.encode())])


def gathered_request(
    topic: str, parts: Sequence[bytes], unique_keys: tuple[str, ...], *, wait_store_ok: bool
) -> SendRequest:
    """Return one request for several messages of one topic, which are parts of a batch, or for the only one."""
    if len(parts) > 1:
        return batch_request(topic, b"".join(parts), unique_keys, wait_store_ok=wait_store_ok)
    [(flag, body, properties)] = decode_batch(parts[0])
    return SendRequest(topic, body, properties.decode(), 0, flag, unique_keys)


def batch_request(topic: str, body: bytes, unique_keys: tuple[str, ...], *, wait_store_ok: bool = True) -> SendRequest:
    """Return the send request of several messages that are valid; `body`: all of them, encoded."""
    properties = encode_properties({WAIT: "true" if wait_store_ok else "false"})
    return SendRequest(topic, body, properties, 0, 0, unique_keys, is_batch=True)
