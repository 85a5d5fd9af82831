"""Records of RocketMQ's message trace: what a client did with a message, and when.

    line    fields joined by 0x01, closed by 0x02; the first is the kind
    body    lines, UTF-8; a message of the trace topic has one or more, by any client

A line has the fields of its kind in a fixed order (`_FIELDS`). A text that is missing is written as `null`.

Source: RocketMQ TraceDataEncoder, TraceBean, TraceConstants, TraceType; 4.9.8 and 5.3.3 write the same bytes, and
`Recall` is of 5.3 only.
"""

from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import Any, NamedTuple

import msgspec

from tandemq.model.message import KEY_SEPARATOR

FIELD_SEPARATOR = "\x01"
LINE_SEPARATOR = "\x02"
DEFAULT_REGION = "DefaultRegion"
"""Region of messages whose broker does not state one."""
_NULL = "null"
_INT64_END = 1 << 63
_BLANKS = str.maketrans({FIELD_SEPARATOR: " ", LINE_SEPARATOR: " "})


class TraceKind(Enum):
    """Action of a client that a trace record describes."""

    PUB = "Pub"
    """Sent, and stored by a broker."""
    SUB_BEFORE = "SubBefore"
    """Delivered to a consumer."""
    SUB_AFTER = "SubAfter"
    """Consumed, or not: the end of the `SubBefore` with the same request id."""
    END_TRANSACTION = "EndTransaction"
    """A transaction committed or rolled back by its producer."""
    RECALL = "Recall"
    """A timed message recalled before its delivery."""


class TraceMessageType(IntEnum):
    """Kind of the message, by its number in `Pub` and `EndTransaction`."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAYED = 3
    ORDERED = 4


class ConsumeReturnType(IntEnum):
    """How consumption ended, by its number in `SubAfter`."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class TraceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One line. A field that the line's kind does not have keeps its default."""

    kind: TraceKind
    message_id: str | None = None
    """The unique key, or the offset message id of a message without one."""
    time_ms: int = 0
    """When it began, for `SUB_AFTER` when it ended; milliseconds since 1970. 0: not known."""
    region: str | None = None
    group: str | None = None
    """Producer or consumer group."""
    topic: str | None = None
    tags: str | None = None
    keys: str | None = None
    """Words separated by blanks."""
    store_host: str | None = None
    """Address of the broker."""
    body_bytes: int = 0
    """As sent, so perhaps compressed."""
    cost_ms: int = 0
    message_type: int = 0
    """A `TraceMessageType`; other numbers are kept."""
    offset_message_id: str | None = None
    success: bool = True
    """Whether the status of a send was SEND_OK, or a message was acknowledged."""
    client_host: str | None = None
    """Address of the client, in lines of old clients; others leave it to the born host of the message."""
    request_id: str | None = None
    """Connects the `SUB_BEFORE` and the `SUB_AFTER` of one delivery."""
    retry_times: int = 0
    context_code: int = 0
    """A `ConsumeReturnType`; other numbers are kept."""
    transaction_id: str | None = None
    transaction_state: str | None = None
    """`COMMIT_MESSAGE`, `ROLLBACK_MESSAGE` or `UNKNOW`."""
    from_check: bool = False
    """Whether a transaction ended in the answer to a check."""


class TraceLines(NamedTuple):
    """Lines of one body."""

    records: list[TraceRecord]
    unreadable: int
    """Number of lines of an unknown kind or with invalid fields."""


