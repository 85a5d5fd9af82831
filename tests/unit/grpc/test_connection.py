"""Frames of a connection: windows in both directions, floods, what peers may not do."""

import struct

import hpack
import pytest

from tandemq.codec.http2.frames import (
    FRAME_BYTES_DEFAULT,
    WINDOW_DEFAULT,
    WINDOW_MAX,
    ErrorCode,
    Flag,
    FrameType,
    Setting,
    frame,
    goaway_frame,
    reset_frame,
    settings_frame,
    window_update_frame,
)
from tandemq.codec.http2.hpack import literal
from tandemq.grpc.connection import (
    CONNECTION_WINDOW,
    EARLY_MS,
    FRAGMENTS_MAX,
    NUISANCES_MAX,
    STREAM_WINDOW,
    STREAMS_MAX,
    Data,
    StreamOpened,
)
from tests.unit.grpc.raw import Peer, block_of, request, steps_of

HEADERS = literal(b":status", b"200")
TRAILERS = literal(b"grpc-status", b"0")
ODD = range(1, 2 * STREAMS_MAX, 2)
PING = frame(FrameType.PING, 0, 0, bytes(8))


def _data_of(peer: Peer) -> list[tuple[int, int]]:
    """Stream and size of each DATA frame that was sent."""
    return [(each.stream, len(each.payload)) for each in peer.sent(FrameType.DATA)]


def _padded(data: bytes, padding: int) -> bytes:
    return bytes((padding,)) + data + bytes(padding)


# What the server sends.


def test_a_window_made_negative_by_settings_holds_data_until_it_has_grown() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 100})
    peer.open(1)
    peer.connection.answer(1, HEADERS, b"x" * 150, TRAILERS)
    assert _data_of(peer) == [(1, 100)]
    peer.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 10}))  # the stream's window is -90
    peer.send(window_update_frame(1, 90))
    assert _data_of(peer) == []
    peer.send(window_update_frame(1, 20))
    assert _data_of(peer) == [(1, 20)]
    peer.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 50}))
    assert _data_of(peer) == [(1, 30)]
    assert peer.connection.held_bytes == 0 and peer.connection.stream_count == 0


def test_streams_that_wait_for_the_window_of_the_connection_are_served_in_order() -> None:
    peer = Peer()
    peer.open(1, 3, 5, 7)
    peer.connection.answer(1, HEADERS, b"x" * WINDOW_DEFAULT, TRAILERS)
    assert sum(size for _, size in _data_of(peer)) == WINDOW_DEFAULT
    for stream in (3, 5, 7):
        peer.connection.answer(stream, HEADERS, b"y" * 100, TRAILERS)
    peer.send(settings_frame({Setting.INITIAL_WINDOW_SIZE: 0}), window_update_frame(5, 1))
    assert _data_of(peer) == []
    peer.send(window_update_frame(0, 150))
    assert _data_of(peer) == [(5, 1)], "the other streams have no window of their own"
    peer.send(window_update_frame(7, 100), window_update_frame(3, 100), window_update_frame(0, 30))
    assert _data_of(peer) == [(7, 100), (3, 49), (3, 30)]


def test_an_open_stream_whose_data_are_sent_waits_for_no_window() -> None:
    peer = Peer()
    peer.open(1, 3)
    peer.send(window_update_frame(1, 1000))
    peer.connection.send_data(1, b"x" * (WINDOW_DEFAULT + 10))
    peer.sent()
    peer.send(window_update_frame(0, 100))
    assert _data_of(peer) == [(1, 1), (1, 9)]
    peer.connection.send_data(3, b"y" * 100)
    peer.send(window_update_frame(0, 100))
    assert _data_of(peer) == [(3, 90), (3, 10)]
    assert peer.connection.held_bytes == 0 and peer.connection.stream_count == 2


def test_a_reset_stream_leaves_the_window_to_others() -> None:
    peer = Peer()
    peer.open(1, 3)
    peer.connection.answer(1, HEADERS, b"x" * (WINDOW_DEFAULT + 10), TRAILERS)
    peer.connection.answer(3, HEADERS, b"y" * 10, TRAILERS)
    peer.sent()
    peer.send(reset_frame(1, ErrorCode.CANCEL), window_update_frame(0, 10))
    assert _data_of(peer) == [(3, 10)]
    assert peer.connection.held_bytes == 0


