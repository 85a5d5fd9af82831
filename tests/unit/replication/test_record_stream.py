"""Record stream: any split, any damage, files with any number of bytes left."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.replication.record_stream import LARGE_RECORD_BYTES, RecordStream
from tests.spec import spec
from tests.unit.replication.logs import make_log, make_record

SEGMENT = 2048


def feed_all(data: bytes, cuts: list[int], segment: int = SEGMENT) -> tuple[bytes, str | None]:
    stream = RecordStream(0, segment)
    stored, at = b"", 0
    for cut in [*cuts, len(data)]:
        pieces, corrupt = stream.feed(data[at : at + cut])
        for piece in pieces:
            assert len(stored) // segment == (len(stored) + len(piece.data) - 1) // segment, "a piece within one file"
            stored += piece.data
        if corrupt is not None:
            return stored, f"{corrupt.log_offset}"
        at += cut
    assert stream.position == len(stored)
    return stored, None


@spec("T05", "T11", "V13")
@given(st.lists(st.integers(0, 900), min_size=1, max_size=12), st.lists(st.integers(1, 700), max_size=40))
def test_any_split_of_the_stream_gives_the_same_records(sizes: list[int], cuts: list[int]) -> None:
    log = make_log(sizes, SEGMENT)
    assert feed_all(log, cuts) == (log, None)


def test_large_records_in_parts_of_any_size_are_taken_one_by_one() -> None:
    dice = random.Random(6)
    sizes = [10, LARGE_RECORD_BYTES, 200_000, 30, 300_000, 70_000, LARGE_RECORD_BYTES - 200, 20, 500_000, 90_000]
    log = make_log(sizes, 1 << 20)
    for most in (100, 9_000, 32_768, 250_000, 1 << 20):
        assert feed_all(log, [dice.randrange(1, most) for _ in range(2 * len(log) // most)], 1 << 20) == (log, None)
    stream = RecordStream(0, 1 << 20)
    log = make_log([300_000] * 9, 1 << 20)
    bodies = [log[at : at + 32_768] for at in range(0, len(log), 32_768)]
    pieces = [piece for at in range(0, len(bodies), 10) for piece in stream.feed(*bodies[at : at + 10])[0]]
    assert [piece.records for piece in pieces if piece.records] == [1] * 9
    assert b"".join([piece.data for piece in pieces]) == log


@pytest.mark.parametrize("at", [0, 3, 7, 30, 85, 90, 100_000, 199_999, 200_087, 200_100])
def test_damage_of_a_large_record_is_found_however_it_arrives(at: int) -> None:
    log = bytearray(make_log([10, 200_000, 30], 1 << 20))
    begin = len(make_record(0, bytes(10)))
    log[begin + at] ^= 0x20
    for part in (1_000, 32_768, 1 << 20):
        stored, corrupt = feed_all(bytes(log), [part] * (len(log) // part), 1 << 20)
        assert (len(stored), corrupt) == (begin, str(begin))


@spec("V13")
@pytest.mark.parametrize("left", range(201))
def test_file_with_any_remainder_is_followed_by_the_next(left: int) -> None:
    """The last record of the file leaves `left` bytes. A blank needs 8; with fewer the record goes to the next file."""
    filler = SEGMENT - len(make_log([10])) - len(make_record(0, b"")) - left
    log = make_log([10, filler, 50, 60], SEGMENT)
    assert feed_all(log, [1, 7, 1999]) == (log, None)


@spec("T09")
def test_damage_anywhere_stops_the_stream_at_the_damaged_record() -> None:
    log = make_log([300, 10, 500, 700, 20, 900], SEGMENT)
    starts = []
    at = 0
    for size in (300, 10, 500, 700, 20, 900):
        record = len(make_record(0, bytes(size)))
        if at % SEGMENT + record + 8 > SEGMENT:
            at += SEGMENT - at % SEGMENT
        starts.append(at)
        at += record
    dice = random.Random(4)
    for _ in range(300):
        position = dice.randrange(len(log))
        damaged = bytearray(log)
        damaged[position] ^= 1 << dice.randrange(8)
        stored, _ = feed_all(bytes(damaged), [dice.randrange(1, 500) for _ in range(10)])
        sound_end = max((start for start in starts if start <= position), default=0)
        in_filler = bytes(damaged[sound_end : len(stored)]) != log[sound_end : len(stored)]
        assert stored[:sound_end] == log[:sound_end]
        assert not in_filler or position >= 8 + _blank_start(log, position), (
            "only a blank's filling carries no checksum"
        )


def _blank_start(log: bytes, position: int) -> int:
    end = position - position % SEGMENT + SEGMENT
    at = position - position % SEGMENT
    while at < end:
        size = int.from_bytes(log[at : at + 4])
        if log[at + 4 : at + 8] == bytes.fromhex("cbd43194"):
            return at
        at += size
    return 1 << 62
