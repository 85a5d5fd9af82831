"""Records, keys and queue entries: the compiled engine computes what the one in Python does."""

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from struct import Struct
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.record.record import (
    HEAD_V4,
    MAGIC_V1,
    RECORD_BYTES_MIN,
    encode_host,
    encode_record,
    parse_record,
    record_fault,
    unpack_head,
)
from tandemq.engine import python
from tandemq.model.message import SysFlag
from tandemq.replication import record_stream
from tandemq.replication.record_stream import RecordStream
from tests.fuzz.fuzzer import accepted
from tests.fuzz.records import damaged, log_of, without_crc
from tests.unit.engine.modules import compiled_engine

SEEDS = st.integers(0, 1 << 40)
ODDNESS = st.sampled_from((0.0, 0.05, 0.3))


@pytest.fixture(scope="module")
def compiled() -> ModuleType:
    return compiled_engine()


def test_names(compiled: ModuleType) -> None:
    assert compiled.NAME == "compiled" or compiled is python
    assert python.NAME == "python"


# Keys.


@given(
    st.text(max_size=40),
    st.text(max_size=80).map(lambda text: text.encode("utf-8", "replace")) | st.binary(max_size=80),
)
def test_key_hash(compiled: ModuleType, topic: str, key: bytes) -> None:
    assert compiled.key_hash(topic, key) == python.key_hash(topic, key)


def test_key_hash_of_the_smallest_int32(compiled: ModuleType) -> None:
    """The Java hash of "polygenelubricants" is -2**31, which has no absolute value."""
    for engine in (compiled, python):
        assert engine.key_hash("", b"") == 35
        assert engine.key_hash("T", b"k") == 31 * (31 * 84 + 35) + 107
    found = _keys_with_hash(compiled, "T", 0)
    assert found
    assert all(python.key_hash("T", key) == 0 for key in found)


def _keys_with_hash(engine: ModuleType, topic: str, wanted: int) -> list[bytes]:
    """Find keys of six characters whose hash has this absolute value, by computing the last characters."""
    found = []
    for first in range(33, 127):
        for second in range(33, 127, 7):
            prefix = bytes([first, second])
            value = 0
            for unit in f"{topic}#".encode() + prefix:
                value = (31 * value + unit) & 0xFFFFFFFF
            for target in (wanted, (1 << 31), (1 << 32) - wanted):
                rest = _digits((target - value * 31**5) & 0xFFFFFFFF)
                if rest is not None:
                    found.append(prefix + rest)
    return [key for key in found if engine.key_hash(topic, key) == wanted]


def _digits(rest: int) -> bytes | None:
    """Return five characters with 31**4 c0 + … + c4 == rest, if there are."""
    for extra in range(3):
        value, units = rest + (extra << 32), []
        for power in (4, 3, 2, 1, 0):
            unit = min(126, value // 31**power) if power else value
            if power and unit > 40:
                unit -= 2
            units.append(unit)
            value -= unit * 31**power
        if value == 0 and all(1 <= unit < 128 for unit in units):
            return bytes(units)
    return None


@given(st.text(max_size=9), st.binary(max_size=80), st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_key_rows_of_any_bytes(compiled: ModuleType, topic: str, properties: bytes, offset: int, store_ms: int) -> None:
    assert compiled.key_rows(topic, properties, offset, store_ms) == python.key_rows(
        topic, properties, offset, store_ms
    )


PIECES = st.lists(
    st.sampled_from(
        (
            b"UNIQ_KEY",
            b"KEYS",
            b"TAGS",
            b"\x01",
            b"\x02",
            b"\x01",
            b"\x02",
            b" ",
            b"a",
            b"\xc3\xa9",
            b"\xf0\x9f\x98\x80",
            b"\xff",
            b"X",
        )
    )
).map(b"".join)


@given(PIECES)
def test_key_rows_of_properties(compiled: ModuleType, properties: bytes) -> None:
    assert compiled.key_rows("T", properties, 5, 7) == python.key_rows("T", properties, 5, 7)


@given(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1))),
    st.lists(st.integers(0, 5), min_size=1, max_size=7),
    st.integers(-(2**63), 2**63 - 1),
)
def test_link_keys(compiled: ModuleType, keys: list[tuple[int, int, int]], slots: list[int], begin_ms: int) -> None:
    rows = b"".join([python.KEY_ROW.pack(*key) for key in keys])
    tables = [np.array(slots, dtype=np.int32) for _ in range(2)]
    found, expected = (
        engine.link_keys(rows, table, begin_ms, 9) for engine, table in zip((compiled, python), tables, strict=True)
    )
    assert (found, tables[0].tolist()) == (expected, tables[1].tolist())


