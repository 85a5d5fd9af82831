"""Error texts of ports that cannot be bound."""

import errno
import os

from tandemq.errors import ConfigError

_HINTS = {
    errno.EADDRINUSE: "another process may use the port: stop it, or change that setting",
    errno.EADDRNOTAVAIL: "bindAddress is not an address of this machine",
    errno.EACCES: "this port requires root; change that setting",
}


def cannot_listen(where: str, error: OSError | OverflowError) -> ConfigError:
    """Return the error for an address that cannot be used, with what to do."""
    reason = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    hint = _HINTS.get(getattr(error, "errno", 0), "change that setting")
    return ConfigError(f"cannot listen on {where}: {reason}", hint=hint)
