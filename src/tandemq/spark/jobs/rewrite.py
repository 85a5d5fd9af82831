"""Rewriting of a lake: rows of a table are deleted or replaced, file by file, in one commit.

    file ─► rows that a condition matches ─► none   the file stays
                                             all    the file leaves the table, unless its rows are replaced
                                             some   a new file takes its place

Files are read and written by tasks, a few thousand rows at a time. The commit has the names only, and fails if a file
has left the table meanwhile; of a local lake the lock of compactions is held from the first read on. Rows that an
archive adds meanwhile are in files of their own and not affected. Marks stay: an archive or collect continues where it
was.

Source: docs/guides/dataset.md, "Remove messages", "Retention".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tandemq.spark.jobs.tasks import ProgressCallback, RangeJob, Result, no_progress, run_tasks
from tandemq.spark.lake.delta import DataFile, Lake
from tandemq.spark.lake.files import LakeFile, lake_files, open_parquet
from tandemq.spark.runtime.location import Location
from tandemq.spark.sources.log.parquet_writer import lake_schema, write_file

BATCH_ROWS = 4096
DAMAGE = "(damage)"
"""Topic of rows without one."""


class Change(Protocol):
    """A change of the rows of a lake; serialized to tasks."""

    @property
    def columns(self) -> list[str]:
        """Columns from which `matches` decides."""

    def matches(self, batch: Any) -> Any:
        """Return which rows of a batch change, as a boolean Arrow array without NULL."""

    def replaced(self, batch: Any) -> Any:
        """Return the batch (of `lake_schema`) that takes the place of matched rows; without rows to delete them."""


@dataclass(slots=True)
class Rewrite:
    """Result of a rewriting: numbers of files and rows."""

    files: int = 0
    """Files that were read."""
    files_removed: int = 0
    files_rewritten: int = 0
    rows: int = 0
    """Rows that matched."""
    bytes: int = 0
    """Bytes of their records."""
    topics: dict[str, int] = field(default_factory=dict)
    """Rows that matched, by topic."""
    version: int | None = None
    """Version of the table with the change; None if nothing changed."""


def rewrite(
    spark: SparkSession,
    table: Lake,
    change: Change,
    *,
    files: Callable[[], list[str]] | None = None,
    dry_run: bool = False,
    progress: ProgressCallback = no_progress,
) -> Rewrite:
    """Change the rows of a lake.

    Args:
        files: returns the files that may have such rows; by default all of the table.
        dry_run: only count them.
    Raises:
        StoreLocked: another process compacts, vacuums or rewrites the lake; nothing was changed.
        LocalError: the commit failed, or the storage refuses access or does not respond; nothing was changed.
    """
    with table.locked():
        chosen = None if files is None else set(files())
        sizes = {path: size for path, size in table.sizes().items() if chosen is None or path in chosen}
        ranges = lake_files(sizes)
        job = RangeJob("rewrite", partial(_rewrite_file, change, table.location, dry_run))
        results = run_tasks(spark, ranges, job, progress=progress)
        done = _total(results)
        changed = [(file.path, result) for file, result in zip(ranges, results, strict=True) if result["rows"]]
        if changed and not dry_run:
            added = [
                DataFile(new["file"], new["rows"], new["bytes"], new["stats"])
                for _, result in changed
                for new in result["new"]
            ]
            done.version = table.replace([path for path, _ in changed], added)
    return done


def _total(results: list[Result]) -> Rewrite:
    done, topics = Rewrite(files=len(results)), Counter[str]()
    for result in results:
        done.rows += result["rows"]
        done.bytes += result["bytes"]
        done.files_rewritten += result["rows"] > 0 and not result["whole"]
        done.files_removed += result["whole"]
        topics.update(result["topics"])
    done.topics = dict(sorted(topics.items()))
    return done


def _rewrite_file(change: Change, lake: Location, dry_run: bool, wanted: LakeFile) -> Result:
    """Change one file; runs in a worker. The old file stays."""
    rows = kept = bytes_ = 0
    topics: Counter[str] = Counter()
    names = sorted({*change.columns, "topic", "size"})
    with open_parquet(lake, lake.name_of(wanted.path)) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=names):
            found = batch.filter(change.matches(batch))
            rows += found.num_rows
            kept += batch.num_rows - found.num_rows
            bytes_ += pc.sum(found.column("size")).as_py() or 0
            topics.update(topic or DAMAGE for topic in found.column("topic").to_pylist())
    new = []
    if rows and not dry_run:
        name = f"part-{uuid4().hex}.parquet"
        (row,) = write_file(lake, name, _changed(change, lake, wanted), 0, 0).to_pylist()
        new = [row] if row["file"] is not None else []
    whole = bool(rows) and not kept and not new
    return {"rows": rows, "bytes": bytes_, "topics": dict(topics), "whole": whole, "new": new}


def _changed(change: Change, lake: Location, wanted: LakeFile) -> Iterator[Any]:
    """Yield the rows of a file after the change, in their order."""
    schema = lake_schema()
    with open_parquet(lake, lake.name_of(wanted.path)) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            rows = batch.select(schema.names).cast(schema)
            mask = change.matches(rows)
            if not (pc.sum(mask).as_py() or 0):
                yield rows
                continue
            instead = change.replaced(rows.filter(mask))
            if not instead.num_rows:
                yield from _filled(rows.filter(pc.invert(mask)))
                continue
            columns = [pc.replace_with_mask(rows.column(name), mask, instead.column(name)) for name in schema.names]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _filled(batch: Any) -> Iterator[Any]:
    if batch.num_rows:
        yield batch
