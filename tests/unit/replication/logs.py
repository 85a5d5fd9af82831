"""Logs for tests of sessions without a store: arbitrary bytes, or real records with blanks at file ends."""

from collections.abc import Iterable

from tandemq.codec.record.entries import BLANK, BLANK_BYTES_MIN, BLANK_MAGIC
from tandemq.codec.record.record import encode_host, encode_record
from tandemq.errors import OffsetGone
from tandemq.not_cached import FileRange, NotCached

HOST = encode_host(bytes((127, 0, 0, 1)), 10911)


class FakeLog:
    """A log view over bytes in memory."""

    def __init__(self, data: bytes = b"", *, start: int = 0, segment_bytes: int = 1 << 20) -> None:
        self.data = bytearray(data)
        self.start = start
        self.segment_bytes = segment_bytes
        self.uncached: FileRange | None = None
        """What `read_cached` lacks; None: nothing."""

    @property
    def written_end(self) -> int:
        return self.start + len(self.data)

    def read(self, offset: int, size: int) -> bytes:
        if offset < self.start:
            raise OffsetGone(f"{offset} is gone")
        size = min(size, self.segment_bytes - offset % self.segment_bytes)
        return bytes(self.data[offset - self.start : offset - self.start + size])

    def read_cached(self, offset: int, size: int) -> bytes:
        if self.uncached is not None:
            raise NotCached([self.uncached])
        return self.read(offset, size)


def make_record(log_offset: int, body: bytes, *, queue_offset: int = 0, properties: bytes = b"") -> bytes:
    return encode_record(
        topic=b"TopicA",
        queue_id=0,
        queue_offset=queue_offset,
        log_offset=log_offset,
        body=body,
        properties=properties,
        flag=0,
        sys_flag=0,
        born_ms=1,
        born_host=HOST,
        store_ms=2,
        store_host=HOST,
    )


def make_log(body_sizes: Iterable[int], segment_bytes: int = 4096) -> bytes:
    """Return records with bodies of these sizes; a file ends with a blank where the next record does not fit."""
    log = b""
    for number, size in enumerate(body_sizes):
        record = make_record(len(log), bytes([number % 256]) * size, queue_offset=number)
        room = segment_bytes - len(log) % segment_bytes
        if len(record) + BLANK_BYTES_MIN > room:
            log += BLANK.pack(room, BLANK_MAGIC) + bytes(room - BLANK_BYTES_MIN)
            record = make_record(len(log), bytes([number % 256]) * size, queue_offset=number)
        log += record
    return log
