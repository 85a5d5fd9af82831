"""Checkpoint files: up to which offset the store is complete when it is opened again.

`checkpoint` is RocketMQ's: store times up to which log, queues and index were flushed. `tandemq.marks` is TandemQ's
own and holds two log offsets: below `synced` log, queues and index are on the device; below `written` they were passed
to the kernel, which is enough unless the machine went down since. The boot id shows whether it did.

    marks: magic 8 · synced 8 · written 8 · entries 8 · clean 8 · boot id 36 · CRC 4

Source: docs/internals/storage.md, "checkpoint and abort".
"""

import zlib
from dataclasses import dataclass
from struct import Struct

from tandemq.boundary import Disk, File
from tandemq.codec.record.entries import CHECKPOINT, CHECKPOINT_BYTES

_MARKS = Struct(">8sqqqq36s")
_MAGIC = b"TQMARKS1"
_CRC = Struct(">I")
_CLEAN, _CLEAN_WITHOUT_KEYS = 1, 2
REBUILDING = -1
"""Value of `Marks.entries` while the queues are being rebuilt: they are incomplete."""


@dataclass(slots=True)
class Marks:
    """Content of `tandemq.marks`. `entries` is the sum of all queues' max offsets at `written`: it shows lost files."""

    synced: int = 0
    written: int = 0
    entries: int = 0
    clean: bool = False
    boot_id: str = ""
    without_keys: bool = False
    """Whether a clean stop left no index files because no record has keys; without a clean stop it is unknown."""


@dataclass(slots=True)
class Checkpoint:
    """Content of RocketMQ's `checkpoint`: store times in ms, then log offsets."""

    log_ms: int = 0
    queue_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm_offset: int = 0


def read_marks(disk: Disk) -> Marks | None:
    """Return the marks, None if the file is missing or damaged."""
    data = disk.read("tandemq.marks")
    if data is None or len(data) < _MARKS.size + _CRC.size:
        return None
    magic, synced, written, entries, clean, boot_id = _MARKS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _MARKS.size)
    if magic != _MAGIC or crc != zlib.crc32(data[: _MARKS.size]):
        return None
    boot = boot_id.rstrip(b"\0").decode()
    return Marks(synced, written, entries, bool(clean), boot, without_keys=clean == _CLEAN_WITHOUT_KEYS)


def open_marks(disk: Disk) -> File:
    """Open the file for `write_marks`, creating it if needed."""
    return disk.open("tandemq.marks", create=True)


def write_marks(file: File, marks: Marks) -> None:
    """Overwrite the marks in place; they are shorter than a sector, so the write is atomic."""
    clean = (_CLEAN_WITHOUT_KEYS if marks.without_keys else _CLEAN) if marks.clean else 0
    raw = _MARKS.pack(
        _MAGIC, marks.synced, marks.written, marks.entries, clean, marks.boot_id.encode().ljust(36, b"\0")
    )
    file.pwrite(raw + _CRC.pack(zlib.crc32(raw)), 0)


def read_checkpoint(disk: Disk) -> Checkpoint:
    """Return RocketMQ's checkpoint; zeroes if the file is missing or too short."""
    data = disk.read("checkpoint")
    if data is None or len(data) < CHECKPOINT.size:
        return Checkpoint()
    return Checkpoint(*CHECKPOINT.unpack_from(data))


def write_checkpoint(disk: Disk, checkpoint: Checkpoint) -> None:
    """Replace RocketMQ's checkpoint."""
    raw = CHECKPOINT.pack(
        checkpoint.log_ms,
        checkpoint.queue_ms,
        checkpoint.index_ms,
        checkpoint.master_flushed,
        checkpoint.confirm_offset,
    )
    disk.replace("checkpoint", raw.ljust(CHECKPOINT_BYTES, b"\0"))
