"""Allocator settings: blocks of 1 MiB allocated in every turn stay in the process."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from tandemq.real.memory import keep_blocks

kept = keep_blocks() if sys.argv[1] == "kept" else True

def faults(turns):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(turns):
        blocks = [b"x" * (1 << 20) for _ in range(6)]
        del blocks
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

faults(3)
print(kept, faults(50))
"""


def faults_of(how: str) -> int:
    """Return the number of page faults for 300 blocks."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, text=True, check=True)
    kept, faults = done.stdout.split()
    assert kept == "True"
    return int(faults)


@pytest.mark.system
def test_kept_blocks_cost_no_page_faults() -> None:
    assert faults_of("kept") < 100
    assert faults_of("as it is") > 2_000, (
        "the C library keeps the blocks by default now: real/memory.py is no longer needed"
    )
