"""A driver process that archives a log, and kills itself as requested.

    python -m tests.spark.archiver STORE LAKE [commit NUMBER | files NUMBER | time SECONDS]

With `commit` it kills itself and its JVM with SIGKILL between its own commit of that number (from 0) to the table and
Spark's; with `files` before its own commit, when the files are written; with `time` that many seconds after it was
ready. Otherwise it archives to the end of the log. LAKE may also be the name of an Iceberg table.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT

BATCH_BYTES = 20_000


def die(*_: object) -> None:
    """End at once, with the JVM and Spark's Python processes."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(store: str, lake: str, when: str = "", number: str = "0") -> None:
    """Archive, and die as requested."""
    commits = iter(range(1 << 30))

    def maybe_die(_batch: int) -> None:
        if when == "commit" and next(commits) == int(number):
            die()

    session, _ = open_session("archiver", master="local[2]", settings=SHORT | {"spark.driver.memory": "512m"})
    options = ArchiveOptions(store=Path(store), lake=lake, bytes_max=BATCH_BYTES)
    job = Archive(options, after_commit=maybe_die)
    if when == "files":
        add = job._add

        def die_or_add(rows: Sequence[Any], marks: dict[str, int]) -> None:
            if next(commits) == int(number):
                die()
            add(rows, marks)

        job._add = die_or_add  # type: ignore[method-assign]
    if when == "time":
        signal.signal(signal.SIGALRM, die)
        signal.setitimer(signal.ITIMER_REAL, float(number))
    job.run(session)


if __name__ == "__main__":
    main(*sys.argv[1:])
