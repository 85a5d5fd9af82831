"""Unique keys: the ids producers give their messages, 32 upper-case hexadecimal digits as Java clients make them.

    ip 4 (IPv6: 16) · pid 2 · salt 4 · milliseconds since the month began 4 · counter 2

Source: docs/internals/storage.md, "commit log"; RocketMQ MessageClientIDSetter.
"""

from datetime import UTC, datetime
from ipaddress import ip_address
from struct import Struct

_MONTH_MS_MAX = 28 * 24 * 3_600_000
_TAIL = Struct(">IH")


class UniqueKeys:
    """Gives ids; no two of one client are alike, unless it gives more than 65,536 in a millisecond."""

    def __init__(self, ip: str, pid: int, salt: int) -> None:
        """For a process; `salt` tells clients of one process apart."""
        head = ip_address(ip).packed + (pid & 0xFFFF).to_bytes(2) + (salt & 0xFFFFFFFF).to_bytes(4)
        self._head = head.hex().upper()
        self._count = salt & 0xFFFF
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, wall_ms: int) -> str:
        """A new id, made at a calendar time."""
        if not self._month_start_ms <= wall_ms < self._month_end_ms:
            self._month_start_ms = month_start_ms(wall_ms)
            # Months are at least this long; afterwards it is looked up again.
            self._month_end_ms = max(self._month_start_ms + _MONTH_MS_MAX, wall_ms + 1)
        self._count = self._count + 1 & 0xFFFF
        return self._head + _TAIL.pack(wall_ms - self._month_start_ms & 0xFFFFFFFF, self._count).hex().upper()


def month_start_ms(wall_ms: int) -> int:
    """When the month of a calendar time began, in UTC, milliseconds since 1970."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return int(moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()) * 1000
