"""A running process that gets too little: file descriptors, memory, processor time; or one of its threads stands still.

    with few_files(pid): …          it can open no more than it has open: EMFILE
    with little_memory(pid): …      it can map no more than some MiB more: MemoryError, or the end of the process
    with starved(pid): …            nice 19, beside two busy processes per processor
    with thread_stopped(pid, r): …  one thread is stopped by ptrace; SIGSTOP would stop all of them

All take effect from outside, on Linux, as root, and are undone at the end of the block, if the process still exists.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

_MEMORY_MORE_BYTES = 4 << 20
_LOWEST_PRIORITY = 19
_SEIZE, _INTERRUPT, _DETACH = 0x4206, 0x4207, 17
_ALL_KINDS = 0x40000000
"""__WALL: wait for threads too."""
_GONE = (OSError, ProcessLookupError)


@contextlib.contextmanager
def few_files(pid: int) -> Iterator[None]:
    """Let a process open no file and no connection beyond those that it has."""
    with _limited(pid, resource.RLIMIT_NOFILE, max(_numbers(pid, "fd"), default=0) + 1):
        yield


@contextlib.contextmanager
def little_memory(pid: int) -> Iterator[None]:
    """Let a process map only a little more memory."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0])
    with _limited(pid, resource.RLIMIT_AS, pages * resource.getpagesize() + _MEMORY_MORE_BYTES):
        yield


@contextlib.contextmanager
def starved(pid: int) -> Iterator[None]:
    """Let a process have processor time only after others that are always busy."""
    before = os.getpriority(os.PRIO_PROCESS, pid)
    command = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1))]  # noqa: S603  # our own loop
    try:
        with contextlib.suppress(*_GONE):
            _set_priority(pid, _LOWEST_PRIORITY)
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()
        with contextlib.suppress(*_GONE):
            _set_priority(pid, before)


@contextlib.contextmanager
def thread_stopped(pid: int, random: Random) -> Iterator[int]:
    """Stop one thread, whichever; yields its id. The others go on until they wait for it.

    Raises:
        OSError: it cannot be traced.
    """
    thread = random.choice(sorted(_numbers(pid, "task")))
    _trace(_SEIZE, thread)
    try:
        _trace(_INTERRUPT, thread)
        os.waitpid(thread, _ALL_KINDS)
        yield thread
    finally:
        with contextlib.suppress(*_GONE):
            _trace(_DETACH, thread)


def _trace(request: int, thread: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(request, thread, None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace {request:#x} of thread {thread}: {os.strerror(number)}")


def _numbers(pid: int, directory: str) -> list[int]:
    try:
        return [int(path.name) for path in Path(f"/proc/{pid}/{directory}").iterdir()]
    except OSError:
        return []


def _set_priority(pid: int, priority: int) -> None:
    for thread in _numbers(pid, "task"):
        os.setpriority(os.PRIO_PROCESS, thread, priority)


@contextlib.contextmanager
def _limited(pid: int, what: int, soft: int) -> Iterator[None]:
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (soft, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(*_GONE):
            resource.prlimit(pid, what, before)
