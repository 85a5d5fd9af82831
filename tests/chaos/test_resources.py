"""Open files and memory of a process, and the growth that counts as a leak."""

import os
from pathlib import Path

from chaos.resources import BYTES_MORE_MAX, FILES_MORE_MAX, Growth, Usage, leaks, usage

EARLY = Usage(7, 20, 50 << 20)


def test_open_file_is_counted(tmp_path: Path) -> None:
    before = usage(os.getpid())
    with (tmp_path / "file").open("w"):
        after = usage(os.getpid())
    assert before is not None
    assert after is not None
    assert after.files == before.files + 1
    assert after.rss_bytes > 1 << 20


def test_missing_process_has_no_usage() -> None:
    assert usage(0) is None


def test_growth_beyond_the_bounds_is_a_violation() -> None:
    within = Usage(7, EARLY.files + FILES_MORE_MAX, EARLY.rss_bytes + BYTES_MORE_MAX)
    beyond = Usage(7, within.files + 1, within.rss_bytes + 1)
    assert leaks([Growth("a", EARLY, within)]) == []
    assert leaks([Growth("a", EARLY, beyond)]) == [
        "I15: a has 121 more open files than early in its life",
        "I15: a takes 64 MiB more than early in its life",
    ]


def test_report_has_both_moments() -> None:
    report = Growth("a", EARLY, EARLY).report()
    assert report["early"] == report["end"] == {"pid": 7, "files": 20, "rss_bytes": 50 << 20}
