"""Record stream: any split, any damage, files with any number of bytes left."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.replication.record_stream import RecordStream
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
