"""What a task does that writes its rows itself: one Parquet file, of which Spark carries the name only.

Twice as fast as handing rows to the JVM and letting Spark write them. A file is no part of a table until someone
commits its name (`spark.lake.delta`); one that nobody commits, because its task or its driver died, is swept up by
`vacuum`.

Source: docs/guides/pipeline.md, "The lake".
"""

import json
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tandemq.spark.runtime.versions import arrow_schema
from tandemq.spark.sources.log.files import LogFiles
from tandemq.spark.sources.log.options import LogOptions
from tandemq.spark.sources.log.ranges import BatchMaker, LogRange, LostRange, Reading, planned_rows
from tandemq.spark.sources.schema import message_schema

ROW_GROUP_BYTES = 64 << 20
COMPRESSION = "zstd"
WORDS = ["topic", "tags", "brokerName", "bornHost", "storeHost", "verdict"]
"""Columns of few different values, kept by dictionary."""
RANGED = ["commitLogOffset", "storeTimestamp"]
"""Columns whose least and greatest values readers are told."""


def lake_schema() -> Any:
    """The Arrow schema of a lake's files: all columns, bodies as stored."""
    return arrow_schema(message_schema(details=True))


class _Writer:
    """One Parquet file: batches in, row groups out."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._path = path
        self._file = pq.ParquetWriter(
            path, schema, compression=COMPRESSION, compression_level=1, use_dictionary=WORDS, write_statistics=RANGED
        )
        self._waiting: list[Any] = []
        self._bytes = 0
        self.rows = 0
        self.damaged = 0
        self._ranges: dict[str, tuple[int, int]] = {}

    def add(self, batch: Any) -> None:
        self._waiting.append(batch)
        self._bytes += batch.nbytes
        self.rows += batch.num_rows
        self.damaged += batch.num_rows - batch.column("verdict").null_count
        for name in RANGED:
            values = batch.column(name).drop_null().cast(pa.int64()).to_numpy(zero_copy_only=False)
            if len(values):
                least, most = int(np.min(values)), int(np.max(values))
                known = self._ranges.get(name, (least, most))
                self._ranges[name] = (min(known[0], least), max(known[1], most))
        if self._bytes >= ROW_GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._file.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._bytes = [], 0

    def close(self) -> int:
        """Finish the file and wait until it is on the device; returns its bytes."""
        self._flush()
        self._file.close()
        with open(self._path, "rb") as file:
            os.fsync(file.fileno())
        return self._path.stat().st_size

    def stats(self) -> str:
        """What Delta keeps of a file, as JSON."""
        bounds: list[dict[str, int | str]] = [{}, {}]
        for name, pair in self._ranges.items():
            for side, value in zip(bounds, pair, strict=True):
                side[name] = value if name != "storeTimestamp" else _time(value)
        return json.dumps({"numRecords": self.rows, "minValues": bounds[0], "maxValues": bounds[1]})


def _time(micros: int) -> str:
    moment = datetime.fromtimestamp(micros // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros % 1_000_000 // 1000:03d}Z"


def write_ranges(files: LogFiles, options: LogOptions, ranges: Sequence[LogRange], lost: LostRange) -> Any:
    """Write the rows of some ranges to one file in `options.write_to`; no file if there are none.

    Args:
        lost: as for `planned_rows`.
    Returns:
        An Arrow batch of `logsource.FILES` with one row.
    Raises:
        What `lost` raises; the file is not left behind.
    """
    assert options.write_to is not None, "only called where files are written"
    schema = lake_schema()
    start, end = ranges[0].start, ranges[-1].end
    path = Path(options.write_to) / f"part-{start:020d}-{end:020d}-{uuid4().hex[:12]}.parquet"
    reading = Reading(tuple(schema.names), checks=options.checks, inflates=False, keeps_damage=True)
    maker = BatchMaker(files, schema)
    return write_file(path, (maker.batch(rows) for rows in planned_rows(files, reading, ranges, lost)), start, end)


def write_file(path: Path, batches: Iterable[Any], start: int, end: int) -> Any:
    """Write batches of `lake_schema` to one file; no file if there are none.

    Args:
        start, end: the log offsets that are told with it.
    Returns:
        As `write_ranges`. Raises what making a batch raises; the file is not left behind.
    """
    writer = _Writer(path, lake_schema())
    try:
        for batch in batches:
            writer.add(batch)
        size = writer.close()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    if not writer.rows:
        path.unlink()
    told = {
        "file": [path.name if writer.rows else None],
        "rows": [writer.rows],
        "bytes": [size],
        "start": [start],
        "end": [end],
        "stats": [writer.stats()],
        "damaged": [writer.damaged],
    }
    return pa.RecordBatch.from_pydict(told, schema=files_schema())


def files_schema() -> Any:
    """The Arrow schema of what tasks say of their files."""
    numbers = {"rows": pa.int64(), "bytes": pa.int64(), "start": pa.int64(), "end": pa.int64()}
    return pa.schema({"file": pa.string(), **numbers, "stats": pa.string(), "damaged": pa.int32()})
