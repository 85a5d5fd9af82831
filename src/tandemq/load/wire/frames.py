"""Request frames made from prepared pieces, so that a frame costs a tenth of a microsecond.

A frame changes between two sends in three places only: the opaque, the UNIQ_KEY of every message, and the born
timestamp. The first two end in a counter. That counter has two parts: the low part is the number of a *slot* and
is part of the prepared bytes; the high part (the *chunk*, six decimal digits) is the same for all frames of one
send call. All pieces between the chunk's places are constant, and one `bytes.join` with the chunk as separator writes
several frames at once:

    chunk.join([ head | …"opaque": | 003…body + next head | …"opaque": | 004…body ])
                     ^chunk        ^chunk                  ^chunk        ^chunk

Timestamps are in the heads, which are rendered again every few milliseconds. All frames of a source have the same
length, because every changing number has a fixed number of digits.

The header is what a Java 5.x producer writes: one-letter names, JSON, properties with UNIQ_KEY, WAIT and TAGS.
Source: docs/reference/requests.md 1, 2; docs/internals/remoting.md 2, 3;
docs/internals/storage.md 4.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass

_CHUNK_FIRST = 100_000
_CHUNK_END = 1_000_000
_MARK = b"\xf5MARK\xf5"  # As long as a chunk; 0xF5 never occurs in UTF-8 text, so no body or header contains it.
_SLOTS_MAX = 1_000  # Three digits of the opaque.
_BATCH_MAX = 999  # Three digits of the unique key; 000 is the batch itself.
_BORN_EVERY_MS = 5

_SEND_V2 = 310
_SEND_BATCH = 320
_PULL = 11
_VERSION = 479  # What a 5.3.3 client reports.


@dataclass(frozen=True, slots=True)
class SendShape:
    """Layout of every message of a run."""

    topic: str
    body_bytes: int = 128
    queue_count: int = 8  # Messages go to queues 0 … queue_count - 1 in turn.
    batch: int = 1  # Messages per frame; above 1 SEND_BATCH_MESSAGE (320) is sent instead of 310.
    tag: str = ""
    group: str = "load_producer"
    broker_name: str = "broker-a"


def request_frame(code: int, opaque: int, fields: Mapping[str, object], body: bytes = b"", flag: int = 0) -> bytes:
    """Return one request frame with a JSON header; field values are written as strings."""
    header = _header(code, str(opaque), {name: str(value) for name, value in fields.items()}, flag)
    return _frame(header, body)


def _header(code: int, opaque: str, fields: Mapping[str, str], flag: int = 0) -> bytes:
    ext = json.dumps(fields, separators=(",", ":"), ensure_ascii=False)
    return (
        f'{{"code":{code},"extFields":{ext},"flag":{flag},"language":"JAVA","opaque":{opaque},'
        f'"serializeTypeCurrentRPC":"JSON","version":{_VERSION}}}'
    ).encode("utf-8", "surrogateescape")


def _frame(header: bytes, body: bytes) -> bytes:
    return struct.pack(">II", 4 + len(header) + len(body), len(header)) + header + body


def body_text(size: int) -> bytes:
    """Return `size` bytes of printable text that does not repeat within a few hundred bytes."""
    text = bytearray()
    state = 1
    while len(text) < size:
        state = (state * 1_103_515_245 + 12_345) & 0x7FFFFFFF
        text.append(33 + (state >> 16) % 94)
    return bytes(text)


class SendFrames:
    """An endless source of SEND frames, each message with a UNIQ_KEY of its own.

    `identity` (32 bits) must differ between all sources that ever send to one broker; it is part of every UNIQ_KEY.
    """

    __slots__ = (
        "_body",
        "_born_due_ms",
        "_chunk",
        "_first",
        "_first_around",
        "_heads",
        "_identity",
        "_marks",
        "_pieces",
        "_shape",
        "_slot",
        "_slots",
        "_tails",
        "_templates",
        "frame_bytes",
    )

    def __init__(self, shape: SendShape, *, identity: int, slots: int, wall_ms: int, body_start: bytes = b"") -> None:
        """Prepare frames for `slots` (1 to 1000) consecutive messages; more slots allow longer send calls.

        `body_start` begins every body, for a caller that patches it.
        """
        assert 1 <= shape.batch <= _BATCH_MAX and shape.queue_count >= 1
        rounds = max(1, -(-slots // shape.queue_count))
        self._slots = min(rounds * shape.queue_count, _SLOTS_MAX)
        self._shape = shape
        self._identity = identity & 0xFFFFFFFF
        self._body = (body_start + body_text(shape.body_bytes))[: shape.body_bytes]
        self._chunk = _CHUNK_FIRST
        self._slot = 0
        self._first = 0  # The slot of the first frame of the last take; -1: see the next.
        self._first_around = b""
        self._prepare(wall_ms)

    def _prepare(self, wall_ms: int) -> None:
        """Split the frames of all slots at their marks, at the start and when the chunk numbers run out."""
        cut = [self._render(slot).split(_MARK) for slot in range(self._slots)]
        self._marks = len(cut[0]) - 1
        self._templates = [pieces[0] for pieces in cut]
        self._tails = [pieces[-1] for pieces in cut]
        self.frame_bytes = sum(map(len, cut[0])) + self._marks * len(_MARK)
        self._pieces = [piece for pieces in cut for piece in pieces[:-1]]
        self._stamp(wall_ms)

    def _stamp(self, wall_ms: int) -> None:
        """Write the born timestamp into the heads and join each with the tail before it."""
        born = b"%013d" % wall_ms
        self._heads = heads = [head.replace(b"BORNTIMESTAMP", born) for head in self._templates]
        before = b""
        position = 0
        for head, tail in zip(heads, self._tails, strict=True):
            self._pieces[position] = before + head
            position += self._marks
            before = tail
        self._born_due_ms = wall_ms + _BORN_EVERY_MS

    def take(self, count: int, wall_ms: int) -> bytes:
        """Return `count` (at least 1) frames in one piece of bytes.

        Cost: about 0.1 µs per frame and one copy.
        """
        if wall_ms >= self._born_due_ms:
            self._stamp(wall_ms)
        chunk = self._chunk
        if chunk >= _CHUNK_END:
            self._identity = (self._identity + 1) & 0xFFFFFFFF
            chunk = _CHUNK_FIRST
            self._prepare(wall_ms)
        slot = self._slot
        end = slot + count
        if end > self._slots:
            return self._take_around(count, wall_ms)
        self._chunk = chunk + 1
        self._slot = end
        self._first = slot
        marks = self._marks
        return (b"%d" % chunk).join(
            [self._heads[slot], *self._pieces[slot * marks + 1 : end * marks], self._tails[end - 1]]
        )

    def _take_around(self, count: int, wall_ms: int) -> bytes:
        """Return `count` frames across the last slot: the rest of the slots, then again from the first."""
        parts = []
        first = None
        while count > 0:
            if self._slot == self._slots:
                self._slot = 0
            fits = min(count, self._slots - self._slot)
            parts.append(self.take(fits, wall_ms))
            first = first or self.first_opaque()
            count -= fits
        assert first is not None
        self._first_around = first
        self._first = -1
        return b"".join(parts)

    def first_opaque(self) -> bytes:
        """Return the nine digits of the opaque of the first frame of the last `take`."""
        return b"%d%03d" % (self._chunk - 1, self._first) if self._first >= 0 else self._first_around

    def _render(self, slot: int) -> bytes:
        """Return one slot's frame with marks for the chunk and a placeholder for the timestamp."""
        shape = self._shape
        mark = _MARK.decode("utf-8", "surrogateescape")
        fields = {
            "a": shape.group,
            "b": shape.topic,
            "c": "TBW102",
            "d": str(shape.queue_count),
            "e": str(slot % shape.queue_count),
            "f": "0",
            "g": "BORNTIMESTAMP",
            "h": "0",
            "i": self._properties(self._unique_key(slot, 0)).decode("utf-8", "surrogateescape"),
            "j": "0",
            "k": "false",
            "m": "true" if shape.batch > 1 else "false",
            "n": shape.broker_name,
        }
        code = _SEND_BATCH if shape.batch > 1 else _SEND_V2
        body = self._body if shape.batch == 1 else b"".join(map(self._sub_message, *self._sub_numbers(slot)))
        return _frame(_header(code, f"{mark}{slot:03d}", fields), body)

    def _sub_numbers(self, slot: int) -> tuple[list[int], range]:
        # Number 0 is the key of the batch itself.
        return [slot] * self._shape.batch, range(1, self._shape.batch + 1)

    def _sub_message(self, slot: int, number: int) -> bytes:
        """One message inside a batch body: sizes, zero magic and CRC, body, properties."""
        properties = self._properties(self._unique_key(slot, number))
        size = 4 * 5 + len(self._body) + 2 + len(properties)
        return b"".join(
            [
                struct.pack(">IIIII", size, 0, 0, 0, len(self._body)),
                self._body,
                struct.pack(">H", len(properties)),
                properties,
            ]
        )

    def _unique_key(self, slot: int, number: int) -> bytes:
        """Return 32 characters as Java writes them: address, process, loader hash, then time and counter (ours: chunk
        …).
        """
        high = self._identity
        return b"7F000001%04X%08X%b%03d%03d" % (high & 0xFFFF, high, _MARK, slot, number)

    def _properties(self, unique_key: bytes) -> bytes:
        tag = b"TAGS\x01%b\x02" % self._shape.tag.encode() if self._shape.tag else b""
        return b"UNIQ_KEY\x01%b\x02WAIT\x01true\x02%b" % (unique_key, tag)


class PullFrames:
    """PULL_MESSAGE frames for one consumer group and topic, prepared except for three numbers."""

    __slots__ = ("_format",)

    def __init__(
        self, topic: str, *, group: str = "load_consumer", max_messages: int = 32, suspend_ms: int = 0
    ) -> None:
        """`suspend_ms` above 0 asks the broker to hold a pull that finds nothing (long poll)."""
        # 4: the subscription is in the request, so the group needs no heartbeat; 2: hold the request.
        sys_flag = 4 | (2 if suspend_ms else 0)
        fields = {
            "consumerGroup": group.replace("%", "%%"),
            "topic": topic.replace("%", "%%"),
            "queueId": "%s",
            "queueOffset": "%s",
            "maxMsgNums": str(max_messages),
            "sysFlag": str(sys_flag),
            "commitOffset": "0",
            "suspendTimeoutMillis": str(suspend_ms),
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }
        self._format = _header(_PULL, "%s", fields).decode()

    def frame(self, queue_id: int, queue_offset: int, opaque: int) -> bytes:
        """Return one pull of a queue from an offset."""
        return _frame((self._format % (queue_id, queue_offset, opaque)).encode(), b"")
