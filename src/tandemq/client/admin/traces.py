"""Message traces read from the trace topic: who sent a message, who got it, and how that ended.

    key ─► messages of the trace topic with it ─► their lines ─► those about the key ─► one `MessageTrace` per message

Clients write the lines by themselves, Java's and ours the same, if tracing is on; any client may write to the topic,
and lines get lost when clients cannot send them. So a trace proves what it shows only as far as its writers are
trusted, and what it does not show may have happened.

Source: RocketMQ QueryMsgTraceByIdSubCommand, TraceView.
"""

from collections.abc import Iterable
from enum import Enum
from typing import NamedTuple

import msgspec

from tandemq.client.admin.cluster import cluster_info, topic_route
from tandemq.client.admin.queries import FAR_FUTURE_MS, message_by_id, messages_by_key
from tandemq.client.core.operations import Steps
from tandemq.client.core.routes import Routes
from tandemq.codec.message_trace import ConsumeReturnType, TraceKind, TraceRecord, decode_traces
from tandemq.codec.record.record import parse_message_id
from tandemq.errors import NoRoute, ProtocolError, RemoteError
from tandemq.model.message import KEY_SEPARATOR, StoredMessage
from tandemq.model.topic import TRACE_TOPIC

ANSWER_MESSAGES_MAX = 64
"""Maximum number of messages that a broker returns for a key, unless it is configured otherwise."""
TRACE_MESSAGES_MAX = 256
MESSAGES_MAX = 32
"""Maximum number of messages with one key of which the traces are completed."""


class TraceEvent(Enum):
    """What happened to a message."""

    SENT = "sent"
    TRANSACTION_ENDED = "transaction ended"
    DELIVERED = "delivered"
    RECALLED = "recalled"


