"""SendMessage and RecallMessage: messages to the brokers of their topic.

    message ─► valid? ─► of a type that the topic takes? ─► any queue, another broker if one refuses
                                                        └► of a message group: its queue, again while no master answers

Source: docs/reference/grpc.md; RocketMQ SendMessageActivity, RecallMessageActivity.
"""

from collections.abc import Sequence

from tandemq.client.core.operations import Steps, current_time, pause, wait
from tandemq.client.core.settings import ProducerOptions
from tandemq.client.producer.encoder import SendRequest, single_request
from tandemq.client.producer.machine import ProducerCore, is_user_limited
from tandemq.client.producer.publish_info import Select
from tandemq.codec.remoting.recall_handle import decode_handle
from tandemq.errors import ProtocolError, TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.java_hash import java_hash
from tandemq.model.message import MessageQueue, SendResult, SendStatus
from tandemq.proxy.brokers import AGAIN_MS, REQUEST_MS, TRY_MS, Brokers
from tandemq.proxy.messages import Prepared, prepare
from tandemq.proxy.names import Caller, topic_of
from tandemq.proxy.protocol.messaging_pb2 import (
    TRANSACTION,
    Code,
    MessageType,
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequest,
    SendMessageResponse,
    SendResultEntry,
    Status,
)
from tandemq.proxy.status import OF_SENDS, OK, CallRefused, common_status, make_status, status_of
from tandemq.proxy.transactions import GrpcTransactions

MESSAGES_MAX = 1_024
"""Maximum number of messages of a request."""
RETRY_MS = 2_500
"""For how long a message is tried at other brokers: clients wait 3 s, and then try themselves."""
BODIES_BYTES_MAX = 32 << 20
"""Maximum size of all bodies of a request, decompressed: the request itself may be a thousandth of it."""
HANDLE_CHARACTERS_MAX = 2_000
_UINT64 = (1 << 64) - 1


def producer_options(group: str) -> ProducerOptions:
    """Return the settings with which the proxy sends."""
    return ProducerOptions(group=group, timeout_ms=REQUEST_MS, retry_ms=RETRY_MS)


def queue_index(message_group: str, count: int) -> int:
    """Return which of so many queues a message group has: Guava's consistent hash of Java's hash of its name."""
    state = java_hash(message_group) & _UINT64
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & _UINT64
        fraction = ((state >> 33) + 1) / (1 << 31)
        following = int((candidate + 1) / fraction)
        if not 0 <= following < count:
            return candidate
        candidate = following


def by_group(message_group: str) -> Select:
    """Return the choice of a queue by a message group."""

    def select(queues: list[MessageQueue]) -> MessageQueue:
        return queues[queue_index(message_group, len(queues))]

    return select


