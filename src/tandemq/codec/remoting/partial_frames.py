"""The unfinished frames of all links of a process: how much they hold, and which links have to go.

    FrameDecoder ── keep(link, bytes) while a frame grows, drop(link) when it is whole ──► PartialFrames
    node ── surplus(bytes_max) when more is held, overdue(age) now and then ──► links to close

One unfinished frame per link is bounded (`frame_bytes_max`); so is their sum with this, whatever strangers begin and
leave. Frames that arrive whole are not seen here at all.

Owner: the node. Does not know: links but by number, the clock.
Source: docs/reference/guarantees.md, "memory".
"""

from typing import NamedTuple

SPARE_PARTS = 8
"""Room is made for an eighth of the bound at once, so that one look at all frames serves for many bytes."""


class EvictedFrame(NamedTuple):
    """A link whose unfinished frame has to go."""

    link: int
    size: int
    """Bytes it held."""
    age_ms: int


class _Frame:
    __slots__ = ("began_ms", "size")

    def __init__(self, size: int, began_ms: int) -> None:
        self.size = size
        self.began_ms = began_ms


class PartialFrames:
    """What decoders keep, by link."""

    def __init__(self) -> None:
        """Nothing is kept."""
        self.total = 0
        """Bytes of all unfinished frames."""
        self.now_ms = 0
        """Monotonic time of the present turn; the node sets it."""
        self._frames: dict[int, _Frame] = {}
        """Oldest first."""

    def keep(self, link: int, size: int) -> None:
        """The unfinished frame of a link has so many bytes now."""
        frame = self._frames.get(link)
        if frame is None:
            self._frames[link] = _Frame(size, self.now_ms)
            self.total += size
        else:
            self.total += size - frame.size
            frame.size = size

    def drop(self, link: int) -> None:
        """The frame is whole, or its link is gone; harmless if there is none."""
        frame = self._frames.pop(link, None)
        if frame is not None:
            self.total -= frame.size

    def surplus(self, bytes_max: int) -> list[EvictedFrame]:
        """The links to close if more than `bytes_max` are kept: the oldest frames, of those that are worth it.

        Worth it is what holds half of the mean or more, together at least half of all. Whoever sends a large frame at
        once is younger than those who began one and left it, and whoever keeps a few bytes for long is left alone.
        The frames are dropped here. Cost: one look at each unfinished frame, for each eighth of `bytes_max` received.
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
        """The links to close as their frame began more than `age_ms_max` ago. The frames are dropped here."""
        found: list[EvictedFrame] = []
        for link, frame in list(self._frames.items()):
            if self.now_ms - frame.began_ms <= age_ms_max:
                break
            found.append(self._taken(link, frame))
        return found

    def _taken(self, link: int, frame: _Frame) -> EvictedFrame:
        self.drop(link)
        return EvictedFrame(link, frame.size, self.now_ms - frame.began_ms)
