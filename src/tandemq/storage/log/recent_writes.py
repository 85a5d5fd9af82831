"""The newest bytes of the commit log, in memory for readers of its end: consumers without lag, and slaves."""

from tandemq.boundary import Buffer

KEPT_BYTES = 1 << 20


class RecentWrites:
    """The last written bytes: at least `KEPT_BYTES` of them once that many were written, at most twice as many."""

    __slots__ = ("data", "start")

    def __init__(self) -> None:
        """Begin without bytes."""
        self.start = 0
        """Log offset of `data[0]`."""
        self.data = bytearray()

    def restart(self, end: int) -> None:
        """Forget all bytes; the next write is at `end`."""
        self.start, self.data = end, bytearray()

    def add(self, data: Buffer) -> None:
        """Add a write, which follows the last one."""
        self.data += data
        surplus = len(self.data) - KEPT_BYTES
        if surplus > KEPT_BYTES:
            del self.data[:surplus]
            self.start += surplus

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at or after `start`, fewer at the end."""
        return bytes(self.data[offset - self.start : offset - self.start + size])
