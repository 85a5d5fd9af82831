"""Parquet writer for tasks that write their rows themselves: one file, whose name is all that Spark passes on.

This is twice as fast as passing rows to the JVM and letting Spark write them. A file becomes part of a table when its
name is committed (`spark.lake.delta`). A file that is never committed, because its task or driver died, is deleted by
`vacuum`.

Source: docs/guides/pipeline.md, "The lake".
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandemq.errors import TandemError
from tandemq.spark.runtime.location import Location
from tandemq.spark.runtime.versions import arrow_schema
from tandemq.spark.sources.log.files import LogFiles
from tandemq.spark.sources.log.options import LogOptions
from tandemq.spark.sources.log.ranges import (
    REMOVED,
    BatchBuilder,
    DecodeOptions,
    LogRange,
    LossCallback,
    read_planned,
)
from tandemq.spark.sources.schema import message_schema

ROW_GROUP_BYTES = 64 << 20
COMPRESSION = "zstd"
WORDS = ["topic", "tags", "brokerName", "bornHost", "storeHost", "verdict"]
"""Columns with few distinct values, stored with a dictionary."""
RANGED = ["commitLogOffset", "storeTimestamp"]
"""Columns with minimum and maximum in the statistics."""


def lake_schema() -> Any:
    """Return the Arrow schema of a lake's files: all columns, bodies as stored."""
    return arrow_schema(message_schema(details=True))


class _Writer:
    """One Parquet file: batches in, row groups out."""

    def __init__(self, lake: Location, name: str, schema: Any) -> None:
        self._lake = lake
        self._name = name
        self._output = lake.open_output(name)
        self._file = pq.ParquetWriter(
            self._output,
            schema,
            compression=COMPRESSION,
            compression_level=1,
            use_dictionary=WORDS,
            write_statistics=RANGED,
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
        verdict = batch.column("verdict")
        if verdict.null_count < batch.num_rows:
            self.damaged += pc.sum(pc.not_equal(verdict, REMOVED)).as_py() or 0
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
            with self._lake.errors():
                self._file.write_table(table, row_group_size=max(1, table.num_rows))
        self._waiting, self._bytes = [], 0

    def close(self) -> int:
        """Finish and sync the file; returns its size in bytes."""
        self._flush()
        with self._lake.errors():
            self._file.close()
            size = self._output.tell()
            self._output.close()
        self._lake.sync(self._name)
        return size

    def discard(self) -> None:
        """Close and delete the file."""
        for file in (self._file, self._output):
            with suppress(OSError, ValueError, pa.ArrowException):
                file.close()
        self._file.is_open = False  # else the writer closes itself again when it is deleted, and fails again
        self._lake.delete(self._name)

    def stats(self) -> str:
        """Return the statistics of the file in Delta's JSON form."""
        bounds: list[dict[str, int | str]] = [{}, {}]
        for name, pair in self._ranges.items():
            for side, value in zip(bounds, pair, strict=True):
                side[name] = value if name != "storeTimestamp" else _time(value)
        return json.dumps({"numRecords": self.rows, "minValues": bounds[0], "maxValues": bounds[1]})


def _time(micros: int) -> str:
    moment = datetime.fromtimestamp(micros // 1_000_000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{micros % 1_000_000 // 1000:03d}Z"


def write_ranges(files: LogFiles, options: LogOptions, ranges: Sequence[LogRange], lost: LossCallback) -> Any:
    """Write the rows of some ranges to one file in `options.write_to`; no file if there are no rows.

    Args:
        lost: as for `read_planned`.
    Returns:
        An Arrow batch of `files_schema` with one row.
    Raises:
        Any error that `lost` raises; the file is deleted then.
    """
    assert options.write_to is not None, "only called with writeTo"
    schema = lake_schema()
    start, end = ranges[0].start, ranges[-1].end
    name = f"part-{start:020d}-{end:020d}-{uuid4().hex[:12]}.parquet"
    reading = DecodeOptions(tuple(schema.names), checks=options.checks, inflates=False, keeps_damage=True)
    maker = BatchBuilder(files, schema)
    batches = (maker.batch(rows) for rows in read_planned(files, reading, ranges, lost))
    return write_file(options.write_to, name, batches, start, end)


def write_file(lake: Location, name: str, batches: Iterable[Any], start: int, end: int) -> Any:
    """Write batches of `lake_schema` to one file of a lake; no file if there are no rows.

    Args:
        start, end: log offsets for the result.
    Returns:
        As `write_ranges`. Raises any error of `batches`; the file is deleted then.
    """
    writer = _Writer(lake, name, lake_schema())
    try:
        for batch in batches:
            writer.add(batch)
        size = writer.close()
    except BaseException:
        with suppress(TandemError):  # the first error counts; vacuum deletes what is left
            writer.discard()
        raise
    if not writer.rows:
        lake.delete(name)
    row = {
        "file": [name if writer.rows else None],
        "rows": [writer.rows],
        "bytes": [size],
        "start": [start],
        "end": [end],
        "stats": [writer.stats()],
        "damaged": [writer.damaged],
    }
    return pa.RecordBatch.from_pydict(row, schema=files_schema())


def files_schema() -> Any:
    """Return the Arrow schema of the result of a task that writes a file."""
    numbers = {"rows": pa.int64(), "bytes": pa.int64(), "start": pa.int64(), "end": pa.int64()}
    return pa.schema({"file": pa.string(), **numbers, "stats": pa.string(), "damaged": pa.int32()})
