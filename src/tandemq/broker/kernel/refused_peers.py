"""Peers that replication did not let in: counted, and logged once a minute per address."""

import logging

from tandemq.boundary import Now
from tandemq.model.peers import host_of
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)


class RefusedPeers:
    """The count of refused connections and requests, by address."""

    def __init__(self) -> None:
        """Start at zero."""
        self._refusals = Refusals()

    @property
    def count(self) -> int:
        """Refusals since the start."""
        return self._refusals.count

    def note(self, peer: str, reason: str, now: Now) -> None:
        """Count a refusal of a peer, "ip:port"."""
        times = self._refusals.note(host_of(peer), now.mono_ms)
        if times:
            log.warning("replication: peer=%s refused times=%d reason=%r", peer, times, reason)
