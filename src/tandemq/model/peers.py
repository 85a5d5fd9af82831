"""Addresses of peers."""

from functools import lru_cache
from ipaddress import ip_address

HOSTS_KEPT_MAX = 4_096
"""Maximum number of peers whose addresses are kept: access control asks for them with each request."""


@lru_cache(maxsize=HOSTS_KEPT_MAX)
def host_of(peer: str) -> str:
    """Return the address in "ip:port" in the form that haClassicPeers has."""
    host = ip_address(peer.rpartition(":")[0].strip("[]"))
    return str(getattr(host, "ipv4_mapped", None) or host)
