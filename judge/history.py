"""Histories: lines of JSON, read one by one and checked against the tables of fields.

The first line is the header, each other line an operation or its outcome:

    {"format": "message-history", "version": 1, "run": "seed 7", "promises": {"duplicates": "never"}}
    {"t": 1.5, "p": "a", "op": 1, "type": "invoke", "f": "send", "id": "a-1", "topic": "Orders"}
    {"t": 2.0, "p": "a", "op": 1, "type": "ok", "f": "send", "q": "Orders/broker-a/0", "offset": 0}

`OPERATIONS` is the reference of operations and fields, `Promises` that of promises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

FORMAT, VERSION = "message-history", 1
INVOKE, OK, FAIL, UNKNOWN = "invoke", "ok", "fail", "unknown"
TYPES = (INVOKE, OK, FAIL, UNKNOWN)

Line = Mapping[str, Any]
"""An operation or its outcome."""


class HistoryError(Exception):
    """A line that is not as the format requires."""

    def __init__(self, line: int, text: str) -> None:
        """`line`: its number, from 1 on."""
        super().__init__(f"line {line}: {text}")
        self.line = line
        self.text = text


class Operation(NamedTuple):
    """The fields of one kind of operation, each with its JSON type; a name that ends in "?" may be missing.

    `started`: of the line "invoke"; `done`: of the line "ok". Without `started` there is only the line "ok".
    """

    meaning: str
    started: Mapping[str, str]
    done: Mapping[str, str]


_AT = {"group": "text", "q": "text", "offset": "number"}
_GIVEN = {"group": "text", "q": "text", "messages": "messages"}
OPERATIONS: Mapping[str, Operation] = {
    "send": Operation(
        "A producer sends a message; another attempt has the same id and is an operation too, or counted by sends",
        {
            "id": "text",
            "topic": "text",
            "hash?": "text",
            "sends?": "number",
            "delay_ms?": "number",
            "due?": "number",
            "tx?": "flag",
        },
        {"status?": "text", "q?": "text", "offset?": "number", "sends?": "number"},
    ),
    "end": Operation(
        "A producer decides a transaction, by itself or because a broker asks", {"id": "text", "outcome": "text"}, {}
    ),
    "recall": Operation("A producer takes a timed message back", {"id": "text"}, {}),
    "poll": Operation(
        "A consumer gets messages of a queue",
        {},
        _GIVEN | {"from?": "number", "next?": "number", "partial?": "flag", "unordered?": "flag"},
    ),
    "assign": Operation(
        "A consumer's positions are new: an assignment, a seek, a restart", {}, {"group": "text", "queues?": "texts"}
    ),
    "hold": Operation(
        "The queues that a consumer reads from now on, as one of a group that shares them",
        {},
        {"group": "text", "queues": "texts"},
    ),
    "read": Operation(
        "A range of a queue is read, of a broker or from a member's log",
        {},
        {"q": "text", "from": "number", "next": "number", "messages": "messages", "complete?": "flag", "node?": "text"},
    ),
    "back": Operation(
        "A consumer sends a message back, to get it again",
        {"group": "text", "id": "text", "q?": "text", "offset?": "number"},
        {},
    ),
    "commit": Operation("A consumer commits an offset", _AT, {}),
    "offset": Operation(
        "A broker reports a committed offset", {"group": "text", "q": "text"}, {"offset": "number", "node?": "text"}
    ),
    "reset": Operation("An operator sets a committed offset", _AT, {}),
    "pop": Operation("A consumer pops messages", {}, _GIVEN | {"since": "number", "invisible_ms": "number"}),
    "ack": Operation("A consumer acknowledges a popped message", _AT, {}),
    "invisible": Operation(
        "A consumer changes the invisible time of a popped message", _AT | {"invisible_ms": "number"}, {}
    ),
    "fault": Operation(
        "A broker may have lost what it had, or given it again: acknowledgements, offsets, pops before this line",
        {},
        {"broker": "text", "text?": "text", "keeps?": "texts"},
    ),
    "settled": Operation("All faults are over, and consumers have what they will get", {}, {}),
}
"""Kind of operation (`f`) to its fields."""
MEANINGS: Mapping[str, str] = {
    "t": "time, ms of one clock for all processes",
    "p": "process: a client whose operations are ordered",
    "op": "number that an operation and its outcome share in a process",
    "type": "invoke, ok, fail (it certainly has no effect) or unknown",
    "id": "identity of a message",
    "topic": "topic to which a message is sent",
    "hash": "hash of its content",
    "sends": "how often it is sent at most, or was sent; default 1",
    "delay_ms": "delay of its level",
    "due": "earliest time of its delivery",
    "tx": "whether it is a half message",
    "status": "status of the response; default SEND_OK",
    "q": "queue: topic/broker/number; of waiting messages that of the system topic",
    "offset": "offset in the queue",
    "outcome": "commit or rollback",
    "group": "consumer group",
    "messages": "list of [offset, id] or [offset, id, hash]; offset -1 is unknown, and for pop and unordered polls",
    "from": "first offset requested; of a poll by default the consumer's position",
    "next": "offset behind the last one that was looked at",
    "partial": "whether messages may be left out, by a filter",
    "unordered": "whether messages may repeat: the consumer has no position",
    "queues": "queues whose positions are new, by default all; or all that are held",
    "complete": "whether the queue ends at next, with no operation in flight",
    "node": "member that was asked",
    "since": "time at which the pop was sent",
    "invisible_ms": "invisible time",
    "broker": "broker, as in q",
    "text": "what happened",
    "keeps": "statuses whose messages survive it",
}
"""Field to its meaning."""
_COMMON = {"t": "number", "p": "text", "f": "text", "type": "text"}
_CHOICES = {"outcome": ("commit", "rollback")}


@dataclass(frozen=True, slots=True)
class Promises:
    """What a run promises; what is not named has the strictest value."""

    kept: tuple[str, ...] = ("SEND_OK",)
    """Statuses whose messages may not be lost, and whose offsets are final; empty: any message may be lost."""
    duplicates: str = "sends"
    """"never"; "sends": as many copies as a message was sent; "allowed"."""
    repeated_delays: bool = False
    """Whether a message with a delay level may be delivered to its topic again."""
    order: str = "process"
    """"process": offsets follow the order of each process; "realtime": that of all of them; "none"."""
    early_ms: float = 0.0
    """Tolerance of clocks for delayed and timed messages."""
    late_ms: float = -1.0
    """Longest time from a message's due time to its first read; negative: no promise."""
    recall_ms: float = 0.0
    """How long before the due time a confirmed recall is certain to take effect."""
    offsets: str = "monotonic"
    """"monotonic", or "any": committed offsets may go back."""
    pops: str = "final"
    """"final": a confirmed acknowledgement and the invisible time hold; "any"."""
    shared_ms: float = -1.0
    """How long two consumers of a group may hold one queue at the same time; negative: no promise."""
    pop_slack_ms: float = 0.0
    """How far apart the clocks of members that give popped messages may be."""


