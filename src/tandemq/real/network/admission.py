"""Connection limits: clients up to `maxConnections`, and connections reserved for brokers.

    client port        maxConnections                        + RESERVED_LINKS for members of the group and brokers
    fast port          counted together with the client port + RESERVED_LINKS
    replication port   REPLICAS_MAX
    all ports          as many as the descriptor limit allows; clients RESERVED_LINKS fewer

Source: docs/guides/operations.md, "System limits".
"""

from collections.abc import Callable

from tandemq.boundary import LinkKind
from tandemq.real.descriptors import links_max

RESERVED_LINKS = 64
REPLICAS_MAX = 1_024
_SHORT = "files need the other descriptors; raise the limit (ulimit -n)"


class Admission:
    """Counts accepted connections and decides about new ones."""

    def __init__(self, connections_max: Callable[[], int], is_member: Callable[[str], bool]) -> None:
        """Begin without connections.

        Args:
            connections_max: returns the current `maxConnections`.
            is_member: whether an IP address is that of a broker of the node's group.
        """
        self._connections_max = connections_max
        self._is_member = is_member
        self._clients = 0
        self._replicas = 0

    def refusal(self, kind: LinkKind, host: str, open_links: int) -> str:
        """Return why a new connection from an IP address is refused, "" if it is accepted.

        `open_links`: number of all open connections.
        """
        most = links_max()
        if open_links >= most:
            return f"{most} connections are open; {_SHORT}"
        if kind is LinkKind.HA_MASTER:
            return f"{REPLICAS_MAX} connections on the replication port" if self._replicas >= REPLICAS_MAX else ""
        limit = self._connections_max()
        places = min(limit, max(most - RESERVED_LINKS, most // 2))
        if self._clients < places:
            return ""
        is_reserved = kind is LinkKind.FAST or self._is_member(host)
        if is_reserved and self._clients < places + RESERVED_LINKS:
            return ""
        return f"maxConnections={limit} reached" if places == limit else f"{places} clients are connected; {_SHORT}"

    def opened(self, kind: LinkKind) -> None:
        """Count an accepted connection."""
        if kind is LinkKind.HA_MASTER:
            self._replicas += 1
        else:
            self._clients += 1

    def closed(self, kind: LinkKind) -> None:
        """Count a closed connection."""
        if kind is LinkKind.HA_MASTER:
            self._replicas -= 1
        else:
            self._clients -= 1
