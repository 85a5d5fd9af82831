"""Messages that a job reads: rows of a lake, or of a log that is not in a lake, with the same columns.

    lake     Parquet files of one version of the table
    log      `format("rocketmq-log")` up to the end that the log had when it was opened, bodies as stored

Rows of damage have a verdict. Missing bytes of a log are an error, unless loss is allowed.

Source: docs/guides/dataset.md.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from tandemq.errors import ConfigError, OffsetGone
from tandemq.spark.lake.formats import is_lake, open_lake
from tandemq.spark.lake.rows import read_files
from tandemq.spark.runtime.location import Location, Place, locate
from tandemq.spark.sources.log.files import NAME_DIGITS, open_log
from tandemq.spark.sources.log.gaps import Gap, log_bounds
from tandemq.spark.sources.log.ranges import describe_loss
from tandemq.spark.sources.log.source import source_with_storage
from tandemq.spark.sources.schema import message_schema


class LakeMessages:
    """Messages of a lake."""

    def __init__(self, lake: Place, version: int | None = None) -> None:
        """Open the lake.

        Args:
            lake: its directory.
            version: version of the table; by default the newest.
        Raises:
            ConfigError: there is no lake, or no such version.
            LocalError: files of the version were deleted; or the storage refuses access or does not respond.
        """
        self._table = open_lake(lake)
        self._files = self._table.data_files() if version is None else self._table.data_files_of(version)
        self.location = self._table.location
        self.lost: list[Gap] = []
        """Missing bytes of a log."""

    def rows(self, spark: SparkSession, columns: Sequence[str] | None = None) -> DataFrame | None:
        """Return all rows; None if there are none.

        Args:
            spark: the session.
            columns: columns to read; by default all.
        """
        return read_files(spark, self._table, self._files, columns) if self._files else None

    def rows_within(self, spark: SparkSession, start: int, end: int) -> DataFrame | None:
        """Return rows of log offsets `[start, end)`, and perhaps others; None if there are none."""
        files = self._table.data_files_within(start, end)
        return read_files(spark, self._table, files) if files else None

    def check_has(self, log_offset: int) -> None:
        """Do nothing: a log that begins later than an offset is reported by `LogMessages` only."""


class LogMessages:
    """Messages of a store directory, or of archived log files."""

    def __init__(self, log: Location, broker_name: str | None = None, *, allows_loss: bool = False) -> None:
        """Open the log.

        Args:
            log: directory of the store or of the files.
            broker_name: value of the column of that name; by default the directory's name.
            allows_loss: whether missing bytes are left out.
        Raises:
            StoreDamaged: files overlap.
            OffsetGone: bytes are missing, and `allows_loss` is not set.
        """
        self.location = log
        self._files = open_log(log, broker_name)
        self._allows_loss = allows_loss
        self._end, self.lost = log_bounds(self._files)
        """Missing bytes of the log."""
        for gap in () if allows_loss else self.lost:
            self._refuse(describe_loss(*gap))

    def _refuse(self, what: str) -> None:
        raise OffsetGone(f"{self.location}: {what}", hint="--allow-loss continues without them")

    def rows(self, spark: SparkSession, columns: Sequence[str] | None = None) -> DataFrame | None:
        """As `LakeMessages.rows`."""
        return self._read(spark, self._files.start, self._end, columns)

    def rows_within(self, spark: SparkSession, start: int, end: int) -> DataFrame | None:
        """Return the rows of log offsets `[start, end)`; None if there are none."""
        return self._read(spark, max(start, self._files.start), min(end, self._end))

    def check_has(self, log_offset: int) -> None:
        """Check that the log begins at an offset or before: what an earlier run has not read may be gone.

        Raises:
            OffsetGone: it begins later, and loss is not allowed.
        """
        if log_offset < self._files.start:
            gap = Gap(log_offset, self._files.start, f"are gone: the log begins at {self._files.start}")
            self.lost.insert(0, gap)
            if not self._allows_loss:
                self._refuse(describe_loss(*gap))

    def _read(
        self, spark: SparkSession, start: int, end: int, columns: Sequence[str] | None = None
    ) -> DataFrame | None:
        if start >= end:
            return None
        schema = message_schema(details=True)
        wanted = schema if columns is None else type(schema)([schema[name] for name in columns])
        spark.dataSource.register(source_with_storage(self.location.options))
        options = {
            "path": self.location.url,
            "brokerName": self._files.broker_name,
            "startingOffsets": str(start),
            "endingOffsets": str(end),
            "inflate": "false",
            "failOnDataLoss": str(not self._allows_loss).lower(),
        }
        return spark.read.format("rocketmq-log").schema(wanted).options(**options).load()


Messages = LakeMessages | LogMessages


def open_messages(
    place: Place, *, version: int | None = None, broker_name: str | None = None, allows_loss: bool = False
) -> Messages:
    """Open a lake, or a log that is in no lake.

    Args:
        place: directory of a lake, a store or log files, or its URL.
        version: version of a lake's table.
        broker_name: of the rows of a log.
        allows_loss: whether missing bytes of a log are left out.
    Raises:
        ConfigError: there is neither, or a version of a log is given. Others as by the classes.
    """
    location = locate(place, "the source")
    if not is_log(location):
        return LakeMessages(place, version)
    if version is not None:
        raise ConfigError(f"{location} is a log, which has no versions", hint="give a lake, or leave the version out")
    return LogMessages(location, broker_name, allows_loss=allows_loss)


def is_log(location: Location) -> bool:
    """Return whether a directory has log files, and no lake."""
    if is_lake(location):
        return False
    files = (*location.within("commitlog").files(), *location.files())
    return any(file.name.isdigit() and len(file.name) == NAME_DIGITS for file in files)
