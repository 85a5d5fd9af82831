"""Retention of a lake: deletes rows that are older than a time, of all topics or of some.

Files with old rows only leave the table; files with others are rewritten. Marks stay, so that archive and collect
continue; what was deleted is not archived again. The files are deleted by `vacuum`, as after a compaction.

Source: docs/guides/dataset.md, "Retention".
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from tandemq.spark.jobs.rewrite import Rewrite, rewrite
from tandemq.spark.jobs.tasks import ProgressCallback, no_progress
from tandemq.spark.lake.formats import open_lake
from tandemq.spark.runtime.location import Place


@dataclass(frozen=True, slots=True)
class _Expiry:
    """Deletes rows stored before a time. Damage has a time if its record is known, and stays otherwise, unless all
    topics are meant and the damage lies between old records."""

    before_ms: int
    topics: tuple[str, ...]

    @property
    def columns(self) -> list[str]:
        return ["topic", "storeTimestamp"]

    def matches(self, batch: Any) -> Any:
        stored = batch.column("storeTimestamp").cast(pa.timestamp("us")).cast(pa.int64())
        if not self.topics:
            stored = pc.fill_null_forward(stored)
        old = pc.less(stored, self.before_ms * 1000)
        if self.topics:
            old = pc.and_(old, pc.is_in(batch.column("topic"), pa.array(self.topics)))
        return pc.fill_null(old, fill_value=False)

    def replaced(self, batch: Any) -> Any:
        return batch.slice(0, 0)


def expire(
    spark: SparkSession,
    lake: Place,
    before_ms: int,
    *,
    topics: Sequence[str] = (),
    dry_run: bool = False,
    progress: ProgressCallback = no_progress,
) -> Rewrite:
    """Delete rows that were stored before a time.

    Args:
        topics: of these topics only.
        dry_run: only count them.
    Raises:
        ConfigError: there is no lake. Also as `rewrite`.
    """
    table = open_lake(lake)
    change = _Expiry(before_ms, tuple(topics))
    files = partial(table.data_files_before, before_ms)
    return rewrite(spark, table, change, files=files, dry_run=dry_run, progress=progress)
