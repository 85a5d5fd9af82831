"""Peers that replication did not let in: counted, and logged once a minute per address."""

import logging
from functools import lru_cache
from ipaddress import ip_address

from tandemq.boundary import Now
from tandemq.refusals import Refusals

log = logging.getLogger(__name__)
HOSTS_KEPT_MAX = 4_096
"""Maximum number of peers whose addresses are kept: access control asks for them with each request."""


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


@lru_cache(maxsize=HOSTS_KEPT_MAX)
def host_of(peer: str) -> str:
    """Return the address in "ip:port" in the form that haClassicPeers has."""
    host = ip_address(peer.rpartition(":")[0].strip("[]"))
    return str(getattr(host, "ipv4_mapped", None) or host)
