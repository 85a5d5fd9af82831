"""Frames: any split of the stream, inconsistent lengths, frames captured from Java."""

import json
import tracemalloc
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandemq.codec.remoting import frame as frame_module
from tandemq.codec.remoting.frame import (
    FRAME_BYTES_MAX,
    REMARK_CHARACTERS_MAX,
    FrameDecoder,
    decode_command,
    encode_command,
)
from tandemq.codec.remoting.header import LANGUAGES
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.errors import FrameError, ProtocolError
from tandemq.model.command import Command
from tests.golden import GOLDEN

FRAMES: list[dict[str, Any]] = json.loads((GOLDEN / "frames" / "index.json").read_text())

FRAME = st.tuples(st.integers(0, 255), st.binary(max_size=300), st.binary(max_size=300))


def encode_raw(form: int, header: bytes, body: bytes) -> bytes:
    length = 4 + len(header) + len(body)
    return length.to_bytes(4) + (form << 24 | len(header)).to_bytes(4) + header + body


@given(st.lists(FRAME, max_size=6), st.lists(st.integers(0, 4000), max_size=12))
def test_stream_split_anywhere_gives_the_same_frames(frames: list[tuple[int, bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(encode_raw(*frame) for frame in frames)
    places = sorted({min(cut, len(stream)) for cut in cuts} | {0, len(stream)})
    decoder = FrameDecoder()
    found = []
    for first, last in zip(places, places[1:], strict=False):
        found += decoder.feed(stream[first:last])
    assert found == frames
    assert decoder.error is None


def test_stream_byte_by_byte_gives_the_same_frames() -> None:
    frames = [(0, b"{}", b"body"), (1, b"", b""), (0, b"x" * 30, b"")]
    decoder = FrameDecoder()
    found = []
    for byte in b"".join(encode_raw(*frame) for frame in frames):
        found += decoder.feed(bytes([byte]))
    assert found == frames


@pytest.mark.parametrize(
    ("length", "word"),
    [
        (0, 0),
        (3, 0),
        (4, 1),
        (10, 7),
        (100, 97),
        (100, 0xFFFFFF),
        (FRAME_BYTES_MAX - 3, 0),
        (0x7FFFFFFF, 0),
        (0xFFFFFFFF, 0),
        (0x80000000, 0x01000000),
    ],
)
def test_contradicting_or_excessive_lengths_are_an_error(length: int, word: int) -> None:
    decoder = FrameDecoder()
    good = encode_raw(0, b"{}", b"")
    assert decoder.feed(good + length.to_bytes(4) + word.to_bytes(4)) == [(0, b"{}", b"")]
    assert isinstance(decoder.error, FrameError)
    assert decoder.feed(good) == []


def test_largest_frame_is_accepted_and_one_byte_more_is_not() -> None:
    largest = encode_raw(0, b"{}", bytes(FRAME_BYTES_MAX - 10))
    assert len(largest) == FRAME_BYTES_MAX
    decoder = FrameDecoder()
    assert len(decoder.feed(largest)) == 1
    decoder.feed(encode_raw(0, b"{}", bytes(FRAME_BYTES_MAX - 9))[:8])
    assert decoder.error is not None


@given(st.binary(max_size=200))
def test_garbage_gives_frames_or_an_error_and_nothing_else(data: bytes) -> None:
    decoder = FrameDecoder()
    for frame in decoder.feed(data):
        try:
            decode_command(frame)
        except ProtocolError:
            pass


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: Path(frame["file"]).stem)
def test_java_frames_are_decoded(frame: dict[str, Any]) -> None:
    raw = (GOLDEN / frame["file"]).read_bytes()
    decoder = FrameDecoder()
    (found,) = decoder.feed(raw)
    command = decode_command(found)
    header = frame["header"]
    assert command.code == header["code"]
    assert command.opaque == header["opaque"]
    assert command.flag == header["flag"]
    assert command.version == header["version"]
    assert header["language"] in (command.language, LANGUAGES.index(command.language))
    assert (command.remark or None) == (header.get("remark") or None)
    assert command.fields == (header.get("extFields") or {})
    assert len(command.body) == frame["body_bytes"]
    assert command.binary == (frame["serialisation"] == 1)
    assert command.is_response != frame["request"]
    (again,) = FrameDecoder().feed(encode_command(command))
    assert decode_command(again) == command
    if command.binary:
        assert len(encode_command(command)) == len(raw)


def test_encoded_command_is_one_frame() -> None:
    command = Command(10, 5, 1, "remark é", {"k": "v"}, b"body", "JAVA", 409)
    for binary in (False, True):
        command.binary = binary
        (frame,) = FrameDecoder().feed(encode_command(command))
        assert decode_command(frame) == command


def test_memory_of_a_frame_received_byte_by_byte_is_close_to_its_size() -> None:
    frame = encode_command(Command(10, 1, body=bytes(50_000)))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(len(frame) - 1):
            assert decoder.feed(frame[at : at + 1]) == []
        # Other threads of this process may take memory too.
        ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, frame_module.__file__)])
    finally:
        tracemalloc.stop()
    assert len(frame) < sum(trace.size for trace in ours.traces) < 2 * len(frame)
    (found,) = decoder.feed(frame[-1:])
    assert found[2] == bytes(50_000)


