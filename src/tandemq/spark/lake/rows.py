"""Rows of a lake's files as a DataFrame.

Spark reads local files itself. Remote ones are read by tasks in Python, through the lake's location: Spark's own file
systems would need packages and settings of their own for each kind of store.

Source: docs/guides/pipeline-lakes.md.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from tandemq.spark.lake.delta import Lake
from tandemq.spark.lake.files import open_parquet
from tandemq.spark.runtime.location import Location
from tandemq.spark.runtime.versions import arrow_schema
from tandemq.spark.sources.schema import message_schema

BATCH_ROWS = 1 << 13


def read_files(
    spark: SparkSession, lake: Lake, files: Sequence[str], columns: Sequence[str] | None = None
) -> DataFrame:
    """Return the rows of some of a lake's files (`data_files`).

    Args:
        columns: columns to read; by default all.
    """
    schema = message_schema(details=True)
    names = schema.fieldNames() if columns is None else list(columns)
    if lake.location.is_local:
        return spark.read.parquet(*files).select(*names)
    wanted = type(schema)([schema[name] for name in names])
    known = [(lake.name_of(file),) for file in files]
    tasks = max(1, min(len(known), 4 * spark.sparkContext.defaultParallelism))
    rows = spark.createDataFrame(spark.sparkContext.parallelize(known, tasks), "file string")
    return rows.mapInArrow(_reader(lake.location, wanted), wanted)


def _reader(lake: Location, wanted: Any) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return a function that reads the files named in batches; it runs in tasks."""

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        schema = arrow_schema(wanted)
        for batch in batches:
            for name in batch.column("file").to_pylist():
                with open_parquet(lake, name) as file:
                    for rows in file.iter_batches(BATCH_ROWS, columns=schema.names):
                        yield rows.select(schema.names).cast(schema)

    return read
