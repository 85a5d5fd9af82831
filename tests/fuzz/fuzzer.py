"""Mutated frames and records for the engine, and the judgement of the code in Python on a sample of them.

Every frame goes to `SendEngine.take`; what it stored is checked at every fourth flush. One of `SAMPLE` frames is
compared through two brokers: the engine must have taken only what the decoded path accepts, with the same record and
response.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from random import Random
from types import ModuleType
from typing import Any

import numpy as np

from tandemq.broker.features.timers.records import TimerHead, head_of
from tandemq.broker.filter.parser import compile_filter
from tandemq.broker.filter.selector import MessageSelector
from tandemq.broker.kernel.connection import pack_host
from tandemq.codec.record.entries import HOLE_SIZE_MAX, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import parse_record, record_fault, unpack_head
from tandemq.codec.remoting.signature import is_signed
from tandemq.engine import KEY_ROW, LARGE_BODY_BYTES, RecordChanges, python
from tandemq.errors import ProtocolError, RecordTooLarge
from tandemq.model.access import Credentials
from tandemq.model.message import decode_properties
from tandemq.model.topic import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from tests.fuzz.clients import calls, response
from tests.fuzz.filters import expression, program_steps, properties
from tests.fuzz.frames import Frames, Sent, Turns, ack_frame, command_in, pull_frame, signed_frame
from tests.fuzz.records import damaged, log_of
from tests.fuzz.reduction import reduced
from tests.fuzz.tails import TailPair
from tests.fuzz.transactions import end_frame, half_message
from tests.fuzz.values import BORN_MS
from tests.unit.broker.features.sends.comparison import TOPICS, Recorder, difference, run_script

SAMPLE = 200
COMPARED = 128
"""Sampled frames that are compared at once, each on a connection of its own."""
ROUND = 2000
"""Frames between two flushes."""
CHECKED = 4
"""Of so many flushes one is checked in Python, which takes longer than all that the engine does."""
CORPUS = 300
HALVES = 60
RECORD_SHARE = 50
"""Frames for each mutated piece of a log."""
BODY_BYTES_MAX = 8192
LARGE_FRAMES = 20
"""Sends with a large body per round."""
USER = Credentials("alice", "alice-key")
DELAYS_MS = tuple(1000 * level for level in range(1, 19))
HOSTS = tuple(pack_host(text) for text in ("10.0.0.1:5", "[fe80::1]:6"))


def check_signature(frame: bytes) -> None:
    """Check that the first request in a frame is signed.

    Raises:
        Different: it is not.
    """
    command = command_in(frame)
    if command is None or not is_signed(command.fields, command.body, command.version, USER.secret_key):
        raise Different(f"the engine takes a request that is not signed: {frame!r}")


def _half_at(number: int) -> int:
    """Return the log offset of a half message."""
    return (number + 1) << 16


def split_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a response to a pull."""
    while data:
        size = int.from_bytes(data[:4])
        yield data[:size]
        data = data[size:] if size else b""


class Admitted:
    """A pop that acknowledgements belong to."""

    low, high = 0, 1000

    def __init__(self) -> None:
        """Begin without acknowledged offsets."""
        self.offsets: dict[int, None] = {}


class Different(Exception):
    """The engine and the code in Python judge an input differently."""


@dataclass
class Counts:
    """What was done so far."""

    frames: int = 0
    taken: int = 0
    messages: int = 0
    ends: int = 0
    """Ends of transactions."""
    compared: int = 0
    large: int = 0
    """Sends with a large body that were taken."""
    pieces: int = 0
    """Pieces of a log."""
    timed: int = 0
    """Timed messages read by the engine."""
    copied: int = 0
    """Records copied by the engine."""
    pulls: int = 0
    """Pulls that the engine answered."""
    responses: int = 0
    """Responses to sends that the engine read."""


