"""A driver of its own that archives a log, and dies when it is told to.

    python -m tests.spark.archiver STORE LAKE [COMMIT]

With COMMIT it kills itself and its JVM with SIGKILL between its own commit of that number (from 0) to the table and
Spark's. Without, it prints a line when it is ready and archives until the log's end.
"""

import os
import signal
import sys
from pathlib import Path

from tandemq.spark.archive import Archive, ArchiveOptions
from tandemq.spark.session import open_session

BATCH_BYTES = 20_000


def main(store: str, lake: str, fatal: int | None) -> None:
    """Archive, and die after commit number `fatal` to the table."""
    commits = iter(range(1 << 30))

    def maybe_die(_batch: int) -> None:
        if next(commits) == fatal:
            os.killpg(os.getpgid(0), signal.SIGKILL)

    session, _ = open_session("archiver", master="local[2]", settings={"spark.driver.memory": "512m"})
    options = ArchiveOptions(store=Path(store), lake=Path(lake), bytes_max=BATCH_BYTES)
    job = Archive(options, after_commit=maybe_die)
    print("ready", flush=True)
    job.run(session)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else None)