@pytest.mark.parametrize("size", [9, 700, 16_384, 20_000, 39_999])
def test_large_frame_is_given_in_the_parts_in_which_it_arrived(size: int) -> None:
    first, large, last = (encode_command(Command(10, 1, body=bytes(count))) for count in (3, 40_000, 50))
    data = first + large + last
    partial = PartialFrames()
    decoder = FrameDecoder(1 << 20, partial, 7)
    found: list[int] = []
    for at in range(0, len(data), size):
        piece, position = data[at : at + size], 0
        parts = decoder.large(piece)
        if parts is not None:
            assert b"".join(parts) == large
            position = decoder.take_large()
            assert partial.total == 0
            assert data[at + position :] == last, "the position is that behind the frame"
            found.append(-1)
        else:
            piece = decoder.join(piece)
        while position < len(piece) and (frame := decoder.split(piece, position)) is not None:
            found.append(len(frame[2]))
            position = decoder.position
    assert found == [3, -1, 50]
    assert partial.total == 0


def test_block_that_a_partial_frame_keeps_in_memory_is_counted_as_a_whole() -> None:
    whole, large = encode_command(Command(10, 1, body=bytes(9_000))), encode_command(Command(10, 1, body=bytes(90_000)))
    partial = PartialFrames()
    decoder = FrameDecoder(1 << 20, partial, 7)
    decoder.feed(whole + large[:20_000])
    assert partial.total == len(whole) + 20_000
    assert decoder.large(large[20_000:30_000]) is None
    decoder.feed(large[20_000:30_000])
    assert partial.total == len(whole) + 30_000
    decoder.feed(large[30_000:] + large[:500])
    assert partial.total == 500, "of a block with a small part a copy is kept"


def test_frame_that_nobody_takes_in_parts_is_joined() -> None:
    frame = encode_command(Command(10, 1, body=bytes(40_000)))
    decoder = FrameDecoder()
    assert decoder.feed(frame[:30_000]) == []
    assert decoder.large(frame[30_000:]) is not None
    ((_, _, body),) = decoder.feed(frame[30_000:])
    assert body == bytes(40_000)
    assert decoder.large(frame) is None


def test_frame_in_pieces_of_any_size_is_decoded() -> None:
    frame = encode_command(Command(10, 1, body=bytes(range(256)) * 4_000))
    random = Random(5)
    decoder = FrameDecoder()
    at, found = 0, []
    while at < len(frame):
        size = random.choice((1, 2, 30, 900, 1_500, 40_000))
        found += decoder.feed(frame[at : at + size])
        at += size
    assert [body for _, _, body in found] == [bytes(range(256)) * 4_000]


@pytest.mark.parametrize("binary", [False, True])
def test_remark_that_no_header_has_room_for_is_cut(binary: bool) -> None:
    frame = encode_command(Command(1, 7, remark="x" * (17 << 20), binary=binary))
    (parts,) = FrameDecoder().feed(frame)
    found = decode_command(parts)
    assert (found.code, found.opaque) == (1, 7)
    assert found.remark == "x" * REMARK_CHARACTERS_MAX + "…"
