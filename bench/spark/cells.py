"""Cells of the log: the source, the archive, audit and scrub, a stream, killed drivers.

Source: docs/guides/pipeline.md, "Figures".
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench.spark.logs import write_log
from bench.spark.measure import Cell, best
from tandemq.codec.record.record import MAGIC_V1, MAGIC_V2, RECORD_BYTES_MIN, decode_message, peek
from tandemq.spark.jobs.archive import Archive, ArchiveOptions
from tandemq.spark.jobs.audit import audit
from tandemq.spark.jobs.scrub import scrub
from tandemq.spark.lake.delta import DeltaLake
from tandemq.spark.sources.log.files import LogFileReader, log_end, open_log
from tandemq.spark.sources.log.source import RocketMQLogDataSource
from tandemq.spark.sources.schema import message_schema
from tests.spark.kills import kill_many

STREAM_RATE = 1000
STREAM_SECONDS = 30
BODY_BYTES = 1024


class PerRow(DataSource):
    """A source without column batches: a tuple per record, decoded one by one."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "rows-of-log"

    def schema(self) -> StructType:
        """Return the schema: all columns that every source has."""
        return message_schema()

    def reader(self, schema: StructType) -> PerRowReader:  # noqa: ARG002  # all columns, always
        """Return the reader."""
        return PerRowReader(self.options["path"])


class PerRowReader(DataSourceReader):
    """Reader of `PerRow`."""

    def __init__(self, path: str) -> None:
        """`path`: a store directory."""
        self._files = open_log(path)

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per file of the log: a per-row source has no cheaper place to begin."""
        return [InputPartition(start) for start in self._files.starts]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield a tuple per record."""
        from datetime import UTC, datetime  # noqa: PLC0415  # in the worker

        with LogFileReader(self._files) as read:
            position = partition.value
            end = position + self._files.segment_bytes
            while position < end:
                size, magic = peek(read(position, RECORD_BYTES_MIN), 0)
                if magic not in (MAGIC_V1, MAGIC_V2):
                    return
                data = read(position, size)
                one = decode_message(data, 0, size)
                position += size
                text = "".join(f"{name}\x01{value}\x02" for name, value in one.properties.items())
                yield (
                    " ".join(one.keys),
                    one.body,
                    one.topic,
                    one.tags,
                    "broker",
                    one.queue_id,
                    one.queue_offset,
                    one.log_offset,
                    datetime.fromtimestamp(one.born_ms / 1000, UTC),
                    datetime.fromtimestamp(one.store_ms / 1000, UTC),
                    one.born_host,
                    one.reconsume_times,
                    text,
                )