# Entries.


def outcome(call: Callable[[], Any]) -> Any:
    """Return a result, or that the records are not valid."""
    try:
        return call()
    except AssertionError:
        return "not valid"


@given(SEEDS, ODDNESS, st.booleans(), st.booleans())
def test_record_entries(compiled: ModuleType, seed: int, oddness: float, has_blank: bool, is_damaged: bool) -> None:
    random = Random(seed)
    data = log_of(random, random.randrange(9), 1 << 20, oddness, has_blank=has_blank)
    if is_damaged:
        data = damaged(random, data)
    for one in (data, memoryview(data), bytearray(data), data[: random.randrange(len(data) + 1)]):
        found, expected = (outcome(partial(engine.record_entries, one)) for engine in (compiled, python))
        assert found == expected


def _queue_class(engine: ModuleType) -> type[Any]:
    """Return a queue with the rules of `ConsumeQueue.stage` that matter here."""

    class Queue(engine.QueueTail):  # type: ignore[name-defined,misc]
        topic = ""

        def stage(self, queue_offset: int, log_offset: int, size: int, tags_code: int) -> bool:
            if queue_offset == 0 and self.next_offset and log_offset >= self.staged_log_end():
                self.start_tail(0)
                self.last_log_end = 0
            missing = queue_offset - self.next_offset
            if missing < 0 or missing * 91 > log_offset - self.staged_log_end():
                return False
            if missing and self.next_offset == 0:
                self.start_tail(queue_offset)
                missing = 0
            if missing:
                self.stage_entry(self.staged_log_end(), 0x7FFFFFFF, 0, missing)
            self.stage_entry(log_offset, size, tags_code)
            return True

    return Queue


def staged(engine: ModuleType, pieces: list[bytes], refused: frozenset[tuple[bytes, int]]) -> Any:
    """Return all that staging pieces of a log does."""
    kind = _queue_class(engine)
    queues: dict[tuple[bytes, int], Any] = {}
    asked: list[Any] = []
    dropped: list[Any] = []

    def queue_for(topic: bytes, queue_id: int) -> Any:
        if (topic, queue_id) in refused:
            return None
        return queues.setdefault((topic, queue_id), kind())

    def entry_code(topic: str, properties: bytes, store_ms: int) -> int:
        asked.append((topic, properties, store_ms))
        return store_ms + len(properties)

    def topic_deleted(properties: bytes) -> None:
        asked.append(properties)
        dropped.extend([queues.pop(key) for key in list(queues) if key[0] == b"T"])

    found = []
    for number, piece in enumerate(pieces):
        touched, keys, store_ms = engine.stage_records(piece, queue_for, entry_code, topic_deleted)
        names = {id(queue): key for key, queue in queues.items()}
        touched = [queue for queue in touched if id(queue) in names]
        found.append(([names[id(queue)] for queue in touched], keys, store_ms))
        if number % 2:
            for queue in touched:
                queue.commit_staged()
    ends = {
        key: (
            queue.tail_start,
            queue.max_offset,
            queue.next_offset,
            queue.last_log_end,
            queue.staged_log_end(),
            queue.tail(queue.tail_start, queue.next_offset),
        )
        for key, queue in queues.items()
    }
    return found, ends, asked


@given(SEEDS, ODDNESS, st.booleans())
def test_stage_records(compiled: ModuleType, seed: int, oddness: float, is_damaged: bool) -> None:
    random = Random(seed)
    pieces: list[bytes] = []
    base = 1 << 20
    for _ in range(random.randrange(1, 4)):
        data = log_of(random, random.randrange(9), base, oddness, has_blank=random.random() < 0.2)
        base += len(data)
        pieces.append(damaged(random, data) if is_damaged and random.random() < 0.5 else data)
    refused = frozenset({(b"T", 1), (b"x", 0)}) if random.random() < 0.3 else frozenset()
    assert outcome(lambda: staged(compiled, pieces, refused)) == outcome(lambda: staged(python, pieces, refused))