_PROMISED = {
    "duplicates": ("never", "sends", "allowed"),
    "order": ("process", "realtime", "none"),
    "offsets": ("monotonic", "any"),
    "pops": ("final", "any"),
}


@dataclass(frozen=True, slots=True)
class Header:
    """The first line of a history."""

    run: str = ""
    system: str = ""
    promises: Promises = Promises()


def read_header(text: str) -> Header:
    """Return the header in the first line.

    Raises:
        HistoryError: it is none.
    """
    value = _object(1, text)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise HistoryError(1, f'no header: expected "format": "{FORMAT}" and "version": {VERSION}')
    promised = value.get("promises", {})
    if not isinstance(promised, dict):
        raise HistoryError(1, "promises: expected an object")
    return Header(str(value.get("run", "")), str(value.get("system", "")), _promises(promised))


def _promises(promised: Mapping[str, Any]) -> Promises:
    known = {field.name: field for field in fields(Promises)}
    values: dict[str, Any] = {}
    for name, value in promised.items():
        if name not in known:
            raise HistoryError(1, f"promises: unknown {name!r}; known are {', '.join(known)}")
        kind = {"kept": "texts", "repeated_delays": "flag"}.get(name, "text" if name in _PROMISED else "number")
        if not _is_of(kind, value) or value not in _PROMISED.get(name, (value,)):
            raise HistoryError(1, f"promises: {name} is {value!r}; expected {_PROMISED.get(name, kind)}")
        values[name] = tuple(value) if name == "kept" else value
    return Promises(**values)


