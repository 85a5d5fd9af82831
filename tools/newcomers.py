"""A new user's first message, once for each kind of user: `python3 -m tools.newcomers`, or `make newcomers`.

    python   README.md           a root of Debian with Python and make: make setup, the program of the page
    debian   guides/install.md   the package, built here, in a root of Debian: messages, an upgrade, a removal
    java     guides/java.md      the program and the commands of the page, with Maven
    spark    guides/dataset.md   a root of Debian with Python: pip install '.[spark]', the first row of a store
    image    guides/install.md   the image, built here, in a root of its own

Prints a table: result, and seconds without those for making a root. What cannot run on this machine is in the table
with the reason. Exit status 1: a run failed; its output is in build/newcomers.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build" / "newcomers"
OUTCOME = ROOT / "build" / "durations" / "newcomers.json"
"""For tools/tested.py."""
PYTHON = ".venv/bin/python"
FIRST_MESSAGE_S = 300
"""Within this time a newcomer should have a message; longer is said, and is no failure."""
RUN_S_MAX = 1_800
_CLEAN = (sys.executable, "-m", "tools.clean_machine", "--")
_PYTEST = (PYTHON, "-m", "pytest", "-q", "-o", "faulthandler_timeout=0")
_STEP = re.compile(r"^ *(\d+) s  (.*)$", re.MULTILINE)


class Newcomer(NamedTuple):
    """A kind of user."""

    name: str
    page: str
    command: tuple[str, ...]
    programs: tuple[str, ...] = ()
    needs_root: bool = False

    @property
    def is_in_clean_root(self) -> bool:
        """Whether the time for making the root is no time of the user."""
        return self.command[: len(_CLEAN)] == _CLEAN


_SETUP = "make setup && .venv/bin/python -m pytest -q tests/blackbox/test_readme.py"
_DEBIAN = "tests/packaging/test_debian_package.py"
NEWCOMERS = (
    Newcomer("python", "README.md", (*_CLEAN, "sh", "-c", _SETUP), ("mmdebstrap", "git"), needs_root=True),
    Newcomer("debian", "docs/guides/install.md", (*_PYTEST, _DEBIAN, "-k", "installed_servers"),
             ("mmdebstrap", "cc", PYTHON), needs_root=True),
    Newcomer("java", "docs/guides/java.md", (*_PYTEST, "tests/interop/test_java_page.py"), ("java", "mvn", PYTHON)),
    Newcomer("spark", "docs/guides/dataset.md", (*_CLEAN, "python3", "tools/try_install.py", "--extra", "spark", "."),
             ("mmdebstrap", "git"), needs_root=True),
    Newcomer("image", "docs/guides/install.md", (*_PYTEST, "tests/packaging/test_image.py"),
             ("mmdebstrap", "buildah", "git", PYTHON), needs_root=True),
)  # fmt: skip


class Row(NamedTuple):
    """A row of the table."""

    name: str
    page: str
    result: str
    seconds: int | None = None


def obstacle(newcomer: Newcomer) -> str:
    """Return why it cannot run on this machine, "" if it can."""
    missing = [
        name for name in newcomer.programs if shutil.which(name if "/" not in name else str(ROOT / name)) is None
    ]
    if missing:
        hint = " (make setup)" if PYTHON in missing else ""
        return f"not installed: {', '.join(missing)}{hint}"
    return "needs the rights of root" if newcomer.needs_root and os.geteuid() != 0 else ""


def own_seconds(newcomer: Newcomer, printed: str, took_s: float) -> int:
    """Return the seconds of the user's own steps: from the command in the root to its end."""
    steps = [(int(second), text) for second, text in _STEP.findall(printed)]
    ends = [second for second, text in steps if text.startswith("exit status ")]
    first = newcomer.command[len(_CLEAN)] if newcomer.is_in_clean_root else ""
    begins = [second for second, text in steps if text.startswith(f"{first} ")]
    return ends[-1] - begins[0] if first and begins and ends else round(took_s)


def meet(newcomer: Newcomer) -> Row:
    """Run one and return its row; the output is in a file of `LOGS`."""
    name, page = newcomer.name, newcomer.page
    reason = obstacle(newcomer)
    if reason:
        return Row(name, page, f"cannot run here: {reason}")
    print(f"{name}: {' '.join(newcomer.command[-4:])} …", file=sys.stderr, flush=True)
    begun = time.monotonic()
    log = LOGS / f"{name}.log"
    with log.open("wb") as out:
        try:
            status = subprocess.run(
                newcomer.command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                timeout=RUN_S_MAX,
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
    seconds = own_seconds(newcomer, log.read_text(encoding="utf-8", errors="replace"), time.monotonic() - begun)
    if status == 0:
        return Row(name, page, "works" if seconds <= FIRST_MESSAGE_S else "works, after five minutes", seconds)
    why = f"exit status {status}" if status > 0 else f"no end after {RUN_S_MAX} s" if status == -1 else "killed"
    return Row(name, page, f"FAILED: {why}; {log.relative_to(ROOT)}", seconds)


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    lines = [("newcomer", "page", "seconds", "result")]
    lines += [(row.name, row.page, "–" if row.seconds is None else str(row.seconds), row.result) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, page, seconds, result in lines:
        print(f"{name:{widths[0]}}  {page:{widths[1]}}  {seconds:>{widths[2]}}  {result}")


def main(words: Sequence[str] | None = None) -> int:
    """Run all, or those named; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python3 -m tools.newcomers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = [newcomer.name for newcomer in NEWCOMERS]
    parser.add_argument("name", nargs="*", help=f"{', '.join(known)}; default: all")
    parser.add_argument("--json", action="store_true", help="print an array of objects")
    options = parser.parse_args(words)
    unknown = [name for name in options.name if name not in known]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(known)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    chosen = [newcomer for newcomer in NEWCOMERS if not options.name or newcomer.name in options.name]
    begun = time.monotonic()
    rows = [meet(newcomer) for newcomer in chosen]
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
    else:
        show(rows)
    failed = sum(row.result.startswith("FAILED") for row in rows)
    if not options.name:
        passed = sum(row.result.startswith("works") for row in rows)
        outcome = {"passed": passed, "failed": failed, "seconds": round(time.monotonic() - begun)}
        OUTCOME.parent.mkdir(parents=True, exist_ok=True)
        OUTCOME.write_text(json.dumps({**outcome, "date": time.strftime("%Y-%m-%d", time.gmtime())}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
