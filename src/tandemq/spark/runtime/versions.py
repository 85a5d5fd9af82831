"""What PySpark offers by version. This page alone knows the differences.

    4.2    a source is told where its query stands and how far it may go, and AvailableNow takes as many micro-batches
           as that needs
    4.1    batch sources are handed conditions, and streaming sinks Arrow batches
    4.0    all else that the formats need

Before 4.2 Spark asks a source where the next micro-batch ends, and says no more. `OwnPace` keeps to the limit then.

Source: docs/guides/pipeline.md, "Versions of Spark"; PySpark's python_streaming_source_runner.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_ADMISSION_CONTROL = VERSION >= (4, 2)
CHECKPOINTS = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if VERSION >= (4, 1) else "")
"""Where Spark keeps its checkpoint managers."""

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How far a micro-batch may go."""

    class ReadAllAvailable(ReadLimit):
        """As far as there is anything."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """So many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """So many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Nobody asks for it."""


if TYPE_CHECKING or VERSION >= (4, 1):
    from pyspark.sql.datasource import (
        DataSourceStreamArrowWriter,
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        LessThan,
        LessThanOrEqual,
    )
else:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter

    class DataSourceStreamArrowWriter(DataSourceStreamWriter, DataSourceArrowWriter):
        """The two that 4.0 has, in one."""

    # Of these there is none: Spark applies all conditions itself.
    Filter = EqualTo = In = type("Filter", (), {})
    GreaterThan = GreaterThanOrEqual = LessThan = LessThanOrEqual = Filter

__all__ = [
    "DataSourceStreamArrowWriter",
    "EqualTo",
    "Filter",
    "GreaterThan",
    "GreaterThanOrEqual",
    "In",
    "LessThan",
    "LessThanOrEqual",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]


def arrow_schema(schema: StructType) -> Any:
    """Columns as Arrow names them, times in UTC, as was the only way before 4.2."""
    return to_arrow_schema(schema, timezone="UTC") if HAS_ADMISSION_CONTROL else to_arrow_schema(schema)


def check_version(what: str) -> None:
    """Refuse what takes micro-batches until all is read.

    Raises:
        ConfigError: PySpark is older than 4.2.
    """
    if not HAS_ADMISSION_CONTROL:
        raise ConfigError(
            f"{what} needs PySpark 4.2 or newer; this is {pyspark.__version__}",
            hint="pip install 'pyspark>=4.2,<5'; the formats rocketmq and rocketmq-log work here too",
        )


BEGIN = "/begin"
"""Where a query's first micro-batch begins, in the offset at which it ends. No topic is named so."""


def begin_of(start: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a micro-batch begins: what Spark says, but what is on record if it is a query's first one."""
    return start if start == end else end.get(BEGIN, start)


def suited(reader: DataSourceStreamReader) -> DataSourceStreamReader:
    """A reader that takes a start and a limit, as the Spark here wants it."""
    return reader if HAS_ADMISSION_CONTROL else OwnPace(reader)


class OwnPace(DataSourceStreamReader):
    """A reader that takes a start and a limit, for a Spark that tells neither: it keeps to the limit of its options.

    The query stands where the last answer was. After a restart Spark has `partitions(X, X)` planned before anything
    else, X being the end of the last micro-batch on record; if that one was not done, it is planned once more. Only a
    query without a checkpoint is asked where it goes before it was told where it is. As the checkpoint holds ends only,
    the first one says where it began, so that the first micro-batch done again is the same.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        """Nothing is asked of it yet."""
        self._reader = reader
        self._begin: dict[str, Any] | None = None
        self._at: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Where a query without a checkpoint begins: at one place, however often Spark asks."""
        if self._begin is None:
            self._begin = self._reader.initialOffset()
        return self._begin

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # Spark's name, before 4.2
        """Where the next micro-batch ends."""
        if self._at is None:
            begin = self.initialOffset()
            self._reader.partitions(begin, begin)  # as after a restart: the reader goes on from there
            self._at = self._next(begin) | {BEGIN: begin}
            return self._at
        end = self._next(self._at)
        if end != {name: value for name, value in self._at.items() if name != BEGIN}:
            self._at = end
        return self._at

    def _next(self, start: dict[str, Any]) -> dict[str, Any]:
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch.

        Raises:
            ConfigError: Spark did not say where the query stands before it asked where it goes.
        """
        begin = end.get(BEGIN)
        if begin is not None and start not in (begin, end):
            raise ConfigError(
                "this micro-batch was planned as the first one, but is not",
                hint="leave spark.sql.streaming.triggerAvailableNowWrapper.enabled at false, delete the last file in "
                "offsets/ of the checkpoint, and start again; nothing of that batch was read",
            )
        if self._at is None:
            self._at, self._begin = end, begin
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """What the reader gives."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """A micro-batch is done."""
        self._reader.commit(end)
