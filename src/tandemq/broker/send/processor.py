"""Taking messages: checks, topic creation, the stored form, the answer.

The hot path is `SendPath.take_alike`: one decode, one row, one prepared answer per message; all rows that are alike are
stored in one call. Whatever is unusual
(delay, batch, retry topic, transaction bits, IPv6, binary header) goes through `SendPath.take`.

Source: docs/reference/requests.md, "sending"; RocketMQ SendMessageProcessor.
"""

from itertools import groupby
from random import Random
from struct import pack

import msgspec

from tandemq.boundary import Now
from tandemq.broker.connections.connection import NO_LIKENESS, Likeness, Link
from tandemq.broker.send.batch import LEARNED_MAX, UNUSUAL_FLAGS, BatchPath
from tandemq.broker.send.dead_letters import DeadLetters
from tandemq.broker.send.fast_path import Together
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.topics import Topic, Topics, internal_topic
from tandemq.codec.record.layout import Layout, Layouts
from tandemq.codec.record.record import CRC_PROPERTY_BYTES, PROPERTIES_BYTES_MAX, BatchPart, decode_batch
from tandemq.codec.remoting.frame import RawFrame, encode_command
from tandemq.codec.remoting.requests import (
    PlainSendFrame,
    SendFields,
    SendFieldsV1,
    decode_send_frame,
    is_true,
    read_fields,
)
from tandemq.codec.remoting.send_header import PATTERNS_MAX, Match, SendHeaders
from tandemq.config.settings import BrokerConfig
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.codes import RequestCode, ResponseCode
from tandemq.model.command import FLAG_ONEWAY, VERSION_SPOKEN, Command
from tandemq.model.message import TIMER_NAMES, TIMER_OUT, SysFlag, decode_properties, encode_properties
from tandemq.model.topic import (
    DLQ_PREFIX,
    FORBIDDEN_FOR_SENDING,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    Permission,
    dead_letter_topic,
    topic_name_error,
)
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.log.message_rows import MessageRow, UniformRows
from tandemq.storage.store import Store

VERSION_3_4_9 = 121
_ANSWER = (
    '{"code":0,"extFields":{"MSG_REGION":"REGION","TRACE_ON":"true","msgId":"HOST%016X","queueId":"%d","queueOffset":"%d"'
    ',"transactionId":"%b"},"flag":1,"language":"PYTHON","opaque":%b,"serializeTypeCurrentRPC":"JSON","version":VERSION}'
)
PLAIN_PROPERTIES_BYTES_MAX = 8000
KEY_BYTES_MAX = 64
_ANSWER_GROWTH = 64 + KEY_BYTES_MAX
"""More bytes than numbers, host and key add to the answer's template."""
_BATCH_MARK = b'"code":320'
_WRITE = int(Permission.WRITE)
_SEND_V2 = int(RequestCode.SEND_MESSAGE_V2)


Ack = tuple[int, bytes | None, int, bool, int]
"""A link, and answers that may leave on it when the log is safe up to an offset; whether they must wait for flush and
replicas, and how many messages they stand for.

The answers say SUCCESS; None or nothing for one-way sends. Offset 0: nothing was stored, the answer may leave at once.
"""


_Answer = tuple[bytes | None, int, bool, int]
"""An `Ack` without its link."""


class Refused(Exception):
    """A send that is refused: code and remark of the answer."""

    def __init__(self, code: ResponseCode, remark: str) -> None:
        """With the answer's code and remark."""
        super().__init__(remark)
        self.code = code
        self.remark = remark


