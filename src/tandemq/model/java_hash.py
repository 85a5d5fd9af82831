"""Java's String.hashCode, used for tags and keys.

Source: docs/internals/storage.md, "consume queue" and "index".
"""

from functools import lru_cache

import numpy as np


def java_hash(text: str) -> int:
    """Return h = 31*h + unit over the UTF-16 code units, as a signed 32-bit int. Cost: one step per character."""
    value = 0
    for unit in text if text.isascii() else _utf16(text):
        value = (31 * value + (ord(unit) if isinstance(unit, str) else unit)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=65536)
def cached_java_hash(text: str) -> int:
    """Return `java_hash` from a cache, for texts that repeat, such as tags."""
    return java_hash(text)


def _utf16(text: str) -> list[int]:
    raw = text.encode("utf-16-be", "surrogatepass")
    return [raw[i] << 8 | raw[i + 1] for i in range(0, len(raw), 2)]


def java_hashes(texts: list[str]) -> list[int]:
    """Return `java_hash` of many texts, none of them empty; for long texts at a tenth of the cost."""
    raws = [text.encode("utf-16-le", "surrogatepass") for text in texts]
    lengths = np.array([len(raw) // 2 for raw in raws], dtype=np.int64)
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    units = np.frombuffer(b"".join(raws), dtype="<u2").astype(np.uint32)
    places = np.repeat(ends, lengths) - 1 - np.arange(len(units))
    powers = np.cumprod(np.full(int(lengths.max()), 31, dtype=np.uint32), dtype=np.uint32)
    factors = np.concatenate((np.ones(1, dtype=np.uint32), powers))[places]
    hashes = np.add.reduceat(units * factors, ends - lengths, dtype=np.uint32)
    return [int(value) for value in hashes.view(np.int32)]


@lru_cache(maxsize=512)
def powers_of_31(length: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Return 31^(length-1) … 31^0 modulo 2^32."""
    powers = np.empty(length, dtype=np.uint32)
    value = 1
    for position in range(length - 1, -1, -1):
        powers[position] = value
        value = value * 31 & 0xFFFFFFFF
    return powers


def hash_ascii_rows(rows: bytes, length: int) -> "np.ndarray[tuple[int], np.dtype[np.uint32]]":
    """Return the Java hashes (unsigned) of concatenated ASCII texts of the same length."""
    table = np.frombuffer(rows, dtype=np.uint8).reshape(-1, length)
    hashes: np.ndarray[tuple[int], np.dtype[np.uint32]] = table.astype(np.uint32) @ powers_of_31(length)
    return hashes
