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
