"""Reports of a process to the service manager that started it: systemd, or another with the protocol of sd_notify.

    NOTIFY_SOCKET   datagram socket for the reports: a path, or @ and an abstract name; absent: nothing is sent
    WATCHDOG_USEC   the manager restarts the process if no WATCHDOG=1 comes for so long; for the process WATCHDOG_PID

    the first `alive`    READY=1 WATCHDOG=1 STATUS=…
    each later one       WATCHDOG=1, STATUS=… if it has changed
    `stopping`           STOPPING=1 STATUS=…

`alive` is called by the event loop, so that a loop that hangs is noticed. A report that the socket does not take is
dropped: the process never waits for its manager. A manager that was started again has a new socket at the same
address, to which the next report goes.
Source: sd_notify(3), sd_watchdog_enabled(3).
"""

import errno
import logging
import os
import socket
from collections.abc import MutableMapping
from typing import Protocol

log = logging.getLogger(__name__)
REPORT_NS = 5_000_000_000
"""Time between two reports without a watchdog: their texts may change."""
REPORTS_PER_TIMEOUT = 3
"""Reports within the timeout of a watchdog."""
STATUS_CHARACTERS_MAX = 400
_GONE = (errno.ECONNREFUSED, errno.ENOTCONN)
"""Errors of the first and of later reports to a manager that has ended."""


class Supervisor(Protocol):
    """Who watches a loop."""

    report_ns: int
    """Time between two reports."""

    def alive(self, status: str) -> None:
        """Report that the loop turns, and what the process does."""


class ServiceManager:
    """The service manager of this process."""

    def __init__(self, address: str = "", watchdog_us: int = 0) -> None:
        """Connect to the manager's socket.

        Args:
            address: path of the socket, or @ and an abstract name; "" if there is no manager.
            watchdog_us: timeout of its watchdog; 0: it has none.
        """
        self.report_ns = watchdog_us * 1000 // REPORTS_PER_TIMEOUT or REPORT_NS
        self.timeout_ns = watchdog_us * 1000
        """Timeout of its watchdog; 0: it has none."""
        self._has_watchdog = watchdog_us > 0
        self._is_ready = self._is_stopping = False
        self._status = ""
        self._address = address
        self._socket: socket.socket | None = None
        if address:
            try:
                self._socket = self._connected()
            except OSError as error:
                log.warning("service manager: NOTIFY_SOCKET %s cannot be used: %s", address, error)

    def _connected(self) -> socket.socket:
        """Return a socket that is connected to the manager's. Raises OSError."""
        found = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        try:
            found.connect("\0" + self._address[1:] if self._address.startswith("@") else self._address)
        except OSError:
            found.close()
            raise
        return found

    @classmethod
    def of_environment(cls, environ: MutableMapping[str, str]) -> "ServiceManager":
        """Take the manager from the environment variables of this process, and remove them: children have none."""
        address = environ.pop("NOTIFY_SOCKET", "")
        timeout, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_watched = timeout.isdecimal() and pid in ("", str(os.getpid()))
        return cls(address, int(timeout) if is_watched else 0)

    def starting(self, status: str) -> None:
        """Report what the process does before it serves."""
        self._send(*self._changed(status))

    def alive(self, status: str) -> None:
        """Report that the loop turns; the first time, that the process serves."""
        lines = [] if self._is_ready else ["READY=1"]
        if self._has_watchdog:
            lines.append("WATCHDOG=1")
        self._is_ready = True
        self._send(*lines, *([] if self._is_stopping else self._changed(status)))

    def stopping(self) -> None:
        """Report that the process stops. Callable from signal handlers, and many times."""
        self._is_stopping = True
        self._send("STOPPING=1", *self._changed("stopping"))

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _changed(self, status: str) -> list[str]:
        if status == self._status:
            return []
        self._status = status
        return [f"STATUS={self._shown}"]

    @property
    def _shown(self) -> str:
        """The status as one line."""
        return " ".join(self._status[:STATUS_CHARACTERS_MAX].split())

    def _send(self, *lines: str) -> None:
        if self._socket is None or not lines:
            return
        try:
            try:
                self._socket.send("\n".join(lines).encode())
            except OSError as error:
                if error.errno not in _GONE:
                    raise
                found = self._connected()
                self._socket.close()
                self._socket = found
                self._socket.send("\n".join([*lines, f"STATUS={self._shown}"]).encode())
        except OSError as error:
            log.debug("service manager: %r was not sent: %s", lines, error)
