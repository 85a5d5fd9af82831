"""The pipeline's formats under newer Pythons, those of releases of Debian, in a root of its own."""

import re
import subprocess
import sys

import pytest

from tools.clean_machine import ROOT

SUITES = {"3.13": "trixie", "3.14": "forky"}
NOT_SO_OLD = 'Acquire::Check-Valid-Until "false"'
"""Mirrors may have a list of a release in preparation that has expired."""
CHOSEN = "test_source or test_stream or test_sink or test_logsource or test_topic_tables"
COMMAND = f"""set -e
make setup-spark
.venv/bin/python --version
.venv/bin/tandemq --version
.venv/bin/python -m pytest tests/spark -q -m 'not slow' -k '{CHOSEN}'
"""


@pytest.mark.slow
@pytest.mark.timeout(5_400)
@pytest.mark.parametrize("version", SUITES)
def test_formats_work_under_newer_pythons(version: str) -> None:
    directory = ROOT / "build" / "pythons"
    directory.mkdir(parents=True, exist_ok=True)
    options = ["--suite", SUITES[version], "--apt-option", NOT_SO_OLD, "--directory", str(directory)]
    for package in ("gcc", "libc6-dev", "python3-dev"):
        options += ["--package", package]
    words = [sys.executable, "-m", "tools.clean_machine", *options, "--", "sh", "-c", COMMAND]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-8_000:]}\n{done.stderr[-4_000:]}"
    assert f"\nPython {version}." in done.stdout
    assert "compiled engine" in done.stdout
    passed = re.search(r"\n(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > 50
