"""Request frames prepared in one block of memory, so that a frame costs the generator a tenth of a microsecond.

Thousands of frames are rendered once, one after the other. What must be fresh in each message is then rewritten in
place, for some hundred frames at a time, by a few numpy calls:

    … KEYS order-4711 … UNIQ_KEY 7F00…0000018F2A11 … "g":"1700000000000" …      one of up to 20,000 frames
                 ^digits                  ^12 hex          ^13 digits

Everything else of a frame stays as it is: body, tag, queue, opaque. A send call gets a view of consecutive frames.

With `varied` messages are as applications send them: bodies of 128 to 896 B, a key of 7 to 15 characters, one of five
tags, one more property, a random queue. Without, all bodies have one length and queues are used in turn.

Source: docs/reference/requests.md 1, 2; docs/internals/remoting.md 2, 3; docs/internals/storage.md 4; frames of Java
clients in tests/golden/frames.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tandemq.load.wire.headers import VERSION_4, VERSION_5, binary_frame, json_frame, json_header

Form = Literal["json", "v5", "binary", "v1"]
FORMS: tuple[Form, ...] = ("json", "v5", "binary", "v1")
"""SEND_MESSAGE_V2 of a Java 4.9 client and of a 5.x client, the same with a binary header, SEND_MESSAGE (10)."""

RARE_TAG = "audit"
"""The tag of one in a hundred varied messages."""
TAGS = {"paid": 40, "created": 30, "shipped-abroad": 20, "returned-by-customer": 9, RARE_TAG: 1}
"""Tags of varied messages, with their shares in per cent."""

VARIED_BODY_MIN, VARIED_BODY_MAX = 128, 896
"""Bytes of the bodies of varied messages."""
_MESSAGES_MAX = 20_000
_POOL_BYTES_MAX = 64 << 20
_BLOCK_FRAMES = 512

_SEND, _SEND_V2, _SEND_BATCH = 10, 310, 320
_PULL = 11
_END_TRANSACTION, _COMMIT = 37, 8

# Places are marked with characters that occur nowhere else: bodies and tags have letters, digits and spaces.
_KEY_MARK, _BORN_MARK, _ORDER_MARK = "#" * 12, "@" * 13, "$"
_PLACES = re.compile(rb"(?P<key>#{12})|(?P<born>@{13})|(?<=order-)(?P<order>\${1,9})")
_HEX = np.frombuffer(b"0123456789ABCDEF", np.uint8)
_SHIFTS = np.arange(44, -1, -4, dtype=np.int64)
_Bytes = npt.NDArray[np.uint8]
_Positions = npt.NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class SendShape:
    """Layout of the messages of a run."""

    topic: str
    body_bytes: int = 128  # Ignored if `varied`.
    queue_count: int = 8  # Of each topic.
    batch: int = 1  # Messages per frame; above 1 SEND_BATCH_MESSAGE (320) is sent.
    tag: str = ""  # Ignored if `varied`.
    group: str = "load_producer"
    broker_name: str = "broker-a"
    form: Form = "json"
    varied: bool = False
    topics: int = 1  # Above 1 the topics are `topic` with a number.
    delay: int = 0  # Level of delay; 0: none.
    delay_s: int = 0  # Seconds until the delivery, a timed message; 0: none.
    half: bool = False  # Half messages of transactions, of the producer group `group`.

    def topic_name(self, number: int) -> str:
        """Return the name of one of the topics."""
        return f"{self.topic}-{number}" if self.topics > 1 else self.topic

    def topic_names(self) -> list[str]:
        """Return the names of all topics."""
        return [self.topic_name(number) for number in range(self.topics)]


def body_text(size: int) -> bytes:
    """Return `size` bytes of text that does not repeat within some thousand bytes."""
    letters = b"abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789"
    text = bytes(Random(1).choices(letters, k=min(size, 1 << 16)))
    return (text * (size // max(1, len(text)) + 1))[:size]


class _Block(NamedTuple):
    """Positions of the fields that are rewritten in some hundred frames of the pool."""

    keys: _Positions
    born: _Positions
    orders: _Positions


class SendFrames:
    """An endless source of SEND frames; each message has a UNIQ_KEY of its own, and varied ones fresh KEYS.

    `identity` (32 bits) must differ between all sources that ever send to one broker; it is part of every UNIQ_KEY.
    """

    def __init__(
        self,
        shape: SendShape,
        *,
        identity: int,
        wall_ms: int,
        frames: int | None = None,
        body_start: bytes = b"",
    ) -> None:
        """Render the frames, `frames` of them if given, else as many as make thousands of kinds of messages.

        `body_start` begins every body, for a caller that patches it.
        """
        assert shape.batch >= 1 and shape.queue_count >= 1 and shape.topics >= 1
        self._numbers = np.random.default_rng(identity)
        self._serial = 0
        # Java's counter of requests goes on as long as the process runs.
        self._first_number = 1_000_000 + identity % 1_000_000_000
        render = _Renderer(shape, identity, body_start)
        rendered = [render.frame(0, self._first_number)]
        count = frames or _frame_count(shape, len(rendered[0]))
        rendered += [render.frame(slot, self._first_number + slot) for slot in range(1, count)]
        self.mean_body_bytes = render.body_bytes / (count * shape.batch)
        self.count = count
        self._ends = np.cumsum([0, *map(len, rendered)]).tolist()
        self._pool: _Bytes = np.frombuffer(b"".join(rendered), np.uint8).copy()
        self._view = self._pool.data
        self._blocks = [
            self._find_places(first, min(first + _BLOCK_FRAMES, count)) for first in range(0, count, _BLOCK_FRAMES)
        ]
        self._next = self._first = 0
        self._fresh_to = 0  # The frames before this one have been rewritten since the pool was entered last.
        self._rewrite(wall_ms)

    def _find_places(self, first: int, end: int) -> _Block:
        start = self._ends[first]
        found: dict[str, list[_Positions]] = {"key": [], "born": [], "order": []}
        for place in _PLACES.finditer(self._view[start : self._ends[end]]):
            found[str(place.lastgroup)].append(np.arange(start + place.start(), start + place.end(), dtype=np.intp))
        none = np.empty(0, np.intp)
        keys, born, orders = (np.concatenate(places or [none]) for places in found.values())
        return _Block(keys, born, orders)

    def _rewrite(self, wall_ms: int) -> None:
        """Make the next block of messages fresh."""
        block = self._blocks[self._fresh_to // _BLOCK_FRAMES]
        count = len(block.keys) // len(_SHIFTS)
        serials = np.arange(self._serial, self._serial + count, dtype=np.int64)
        self._serial += count
        self._pool[block.keys] = _HEX[(serials[:, None] >> _SHIFTS) & 15].ravel()
        self._pool[block.born.reshape(-1, len(_BORN_MARK))] = np.frombuffer(b"%013d" % wall_ms, np.uint8)
        self._pool[block.orders] = self._numbers.integers(ord("0"), ord("9") + 1, len(block.orders), np.uint8)
        self._fresh_to = min(self._fresh_to + _BLOCK_FRAMES, self.count)

    def take(self, count: int, wall_ms: int) -> memoryview | bytes:
        """Return `count` (at least 1) frames in one piece, valid until the next call."""
        first = self._first = self._next
        end = first + count
        if end > self.count:
            return self._take_around(count, wall_ms)
        while self._fresh_to < end:
            self._rewrite(wall_ms)
        self._next = end
        return self._view[self._ends[first] : self._ends[end]]

    def _take_around(self, count: int, wall_ms: int) -> bytes:
        """Return the frames from the present one to the end of the pool, then frames from its beginning."""
        first, pieces = self._first, []
        while count:
            if self._next == self.count:
                self._next = self._fresh_to = 0
            fits = min(count, self.count - self._next)
            pieces.append(bytes(self.take(fits, wall_ms)))
            count -= fits
        self._first = first % self.count
        return b"".join(pieces)

    def first_opaque(self) -> int:
        """Return the opaque of the first frame of the last `take`."""
        return self._first_number + self._first


def _frame_count(shape: SendShape, frame_bytes: int) -> int:
    frames = min(_MESSAGES_MAX // shape.batch, _POOL_BYTES_MAX // frame_bytes)
    rounds = shape.queue_count * shape.topics
    # Whole rounds, so that queues that are used in turn get equal numbers of messages.
    return max(1, frames // rounds) * rounds if rounds <= frames else max(1, frames)


class _Renderer:
    """Renders frames with marks at the places that are rewritten later."""

    def __init__(self, shape: SendShape, identity: int, body_start: bytes) -> None:
        self._shape = shape
        self._identity = identity & 0xFFFFFFFF
        self._random = Random(identity)
        self._start = body_start
        self._body = (body_start + body_text(shape.body_bytes))[: shape.body_bytes]
        self._text = body_text(1 << 15)
        self.body_bytes = 0  # Of all messages so far.

    def frame(self, slot: int, opaque: int) -> bytes:
        shape = self._shape
        topic, queue = slot // shape.queue_count % shape.topics, slot % shape.queue_count
        if shape.varied:
            topic, queue = self._random.randrange(shape.topics), self._random.randrange(shape.queue_count)
        if shape.batch > 1:
            body = b"".join(self._sub_message() for _ in range(shape.batch))
            # A batch of a 4.9 client has no unique key of its own.
            properties = self._text_of([("UNIQ_KEY", self._unique_key()), ("WAIT", "true")][shape.form != "v5" :])
        else:
            properties, body = self._message()
        fields = self._fields(shape.topic_name(topic), queue, properties)
        code = _SEND_BATCH if shape.batch > 1 else _SEND_V2
        if shape.form == "v1" and shape.batch == 1:
            code = _SEND
            fields = {name: fields[letter] for name, letter in _V1_NAMES.items()}
        render: Callable[[int, int, Mapping[str, str], bytes, int], bytes] = (
            binary_frame if shape.form == "binary" else json_frame
        )
        return render(code, opaque, fields, body, VERSION_5 if shape.form == "v5" else VERSION_4)

    def _fields(self, topic: str, queue: int, properties: str) -> dict[str, str]:
        shape = self._shape
        return {
            "a": shape.group,
            "b": topic,
            "c": "TBW102",
            "d": str(shape.queue_count),
            "e": str(queue),
            "f": "4" if shape.half else "0",
            "g": _BORN_MARK,
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "true" if shape.batch > 1 else "false",
            "n": shape.broker_name,
        }

    def _message(self) -> tuple[str, bytes]:
        """Return properties, in the order of Java's map, and body."""
        shape, random = self._shape, self._random
        delay = [("DELAY", str(shape.delay))] if shape.delay else []
        delay += [("TIMER_DELAY_SEC", str(shape.delay_s))] if shape.delay_s else []
        if shape.half:
            delay += [("TRAN_MSG", "true"), ("PGROUP", shape.group)]
        if not shape.varied:
            self.body_bytes += len(self._body)
            tag = [("TAGS", shape.tag)] if shape.tag else []
            return self._text_of([("UNIQ_KEY", self._unique_key()), ("WAIT", "true"), *delay, *tag]), self._body
        size = random.randint(VARIED_BODY_MIN, VARIED_BODY_MAX)
        start = random.randrange(len(self._text) - size)
        self.body_bytes += size
        properties = [
            ("KEYS", "order-" + _ORDER_MARK * random.randint(1, 9)),
            ("UNIQ_KEY", self._unique_key()),
            ("WAIT", "true"),
            *delay,
            ("TAGS", random.choices([*TAGS], [*TAGS.values()])[0]),
            ("customer", f"c-{random.randrange(10 ** random.randint(1, 6))}"),
        ]
        return self._text_of(properties), self._start + self._text[start : start + size - len(self._start)]

    def _text_of(self, properties: list[tuple[str, str]]) -> str:
        # A 5.x client ends the last property too.
        text = "\x02".join(f"{name}\x01{value}" for name, value in properties)
        return text + "\x02" if self._shape.form == "v5" else text

    def _unique_key(self) -> str:
        """Return 32 hex digits as Java writes them: address, process, class loader; time and counter are marked."""
        return f"7F000001{self._identity & 0xFFFF:04X}{self._identity:08X}{_KEY_MARK}"

    def _sub_message(self) -> bytes:
        """Return one message of a batch's body: sizes, zero magic, CRC and flag, body, properties."""
        text, body = self._message()
        properties = text.encode()
        size = 4 * 5 + len(body) + 2 + len(properties)
        head = struct.pack(">IIIII", size, 0, 0, 0, len(body))
        return b"".join([head, body, struct.pack(">H", len(properties)), properties])


