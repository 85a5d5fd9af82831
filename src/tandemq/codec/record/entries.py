"""Fixed-size structures: consume queue and index entries, checkpoint, and the blank that ends a commit log file.

    queue entry   commit log offset 8 · size 4 · tags code 8
    index header  begin time 8 · end time 8 · begin log offset 8 · end log offset 8 · slots used 4 · entries 4
    index entry   key hash 4 · log offset 8 · seconds since begin time 4 · previous entry of the slot 4
    checkpoint    log time 8 · queue time 8 · index time 8 · master flushed 8 · confirm offset 8 · zeroes to 4096
    blank         size 4 · magic 4 · undefined bytes

Source: docs/internals/storage.md; RocketMQ ConsumeQueue, IndexFile, IndexHeader, StoreCheckpoint, CommitLog.
"""

from struct import Struct

QUEUE_ENTRY = Struct(">qiq")
QUEUE_ENTRY_BYTES = 20
HOLE_SIZE_MIN = 0x40000000
"""No record is as large; the size in the entry of a hole, a queue offset without a message, is not smaller."""
HOLE_SIZE_MAX = 0x7FFFFFFF
INDEX_HEADER = Struct(">qqqqii")
INDEX_HEADER_BYTES = 40
INDEX_SLOT_BYTES = 4
INDEX_ENTRY = Struct(">iqii")
INDEX_ENTRY_BYTES = 20
CHECKPOINT = Struct(">qqqqq")
CHECKPOINT_BYTES = 4096
BLANK = Struct(">iI")
BLANK_BYTES_MIN = 8
BLANK_MAGIC = 0xCBD43194


def is_hole(size: int, tags_code: int) -> bool:
    """Return whether an entry is that of a hole. The tag code repeats its size: no flipped bit makes a message one."""
    return size >= HOLE_SIZE_MIN and size in (tags_code, HOLE_SIZE_MAX)
