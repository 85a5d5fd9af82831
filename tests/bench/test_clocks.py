"""CPU time of servers beside a load."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from bench.clocks import Clocks, CpuShares, Sample, shares_between
from bench.servers import cpu_seconds


def test_cpu_time_of_a_process_is_that_of_its_own_clock() -> None:
    assert 0 < cpu_seconds(os.getpid()) <= time.process_time()
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_seconds(1 << 22)


SAMPLES = [Sample(0, 0, 10), Sample(1, 2, 12), Sample(2, 2.5, 13), Sample(3, 3, 14), Sample(4, 5, 16)]


@pytest.mark.parametrize(
    ("begin", "end", "servers"),
    [(0.9, 3.1, 0.5), (0, 4, 1.25), (1, 2, 0.5), (1.1, 2.9, 1.25), (9, 10, 1.25)],
)
def test_share_is_of_the_samples_within_the_time_or_of_all(begin: float, end: float, servers: float) -> None:
    assert shares_between(SAMPLES, begin, end).servers == servers


def test_share_of_the_machine_is_of_the_same_samples() -> None:
    assert shares_between(SAMPLES, 1, 3) == CpuShares(0.5, 1.0)


def test_server_that_works_is_seen_as_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples at the moments of a clock of the test: two servers use 0.3 cores each, the generator one, others 0.2."""
    now = 0.0

    def work() -> None:
        nonlocal now
        for _ in range(100):
            now += 0.05
            clocks._sample()

    @contextmanager
    def instead_of_a_thread(_run: object) -> Iterator[None]:
        work()
        yield

    monkeypatch.setattr("bench.clocks.cpu_seconds", lambda _: 0.3 * now)
    monkeypatch.setattr("bench.clocks.machine_cpu_seconds", lambda: 1.8 * now)
    monkeypatch.setattr("bench.clocks.time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr("bench.clocks.in_background", instead_of_a_thread)
    clocks = Clocks([1, 2])
    with clocks:
        pass
    assert clocks.shares({"cpu_share": 1.0}, 4.0) == {"server_cpu": 0.6, "others_cpu": 0.2}
