"""Lake: a Delta table of messages, written without any JVM package.

    lake/part-….parquet          written by tasks before the commit
    lake/_delta_log/….json       one commit: names of files, and marks
    lake/_tandemq/<broker>/      Spark's checkpoint of the archive of one broker group
    lake/_tandemq_config/…json   configurations of brokers (`spark.jobs.saved_config`)
    lake/_tandemq/compact.lock   held during compact and vacuum, if the lake is local

A commit carries marks (Delta's transaction identifiers) in the same transaction as its files: (checkpoint, batch
number), and (broker group, log offset up to which the table holds its log, epoch of the log there). A batch is
therefore in the table once or not at all, whichever process is killed. A repeated batch is recognized by the first
mark; with the others a lake survives the loss of a checkpoint.

A compaction is a commit with a mark of its own too: of two at once the second one is refused. A local lake also has a
lock, which excludes vacuums meanwhile, and which the operating system releases if its process dies. A remote lake
(`runtime.location`) has the same files but no checkpoints and no lock.

Jobs use the protocol `Lake`, of which `lake.iceberg` is another implementation; `lake.formats` opens either. Removal of
messages needs this one.
Source: docs/guides/pipeline.md, "The lake"; docs/guides/pipeline-lakes.md; Delta protocol, "transaction identifiers".
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.lake.compaction import ListedFile, files_to_merge, locked, merge_files
from tandemq.spark.lake.files import open_parquet
from tandemq.spark.lake.table_checks import check_features, check_names, check_table, mapped_names
from tandemq.spark.runtime.location import ICEBERG, FileEntry, Location, Place, locate
from tandemq.spark.runtime.storage_errors import storage_error
from tandemq.spark.sources.log.parquet_writer import lake_schema

COLLECTED = "tandemq-collect"
"""Mark of a lake that is filled from queues instead of logs; its value identifies the checkpoint."""
COMPACTED = "tandemq-compact"
"""Mark that each compaction increments."""
SETTINGS = {"delta.dataSkippingStatsColumns": "commitLogOffset,storeTimestamp"}
"""Properties of a new table: no keys of messages in the statistics of compactions."""
VACUUM_HOURS = 168


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file in the lake's directory. `stats`: its statistics in Delta's JSON form."""

    name: str
    rows: int
    bytes: int
    stats: str


class OldFiles(NamedTuple):
    """Files in a lake's directory that are not part of the table."""

    replaced: list[FileEntry]
    """Files of older versions."""
    unknown: list[FileEntry]
    """Files of no version, written by killed tasks or by running ones."""


class Lake(Protocol):
    """A table with atomic commits of files and marks."""

    location: Location
    """Directory of its files."""

    def identity(self) -> str:
        """Return the id of the table; a table created again under the same name has another one."""

    def mark(self, name: str) -> int | None:
        """Return the value of a mark in the newest commit that carries it; None if none does."""

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """Add files and set marks atomically; returns the version of the table.

        Raises:
            LocalError: another writer has set one of the marks, or the table cannot be written; nothing is added.
            ConfigError: another tool has changed the columns; nothing is added.
        """

    def replace(self, removed: Sequence[str], added: Sequence[DataFile]) -> int:
        """Remove files (paths as from `data_files`) and add others in one commit; returns the version of the table.
        The commit has the mark of compactions: of a rewriting and a compaction at once one is refused.

        Raises:
            StoreLocked: a file is not part of the table any more, or another process compacts or rewrites it; the added
                files are deleted, and nothing is changed.
            LocalError: the table cannot be written.
        """

    def data_files(self) -> list[str]:
        """Return the paths or URLs of the files that make up the table."""

    def data_files_of(self, version: int) -> list[str]:
        """Return the paths of the files of an older version.

        Raises:
            ConfigError: there is no such version, or its files do not contain exactly its rows.
            LocalError: a file of it was deleted since, or the storage refuses access or does not respond.
        """

    def data_files_within(self, start: int, end: int) -> list[str]:
        """Return the paths or URLs of files that may contain records of log offsets `[start, end)` of any broker group,
        including files without statistics."""

    def data_files_before(self, wall_ms: int) -> list[str]:
        """Return the paths or URLs of files that may contain records stored before a time, including files without
        statistics."""

    def name_of(self, path: str) -> str:
        """Return the name in the lake's directory of one of `data_files`."""

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of the files of `data_files`, by path or URL."""

    def rows(self) -> int:
        """Return the number of rows, from the metadata."""

    def compact(self) -> dict[str, Any]:
        """Merge small files; readers of the old files are not disturbed. Returns numbers of files added and removed.

        Raises:
            StoreLocked: another process compacts or vacuums; nothing was changed.
        """

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """Delete files that left the table more than `hours` ago; returns their names. Raises as `compact`."""

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of a local lake that excludes other compactions, vacuums and rewritings.

        Raises:
            StoreLocked: another process holds it.
        """