# Verification.


def stream_of(data: bytes, base: int, engine: ModuleType) -> Any:
    """Return what a record stream makes of data that arrives in two parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_stream, "verify_records", engine.verify_records)
        stream = RecordStream(base, 1 << 30)
        half = len(data) // 2
        found = [stream.feed(data[:half])]
        if found[0][1] is None:
            found.append(stream.feed(data[half:]))
        return [([(bytes(piece.data), piece.records) for piece in pieces], corrupt) for pieces, corrupt in found]


@given(SEEDS, ODDNESS, st.booleans())
def test_verify_records(compiled: ModuleType, seed: int, oddness: float, is_damaged: bool) -> None:
    """The compiled engine verifies exactly the records that the code in Python accepts."""
    random = Random(seed)
    base = random.choice((0, 1 << 20))
    data = log_of(random, random.randrange(9), base, oddness, has_blank=random.random() < 0.2)
    if is_damaged:
        data = damaged(random, data)
    if compiled is not python:
        assert compiled.verify_records(data, 0, len(data), base) == accepted(data, base)
    assert compiled.verify_records(data, 0, len(data), base + 1) == (0, 0)
    assert stream_of(data, base, compiled) == stream_of(data, base, python)


def test_verify_records_within_bounds(compiled: ModuleType) -> None:
    data = log_of(Random(3), 4, 0)
    ends = [0]
    while ends[-1] < len(data):
        ends.append(ends[-1] + int.from_bytes(data[ends[-1] : ends[-1] + 4]))
    if compiled is not python:
        for end in range(len(data) + 1):
            whole = [stop for stop in ends if stop <= end]
            assert compiled.verify_records(data, 0, end, 0) == (whole[-1], len(whole) - 1)
        assert compiled.verify_records(data, ends[1], len(data) + 1000, 0) == (len(data), len(ends) - 2)
    for start, end in ((len(data), len(data)), (len(data) + 5, len(data)), (-1, 50), (0, -1), (50, 20)):
        assert compiled.verify_records(data, start, end, 0) == (start, 0)


@pytest.mark.parametrize("has_crc", [True, False])
def test_every_changed_bit_is_detected_as_by_python(compiled: ModuleType, *, has_crc: bool) -> None:
    """A record with a CRC property is protected whole; without it the body is."""
    random = Random(5)
    for _ in range(3):
        record = log_of(random, 1, 0)
        while (b"__CRC32#" in record) is not True:
            record = log_of(random, 1, 0)
        data = record if has_crc else without_crc(record)
        for bit in range(8 * len(data)):
            changed = bytearray(data)
            changed[bit // 8] ^= 1 << bit % 8
            found = compiled.verify_records(bytes(changed), 0, len(changed), 0)
            if compiled is not python:
                assert found == accepted(bytes(changed), 0), bit
            assert not has_crc or found == (0, 0), bit


@given(SEEDS, ODDNESS, st.booleans(), st.booleans())
def test_parsed_records(compiled: ModuleType, seed: int, oddness: float, is_damaged: bool, checks: bool) -> None:
    """Regular records are sound, and their parts lie where the code in Python finds them."""
    random = Random(seed)
    data = log_of(random, random.randrange(9), 0, oddness, has_blank=random.random() < 0.2)
    if is_damaged:
        data = damaged(random, data)
    start, end = random.choice(((0, len(data)), (0, random.randrange(len(data) + 1)), (len(data), len(data))))
    parsed = compiled.parse_records(data, start, end, checks=checks)
    if compiled is python:
        assert parsed is None
        return
    places = list(batched_by_four(parsed.places))
    assert len(places) == len(parsed.regular)
    assert parsed.heads == b"".join(data[place[0] : place[0] + HEAD_V4.size] for place in places)
    for (at, stop, body_stop, topic_stop), is_regular in zip(places, parsed.regular, strict=True):
        assert at == start
        assert at + RECORD_BYTES_MIN <= stop == at + int.from_bytes(data[at : at + 4]) <= end
        record = parse_record(data, at, stop)
        head = unpack_head(data, at)
        has_v6_host = head.sys_flag & (SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6)
        if isinstance(record, str) or record.size != stop - at or has_v6_host or head.magic != MAGIC_V1:
            assert not is_regular
        elif is_regular:
            assert body_stop == record.body_end
            assert data[body_stop + 1 : topic_stop] == record.topic
            place = record.body_start, record.body_end, record.body_crc
            assert not checks or record_fault(data, at, record.size, *place) is None
        else:
            assert checks
            assert body_stop == topic_stop == at
        start = stop
    assert (
        start > end - RECORD_BYTES_MIN or not RECORD_BYTES_MIN <= int.from_bytes(data[start : start + 4]) <= end - start
    )


def batched_by_four(numbers: bytes) -> Iterator[tuple[int, int, int, int]]:
    return Struct("=4q").iter_unpack(numbers)


@pytest.mark.parametrize("prepared", [-1 << 63, -2, 0, (1 << 63) - 1])
def test_timed_message_with_any_offset_of_the_one_before(compiled: ModuleType, prepared: int) -> None:
    """Regression: the smallest offset overflowed."""
    host = encode_host(b"\x7f\0\0\1", 9)
    record = encode_record(
        topic=b"W",
        queue_id=0,
        queue_offset=0,
        log_offset=0,
        body=b"x",
        properties=b"TIMER_OUT_MS\x015\x02REAL_TOPIC\x01T\x02",
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=host,
        store_ms=1,
        store_host=host,
        prepared_offset=prepared,
    )
    entry = bytes(8) + len(record).to_bytes(4) + bytes(8)
    [head] = compiled.timer_heads(record, 0, entry, 0, b"W")
    assert head in (None, (5, "T", "", False, False, prepared - 1, 1))
    assert (head is None) == (compiled is python or prepared < 0)
    far = (1 << 63).to_bytes(8) + entry[8:]
    assert compiled.timer_heads(record, 1, far, 0, b"W") == [None]


# Messages.


@given(SEEDS, st.integers(0, 12), ODDNESS, st.booleans(), st.integers(0, 3))
def test_messages_of_records(
    compiled: ModuleType, seed: int, count: int, oddness: float, is_damaged: bool, start: int
) -> None:
    random = Random(seed)
    data = log_of(random, count, 1 << 20, oddness)
    if is_damaged:
        data = damaged(random, data)
    found = compiled.stored_messages(data, 0)
    assert found == python.stored_messages(data, 0)
    for start_at in (start, found.end, len(data), len(data) + 1, -1):
        assert compiled.stored_messages(data, start_at) == python.stored_messages(data, start_at)


@given(SEEDS, st.integers(0, 12), ODDNESS, st.booleans())
def test_properties_of_records(compiled: ModuleType, seed: int, count: int, oddness: float, is_damaged: bool) -> None:
    random = Random(seed)
    data = log_of(random, count, 1 << 20, oddness)
    if is_damaged:
        data = damaged(random, data)
    assert compiled.record_properties(data) == python.record_properties(data)


def test_messages_end_before_a_compressed_one(compiled: ModuleType) -> None:
    first, second = _record(b"plain", sys_flag=0), _record(b"packed", sys_flag=1)
    for engine in (compiled, python):
        messages, end = engine.stored_messages(first + second + first, 0)
        assert [message.body for message in messages] == [b"plain"]
        assert end == len(first)
        assert engine.stored_messages(first + second + first, len(first) + len(second)).end == 2 * len(first) + len(
            second
        )


def test_pairs_without_name_or_value_are_dropped_and_the_last_of_a_name_counts(compiled: ModuleType) -> None:
    properties = "a\x011\x02\x01x\x02b\x01\x02c\x02d\x01x\x01y\x02a\x012\x02Größe\x01ü".encode() + b"\xe4\xb8\x02"
    wanted = {"a": "2", "d": "x\x01y", "Größe": "ü\ufffd"}
    data = b"".join(_record(b"", properties=properties) for _ in range(2))
    for engine in (compiled, python):
        for message in engine.stored_messages(data, 0).messages:
            assert message.properties.pop("__CRC32#")
            assert message.properties == wanted
            assert list(message.properties) == list(wanted)


def test_message_without_a_topic(compiled: ModuleType) -> None:
    data = _record(b"", topic=b"") + _record(b"")
    for engine in (compiled, python):
        assert [message.topic for message in engine.stored_messages(data, 0).messages] == ["", "T"]


def test_more_property_names_than_are_kept(compiled: ModuleType) -> None:
    many = "".join(f"n{number}\x01{number}\x02" for number in range(40)).encode()
    other = "".join(f"m{number}\x01{number}\x02" for number in range(40)).encode()
    data = _record(b"", properties=many) + _record(b"", properties=other) + _record(b"", properties=many)
    assert compiled.stored_messages(data, 0) == python.stored_messages(data, 0)


def _record(body: bytes, *, topic: bytes = b"T", properties: bytes = b"", sys_flag: int = 0) -> bytes:
    return encode_record(
        topic=topic,
        queue_id=1,
        queue_offset=2,
        log_offset=3,
        body=body,
        properties=properties,
        flag=4,
        sys_flag=sys_flag,
        born_ms=5,
        born_host=encode_host(bytes((10, 0, 0, 1)), 6),
        store_ms=7,
        store_host=encode_host(bytes(15) + b"\x01", 8),
        reconsume_times=9,
        prepared_offset=10,
    )


@given(st.lists(st.lists(st.sampled_from([b"K\x01", b"KEYS\x01", b"v", b"\x02", b"\x01", b""])), max_size=6), st.data())
def test_property_spans(compiled: ModuleType, rows: list[list[bytes]], data: st.DataObject) -> None:
    """The last value of a property in each record, as splitting the text finds it."""
    texts = [b"".join(row) for row in rows]
    begin = data.draw(st.sampled_from([b"K\x01", b"KEYS\x01"]))
    bounds = np.cumsum([0, *map(len, texts)], dtype=np.int32)
    joined = b"".join(texts)
    packed = compiled.property_spans(joined, bounds, begin)
    if compiled is python:
        assert packed is None
        return
    spans = np.frombuffer(packed, np.int32).reshape(-1, 2).tolist()
    assert len(spans) == len(texts)
    for text, (start, stop) in zip(texts, spans, strict=True):
        found = [piece[len(begin) :] for piece in text.split(b"\x02") if piece.startswith(begin)]
        assert joined[start:stop] == (found[-1] if found else b"")


def test_property_spans_refuse_bounds_outside_the_text(compiled: ModuleType) -> None:
    if compiled is python:
        assert compiled.property_spans(b"abc", np.zeros(2, np.int32), b"K\x01") is None
        return
    for bounds in ([0, 4], [-1, 2], [2, 1], [0, 3, 2], [5, 5]):
        with pytest.raises(ValueError, match="must ascend"):
            compiled.property_spans(b"abc", np.array(bounds, np.int32), b"K\x01")
    assert compiled.property_spans(b"", np.zeros(0, np.int32), b"K\x01") == b""


@given(st.binary(max_size=40), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=8))
def test_copy_spans(compiled: ModuleType, data: bytes, spans: list[tuple[int, int]]) -> None:
    places = sorted((min(at, len(data)), min(other, len(data))) for at, other in (sorted(pair) for pair in spans))
    starts, stops = np.array(places, dtype=np.int64).reshape(-1, 2).T.copy()
    wanted = [data[start:stop] for start, stop in places]
    values = bytearray(len(b"".join(wanted)))
    bounds = compiled.copy_spans(data, starts, stops, values)
    if compiled is python:
        assert bounds is None
        return
    assert bytes(values) == b"".join(wanted)
    assert np.frombuffer(bounds, np.int32).tolist() == np.cumsum([0, *map(len, wanted)]).tolist()


@pytest.mark.parametrize(
    ("starts", "stops", "room", "wrong"),
    [
        ([0], [4], 4, "within the data"),
        ([-1], [2], 3, "within the data"),
        ([2], [1], 3, "within the data"),
        ([0, 0], [3, 3], 5, "too small"),
        ([0, 1], [3], 9, "as many ends"),
    ],
)
def test_copy_spans_refuses_what_does_not_fit(
    compiled: ModuleType, starts: list[int], stops: list[int], room: int, wrong: str
) -> None:
    words = b"abc", np.array(starts, np.int64), np.array(stops, np.int64), bytearray(room)
    if compiled is python:
        assert compiled.copy_spans(*words) is None
        return
    with pytest.raises(ValueError, match=wrong):
        compiled.copy_spans(*words)
