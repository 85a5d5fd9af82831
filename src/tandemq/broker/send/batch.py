"""Batches that are alike: taken by the likeness of their headers, stored together, column by column.

A batch whose header a link's pattern knows is kept until the turn ends or something else comes. Then batches whose
messages have one size and the same properties but for the unique key become records in one go (`codec.record.columns`).
All others take the long way, `SendPath.take`, where every batch is checked in full.

Source: docs/reference/requests.md, "sending"; docs/decisions/0007-send-header-patterns.md.
"""

from itertools import groupby
from struct import pack
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tandemq.boundary import Now
from tandemq.broker.connections.connection import BatchLikeness, Link
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.columns import Parts, encode_parts, part_bytes, read_parts, record_bytes
from tandemq.codec.record.layout import Layout
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, HEAD_V4, MAGIC_V1
from tandemq.codec.remoting.frame import RawFrame, decode_command
from tandemq.codec.remoting.requests import PlainSendFrame, decode_send_frame
from tandemq.errors import RecordTooLarge
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, VERSION_SPOKEN
from tandemq.model.message import decode_properties
from tandemq.storage.consume_queue import ConsumeQueue

if TYPE_CHECKING:
    from tandemq.broker.send.processor import SendPath

LEARNED_MAX = 64
"""How often headers of batches are learned on one link."""
MESSAGES_MIN = 48
"""Fewer messages are stored faster one by one."""
BYTES_MAX = 4 << 20
"""So much of batch bodies is laid out at once."""
UNUSUAL_FLAGS = 0xC | 0xF0
_ANSWER = (
    '{"code":0,"extFields":{"MSG_REGION":@REGION,"TRACE_ON":"true","msgId":"%b","queueId":"%d","queueOffset":"%d"@KEY},'
    '"flag":1,"language":"PYTHON","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":@VERSION}'
)


class Batch(NamedTuple):
    """A batch taken but not yet stored."""

    link: Link
    like: BatchLikeness
    queue: ConsumeQueue
    born_ms: int
    unique: bytes
    opaque: bytes
    frame: RawFrame


