"""Unfinished frames of many links: counted as they grow, and given up by age and size."""

from random import Random

from tandemq.codec.remoting.frame import FrameDecoder, encode_command
from tandemq.codec.remoting.partial_frames import PartialFrames
from tandemq.model.command import Command

FRAME = encode_command(Command(10, 1, body=bytes(5_000)))


def test_count_is_what_decoders_keep_whatever_the_pieces() -> None:
    unfinished, random = PartialFrames(), Random(3)
    decoders = {link: FrameDecoder(1 << 20, unfinished, link) for link in range(20)}
    streams = dict.fromkeys(decoders, FRAME * 30)
    while streams:
        link = random.choice(sorted(streams))
        size = random.choice((1, 7, 500, 4_000, len(FRAME), 20_000))
        decoders[link].feed(streams[link][:size])
        streams[link] = streams[link][size:]
        kept = [(len(FRAME) * 30 - len(rest)) % len(FRAME) for rest in streams.values()]
        assert unfinished.total == sum(kept)
        if not streams[link]:
            del streams[link]
    assert unfinished.total == 0


def test_bytes_that_are_no_frame_are_not_kept() -> None:
    unfinished = PartialFrames()
    decoder = FrameDecoder(1 << 20, unfinished, 5)
    decoder.feed(b"\xff\xff")
    assert unfinished.total == 2
    decoder.feed(b"\xff" * 100)
    assert decoder.error is not None
    assert unfinished.total == 0


def test_within_the_bound_nothing_goes() -> None:
    unfinished = PartialFrames()
    for link in range(10):
        unfinished.keep(link, 100)
    assert unfinished.surplus(1_000) == []
    assert unfinished.total == 1_000


def test_beyond_the_bound_the_oldest_large_frames_go_until_an_eighth_is_free() -> None:
    unfinished = PartialFrames()
    for at, (link, size) in enumerate([(1, 3), (2, 400), (3, 300), (4, 300), (5, 8)]):
        unfinished.now_ms = at * 10
        unfinished.keep(link, size)
    unfinished.now_ms = 100
    assert unfinished.surplus(1_000) == [(2, 400, 90)]
    assert unfinished.total == 611
    unfinished.keep(2, 400)
    assert [link for link, _, _ in unfinished.surplus(800)] == [3, 4]


def test_a_large_frame_that_comes_at_once_outlives_many_that_were_left() -> None:
    unfinished = PartialFrames()
    for link in range(256):
        unfinished.keep(link, 1 << 20)
    unfinished.now_ms = 5
    unfinished.keep(900, 4 << 20)
    gone = [link for link, _, _ in unfinished.surplus(256 << 20)]
    assert gone == list(range(36))


def test_room_is_made_whatever_the_sizes() -> None:
    random = Random(8)
    for _ in range(200):
        unfinished = PartialFrames()
        for link in range(random.randrange(1, 60)):
            unfinished.keep(link, int(1.3 ** random.randrange(50)) + 1)
        bound = random.randrange(1, unfinished.total + 1)
        before = unfinished.total
        gone = unfinished.surplus(bound)
        assert unfinished.total <= bound
        assert before - sum(size for _, size, _ in gone) == unfinished.total


def test_frame_is_as_old_as_its_first_byte_and_the_next_one_begins_anew() -> None:
    unfinished = PartialFrames()
    decoder = FrameDecoder(1 << 20, unfinished, 5)
    decoder.feed(FRAME[:10])
    unfinished.now_ms = 60_000
    decoder.feed(FRAME[10:20])
    assert unfinished.overdue(60_000) == []
    decoder.feed(FRAME[20:] + FRAME[:30])
    unfinished.now_ms = 120_000
    assert unfinished.overdue(60_000) == []
    unfinished.now_ms = 120_001
    assert unfinished.overdue(60_000) == [(5, 30, 60_001)]
    assert unfinished.total == 0
