"""CPU time of servers beside a load."""

import os
import time

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


def test_server_that_works_is_seen_as_busy() -> None:
    """This process is the server."""
    with Clocks([os.getpid()]) as clocks:
        begun, used = time.perf_counter(), time.process_time()
        while time.process_time() - used < 0.6:
            pass
        worked = time.perf_counter() - begun
    shares = clocks.shares({"cpu_share": 0.0}, worked)
    assert shares["server_cpu"] > 0.2 * 0.6 / worked
    assert shares["others_cpu"] >= 0
