"""Positions of subscriptions in Bloom filters, as RocketMQ computes them."""

import pytest

from tandemq.broker.filter.bloom import BITS, bit_positions, murmur3_low


def test_positions_are_those_of_java() -> None:
    """Measured on RocketMQ 5.3.3."""
    assert bit_positions("gsql", "tx") == [105, 52, 45]


@pytest.mark.parametrize("length", range(40))
def test_positions_are_in_range(length: int) -> None:
    positions = bit_positions("g" * length, "é" * length)
    assert len(positions) == 3
    assert all(0 <= position < BITS for position in positions)


def test_known_hashes() -> None:
    """Published test values of MurmurHash3 x64 128 with seed 0."""
    assert murmur3_low(b"") == 0
    assert murmur3_low(b"hello") == 0xCBD8A7B341BD9B02
    assert murmur3_low(b"The quick brown fox jumps over the lazy dog") == 0xE34BBC7BBC071B6C
