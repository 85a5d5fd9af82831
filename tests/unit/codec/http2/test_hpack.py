"""Header decompression, compared with hpack's encoder, and what a peer may not do with it."""

from random import Random

import hpack
import pytest

from tandemq.codec.http2.hpack import HeaderDecoder, huffman_decoded, literal
from tandemq.errors import ProtocolError


def _decoder(bytes_max: int = 1 << 20) -> HeaderDecoder:
    return HeaderDecoder(bytes_max)


def test_blocks_of_another_encoder_are_decoded() -> None:
    random, encoder, decoder = Random(1), hpack.Encoder(), _decoder()
    names = [random.randbytes(random.randrange(1, 20)) for _ in range(40)]
    for block in range(600):
        if block % 50 == 20:
            encoder.header_table_size = random.choice((0, 100, 1000, 4096))
        headers = [
            (random.choice(names), random.randbytes(random.randrange(40))) for _ in range(random.randrange(1, 8))
        ]
        headers.append((b":method", random.choice((b"GET", b"POST"))))
        encoded = encoder.encode(headers, huffman=random.random() < 0.7)
        assert decoder.decode(encoded) == headers


def test_our_literals_are_read_by_another_decoder() -> None:
    headers = [(b"grpc-status", b"0"), (b"grpc-message", b"x" * 300), (b"", b"")]
    block = b"".join(literal(name, value) for name, value in headers)
    assert [(name, value) for name, value in hpack.Decoder().decode(block, raw=True)] == headers
    assert _decoder().decode(block) == headers


@pytest.mark.parametrize(
    ("block", "why"),
    [
        (b"\x80", "names an entry"),
        (b"\xff\x80\x01", "names an entry"),
        (b"\xff\xff\xff\xff\xff\xff\xff\xff", "too long"),
        (b"\x40\x05abc", "ends within"),
        (b"\x40", "ends within"),
        (b"\x3f\xe2\x1f", "4097 bytes"),
        (b"\x82\x20", "behind a header"),
        (b"\x20" * 40_000, "too often"),
        (b"\x00\x84\xff\xff\xff\xff\x00", "end of a text"),
        (b"\x00\x81\x00\x00", "within a byte"),
    ],
)
def test_malformed_blocks_are_refused(block: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        _decoder().decode(block)


def test_a_small_block_cannot_expand_without_limit() -> None:
    decoder = _decoder(16 * 1024)
    decoder.decode(b"\x40\x01a\x7f\x81\x1e" + b"v" * 3968)
    with pytest.raises(ProtocolError, match="16384 bytes of headers"):
        decoder.decode(b"\xbe" * 100)


def test_the_table_stays_within_its_size() -> None:
    decoder = _decoder()
    for number in range(1000):
        decoder.decode(b"\x40\x04%04d\x7f\x01" % number + b"x" * 128)
    assert decoder.decode(b"\xbe") == [(b"0999", b"x" * 128)]
    with pytest.raises(ProtocolError):
        decoder.decode(b"\xff\x00")  # entry 127: the table has 24 entries besides its 61 fixed ones


def test_an_entry_larger_than_the_table_empties_it() -> None:
    decoder = _decoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\xbe") == [(b"a", b"b")]
    decoder.decode(b"\x7e\x7f\x81\x1f" + b"v" * 4096)
    with pytest.raises(ProtocolError):
        decoder.decode(b"\xbe")


def test_the_size_of_headers_is_that_of_the_specification() -> None:
    decoder = _decoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.block_bytes == 34
    decoder.decode(b"\xbe\xbe\x83")
    assert decoder.block_bytes == 2 * 34 + len(":methodPOST") + 32


def test_mutated_blocks_raise_nothing_else() -> None:
    random, encoder = Random(3), hpack.Encoder()
    blocks = [
        encoder.encode([(random.randbytes(5), random.randbytes(random.randrange(30))) for _ in range(4)], huffman=True)
        for _ in range(20)
    ]
    for _ in range(3_000):
        decoder, block = _decoder(4096), bytearray(random.choice(blocks))
        for _ in range(random.randrange(4)):
            block[random.randrange(len(block))] = random.choice((0, 0x20, 0x3F, 0x40, 0x7F, 0x80, 0xBE, 0xFF))
        try:
            headers = decoder.decode(bytes(block))
        except ProtocolError:
            continue
        assert sum(len(name) + len(value) + 32 for name, value in headers) <= 4096


def test_all_bytes_have_a_code() -> None:
    encoder = hpack.Encoder()
    text = bytes(range(256))
    encoded = encoder.encode([(text, text)], huffman=True)
    assert _decoder().decode(encoded) == [(text, text)]
    assert huffman_decoded(b"") == b""
