"""Lake: a Delta table of messages, written without any JVM package.

    lake/part-….parquet          written by tasks before the commit
    lake/_delta_log/….json       one commit: names of files, and marks
    lake/_tandemq/<broker>/      Spark's checkpoint of the archive of one broker group
    lake/_tandemq/compact.lock   held during compact and vacuum

A commit carries marks (Delta's transaction identifiers) in the same transaction as its files: (checkpoint, batch
number), and (broker group, log offset up to which the table holds its log, epoch of the log there). A batch is
therefore in the table once or not at all, whichever process is killed. A repeated batch is recognized by the first
mark; with the others a lake survives the loss of a checkpoint.

Delta's log does not detect two concurrent compactions of the same files: each would add all rows again. Hence the lock,
which the operating system releases if its process dies.

Tasks and jobs use the protocol `Lake` only; another table format would be another implementation of it.
Source: docs/guides/pipeline.md, "The lake"; Delta protocol, "transaction identifiers".
"""

import fcntl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.runtime.local_paths import local_path
from tandemq.spark.sources.log.parquet_writer import lake_schema
from tandemq.spark.sources.schema import did_you_mean

COLLECTED = "tandemq-collect"
"""Mark of a lake that is filled from queues instead of logs; its value identifies the checkpoint."""
LOCK = "_tandemq/compact.lock"
SETTINGS = {"delta.dataSkippingStatsColumns": "commitLogOffset,storeTimestamp"}
"""Properties of a new table: no keys of messages in the statistics of compactions."""
VACUUM_HOURS = 168
COMPACT_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the lake's directory. `stats`: its statistics in Delta's JSON form."""

    name: str
    rows: int
    bytes: int
    stats: str


class OldFiles(NamedTuple):
    """Files in a lake's directory that are not part of the table."""

    replaced: list[str]
    """Files of older versions."""
    unknown: list[str]
    """Files that no version has: of killed tasks, or of running ones."""


class Lake(Protocol):
    """A table with atomic commits of files and marks."""

    path: Path

    def mark(self, name: str) -> int | None:
        """Return the value of a mark in the newest commit that carries it; None if none does."""

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """Add files and set marks atomically; returns the version of the table."""

    def data_files(self) -> list[str]:
        """Return the paths of the files that make up the table."""

    def compact(self) -> dict[str, Any]:
        """Merge small files; readers of the old files are not disturbed. Returns numbers of files added and removed.

        Raises:
            StoreLocked: another process compacts or vacuums; nothing was changed.
        """

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """Delete files that left the table more than `hours` ago; returns their names. Raises as `compact`."""