def test_large_data_leave_in_frames_that_every_peer_takes() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    peer.send(window_update_frame(0, 1 << 20))
    peer.open(1, 3)
    peer.connection.answer(1, HEADERS, b"x" * 100_000, TRAILERS)
    sizes = [size for _, size in _data_of(peer)]
    assert max(sizes) == FRAME_BYTES_DEFAULT and sum(sizes) == 100_000
    peer.send(settings_frame({Setting.MAX_FRAME_SIZE: 1 << 20}))
    peer.connection.answer(3, HEADERS, b"x" * 100_000, TRAILERS)
    assert _data_of(peer) == [(3, 100_000)]


def test_a_client_without_a_header_table_gets_headers_that_say_so() -> None:
    peer, decoder = Peer(), hpack.Decoder()
    decoder.header_table_size = 0
    peer.open(1, 3, 5)
    peer.send(settings_frame({Setting.HEADER_TABLE_SIZE: 0}))
    peer.connection.send_headers(1, HEADERS)
    peer.connection.finish(1, TRAILERS)
    peer.connection.answer(3, HEADERS, b"", TRAILERS)
    blocks = [each.payload for each in peer.sent(FrameType.HEADERS)]
    assert blocks == [b"\x20" + HEADERS, TRAILERS, HEADERS, TRAILERS]
    assert list(decoder.decode(blocks[0], raw=True)) == [(b":status", b"200")]


# Work that a peer causes.


def test_the_work_of_a_window_update_does_not_depend_on_streams_that_wait() -> None:
    few, many = 2, STREAMS_MAX
    steps = {}
    for count in (few, many):
        peer = Peer({Setting.INITIAL_WINDOW_SIZE: 0})
        peer.open(*ODD[:count])
        for stream in ODD[:count]:
            peer.connection.answer(stream, HEADERS, b"x" * 100, TRAILERS)
        updates = [window_update_frame(0, 1), window_update_frame(1, 1)] * 50
        steps[count] = steps_of(lambda: peer.send(*updates))  # noqa: B023  # called at once
    assert steps[few] == steps[many]


def test_settings_that_repeat_a_window_are_applied_once() -> None:
    peer = Peer()
    peer.open(*ODD)
    once = frame(FrameType.SETTINGS, 0, 0, struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, 7))
    windows = b"".join(struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, size % 10) for size in range(2_000))
    often = frame(FrameType.SETTINGS, 0, 0, windows + struct.pack(">HI", Setting.INITIAL_WINDOW_SIZE, 8))
    assert steps_of(lambda: peer.send(often)) < 2 * steps_of(lambda: peer.send(once))
    peer.connection.answer(1, HEADERS, b"x" * 100, TRAILERS)
    assert _data_of(peer) == [(1, 7)]


def test_single_bytes_of_window_copy_no_large_data() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 0})
    peer.open(1)
    peer.connection.answer(1, HEADERS, b"x" * 1_000_000, TRAILERS)
    peer.send(window_update_frame(1, 1) * 100)
    assert _data_of(peer) == [(1, 1)] * 100
    assert peer.connection.held_bytes == 999_900
    assert max(map(len, peer.connection._streams[1].held)) == FRAME_BYTES_DEFAULT


@pytest.mark.parametrize(
    "flood",
    [
        PING,
        frame(FrameType.PING, Flag.ACK, 0, bytes(8)),
        settings_frame({}),
        frame(FrameType.SETTINGS, Flag.ACK, 0),
        frame(FrameType.PRIORITY, 0, 1, bytes(5)),
        frame(FrameType.DATA, 0, 1),
        frame(FrameType.DATA, 0, 3),
        frame(FrameType.DATA, Flag.PADDED, 1, _padded(b"", 9)),
        reset_frame(3, ErrorCode.CANCEL),
        request(3),
        goaway_frame(0, ErrorCode.NO_ERROR),
        b"\0\0\1\xee\0\0\0\0\0x",
    ],
)
def test_frames_that_serve_no_request_end_the_connection_when_they_are_many(flood: bytes) -> None:
    peer = Peer()
    peer.open(1, 3, flags=Flag.END_HEADERS)
    peer.connection.reset(3, ErrorCode.CANCEL)
    assert peer.error_of(*[flood] * (NUISANCES_MAX - 2)) is None
    assert peer.error_of(*[flood] * 3) is ErrorCode.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    peer = Peer()
    floods = [request(stream) + reset_frame(stream, ErrorCode.CANCEL) for stream in range(1, 4 * NUISANCES_MAX, 2)]
    assert peer.error_of(*floods) is ErrorCode.ENHANCE_YOUR_CALM
    assert peer.connection.stream_count <= 1