def open_table(location: Location) -> DeltaTable:
    """Open a Delta table.

    Raises:
        TableNotFoundError: there is none.
        ConfigError: it has partitions whose names are mapped.
        LocalError: its log cannot be read, or the storage refuses access or does not respond.
    """
    if location.scheme == ICEBERG:
        raise ConfigError(f"{location} is an Iceberg table; only Delta tables are changed here")
    try:
        with location.errors():
            return DeltaTable(location.url, storage_options=location.storage_options())
    except TableNotFoundError:
        raise
    except DeltaError as error:
        if "Partition column" in str(error):  # it stands under its physical name
            raise mapped_names(location) from error
        raise LocalError(
            f"{location} holds a Delta table that cannot be read: {str(error).splitlines()[0]}",
            hint="its _delta_log is damaged, or another tool has written half of it",
        ) from error


class DeltaLake:
    """A Delta table, accessed through delta-rs."""

    def __init__(self, place: Place, *, create: bool = False, options: Mapping[str, str] | None = None) -> None:
        """Open the table, or create an empty one.

        Args:
            place: its directory: a path, a URL, or a location with its options.
            options: storage options of a URL.
        Raises:
            ConfigError: there is no table and `create` is not set; or it has other columns or features that are not
                read here, and is left unchanged; or the store does not make commits safe; or the path looks
                percent-encoded, which delta-rs would decode.
            LocalError: the storage refuses access or does not respond.
        """
        self.location = locate(place, "the lake", options)
        if self.location.is_local and unquote(self.location.url) != self.location.url:
            raise ConfigError(
                f"{self.location}: the path of a lake must not contain % and two digits", hint="rename it"
            )
        try:
            self._table = open_table(self.location)
        except TableNotFoundError:
            if not create:
                raise ConfigError(
                    f"{self.location} holds no Delta table", hint="tandemq spark archive creates one"
                ) from None
            self._table = self._created()
        self._schema = self._checked_schema()

    @property
    def path(self) -> Path:
        """Path of a local lake. Raises ConfigError if it is remote."""
        return self.location.path

    def _created(self) -> DeltaTable:
        if any(name != "_tandemq" for name in self.location.names()):
            raise ConfigError(
                f"{self.location} holds other files and no Delta table", hint="give a directory of its own for the lake"
            )
        if self.location.is_local:
            self.path.mkdir(parents=True, exist_ok=True)
        try:
            with self.location.errors():
                return DeltaTable.create(
                    self.location.url,
                    lake_schema(),
                    mode="error",
                    name="tandemq",
                    description="messages of brokers' commit logs",
                    configuration=SETTINGS,
                    storage_options=self.location.storage_options(),
                )
        except DeltaError:  # another process has created it in the meantime
            return open_table(self.location)

    def _checked_schema(self) -> Any:
        """Return the schema of the table, after all checks of its form."""
        check_table(self.location, self._table, lake_schema())
        return self._table.schema()

    def _update(self) -> None:
        """Load the newest version of the table; raises ConfigError if it has got features that are not read here."""
        try:
            with self.location.errors():
                self._table.update_incremental()
        except DeltaError as error:
            raise LocalError(
                f"{self.location}: the newest version cannot be read: {str(error).splitlines()[0]}",
                hint="its _delta_log is damaged, or another tool has written half of it",
            ) from error
        check_features(self.location, self._table)

    def identity(self) -> str:
        """As in `Lake`."""
        return str(self._table.metadata().id)

    def mark(self, name: str) -> int | None:
        """As in `Lake`."""
        self._update()
        return self._table.transaction_version(name)

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """As in `Lake`."""
        now_ms = int(time.time() * 1000)
        return self._commit([AddAction(file.name, file.bytes, {}, now_ms, True, file.stats) for file in files], marks)

    def _commit(self, actions: list[AddAction | RemoveAction], marks: Mapping[str, int]) -> int:
        if self._table.schema() != self._schema:
            self._schema = self._checked_schema()
        properties = CommitProperties(app_transactions=[Transaction(name, value) for name, value in marks.items()])
        try:
            with self.location.errors():
                self._table.create_write_transaction(
                    actions, mode="append", schema=self._schema, partition_by=[], commit_properties=properties
                )
        except (CommitFailedError, DeltaError) as error:
            raise LocalError(
                f"{self.location}: the commit failed: {str(error).splitlines()[0]}",
                hint="is another archive of the same broker group running?",
            ) from error
        self._update()
        return self._table.version()

    def replace(self, removed: Sequence[str], added: Sequence[DataFile]) -> int:
        """As in `Lake`."""
        now_ms = int(time.time() * 1000)
        names = [self.name_of(path) for path in removed]
        before = self.mark(COMPACTED) or 0
        sizes = self.sizes()
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.name, file.bytes, {}, now_ms, True, file.stats) for file in added
        ]
        missing = [name for name, path in zip(names, removed, strict=True) if path not in sizes]
        if missing:
            self._discard(actions)
            raise StoreLocked(
                f"{self.location}: {missing[0]} is not part of the table any more; nothing was changed",
                hint="it was compacted or changed by another process meanwhile: repeat the command",
            )
        actions += [RemoveAction(name, True, now_ms, sizes[path]) for name, path in zip(names, removed, strict=True)]
        return self._replace(actions, before + 1)

    def data_files(self) -> list[str]:
        """As in `Lake`."""
        return [self.location.child(name) for name in self._added("path")["path"]]

    def name_of(self, path: str) -> str:
        """As in `Lake`."""
        return self.location.name_of(path)

    def data_files_of(self, version: int) -> list[str]:
        """As in `Lake`."""
        options = self.location.storage_options()
        try:
            table = DeltaTable(self.location.url, version=version, storage_options=options)
            names = _names_in(table)
        except (DeltaError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"{self.location} has no version {version} that can be read: {str(error).splitlines()[0]}",
                hint=f"the newest is {self._table.version()}",
            ) from error
        except OSError as error:
            raise storage_error(self.location.url, error) from error
        check_features(self.location, table, version)
        check_names(self.location, names)
        found = {entry.name for entry in self.location.entries(names)}
        gone = [name for name in names if name not in found]
        if gone:
            raise LocalError(
                f"version {version} of {self.location} cannot be read: {gone[0]} was deleted",
                hint="vacuum and removals delete files of older versions; give a newer version, or none",
            )
        return [self.location.child(name) for name in names]

    def sizes(self) -> dict[str, int]:
        """As in `Lake`."""
        return {
            self.location.child(name): size
            for name, size in zip(*self._added("path", "size_bytes").values(), strict=True)
        }

    def data_files_within(self, start: int, end: int) -> list[str]:
        """As in `Lake`."""
        columns = self._added("path", "min.commitLogOffset", "max.commitLogOffset").values()
        return [
            self.location.child(path)
            for path, low, high in zip(*columns, strict=True)
            if low is None or high is None or (low < end and high >= start)
        ]

    def data_files_before(self, wall_ms: int) -> list[str]:
        """As in `Lake`."""
        columns = self._added("path", "min.storeTimestamp").values()
        return [
            self.location.child(path)
            for path, low in zip(*columns, strict=True)
            if low is None or low.timestamp() * 1000 < wall_ms + 1
        ]

    def rows(self) -> int:
        """As in `Lake`."""
        return sum(count or 0 for count in self._added("num_records")["num_records"])

    def _added(self, *names: str) -> dict[str, list[Any]]:
        """Return columns of Delta's file metadata by name, one value per file; None if a file has no such value."""
        self._update()
        actions = pa.table(self._table.get_add_actions(flatten=True))
        known = set(actions.column_names)
        columns = {
            name: actions.column(name).to_pylist() if name in known else [None] * actions.num_rows for name in names
        }
        if "path" in columns:
            paths = [unquote(str(name)) for name in columns["path"]]
            check_names(self.location, paths)
            columns["path"] = paths
        return columns

    def compact(self) -> dict[str, Any]:
        """As in `Lake`; also writes a checkpoint of the table's own log."""
        with self.locked():
            before = self.mark(COMPACTED) or 0
            groups = self._small_files()
            actions: list[AddAction | RemoveAction] = []
            for number, group in enumerate(groups):
                row = self._merged(group, number)
                now_ms = int(time.time() * 1000)
                actions.append(AddAction(row["file"], row["bytes"], {}, now_ms, False, row["stats"]))
                actions += [RemoveAction(file.name, False, now_ms, file.bytes, {}) for file in group]
            if groups:
                self._replace(actions, before + 1)
            with self.location.errors():
                self._table.create_checkpoint()
        return {"filesAdded": len(groups), "filesRemoved": sum(map(len, groups))}

    def _small_files(self) -> list[list[DataFile]]:
        """Return the groups of files to merge, in the order of their log offsets."""
        columns = self._added("path", "num_records", "size_bytes", "min.commitLogOffset")
        found = files_to_merge(ListedFile(*row) for row in zip(*columns.values(), strict=True))
        return [[DataFile(file.name, file.rows or 0, file.bytes, "") for file in group] for group in found]

    def _merged(self, group: Sequence[DataFile], number: int) -> dict[str, Any]:
        """Write the rows of some files to a new one, and return its row of `files_schema`."""
        rows = sum(file.rows for file in group) if all(file.rows for file in group) else None
        return merge_files(self.location, [file.name for file in group], rows, number)

    def _replace(self, actions: list[AddAction | RemoveAction], number: int) -> int:
        """Commit a compaction or a rewriting; returns the version of the table.

        Raises:
            StoreLocked: another one was faster; the new files are deleted.
        """
        try:
            return self._commit(actions, {COMPACTED: number})
        except LocalError as error:
            if not isinstance(error.__cause__, CommitFailedError):
                raise
            self._discard(actions)
            raise StoreLocked(
                f"{self.location} was compacted or changed by another process meanwhile; nothing was changed",
                hint="try later",
            ) from error

    def _discard(self, actions: Sequence[AddAction | RemoveAction]) -> None:
        """Delete added files of a refused commit; a file of the table is left, in case the commit was not refused but
        its confirmation lost."""
        known = self.sizes()
        for action in actions:
            if isinstance(action, AddAction) and self.location.child(action.path) not in known:
                self.location.delete(action.path)

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """As in `Lake`. Files of killed tasks, which never became part of the table, are deleted too."""
        with self.locked():
            self._update()
            with self.location.errors():
                found = self._table.vacuum(
                    retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=True
                )
            abandoned = self.location.abandoned(time.time() - hours * 3600)
            for name in () if dry_run else abandoned:
                self.location.delete(name)
            return found + abandoned

    def old_files(self) -> "OldFiles":
        """Return the existing files in the lake's directory that are not part of the table."""
        self._update()
        with self.location.errors():
            replaced, every = (
                set(self._table.vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=full))
                for full in (False, True)
            )
        unknown = (every - replaced) | set(self.location.abandoned(time.time()))
        return OldFiles(*(self.location.entries(sorted(names)) for names in (replaced, unknown)))

    def forget(self, holds: Callable[[bytes], bool]) -> int:
        """Delete entries of the table's own log that contain something, such as a message's key in the statistics that
        a compaction has written; returns their number. The table stays as it is; versions before a new checkpoint of it
        cannot be read any more. For a caller that holds `locked`."""
        log = self.location.within("_delta_log")
        names = [file.name for file in log.files()]
        holding = [name for name in names if _holds_in(log, name, holds)]
        if not holding:
            return 0
        self._update()
        with self.location.errors():
            self._table.create_checkpoint()
        kept = f"{self._table.version():020d}"
        deleted = [name for name in holding if name[:20].isdigit() and name[:20] < kept]
        for name in deleted:
            log.delete(name)
        return len(deleted)

    def locked(self) -> AbstractContextManager[None]:
        """As in `Lake`."""
        return locked(self.location)


def _names_in(table: DeltaTable) -> list[str]:
    """Return the names of the files of a table."""
    names: list[Any] = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
    return [unquote(str(name)) for name in names]


def _holds_in(log: Location, name: str, holds: Callable[[bytes], bool]) -> bool:
    """Return whether a file of a table's log contains something; checkpoints are compressed, and decoded."""
    if not name.endswith(".parquet"):
        with log.errors(name), log.open_input(name) as file:
            return holds(file.read())
    with open_parquet(log, name) as found:
        return any(holds(str(batch.to_pylist()).encode()) for batch in found.iter_batches(1000))
