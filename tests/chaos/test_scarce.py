"""What is taken from a running process from outside, and given back: files, memory, processor time, one thread."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from chaos.scarce import few_files, little_memory, starved, thread_stopped

pytestmark = pytest.mark.system
_PROBE = """
import sys, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
kept = []
for line in sys.stdin:
    try:
        kept.append(open("/dev/null") if line == "open\\n" else bytearray(64 << 20))
        print("done", flush=True)
    except (OSError, MemoryError) as error:
        print(type(error).__name__, getattr(error, "errno", ""), flush=True)
"""


class Probe:
    """A process that opens files and takes memory on request."""

    def __init__(self) -> None:
        """Start it."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.ask("open")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def ask(self, what: str) -> str:
        """Have it open a file or take memory; return its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()


@pytest.fixture
def probe() -> Iterator[Probe]:
    running = Probe()
    yield running
    running.process.communicate()


def test_no_file_can_be_opened_for_a_while(probe: Probe) -> None:
    with few_files(probe.pid):
        assert probe.ask("open") == "OSError 24"
    assert probe.ask("open") == "done"


def test_no_memory_can_be_taken_for_a_while(probe: Probe) -> None:
    with little_memory(probe.pid):
        assert probe.ask("memory") == "MemoryError"
    assert probe.ask("memory") == "done"
    assert resource.prlimit(probe.pid, resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY


def test_starved_process_has_the_lowest_priority_for_a_while(probe: Probe) -> None:
    before = os.getpriority(os.PRIO_PROCESS, probe.pid)
    with starved(probe.pid):
        assert os.getpriority(os.PRIO_PROCESS, probe.pid) == 19
        assert probe.ask("open") == "done"
    assert os.getpriority(os.PRIO_PROCESS, probe.pid) == before


def test_one_thread_is_stopped_and_the_others_run(probe: Probe) -> None:
    threads = {int(path.name) for path in Path(f"/proc/{probe.pid}/task").iterdir()}
    assert len(threads) == 2
    seen = set()
    for seed in range(8):
        with thread_stopped(probe.pid, Random(seed)) as stopped:
            states = {thread: _state(probe.pid, thread) for thread in threads}
            assert states.pop(stopped) == "t"
            assert "t" not in states.values()
        seen.add(stopped)
        assert probe.ask("open") == "done"
    assert seen == threads


def _state(pid: int, thread: int) -> str:
    return Path(f"/proc/{pid}/task/{thread}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
