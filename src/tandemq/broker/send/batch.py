"""Batches accepted by header pattern, and stored together column by column.

A batch whose header matches the connection's pattern is kept until the turn ends or another request comes. Then batches
whose messages have one size, and the same properties but for the unique key, become records in one call
(`codec.record.columns`). All others go through `DecodedPath.take`, which checks every batch in full.

Source: docs/reference/requests.md, "sending"; docs/decisions/0007-send-header-patterns.md.
"""

from collections.abc import Callable
from itertools import groupby
from struct import pack
from typing import NamedTuple

import msgspec
import numpy as np

from tandemq.boundary import Now
from tandemq.broker.connections.connection import BatchTemplate, Link
from tandemq.broker.send.send_state import LEARNED_MAX, UNUSUAL_FLAGS, SendState
from tandemq.broker.state.topics import Topic
from tandemq.codec.record.columns import Parts, encode_parts, part_bytes, read_parts, record_bytes
from tandemq.codec.record.layout import Layout
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, HEAD_V4, MAGIC_V1
from tandemq.codec.remoting.frame import RawFrame, decode_command
from tandemq.codec.remoting.requests import PlainSendFrame, decode_send_frame
from tandemq.errors import RecordTooLarge
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.model.message import decode_properties
from tandemq.storage.consume_queue import ConsumeQueue

MESSAGES_MIN = 48
"""Minimum number of messages for storing them by columns; fewer are stored faster one by one."""
BYTES_MAX = 4 << 20
"""Maximum of bodies that are laid out as columns at once; a single larger batch is too."""


class Batch(NamedTuple):
    """A batch that is accepted but not yet stored."""

    link: Link
    template: BatchTemplate
    queue: ConsumeQueue
    born_ms: int
    unique: bytes
    opaque: bytes
    frame: RawFrame


