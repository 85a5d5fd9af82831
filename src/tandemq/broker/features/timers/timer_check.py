"""`config/timercheck`: up to where a broker has processed the wheel topic, as RocketMQ 5 reads and writes it.

    last read time 8 · timer log position 8 · queue offset 8 · queue offset of the master 8
    state version 8 · timestamp 8 · counter 8 · zeroes up to 4096 bytes

TandemQ does not need the file. It writes it for Java brokers, with a mark behind the numbers that depends on them: a
file without a valid mark was changed by a Java broker, which then had the store.

Source: docs/reference/timers.md; RocketMQ TimerCheckpoint.
"""

import zlib
from struct import Struct
from typing import NamedTuple

from tandemq.boundary import Disk
from tandemq.errors import ProtocolError

PATH = "config/timercheck"
FILE_BYTES = 4_096
_NUMBERS = Struct(">7q")
_SHORT_NUMBERS = Struct(">4q")
_MARK = Struct(">8sI")
_MAGIC = b"TANDEMQ1"


class TimerCheck(NamedTuple):
    """The numbers of the file, and of the response to GET_TIMER_CHECK_POINT."""

    read_ms: int
    """Messages of an earlier time are delivered, if their offset is lower than `queue_offset`."""
    log_position: int
    queue_offset: int
    master_queue_offset: int
    state_version: int = 0
    timestamp: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return the 56 bytes of the numbers."""
        return _NUMBERS.pack(*self)

    def as_file(self) -> bytes:
        """Return the content of the file, with TandemQ's mark."""
        numbers = self.encode()
        return (numbers + _MARK.pack(_MAGIC, zlib.crc32(numbers))).ljust(FILE_BYTES, b"\0")


def decode_check(data: bytes) -> TimerCheck:
    """Decode the numbers; the version may be missing.

    Raises:
        ProtocolError: they are incomplete.
    """
    if len(data) >= _NUMBERS.size:
        return TimerCheck(*_NUMBERS.unpack_from(data))
    if len(data) >= _SHORT_NUMBERS.size:
        return TimerCheck(*_SHORT_NUMBERS.unpack_from(data))
    raise ProtocolError(f"a timer checkpoint has {len(data)} bytes, at least {_SHORT_NUMBERS.size} are expected")


def check_of_java(disk: Disk) -> TimerCheck | None:
    """Return the content of the file if a Java broker wrote it; None if TandemQ did, or there is none."""
    data = disk.read(PATH)
    if data is None or len(data) < _NUMBERS.size:
        return None
    numbers = data[: _NUMBERS.size]
    if data[_NUMBERS.size : _NUMBERS.size + _MARK.size] == _MARK.pack(_MAGIC, zlib.crc32(numbers)):
        return None
    found = decode_check(numbers)
    return found if any(numbers) and found.read_ms >= 0 and found.queue_offset >= 0 else None
