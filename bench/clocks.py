"""CPU time beside a load: of the servers, and of everything that is neither server nor generator."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple, Self

from bench.background import in_background
from bench.servers import cpu_seconds, machine_cpu_seconds

_EVERY_S = 0.05
_END_S = 0.2
"""What a generator needs to end after its load, at most."""
_PART = 0.9


class Sample(NamedTuple):
    """CPU time at a moment, all in seconds."""

    at: float
    servers: float
    machine: float


class CpuShares(NamedTuple):
    """Cores in use between two moments."""

    servers: float
    machine: float


def shares_between(samples: Sequence[Sample], begin: float, end: float) -> CpuShares:
    """Return the cores in use between the samples from `begin` to `end`; between all if fewer than two lie there."""
    inside = [sample for sample in samples if begin <= sample.at <= end]
    first, *_, last = inside if len(inside) > 1 else samples
    passed = last.at - first.at
    return CpuShares((last.servers - first.servers) / passed, (last.machine - first.machine) / passed)


class Clocks:
    """Samples CPU times while a load runs: `with Clocks(pids) as clocks`.

    A generator needs a second to begin, in which a server rests and a JVM goes on compiling: the shares are those of
    the last nine tenths of the measured time.
    """

    def __init__(self, pids: Collection[int]) -> None:
        """`pids`: the servers' processes."""
        self._pids = pids
        self._samples: list[Sample] = []
        self._stack = contextlib.ExitStack()

    def _sample(self) -> None:
        with contextlib.suppress(OSError):  # A server that has ended: the load fails.
            servers = sum(map(cpu_seconds, self._pids))
            self._samples.append(Sample(time.perf_counter(), servers, machine_cpu_seconds()))

    def _run(self, is_over: threading.Event) -> None:
        while not is_over.wait(_EVERY_S):
            self._sample()

    def __enter__(self) -> Self:
        self._sample()
        self._stack.enter_context(in_background(self._run))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        self._sample()

    def shares(self, result: dict[str, Any], measured_s: float) -> dict[str, float]:
        """Return the shares of one core after the load. `result`: the generator's; `measured_s`: its measured time."""
        end = self._samples[-1].at - _END_S
        cores = shares_between(self._samples, end - _PART * measured_s, end)
        others = cores.machine - cores.servers - float(result["cpu_share"])
        return {"server_cpu": round(cores.servers, 3), "others_cpu": round(max(0.0, others), 3)}
