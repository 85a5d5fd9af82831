"""Unique keys of messages, assigned by producers: 32 upper-case hexadecimal digits, as Java clients make them.

    ip 4 (IPv6: 16) · pid 2 · salt 4 · milliseconds since the month began 4 · counter 2

Source: docs/internals/storage.md, "commit log"; RocketMQ MessageClientIDSetter.
"""

from datetime import UTC, datetime
from ipaddress import ip_address

from tandemq.engine import unique_key

_MONTH_MS_MAX = 28 * 24 * 3_600_000


class UniqueKeys:
    """Generator of unique keys; keys of one client repeat only if it makes more than 65,536 within a millisecond."""

    def __init__(self, ip: str, pid: int, salt: int) -> None:
        """Keys of one client. `salt`: 32 random bits that differ between the clients of one process."""
        head = ip_address(ip).packed + (pid & 0xFFFF).to_bytes(2) + (salt & 0xFFFFFFFF).to_bytes(4)
        self._head = head.hex().upper()
        self._count = salt & 0xFFFF
        self._month_start_ms = 0
        self._month_end_ms = 0

    def next(self, wall_ms: int) -> str:
        """Return a new key made at a time, milliseconds since 1970."""
        if not self._month_start_ms <= wall_ms < self._month_end_ms:
            self._month_start_ms = month_start_ms(wall_ms)
            # No month is shorter; after that time the month is computed again.
            self._month_end_ms = max(self._month_start_ms + _MONTH_MS_MAX, wall_ms + 1)
        self._count = self._count + 1 & 0xFFFF
        return unique_key(self._head, wall_ms - self._month_start_ms, self._count)


def month_start_ms(wall_ms: int) -> int:
    """Return when the month of a time began, in UTC; both are milliseconds since 1970."""
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return int(moment.replace(day=1, hour=0, minute=0, second=0, microsecond=0).timestamp()) * 1000
