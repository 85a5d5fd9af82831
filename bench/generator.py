"""Limits of the load generator itself: 16 × 32 against a server that stores nothing.

`python -m bench.generator` prints them; `make bench` records them beside the figures, since no broker can be measured
as faster than this.
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from bench.loads import run_load
from tests.interop.java import REPOSITORY

_ECHO = REPOSITORY / "tests" / "unit" / "load" / "echo_server.py"


def ceiling(connections: int = 16, window: int = 32, seconds: float = 2.0) -> dict[str, Any]:
    """Return messages per second and the share of a core, for sends of 128 B that are answered at once."""
    with subprocess.Popen([sys.executable, str(_ECHO)], stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            address = f"127.0.0.1:{echo.stdout.readline().strip()}"
            result = run_load("produce", address, connections=connections, window=window, seconds=seconds, warmup=0.5)
        finally:
            echo.kill()
    return {key: result[key] for key in ("messages_per_s", "cpu_share")}


if __name__ == "__main__":
    for shape in ((1, 1), (64, 1), (1, 32), (16, 32)):
        found = ceiling(*shape)
        print(f"{shape[0]}x{shape[1]}: {found['messages_per_s']:,.0f} msg/s with {found['cpu_share']:.0%} of a core")