_V1_NAMES = {
    "queueId": "e",
    "flag": "h",
    "sysFlag": "f",
    "reconsumeTimes": "j",
    "batch": "m",
    "unitMode": "k",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "producerGroup": "a",
    "bname": "n",
    "topic": "b",
    "bornTimestamp": "g",
    "properties": "i",
}
"""Fields of SEND_MESSAGE in the order of Java's map, with their letters in SEND_MESSAGE_V2."""


class PullFrames:
    """PULL_MESSAGE frames for one consumer group and topic, prepared except for three numbers."""

    __slots__ = ("_format",)

    def __init__(
        self,
        topic: str,
        *,
        group: str = "load_consumer",
        max_messages: int = 32,
        suspend_ms: int = 0,
        expression: str = "*",
        expression_type: str = "TAG",
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
            "subscription": expression.replace("%", "%%"),
            "subVersion": "0",
            "expressionType": expression_type,
        }
        self._format = json_header(_PULL, "%s", fields).decode()

    def frame(self, queue_id: int, queue_offset: int, opaque: int) -> bytes:
        """Return one pull of a queue from an offset."""
        header = (self._format % (queue_id, queue_offset, opaque)).encode()
        return struct.pack(">II", 4 + len(header), len(header)) + header


class EndFrames:
    """END_TRANSACTION frames that commit, with the header of a Java 4.9 client, prepared except for four values."""

    __slots__ = ("_format",)

    def __init__(self, group: str) -> None:
        fields = {
            "producerGroup": group.replace("%", "%%"),
            "tranStateTableOffset": "%s",
            "commitLogOffset": "%s",
            "commitOrRollback": str(_COMMIT),
            "fromTransactionCheck": "false",
            "msgId": "%s",
            "transactionId": "%s",
        }
        self._format = json_header(_END_TRANSACTION, "%s", fields).decode()

    def frame(self, queue_offset: str, log_offset: int, key: str, opaque: int) -> bytes:
        """Return the commit of a half message."""
        header = (self._format % (queue_offset, log_offset, key, key, opaque)).encode()
        return struct.pack(">II", 4 + len(header), len(header)) + header