class SendPath:
    """All sends of one broker. Appends to the store; the owner commits and releases `acks`."""

    def __init__(
        self, config: BrokerConfig, store: Store, topics: Topics, groups: Groups, random: Random, store_host: bytes
    ) -> None:
        """`store_host` is our advertised address as records hold it."""
        self.store = store
        self.adopt_config(config)
        self.topics = topics
        self._groups = groups
        self._random = random
        self.cluster = f"CLUSTER\x01{config.cluster}\x02".encode()
        self._layouts = Layouts(self.cluster)
        self.part_layouts = Layouts(self.cluster, drops=b"")
        """Of messages within batches: RocketMQ stores their properties as they come, WAIT included."""
        self.rows: list[MessageRow] = []
        """Ordinary messages taken but not yet stored."""
        self.headers = SendHeaders()
        self._likenesses: dict[Match, Likeness] = {}
        """By what knows their headers; forgotten all at once when there are too many."""
        self.together = Together(self)
        self.batches = BatchPath(self)
        self.acks: list[Ack] = []
        """Answers to what was stored in this turn, in the order of the log; the owner takes them away."""
        self._refusals: dict[str, tuple[ResponseCode, str]] = {}
        self.refusal: tuple[ResponseCode, str] | None = None
        """Why no message is taken at present, if so: the first of the reasons given to `refuse` that still holds."""
        self.count = 0
        """Messages taken since the start; `bytes` their bodies."""
        self.bytes = 0
        self.dead_letters = DeadLetters()
        self.set_store_host(store_host)

    def set_store_host(self, store_host: bytes) -> None:
        """Our address, when it becomes known."""
        self.store_host = store_host
        self._is_v4 = len(store_host) == 8
        self._message_id = store_host.hex().upper() + "%016X"
        answer = _ANSWER.replace('"REGION"', f'"{self.config.region.replace("%", "%%")}"')
        self._answer = answer.replace("HOST", store_host.hex().upper()).replace("VERSION", str(VERSION_SPOKEN)).encode()
        self.batches.adopt_region(self.config.region)
        self._prefixes = [pack(">II", length + 4, length) for length in range(len(answer) + _ANSWER_GROWTH)]
        """Lengths of a frame and of its header, for an answer without a body, by the header's length."""

    def adopt_config(self, config: BrokerConfig) -> None:
        """The settings changed."""
        self.config = config
        segment_bytes = self.store.config.segment_bytes
        self.body_bytes_max = min(config.message_bytes_max, segment_bytes // 2)
        """What the body of an ordinary message may have, so that its record fits into a file in any case."""
        self._properties_bytes_max = min(PLAIN_PROPERTIES_BYTES_MAX, segment_bytes // 4)

    def refuse(self, reason: str, remark: str, code: ResponseCode = ResponseCode.SERVICE_NOT_AVAILABLE) -> None:
        """Take no message for a reason ("disk full") until `admit` takes that reason back."""
        self._refusals[reason] = (code, remark)
        self.refusal = next(iter(self._refusals.values()))

    def admit(self, reason: str) -> None:
        """A reason to refuse is gone."""
        self._refusals.pop(reason, None)
        self.refusal = next(iter(self._refusals.values()), None)

    # The hot path.

    def take_alike(self, link: Link, frames: list[RawFrame], first: int, now: Now) -> int:
        """Take ordinary sends and batches from `frames[first]` on; returns where the first lies that is something else.

        They are kept, those of all links together, until `store_waiting`: then what they share is done once.
        """
        if not self.takes_alike(link):
            return first
        if link.batches is not None:
            first = self.batches.take_run(link, frames, first, now)
        if first < len(frames):
            first = self._take_run(link, frames, first)
        if first < len(frames) and _BATCH_MARK in frames[first][1]:
            self.batches.learn(link, frames[first])
        return first

    def takes_alike(self, link: Link) -> bool:
        """Whether ordinary messages of a link may go the short way at present."""
        return self.refusal is None and link.is_v4 and self._is_v4 and self.config.permission & _WRITE != 0

    def store_waiting(self, now: Now) -> None:
        """Store what was taken and is not stored yet, in the order it came on each link."""
        if self.batches.waiting:
            self.batches.store(now)
        if self.rows:
            self._store_rows(now)

    def _take_run(self, link: Link, frames: list[RawFrame], first: int) -> int:
        """Take ordinary V2 sends as rows."""
        body_bytes_max, append, number, born_host = self.body_bytes_max, self.rows.append, link.number, link.born_host
        like, topic, matches, queues, layout, flag, sys_flag, command_flag = self._like_before(link)
        for at in range(first, len(frames)):
            form, header, body = frames[at]
            match = matches(header)
            if match is None or form:
                if form or not self._take_decoded(link, header, body):
                    return at
                if link.likeness is not like:
                    like, topic, matches, queues, layout, flag, sys_flag, command_flag = self._like_before(link)
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
        self.together.learn(link, frames[-1])
        return len(frames)

    def _like_before(
        self, link: Link
    ) -> tuple[Likeness, bytes, Match, dict[bytes, ConsumeQueue], Layout, int, int, int]:
        """What the link's messages have had in common so far, if their topic is still what it was; taken apart."""
        like = link.likeness
        if self.topics.table.get(like.topic.config.topic_name) is not like.topic:
            like = link.likeness = NO_LIKENESS
        return like, like.topic.encoded, *like[1:]

    def _take_decoded(self, link: Link, header: bytes, body: bytes) -> bool:
        """Take one ordinary V2 send whose header must be decoded; False if it is something else."""
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
        unique, layout = self._layouts.of(properties)
        if (
            len(properties) > self._properties_bytes_max
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
        """A layout that comes the second time is likely to come again: read headers like this one by a pattern."""
        like, queue_id = link.likeness, b"%d" % queue.queue_id
        if like.topic is topic and like.layout is layout and like.matches(header) is not None:
            like.queues[queue_id] = queue
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
            known = self._likenesses.get(matches)
            if known is None or known.topic is not topic or known.layout is not layout:
                if len(self._likenesses) >= PATTERNS_MAX:
                    self._likenesses.clear()
                known = self._likenesses[matches] = Likeness(
                    topic, matches, {}, layout, fields.flag, fields.sys_flag, frame.flag
                )  # fmt: skip
            known.queues[queue_id] = queue
            link.likeness = known

    def _store_rows(self, now: Now) -> None:
        """Store the rows taken since the last time, and prepare their answers."""
        rows, self.rows = self.rows, []
        same = self.store.put_uniform(rows, now.wall_ms, self.store_host)
        if same is not None:
            self._acknowledge_alike(same)
            return
        placed = self.store.put_run(rows, now.wall_ms, self.store_host)
        template, prefixes = self._answer, self._prefixes
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

    def _acknowledge_alike(self, same: UniformRows) -> None:
        """Prepare the answers to many messages; those of one link are one."""
        self.count += len(same)
        self.bytes += len(same) * same.body_bytes
        waits, prefixes, stop = same.layout.waits, self._prefixes, same.log_offset + len(same.data)
        ends = range(same.log_offset + same.size, stop + 1, same.size)
        answers = [b""] * len(same)
        if not same.command_flag & FLAG_ONEWAY:
            offsets = range(same.log_offset, stop, same.size)
            values = zip(offsets, same.queue_ids, same.queue_offsets, same.uniques, same.opaques, strict=True)
            answers = [prefixes[len(answer)] + answer for answer in map(self._answer.__mod__, values)]
        at = 0
        for link, run in groupby(same.links):
            count = len(list(run))
            at += count
            frames = answers[at - 1] if count == 1 else b"".join(answers[at - count : at])
            self.acks.append((link, frames, ends[at - 1], waits, count))

    # Everything.

    def take(self, link: Link, command: Command, now: Now) -> None:
        """Take any send; its answer, good or bad, is put among `acks`."""
        try:
            fields = _fields(command)
            ack = self._store_any(link, command, fields, now)
        except Refused as refused:
            ack = self._refuse(command, refused.code, refused.remark)
        except ProtocolError as error:
            ack = self._refuse(command, ResponseCode.SYSTEM_ERROR, str(error))
        except RecordTooLarge as error:
            ack = self._refuse(command, ResponseCode.MESSAGE_ILLEGAL, str(error))
        self.acks.append((link.number, *ack))

    def _refuse(self, command: Command, code: int, remark: str) -> _Answer:
        answer = None if command.is_oneway else encode_command(command.answer(code, remark=remark))
        return answer, 0, False, 1

    def _store_any(self, link: Link, command: Command, fields: SendFields, now: Now) -> _Answer:
        if self.refusal is not None:
            raise Refused(*self.refusal)
        topic = self._admit(fields, now.wall_ms)
        queue_id = fields.queue_id
        nums = topic.config.write_queue_nums
        if queue_id >= max(nums, topic.config.read_queue_nums):
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"queue id {queue_id} is illegal: {fields.topic} has {nums} queues"
            )
        if queue_id < 0 and nums > 0:
            queue_id = self._random.randrange(nums)
        if queue_id < 0:
            raise Refused(ResponseCode.NO_PERMISSION, f"topic[{fields.topic}] has no queue to write to")
        if len(command.body) > self.config.message_bytes_max:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the body has {len(command.body)} bytes, maxMessageSize is {self.config.message_bytes_max}",
            )
        if is_true(fields.batch):
            return self._store_batch(link, command, fields, topic, queue_id, now)
        return self._store_one(link, command, fields, topic, queue_id, now)

    def _admit(self, fields: SendFields, wall_ms: int) -> Topic:
        name = fields.topic
        wrong = topic_name_error(name)
        if wrong is not None:
            raise Refused(ResponseCode.SYSTEM_ERROR, wrong)
        if name in FORBIDDEN_FOR_SENDING:
            raise Refused(ResponseCode.NO_PERMISSION, f"Sending message to topic[{name}] is forbidden.")
        topic = self.topics.get(name)
        if topic is None and name.startswith(RETRY_PREFIX):
            topic = self._own_topic(name, wall_ms)
        if topic is None:
            topic = self.topics.create_on_send(name, fields.default_topic, fields.default_topic_queue_nums, wall_ms)
        if topic is None:
            full = self.topics.full([internal_topic(name, 1)])
            if full is not None:
                raise Refused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {full}")
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist, apply first please! create it with `tandemq topic create {name}`",
            )
        if topic.config.order and not self.config.permission & _WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{self.config.broker_name}] takes no messages")
        if not topic.config.perm & _WRITE:
            raise Refused(ResponseCode.NO_PERMISSION, f"topic[{name}] takes no messages: its permission lacks WRITE")
        return topic

    def _own_topic(self, name: str, wall_ms: int) -> Topic:
        """A retry or dead letter topic, created if it is not there."""
        topic = self.topics.create_internal(name, 1, wall_ms)
        if topic is None:
            full = self.topics.full([internal_topic(name, 1)], is_own=True)
            raise Refused(ResponseCode.SYSTEM_ERROR, f"topic[{name}] cannot be created: {full}")
        return topic

    def _store_one(
        self, link: Link, command: Command, fields: SendFields, topic: Topic, queue_id: int, now: Now
    ) -> _Answer:
        properties = decode_properties(fields.properties)
        waits = properties.pop("WAIT", "true").lower() != "false"
        properties.pop("__CRC32#", None)
        if fields.sys_flag & SysFlag.TRANSACTION_ROLLBACK or properties.get("TRAN_MSG") == "true":
            raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, "transactional messages are not supported yet")
        _refuse_timed(properties)
        name, asked = fields.topic, queue_id
        if name.startswith(RETRY_PREFIX) and not name.startswith(DLQ_PREFIX):
            topic, queue_id = self._after_retry(command, fields, topic, queue_id, properties, now.wall_ms)
        topic, queue_id = self.redirect_delayed(topic, queue_id, properties)
        properties["CLUSTER"] = self.config.cluster
        unique = properties.get("UNIQ_KEY", "")
        queue_offset, log_offset, size = self.store.put(
            self.topics.queue(topic, queue_id), body=command.body, properties=encode_properties(properties).encode(),
            flag=fields.flag, sys_flag=fields.sys_flag & ~0x30, born_ms=fields.born_timestamp,
            born_host=link.born_host, store_ms=now.wall_ms, store_host=self.store_host,
            reconsume_times=fields.reconsume_times,
        )  # fmt: skip
        self._count(command.body)
        group = topic.config.topic_name.removeprefix(DLQ_PREFIX)
        if group != topic.config.topic_name:
            origin = properties.get("RETRY_TOPIC", name)
            self.dead_letters.note(group, origin, properties, fields.reconsume_times, log_offset, now.mono_ms)
        ids = f"{self.store_host.hex().upper()}{log_offset:016X}"
        return self._ack(command, ids, asked, queue_offset, unique, log_offset + size, waits)

    def _after_retry(
        self, command: Command, fields: SendFields, topic: Topic, queue_id: int, properties: dict[str, str],
        wall_ms: int,
    ) -> tuple[Topic, int]:  # fmt: skip
        """A consumer's own retry send: after too many times it goes to the dead letter topic."""
        group_name = fields.topic.removeprefix(RETRY_PREFIX)
        group = self._groups.find(group_name, wall_ms)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group not exist, {group_name}; create it first",
            )
        most = group.retry_max_times
        if command.version >= VERSION_3_4_9 and fields.max_reconsume_times is not None:
            most = fields.max_reconsume_times
        if fields.reconsume_times < most:
            return topic, queue_id
        properties.pop("DELAY", None)
        return self._own_topic(dead_letter_topic(group_name), wall_ms), 0

    def redirect_delayed(self, topic: Topic, queue_id: int, properties: dict[str, str]) -> tuple[Topic, int]:
        """Where a message goes first: its queue, or its delay level's, with the way back among its properties."""
        level = _delay_level(properties)
        delay_topic = self.topics.get(SCHEDULE_TOPIC)
        if not level or delay_topic is None or not self.store.config.delays_ms:
            return topic, queue_id
        level = min(level, len(self.store.config.delays_ms))
        properties["DELAY"] = str(level)
        properties["REAL_TOPIC"] = topic.config.topic_name
        properties["REAL_QID"] = str(queue_id)
        return delay_topic, level - 1

    def _store_batch(
        self, link: Link, command: Command, fields: SendFields, topic: Topic, queue_id: int, now: Now
    ) -> _Answer:
        common = decode_properties(fields.properties)
        waits = common.pop("WAIT", "true").lower() != "false"
        if _delay_level(common) or fields.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch may not be delayed and may not go to a retry topic")
        _refuse_timed(common)
        parts = decode_batch(command.body)
        shared = encode_properties({key: value for key, value in common.items() if key != "UNIQ_KEY"}).encode()
        shared += self.cluster
        longest = max([len(part.properties) for part in parts]) + 1 + len(shared) + CRC_PROPERTY_BYTES
        if longest > PROPERTIES_BYTES_MAX:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, f"the properties of a message take {longest} bytes")
        queue = self.topics.queue(topic, queue_id)
        rows = self._batch_rows(link, fields, topic, queue, parts) if shared == self.cluster else []
        for part in parts if not rows else ():
            if b"TIMER_" in part.properties:
                _refuse_timed(decode_properties(part.properties.decode("utf-8", "replace")))
        # A batch lies in one file: what its messages need besides their part of the body is at most this much each.
        self.store.log.reserve(len(command.body) + len(parts) * (112 + len(shared) + len(topic.encoded)))
        first = queue.next_offset
        if rows:
            self.count += len(rows)
            self.bytes += sum([len(part.body) for part in parts])
            placed = [(place[0], place[1]) for place in self.store.put_run(rows, now.wall_ms, self.store_host)]
        else:
            placed = [self._store_part(link, fields, queue, part, shared, now) for part in parts]
        ids = ",".join([self._message_id % offset for offset, _ in placed])
        end = placed[-1][0] + placed[-1][1]
        return self._ack(command, ids, queue_id, first, common.get("UNIQ_KEY", ""), end, waits, len(parts))

    def _batch_rows(
        self, link: Link, fields: SendFields, topic: Topic, queue: ConsumeQueue, parts: list[BatchPart]
    ) -> list[MessageRow]:
        """The messages of a batch as rows; none if one of them is not ordinary."""
        if not topic.takes_plain or not link.is_v4 or not self._is_v4 or fields.reconsume_times:
            return []
        sys_flag, born_ms, cluster_bytes = fields.sys_flag & ~0x30, fields.born_timestamp, len(self.cluster)
        encoded, born_host, find_layout, known = topic.encoded, link.born_host, self.part_layouts.of, None
        rows: list[MessageRow] = []
        for flag, body, raw in parts:
            unique, layout = find_layout(raw)
            if unique is None:
                return []
            if layout is not known:
                stored = len(layout.before) + len(unique) + len(layout.after) - cluster_bytes
                if not layout.is_usual or stored != len(raw) + (raw[-1] != 2):
                    return []
                known = layout
            rows.append((queue, encoded, layout, unique, body, flag, sys_flag, born_ms, born_host, 0, b"", 0))
        return rows

    def _store_part(
        self, link: Link, fields: SendFields, queue: ConsumeQueue, part: BatchPart, shared: bytes, now: Now
    ) -> tuple[int, int]:
        raw = part.properties
        if raw and raw[-1] != 2:
            raw += b"\x02"
        self._count(part.body)
        _, log_offset, size = self.store.put(
            queue, body=part.body, properties=raw + shared, flag=part.flag, sys_flag=fields.sys_flag & ~0x30,
            born_ms=fields.born_timestamp, born_host=link.born_host, store_ms=now.wall_ms,
            store_host=self.store_host, reconsume_times=fields.reconsume_times,
        )  # fmt: skip
        return log_offset, size

    def _count(self, body: bytes) -> None:
        self.count += 1
        self.bytes += len(body)

    def _ack(
        self, command: Command, ids: str, queue_id: int, queue_offset: int, unique: str, end: int,
        waits: bool, count: int = 1,
    ) -> _Answer:  # fmt: skip
        if command.is_oneway:
            return None, end, False, count
        fields = {
            "MSG_REGION": self.config.region, "TRACE_ON": "true", "msgId": ids, "queueId": str(queue_id),
            "queueOffset": str(queue_offset),
        }  # fmt: skip
        if unique:
            fields["transactionId"] = unique
        return encode_command(command.answer(ResponseCode.SUCCESS, fields=fields)), end, waits, count


def _fields(command: Command) -> SendFields:
    if command.code != RequestCode.SEND_MESSAGE:
        return read_fields(SendFields, command.fields)
    first = read_fields(SendFieldsV1, command.fields)
    return SendFields(*(getattr(first, name) for name in SendFields.__struct_fields__))


def _refuse_timed(properties: dict[str, str]) -> None:
    """Delivering a message at once that asks for a time of its own would be a lie; a delay level goes before a time.

    Source: RocketMQ HookUtils.checkIfTimerMessage.
    """
    if TIMER_OUT not in properties and not TIMER_NAMES.isdisjoint(properties) and not _delay_level(properties):
        raise Refused(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f"timed messages ({', '.join(sorted(TIMER_NAMES))}) are not supported; use a delay level",
        )


def _delay_level(properties: dict[str, str]) -> int:
    level = properties.get("DELAY", "")
    return int(level) if level.isdecimal() and level.isascii() and len(level) < 10 else 0