class Bench:
    """All cells over one log."""

    def __init__(self, spark: SparkSession, root: Path, mib: int, rounds: int) -> None:
        """Create the input."""
        self._spark = spark
        self._root = root
        self._rounds = rounds
        self.store, self.replica, self.small = root / "master", root / "slave", root / "small"
        write_log(self.store, mib << 20, BODY_BYTES, segment_bytes=max(32, mib // 4) << 20)
        write_log(self.small, max(32, mib // 8) << 20, BODY_BYTES, segment_bytes=max(16, mib // 16) << 20)
        shutil.copytree(self.store, self.replica)
        spark.dataSource.register(RocketMQLogDataSource)
        spark.dataSource.register(PerRow)
        self.mb = self._size(self.store)

    def _size(self, store: Path) -> float:
        with LogFileReader(open_log(store)) as read:
            return log_end(read) / 1e6

    def _noop(self, frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _log(self, store: Path) -> Any:
        return self._spark.read.format("rocketmq-log").load(str(store))

    def source(self) -> list[Cell]:
        """Measure the source, beside Spark's own Parquet reader on the same rows, and beside rows made one by one."""
        parquet = str(self._root / "parquet")
        self._log(self.store).write.mode("overwrite").option("compression", "none").parquet(parquet)
        own = best(self._rounds, lambda: self._noop(self._spark.read.parquet(parquet)))
        ours = best(self._rounds, lambda: self._noop(self._log(self.store)))
        small = self._size(self.small)
        single = best(2, lambda: self._noop(self._spark.read.format("rows-of-log").load(str(self.small))))
        to_own, to_single = own.seconds / ours.seconds, self.mb / ours.seconds / (small / single.seconds)
        return [
            Cell("Spark's Parquet reader, all columns", own.rate(self.mb)),
            Cell("log source, all columns", f"{ours.rate(self.mb)}, {to_own:.2f} x Parquet", ">= 0.9 x", to_own >= 0.9),
            Cell("a source of rows, one by one", single.rate(small)),
            Cell("log source, all columns", f"{to_single:.1f} x rows one by one", ">= 2.5 x", to_single >= 2.5),
        ]

    def archive(self) -> list[Cell]:
        """Measure the archive into Delta, beside Spark's Parquet writer fed by the same source."""
        lake, written = self._root / "lake", str(self._root / "written")

        def ours() -> None:
            shutil.rmtree(lake, ignore_errors=True)
            Archive(ArchiveOptions(store=self.store, lake=lake)).run(self._spark)

        def sparks() -> None:
            frame = self._spark.read.format("rocketmq-log").option("details", "true").option("inflate", "false")
            frame.load(str(self.store)).write.mode("overwrite").option("compression", "zstd").parquet(written)

        theirs, own = best(self._rounds, sparks), best(self._rounds, ours)
        ratio = theirs.seconds / own.seconds
        size, sparks_size = _mb(lake), _mb(Path(written))
        return [
            Cell("log source into Spark's Parquet writer, zstd", f"{theirs.rate(self.mb)}, {sparks_size:,.0f} MB"),
            Cell(
                "archive: log to Delta commit, zstd",
                f"{own.rate(self.mb)}, {size:,.0f} MB, {ratio:.2f} x Spark's",
                ">= 2 x",
                ratio >= 2,
            ),
        ]

    def checks(self) -> list[Cell]:
        """Measure audit, beside `cmp` on the same files, and scrub."""
        pairs = [
            (path, self.replica / "commitlog" / path.name) for path in sorted((self.store / "commitlog").iterdir())
        ]

        def compare() -> None:
            for one, other in pairs:
                subprocess.run(["cmp", one, other], check=True)

        size = sum(one.stat().st_size for one, _ in pairs) / 1e6
        cmp = 2 * size / best(self._rounds, compare).seconds
        both = 2 * self.mb / best(self._rounds, lambda: audit(self._spark, self.store, self.replica)).seconds
        scrubbed = self.mb / best(self._rounds, lambda: scrub(self._spark, self.store)).seconds
        return [
            Cell("cmp on the same files, both", f"{cmp:,.0f} MB/s"),
            Cell(
                "audit of replicas, both",
                f"{both:,.0f} MB/s, {both / cmp:.2f} x cmp",
                ">= 1,500 MB/s or 0.5 x cmp",
                both >= 1500 or both >= 0.5 * cmp,
            ),
            Cell("scrub: the checksum of every record", f"{scrubbed:,.0f} MB/s"),
        ]

    def kills(self) -> list[Cell]:
        """Kill the archive's drivers with SIGKILL, as the slow test of tests/spark/test_kill.py does."""
        root = self._root / "kills"
        root.mkdir()
        found = kill_many(
            self._spark, root, report=lambda kinds: print(f"kills: {kinds.total()} done", file=sys.stderr, flush=True)
        )
        kinds = f"{found.kinds['commit']} between the two commits, {found.kinds['time']} at random"
        return [
            Cell(
                f"drivers killed, kill -9: {kinds}",
                f"{found.lost} lost, {found.duplicated} twice, of {found.records:,} records",
                "0 lost, 0 twice in >= 20",
                found.kinds.total() >= 20 and found.lost == found.duplicated == 0,
            )
        ]

    def stream(self) -> list[Cell]:
        """Measure the time from a record's store time to the Delta commit that holds it, at a steady rate."""
        store, lake = self._root / "live", self._root / "live-lake"
        writer = LiveLog(store)
        commits: list[tuple[float, int]] = []
        job = Archive(
            ArchiveOptions(store=store, lake=lake, follows=True, trigger="0 seconds", compact_every=200),
            progress=lambda done: commits.append((time.time(), done.end)),
        )
        query = job.start(self._spark)
        with writer:
            time.sleep(STREAM_SECONDS)
        deadline = time.monotonic() + 30
        while job.done.end < writer.end and time.monotonic() < deadline:
            time.sleep(0.05)
        query.stop()
        late = writer.latencies(commits)
        late = late[len(late) // 4 :]  # the first batches start workers and compile
        if not late:
            return [Cell("stream: nothing was committed in time", "none", "p50 <= 250 ms", met=False)]
        p50, p99 = statistics.median(late), statistics.quantiles(late, n=100)[98]
        rows = DeltaLake(lake).rows()
        return [
            Cell(
                f"stream: {STREAM_RATE:,} messages/s, store to Delta commit",
                f"p50 {p50:,.0f} ms, p99 {p99:,.0f} ms, {rows:,} of {writer.count:,} rows",
                "p50 <= 250, p99 <= 500 ms",
                p50 <= 250 and p99 <= 500 and rows == writer.count,
            )
        ]


def _mb(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.glob("*.parquet")) / 1e6


class LiveLog:
    """Writer of records with the current time at a steady rate, in a process of its own."""

    def __init__(self, store: Path) -> None:
        """Start the log with one record, so that there is one to open."""
        self._store = store
        write_log(store, 1, 128, segment_bytes=64 << 20)
        self.end = 0
        self.count = 0
        self._committed: list[tuple[int, int, int]] = []

    def __enter__(self) -> Self:
        words = [sys.executable, "-m", "bench.spark.logs", str(self._store), str(STREAM_RATE)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()
        return self

    def _listen(self) -> None:
        assert self._process.stdout is not None, "a pipe was asked for"
        for line in self._process.stdout:
            store_ms, end, count = map(int, line.split())
            self._committed.append((store_ms, end, count))
            self.end, self.count = end, count

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None, "a pipe was asked for"
        self._process.stdin.close()
        self._process.wait()
        self._thread.join()

    def latencies(self, commits: list[tuple[float, int]]) -> list[float]:
        """Return the milliseconds from store time to the first commit that has the record; one per written group."""
        found, at = [], 0
        for store_ms, end, _ in self._committed:
            while at < len(commits) and commits[at][1] < end:
                at += 1
            if at == len(commits):
                break
            found.append(commits[at][0] * 1000 - store_ms)
        return found