def _object(number: int, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise HistoryError(number, f"no JSON: {error}") from None
    if not isinstance(value, dict):
        raise HistoryError(number, "expected an object")
    return value


def _is_of(kind: str, value: object) -> bool:
    if kind == "text":
        return type(value) is str
    if kind == "number":
        return type(value) in (int, float)
    if kind == "flag":
        return type(value) is bool
    if kind == "texts":
        return type(value) is list and all(type(one) is str for one in value)
    return type(value) is list and all(_is_message(one) for one in value)


def _is_message(value: object) -> bool:
    """Return whether this is [offset, id] or [offset, id, hash]."""
    return (
        type(value) is list
        and 2 <= len(value) <= 3
        and type(value[0]) is int
        and all(type(one) is str for one in value[1:])
    )


class _Fields(NamedTuple):
    """Required and optional fields of one kind of line."""

    required: tuple[tuple[str, str], ...]
    optional: tuple[tuple[str, str], ...]


def _fields_of(f: str, kind: str) -> _Fields:
    operation = OPERATIONS[f]
    named = dict(_COMMON)
    named |= {INVOKE: operation.started, OK: operation.done}.get(kind, {})
    if operation.started:
        named["op"] = "number"
    return _Fields(
        tuple((name, type_) for name, type_ in named.items() if not name.endswith("?")),
        tuple((name[:-1], type_) for name, type_ in named.items() if name.endswith("?")),
    )


_FIELDS = {
    (f, kind): _fields_of(f, kind)
    for f, operation in OPERATIONS.items()
    for kind in (TYPES if operation.started else (OK,))
}


def parse(number: int, text: str) -> Line:
    """Return a line after the header.

    Raises:
        HistoryError: it is not as the format requires.
    """
    value = _object(number, text)
    f, kind = value.get("f"), value.get("type")
    known = _FIELDS.get((f, kind)) if isinstance(f, str) and isinstance(kind, str) else None
    if known is None:
        raise HistoryError(number, f"unknown operation: f is {f!r}, type is {kind!r}")
    for name, type_ in known.required:
        if name not in value:
            raise HistoryError(number, f"{f}, {kind}: {name} is missing")
        if not _is_of(type_, value[name]) or value[name] not in _CHOICES.get(name, (value[name],)):
            raise HistoryError(number, f"{f}, {kind}: {name} is {value[name]!r}; expected {_expected(name, type_)}")
    for name, type_ in known.optional:
        if name in value and not _is_of(type_, value[name]):
            raise HistoryError(number, f"{f}, {kind}: {name} is {value[name]!r}; expected {type_}")
    if "q" in value and value["q"].count("/") != 2:
        raise HistoryError(number, f"{f}, {kind}: q is {value['q']!r}; expected topic/broker/number")
    return value


def _expected(name: str, type_: str) -> str:
    return " or ".join(_CHOICES[name]) if name in _CHOICES else type_


def read_lines(lines: Iterable[str]) -> Iterator[tuple[int, Line]]:
    """Yield each line after the header with its number; without empty ones.

    Raises:
        HistoryError: a line is not as the format requires.
    """
    for number, text in enumerate(lines, 2):
        if text.strip():
            yield number, parse(number, text)
