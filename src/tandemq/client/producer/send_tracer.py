"""Trace records of sends, and of the ends of transactions.

As in RocketMQ there is a record of each attempt that a broker stored, whatever the status; none of failed and one-way
sends, of messages of the trace topic, and of brokers with `traceOn=false`. A batch has a record of each message, so
that each is found; RocketMQ writes one for all of them.

A transaction has a record of each end that was sent and not refused, and of each answer to a check.

Source: RocketMQ SendMessageTraceHookImpl, EndTransactionTraceHookImpl, DefaultMQProducerImpl.sendKernelImpl.
"""

from collections.abc import Sequence
from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.trace_dispatcher import TraceDispatcher
from tandemq.client.producer.encoder import SendRequest
from tandemq.codec.message_trace import DEFAULT_REGION, TraceKind, TraceMessageType, TraceRecord
from tandemq.codec.record.record import decode_batch
from tandemq.model.command import Command
from tandemq.model.message import (
    DELAY,
    KEYS,
    MSG_REGION,
    TAGS,
    TRAN_MSG,
    SendResult,
    SendStatus,
    decode_properties,
)
from tandemq.model.transactions import TransactionState

_STATE_NAMES = {
    TransactionState.COMMIT: "COMMIT_MESSAGE",
    TransactionState.ROLLBACK: "ROLLBACK_MESSAGE",
    TransactionState.UNKNOWN: "UNKNOW",
}


class _Sent(NamedTuple):
    """A message of a request."""

    properties: dict[str, str]
    body_bytes: int


class SendTracer:
    """Makes the records of one producer."""

    def __init__(self, group: str, dispatcher: TraceDispatcher) -> None:
        """`group`: the producer's."""
        self._group = group
        self._dispatcher = dispatcher

    def stored(
        self, request: SendRequest, address: str, answer: Command, results: Sequence[SendResult], cost_ms: int, now: Now
    ) -> None:
        """Record an attempt that a broker answered now: it has stored the message or batch.

        Args:
            address: the broker.
            cost_ms: time since the attempt began.
        """
        if answer.fields.get("TRACE_ON") == "false" or request.topic.startswith(self._dispatcher.topic):
            return
        region = answer.fields.get("MSG_REGION") or DEFAULT_REGION
        for sent, result in zip(_messages(request), results, strict=True):
            record = TraceRecord(
                kind=TraceKind.PUB,
                time_ms=now.wall_ms - cost_ms,
                region=region,
                group=self._group,
                topic=request.topic,
                message_id=result.unique_key,
                tags=sent.properties.get(TAGS),
                keys=sent.properties.get(KEYS),
                store_host=address,
                body_bytes=sent.body_bytes,
                cost_ms=cost_ms,
                message_type=_message_type(sent.properties),
                offset_message_id=result.offset_message_id,
                success=result.status is SendStatus.SEND_OK,
            )
            self._dispatcher.append(record, now)

    def ended(
        self,
        message_id: str,
        topic: str,
        properties: dict[str, str],
        state: TransactionState,
        address: str,
        now: Now,
        *,
        from_check: bool,
    ) -> None:
        """Record the end of a transaction, or an answer to a check, that was sent to a broker now.

        Args:
            properties: of the half message.
            address: the broker.
        """
        if topic.startswith(self._dispatcher.topic):
            return
        record = TraceRecord(
            kind=TraceKind.END_TRANSACTION,
            time_ms=now.wall_ms,
            region=properties.get(MSG_REGION) or DEFAULT_REGION,
            group=self._group,
            topic=topic,
            message_id=message_id,
            tags=properties.get(TAGS),
            keys=properties.get(KEYS),
            store_host=address,
            message_type=TraceMessageType.COMMIT,
            transaction_id=message_id,
            transaction_state=_STATE_NAMES[state],
            from_check=from_check,
        )
        self._dispatcher.append(record, now)


def _messages(request: SendRequest) -> list[_Sent]:
    if not request.is_batch:
        return [_Sent(decode_properties(request.properties), len(request.body))]
    parts = decode_batch(request.body)
    return [_Sent(decode_properties(part.properties.decode()), len(part.body)) for part in parts]


def _message_type(properties: dict[str, str]) -> TraceMessageType:
    if DELAY in properties:
        return TraceMessageType.DELAYED
    return TraceMessageType.HALF if properties.get(TRAN_MSG) == "true" else TraceMessageType.NORMAL