class DeltaLake:
    """A Delta table, accessed through delta-rs."""

    def __init__(self, path: str | Path, *, create: bool = False) -> None:
        """Open the table, or create an empty one.

        Raises:
            ConfigError: there is no table and `create` is not set; or it has other columns, and is left unchanged; or
                the path is not local, or looks percent-encoded, which delta-rs would decode.
        """
        self.path = local_path(path, "the lake").absolute()
        if unquote(str(self.path)) != str(self.path):
            raise ConfigError(f"{self.path}: the path of a lake must not contain % and two digits", hint="rename it")
        try:
            self._table = DeltaTable(str(self.path))
        except TableNotFoundError:
            if not create:
                raise ConfigError(
                    f"{self.path} holds no Delta table", hint="tandemq spark archive creates one"
                ) from None
            self._table = self._created()
        _check_schema(self.path, pa.schema(self._table.schema().to_arrow()), lake_schema())

    def _created(self) -> DeltaTable:
        if self.path.exists() and any(one for one in self.path.iterdir() if one.name != "_tandemq"):
            raise ConfigError(
                f"{self.path} holds other files and no Delta table", hint="give a directory of its own for the lake"
            )
        self.path.mkdir(parents=True, exist_ok=True)
        return DeltaTable.create(
            str(self.path),
            lake_schema(),
            mode="error",
            name="tandemq",
            description="messages of brokers' commit logs",
            configuration=SETTINGS,
        )

    def identity(self) -> str:
        """Return the id of the table; a table created again at the same path has another one."""
        return str(self._table.metadata().id)

    def mark(self, name: str) -> int | None:
        """As in `Lake`."""
        self._table.update_incremental()
        return self._table.transaction_version(name)

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """As in `Lake`.

        Raises:
            LocalError: another writer has set one of the marks, or the table cannot be written; nothing is added.
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

    def replace(self, removed: Sequence[str], added: Sequence[DataFile]) -> int:
        """Remove files (paths as from `data_files`) and add others in one commit; returns the version of the table.
        Holds for a caller of `locked`.

        Raises:
            LocalError: a file is not part of the table any more, or the table cannot be written; nothing is changed.
        """
        now_ms = int(time.time() * 1000)
        names = [str(Path(path).relative_to(self.path)) for path in removed]
        sizes = dict(zip(*self._added("path", "size_bytes").values(), strict=True))
        missing = [name for name in names if name not in sizes]
        if missing:
            raise LocalError(f"{self.path}: {missing[0]} is not part of the table any more", hint="repeat the command")
        actions: list[AddAction | RemoveAction] = [RemoveAction(name, True, now_ms, sizes[name]) for name in names]
        actions += [AddAction(one.name, one.bytes, {}, now_ms, True, one.stats) for one in added]
        try:
            self._table.create_write_transaction(actions, mode="append", schema=self._table.schema(), partition_by=[])
        except (CommitFailedError, DeltaError) as error:
            raise LocalError(f"{self.path}: the commit failed: {error}", hint="repeat the command") from error
        self._table.update_incremental()
        return self._table.version()

    def data_files(self) -> list[str]:
        """As in `Lake`."""
        return [str(self.path / path) for path in self._added("path")["path"]]

    def data_files_of(self, version: int) -> list[str]:
        """Return the paths of the files of an older version.

        Raises:
            ConfigError: there is no such version.
            LocalError: a file of it was deleted since.
        """
        try:
            uris = DeltaTable(str(self.path), version=version).file_uris()
        except (DeltaError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{self.path} has no version {version} that can be read: {error}",
                hint=f"the newest is {self._table.version()}",
            ) from error
        paths = [str(self.path / Path(uri).name) for uri in uris]
        gone = [path for path in paths if not Path(path).exists()]
        if gone:
            raise LocalError(
                f"version {version} of {self.path} cannot be read: {gone[0]} was deleted",
                hint="vacuum and removals delete files of older versions; give a newer version, or none",
            )
        return paths

    def data_files_within(self, start: int, end: int) -> list[str]:
        """Return the paths of files that may contain records of log offsets `[start, end)` of any broker group,
        including files without statistics."""
        columns = self._added("path", "min.commitLogOffset", "max.commitLogOffset").values()
        return [
            str(self.path / path)
            for path, low, high in zip(*columns, strict=True)
            if low is None or high is None or (low < end and high >= start)
        ]

    def data_files_before(self, wall_ms: int) -> list[str]:
        """Return the paths of files that may contain records stored before a time, including files without
        statistics."""
        columns = self._added("path", "min.storeTimestamp").values()
        return [
            str(self.path / path)
            for path, low in zip(*columns, strict=True)
            if low is None or low.timestamp() * 1000 < wall_ms + 1
        ]

    def rows(self) -> int:
        """Return the number of rows, from the statistics in the commits."""
        return sum(count or 0 for count in self._added("num_records")["num_records"])

    def _added(self, *names: str) -> dict[str, list[Any]]:
        """Return columns of Delta's file metadata by name, one value per file; None if a file has no such value."""
        self._table.update_incremental()
        actions = pa.table(self._table.get_add_actions(flatten=True))
        known = set(actions.column_names)
        return {
            name: actions.column(name).to_pylist() if name in known else [None] * actions.num_rows for name in names
        }

    def compact(self) -> dict[str, Any]:
        """As in `Lake`; also writes a checkpoint of the table's own log."""
        with self.locked():
            self._table.update_incremental()
            done = self._table.optimize.compact(target_size=COMPACT_BYTES)
            self._table.create_checkpoint()
        return {"filesAdded": done["numFilesAdded"], "filesRemoved": done["numFilesRemoved"]}

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """As in `Lake`. Files of killed tasks, which never became part of the table, are deleted too."""
        with self.locked():
            self._table.update_incremental()
            return self._table.vacuum(
                retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
            )

    def old_files(self) -> "OldFiles":
        """Return the files in the lake's directory that are not part of the table."""
        self._table.update_incremental()
        replaced, every = (
            self._table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=full)
            for full in (False, True)
        )
        paths = [{str(self.path / name) for name in names} for names in (replaced, every)]
        return OldFiles(
            *(sorted(one for one in found if Path(one).is_file()) for found in (paths[0], paths[1] - paths[0]))
        )

    def forget(self, holds: Callable[[bytes], bool]) -> int:
        """Delete entries of the table's own log that contain something, such as a message's key in the statistics that
        a compaction has written; returns their number. The table stays as it is; versions before a new checkpoint of it
        cannot be read any more. For a caller that holds `locked`."""
        log = self.path / "_delta_log"
        if not any(_holds_in(path, holds) for path in log.iterdir() if path.is_file()):
            return 0
        self._table.update_incremental()
        self._table.create_checkpoint()
        kept = f"{self._table.version():020d}"
        found = [path for path in log.iterdir() if path.name[:20].isdigit() and path.name[:20] < kept]
        holding = [path for path in found if _holds_in(path, holds)]
        for path in holding:
            path.unlink()
        return len(holding)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock that excludes other compactions, vacuums and rewritings.

        Raises:
            StoreLocked: another process holds it.
        """
        path = self.path / LOCK
        path.parent.mkdir(exist_ok=True)
        with path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise StoreLocked(
                    f"{self.path} is being compacted or vacuumed by another process; nothing was changed",
                    hint="try later",
                ) from error
            except OSError as error:
                raise LocalError(
                    f"{path} cannot be locked: {error.strerror}",
                    hint="the lake's file system must support locks (flock)",
                ) from error
            yield


def _holds_in(path: Path, holds: Callable[[bytes], bool]) -> bool:
    """Return whether a file of a table's log contains something; checkpoints are compressed, and decoded."""
    if path.suffix != ".parquet":
        return holds(path.read_bytes())
    with pq.ParquetFile(path) as file:
        return any(holds(str(batch.to_pylist()).encode()) for batch in file.iter_batches(1000))


def _check_schema(path: Path, found: Any, wanted: Any) -> None:
    """Refuse a table with other columns.

    Raises:
        ConfigError: names the first column that is missing, unknown, or of another type.
    """
    kinds = {field.name: field.type for field in found}
    for field in wanted:
        kind = kinds.get(field.name)
        if kind is None:
            raise ConfigError(
                f"{path} is a table without the column {field.name!r}",
                hint=did_you_mean(field.name, kinds) or "it is not a lake of messages; nothing was written",
            )
        if not _is_same_type(kind, field.type):
            raise ConfigError(f"{path}: column {field.name!r} is {kind}, {field.type} is needed; nothing was written")
    unknown = [name for name in kinds if name not in wanted.names]
    if unknown:
        raise ConfigError(f"{path} is a table with a column {unknown[0]!r} that no message has; nothing was written")


def _is_same_type(found: Any, wanted: Any) -> bool:
    """Return whether two Arrow types map to one Delta type: offset sizes and views do not matter."""
    for kinds in (
        (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view),
        (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view),
    ):
        if any(kind(wanted) for kind in kinds):
            return any(kind(found) for kind in kinds)
    return bool(found == wanted)