def test_a_client_may_give_up_any_number_of_calls_that_have_waited() -> None:
    peer = Peer()
    streams = iter(range(1, 1 << 20, 2))
    for _ in range(10):
        polls = [next(streams) for _ in range(STREAMS_MAX)]
        peer.open(*polls)
        peer.pass_ms(EARLY_MS)
        peer.send(*[reset_frame(stream, ErrorCode.CANCEL) for stream in polls])
    assert peer.connection.stream_count == 0


def test_a_client_may_measure_with_pings_how_fast_it_receives() -> None:
    peer = Peer({Setting.INITIAL_WINDOW_SIZE: 1 << 20})
    peer.open(1)
    peer.connection.send_headers(1, HEADERS)
    for _ in range(2 * NUISANCES_MAX):  # grpc-go: window update and ping with the first data after each reply
        peer.connection.send_data(1, b"x" * 1000)
        peer.send(window_update_frame(0, 1000), window_update_frame(1, 1000), PING)
    assert len(peer.sent(FrameType.PING)) == 2 * NUISANCES_MAX


# Windows of the server.


def test_padding_counts_in_windows_and_is_not_data() -> None:
    peer = Peer()
    peer.open(1, flags=Flag.END_HEADERS)
    for _ in range(1_500):
        assert peer.send(frame(FrameType.DATA, Flag.PADDED, 1, _padded(b"", 255))) == []
        assert peer.send(frame(FrameType.DATA, Flag.PADDED, 1, _padded(b"ab", 255))) == [Data(1, b"ab", is_end=False)]
    granted = [
        (each.stream, int.from_bytes(each.payload, "big"))
        for each in peer.sent(FrameType.WINDOW_UPDATE)
        if each.stream == 1
    ]
    used = 1_500 * (256 + 258)
    assert len(granted) == 1 and STREAM_WINDOW // 2 < granted[0][1] <= used


