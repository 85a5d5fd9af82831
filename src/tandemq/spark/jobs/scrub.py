"""Scrub: reads every record of a log on all workers and verifies its checksum.

Source: docs/guides/pipeline.md, "Scrub".
"""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from tandemq.spark.jobs.tasks import (
    LOST,
    ProgressCallback,
    RangeJob,
    Result,
    gaps_lost,
    merge_losses,
    no_progress,
    read_range,
    run_tasks,
)
from tandemq.spark.runtime.location import Place
from tandemq.spark.sources.log.files import LogFileReader, LogFiles, open_log
from tandemq.spark.sources.log.gaps import log_bounds
from tandemq.spark.sources.log.ranges import RANGE_BYTES, REMOVED, DecodeOptions, LogRange, split

TAIL_BYTES = 1 << 20
COLUMNS = ("commitLogOffset", "size", "topic", "queueId", "queueOffset", "verdict")


@dataclass(slots=True)
class ScrubResult:
    """Result of a scrub. `damages`: commitLogOffset, size, verdict; for single records also topic, queueId,
    queueOffset."""

    start: int
    end: int
    torn_tail: int
    """Bytes after the last sound record that are not zero: a broker truncates them at start."""
    records: int = 0
    removed: int = 0
    """Number of records whose content was removed; sound, and not in `records`."""
    damages: list[Result] = field(default_factory=list)
    lost: list[Result] = field(default_factory=list)
    """start, end, why: log offsets of missing files, or gone when the scrub read them."""


def scrub(
    spark: SparkSession,
    store: Place,
    *,
    range_bytes: int = RANGE_BYTES,
    state: Path | None = None,
    progress: ProgressCallback = no_progress,
) -> ScrubResult:
    """Verify a log: a store directory, or a directory of log files, also at a URL.

    Raises:
        ConfigError: the URL is not supported. Also as `open_log`, `run_tasks` and `read_range`.
    """
    files = open_log(store)
    end, gaps = log_bounds(files)
    with LogFileReader(files) as read:
        found = ScrubResult(files.start, end, torn_tail(read, end))
    job = RangeJob(f"scrub 2 {files.directory} {range_bytes}", partial(scrub_range, files), is_check=True)
    results = run_tasks(spark, split(files, files.start, end, range_bytes), job, state=state, progress=progress)
    found.lost = merge_losses([*results, gaps_lost(gaps)])
    for result in results:
        found.records += result["records"]
        found.removed += result["removed"]
        found.damages += result["damages"]
    return found


def scrub_range(files: LogFiles, wanted: LogRange) -> Result:
    """Verify one range; runs in a worker."""
    records = removed = 0
    damages: list[Result] = []
    lost: list[Result] = []
    for rows in read_range(files, DecodeOptions(COLUMNS, inflates=False, keeps_damage=True), wanted, lost):
        verdicts = rows.verdicts or []
        gone = verdicts.count(REMOVED)
        wrong = [index for index, verdict in enumerate(verdicts) if verdict not in (None, REMOVED)]
        records += len(rows.offsets) - len(wrong) - gone
        removed += gone
        for index in wrong:
            row = {name: rows.columns[name][index] for name in COLUMNS}
            damages.append({name: value for name, value in row.items() if value is not None})
    return {"records": records, "removed": removed, "damages": damages, LOST: lost}


def torn_tail(read: LogFileReader, end: int) -> int:
    """Return the number of bytes from the end of the log up to the last one that is not zero."""
    files = read.files
    if end >= files.capacity_end:
        return 0
    position, written_end = end, end
    stop = read.data_end(end - end % files.segment_bytes)
    while position < stop:
        data = read(position, min(TAIL_BYTES, stop - position))
        if not data:
            break
        written = len(data.rstrip(b"\0"))
        written_end = position + written if written else written_end
        position += len(data)
    return written_end - end