class Fuzzer:
    """Feeds an engine."""

    def __init__(self, engine: ModuleType, seed: int) -> None:
        """Begin with a corpus drawn from a seed."""
        self.engine = engine
        self.counts = Counts()
        self._random = Random(seed)
        self._sampled: list[bytes] = []
        self._corpus: list[bytes] = []
        self._logs: list[bytes] = []
        self._halves: dict[int, bytes] = {}
        """Records of half messages by queue offset."""

    def run_round(self) -> None:
        """Feed one round of frames and pieces of logs.

        Raises:
            Different: see there.
        """
        random = self._random
        if self.counts.frames // ROUND % 50 == 0:
            self._fill_corpus()
        table = self._new_table()
        engine = self.engine.SendEngine(table)
        is_limited = random.random() < 0.1
        engine.configure(
            store_host=random.choice(HOSTS),
            region=random.choice(("DefaultRegion", "", 'r"é')),
            trace_on=random.choice(("true", "false")),
            common_pairs=random.choice((b"CLUSTER\x01c\x02", b"CLUSTER\x01c\x02MSG_REGION\x01r\x02")),
            frame_bytes_max=400 if is_limited else 256 * 1024,
            body_bytes_max=100 if is_limited else 4 * LARGE_BODY_BYTES,
            delays_ms=DELAYS_MS[:2] if is_limited else DELAYS_MS,
            broker_name=random.choice(("broker-a", "b é")),
            timer_precision_ms=random.choice((1000, 100, 0)),
            timer_delay_max_ms=259_200_000,
        )
        log_end = random.randrange(1 << 40)
        self._know_halves(engine)
        room, timers_room = (5_000, 3) if is_limited else (1 << 30, 1 << 30)
        engine.begin(log_end, room, BORN_MS, timers_room, takes_halves=True, takes_ends=True)
        taken = 0
        sender = self.engine.SigningUser(
            USER.access_key, USER.secret_key, random.choice((None, {"T", "Wide"})), None, None
        )
        for frame in self._mutated(ROUND):
            host = HOSTS[len(frame) & 1]
            is_checked = b"AccessKey" in frame
            end = engine.take(len(frame) & 3, host, frame, 0, sender if is_checked else None)
            if end and is_checked:
                check_signature(frame)
            if end:
                taken += 1
                if not 0 < end <= len(frame):
                    raise Different(f"take returned {end} of {len(frame)} bytes: {frame!r}")
        self.counts.frames += ROUND
        self.counts.taken += taken
        if not is_limited:
            self._feed_large(engine)
        self._feed_acks()
        self._feed_pulls()
        self._feed_clients()
        self._check_flush(engine, table, log_end)
        for _ in range(ROUND // RECORD_SHARE):
            self._feed_piece()
        tails = TailPair(self.engine)
        for _ in range(20):
            tails.step(random)
        if len(self._sampled) >= COMPARED:
            self.compare(self._sampled[:COMPARED])
            del self._sampled[:COMPARED]

    # Frames.

    def _know_halves(self, engine: Any) -> None:
        """Let the engine know half messages, some of which it then reads damaged."""
        random, records = self._random, {_half_at(number): raw for number, raw in self._halves.items()}

        def read(log_offset: int, size: int) -> bytes:
            raw = records[log_offset]
            if random.getrandbits(2):
                return raw[:size]
            return random.choice((damaged(random, raw), raw[: random.randrange(len(raw) + 1)], b""))

        known = {number: (_half_at(number), "T", len(raw)) for number, raw in self._halves.items()}
        engine.know_transactions(known, {}, read)

    def _feed_large(self, engine: Any) -> None:
        """Feed mutated sends with a large body, in parts that end anywhere."""
        random = self._random
        for _ in range(LARGE_FRAMES):
            frame = mutation(random.choice(self._corpus), random.choice(self._corpus), random.getrandbits(96))
            if len(frame) < 8 or (len(frame) - 4).to_bytes(4) != frame[:4]:
                continue
            frame += random.randbytes(random.choice((LARGE_BODY_BYTES - 50, LARGE_BODY_BYTES, 3 * LARGE_BODY_BYTES)))
            frame = (len(frame) - 4).to_bytes(4) + frame[4:]
            cuts = sorted(random.choices(range(len(frame) + 1), k=3))
            parts = [frame[first:last] for first, last in pairwise((0, *cuts, len(frame)))]
            self.counts.large += engine.take_large(len(frame) & 3, HOSTS[len(frame) & 1], parts)

    def _feed_acks(self) -> None:
        """Feed mutated acknowledgements of popped messages, and check that responses and offsets agree in number."""
        random, admitted = self._random, Admitted()
        engine = self.engine.AckEngine(lambda *_: admitted)
        frames = [ack_frame(random, offset) for offset in range(20)]
        taken = answers = 0
        for number in range(ROUND // 20):
            frame = frames[number % 20]
            if number % 3:
                frame = mutation(frame, random.choice(frames), random.getrandbits(96))
            end, data = engine.take(frame, 0)
            taken += end == len(frame)
            answers += data.count(b'"code":0')
        engine.forget()
        if answers > taken or not taken >= 20 or not all(0 <= offset <= 1000 for offset in admitted.offsets):
            raise Different(f"{taken} acknowledgements taken, {answers} answered: {admitted.offsets}")

    def _feed_pulls(self) -> None:
        """Feed mutated pulls of a piece of a log, and check that what the engine answers stands in it."""
        random, log, base = self._random, self._random.choice(self._logs), 1 << 20
        topics: dict[str, Any] = {}
        all_counts: dict[tuple[str, str], Any] = {}
        groups = {"g": object()}
        engine = self.engine.PullEngine(
            topics=topics,
            groups=groups,
            consumers={},
            forbidden={},
            static_topics={},
            resets={},
            counts=all_counts,
            ahead={},
        )
        most, bytes_max = random.choice(((1, 500), (32, 1 << 20)))
        engine.configure(
            messages_max=most, bytes_max=bytes_max, bulk_messages_max=100, bulk_bytes_max=1 << 20, frame_bytes_max=4096
        )
        frames = []
        for entry in python.record_entries(log):
            name = entry.topic.decode("utf-8", "replace")
            topic = topics.setdefault(name, self.engine.TopicTarget(name, 4, takes_plain=True))
            queue = topic.queues.setdefault(entry.queue_id, self.engine.QueueTail())
            if not queue.max_offset:
                queue.start_tail(entry.queue_offset)
            queue.stage_packed(entry.entry)
            queue.commit_staged()
            codes = random.choice((None, None, frozenset({QUEUE_ENTRY.unpack(entry.entry)[2], 7})))
            counts = all_counts.setdefault((name, "g"), self.engine.PullCounts())
            counts.next_offsets[entry.queue_id] = 0
            place = (name, "g", entry.queue_id)
            target = self.engine.PullTarget(place, topic, queue, groups["g"], MessageSelector(codes))
            engine.add(target, "*", "TAG", has_own=True)
            frames.append(pull_frame(random, name, entry.queue_id, entry.queue_offset))
        is_recent = random.getrandbits(1)
        sources = self.engine.LogSources({}, 1 << 18, 1 << 30, lambda start, end, *_: log[start - base : end - base])
        recent_start, recent = (base, bytearray(log)) if is_recent else (base + len(log), bytearray())
        for number in range(ROUND // 20 if frames else 0):
            data = random.choice(frames) + random.choice(frames)
            if number % 3:
                data = mutation(data, random.choice(frames), random.getrandbits(96))
            limit = base + random.choice((len(log), random.randrange(len(log))))
            engine.begin(limit, base + len(log), recent_start, recent, sources)
            end = engine.take(data, 0, 1 << 20)
            if not 0 <= end <= len(data):
                raise Different(f"take returned {end} of {len(data)} bytes: {data!r}")
            self.counts.pulls += len(engine.answers)
            for answer in engine.answers:
                answered = command_in(answer)
                if answered is None or any(part not in log for part in split_records(answered.body)):
                    raise Different(f"a response to {data!r} that is not of the log: {answer!r}")

    def _feed_clients(self) -> None:
        """Feed what our client gives to the engine: messages, and mutated responses to them."""
        random = self._random
        for number in range(ROUND // 20):
            for name, arguments in calls(random):
                call = partial(_call, name=name, arguments=arguments)
                self._same(number % 4 == 0, call, repr(arguments).encode())
        frames = [response(random) for _ in range(20)]
        for _ in range(ROUND // 20):
            some = random.choices(frames, k=3)
            if random.getrandbits(1):
                some[1] = mutation(some[1], random.choice(frames), random.getrandbits(96))
            data = b"".join(some)[: random.choice((None, None, random.randrange(400)))]
            found, end = self.engine.stored_sends(data, 0, 1 << 20)
            # The engine may leave to the decoder what the code in Python takes, not the other way round.
            specified, specified_end = python.stored_sends(data, 0, 1 << 20)
            if found != specified[: len(found)] or not end <= specified_end <= len(data):
                raise Different(f"stored_sends: {found!r} and {end} of {data!r}")
            self.counts.responses += len(found)

    def _fill_corpus(self) -> None:
        random = self._random
        frames = Frames(random, random.choice((0.0, 0.0, 0.02)), body_bytes_max=BODY_BYTES_MAX)
        self._corpus = [frames.send() for _ in range(CORPUS)] + [frames.other() for _ in range(CORPUS // 20)]
        self._halves = {
            number: half_message(random, frames, _half_at(number), number, f"K{number}") for number in range(HALVES)
        }
        self._corpus += [end_frame(random, frames, number, _half_at(number), f"K{number}") for number in self._halves]
        signed = [signed_frame(frame, USER, random) for frame in self._corpus[:: CORPUS // 50]]
        self._corpus += [frame for frame in signed if frame is not None]
        self._logs = [log_of(random, random.randrange(1, 6), 1 << 20, 0.02, has_blank=bits == 0) for bits in range(50)]

    def _mutated(self, count: int) -> Iterator[bytes]:
        """Yield mutated frames; some of them are several, one behind the other, and some are unchanged."""
        bits_of, corpus, sampled = self._random.getrandbits, self._corpus, self._sampled
        size = len(corpus)
        for number in range(count):
            bits = bits_of(128)
            frame = mutation(corpus[bits % size], corpus[(bits >> 16) % size], bits >> 32)
            if bits & 15 == 0:
                frame += corpus[(bits >> 20) % size]
            if number % SAMPLE == 0:
                sampled.append(frame)
            yield frame

    def _new_table(self) -> dict[str, Any]:
        table = {}
        names = [(topic.topic_name, topic.write_queue_nums, topic.perm & 2 != 0) for topic in TOPICS]
        own = [(SCHEDULE_TOPIC, 18, False), (TIMER_TOPIC, 1, False), (HALF_TOPIC, 1, False)]
        for name, queues, takes_plain in [*names, *own]:
            table[name] = self.engine.TopicTarget(name, queues, takes_plain=takes_plain)
            table[name].queues = {number: self.engine.QueueTail() for number in range(queues)}
        return table

    def _check_flush(self, engine: Any, table: dict[str, Any], log_end: int) -> None:
        """Check that the records are valid, and that queues and keys are those of the records."""
        sends = engine.flush()
        self.counts.messages += sends.messages
        self.counts.ends += len(sends.ends)
        if self.counts.frames // ROUND % CHECKED:
            return
        data = b"".join(sends.records)
        end, count = accepted(data, log_end)
        if end != len(data) or not sends.messages <= count <= sends.messages + len(sends.ends):  # rollbacks
            raise Different(f"the engine's records are not valid: {data!r}")
        found: dict[tuple[str, int], bytes] = {}
        keys: list[bytes] = []
        at = 0
        for entry in python.record_entries(data):
            key = entry.topic.decode(), entry.queue_id
            code = entry.entry
            record = parse_record(data, at, len(data))
            assert not isinstance(record, str)
            if key[0] == SCHEDULE_TOPIC:
                delay = dict(enumerate(DELAYS_MS))[entry.queue_id]
                code = QUEUE_ENTRY.pack(log_end + at, record.size, BORN_MS + delay)
            found[key] = found.get(key, b"") + code
            keys.append(python.key_rows(key[0], record.properties, record.log_offset, BORN_MS))
            at += record.size
        if b"".join(keys) != sends.keys:
            raise Different(f"keys {sends.keys!r} of {data!r}")
        for name, target in table.items():
            for queue_id, queue in target.queues.items():
                if queue.tail(0, queue.next_offset) != found.get((name, queue_id), b""):
                    raise Different(f"entries of {name} {queue_id} for {data!r}")
        if sum(ack[4] for ack in sends.acks) != sends.messages + len(sends.ends):
            raise Different(f"acknowledgements {sends.acks!r}")

    def compare(self, frames: list[bytes]) -> None:
        """Compare frames through two brokers.

        Raises:
            Different: what differs, with the fewest frames that show it.
        """
        turns = [[Sent(link, frame)] for link, frame in enumerate(frames, start=1)]
        self.counts.compared += len(frames)
        if not _fault_of(turns):
            return
        turns = reduced(turns, lambda fewer: _fault_of(fewer) != "")
        raise Different(f"{_fault_of(turns)}\nwith {[sent.data for turn in turns for sent in turn]}")

    # Records.

    def _feed_piece(self) -> None:
        random = self._random
        data = self._logs[random.getrandbits(16) % len(self._logs)]
        if random.getrandbits(3):
            data = damaged(random, data)
        self.counts.pieces += 1
        is_compared = random.getrandbits(4) == 0
        base = 1 << 20
        end = self.engine.verify_records(data, 0, len(data), base)
        if is_compared and end != accepted(data, base):
            raise Different(f"verify_records: {end} of {data!r}")
        self.engine.parse_records(data, 0, random.randrange(len(data) + 1), checks=is_compared)
        bounds = np.sort(np.array([random.randrange(len(data) + 1) for _ in range(8)], dtype=np.int32))
        self.engine.property_spans(data, bounds, b"KEYS\x01")
        starts, stops = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
        copied = bytearray(int(bounds[-1] - bounds[0]))
        self.engine.copy_spans(data, starts, stops, copied)
        if copied != data[bounds[0] : bounds[-1]]:
            raise Different(f"copy_spans: {bounds} of {data!r}")
        self._same(is_compared, lambda engine: engine.record_entries(data), data)
        self._same(is_compared, lambda engine: engine.record_properties(data), data)
        self._same(is_compared, lambda engine: engine.stage_records(data, _no_queue, _no_code, _no_deletion), data)
        self._same(is_compared, lambda engine: engine.stored_messages(data, 0), data)
        start = random.randrange(len(data) + 1)
        for _ in range(4):
            self._check_heads(data, base)
            self._copy(data)
        properties = data[start : start + random.randrange(200)]
        self._same(is_compared, lambda engine: engine.key_rows("T", properties, start, end[0]), properties)
        self._gather(data, base)
        self._filter(is_compared)
        rows = b"".join([KEY_ROW.pack(random.getrandbits(31), start, random.getrandbits(63)) for _ in range(3)])
        self._same(is_compared, lambda engine: _linked(engine, rows, start), rows)

    def _check_heads(self, data: bytes, base: int) -> None:
        """Check that what the index of timed messages gets is what the code in Python reads."""
        random = self._random
        at = 0
        for _ in range(random.randrange(4)):
            at += max(0, min(int.from_bytes(data[at : at + 4]), len(data) - at))
        at = at if random.getrandbits(3) else random.randrange(len(data) + 1)
        size = int.from_bytes(data[at : at + 4], signed=True)
        odd = random.choice((0, 0, 0, -1, 1, 1 << 30))
        entry = QUEUE_ENTRY.pack(base + at, max(-1, min(size + odd, HOLE_SIZE_MAX)), 0)
        record = parse_record(data, at, min(len(data), at + max(0, size)))
        offset = 5 if isinstance(record, str) else record.queue_offset
        topic = b"T" if isinstance(record, str) else record.topic
        [row] = self.engine.timer_heads(data, base, entry, offset, topic)
        if row is None:
            return
        if isinstance(record, str) or odd or record.log_offset != base + at:
            raise Different(f"timer_heads: {row!r} of {data!r} at {at}")
        properties = decode_properties(record.properties.decode("utf-8", "replace"))
        head = head_of(record, properties, unpack_head(data, at).prepared_offset - 1)
        if TimerHead(*row) != head:
            raise Different(f"timer_heads: {row!r} instead of {head!r} for {data!r} at {at}")
        self.counts.timed += 1

    def _copy(self, data: bytes) -> None:
        """Check that a record is copied as the code in Python copies it."""
        random = self._random
        at = 0
        for _ in range(random.randrange(4)):
            at += max(0, min(int.from_bytes(data[at : at + 4]), len(data) - at))
        record = data[at : at + int.from_bytes(data[at : at + 4])]
        names = (b"KEYS", b"TAGS", b"UNIQ_KEY", b"DELAY", b"WAIT", b"REAL_TOPIC", b"TIMER_OUT_MS", "é".encode(), b"a")
        changed = random.sample(names, random.randrange(4))
        changes = RecordChanges(
            random.choice((0, 1, 8, 0x30)),
            tuple(changed + random.sample(names, random.randrange(4))),
            tuple((name, b"d" * random.randrange(1, 99)) for name in random.sample(names, random.randrange(4))),
            b"".join(b"%b\x01%d\x02" % (name, random.getrandbits(20)) for name in changed),
            random.choice((None, *HOSTS)),
            random.choice((None, 0, 7)),
            random.getrandbits(40),
        )
        topic = random.choice((b"T", b"Long" * 31, b"Long" * 32))
        place = (random.randrange(9), random.getrandbits(40), BORN_MS)

        def copy(engine: Any) -> object:
            sizes: list[int] = []

            def reserve(size: int) -> int:
                sizes.append(size)
                return at << 20

            try:
                return engine.copy_record(record, changes, topic, *place, reserve), sizes
            except (ProtocolError, RecordTooLarge) as error:
                return str(error)

        found = copy(self.engine)
        if found != copy(python):
            raise Different(f"copy_record: {found!r} is wrong for {record!r} and {changes}")
        self.counts.copied += isinstance(found, tuple)

    def _gather(self, data: bytes, base: int) -> None:
        random = self._random
        entries = b"".join(
            [
                QUEUE_ENTRY.pack(
                    base + random.randrange(-50, len(data) + 50), random.choice((0, 91, 300, -1, 1 << 30)), 0
                )
                for _ in range(3)
            ]
        )
        first = self._logs[0][:4]
        entries = (
            QUEUE_ENTRY.pack(base, int.from_bytes(first), 0) + entries[: -(random.getrandbits(1) * QUEUE_ENTRY_BYTES)]
        )
        blocks = {
            base // 64 + number: data[number * 64 : number * 64 + 64]
            for number in range(len(data) // 64 + 1)
            if random.getrandbits(3)
        }

        def load(start: int, end: int, run_end: int, _: bool) -> bytes | None:
            if not 0 <= start < end <= run_end <= base + len(data):
                raise Different(f"gather_messages: loads {start} to {end} or {run_end}")
            held = data[max(0, start - base) : run_end - base]
            return random.choice((None, b"", held[: end - start], held))

        recent_start = random.choice((base, 1 << 40))
        sources = self.engine.LogSources(blocks, 64, 1 << 20, load)
        read = 1 << 62, base + len(data), recent_start, bytearray(data), sources
        self.engine.gather_messages(entries, 0, 0, b"T", random.choice((None, {0})), 5, 1 << 20, *read)
        text = expression(random)
        program = self.engine.FilterProgram(program_steps(text), 3, compile_filter(text).matches)
        limits = 5, 1 << 20, random.choice((1, 1 << 20)), random.choice((1, 1 << 20))
        self.engine.select_messages(entries, 0, 0, b"T", program, *limits, *read)

    def _filter(self, is_compared: bool) -> None:
        random = self._random
        text, stored = expression(random), properties(random)
        if random.getrandbits(1):
            stored = damaged(random, stored)
        steps, matches = program_steps(text), compile_filter(text).matches
        self._same(is_compared, lambda engine: engine.FilterProgram(steps, 3, matches).matches(stored), stored)

    def _same(self, is_compared: bool, call: Callable[[Any], Any], given: bytes) -> None:
        found = _outcome(partial(call, self.engine))
        if is_compared and found != _outcome(partial(call, python)):
            raise Different(f"{found!r} is wrong for {given!r}")


def mutation(frame: bytes, other: bytes, bits: int) -> bytes:
    """Return a frame with one change or two, mostly with the right lengths; `bits` has all choices."""
    raw = bytearray(frame)
    for _ in range(1 + (bits & 1)):
        at = (bits >> 8) % len(raw)
        kind, value = bits >> 1 & 7, bits >> 32 & 255
        if kind < 3:
            raw[at] = value
        elif kind == 3:
            raw[at] ^= 1 << (value & 7)
        elif kind == 4:
            del raw[at : at + 1 + (value & 7)]
        elif kind == 5:
            raw[at:at] = _PIECES[value % len(_PIECES)]
        elif kind == 6:
            raw[at:] = other[at:]
        bits >>= 40
        if not raw:
            return b""
    grown = len(raw) - len(frame)
    if bits & 7 and len(raw) >= 8:
        header_bytes = int.from_bytes(raw[5:8]) + (grown if bits & 8 else 0)
        raw[:4] = (len(raw) - 4).to_bytes(4)
        raw[5:8] = max(0, min(header_bytes, len(raw) - 8)).to_bytes(3)
    return bytes(raw)


_PAIRS = (
    *(
        b"WAIT\x01false",
        b"DELAY\x013",
        b"REAL_QID\x011",
        b"REAL_TOPIC\x01T",
        b"CLUSTER\x01x",
        b"KEYS\x01a  b",
        b"TAGS\x01t",
    ),
    *(
        b"UNIQ_KEY\x01k",
        b"TRAN_MSG\x01true",
        b"__CRC32#\x01x",
        b"TIMER_X\x01y",
        b"TIMER_DELAY_SEC\x015",
        b"TIMER_DELAY_MS\x019999",
        b"TIMER_DELIVER_MS\x011700000030000",
        b"TIMER_DELIVER_MS\x01999999999999999999",
        b"x\x01",
        b"\x01y",
        b"a\x01b",
        b"DELAY\x0103",
    ),
)
_RAW_PAIRS = tuple(b"\x02" + pair + b"\x02" for pair in _PAIRS)
_PIECES = (
    *(bytes([byte]) for byte in b'\x00\x01\x02"\\\xff\xc3 ,{}0-'),
    *(b"\\u0001", b"\\u0002", b"\xc3\xa9", b'","', b"\\ud83d\\ude00", b"\\ud83d", b"TIMER_"),
    *(bytes(4), b'"b":"T",', b"\xf0\x9f\x98\x80", b"\xed\xa0\x80", b"null"),
    *_RAW_PAIRS,
    *(pair.replace(b"\x01", b"\\u0001").replace(b"\x02", b"\\u0002") for pair in _RAW_PAIRS),
)


def accepted(data: bytes, base: int) -> tuple[int, int]:
    """Return the end of the records that the code in Python accepts, and their number."""
    at = count = 0
    while True:
        record = parse_record(data, at, len(data))
        if isinstance(record, str) or record.size < 91 or record.log_offset != base + at:
            return at, count
        if record_fault(data, at, record.size, record.body_start, record.body_end, record.body_crc) is not None:
            return at, count
        at += record.size
        count += 1


def _fault_of(turns: Turns) -> str:
    links = sorted({sent.link for turn in turns for sent in turn} | {1})

    def script(broker: Recorder) -> None:
        for sent in turns:
            broker.receive(sent)

    first = run_script(script, uses_engine=True, links=links)
    found = difference(first, run_script(script, uses_engine=False, links=links))
    return found or "an exception ended a connection" * (first.node.faults > 0)


def _call(engine: Any, name: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(engine, name)(*arguments)


def _outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except AssertionError:
        return "not valid"


def _no_queue(_topic: bytes, _queue_id: int) -> None:
    return None


def _no_code(_topic: str, _properties: bytes, _store_ms: int) -> int:
    return 0


def _no_deletion(_properties: bytes) -> None:
    return None


def _linked(engine: Any, rows: bytes, begin_ms: int) -> Any:
    table = np.zeros(7, dtype=np.int32)
    return engine.link_keys(rows, table, begin_ms, 1), table.tolist()
