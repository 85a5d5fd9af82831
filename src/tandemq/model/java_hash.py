"""Java's String.hashCode, used for tags and keys.

Source: docs/internals/storage.md, "consume queue" and "index".
"""

from functools import lru_cache


def java_hash(text: str) -> int:
    """Return Java's hash of a text, a signed 32-bit int: h = 31 * h + unit for each UTF-16 code unit.

    Cost: one step per character.
    """
    value = 0
    for unit in text if text.isascii() else _utf16(text):
        value = (31 * value + (ord(unit) if isinstance(unit, str) else unit)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


@lru_cache(maxsize=65536)
def cached_java_hash(text: str) -> int:
    """Return `java_hash` from a cache, for texts that repeat, such as tags."""
    return java_hash(text)


def _utf16(text: str) -> list[int]:
    """Return the UTF-16 code units of a text."""
    raw = text.encode("utf-16-be", "surrogatepass")
    return [raw[i] << 8 | raw[i + 1] for i in range(0, len(raw), 2)]


def java_hashes(texts: list[str]) -> list[int]:
    """Return the `java_hash` of each text, of which none may be empty. Cost: a tenth of `java_hash` for long texts."""
    import numpy as np  # noqa: PLC0415  # not loaded for `tandemq --help`

    raws = [text.encode("utf-16-le", "surrogatepass") for text in texts]
    lengths = np.array([len(raw) // 2 for raw in raws], dtype=np.int64)
    if not len(lengths):
        return []
    ends = np.cumsum(lengths)
    units = np.frombuffer(b"".join(raws), dtype="<u2").astype(np.uint32)
    exponents = np.repeat(ends, lengths) - 1 - np.arange(len(units))
    powers = np.cumprod(np.full(int(lengths.max()), 31, dtype=np.uint32), dtype=np.uint32)
    factors = np.concatenate((np.ones(1, dtype=np.uint32), powers))[exponents]
    hashes = np.add.reduceat(units * factors, ends - lengths, dtype=np.uint32)
    return [int(value) for value in hashes.view(np.int32)]
