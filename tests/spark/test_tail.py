"""Checksum of the last record before an offset: equal for replicas, different for any other log."""

import shutil
import zlib
from pathlib import Path

import pytest

from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.tail import UNKNOWN, first_record, tail_checksum
from tests.spark.logs import LogWriter, Made


@pytest.fixture
def writer(tmp_path: Path) -> LogWriter:
    made = LogWriter(tmp_path / "a")
    made.write_many(900)
    return made


def checksum(writer: LogWriter, end: int) -> int:
    with LogFileReader(open_log(writer.store)) as read:
        return tail_checksum(read, end)


def crc(writer: LogWriter, made: Made) -> int:
    at = made.log_offset % writer.segment_bytes
    return zlib.crc32(writer.path(made.log_offset).read_bytes()[at : at + made.size])


def test_checksum_is_that_of_the_last_record_for_any_offset(writer: LogWriter) -> None:
    for before, made in zip(writer.made[::50], writer.made[1::50], strict=False):
        assert checksum(writer, made.log_offset) == crc(writer, before)
    assert checksum(writer, writer.end) == crc(writer, writer.made[-1])


def test_checksum_ignores_filler_and_skips_damage(writer: LogWriter, tmp_path: Path) -> None:
    shutil.copytree(writer.store, tmp_path / "b")
    replica, size = LogWriter(tmp_path / "b"), writer.segment_bytes
    last = next(made for made, after in zip(writer.made, writer.made[1:], strict=False) if after.log_offset >= size)
    replica.flip(last.log_offset + last.size + 20)
    assert checksum(replica, size) == checksum(writer, size) == crc(writer, last)
    before = writer.made[last.number - 2]
    replica.flip(writer.made[last.number - 1].log_offset + 92)
    assert checksum(replica, size) == crc(writer, last)
    replica.flip(last.log_offset + 92)
    assert checksum(replica, size) == crc(writer, before)


def test_checksum_is_unknown_outside_the_log(writer: LogWriter) -> None:
    last = writer.path(writer.end)
    writer.path(0).unlink()
    assert checksum(writer, 1000) == UNKNOWN
    assert checksum(writer, writer.segment_bytes) == UNKNOWN
    assert checksum(writer, 100 * writer.segment_bytes) == UNKNOWN
    writer.zero(int(last.name), int(last.name) + writer.segment_bytes)
    assert checksum(writer, writer.end) == UNKNOWN


def test_first_record_is_at_the_offset_or_after_the_blank(writer: LogWriter) -> None:
    size = writer.segment_bytes
    last = next(made for made, after in zip(writer.made, writer.made[1:], strict=False) if after.log_offset >= size)
    with LogFileReader(open_log(writer.store)) as read:
        assert first_record(read, last.log_offset) == last.log_offset
        assert first_record(read, last.log_offset + last.size) == size
        end = log_end(read)
        assert first_record(read, end) == end
    writer.flip(last.log_offset + 92)
    with LogFileReader(open_log(writer.store)) as read:
        assert first_record(read, last.log_offset) == last.log_offset
