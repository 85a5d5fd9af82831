"""Client connections: opened, and closed when they are idle or leave frames incomplete; budget of responses per turn.

Incomplete frames of slaves and unauthenticated peers on the replication port count as well. Connections that this
broker opened itself do not: there is one to each name server, replica and master, with one frame each.

Source: docs/reference/guarantees.md, "memory"; RocketMQ ClientHousekeepingService.
"""

import logging
from collections.abc import Callable, Mapping

from tandemq.boundary import Now, Opened, Turn
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.context import CurrentConfig, CurrentTurn
from tandemq.broker.kernel.dead_letters import DeadLetters
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.state.clients import Clients, QueueLocks
from tandemq.broker.state.schedule import Schedule
from tandemq.codec.remoting.partial_frames import EvictedFrame, PartialFrames
from tandemq.codec.remoting.response_budget import ResponseBudget
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
SCAN_MS = 10_000


class Housekeeping(Feature):
    """Closes client connections that exceed a limit."""

    def __init__(
        self,
        links: Mapping[int, Link],
        clients: Clients,
        locks: QueueLocks,
        dead_letters: DeadLetters,
        schedule: Schedule,
        current: CurrentConfig,
        turn: CurrentTurn,
        replica_peer: Callable[[int], str],
        now: Now,
    ) -> None:
        """Scan all connections every `SCAN_MS`. `replica_peer` returns the peer of a replication connection."""
        self._links = links
        self._clients = clients
        self._locks = locks
        self._dead_letters = dead_letters
        self._current = current
        self._turn = turn
        self._replica_peer = replica_peer
        self.partial_frames = PartialFrames()
        self.responses = ResponseBudget()
        self._refusals = Refusals()
        self._closings = Refusals()
        schedule.every(SCAN_MS, self._scan, first_ms=now.mono_ms + SCAN_MS)

    def link_closed(self, link: int, _turn: Turn, _now: Now) -> None:
        """See `Feature`."""
        self.partial_frames.drop(link)

    def begin_turn(self, _turn: Turn, now: Now) -> None:
        """Begin a turn, before anything is received."""
        self.partial_frames.now_ms = now.mono_ms
        self.responses.begin_turn()

    def opened(self, event: Opened, now: Now) -> Link:
        """Return the state of a new client connection."""
        limit = self._current.config.frame_bytes_max
        return Link(event.link, event.kind, event.peer, now.mono_ms, limit, self.partial_frames)

    def keep_partial(self, link: int, size: int) -> None:
        """Record the bytes of a partial frame buffered for a connection that is not a client's."""
        if size:
            self.partial_frames.keep(link, size)
        else:
            self.partial_frames.drop(link)

    def make_room(self, turn: Turn, now: Now) -> None:
        """Close connections until at most `unfinishedFramesMax` bytes of partial frames are buffered.

        To be called once everything of a turn was received.
        """
        if self.partial_frames.total <= self._current.config.unfinished_bytes_max:
            return
        for frame in self.partial_frames.surplus(self._current.config.unfinished_bytes_max):
            self._close(frame, "partial frames of all connections exceed unfinishedFramesMax", turn, now)

    def _scan(self, now: Now) -> None:
        turn = self._turn.out
        idle_ms = self._current.config.connection_idle_ms
        expired = self._clients.expired(now.mono_ms, self._current.config.client_expiry_ms)
        self._locks.expire(now.mono_ms)
        self._dead_letters.report(now.mono_ms)
        for link in self._links.values():
            if now.mono_ms - link.seen_ms > idle_ms or link.number in expired:
                self.close_link(link, "idle for too long", turn, now)
                self.partial_frames.drop(link.number)
        for frame in self.partial_frames.overdue(idle_ms):
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
        peer = self._replica_peer(frame.link) if client is None else client.peer
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
