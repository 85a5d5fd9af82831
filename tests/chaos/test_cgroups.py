"""Limits of processor time and memory by control groups, where this machine lets us make them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos import cgroups
from chaos.cgroups import CPU, MEMORY, cpu_quota, limit_refusal, memory_limit
from tandemq.errors import LocalError

_PROBE = """
import sys
kept = []
for line in sys.stdin:
    kept.append(bytearray(int(line)))
    kept[-1][::4096] = b"1" * len(kept[-1][::4096])
    print("done", flush=True)
"""
_BYTES = 64 << 20


@pytest.fixture
def probe() -> Iterator[subprocess.Popen[str]]:
    """A process that allocates as much memory as requested."""
    running = subprocess.Popen([sys.executable, "-c", _PROBE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert ask(running, 1) == "done"
    yield running
    running.kill()
    running.communicate()


def ask(probe: subprocess.Popen[str], size: int) -> str:
    assert probe.stdin is not None
    assert probe.stdout is not None
    probe.stdin.write(f"{size}\n")
    probe.stdin.flush()
    return probe.stdout.readline().strip()


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")


@pytest.mark.system
def test_limited_process_has_a_group_of_its_own_for_a_while(probe: subprocess.Popen[str]) -> None:
    before = group_of(probe.pid)
    for controller, limited in ((CPU, cpu_quota(probe.pid, 0.2)), (MEMORY, memory_limit(probe.pid, _BYTES))):
        if limit_refusal(controller):
            with pytest.raises((LocalError, OSError)), limited:
                pass
        else:
            with limited:
                assert f"tandemq-chaos-{os.getpid()}-" in group_of(probe.pid)
                assert ask(probe, 1) == "done"
        assert group_of(probe.pid) == before
    assert ask(probe, _BYTES) == "done"


@pytest.mark.system
def test_process_that_takes_more_memory_than_its_limit_is_killed(probe: subprocess.Popen[str]) -> None:
    if limit_refusal(MEMORY):
        with pytest.raises((LocalError, OSError)), memory_limit(probe.pid, _BYTES // 4):
            pass
        return
    with memory_limit(probe.pid, _BYTES // 4):
        assert ask(probe, _BYTES) == ""
    assert probe.wait() == -signal.SIGKILL


def _as_v2(root: Path) -> Path:
    """Make a directory that looks like the groups of version 2; return that of this process."""
    own = root / "own"
    own.mkdir()
    (own / "cgroup.subtree_control").write_text("")
    return own


def test_machine_without_control_groups_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "_ROOT", tmp_path)
    monkeypatch.setattr(cgroups, "_parent", lambda _controller, _pid: tmp_path / "missing")
    assert "missing does not exist" in limit_refusal(CPU)
    own = _as_v2(tmp_path)
    monkeypatch.setattr(cgroups, "_parent", lambda _controller, _pid: own)
    assert "cannot be written" in limit_refusal(MEMORY) or "No such file" in limit_refusal(MEMORY)
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
