"""Cells of the table, and how their figures are taken: seconds of the clock, and CPU seconds of all processes."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Cell:
    """One line of the table. `met` None: the line is only there to compare with."""

    name: str
    figure: str
    target: str = ""
    met: bool | None = None


@dataclass(frozen=True, slots=True)
class Took:
    """Several rounds: the shortest time, and the least CPU time of this process, its JVM and Spark's workers."""

    seconds: float
    cpu: float

    def rate(self, mb: float) -> str:
        """Return the figures for the table."""
        return f"{mb / self.seconds:,.0f} MB/s, {1000 * self.cpu / mb:.2f} CPU s/GB"


def best(rounds: int, work: Callable[[], object]) -> Took:
    """Run it several times; other programs on the machine lengthen the seconds, and hardly the CPU seconds."""
    return interleaved(rounds, {"": work})[""]


def interleaved(rounds: int, works: Mapping[str, Callable[[], object]]) -> dict[str, Took]:
    """Run several works in turn, `rounds` times each, so that a slow minute of the machine meets all of them."""
    took: dict[str, list[Took]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            began, spent = time.perf_counter(), tree_cpu()
            work()
            took[name].append(Took(time.perf_counter() - began, tree_cpu() - spent))
    return {name: Took(min(one.seconds for one in each), min(one.cpu for one in each)) for name, each in took.items()}


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends, such as Spark's workers: their CPU seconds count on."""
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError("this kernel has no subreapers")


def tree_cpu() -> float:
    """Return the CPU seconds of this process and all its descendants so far, ended ones included."""
    parents, ticks = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(path.parent.name)] = int(fields[1])
        ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    for pid in parents:
        line = [pid]
        while line[-1] in parents and line[-1] not in ours:
            line.append(parents[line[-1]])
        if line[-1] in ours:
            ours.update(line)
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")
