"""Addresses of hosts: text form and name resolution."""

import socket
from ipaddress import ip_address


def look_up(host: str) -> str:
    """Return the first IP address of a host. Blocking.

    Raises:
        OSError, UnicodeError: the name cannot be resolved.
    """
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def is_ip(host: str) -> bool:
    """Whether a host is an IP address, not a name."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def text_of(address: tuple[object, ...]) -> str:
    """Return a socket's address as "ip:port", "[ip]:port" with IPv6."""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def own_ip(peer: str) -> str:
    """Return the IP address of the interface towards a peer, "host:port"; 127.0.0.1 if there is none. Sends nothing.

    A name is resolved, to an IPv4 address if it has one. Blocking.
    """
    host, _, port = peer.rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)
        family, kind, _, _, address = min(found, key=lambda info: info[0] != socket.AF_INET)
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, ValueError):
        return "127.0.0.1"
