"""Damage of one file of a commit log: what a device that returns other bytes than were written leaves of it.

flip    one bit is another one
zero    a block holds zeros
swap    two blocks are exchanged
stale   a block holds the bytes of another one: a write that went elsewhere, or never arrived

Blocks have 512 or 4,096 bytes. Only bytes of records are changed, and never so that a record stays valid, as it may if
the property with its checksum is overwritten: nothing could find that.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from lab.sim.checkers.logs import is_change_valid, walk

KINDS = ("flip", "zero", "swap", "stale")
_BLOCKS = (512, 4_096)
_ATTEMPTS = 20


def files_before(store: Path, end: int) -> list[Path]:
    """Return the files of a commit log that end before an offset."""
    found = sorted((store / "commitlog").iterdir())
    return [path for path in found if int(path.name) + path.stat().st_size <= end]


def damage(path: Path, random: Random) -> tuple[str, list[int]]:
    """Damage a file that is full; return the kind and the first bytes of what is changed; "", [] if nothing can be."""
    before, start = path.read_bytes(), int(path.name)
    records, invalid = walk(before, start, len(before))
    end = records[-1].record.log_offset + records[-1].record.size - start if records else 0
    for _ in range(_ATTEMPTS if invalid is None and end > 2 * max(_BLOCKS) else 0):
        kind = random.choice(KINDS)
        pieces = _pieces(before, end, kind, random)
        changed = bytearray(before)
        for at, data in pieces.items():
            changed[at : at + len(data)] = data
        if changed != before and not is_change_valid(before, bytes(changed), start, len(before)):
            _write(path, pieces)
            return kind, list(pieces)
    return "", []


def _pieces(before: bytes, end: int, kind: str, random: Random) -> dict[int, bytes]:
    """Return what is written: position to bytes."""
    if kind == "flip":
        at = random.randrange(end)
        return {at: bytes([before[at] ^ 1 << random.randrange(8)])}
    size = random.choice(_BLOCKS)
    first, second = random.sample(range(0, end - size + 1, size), 2)
    if kind == "zero":
        return {first: bytes(size)}
    found = {first: before[second : second + size]}
    return found | {second: before[first : first + size]} if kind == "swap" else found


def _write(path: Path, pieces: dict[int, bytes]) -> None:
    """Write below a process that may have the file open."""
    fd = os.open(path, os.O_WRONLY)
    try:
        for at, data in pieces.items():
            os.pwrite(fd, data, at)
    finally:
        os.close(fd)
