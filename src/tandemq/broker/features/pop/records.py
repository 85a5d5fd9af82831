"""Checkpoints and acknowledgements of POP as records of the log.

A checkpoint says which messages a pop took from a queue, an acknowledgement which of them are done with. Both are timed
messages for the revive topic, in whose queues they are found when the messages would come back. Format: JSON as Java
brokers write and read it. Source: docs/reference/pop.md; RocketMQ PopCheckPoint, AckMsg, BatchAckMsg.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tandemq.codec.remoting.bodies import integer
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError
from tandemq.model.message import TAGS, TIMER_DELIVER_MS, UNIQ_KEY
from tandemq.model.pop import MESSAGES_MAX

CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG = "ck", "ack", "bAck"
CHECKPOINT_AHEAD_MS = 1_000
"""How long before its messages come back a checkpoint is due, so that it lies before its acknowledgements."""
_LONG_NAMES = {
    "ao": "ackOffset",
    "aol": "ackOffsetList",
    "so": "startOffset",
    "c": "consumerGroup",
    "t": "topic",
    "q": "queueId",
    "pt": "popTime",
    "bn": "brokerName",
}
"""Names in records of old Java brokers."""


class Popped(NamedTuple):
    """What identifies the messages that one pop took from one queue."""

    topic: str
    """In which they lie; perhaps a retry topic."""
    queue_id: int
    group: str
    start_offset: int
    """Queue offset at which the pop began to read."""
    pop_ms: int
    broker: str


class PopCheckpoint(NamedTuple):
    """Messages that come back at a time unless they are acknowledged."""

    popped: Popped
    invisible_ms: int
    offsets: tuple[int, ...]
    """Queue offsets of the messages."""
    acked: int = 0
    """A bit for each of them that is acknowledged."""
    puts: int = 0
    """How often this checkpoint was stored again, since its messages could not be read or stored."""
    is_suspended: bool = False
    """Whether its messages come back without one more attempt: they were put off, and not consumed."""

    @property
    def revive_ms(self) -> int:
        """Calendar time at which the messages come back."""
        return self.popped.pop_ms + self.invisible_ms


class Acknowledged(NamedTuple):
    """Messages of a pop that are done with."""

    popped: Popped
    offsets: Sequence[int]


def checkpoint_body(checkpoint: PopCheckpoint) -> bytes:
    """Return the body of a checkpoint's record."""
    popped, start = checkpoint.popped, checkpoint.popped.start_offset
    fields: dict[str, object] = {
        "bm": checkpoint.acked,
        "bn": popped.broker,
        "c": popped.group,
        "d": [offset - start for offset in checkpoint.offsets],
        "it": checkpoint.invisible_ms,
        "n": len(checkpoint.offsets),
        "pt": popped.pop_ms,
        "q": popped.queue_id,
        "reviveTime": checkpoint.revive_ms,
        "ro": 0,
        "so": start,
        "t": popped.topic,
    }
    if checkpoint.puts:
        fields["rp"] = str(checkpoint.puts)
    if checkpoint.is_suspended:
        fields["sp"] = True
    return dumps(fields)


def checkpoint_properties(checkpoint: PopCheckpoint) -> dict[str, str]:
    """Return the properties of a checkpoint's record, with the time at which it is due."""
    return _properties(
        CHECKPOINT_TAG, checkpoint.popped, checkpoint.popped.start_offset, checkpoint.revive_ms - CHECKPOINT_AHEAD_MS
    )


def ack_body(acked: Acknowledged) -> bytes:
    """Return the body of the record of one or several acknowledgements."""
    popped, offsets = acked
    fields: dict[str, object] = {"ao": offsets[0]} if len(offsets) == 1 else {"ao": -1, "aol": list(offsets)}
    return dumps(
        fields
        | {
            "bn": popped.broker,
            "c": popped.group,
            "pt": popped.pop_ms,
            "q": popped.queue_id,
            "so": popped.start_offset,
            "t": popped.topic,
        }
    )


def ack_properties(acked: Acknowledged, revive_ms: int) -> dict[str, str]:
    """Return the properties of such a record, with the time at which it is due."""
    popped, offsets = acked
    if len(offsets) == 1:
        return _properties(ACK_TAG, popped, offsets[0], revive_ms)
    return _properties(BATCH_ACK_TAG, popped, -1, revive_ms)


def _properties(tag: str, popped: Popped, offset: int, due_ms: int) -> dict[str, str]:
    name = f"{popped.topic}@{popped.queue_id}@{offset}@{popped.group}@{popped.pop_ms}@{popped.broker}@{tag}"
    return {TAGS: tag, UNIQ_KEY: name, TIMER_DELIVER_MS: str(due_ms)}


def read_record(tag: str, body: bytes, broker: str) -> PopCheckpoint | Acknowledged | None:
    """Return what a record of the revive topic says; None for one of another kind.

    Args:
        tag: of the record.
        body: of the same.
        broker: name of this broker, for records without one.

    Raises:
        ProtocolError: it is malformed.
    """
    if tag not in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG):
        return None
    fields = loads(body)
    if not isinstance(fields, dict):
        raise ProtocolError(f"{tag}: an object is expected")
    popped = Popped(
        _text(fields, "t"),
        _number(fields, "q"),
        _text(fields, "c"),
        _number(fields, "so"),
        _number(fields, "pt"),
        _get(fields, "bn") or broker,
    )
    if tag == ACK_TAG:
        return Acknowledged(popped, (_number(fields, "ao"),))
    if tag == BATCH_ACK_TAG:
        return Acknowledged(popped, _numbers(_get(fields, "aol")))
    return _checkpoint(fields, popped)


def _checkpoint(fields: Mapping[str, Any], popped: Popped) -> PopCheckpoint:
    count, distances = _number(fields, "n"), fields.get("d")
    if not 0 <= count <= MESSAGES_MAX:
        raise ProtocolError(f"ck: n={count} messages, at most {MESSAGES_MAX} are possible")
    found = range(count) if distances is None else _numbers(distances)
    if len(found) != count:
        raise ProtocolError(f"ck: {len(found)} distances of {count} messages")
    offsets = tuple([popped.start_offset + distance for distance in found])
    puts = fields.get("rp")
    return PopCheckpoint(
        popped,
        _number(fields, "it"),
        offsets,
        _number(fields, "bm") & (1 << count) - 1,
        integer(puts, "rp") if puts is not None else 0,
        fields.get("sp") is True,
    )


def _get(fields: Mapping[str, Any], name: str) -> Any:
    found = fields.get(name)
    return fields.get(_LONG_NAMES.get(name, name)) if found is None else found


def _number(fields: Mapping[str, Any], name: str) -> int:
    return integer(_get(fields, name), name)


def _text(fields: Mapping[str, Any], name: str) -> str:
    found = _get(fields, name)
    if not isinstance(found, str) or not found:
        raise ProtocolError(f"{name}={found!r:.64} is no name")
    return found


def _numbers(found: Any) -> tuple[int, ...]:
    if not isinstance(found, list) or len(found) > MESSAGES_MAX:
        raise ProtocolError(f"{found!r:.64} is no list of at most {MESSAGES_MAX} offsets")
    return tuple([integer(item, "offset") for item in found])
