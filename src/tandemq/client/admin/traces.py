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
from tandemq.codec.message_trace import LINE_SEPARATOR, ConsumeReturnType, TraceKind, TraceRecord, decode_traces
from tandemq.codec.record.record import parse_message_id
from tandemq.errors import NoRoute, ProtocolError, RemoteError
from tandemq.model.message import KEY_SEPARATOR, StoredMessage
from tandemq.model.topic import TRACE_TOPIC

ANSWER_MESSAGES_MAX = 64
"""Maximum number of messages that a broker returns for a key, unless it is configured otherwise."""
TRACE_MESSAGES_MAX = 256
MESSAGES_MAX = 32
"""Maximum number of messages with one key of which the traces are completed."""
BODY_BYTES_MAX = 4 << 20
"""Maximum size of the bodies that one search reads. Clients send messages of at most 128,000 characters, but any client
may have written to the topic, and what a body of 64 MiB says takes gigabytes."""
LINES_MAX = 4_000
"""Maximum number of lines about one key."""
_LINE_END = LINE_SEPARATOR.encode()


class TraceEvent(Enum):
    """Kind of an event of a message."""

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
    """Number of trace lines that could not be read, of any message."""


class _Line(NamedTuple):
    record: TraceRecord
    client: str


class _Lines(NamedTuple):
    lines: list[_Line]
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
    reader = _Reader(routes, topic, begin_ms, end_ms)
    lines, unreadable = yield from reader.lines(key)
    if not lines:
        unique_key = yield from _unique_key(routes, key)
        if unique_key is None:
            return FoundTraces([], reader.is_cut, unreadable)
        key = unique_key
        lines, unreadable = yield from reader.lines(key)
    of_messages: dict[str, dict[_Line, None]] = {}
    for line in lines:
        of_messages.setdefault(line.record.message_id or "", {})[line] = None
    # Lines without keys are found by the id only.
    for message_id in [other_id for other_id in of_messages if other_id != key][:MESSAGES_MAX]:
        more = yield from reader.lines(message_id)
        of_messages[message_id] |= {line: None for line in more.lines if line.record.message_id == message_id}
        unreadable = max(unreadable, more.unreadable)
    traces = [_trace(message_id, list(found)) for message_id, found in of_messages.items()]
    is_cut = reader.is_cut or len(of_messages) > MESSAGES_MAX
    return FoundTraces(sorted(traces, key=lambda trace: trace.steps[0].time_ms), is_cut, unreadable)


class _Reader:
    """The bodies that are read in one search, together at most `BODY_BYTES_MAX`."""

    def __init__(self, routes: Routes, topic: str, begin_ms: int, end_ms: int) -> None:
        self._routes = routes
        self._topic = topic
        self._begin_ms = begin_ms
        self._end_ms = end_ms
        self._room = BODY_BYTES_MAX
        self.is_cut = False
        """Whether there may be more lines than were read."""

    def lines(self, key: str) -> Steps[_Lines]:
        """Return the lines about a key."""
        messages = yield from messages_by_key(
            self._routes, self._topic, key, TRACE_MESSAGES_MAX, self._begin_ms, self._end_ms
        )
        self.is_cut |= len(messages) >= ANSWER_MESSAGES_MAX
        lines: list[_Line] = []
        unreadable = 0
        for message in messages:
            if message.fault:
                unreadable += 1
                continue
            data = message.body
            if len(data) > self._room:
                self.is_cut = True
                data = data[: data.rfind(_LINE_END, 0, self._room) + 1]
            self._room -= len(data)
            read = decode_traces(data.decode("utf-8", "replace"))
            found = [record for record in read.records if record.message_id]
            unreadable += read.unreadable + len(read.records) - len(found)
            lines += [
                _Line(record, record.client_host or message.born_host) for record in found if _is_about(record, key)
            ]
        self.is_cut |= len(lines) > LINES_MAX
        return _Lines(lines[:LINES_MAX], unreadable)


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
