"""Memory used by partially received frames, summed over all connections, and which connections to close for it.

    FrameDecoder ── keep(link, bytes) while a frame grows, drop(link) when it is complete ──► PartialFrames
    node ── surplus(bytes_max) after each turn, overdue(age_ms_max) now and then ──► connections to close

The partial frame of one connection is limited by `frame_bytes_max`; this limits their sum, also if unauthenticated
peers send the beginning of a frame and stop. Frames that arrive complete are not tracked.

Owner: the node. Source: docs/reference/guarantees.md, "memory".
"""

from typing import NamedTuple

SPARE_PARTS = 8
"""An eviction frees one eighth of the limit, so that the cost of a pass over all frames is spread over many bytes."""


class EvictedFrame(NamedTuple):
    """A dropped partial frame; its connection must be closed."""

    link: int
    size: int
    """Bytes received of it."""
    age_ms: int


class _Frame:
    __slots__ = ("began_ms", "size")

    def __init__(self, size: int, began_ms: int) -> None:
        self.size = size
        self.began_ms = began_ms


class PartialFrames:
    """Sizes and ages of the partial frames of all connections."""

    def __init__(self) -> None:
        """Begin with no partial frame."""
        self.total = 0
        """Bytes of all partial frames."""
        self.now_ms = 0
        """Monotonic time of the current turn; set by the node."""
        self._frames: dict[int, _Frame] = {}
        """Oldest first."""

    def keep(self, link: int, size: int) -> None:
        """Record the current size in bytes of a connection's partial frame; 0: it has none."""
        if not size:
            self.drop(link)
            return
        frame = self._frames.get(link)
        if frame is None:
            self._frames[link] = _Frame(size, self.now_ms)
            self.total += size
        else:
            self.total += size - frame.size
            frame.size = size

    def drop(self, link: int) -> None:
        """Forget a frame that is complete or whose connection is closed; harmless if there is none."""
        frame = self._frames.pop(link, None)
        if frame is not None:
            self.total -= frame.size

    def surplus(self, bytes_max: int) -> list[EvictedFrame]:
        """Drop the oldest large frames if more than `bytes_max` are buffered; return them, to close their connections.

        Large are frames of at least half of the mean size; together they hold at least half of all bytes. So a peer
        that sends a large frame quickly outlives those that stopped within one, and peers with few bytes are spared.
        Cost: one pass over all partial frames for each eighth of `bytes_max` received.
        """
        goal = bytes_max if self.total <= bytes_max else bytes_max - bytes_max // SPARE_PARTS
        found: list[EvictedFrame] = []
        while self.total > goal:
            least = self.total / (2 * len(self._frames))
            for link, frame in list(self._frames.items()):
                if frame.size >= least and self.total > goal:
                    found.append(self._taken(link, frame))
        return found

    def overdue(self, age_ms_max: int) -> list[EvictedFrame]:
        """Drop the frames that began more than `age_ms_max` ago; return them: their connections must close."""
        found: list[EvictedFrame] = []
        for link, frame in list(self._frames.items()):
            if self.now_ms - frame.began_ms <= age_ms_max:
                break
            found.append(self._taken(link, frame))
        return found

    def _taken(self, link: int, frame: _Frame) -> EvictedFrame:
        self.drop(link)
        return EvictedFrame(link, frame.size, self.now_ms - frame.began_ms)
