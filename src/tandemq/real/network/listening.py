"""Bound sockets of an address, and error texts of addresses that cannot be bound.

"0.0.0.0" and "::" stand for all interfaces, IPv4 and IPv6: two sockets on one port, so that peers have addresses of
their own family instead of IPv4 addresses mapped to IPv6.
"""

import errno
import os
import socket

from tandemq.errors import ConfigError

ALL_INTERFACES = ("0.0.0.0", "::")
FREE_PORT_TRIES = 100

_HINTS = {
    errno.EADDRINUSE: "another process may use the port: stop it, or choose another port",
    errno.EADDRNOTAVAIL: "bindAddress is not an address of this machine",
    errno.EACCES: "this port requires root; change that setting",
}


def cannot_listen(where: str, error: OSError | OverflowError) -> ConfigError:
    """Return the error for an address that cannot be used, with what to do."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    hint = _HINTS.get(getattr(error, "errno", 0), "change that setting")
    return ConfigError(f"cannot listen on {where}: {reason}", hint=hint)


def bind(address: str, port: int, *, is_new: bool = False, is_shared: bool = False) -> list[socket.socket]:
    """Return the bound sockets of an address: one, or one per family for all interfaces.

    Args:
        address: IP address.
        port: 0 for any free one, the same for both families.
        is_new: whether the port must be nobody's; see `Loop.listen`.
        is_shared: whether other processes may listen on the port too; the kernel spreads connections among them.

    Raises:
        OSError, OverflowError: the address cannot be used.
    """
    if address not in ALL_INTERFACES or not has_ipv6():
        return [_bound(address, port, is_new=is_new, is_shared=is_shared)]
    for _ in range(1 if port else FREE_PORT_TRIES):
        first = _bound("0.0.0.0", port, is_new=is_new, is_shared=is_shared)
        try:
            return [first, _bound("::", first.getsockname()[1], is_new=is_new, is_shared=is_shared)]
        except OSError as error:
            first.close()
            if port or error.errno != errno.EADDRINUSE:
                raise
    raise OSError(errno.EADDRINUSE, "no port is free for both IPv4 and IPv6")


def has_ipv6() -> bool:
    """Return whether this machine has IPv6."""
    try:
        _bound("::", 0).close()
    except OSError:
        return False
    return True


def _bound(address: str, port: int, *, is_new: bool = False, is_shared: bool = False) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, not is_new)
        if is_shared:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if ":" in address:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((address, port))
    except BaseException:
        sock.close()
        raise
    return sock
