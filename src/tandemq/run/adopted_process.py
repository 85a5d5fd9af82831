"""A process that another parent has started: watched and signalled by a descriptor, which never means another process.

Its exit code is unknown: only a parent gets it. Linux only (pidfd_open(2), proc(5)).
"""

import os
import select
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_START_FIELD = 22 - 3
"""Position of the start time in /proc/PID/stat behind the name, which may have any character."""


class ProcessIdentity(NamedTuple):
    """A process, distinct from any other that gets its id later."""

    pid: int
    began: int
    """Its start, in clock ticks since the boot."""
    boot: str
    """The boot of the machine."""


def identify(pid: int) -> ProcessIdentity:
    """Return the identity of a process.

    Raises:
        ProcessLookupError: it has ended.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ProcessLookupError(f"process {pid} does not run") from error
    return ProcessIdentity(pid, int(text.rpartition(")")[2].split()[_START_FIELD]), _boot())


def _boot() -> str:
    return _BOOT.read_text(encoding="ascii").strip()


class AdoptedProcess:
    """A process with the methods of `subprocess.Popen` that `Child` uses."""

    stdin = stdout = None

    def __init__(self, identity: ProcessIdentity) -> None:
        """Find the process.

        Raises:
            ProcessLookupError: it has ended.
        """
        self.pid = identity.pid
        self.returncode: int | None = None
        """0 once it has ended; -SIGKILL if this object killed it."""
        self._killed = False
        self._handle = -1
        self._handle = os.pidfd_open(identity.pid)
        if identify(identity.pid) != identity:
            raise ProcessLookupError(f"process {identity.pid} is another one")

    def poll(self) -> int | None:
        """Return `returncode`; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        Raises:
            subprocess.TimeoutExpired: it has not, after `timeout` seconds.
        """
        code = self._ended(None if timeout is None else int(timeout * 1000))
        if code is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code

    def _ended(self, timeout_ms: int | None) -> int | None:
        if self.returncode is None:
            poll = select.poll()
            poll.register(self._handle, select.POLLIN)
            if poll.poll(timeout_ms):
                self.returncode = -signal.SIGKILL if self._killed else 0
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        """Kill it (SIGKILL)."""
        if self.poll() is None:
            self._killed = True
            self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        """Close the descriptor."""
        if self._handle >= 0:
            os.close(self._handle)
