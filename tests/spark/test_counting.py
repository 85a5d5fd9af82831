"""Results of jobs that Spark left in the middle of a commit, as after a signal to the JVM too."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from tandemq.spark.jobs import archive
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.lake.delta import DataFile
from tests.spark.logs import LogWriter

ROW = SimpleNamespace(file="part.parquet", rows=100, bytes=10, stats="{}", damaged=0)


def test_result_counts_a_commit_that_was_in_progress_when_spark_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(tmp_path / "broker-a")
    writer.write_many(100)
    job = Archive(ArchiveOptions(store=writer.store, lake=tmp_path / "lake"))
    is_in, may_end = threading.Event(), threading.Event()

    def commit(_files: Sequence[DataFile], _marks: Mapping[str, int]) -> int:
        is_in.set()
        assert may_end.wait(60)
        return 1

    def end(*_: Any) -> None:
        assert is_in.wait(60)
        may_end.set()

    monkeypatch.setattr(job, "start", lambda _: None)
    monkeypatch.setattr(job._lake, "commit", commit)
    monkeypatch.setattr(archive, "run_to_end", end)
    committing = threading.Thread(target=job._add, args=([ROW], {job._mark: 5_000}))
    committing.start()
    rows = job.run(cast(SparkSession, None)).rows
    committing.join()
    assert rows == 100
