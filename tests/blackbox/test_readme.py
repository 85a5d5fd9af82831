"""The program in README.md, run as pasted against a cluster that `tandemq up` started."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_ADDRESS = "127.0.0.1:9876"
PROGRAM_LINES_MAX = 24


def program() -> str:
    """Return the one Python program of README.md."""
    (found,) = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    assert isinstance(found, str)
    return found


@pytest.fixture
def name_server(tmp_path: Path) -> Iterator[str]:
    """Yield the name server address of a cluster that `tandemq up` started on free ports."""
    words = ["up", "--port", "0", "--data", str(tmp_path / "data"), "--json"]
    with subprocess.Popen([sys.executable, "-m", "tandemq", *words], stdout=subprocess.PIPE, text=True) as cluster:
        try:
            assert cluster.stdout is not None
            yield json.loads(cluster.stdout.readline())["nameServer"]
            cluster.terminate()
            assert cluster.wait(120) == 0
        finally:
            cluster.kill()


def run(name_server: str, directory: Path) -> list[str]:
    """Run the program, its address replaced, and return the lines it printed."""
    file = directory / "orders.py"
    assert program().count(DEFAULT_ADDRESS) == 1
    file.write_text(program().replace(DEFAULT_ADDRESS, name_server), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", file], capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_program_of_readme_sends_and_consumes(name_server: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second run continues after the offsets of the first
        lines = run(name_server, tmp_path)
        assert [line.split()[:2] for line in lines[:10]] == [["sent", "SEND_OK"]] * 10
        received = re.findall(r"^received order (\d)", "\n".join(lines[10:]), re.MULTILINE)
        assert sorted(received) == list("0123456789")


def test_program_of_readme_is_short_and_readme_too() -> None:
    assert len(program().splitlines()) <= PROGRAM_LINES_MAX
    assert len(README.splitlines()) <= 120
    assert "make demo" in README
    assert "make test" in README
