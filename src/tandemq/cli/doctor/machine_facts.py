"""Facts of this machine, as far as the system tells them.

Source: proc(5), getrlimit(2), adjtimex(2).
"""

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 62
_CLOCK_ERROR = 5
"""TIME_ERROR: the clock is not synchronised."""
_TIMEX_BYTES = 512
"""More than `struct timex` has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Numbers are None where the system has none."""

    nofile_soft: int
    """Limits of open files of this process."""
    nofile_hard: int
    cores: int
    """Cores that this process may use."""
    files_open: int | None
    """Open files of the whole system, and their limit."""
    files_max: int | None
    map_count_max: int | None
    backlog_max: int | None
    """net.core.somaxconn."""
    overcommit: int | None
    """vm.overcommit_memory: 2 means that memory is reserved strictly."""
    memory_kib: int | None
    memory_free_kib: int | None
    swap_kib: int
    swap_used_kib: int
    huge_pages: str
    """The choice of transparent huge pages; "" if unknown."""
    is_clock_synchronised: bool | None
    python: str
    engine: str
    """Name of the engine in use: compiled or Python."""
    engine_choice: str
    """TANDEMQ_ENGINE."""


def read_machine(read: Callable[[str], str] | None = None) -> MachineFacts:
    """Return the facts of this machine; `read` returns the content of a file, "" if it cannot be read."""
    from tandemq.engine import NAME  # noqa: PLC0415  # not for --help

    read = read or _read
    soft, hard = (UNLIMITED if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(resource.RLIMIT_NOFILE))
    files = [int(word) for word in read("/proc/sys/fs/file-nr").split()]
    memory = {line.partition(":")[0]: _number(line.partition(":")[2]) for line in read("/proc/meminfo").splitlines()}
    swap = memory.get("SwapTotal") or 0
    pages = read("/sys/kernel/mm/transparent_hugepage/enabled")
    return MachineFacts(
        nofile_soft=soft,
        nofile_hard=hard,
        cores=len(os.sched_getaffinity(0)),
        files_open=files[0] if files else None,
        files_max=files[2] if files else None,
        map_count_max=_number(read("/proc/sys/vm/max_map_count")),
        backlog_max=_number(read("/proc/sys/net/core/somaxconn")),
        overcommit=_number(read("/proc/sys/vm/overcommit_memory")),
        memory_kib=memory.get("MemTotal"),
        memory_free_kib=memory.get("MemAvailable"),
        swap_kib=swap,
        swap_used_kib=swap - (memory.get("SwapFree") or 0),
        huge_pages=pages.partition("[")[2].partition("]")[0],
        is_clock_synchronised=_is_clock_synchronised(),
        python=f"{platform.python_implementation()} {platform.python_version()} for {platform.machine()}, {sys.prefix}",
        engine=NAME,
        engine_choice=os.environ.get("TANDEMQ_ENGINE", ""),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(text: str) -> int | None:
    words = text.split()
    return int(words[0]) if words and words[0].isdecimal() else None


def _is_clock_synchronised() -> bool | None:
    """Return whether the kernel's clock is synchronised with others; None if the system does not tell."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _CLOCK_ERROR
