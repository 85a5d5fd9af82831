"""A driver that runs jobs on a cluster, one after the other in one session.

python -m tests.spark.on_cluster MASTER STORE TWIN LAKE      archive, then audit; tells each commit and each outcome
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

from tandemq.spark.archive import Archive, Archived, ArchiveOptions
from tandemq.spark.audit import audit
from tandemq.spark.session import open_session
from tests.spark.short import SHORT

BATCH_BYTES = 60_000
RANGE_BYTES = 1 << 16


def tell(what: str, **facts: object) -> None:
    """One line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


def main(master: str, store: str, twin: str, lake: str) -> None:
    """Archive the store, and compare it with its twin."""
    settings = SHORT | {
        "spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1", "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }  # fmt: skip
    session, _ = open_session("on a cluster", master=master, settings=settings)
    options = ArchiveOptions(store=Path(store), lake=Path(lake), broker_name="broker-a", bytes_max=BATCH_BYTES)

    def committed(done: Archived) -> None:
        tell("commit", rows=done.rows)

    done = Archive(options, progress=committed).run(session)
    tell("archived", rows=done.rows, commits=done.commits)
    found = audit(session, Path(store), Path(twin), range_bytes=RANGE_BYTES)
    tell(
        "audited", **{name: value for name, value in asdict(found).items() if name in ("counts", "bytes_equal", "end")}
    )
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
