"""Sizes and byte order of the structures in storage files."""

from tandemq.codec.record.entries import (
    BLANK,
    BLANK_MAGIC,
    CHECKPOINT,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    QUEUE_ENTRY,
    QUEUE_ENTRY_BYTES,
)


def test_entries_have_their_sizes() -> None:
    assert QUEUE_ENTRY.size == QUEUE_ENTRY_BYTES == 20
    assert INDEX_HEADER.size == INDEX_HEADER_BYTES == 40
    assert CHECKPOINT.size == 40


def test_queue_entry_is_offset_size_code() -> None:
    assert QUEUE_ENTRY.pack(1, 2, -3) == (1).to_bytes(8) + (2).to_bytes(4) + (-3).to_bytes(8, signed=True)


def test_blank_is_size_and_magic() -> None:
    assert BLANK.pack(8, BLANK_MAGIC) == bytes.fromhex("00000008CBD43194")
