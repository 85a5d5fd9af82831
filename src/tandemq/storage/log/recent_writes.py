"""The newest bytes of the commit log, in memory for readers of its end: consumers without lag, and slaves.

The owner calls `age` every second, so bytes that were written one to two seconds ago are read from the file again.
"""

from tandemq.boundary import Buffer

KEPT_BYTES = 1 << 20


class RecentWrites:
    """The last written bytes, at most twice `KEPT_BYTES`."""

    __slots__ = ("_aged", "data", "start")

    def __init__(self) -> None:
        """Begin without bytes."""
        self.start = 0
        """Log offset of `data[0]`."""
        self.data = bytearray()
        self._aged = 0
        """Log offset of the end at the last `age`."""

    def restart(self, end: int) -> None:
        """Forget all bytes; the next write is at `end`."""
        self.start, self.data, self._aged = end, bytearray(), end

    def add(self, *parts: Buffer) -> None:
        """Add a write, which follows the last one: buffers, one behind the other.

        A large one is not kept: copying it costs more than readers save, who find it in the page cache.
        """
        size = sum(map(len, parts))
        if size >= KEPT_BYTES:
            self.restart(self.start + len(self.data) + size)
            return
        for part in parts:
            self.data += part
        if len(self.data) > 2 * KEPT_BYTES:
            self._drop(len(self.data) - KEPT_BYTES)

    def age(self) -> None:
        """Forget the bytes that were there at the last call."""
        self._drop(max(0, self._aged - self.start))
        self._aged = self.start + len(self.data)

    def _drop(self, count: int) -> None:
        del self.data[:count]
        self.start += count

    def read(self, offset: int, size: int) -> bytes:
        """Return bytes at or after `start`, fewer at the end."""
        return bytes(self.data[offset - self.start : offset - self.start + size])
