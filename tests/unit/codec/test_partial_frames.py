"""Partial frames of many connections: their size is counted, and they are dropped by age and size."""

from random import Random

from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.model.command import Command

FRAME = encode_command(Command(10, 1, body=bytes(5_000)))


def test_total_equals_the_bytes_buffered_by_decoders() -> None:
    partial_frames, random = PartialFrames(), Random(3)
    decoders = {link: FrameDecoder(1 << 20, partial_frames, link) for link in range(20)}
    streams = dict.fromkeys(decoders, FRAME * 30)
    while streams:
        link = random.choice(sorted(streams))
        size = random.choice((1, 7, 500, 4_000, len(FRAME), 20_000))
        decoders[link].feed(streams[link][:size])
        streams[link] = streams[link][size:]
        kept = [(len(FRAME) * 30 - len(rest)) % len(FRAME) for rest in streams.values()]
        assert partial_frames.total == sum(kept)
        if not streams[link]:
            del streams[link]
    assert partial_frames.total == 0


def test_bytes_after_a_frame_error_are_not_buffered() -> None:
    partial_frames = PartialFrames()
    decoder = FrameDecoder(1 << 20, partial_frames, 5)
    decoder.feed(b"\xff\xff")
    assert partial_frames.total == 2
    decoder.feed(b"\xff" * 100)
    assert decoder.error is not None
    assert partial_frames.total == 0


def test_no_frame_is_dropped_within_the_limit() -> None:
    partial_frames = PartialFrames()
    for link in range(10):
        partial_frames.keep(link, 100)
    assert partial_frames.surplus(1_000) == []
    assert partial_frames.total == 1_000


def test_oldest_large_frames_are_dropped_until_an_eighth_is_free() -> None:
    partial_frames = PartialFrames()
    for at, (link, size) in enumerate([(1, 3), (2, 400), (3, 300), (4, 300), (5, 8)]):
        partial_frames.now_ms = at * 10
        partial_frames.keep(link, size)
    partial_frames.now_ms = 100
    assert partial_frames.surplus(1_000) == [(2, 400, 90)]
    assert partial_frames.total == 611
    partial_frames.keep(2, 400)
    assert [link for link, _, _ in partial_frames.surplus(800)] == [3, 4]


def test_quickly_received_large_frame_outlives_abandoned_ones() -> None:
    partial_frames = PartialFrames()
    for link in range(256):
        partial_frames.keep(link, 1 << 20)
    partial_frames.now_ms = 5
    partial_frames.keep(900, 4 << 20)
    gone = [link for link, _, _ in partial_frames.surplus(256 << 20)]
    assert gone == list(range(36))


def test_enough_frames_are_dropped_for_any_sizes() -> None:
    random = Random(8)
    for _ in range(200):
        partial_frames = PartialFrames()
        for link in range(random.randrange(1, 60)):
            partial_frames.keep(link, int(1.3 ** random.randrange(50)) + 1)
        bound = random.randrange(1, partial_frames.total + 1)
        before = partial_frames.total
        gone = partial_frames.surplus(bound)
        assert partial_frames.total <= bound
        assert before - sum(size for _, size, _ in gone) == partial_frames.total


def test_age_of_a_frame_is_that_of_its_first_byte() -> None:
    partial_frames = PartialFrames()
    decoder = FrameDecoder(1 << 20, partial_frames, 5)
    decoder.feed(FRAME[:10])
    partial_frames.now_ms = 60_000
    decoder.feed(FRAME[10:20])
    assert partial_frames.overdue(60_000) == []
    decoder.feed(FRAME[20:] + FRAME[:30])
    partial_frames.now_ms = 120_000
    assert partial_frames.overdue(60_000) == []
    partial_frames.now_ms = 120_001
    assert partial_frames.overdue(60_000) == [(5, 30, 60_001)]
    assert partial_frames.total == 0
