"""Differences between PySpark versions, all in this module.

    4.2    admission control: Spark passes a streaming source its start offset and a read limit, and AvailableNow takes
           as many micro-batches as the limit needs
    4.1    filter pushdown for batch sources, Arrow batches for streaming sinks
    4.0    everything else that the formats need

Before 4.2 Spark asks a source for the end of the next micro-batch without start or limit. `SelfPacedReader` applies the
limit then.

Source: docs/guides/pipeline.md, "Versions of Spark"; PySpark's python_streaming_source_runner.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from tandemq.errors import ConfigError, TandemError
from tandemq.spark.runtime.worker import end_planner
from tandemq.spark.runtime.worker_errors import shows_one_line

VERSION = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
HAS_ADMISSION_CONTROL = VERSION >= (4, 2)
CHECKPOINTS = "org.apache.spark.sql.execution.streaming" + (".checkpointing" if VERSION >= (4, 1) else "")
"""Java package of Spark's checkpoint file managers."""

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
        """Limit of a micro-batch."""

    class ReadAllAvailable(ReadLimit):
        """No limit: everything available."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """Maximum number of rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):
        """Maximum number of bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:
        """Placeholder: unknown to this PySpark."""


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
        """The two base classes of 4.0 combined."""

    # This PySpark has no filter pushdown: Spark applies all filters itself.
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
    """Return the Arrow schema of Spark columns; timestamps are in UTC, the only choice before 4.2."""
    return to_arrow_schema(schema, timezone="UTC") if HAS_ADMISSION_CONTROL else to_arrow_schema(schema)


def check_version(what: str) -> None:
    """Refuse a feature that needs admission control. `what`: its name in the error message.

    Raises:
        ConfigError: PySpark is older than 4.2.
    """
    if not HAS_ADMISSION_CONTROL:
        raise ConfigError(
            f"{what} needs PySpark 4.2 or newer; this is {pyspark.__version__}",
            hint="pip install 'pyspark>=4.2,<5'; the formats rocketmq and rocketmq-log work here too",
        )


BEGIN = "/begin"
"""Key in the end offset of a query's first micro-batch that holds its start offset. No topic can have this name."""


def batch_start(start: Mapping[str, Any], end: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the start offset of a micro-batch: Spark's, or the recorded one for a query's first micro-batch."""
    return start if start == end else end.get(BEGIN, start)


def adapt_reader(make: Callable[[], DataSourceStreamReader]) -> DataSourceStreamReader:
    """Make a reader with admission control, adapted to the installed PySpark and to the end of its process.

    If it cannot be made, the first call of the one returned raises why: PySpark loses an error at this moment, because
    it then stops a reader that it does not have.
    """
    try:
        reader = make()
    except TandemError as error:
        return RefusedReader(error)
    adapted = reader if HAS_ADMISSION_CONTROL else SelfPacedReader(reader)
    adapted.stop = end_planner  # type: ignore[method-assign]
    return adapted


@shows_one_line
class RefusedReader(DataSourceStreamReader):
    """A reader that cannot be made: each call raises why."""

    def __init__(self, error: TandemError) -> None:
        """Keep the error."""
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raise it."""
        raise self._error

    def latestOffset(self, *_: Any) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Raise it."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:  # noqa: ARG002  # Spark's
        """Raise it."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # noqa: ARG002  # Spark's
        """Raise it."""
        raise self._error


class SelfPacedReader(DataSourceStreamReader):
    """Adapter for a PySpark without admission control: applies the limit of the reader's own options.

    The query's position is the last offset returned. After a restart Spark first calls `partitions(X, X)`, where X is
    the end of the last recorded micro-batch; if that batch did not complete, it is planned again. Only a query without
    a checkpoint gets a `latestOffset` call before its position is known. A checkpoint holds end offsets only; therefore
    the first end offset also records the start, so that a repeated first micro-batch reads the same messages.
    """

    def __init__(self, reader: DataSourceStreamReader) -> None:
        """Wrap a reader; it is not called yet."""
        self._reader = reader
        self._begin: dict[str, Any] | None = None
        self._at: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Return the start offset of a query without a checkpoint, the same at every call."""
        if self._begin is None:
            self._begin = self._reader.initialOffset()
        return self._begin

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802  # Spark's name, before 4.2
        """Return the end offset of the next micro-batch."""
        if self._at is None:
            begin = self.initialOffset()
            self._reader.partitions(begin, begin)  # as after a restart: sets the reader's position
            self._at = self._next(begin) | {BEGIN: begin}
            return self._at
        end = self._next(self._at)
        if end != {name: value for name, value in self._at.items() if name != BEGIN}:
            self._at = end
        return self._at

    def _next(self, start: dict[str, Any]) -> dict[str, Any]:
        return self._reader.latestOffset(start, self._reader.getDefaultReadLimit())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a micro-batch.

        Raises:
            ConfigError: Spark asked for an end offset before it set the query's position.
        """
        begin = end.get(BEGIN)
        if begin is not None and start not in (begin, end):
            raise ConfigError(
                "this micro-batch was planned as the first one of its query, but is not",
                hint="leave spark.sql.streaming.triggerAvailableNowWrapper.enabled at false, delete the last file in "
                "offsets/ of the checkpoint, and start again; no message of that batch was read",
            )
        if self._at is None:
            self._at, self._begin = end, begin
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Read a partition with the wrapped reader."""
        return self._reader.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Pass on that a micro-batch has completed."""
        self._reader.commit(end)
