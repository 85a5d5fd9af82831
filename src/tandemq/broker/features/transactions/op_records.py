"""Op records: which half messages are over, in the queue of `RMQ_SYS_TRANS_OP_HALF_TOPIC`.

The body has queue offsets of half messages, each followed by a comma, as RocketMQ 5 writes it; a single one has no
comma, as 4.9 writes it, so that brokers of both lines read it.
Two properties of TandemQ's own say what another master needs to continue: it has the log, and perhaps no current offset
table.

Source: docs/reference/transactions.md; RocketMQ TransactionalMessageServiceImpl.
"""

from collections.abc import Iterable
from typing import NamedTuple

from tandemq.model.message import TAGS, encode_properties

OP_TAG = "d"
PROGRESS = "TANDEM_TRANSACTIONS"
"""Property "H,O": the oldest open half message, and the first op record that names one at or behind it."""
COPIED = "TANDEM_COPIED"
"""Property of an op record whose half messages were copied by a check, and are open as copies."""


class Progress(NamedTuple):
    """From where another master reads the two queues; queue offsets."""

    half: int
    op: int


class OpRecord(NamedTuple):
    """An op record as read."""

    offsets: list[int]
    """Queue offsets of half messages."""
    is_copied: bool
    progress: Progress | None
    """None if another broker software wrote the record."""


def op_body(offsets: Iterable[int]) -> bytes:
    """Encode the body of an op record."""
    texts = [str(offset) for offset in offsets]
    return (texts[0] if len(texts) == 1 else ",".join([*texts, ""])).encode()


def op_properties(progress: Progress, *, is_copied: bool) -> bytes:
    """Encode the properties of an op record."""
    properties = {TAGS: OP_TAG, "WAIT": "true", PROGRESS: f"{progress.half},{progress.op}"}
    if is_copied:
        properties[COPIED] = "true"
    return encode_properties(properties).encode()


def read_op(body: bytes, properties: dict[str, str]) -> OpRecord:
    """Decode an op record; offsets that are no numbers, and records with another tag, are ignored."""
    offsets: list[int] = []
    if properties.get(TAGS) == OP_TAG:
        offsets = _numbers(body.decode("ascii", "replace"))
    found = _numbers(properties.get(PROGRESS, ""))
    progress = Progress(*found) if len(found) == 2 else None
    return OpRecord(offsets, properties.get(COPIED) == "true", progress)


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.isdecimal() and len(part) <= 18]