class BatchPath:
    """Batches of one turn. The owner stores them with `store` before anything else is stored."""

    def __init__(
        self,
        state: SendState,
        store_rows: Callable[[Now], None],
        take_decoded: Callable[[Link, Command, Now], None],
    ) -> None:
        """Take the collaborators.

        Args:
            state: state shared by all paths of sends; gets the responses.
            store_rows: stores `state.rows`.
            take_decoded: stores a send by the path with all checks.
        """
        self._state = state
        self._store_rows = store_rows
        self._take_decoded = take_decoded
        self.waiting: list[Batch] = []
        """Batches that are accepted but not yet stored, in the order received."""

    # Accepting.

    def take_run(self, link: Link, frames: list[RawFrame], first: int, now: Now) -> int:
        """Accept batches from `frames[first]` on; return the index of the first other frame."""
        template = link.batches
        if template is None or self._state.topics.table.get(template.topic.config.topic_name) is not template.topic:
            link.batches = None
            return first
        body_bytes_max = self._state.config.message_bytes_max
        for at in range(first, len(frames)):
            form, header, body = frames[at]
            match = template.matches(header)
            if match is None or form:
                return at
            queue = template.queues.get(match["queue"])
            if queue is None:
                queue = self._queue(template, match["queue"])
            if queue is None or not 0 < len(body) <= body_bytes_max:
                return at
            if self._state.rows:  # received before this batch, and stored before it
                if self.waiting:
                    self.store(now)
                self._store_rows(now)
            unique = match["key"] if template.has_key else b""
            self.waiting.append(Batch(link, template, queue, int(match["born"]), unique, match["opaque"], frames[at]))
        return len(frames)

    def _queue(self, template: BatchTemplate, text: bytes) -> ConsumeQueue | None:
        number = int(text)
        if number >= template.topic.write_queue_nums or text != b"%d" % number:
            return None
        queue = template.queues[text] = self._state.topics.queue(template.topic, number)
        return queue

    def learn(self, link: Link, frame: RawFrame) -> None:
        """Make a pattern of headers like this one, of a send on the decoded path that may be a batch."""
        form, header, _ = frame
        if link.learned >= LEARNED_MAX or form:
            return
        link.learned += 1
        try:
            decoded = decode_send_frame(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        fields = decoded.extFields
        topic = self._state.topics.table.get(fields.topic)
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
        matches = self._state.headers.learn(header, has_key=bool(unique))
        match = matches(header) if matches is not None else None
        if matches is None or match is None:
            return
        fields = frame.extFields
        places = (b"%d" % fields.queue_id, b"%d" % fields.born_timestamp, b"%d" % frame.opaque)
        if match.group("queue", "born", "opaque") == places and (not unique or match["key"] == unique):
            link.batches = BatchTemplate(topic, matches, {}, fields.sys_flag, waits, bool(unique), frame.flag)

    # Storing.

    def store(self, now: Now) -> None:
        """Store the batches accepted since the last time, and prepare their responses."""
        waiting, self.waiting = self.waiting, []
        for _, group in groupby(waiting, _shape):
            batches = list(group)
            while batches:
                count = _fitting(batches)
                parts = _parts(batches[:count])
                if parts is None and count > 1:
                    count = 1
                    parts = _parts(batches[:1])
                if parts is None or not self._store_parts(batches[:count], parts, now):
                    for batch in batches[:count]:
                        self._take_decoded(batch.link, decode_command(batch.frame), now)
                del batches[:count]

    def _store_parts(self, batches: list[Batch], parts: Parts, now: Now) -> bool:
        """Store batches of one layout; return False, with nothing done, if they must be decoded."""
        raw = parts.properties
        unique, layout = self._state.part_layouts.of(raw)
        if unique is None or not layout.is_usual:
            return False
        kept = len(layout.before) + len(unique) + len(layout.after) - len(self._state.cluster)
        if kept != len(raw) + (raw[-1] != 2):  # a property is dropped or changed when stored
            return False
        topic = batches[0].template.topic.encoded
        length = len(layout.before) + len(unique) + len(layout.after) + CRC_PROPERTY_BYTES
        middle = topic + length.to_bytes(2) + layout.before
        size = record_bytes(parts, middle, layout.after)
        counts = [len(batch.frame[2]) // parts.rows.shape[1] for batch in batches]
        at = 0
        while at < len(batches):
            fit = self._fit(counts, at, size)
            if not fit:
                for batch in batches[at:]:
                    self._take_decoded(batch.link, decode_command(batch.frame), now)
                return True
            first = sum(counts[:at])
            piece = parts.part(first, first + sum(counts[at : at + fit]))
            self._put(batches[at : at + fit], counts[at : at + fit], piece, layout, middle, now)
            at += fit
        return True

    def _fit(self, counts: list[int], first: int, size: int) -> int:
        """Return how many batches from index `first` on fit into the current segment file; 0: the first fits into none.

        A batch lies in one file; if the first does not fit into the rest of the current one, the next is begun.
        """
        store_log = self._state.store.log
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
        state = self._state
        size, offset = record_bytes(parts, middle, layout.after), state.store.log.end
        heads: list[bytes] = []
        starts: list[int] = []
        placed: dict[ConsumeQueue, int] = {}
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
                    batch.template.sys_flag,
                    batch.born_ms,
                    batch.link.born_host,
                    now.wall_ms,
                    state.store_host,
                    0,
                    0,
                    parts.body_bytes,
                )
            )
            before = placed.get(batch.queue, 0)
            starts.append(batch.queue.next_offset + before)
            placed[batch.queue] = before + count
        ends = np.cumsum(counts)
        queue_offsets = np.arange(len(parts)) + np.repeat(np.array(starts) - ends + counts, counts)
        data = encode_parts(parts, b"".join(heads), counts, queue_offsets, offset, middle, layout.after)
        spans = [(batch.queue, count) for batch, count in zip(batches, counts, strict=True)]
        state.store.put_encoded(data, size, spans, layout, parts.keys(), now.wall_ms)
        state.count += len(parts)
        state.bytes += len(parts) * parts.body_bytes
        ids = _message_ids(state.store_host, offset, size, len(parts))
        at = 0
        for batch, count, start in zip(batches, counts, starts, strict=True):
            batch_ids = ids[33 * at : 33 * (at + count) - 1]
            at += count
            self._acknowledge(batch, batch_ids, start, offset + at * size, count)

    def _acknowledge(self, batch: Batch, ids: bytes, queue_offset: int, end: int, count: int) -> None:
        template = batch.template
        if template.command_flag & FLAG_ONEWAY:
            self._state.acks.append((batch.link.number, None, end, False, count))
            return
        key = (batch.unique,) if template.has_key else ()
        answer = self._state.batch_answers[template.has_key] % (
            ids,
            batch.queue.queue_id,
            queue_offset,
            *key,
            batch.opaque,
        )
        frame = pack(">II", 4 + len(answer), len(answer)) + answer
        self._state.acks.append((batch.link.number, frame, end, template.waits, count))


def _shape(batch: Batch) -> tuple[int, bytes]:
    """Return what batches must share to be stored together: topic and size of the first message."""
    return id(batch.template.topic), batch.frame[2][:4]


def _fitting(batches: list[Batch]) -> int:
    """Return how many batches to lay out at once: up to BYTES_MAX, at least one."""
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
    """Return the offset message ids of consecutive records of one size: 32 characters each, joined by commas."""
    table = np.empty((count, 16), dtype=np.uint8)
    table[:, :8] = np.frombuffer(store_host, dtype=np.uint8)
    offsets = np.arange(offset, offset + count * size, size, dtype=np.int64)
    table[:, 8:] = offsets.astype(">i8").view(np.uint8).reshape(-1, 8)
    return table.tobytes().hex(",", 16).upper().encode()
