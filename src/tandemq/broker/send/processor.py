"""Sends: ordinary messages by a short path, many at once; all others decoded and checked in full.

The hot path is `SendPath.take_frames`: one header match, one row and one prepared response per message; rows with the
same layout are stored in one call. Everything else (delay, retry topic, transaction bits, IPv6, binary header) goes
through `SendPath.take`.

Source: docs/reference/requests.md, "sending"; RocketMQ SendMessageProcessor.
"""

from itertools import groupby
from random import Random

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import NO_TEMPLATE, Link, SendTemplate
from tandemq.broker.send.batch import BatchPath
from tandemq.broker.send.decoded_path import DecodedPath
from tandemq.broker.send.fast_path import ReadAhead
from tandemq.broker.send.send_state import KEY_BYTES_MAX, LEARNED_MAX, UNUSUAL_FLAGS, SendState
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topic, Topics
from tandemq.codec.record.layout import Layout
from tandemq.codec.remoting.frame import RawFrame
from tandemq.codec.remoting.requests import PlainSendFrame, decode_send_frame
from tandemq.codec.remoting.send_header import PATTERNS_MAX, Match
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode
from tandemq.model.command import FLAG_ONEWAY, Command
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.message_rows import UniformRows
from tandemq.storage.store import Store

_BATCH_MARK = b'"code":320'
_SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)