class Sending:
    """Messages of clients."""

    def __init__(self, brokers: Brokers, producer: ProducerCore, transactions: GrpcTransactions) -> None:
        """`producer`: with `producer_options`."""
        self._brokers = brokers
        self._producer = producer
        self._transactions = transactions
        self.sent = 0
        """Number of messages that brokers have stored."""

    def send(self, caller: Caller, query: SendMessageRequest) -> Steps[SendMessageResponse]:
        """Send messages of one topic; each has its outcome.

        Raises:
            CallRefused: there is no message, or the topics differ, or a message is invalid: none was sent.
            TandemError: the topic's types cannot be had.
        """
        prepared = yield from self._prepare(caller, query)
        requests = [
            single_request(
                each.topic, each.body, each.properties, each.unique_key, self._producer.options, caller.limited_user
            )
            for each in prepared
        ]
        prepared = [each._replace(body=b"") for each in prepared]  # requests in flight hold compressed ones only
        if len(prepared) == 1:
            outcomes = [(yield from self._send(caller, prepared[0], requests[0]))]
        else:
            outcomes = yield from self._send_all(caller, prepared, requests)
        entries = [self._entry(each, outcome) for each, outcome in zip(prepared, outcomes, strict=True)]
        return SendMessageResponse(status=common_status([entry.status for entry in entries]), entries=entries)

    def _prepare(self, caller: Caller, query: SendMessageRequest) -> Steps[list[Prepared]]:
        if not query.messages or len(query.messages) > MESSAGES_MAX:
            raise CallRefused(Code.MESSAGE_CORRUPTED, f"the request has {len(query.messages)} messages")
        topic = topic_of(query.messages[0].topic)
        if any(topic_of(message.topic) != topic for message in query.messages):
            raise CallRefused(Code.MESSAGE_CORRUPTED, "the messages of a request must have one topic")
        prepared: list[Prepared] = []
        size = 0
        for message in query.messages:
            prepared.append(prepare(message, topic, caller.peer))
            size += len(prepared[-1].body)
            if size > BODIES_BYTES_MAX:
                text = f"the bodies have more than {BODIES_BYTES_MAX} bytes together"
                raise CallRefused(Code.MESSAGE_BODY_TOO_LARGE, text)
        types = yield from self._brokers.message_types(topic, caller.deadline_ms)
        for each in prepared:
            if each.kind not in types:
                names = ", ".join(MessageType.Name(kind) for kind in types)
                text = f"the topic {topic} takes {names} messages, this is a {MessageType.Name(each.kind)} message"
                raise CallRefused(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)
        return prepared

    def _send(self, caller: Caller, message: Prepared, request: SendRequest) -> Steps[SendResult | TandemError]:
        if message.kind == TRANSACTION:
            self._transactions.expect_checks(message.topic, (yield from current_time()))
        try:
            if message.message_group:
                return (yield from self._send_in_order(caller, message, request))
            now = yield from current_time()
            return (yield from wait(self._producer.send_prepared(request, now)))
        except TandemError as error:
            return error

    def _send_in_order(self, caller: Caller, message: Prepared, request: SendRequest) -> Steps[SendResult]:
        """Send a message to the queue of its group; it is tried there again, since another queue would not do."""
        select = by_group(message.message_group)
        until_ms = None
        while True:
            now = yield from current_time()
            if until_ms is None:
                until_ms = min(caller.deadline_ms or now.mono_ms + TRY_MS, now.mono_ms + TRY_MS)
            try:
                return (yield from wait(self._producer.send_prepared(request, now, select=select)))
            except TandemError as error:
                now = yield from current_time()
                is_retried = error.retriable and not is_user_limited(request, error)
                if not is_retried or now.mono_ms + AGAIN_MS >= until_ms:
                    raise
            yield from pause(AGAIN_MS)

    def _send_all(
        self, caller: Caller, prepared: Sequence[Prepared], requests: Sequence[SendRequest]
    ) -> Steps[list[SendResult | TandemError]]:
        """Send several messages: those of groups one after the other, since each waits for the one before.

        Behind one that failed no other message of its group is sent: it would overtake the failed one.
        """
        outcomes: list[SendResult | TandemError] = []
        if any(each.message_group or each.kind == TRANSACTION for each in prepared):
            failed: dict[str, TandemError] = {}
            for each, request in zip(prepared, requests, strict=True):
                outcome = failed.get(each.message_group) or (yield from self._send(caller, each, request))
                outcomes.append(outcome)
                if each.message_group and isinstance(outcome, TandemError):
                    failed[each.message_group] = outcome
            return outcomes
        now = yield from current_time()
        for ticket in [self._producer.send_prepared(request, now) for request in requests]:
            try:
                outcomes.append((yield from wait(ticket)))
            except TandemError as error:
                outcomes.append(error)
        return outcomes

    def _entry(self, message: Prepared, outcome: SendResult | TandemError) -> SendResultEntry:
        if isinstance(outcome, TandemError):
            return SendResultEntry(status=_refused_status(outcome))
        self.sent += 1
        if outcome.status is not SendStatus.SEND_OK:
            return SendResultEntry(status=make_status(OF_SENDS[outcome.status], f"stored: {outcome.status.value}"))
        entry = SendResultEntry(
            status=OK,
            message_id=outcome.unique_key,
            offset=outcome.queue_offset,
            recall_handle=outcome.recall_handle,
        )
        if message.kind == TRANSACTION:
            entry.transaction_id = self._transactions.id_of(outcome)
        return entry

    def recall(self, _caller: Caller, query: RecallMessageRequest) -> Steps[RecallMessageResponse]:
        """Recall a timed message.

        Raises:
            CallRefused: it is no handle, or one of another topic.
            TandemError: the message is not recalled.
        """
        topic = topic_of(query.topic)
        try:
            if len(query.recall_handle) > HANDLE_CHARACTERS_MAX:
                raise ProtocolError(f"a recall handle of {len(query.recall_handle)} characters")
            handle = decode_handle(query.recall_handle)
        except ProtocolError as error:
            raise CallRefused(Code.BAD_REQUEST, str(error)) from error
        if handle.topic != topic:
            raise CallRefused(Code.BAD_REQUEST, f"the recall handle is one of the topic {handle.topic[:127]}")
        now = yield from current_time()
        message_id = yield from wait(self._producer.recall(query.recall_handle, now))
        return RecallMessageResponse(status=OK, message_id=message_id)


def _refused_status(error: TandemError) -> Status:
    """Return the status of a message that was not stored: brokers use one code for what is too large or too late."""
    if error.code != ResponseCode.MESSAGE_ILLEGAL:
        return status_of(error)
    is_time = "timer message illegal" in str(error)
    return make_status(Code.ILLEGAL_DELIVERY_TIME if is_time else Code.MESSAGE_BODY_TOO_LARGE, str(error))
