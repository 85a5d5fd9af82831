"""Limits of the load generator itself: varied messages against a server that stores nothing.

`python -m bench.generator` prints them; `make bench` records them beside the figures, since no broker can be measured
as faster than this. The server is a Python process that reads lengths only, and mostly is slower than the generator:
`limit` is the rate at which the generator would need a whole core.
"""

from __future__ import annotations

import subprocess
import sys

from bench.loads import run_load
from bench.matrix import SHAPES
from tests.interop.java import REPOSITORY

_ECHO = REPOSITORY / "tests" / "unit" / "load" / "echo_server.py"


def ceilings(seconds: float = 1.5) -> dict[str, dict[str, float]]:
    """Return rate, share of a core and limit by shape, for messages that are answered at once."""
    return {shape: _ceiling(*SHAPES[shape], seconds) for shape in ("1x1", "64x1", "1x32", "16x32", "1000x1")}


def _ceiling(connections: int, window: int, seconds: float) -> dict[str, float]:
    with subprocess.Popen([sys.executable, str(_ECHO)], stdout=subprocess.PIPE, text=True) as echo:
        try:
            assert echo.stdout is not None
            address = f"127.0.0.1:{echo.stdout.readline().strip()}"
            result = run_load(
                "produce",
                address,
                lengths="varied",
                connections=connections,
                window=window,
                seconds=seconds,
                warmup=0.5,
            )
        finally:
            echo.kill()
    rate, share = float(result["messages_per_s"]), float(result["cpu_share"])
    return {"messages_per_s": rate, "cpu_share": share, "limit": round(rate / max(share, 0.01))}


if __name__ == "__main__":
    for shape, found in ceilings().items():
        print(
            f"{shape}: {found['messages_per_s']:,.0f} msg/s with {found['cpu_share']:.0%} of a core, "
            f"so at most {found['limit']:,.0f}"
        )
