"""A driver that runs jobs on a cluster, one after the other in one session.

    python -m tests.spark.on_cluster MASTER STORE REPLICA LAKE MADE NAME-SERVERS

Runs archive, audit, scrub, stats, report, rebuild, replay to a store and to a topic; prints each commit and each
result.
"""

import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from tandemq.spark.jobs.archive import Archive, ArchiveOptions, ArchiveResult
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.rebuild import RebuildOptions, rebuild
from tandemq.spark.jobs.replay import replay_to_store, replay_to_topic
from tandemq.spark.jobs.report import report_page
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.jobs.stats import gather
from tandemq.spark.runtime.session import open_session
from tests.spark.short import SHORT

BATCH_BYTES = 120_000
RANGE_BYTES = 1 << 17
SEGMENT_BYTES = 1 << 18
"""Size of the log files of the store."""


def report(what: str, **facts: object) -> None:
    """Print one line of JSON."""
    print(json.dumps({"what": what} | facts), flush=True)


TOPIC = "ReplayResult"


def main(master: str, store: str, replica: str, lake: str, made: str, name_servers: str) -> None:
    """Run every Spark job on a store and its replica; results are written below `made`, or to a topic."""
    settings = SHORT | {
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    session, _ = open_session("on a cluster", master=master, settings=settings)
    options = ArchiveOptions(store=Path(store), lake=Path(lake), broker_name="broker-a", bytes_max=BATCH_BYTES)

    def committed(done: ArchiveResult) -> None:
        report("commit", rows=done.rows)

    done = Archive(options, progress=committed).run(session)
    report("archived", rows=done.rows, commits=done.commits)
    found = audit(session, Path(store), Path(replica), range_bytes=RANGE_BYTES)
    report(
        "audited", **{name: value for name, value in asdict(found).items() if name in ("counts", "bytes_equal", "end")}
    )
    scrubbed = scrub(session, Path(replica), range_bytes=RANGE_BYTES)
    report("scrubbed", records=scrubbed.records, damages=[one["commitLogOffset"] for one in scrubbed.damages])
    for source in (store, lake):
        stats = gather(session, Path(source), range_bytes=RANGE_BYTES)
        report("counted", messages={row["topic"]: row["messages"] for row in stats.topics})
        Path(made, "report.html").write_text(report_page(source, stats, [found], made=datetime.now(UTC)))
    built = rebuild(
        session,
        RebuildOptions(
            store=Path(store),
            output=Path(made) / "rebuilt",
            queue_file_bytes=4_000,
            slots=100,
            entries=2_000,
            range_bytes=RANGE_BYTES,
        ),
    )
    report("rebuilt", queues=built.queues, entries=built.entries)
    laid = replay_to_store(session, Path(lake), "broker-a", Path(made) / "store", segment_bytes=SEGMENT_BYTES)
    report("replayed", rows=laid.rows, end=laid.log_end)
    sent = replay_to_topic(session, Path(lake), {"nameServer": name_servers, "topic": TOPIC}, where="topic = 'T1'")
    report("sent", rows=sent.rows)
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
