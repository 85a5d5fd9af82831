"""How far the store can be trusted when it is opened again.

`checkpoint` is RocketMQ's: store times up to which log, queues and index were flushed. `tandemq.marks` is ours, two
offsets into the log: up to `synced` everything (log, queues, index) was on the device; up to `written` it was handed
to the system, which is as good unless the machine went down since, told by the boot id.

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
REBUILDING = -1
"""In place of the number of entries: the queues are being made anew, and not to be trusted."""


@dataclass(slots=True)
class Marks:
    """The offsets. `entries` is the sum of all queues' max offsets at `written`: it tells if queues are missing."""

    synced: int = 0
    written: int = 0
    entries: int = 0
    clean: bool = False
    boot_id: str = ""


@dataclass(slots=True)
class Checkpoint:
    """RocketMQ's times, ms."""

    log_ms: int = 0
    queue_ms: int = 0
    index_ms: int = 0
    master_flushed: int = 0
    confirm_offset: int = 0


def read_marks(disk: Disk) -> Marks | None:
    """Our marks, None if they are missing or damaged."""
    data = disk.read("tandemq.marks")
    if data is None or len(data) < _MARKS.size + _CRC.size:
        return None
    magic, synced, written, entries, clean, boot_id = _MARKS.unpack_from(data)
    (crc,) = _CRC.unpack_from(data, _MARKS.size)
    if magic != _MAGIC or crc != zlib.crc32(data[: _MARKS.size]):
        return None
    return Marks(synced, written, entries, bool(clean), boot_id.rstrip(b"\0").decode())


def open_marks(disk: Disk) -> File:
    """The file for `write_marks`."""
    return disk.open("tandemq.marks", create=True)


def write_marks(file: File, marks: Marks) -> None:
    """Overwrite the marks in place: shorter than a sector, so whole or not at all."""
    raw = _MARKS.pack(
        _MAGIC, marks.synced, marks.written, marks.entries, marks.clean, marks.boot_id.encode().ljust(36, b"\0")
    )
    file.pwrite(raw + _CRC.pack(zlib.crc32(raw)), 0)


def read_checkpoint(disk: Disk) -> Checkpoint:
    """RocketMQ's checkpoint; zeroes if there is none."""
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
