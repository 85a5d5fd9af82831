"""The failing device: files fail while a file of that name is there, pipes do not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROBE = """
import errno, os, sys
from pathlib import Path
import chaos.broken as broken
broken.break_calls(Path(sys.argv[1]))
fd, (_, pipe) = os.open(sys.argv[2], os.O_RDWR | os.O_CREAT), os.pipe()
calls = {
    "pwrite": lambda: os.pwrite(fd, b"x", 0), "write": lambda: os.write(fd, b"x"), "pread": lambda: os.pread(fd, 1, 0),
    "fdatasync": lambda: os.fdatasync(fd), "fsync": lambda: os.fsync(fd), "pipe": lambda: os.write(pipe, b"x"),
}
for name, call in calls.items():
    try:
        call()
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([], []),
        (["eio"], ["fdatasync EIO", "fsync EIO"]),
        (["enospc"], ["pwrite ENOSPC", "write ENOSPC"]),
        (["eread"], ["pread EIO"]),
        (["ewrite"], ["pwrite EIO"]),
        (["eread", "enospc"], ["pwrite ENOSPC", "write ENOSPC", "pread EIO"]),
    ],
)
@pytest.mark.system
def test_calls_that_fail(kinds: list[str], found: list[str], tmp_path: Path) -> None:
    faults = tmp_path / "faults"
    faults.mkdir()
    for kind in kinds:
        (faults / kind).touch()
    command = [sys.executable, "-c", _PROBE, str(faults), str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ})
    assert (done.returncode, done.stdout.splitlines()) == (0, found), done.stderr


@pytest.mark.system
def test_calendar_clock_is_ahead_and_the_monotonic_one_is_right(tmp_path: Path) -> None:
    probe = (
        "import sys, time\nfrom pathlib import Path\nimport chaos.broken as broken\n"
        "calendar, monotonic = time.time_ns, time.monotonic_ns\nbroken.break_calls(Path(sys.argv[1]))\n"
        "until = time.monotonic() + 60\n"
        "while time.time_ns() - calendar() > -3_500 * 10**9 and time.monotonic() < until: pass\n"
        "print(round((time.time_ns() - calendar()) / 1e9), round((time.monotonic_ns() - monotonic()) / 1e9))"
    )
    (tmp_path / "clock").write_text("-3600", encoding="ascii")
    done = subprocess.run([sys.executable, "-c", probe, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, ["-3600", "0"]), done.stderr