class BatchPath:
    """Batches of one turn. The owner stores them with `store` before anything else is done with the store."""

    def __init__(self, owner: "SendPath") -> None:
        """`owner` takes what is not alike, and gets the answers."""
        self._owner = owner
        self.waiting: list[Batch] = []
        self._answers = (b"", b"")

    def adopt_region(self, region: str) -> None:
        """The region that answers name."""
        text = _ANSWER.replace("@REGION", msgspec.json.encode(region).decode().replace("%", "%%"))
        text = text.replace("@VERSION", str(VERSION_SPOKEN))
        self._answers = text.replace("@KEY", "").encode(), text.replace("@KEY", ',"transactionId":"%b"').encode()

    # Taking.

    def take_run(self, link: Link, frames: list[RawFrame], first: int, now: Now) -> int:
        """Take batches from `frames[first]` on; returns where the first frame lies that is something else."""
        like = link.batches
        if like is None or self._owner.topics.table.get(like.topic.config.topic_name) is not like.topic:
            link.batches = None
            return first
        body_bytes_max = self._owner.config.message_bytes_max
        for at in range(first, len(frames)):
            form, header, body = frames[at]
            match = like.matches(header)
            if match is None or form:
                return at
            queue = like.queues.get(match["queue"])
            if queue is None:
                queue = self._queue(like, match["queue"])
            if queue is None or not 0 < len(body) <= body_bytes_max:
                return at
            if self._owner.rows:  # what came before a batch is stored before it
                self._owner.store_waiting(now)
            unique = match["key"] if like.has_key else b""
            self.waiting.append(Batch(link, like, queue, int(match["born"]), unique, match["opaque"], frames[at]))
        return len(frames)

    def _queue(self, like: BatchLikeness, text: bytes) -> ConsumeQueue | None:
        number = int(text)
        if number >= like.topic.write_queue_nums or text != b"%d" % number:
            return None
        queue = like.queues[text] = self._owner.topics.queue(like.topic, number)
        return queue

    def learn(self, link: Link, frame: RawFrame) -> None:
        """Read headers like this one, of what may be a batch and takes the long way, by a pattern from now on."""
        form, header, _ = frame
        if link.learned >= LEARNED_MAX or form:
            return
        link.learned += 1
        try:
            decoded = decode_send_frame(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        fields = decoded.extFields
        topic = self._owner.topics.table.get(fields.topic)
        if (
            topic is None
            or not topic.takes_plain
            or fields.sys_flag & UNUSUAL_FLAGS
            or fields.reconsume_times
            or fields.batch != "true"
            or decoded.code != RequestCode.SEND_BATCH_MESSAGE
        ):
            return
        common = decode_properties(fields.properties)
        waits = common.pop("WAIT", "true").lower() != "false"
        unique = common.pop("UNIQ_KEY", "").encode()
        if not common:
            self._learn(link, header, decoded, topic, unique, waits=waits)

    def _learn(
        self, link: Link, header: bytes, frame: PlainSendFrame, topic: Topic, unique: bytes, *, waits: bool
    ) -> None:
        matches = self._owner.headers.learn(header, has_key=bool(unique))
        match = matches(header) if matches is not None else None
        if matches is None or match is None:
            return
        fields = frame.extFields
        places = (b"%d" % fields.queue_id, b"%d" % fields.born_timestamp, b"%d" % frame.opaque)
        if match.group("queue", "born", "opaque") == places and (not unique or match["key"] == unique):
            link.batches = BatchLikeness(topic, matches, {}, fields.sys_flag, waits, bool(unique), frame.flag)

    # Storing.

    def store(self, now: Now) -> None:
        """Store the batches taken since the last time, and prepare their answers."""
        waiting, self.waiting = self.waiting, []
        for _, group in groupby(waiting, _likeness):
            batches = list(group)
            while batches:
                taken = _some(batches)
                parts = _parts(batches[:taken])
                if parts is None and taken > 1:
                    taken = 1
                    parts = _parts(batches[:1])
                if parts is None or not self._store_parts(batches[:taken], parts, now):
                    for batch in batches[:taken]:
                        self._owner.take(batch.link, decode_command(batch.frame), now)
                del batches[:taken]

    def _store_parts(self, batches: list[Batch], parts: Parts, now: Now) -> bool:
        """Store batches that are alike; False (and nothing done) if they must take the long way."""
        raw = parts.properties
        unique, layout = self._owner.part_layouts.of(raw)
        if unique is None or not layout.is_usual:
            return False
        kept = len(layout.before) + len(unique) + len(layout.after) - len(self._owner.cluster)
        if kept != len(raw) + (raw[-1] != 2):  # something in them is not stored as it came
            return False
        topic = batches[0].like.topic.encoded
        length = len(layout.before) + len(unique) + len(layout.after) + CRC_PROPERTY_BYTES
        middle = topic + length.to_bytes(2) + layout.before
        size = record_bytes(parts, middle, layout.after)
        counts = [len(batch.frame[2]) // parts.rows.shape[1] for batch in batches]
        at = 0
        while at < len(batches):
            fit = self._fit(counts, at, size)
            if not fit:
                for batch in batches[at:]:
                    self._owner.take(batch.link, decode_command(batch.frame), now)
                return True
            first = sum(counts[:at])
            piece = parts.part(first, first + sum(counts[at : at + fit]))
            self._put(batches[at : at + fit], counts[at : at + fit], piece, layout, middle, now)
            at += fit
        return True

    def _fit(self, counts: list[int], first: int, size: int) -> int:
        """How many batches from one on go into the present file, or into the next if it is none; 0: it fits into none.

        A batch lies in one file.
        """
        store_log = self._owner.store.log
        try:
            store_log.reserve(counts[first] * size)
        except RecordTooLarge:
            return 0
        room, at = store_log.room, first
        while at < len(counts) and counts[at] * size <= room:
            room -= counts[at] * size
            at += 1
        return at - first

    def _put(
        self, batches: list[Batch], counts: list[int], parts: Parts, layout: Layout, middle: bytes, now: Now
    ) -> None:
        owner = self._owner
        size, offset = record_bytes(parts, middle, layout.after), owner.store.log.end
        heads: list[bytes] = []
        starts: list[int] = []
        taken: dict[ConsumeQueue, int] = {}
        for batch, count in zip(batches, counts, strict=True):
            heads.append(
                HEAD_V4.pack(
                    size,
                    MAGIC_V1,
                    0,
                    batch.queue.queue_id,
                    0,
                    0,
                    0,
                    batch.like.sys_flag,
                    batch.born_ms,
                    batch.link.born_host,
                    now.wall_ms,
                    owner.store_host,
                    0,
                    0,
                    parts.body_bytes,
                )
            )
            before = taken.get(batch.queue, 0)
            starts.append(batch.queue.next_offset + before)
            taken[batch.queue] = before + count
        ends = np.cumsum(counts)
        queue_offsets = np.arange(len(parts)) + np.repeat(np.array(starts) - ends + counts, counts)
        data = encode_parts(parts, b"".join(heads), counts, queue_offsets, offset, middle, layout.after)
        spans = [(batch.queue, count) for batch, count in zip(batches, counts, strict=True)]
        owner.store.put_encoded(data, size, spans, layout, parts.keys(), now.wall_ms)
        owner.count += len(parts)
        owner.bytes += len(parts) * parts.body_bytes
        ids = _message_ids(owner.store_host, offset, size, len(parts))
        at = 0
        for batch, count, start in zip(batches, counts, starts, strict=True):
            named = ids[33 * at : 33 * (at + count) - 1]
            at += count
            self._acknowledge(batch, named, start, offset + at * size, count)

    def _acknowledge(self, batch: Batch, ids: bytes, queue_offset: int, end: int, count: int) -> None:
        like = batch.like
        if like.command_flag & FLAG_ONEWAY:
            self._owner.acks.append((batch.link.number, None, end, False, count))
            return
        key = (batch.unique,) if like.has_key else ()
        answer = self._answers[like.has_key] % (ids, batch.queue.queue_id, queue_offset, *key, batch.opaque)
        frame = pack(">II", 4 + len(answer), len(answer)) + answer
        self._owner.acks.append((batch.link.number, frame, end, like.waits, count))


def _likeness(batch: Batch) -> tuple[int, bytes]:
    """What batches stored together have in common: the topic and the size of their first message."""
    return id(batch.like.topic), batch.frame[2][:4]


def _some(batches: list[Batch]) -> int:
    """How many of them to lay out at once."""
    total = 0
    for number, batch in enumerate(batches):
        total += len(batch.frame[2])
        if total > BYTES_MAX and number:
            return number
    return len(batches)


def _parts(batches: list[Batch]) -> Parts | None:
    bodies = [batch.frame[2] for batch in batches]
    size = part_bytes(bodies[0])
    if not size or any(len(body) % size for body in bodies) or sum(map(len, bodies)) < MESSAGES_MIN * size:
        return None
    return read_parts(bodies[0] if len(bodies) == 1 else b"".join(bodies))


def _message_ids(store_host: bytes, offset: int, size: int, count: int) -> bytes:
    """Offset message ids of records that lie one behind the other, 32 characters each and a comma between."""
    table = np.empty((count, 16), dtype=np.uint8)
    table[:, :8] = np.frombuffer(store_host, dtype=np.uint8)
    offsets = np.arange(offset, offset + count * size, size, dtype=np.int64)
    table[:, 8:] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    return table.tobytes().hex(",", 16).upper().encode()