def test_data_beyond_the_windows_are_refused() -> None:
    peer = Peer()
    peer.open(1, flags=Flag.END_HEADERS)
    full = frame(FrameType.DATA, 0, 1, bytes(FRAME_BYTES_DEFAULT))
    for _ in range(3 * CONNECTION_WINDOW // FRAME_BYTES_DEFAULT):
        peer.send(full)
    granted = sum(int.from_bytes(each.payload, "big") for each in peer.sent(FrameType.WINDOW_UPDATE) if each.stream)
    received = 3 * CONNECTION_WINDOW
    assert received <= granted + STREAM_WINDOW, "a peer that obeys can send that"
    peer.connection._streams[1].receive_window = FRAME_BYTES_DEFAULT - 1
    assert peer.error_of(full) is ErrorCode.FLOW_CONTROL_ERROR


def test_data_of_refused_streams_are_ignored_and_return_to_the_window_of_the_connection() -> None:
    peer = Peer()
    peer.open(1, flags=Flag.END_HEADERS)
    peer.connection.reset(1, ErrorCode.CANCEL)
    for _ in range(2 * CONNECTION_WINDOW // FRAME_BYTES_DEFAULT):
        assert peer.send(frame(FrameType.DATA, 0, 1, bytes(FRAME_BYTES_DEFAULT))) == []
    granted = [int.from_bytes(each.payload, "big") for each in peer.sent(FrameType.WINDOW_UPDATE)]
    assert sum(granted) >= CONNECTION_WINDOW


# Form.


def test_headers_with_padding_and_priority_are_those_without() -> None:
    peer = Peer()
    block = block_of("/s/Echo")
    plain = peer.send(frame(FrameType.HEADERS, Flag.END_HEADERS, 1, block))
    flags = Flag.END_HEADERS | Flag.PADDED | Flag.PRIORITY
    padded = peer.send(frame(FrameType.HEADERS, flags, 3, _padded(b"\x80\0\0\1\xff" + block, 100)))
    assert isinstance(plain[0], StreamOpened) and isinstance(padded[0], StreamOpened)
    assert plain[0].headers == padded[0].headers


def test_headers_may_come_in_pieces_but_not_in_many() -> None:
    peer = Peer()
    block = block_of("/s/Echo")
    pieces = [block[at : at + 10] for at in range(0, len(block), 10)]
    assert len(pieces) < FRAGMENTS_MAX
    first = frame(FrameType.HEADERS, Flag.END_STREAM, 1, pieces[0])
    middle = [frame(FrameType.CONTINUATION, 0, 1, piece) for piece in pieces[1:]]
    events = peer.send(first, *middle, frame(FrameType.CONTINUATION, Flag.END_HEADERS, 1))
    assert isinstance(events[0], StreamOpened) and (b":path", b"/s/Echo") in events[0].headers and events[0].is_end
    flood = [frame(FrameType.CONTINUATION, 0, 3)] * FRAGMENTS_MAX
    assert peer.error_of(frame(FrameType.HEADERS, 0, 3), *flood) is ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (frame(FrameType.DATA, 0, 0, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 9, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, 0, 1, b"x"), ErrorCode.STREAM_CLOSED),
        (frame(FrameType.DATA, Flag.PADDED, 3), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.DATA, Flag.PADDED, 3, b"\2x"), ErrorCode.PROTOCOL_ERROR),
        (request(0), ErrorCode.PROTOCOL_ERROR),
        (request(4), ErrorCode.PROTOCOL_ERROR),
        (request(1), ErrorCode.PROTOCOL_ERROR),
        (request(3), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.PRIORITY, 5, b"abc"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.HEADERS, Flag.END_HEADERS, 5, b"\xff\xff\xff\xff\x7f"), ErrorCode.COMPRESSION_ERROR),
        (frame(FrameType.HEADERS, 0, 5) + PING, ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.HEADERS, 0, 5) + frame(FrameType.CONTINUATION, 4, 7), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.CONTINUATION, Flag.END_HEADERS, 5), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.PUSH_PROMISE, Flag.END_HEADERS, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 1), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.SETTINGS, 0, 0, bytes(5)), ErrorCode.FRAME_SIZE_ERROR),
        (settings_frame({Setting.MAX_FRAME_SIZE: 100}), ErrorCode.PROTOCOL_ERROR),
        (settings_frame({Setting.INITIAL_WINDOW_SIZE: 1 << 31}), ErrorCode.FLOW_CONTROL_ERROR),
        (
            window_update_frame(3, 1000) + settings_frame({Setting.INITIAL_WINDOW_SIZE: WINDOW_MAX}),
            ErrorCode.FLOW_CONTROL_ERROR,
        ),
        (frame(FrameType.PING, 0, 0, bytes(7)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(FrameType.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (reset_frame(0, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (reset_frame(9, ErrorCode.CANCEL), ErrorCode.PROTOCOL_ERROR),
        (frame(FrameType.RST_STREAM, 0, 1, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (window_update_frame(0, 0), ErrorCode.PROTOCOL_ERROR),
        (window_update_frame(0, WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update_frame(1, WINDOW_MAX), ErrorCode.FLOW_CONTROL_ERROR),
        (window_update_frame(9, 1), ErrorCode.PROTOCOL_ERROR),
        ((FRAME_BYTES_DEFAULT + 1).to_bytes(3, "big") + bytes(6), ErrorCode.FRAME_SIZE_ERROR),
    ],
)
def test_violations_end_the_connection(bad: bytes, error: ErrorCode) -> None:
    peer = Peer()
    peer.open(1)
    peer.open(3, flags=Flag.END_HEADERS)
    assert peer.error_of(bad) is error


def test_later_types_flags_and_reserved_bits_are_ignored() -> None:
    peer = Peer()
    unknown = frame(FrameType.PING, 0xFE, 0, b"12345678")
    reserved = bytearray(request(1))
    reserved[5] |= 0x80
    later = bytearray(frame(FrameType.PING, 0xFF, 5, b"of any size"))
    later[3] = 0xEE
    settings = frame(FrameType.SETTINGS, 0, 0, struct.pack(">HI", 0xABC, 7))
    events = peer.send(unknown, bytes(reserved), bytes(later), settings)
    assert [event.stream for event in events] == [1]
    assert [each.payload for each in peer.sent(FrameType.PING)] == [b"12345678"]


def test_a_request_may_end_with_trailers() -> None:
    peer = Peer()
    peer.open(1, flags=Flag.END_HEADERS)
    trailers = frame(FrameType.HEADERS, Flag.END_HEADERS | Flag.END_STREAM, 1, literal(b"a", b"b"))
    assert peer.send(frame(FrameType.DATA, 0, 1, b"x"), trailers) == [
        Data(1, b"x", is_end=False),
        Data(1, b"", is_end=True),
    ]


def test_a_frame_that_arrives_byte_by_byte_is_taken_once() -> None:
    peer = Peer()
    peer.open(1, flags=Flag.END_HEADERS)
    body = bytes(range(256)) * 8
    events = [
        event
        for byte in frame(FrameType.DATA, 0, 1, body)
        for event in peer.connection.receive(bytes((byte,)), peer.now)
    ]
    assert events == [Data(1, body, is_end=False)]
