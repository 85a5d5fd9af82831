"""`python -m chaos.broken DIRECTORY …`: tandemq with a device that fails while a file of that name is in the directory.

eio      syncing a file or a directory fails with an input/output error
enospc   writing fails for lack of space: the log, the queues, the index (pwrite), tables (write)
ewrite   writing the log, the queues and the index fails with an input/output error
eread    reading the log, the queues and the index (pread) fails with an input/output error
clock    the calendar clock is as many seconds ahead as the file says; the monotonic clock stays right

Pipes and sockets are not on the device and keep working.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tandemq.boundary import JobDone
from tandemq.cli.main import main as tandemq
from tandemq.errors import DiskFailed
from tandemq.real.file_syncs import FileSyncs
from tandemq.run.children import Child

_LOOK_SECONDS = 0.02
KINDS = ["eio", "enospc", "eread", "ewrite"]
"""Files that make calls fail."""


class _Device:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ahead_ns = 0
        self.fails = self._found()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            time.sleep(_LOOK_SECONDS)
            self.fails = self._found()
            self.ahead_ns = self._ahead()

    def _found(self) -> set[str]:
        return {name for name in KINDS if (self._directory / name).exists()}

    def _ahead(self) -> int:
        try:
            return int(float((self._directory / "clock").read_text(encoding="ascii") or "0") * 1e9)
        except FileNotFoundError:
            return 0

    def shifted(self, clock: Callable[[], int]) -> Callable[[], int]:
        """Return a calendar clock that goes wrong."""
        return lambda: clock() + self.ahead_ns

    def failing(self, call: Callable[..., Any], kind: str, code: int) -> Callable[..., Any]:
        def called(fd: int, *args: Any) -> Any:
            if kind in self.fails and _is_on_device(fd):
                raise OSError(code, os.strerror(code))
            return call(fd, *args)

        return called

    def failing_syncs(self, take_done: Callable[[FileSyncs], list[JobDone]]) -> Callable[[FileSyncs], list[JobDone]]:
        def taken(syncs: FileSyncs) -> list[JobDone]:
            done = take_done(syncs)
            if "eio" not in self.fails:
                return done
            return [JobDone(each.job, error=DiskFailed(os.strerror(errno.EIO))) for each in done]

        return taken


def _is_on_device(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def break_calls(directory: Path) -> None:
    """Let calls fail from now on while the files that name them are in the directory."""
    device = _Device(directory)
    os.fdatasync = device.failing(os.fdatasync, "eio", errno.EIO)
    os.fsync = device.failing(os.fsync, "eio", errno.EIO)
    os.pwrite = device.failing(device.failing(os.pwrite, "enospc", errno.ENOSPC), "ewrite", errno.EIO)
    os.pwritev = device.failing(device.failing(os.pwritev, "enospc", errno.ENOSPC), "ewrite", errno.EIO)
    os.write = device.failing(os.write, "enospc", errno.ENOSPC)
    os.pread = device.failing(os.pread, "eread", errno.EIO)
    time.time_ns = device.shifted(time.time_ns)
    FileSyncs.take_done = device.failing_syncs(FileSyncs.take_done)  # type: ignore[method-assign, assignment]


def main(*program: str) -> None:
    """Patch the calls, then run tandemq; so does `program`, with which its children start, the shards of a machine."""
    directory = sys.argv.pop(1)
    break_calls(Path(directory))
    Child.program = (*(program or ("-m", "chaos.broken")), directory)
    tandemq()


if __name__ == "__main__":
    main()
