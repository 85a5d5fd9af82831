"""Trace records of deliveries: one when a message is delivered, one when it is acknowledged or sent back.

There is none of messages with the property TRACE_ON=false, of those that a broker sent for direct consumption, and of
pull consumers.

Source: RocketMQ ConsumeMessageTraceHookImpl.
"""

from typing import NamedTuple

from tandemq.boundary import Now
from tandemq.client.core.trace_dispatcher import TraceDispatcher
from tandemq.client.producer.unique_keys import UniqueKeys
from tandemq.codec.message_trace import DEFAULT_REGION, ConsumeReturnType, TraceKind, TraceRecord
from tandemq.model.message import KEYS, MSG_REGION, TRACE_ON, StoredMessage


class TracedDelivery(NamedTuple):
    """A delivery that has not ended."""

    request_id: str
    began: Now


class ConsumeTracer:
    """Makes the records of one consumer."""

    def __init__(self, group: str, dispatcher: TraceDispatcher, keys: UniqueKeys) -> None:
        """`group`: the consumer's. `keys`: gives the ids of deliveries."""
        self._group = group
        self._dispatcher = dispatcher
        self._keys = keys

    def delivered(self, message: StoredMessage, now: Now) -> TracedDelivery | None:
        """Record a message that is delivered now; None: it is not traced."""
        if message.properties.get(TRACE_ON) == "false":
            return None
        request_id = self._keys.next(now.wall_ms)
        record = TraceRecord(
            kind=TraceKind.SUB_BEFORE,
            time_ms=now.wall_ms,
            region=message.properties.get(MSG_REGION) or DEFAULT_REGION,
            group=self._group,
            request_id=request_id,
            message_id=message.unique_key or message.offset_message_id,
            retry_times=message.reconsume_times,
            keys=message.properties.get(KEYS),
        )
        self._dispatcher.append(record, now)
        return TracedDelivery(request_id, now)

    def ended(self, delivery: TracedDelivery, message: StoredMessage, now: Now, *, acknowledged: bool) -> None:
        """Record a delivery that was acknowledged or sent back now."""
        record = TraceRecord(
            kind=TraceKind.SUB_AFTER,
            request_id=delivery.request_id,
            message_id=message.unique_key or message.offset_message_id,
            cost_ms=now.mono_ms - delivery.began.mono_ms,
            success=acknowledged,
            keys=message.properties.get(KEYS),
            context_code=ConsumeReturnType.SUCCESS if acknowledged else ConsumeReturnType.FAILED,
            time_ms=now.wall_ms,
            group=self._group,
        )
        self._dispatcher.append(record, now)