class TraceStep(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a message. A delivery and its end are one."""

    event: TraceEvent
    time_ms: int
    """When it began, milliseconds since 1970."""
    group: str
    """Producer or consumer group."""
    client: str
    """Address of the client that reported it."""
    broker: str = ""
    """Address of the broker that stored the message."""
    cost_ms: int | None = None
    """Duration; None for events without one, and deliveries of which no end is known."""
    success: bool | None = None
    """None: no end is known."""
    outcome: str
    retry_times: int = 0
    """Deliveries: number of earlier deliveries that failed."""
    offset_message_id: str = ""


class MessageTrace(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known about one message, oldest first."""

    message_id: str
    """Its unique key."""
    topic: str = ""
    """ "" if no line states it."""
    tags: str = ""
    keys: str = ""
    steps: list[TraceStep]


class FoundTraces(NamedTuple):
    """Result of a search."""

    traces: list[MessageTrace]
    """Ordered by the time of their first event."""
    is_cut: bool
    """Whether there may be more messages or events with the key."""
    unreadable: int
    """Lines that could not be read, about whatever message."""


class _Line(NamedTuple):
    record: TraceRecord
    client: str


class _Lines(NamedTuple):
    lines: list[_Line]
    is_cut: bool
    unreadable: int


def message_traces(
    routes: Routes, key: str, topic: str = TRACE_TOPIC, begin_ms: int = 0, end_ms: int = FAR_FUTURE_MS
) -> Steps[FoundTraces]:
    """Return the traces of the messages with a unique key, an offset message id, or a key.

    Args:
        topic: the trace topic.
        begin_ms: lines stored at or after this time, milliseconds since 1970.
        end_ms: lines stored at or before this time.

    Raises:
        NoRoute: the trace topic does not exist.
        NetworkError: no broker responds.
    """
    try:
        yield from topic_route(routes, topic)
    except NoRoute as error:
        raise NoRoute(
            f"there is no topic {topic}", hint="start brokers with traceTopicEnable=true, and clients with tracing on"
        ) from error
    found = yield from _lines(routes, topic, key, begin_ms, end_ms)
    unreadable = found.unreadable
    lines, is_cut = found.lines, found.is_cut
    if not any(_is_about(line.record, key) for line in lines):
        unique_key = yield from _unique_key(routes, key)
        if unique_key is None:
            return FoundTraces([], is_cut, unreadable)
        key = unique_key
        lines, is_cut, unreadable = yield from _lines(routes, topic, key, begin_ms, end_ms)
    ids = list(dict.fromkeys(line.record.message_id or "" for line in lines if _is_about(line.record, key)))
    # Lines without keys are found by the id only.
    for message_id in [one for one in ids if one != key][:MESSAGES_MAX]:
        more = yield from _lines(routes, topic, message_id, begin_ms, end_ms)
        lines, is_cut, unreadable = lines + more.lines, is_cut or more.is_cut, max(unreadable, more.unreadable)
    lines = list(dict.fromkeys(lines))
    traces = [_trace(one, [line for line in lines if line.record.message_id == one]) for one in ids]
    return FoundTraces(
        sorted(traces, key=lambda trace: trace.steps[0].time_ms), is_cut or len(ids) > MESSAGES_MAX, unreadable
    )


def _lines(routes: Routes, topic: str, key: str, begin_ms: int, end_ms: int) -> Steps[_Lines]:
    messages = yield from messages_by_key(routes, topic, key, TRACE_MESSAGES_MAX, begin_ms, end_ms)
    lines: list[_Line] = []
    unreadable = 0
    for message in messages:
        read = decode_traces("" if message.fault else message.body.decode("utf-8", "replace"))
        lines += [_Line(record, record.client_host or message.born_host) for record in read.records]
        unreadable += read.unreadable + bool(message.fault)
    return _Lines(lines, len(messages) >= ANSWER_MESSAGES_MAX, unreadable)


def _is_about(record: TraceRecord, key: str) -> bool:
    return record.message_id == key or key in (record.keys or "").split(KEY_SEPARATOR)


def _unique_key(routes: Routes, text: str) -> Steps[str | None]:
    """Return the unique key of the message with an offset message id; None if there is none. Only brokers of the
    cluster are asked."""
    try:
        address, _ = parse_message_id(text)
    except ProtocolError:
        return None
    info = yield from cluster_info(routes)
    if address not in info.addresses():
        return None
    try:
        message: StoredMessage = yield from message_by_id(text)
    except RemoteError:
        return None
    return message.unique_key or None


def _trace(message_id: str, lines: list[_Line]) -> MessageTrace:
    steps = [_step(line) for line in lines if line.record.kind not in (TraceKind.SUB_BEFORE, TraceKind.SUB_AFTER)]
    return MessageTrace(
        message_id=message_id,
        topic=_first(line.record.topic for line in lines),
        tags=_first(line.record.tags for line in lines),
        keys=_first(line.record.keys for line in lines),
        steps=sorted(steps + _deliveries(lines), key=lambda step: (step.time_ms, step.event is TraceEvent.DELIVERED)),
    )


def _first(texts: Iterable[str | None]) -> str:
    return next(filter(None, texts), "")


def _step(line: _Line) -> TraceStep:
    record = line.record
    event = {
        TraceKind.PUB: TraceEvent.SENT,
        TraceKind.END_TRANSACTION: TraceEvent.TRANSACTION_ENDED,
        TraceKind.RECALL: TraceEvent.RECALLED,
    }[record.kind]
    outcome = {
        TraceEvent.SENT: "stored" if record.success else "stored, but not as configured",
        TraceEvent.TRANSACTION_ENDED: (record.transaction_state or "")
        + (", after a check" if record.from_check else ""),
        TraceEvent.RECALLED: "recalled" if record.success else "refused",
    }[event]
    return TraceStep(
        event=event,
        time_ms=record.time_ms,
        group=record.group or "",
        client=line.client,
        broker=record.store_host or "",
        cost_ms=record.cost_ms if event is TraceEvent.SENT else None,
        success=record.success,
        outcome=outcome,
        offset_message_id=record.offset_message_id or "",
    )


def _deliveries(lines: list[_Line]) -> list[TraceStep]:
    """Join the beginnings and the ends of deliveries."""
    begins = {line.record.request_id: line for line in lines if line.record.kind is TraceKind.SUB_BEFORE}
    ends = {line.record.request_id: line for line in lines if line.record.kind is TraceKind.SUB_AFTER}
    steps = []
    for request_id in {**begins, **ends}:
        begin, end = begins.get(request_id), ends.get(request_id)
        known = [line for line in (begin, end) if line is not None]
        cost_ms = None if end is None else end.record.cost_ms
        steps.append(
            TraceStep(
                event=TraceEvent.DELIVERED,
                time_ms=begin.record.time_ms if begin is not None else max(0, known[0].record.time_ms - (cost_ms or 0)),
                group=_first(line.record.group for line in known),
                client=known[0].client,
                cost_ms=cost_ms,
                success=None if end is None else end.record.success,
                outcome="no end is known" if end is None else _outcome(end.record),
                retry_times=0 if begin is None else begin.record.retry_times,
            )
        )
    return steps


def _outcome(record: TraceRecord) -> str:
    if record.success:
        return "consumed"
    try:
        name = ConsumeReturnType(record.context_code).name
    except ValueError:
        name = f"code {record.context_code}"
    return f"not consumed: {name}"