_FIELDS = {
    TraceKind.PUB: (
        "time_ms",
        "region",
        "group",
        "topic",
        "message_id",
        "tags",
        "keys",
        "store_host",
        "body_bytes",
        "cost_ms",
        "message_type",
        "offset_message_id",
        "success",
    ),
    TraceKind.SUB_BEFORE: ("time_ms", "region", "group", "request_id", "message_id", "retry_times", "keys"),
    TraceKind.SUB_AFTER: (
        "request_id",
        "message_id",
        "cost_ms",
        "success",
        "keys",
        "context_code",
        "time_ms",
        "group",
    ),
    TraceKind.END_TRANSACTION: (
        "time_ms",
        "region",
        "group",
        "topic",
        "message_id",
        "tags",
        "keys",
        "store_host",
        "message_type",
        "transaction_id",
        "transaction_state",
        "from_check",
    ),
    TraceKind.RECALL: ("time_ms", "region", "group", "topic", "message_id", "success"),
}
"""Fields of each kind, as they are written."""
_READ_ALSO = {
    TraceKind.PUB: {
        11: _FIELDS[TraceKind.PUB][:11],
        12: (*_FIELDS[TraceKind.PUB][:11], "success"),
        14: (*_FIELDS[TraceKind.PUB], "client_host"),
    },
    TraceKind.SUB_AFTER: {count: _FIELDS[TraceKind.SUB_AFTER][:count] for count in (5, 6, 7)},
}
"""Fields of lines of older clients, by their number; a line with more fields than known is read up to those."""
_KINDS = {kind.value: kind for kind in TraceKind}
_TYPES: dict[str, str] = {
    **dict.fromkeys(("time_ms", "body_bytes", "cost_ms", "message_type", "retry_times", "context_code"), "number"),
    **dict.fromkeys(("success", "from_check"), "flag"),
}
"""Fields that are not texts."""


def encode_trace(record: TraceRecord) -> str:
    """Return the line of a record."""
    texts = [_text(getattr(record, name)) for name in _FIELDS[record.kind]]
    return FIELD_SEPARATOR.join([record.kind.value, *texts]) + LINE_SEPARATOR


def _text(value: str | int | None) -> str:
    if value is None:
        return _NULL
    if isinstance(value, str):
        # A received key may have the first of them in it.
        return value.translate(_BLANKS) if FIELD_SEPARATOR in value or LINE_SEPARATOR in value else value
    return str(value).lower() if isinstance(value, bool) else str(value)


def decode_traces(body: str) -> TraceLines:
    """Return the records of a body; any client may have written it, so lines that are none are counted.

    Cost: some 3 µs and, while the result is kept, 1 KiB per line, which may be as short as 20 characters.
    """
    records: list[TraceRecord] = []
    unreadable = 0
    for line in body.split(LINE_SEPARATOR):
        if line:
            record = _decode(line.split(FIELD_SEPARATOR))
            if record is None:
                unreadable += 1
            else:
                records.append(record)
    return TraceLines(records, unreadable)


def _decode(line: list[str]) -> TraceRecord | None:
    kind, texts = _KINDS.get(line[0]), line[1:]
    if kind is None:
        return None
    names = _FIELDS[kind]
    if len(texts) != len(names):
        while texts and not texts[-1]:
            texts.pop()
        known = _READ_ALSO.get(kind, {})
        names = known.get(len(texts), known.get(max(known, default=0), names) if len(texts) > len(names) else names)
        if len(texts) < len(names):
            return None
    try:
        values = {name: _value(name, text) for name, text in zip(names, texts, strict=False)}
    except ValueError:
        return None
    return TraceRecord(kind=kind, **values)


def _value(name: str, text: str) -> Any:
    kind = _TYPES.get(name)
    if kind == "number":
        number = int(text) if len(text) <= 20 else _INT64_END
        if not -_INT64_END <= number < _INT64_END:
            raise ValueError(f"{name} is no 64-bit number")
        return number
    if kind == "flag":
        return text.lower() == "true"
    return None if text == _NULL else text


def trace_keys(records: Iterable[TraceRecord]) -> list[str]:
    """Return the keys of a message of the trace topic: the ids and the keys of all messages it is about."""
    found: dict[str, None] = {}
    for record in records:
        for text in (record.message_id, record.keys):
            if text:
                found.update(dict.fromkeys(text.translate(_BLANKS).split(KEY_SEPARATOR)))
    found.pop("", None)
    return list(found)
