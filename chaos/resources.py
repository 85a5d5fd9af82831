"""I15: a broker leaks no resources: open files and memory early in its life and at the end of the run.

Counted from /proc. Faults open files and fill buffers and caches for a while, so only growth far beyond what a short
run explains counts as a leak; the figures themselves are in the report. A broker has a file for each queue, those of
retry topics too, a connection for each client and proxy, and one for each 512 KiB of its log: up to 93 more than when
it began to listen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FILES_MORE_MAX = 120
"""Maximum growth of open files and connections."""
BYTES_MORE_MAX = 64 << 20
"""Maximum growth of resident memory."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resource usage of a process at one moment."""

    pid: int
    files: int
    rss_bytes: int


def usage(pid: int, proc: Path = Path("/proc")) -> Usage | None:
    """Return the current usage of a process; None if it does not exist."""
    try:
        files = sum(1 for _ in (proc / str(pid) / "fd").iterdir())
        lines = (proc / str(pid) / "status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    rss = next((line for line in lines if line.startswith("RssAnon:")), None)  # mapped files are no memory of it
    return Usage(pid, files, int(rss.split()[1]) * 1024) if rss is not None else None


@dataclass(frozen=True, slots=True)
class Growth:
    """Resource usage of a broker's process, early and at the end."""

    broker: str
    early: Usage
    end: Usage

    def report(self) -> dict[str, Any]:
        """Return the figures for the run's JSON."""
        return {"broker": self.broker, "early": asdict(self.early), "end": asdict(self.end)}


def leaks(found: Iterable[Growth]) -> list[str]:
    """Return violations of I15."""
    violations = []
    for growth in found:
        files = growth.end.files - growth.early.files
        grown = growth.end.rss_bytes - growth.early.rss_bytes
        if files > FILES_MORE_MAX:
            violations.append(f"I15: {growth.broker} has {files} more open files than early in its life")
        if grown > BYTES_MORE_MAX:
            violations.append(f"I15: {growth.broker} takes {grown >> 20} MiB more than early in its life")
    return violations
