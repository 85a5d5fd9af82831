"""Client connections: opened, and closed when they are idle or leave frames incomplete; budget of responses per turn.

Incomplete frames of slaves and unauthenticated peers on the replication port count as well. Connections that this
broker opened itself do not: there is one to each name server, replica and master, with one frame each.

Source: docs/reference/guarantees.md, "memory"; RocketMQ ClientHousekeepingService.
"""

import logging

from tandemq.boundary import Now, Opened, Turn
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.codec.remoting.partial_frames import EvictedFrame
from tandemq.codec.remoting.response_budget import ResponseBudget
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
SCAN_MS = 10_000


class Housekeeping(Feature):
    """Closes client connections that exceed a limit."""

    def __init__(self, kernel: Kernel) -> None:
        """Scan all connections every `SCAN_MS`."""
        self._links = kernel.links
        self._clients = kernel.clients
        self._current = kernel.current
        self._turn = kernel.turn
        self._partial_frames = kernel.partial_frames
        self._replica_links = kernel.replica_links
        self.responses = ResponseBudget()
        self._refusals = Refusals()
        self._closings = Refusals()
        kernel.every(SCAN_MS, self._scan)

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        self._partial_frames.drop(link)

    def begin_turn(self, _turn: Turn, now: Now) -> None:
        """Begin a turn, before anything is received."""
        self._partial_frames.now_ms = now.mono_ms
        self.responses.begin_turn()

    def opened(self, event: Opened, now: Now) -> Link:
        """Return the state of a new client connection."""
        limit = self._current.config.frame_bytes_max
        return Link(event.link, event.kind, event.peer, now.mono_ms, limit, self._partial_frames)

    def make_room(self, turn: Turn, now: Now) -> None:
        """Close connections until at most `unfinishedFramesMax` bytes of partial frames are buffered.

        To be called once everything of a turn was received.
        """
        if self._partial_frames.total <= self._current.config.unfinished_bytes_max:
            return
        for frame in self._partial_frames.surplus(self._current.config.unfinished_bytes_max):
            self._close(frame, "partial frames of all connections exceed unfinishedFramesMax", turn, now)

    def _scan(self, now: Now) -> None:
        turn = self._turn.out
        idle_ms = self._current.config.connection_idle_ms
        expired = self._clients.expired(now.mono_ms, self._current.config.client_expiry_ms)
        for link in self._links.values():
            if now.mono_ms - link.seen_ms > idle_ms or link.number in expired:
                self.close_link(link, "idle for too long", turn, now)
                self._partial_frames.drop(link.number)
        for frame in self._partial_frames.overdue(idle_ms):
            self._close(frame, f"incomplete after {idle_ms} ms", turn, now)

    def close_link(self, link: Link, reason: str, turn: Turn, now: Now) -> None:
        """Close a client connection; logged at most once a minute per address."""
        link.is_closed = True
        times = self._closings.note(link.peer.rpartition(":")[0], now.mono_ms)
        if times:
            log.info("link: peer=%s closed times=%d reason=%r", link.peer, times, reason)
        turn.closes.append((link.number, reason))

    def _close(self, frame: EvictedFrame, why: str, turn: Turn, now: Now) -> None:
        client = self._links.get(frame.link)
        peer = self._replica_links[frame.link] if client is None else client.peer
        times = self._refusals.note(peer.rpartition(":")[0], now.mono_ms)
        if times:
            log.warning(
                "link: peer=%s closed times=%d reason='%d bytes of a partial frame, begun %d ms ago: %s'",
                peer,
                times,
                frame.size,
                frame.age_ms,
                why,
            )
        turn.closes.append((frame.link, "partial frame"))
