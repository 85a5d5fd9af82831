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
