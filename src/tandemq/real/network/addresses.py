"""Addresses of hosts: as text, and looked up by name."""

import socket
from ipaddress import ip_address


def look_up(host: str) -> str:
    """The first address of a host. Blocking."""
    return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])


def is_ip(host: str) -> bool:
    """Whether a host is an address and no name to look up."""
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def text_of(address: tuple[object, ...]) -> str:
    """A socket's address as "ip:port", "[ip]:port" with IPv6."""
    host, port = str(address[0]), address[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
