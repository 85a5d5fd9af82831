"""The lake: a Delta table of messages, written without any JVM package.

    lake/part-….parquet          written by tasks, beforehand
    lake/_delta_log/….json       one commit: the files' names, and marks
    lake/_tandemq/<broker>/      Spark's checkpoint of the archive of one broker group
    lake/_tandemq/compact.lock   held by whoever compacts or vacuums

A commit carries marks in the same transaction as its files, so that a batch is in the table once or not at all,
whoever is killed when: (checkpoint, batch number), and (broker group, log offset up to which the table holds its log,
and the log's generation there). A replayed batch is known by the first; by the others a lake outlives the loss of a
checkpoint.

The table's own log does not notice two compactions of the same files: each adds all rows again. Hence the lock, which
the system takes from a process that dies.

Everything else (tasks, jobs) sees `Lake` only; another table format would be another class of the same verbs.
Source: docs/guides/pipeline.md, "The lake"; Delta protocol, "transaction identifiers".
"""

import fcntl
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.lake.parquet_writer import lake_schema
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.sources.schema import did_you_mean

COLLECTED = "tandemq-collect"
"""The mark of a lake that holds messages of queues, not of logs: which checkpoint fills it."""
LOCK = "_tandemq/compact.lock"
VACUUM_HOURS = 168
COMPACT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the lake's directory. `stats`: what Delta keeps of it, as JSON."""

    name: str
    rows: int
    bytes: int
    stats: str


class Lake(Protocol):
    """A table that takes files, all of a batch or none, and knows marks."""

    path: Path

    def mark(self, name: str) -> int | None:
        """The value a mark had in the newest commit that carried it."""

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """Add files and set marks in one step; returns the table's version."""

    def data_files(self) -> list[str]:
        """Paths of the files the table consists of."""

    def compact(self) -> dict[str, Any]:
        """Join small files; readers of the old ones go on. Returns what was done.

        Raises:
            StoreLocked: another process compacts or vacuums; nothing was done.
        """

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """Delete files that have not been part of the table for so long; returns their names. Raises as `compact`."""


class DeltaLake:
    """A Delta table, through delta-rs."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        """Open the table, or create an empty one.

        Raises:
            ConfigError: there is none and `create` is not set, or it has other columns: it is left as it is. Or the
                path is no local one, or looks percent-encoded, which the library would decode.
        """
        self.path = local_path(path, "the lake").absolute()
        if unquote(str(self.path)) != str(self.path):
            raise ConfigError(f"{self.path}: a lake's path holds no % that is followed by two digits", hint="rename it")
        try:
            self._table = DeltaTable(str(self.path))
        except TableNotFoundError:
            if not create:
                raise ConfigError(f"{self.path} holds no Delta table", hint="tandemq spark archive makes one") from None
            self._table = self._created()
        _check_schema(self.path, pa.schema(self._table.schema().to_arrow()), lake_schema())

    def _created(self) -> DeltaTable:
        if self.path.exists() and any(one for one in self.path.iterdir() if one.name != "_tandemq"):
            raise ConfigError(
                f"{self.path} holds other files and no Delta table", hint="give a directory of its own for the lake"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(
            str(self.path), lake_schema(), mode="error", name="tandemq", description="messages of brokers' commit logs"
        )

    def identity(self) -> str:
        """What tells the table from any other, also from one made anew in its place."""
        return str(self._table.metadata().id)

    def mark(self, name: str) -> int | None:
        """See `Lake`."""
        self._table.update_incremental()
        return self._table.transaction_version(name)

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """See `Lake`.

        Raises:
            LocalError: someone else set one of the marks meanwhile, or the table cannot be written; nothing is added.
        """
        now_ms = int(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(one.name, one.bytes, {}, now_ms, True, one.stats) for one in files
        ]
        properties = CommitProperties(app_transactions=[Transaction(name, value) for name, value in marks.items()])
        try:
            self._table.create_write_transaction(
                actions, mode="append", schema=self._table.schema(), partition_by=[], commit_properties=properties
            )
        except (CommitFailedError, DeltaError) as error:
            raise LocalError(
                f"{self.path}: the commit failed: {error}", hint="is another archive of the same broker group running?"
            ) from error
        self._table.update_incremental()
        return self._table.version()

    def data_files(self) -> list[str]:
        """See `Lake`."""
        return [str(self.path / path) for path in self._added("path")["path"]]

    def data_files_within(self, start: int, end: int) -> list[str]:
        """Paths of the files that may hold records of log offsets `[start, end)`, of whichever broker group: those that
        do not say what they hold are among them."""
        columns = self._added("path", "min.commitLogOffset", "max.commitLogOffset").values()
        return [
            str(self.path / path)
            for path, low, high in zip(*columns, strict=True)
            if low is None or high is None or (low < end and high >= start)
        ]

    def rows(self) -> int:
        """Rows of the table, by what its commits say."""
        return sum(count or 0 for count in self._added("num_records")["num_records"])

    def _added(self, *names: str) -> dict[str, list[Any]]:
        """What the table's log says of its files: a value of each file for each name, None where it says nothing."""
        self._table.update_incremental()
        told = pa.table(self._table.get_add_actions(flatten=True))
        known = set(told.column_names)
        return {name: told.column(name).to_pylist() if name in known else [None] * told.num_rows for name in names}

    def compact(self) -> dict[str, Any]:
        """See `Lake`; also writes a checkpoint of the table's own log."""
        with self._alone():
            self._table.update_incremental()
            done = self._table.optimize.compact(target_size=COMPACT_BYTES)
            self._table.create_checkpoint()
        return {"filesAdded": done["numFilesAdded"], "filesRemoved": done["numFilesRemoved"]}

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """See `Lake`. Files that never became part of the table count too: a killed task leaves some."""
        with self._alone():
            self._table.update_incremental()
            return self._table.vacuum(
                retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else compacts or vacuums meanwhile."""
        path = self.path / LOCK
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLocked(
                    f"{self.path} is being compacted or vacuumed by another process; nothing was done", hint="try later"
                ) from error
            except OSError as error:
                raise LocalError(
                    f"{path} cannot be locked: {error.strerror}", hint="the lake's file system must carry locks (flock)"
                ) from error
            yield


def _check_schema(path: Path, found: Any, wanted: Any) -> None:
    """Refuse a table of other columns.

    Raises:
        ConfigError: names the first column that is missing, unknown, or of another type.
    """
    kinds = {field.name: field.type for field in found}
    for field in wanted:
        kind = kinds.get(field.name)
        if kind is None:
            raise ConfigError(
                f"{path} is a table without the column {field.name!r}",
                hint=did_you_mean(field.name, kinds) or "it is no lake of messages; nothing was written",
            )
        if not _alike(kind, field.type):
            raise ConfigError(f"{path}: column {field.name!r} is {kind}, {field.type} is needed; nothing was written")
    unknown = [name for name in kinds if name not in wanted.names]
    if unknown:
        raise ConfigError(f"{path} is a table with a column {unknown[0]!r} that no message has; nothing was written")


def _alike(found: Any, wanted: Any) -> bool:
    """Whether two Arrow types are one Delta type: sizes of offsets and views do not matter."""
    for kinds in (
        (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ):
        if any(kind(wanted) for kind in kinds):
            return any(kind(found) for kind in kinds)
    return bool(found == wanted)