class SendPath(SendState):
    """All sends of one broker. Appends to the store; the owner commits and releases `acks`."""

    def __init__(
        self, config: BrokerConfig, store: Store, topics: Topics, groups: Groups, random: Random, store_host: bytes
    ) -> None:
        """Take the collaborators; `store_host` is this broker's advertised address in the form of records."""
        super().__init__(config, store, topics, store_host)
        self._templates: dict[Match, SendTemplate] = {}
        """By header pattern; cleared when it is full."""
        self.decoded = DecodedPath(self, groups, random)
        self.read_ahead = ReadAhead(self)
        self.batches = BatchPath(self, self._store_rows, self.decoded.take)

    def take(self, link: Link, command: Command, now: Now) -> None:
        """Store any send, and add its response or refusal to the acks."""
        self.decoded.take(link, command, now)

    # The hot path.

    def take_frames(self, link: Link, frames: list[RawFrame], first: int, now: Now) -> int:
        """Accept ordinary sends and batches from `frames[first]` on; return the index of the first other frame.

        They are kept, with those of all other connections, until `store_waiting` stores them together.
        """
        if not self.admits_ordinary(link):
            return first
        if link.batches is not None:
            first = self.batches.take_run(link, frames, first, now)
        if first < len(frames):
            first = self._take_run(link, frames, first)
        if first < len(frames) and _BATCH_MARK in frames[first][1]:
            self.batches.learn(link, frames[first])
        return first

    def store_waiting(self, now: Now) -> None:
        """Store the messages accepted since the last time, in the order in which each connection sent them."""
        if self.batches.waiting:
            self.batches.store(now)
        if self.rows:
            self._store_rows(now)

    def _take_run(self, link: Link, frames: list[RawFrame], first: int) -> int:
        """Accept ordinary SEND_MESSAGE_V2 requests as rows."""
        body_bytes_max, append, number, born_host = self.body_bytes_max, self.rows.append, link.number, link.born_host
        template, topic, matches, queues, layout, flag, sys_flag, command_flag = self._current_template(link)
        for at in range(first, len(frames)):
            form, header, body = frames[at]
            match = matches(header)
            if match is None or form:
                if form or not self._take_decoded(link, header, body):
                    return at
                if link.template is not template:
                    template, topic, matches, queues, layout, flag, sys_flag, command_flag = self._current_template(
                        link
                    )
                continue
            queue_id, born_ms, unique, opaque = match.group("queue", "born", "key", "opaque")
            queue = queues.get(queue_id)
            if queue is None or not 0 < len(body) <= body_bytes_max:
                if not self._take_decoded(link, header, body):
                    return at
                continue
            append((
                queue, topic, layout, unique, body, flag, sys_flag, int(born_ms), born_host, number, opaque,
                command_flag,
            ))  # fmt: skip
        self.read_ahead.learn(link, frames[-1])
        return len(frames)

    def _current_template(
        self, link: Link
    ) -> tuple[SendTemplate, bytes, Match, dict[bytes, ConsumeQueue], Layout, int, int, int]:
        """Return the connection's template, unpacked; `NO_TEMPLATE` if its topic was deleted or created again.

        A plain tuple: template, topic, pattern, queues, layout, flag, sysFlag and command flag, for the loop's locals.
        """
        template = link.template
        if self.topics.table.get(template.topic.config.topic_name) is not template.topic:
            template = link.template = NO_TEMPLATE
        return template, template.topic.encoded, *template[1:]

    def _take_decoded(self, link: Link, header: bytes, body: bytes) -> bool:
        """Accept one ordinary SEND_MESSAGE_V2 whose header must be decoded; return False if it is something else."""
        if b'"code":310' not in header:
            return False
        try:
            frame = decode_send_frame(header)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        fields = frame.extFields
        topic = self.topics.table.get(fields.topic)
        if (
            topic is None
            or not topic.takes_plain
            or not 0 <= fields.queue_id < topic.write_queue_nums
            or fields.sys_flag & UNUSUAL_FLAGS
            or fields.reconsume_times
            or fields.batch == "true"
            or frame.code != _SEND_V2
            or not 0 < len(body) <= self.body_bytes_max
        ):
            return False
        properties = fields.properties.encode()
        unique, layout = self.layouts.of(properties)
        if (
            len(properties) > self.properties_bytes_max
            or unique is None
            or not layout.is_usual
            or not 0 < len(unique) <= KEY_BYTES_MAX
            or not unique.isalnum()
        ):
            return False
        queue = topic.queues.get(fields.queue_id) or self.topics.queue(topic, fields.queue_id)
        self.rows.append((
            queue, topic.encoded, layout, unique, body, fields.flag, fields.sys_flag, fields.born_timestamp,
            link.born_host, link.number, b"%d" % frame.opaque, frame.flag,
        ))  # fmt: skip
        self._learn(link, header, frame, topic, queue, layout)
        return True

    def _learn(
        self, link: Link, header: bytes, frame: PlainSendFrame, topic: Topic, queue: ConsumeQueue, layout: Layout
    ) -> None:
        """Create a header pattern after two messages in a row with the same layout on the connection."""
        template, queue_id = link.template, b"%d" % queue.queue_id
        if template.topic is topic and template.layout is layout and template.matches(header) is not None:
            template.queues[queue_id] = queue
            return
        if link.layout is not layout or link.learned >= LEARNED_MAX:
            link.layout = layout
            return
        link.learned += 1
        matches = self.headers.learn(header)
        match = matches(header) if matches is not None else None
        if matches is None or match is None:
            return
        fields = frame.extFields
        places = (queue_id, b"%d" % fields.born_timestamp, b"%d" % frame.opaque)
        if match.group("queue", "born", "opaque") == places and match["key"] in fields.properties.encode():
            known = self._templates.get(matches)
            if known is None or known.topic is not topic or known.layout is not layout:
                if len(self._templates) >= PATTERNS_MAX:
                    self._templates.clear()
                known = self._templates[matches] = SendTemplate(
                    topic, matches, {}, layout, fields.flag, fields.sys_flag, frame.flag
                )  # fmt: skip
            known.queues[queue_id] = queue
            link.template = known

    def _store_rows(self, now: Now) -> None:
        """Store the rows accepted since the last time, and prepare their responses."""
        rows, self.rows = self.rows, []
        same = self.store.put_uniform(rows, now.wall_ms, self.store_host)
        if same is not None:
            self._acknowledge_uniform(same)
            return
        placed = self.store.put_run(rows, now.wall_ms, self.store_host)
        template, prefixes = self.answer, self.prefixes
        answers: list[bytes] = []
        current, waits, end, count = rows[0][9], True, 0, 0
        for row, (log_offset, size, queue_offset) in zip(rows, placed, strict=True):
            queue, _, layout, unique, body, _, _, _, _, link, opaque, command_flag = row
            self.bytes += len(body)
            if link != current or layout.waits is not waits:
                if count:
                    self.acks.append((current, b"".join(answers), end, waits, count))
                    answers, count = [], 0
                current, waits = link, layout.waits
            count += 1
            end = log_offset + size
            if not command_flag & FLAG_ONEWAY:
                answer = template % (log_offset, queue.queue_id, queue_offset, unique, opaque)
                answers += (prefixes[len(answer)], answer)
        self.acks.append((current, b"".join(answers), end, waits, count))
        self.count += len(rows)

    def _acknowledge_uniform(self, same: UniformRows) -> None:
        """Prepare the responses to many messages of one layout; those of one connection are joined."""
        self.count += len(same)
        self.bytes += len(same) * same.body_bytes
        waits, prefixes, stop = same.layout.waits, self.prefixes, same.log_offset + len(same.data)
        ends = range(same.log_offset + same.size, stop + 1, same.size)
        answers = [b""] * len(same)
        if not same.command_flag & FLAG_ONEWAY:
            offsets = range(same.log_offset, stop, same.size)
            values = zip(offsets, same.queue_ids, same.queue_offsets, same.uniques, same.opaques, strict=True)
            answers = [prefixes[len(answer)] + answer for answer in map(self.answer.__mod__, values)]
        at = 0
        for link, run in groupby(same.links):
            count = len(list(run))
            at += count
            frames = answers[at - 1] if count == 1 else b"".join(answers[at - count : at])
            self.acks.append((link, frames, ends[at - 1], waits, count))
