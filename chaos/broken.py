"""`python -m chaos.broken DIRECTORY …`: tandemq with a device that fails while a file of that name is in the directory.

eio      fdatasync fails with an input/output error
enospc   writing fails for want of space
"""

from __future__ import annotations

import errno
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_LOOK_SECONDS = 0.02


class _Device:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.fails: set[str] = set()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.fails = {name for name in ("eio", "enospc") if (self._directory / name).exists()}
            time.sleep(_LOOK_SECONDS)

    def failing(self, call: Callable[..., Any], kind: str, code: int) -> Callable[..., Any]:
        def called(*args: Any) -> Any:
            if kind in self.fails:
                raise OSError(code, os.strerror(code))
            return call(*args)

        return called


def main() -> None:
    """Break the calls, then be tandemq."""
    device = _Device(Path(sys.argv.pop(1)))
    os.fdatasync = device.failing(os.fdatasync, "eio", errno.EIO)
    os.pwrite = device.failing(os.pwrite, "enospc", errno.ENOSPC)
    from tandemq.cli.main import main as tandemq  # noqa: PLC0415  # after the calls are broken

    tandemq()


if __name__ == "__main__":
    main()
