"""Bit positions of a subscription in RocketMQ's Bloom filters, which consumerFilter.json contains.

RocketMQ's brokers may store a Bloom filter of the matching subscriptions with each message. TandemQ stores none; it
writes the positions so that a Java broker accepts the file.

Source: docs/reference/filters.md; RocketMQ BloomFilter; MurmurHash3 x64 128 by Austin Appleby (public domain).
"""

BITS = 112
"""Bits of a filter with RocketMQ's defaults: 32 subscriptions and an error rate of 20 per cent."""
POSITIONS = 3
"""Bits of a subscription, with the same defaults."""
_MASK = (1 << 64) - 1
_FACTORS = (0x87C37B91114253D5, 0x4CF5AD432745937F)


def bit_positions(group: str, topic: str) -> list[int]:
    """Return the bit positions of a group's subscription to a topic."""
    low, high = (_int32(part) for part in _halves(murmur3_low(f"{group}#{topic}".encode())))
    positions = []
    for number in range(1, POSITIONS + 1):
        combined = _int32(low + number * high)
        positions.append((~combined if combined < 0 else combined) % BITS)
    return positions


def _halves(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32


def _int32(value: int) -> int:
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def murmur3_low(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit MurmurHash3 for x64 with seed 0, as a little-endian number."""
    first = second = 0
    blocks_end = len(data) - len(data) % 16
    for position in range(0, blocks_end, 16):
        first ^= _mixed(int.from_bytes(data[position : position + 8], "little"), 0)
        first = ((_rotated(first, 27) + second) * 5 + 0x52DCE729) & _MASK
        second ^= _mixed(int.from_bytes(data[position + 8 : position + 16], "little"), 1)
        second = ((_rotated(second, 31) + first) * 5 + 0x38495AB5) & _MASK
    first ^= _mixed(int.from_bytes(data[blocks_end : blocks_end + 8], "little"), 0)
    second ^= _mixed(int.from_bytes(data[blocks_end + 8 :], "little"), 1)
    first, second = first ^ len(data), second ^ len(data)
    first = (first + second) & _MASK
    second = (second + first) & _MASK
    return (_finished(first) + _finished(second)) & _MASK


def _mixed(part: int, half: int) -> int:
    """Return 8 bytes of the input, mixed. `half`: of their block of 16 bytes, 0 or 1."""
    part = part * _FACTORS[half] & _MASK
    return _rotated(part, (31, 33)[half]) * _FACTORS[1 - half] & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _finished(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33
