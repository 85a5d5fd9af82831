"""Lake in Iceberg: a table of messages in a catalogue, written through pyiceberg.

    table/data/part-….parquet                  written by tasks before the commit
    table/data/_tandemq/, _tandemq_config/     as in the directory of a Delta lake
    table/metadata/                            versions of the table; the catalogue knows the newest one

A commit is one request to the catalogue: a snapshot with the files, and the marks of `lake.delta` as properties of the
snapshot (`tandemq.mark.NAME`). Each snapshot of ours has all marks. They are read from the newest one, behind the
snapshots of other writers. The same request sets the marks as properties of the table too, which are read if all our
snapshots have expired. After a rollback of the table the marks are those of the older snapshot; if they are not known
any more, the table is refused.

A request is refused if the table has another snapshot by then. It is then repeated on top of that one, unless one of
its marks was set. If the outcome is unknown, because the connection was lost, the table's snapshots tell it. The id of
the snapshot is the same in all attempts.

Source: docs/guides/pipeline-lakes.md, "Iceberg"; Iceberg table specification, "snapshots".
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import PurePath
from typing import Any

import pyarrow as pa
from pyiceberg.conversions import to_bytes
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.table.update import AssertTableUUID
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, IntegerType, LongType, NestedField, StringType, TimestamptzType

from tandemq.errors import ConfigError, LocalError, StoreLocked
from tandemq.spark.lake.catalogue import AWAY, ERRORS, Catalogue, storage_options
from tandemq.spark.lake.compaction import ListedFile, files_to_merge, locked, merge_files
from tandemq.spark.lake.delta import COMPACTED, VACUUM_HOURS, DataFile
from tandemq.spark.lake.table_checks import check_schema
from tandemq.spark.runtime.location import FileEntry, Location, locate
from tandemq.spark.sources.log.parquet_writer import lake_schema

log = logging.getLogger(__name__)
MARK = "tandemq.mark."
"""Prefix of marks among the properties of snapshots and of the table."""
SEQUENCE = "tandemq.sequence"
"""Property of the table: sequence number of the snapshot that has set its marks."""
MAPPING = "schema.name-mapping.default"
PROPERTIES = {
    "write.metadata.metrics.default": "none",
    "write.metadata.metrics.column.commitLogOffset": "full",
    "write.metadata.metrics.column.storeTimestamp": "full",
    "commit.manifest-merge.enabled": "true",
    "write.metadata.delete-after-commit.enabled": "true",
}
"""Properties of a new table: no keys of messages in the statistics that other tools write; few files of metadata."""
ORDER = ("brokerName", "commitLogOffset")
"""Order of the rows in files that other tools write."""
ATTEMPTS_MAX = 20
SNAPSHOTS_KEPT = 500
"""Number of the newest snapshots that compactions keep. Of older ones they keep changes of files, and those before."""
FORMAT_VERSION = 2
COMMIT_S = 3600
"""Age of files of the metadata from which on they belong to no commit in progress."""


class IcebergLake:
    """An Iceberg table, accessed through pyiceberg."""

    def __init__(self, place: Location, *, create: bool = False) -> None:
        """Open the table, or create an empty one.

        Args:
            place: its name, with deltalake's options of the store.
        Raises:
            ConfigError: there is no table and `create` is not set, or it has other columns or partitions, and is left
                unchanged; or the catalogue is not configured, or denies access.
            LocalError: the catalogue does not respond.
        """
        self._catalogue = Catalogue(place.url)
        table = self._catalogue.load()
        if table is None and not create:
            raise ConfigError(f"{place} does not exist", hint="tandemq spark archive creates it")
        self._table: Any = self._created() if table is None else table
        self._check()
        root = self._table.properties.get("write.data.path", f"{self._table.location().rstrip('/')}/data")
        self._root = str(root).rstrip("/")
        """URL of `location` as other tools write it."""
        options = storage_options(self._table.io.properties) | dict(place.options)
        self.location = locate(self._root, "the lake", options)
        self._entries: tuple[int, dict[str, IcebergFile]] = (0, {})
        if self.location.is_local:
            self.location.path.mkdir(parents=True, exist_ok=True)

    def _created(self) -> Any:
        with suppress(TableAlreadyExistsError):
            self._catalogue.create(_schema(), _order(), PROPERTIES)
        return self._catalogue.load()

    def _check(self) -> None:
        """Refuse a table that is no lake of messages. Raises ConfigError."""
        url = self._catalogue.url
        if not self._table.spec().is_unpartitioned():
            raise ConfigError(f"{url} is partitioned; lakes of messages are not", hint="nothing was read or written")
        if self._table.format_version > FORMAT_VERSION:
            raise ConfigError(
                f"{url} has the format version {self._table.format_version}; {FORMAT_VERSION} is the newest supported",
                hint="copy it into a table of that version; nothing was read or written",
            )
        check_schema(url, schema_to_pyarrow(self._table.schema(), include_field_ids=False), lake_schema())

    def _update(self) -> None:
        """Load the newest version of the table; raises as the constructor."""
        before = self._table.schema(), self._table.spec()
        self._catalogue.call(self._table.refresh)
        if (self._table.schema(), self._table.spec()) != before:
            self._check()

    def identity(self) -> str:
        """As in `Lake`."""
        return str(self._table.metadata.table_uuid)

    # Marks and commits.

    def mark(self, name: str) -> int | None:
        """As in `Lake`."""
        self._update()
        return self._marks().get(name)

    def _marks(self) -> dict[str, int]:
        """Return the marks of the version that is loaded.

        Raises:
            LocalError: the table has been rolled back to a version whose marks are not known.
        """
        newest = snapshot = self._table.current_snapshot()
        while snapshot is not None:
            found = _marks_in(snapshot.summary.additional_properties) if snapshot.summary else {}
            if found:
                return found
            snapshot = self._parent(snapshot)
        if newest is None or SEQUENCE not in self._table.properties:
            return {}
        if newest.sequence_number < int(self._table.properties[SEQUENCE]):
            raise LocalError(
                f"{self._catalogue.url} was rolled back to a snapshot of another writer, and older ones have expired: "
                "it is not known what it holds",
                hint="archive into another table",
            )
        return _marks_in(self._table.properties)

    def commit(self, files: Sequence[DataFile], marks: Mapping[str, int]) -> int:
        """As in `Lake`."""
        added = [self._described(file) for file in files]
        known = self._marks()

        def change(snapshot: Any) -> Any:
            producer = snapshot.merge_append()
            for file in added:
                producer.append_data_file(file)
            return producer

        return self._commit(change, marks, {name: known.get(name) for name in marks})

    def replace(self, removed: Sequence[str], added: Sequence[DataFile]) -> int:
        """As in `Lake`."""
        return self._exchange([self.name_of(path) for path in removed], added, self.mark(COMPACTED))

    def _exchange(self, removed: Sequence[str], added: Sequence[DataFile], before: int | None) -> int:
        """Replace files in one commit. `before`: value of the mark of compactions when the change was planned. Raises
        as `replace`."""

        def change(snapshot: Any) -> Any:
            known = self._files()
            gone = [name for name in removed if name not in known]
            if gone:
                raise LocalError(f"{self._catalogue.url}: {gone[0]} is not part of the table any more")
            producer = snapshot.overwrite()
            for name in removed:
                producer.delete_data_file(known[name])
            for file in added:
                producer.append_data_file(self._described(file))
            return producer

        try:
            return self._commit(change, {COMPACTED: (before or 0) + 1}, {COMPACTED: before})
        except LocalError as error:
            if isinstance(error.__cause__, ERRORS):
                raise
            for file in added:
                self.location.delete(file.name)
            raise StoreLocked(
                f"{self._catalogue.url} was compacted or changed by another process meanwhile; nothing was changed",
                hint="try later",
            ) from error

    def _commit(
        self, change: Callable[[Any], Any], marks: Mapping[str, int], expected: Mapping[str, int | None]
    ) -> int:
        """Commit a snapshot with marks; returns its id.

        Args:
            change: adds the files to the snapshot that it gets.
            expected: values of the marks before the commit.
        Raises:
            LocalError: another writer has set one of the marks; nothing is added. Also as `commit`.
        """
        snapshot_id: int | None = None
        for _ in range(ATTEMPTS_MAX):
            known = self._marks()
            if any(known.get(name) != value for name, value in expected.items()):
                raise LocalError(
                    f"{self._catalogue.url}: another writer has committed meanwhile; nothing was added",
                    hint="is another archive of the same broker group running?",
                )
            properties = {f"{MARK}{name}": str(value) for name, value in (known | dict(marks)).items()}
            transaction = self._table.transaction()
            producer = change(transaction.update_snapshot(snapshot_properties=properties))
            snapshot_id = producer._snapshot_id = snapshot_id or producer.snapshot_id  # noqa: SLF001
            self._catalogue.call(producer.commit)  # writes manifests
            properties[MAPPING] = self._table.schema().name_mapping.model_dump_json()
            properties[SEQUENCE] = str(self._table.metadata.next_sequence_number())
            transaction.set_properties(properties)
            if self._send(transaction, producer):
                return int(producer.snapshot_id)
        raise LocalError(f"{self._catalogue.url}: other writers were faster {ATTEMPTS_MAX} times; nothing was added")

    def _send(self, transaction: Any, producer: Any) -> bool:
        """Send a commit; returns whether it is part of the table, whose newest version is loaded then. Raises as
        `commit`."""
        # Transaction.commit_transaction would repeat the commit without a look at the marks.
        requirements = (*transaction._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))  # noqa: SLF001
        is_refused = False
        try:
            self._catalogue.commit(self._table, requirements, transaction._updates)  # noqa: SLF001
            return True
        except CommitFailedException:
            is_refused = True
        except (CommitStateUnknownException, *AWAY):
            log.warning("lake: the outcome of a commit to %s is unknown, reading it again", self._catalogue.url)
        except ERRORS as error:
            raise self._catalogue.error(error) from error
        self._update()
        if self._table.snapshot_by_id(producer.snapshot_id) is not None:
            return True
        if is_refused:  # else the catalogue may still be working on it
            producer._clean_all_uncommitted()  # noqa: SLF001
        return False

    def _described(self, file: DataFile) -> IcebergFile:
        """Return a file as manifests describe it, with the ranges of its columns."""
        stats = json.loads(file.stats)
        bounds = [self._bounds(stats.get(side, {})) for side in ("minValues", "maxValues")]
        return IcebergFile.from_args(
            content=DataFileContent.DATA,
            file_path=f"{self._root}/{file.name}",
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=file.rows,
            file_size_in_bytes=file.bytes,
            column_sizes={},
            value_counts={},
            null_value_counts={},
            nan_value_counts={},
            lower_bounds=bounds[0],
            upper_bounds=bounds[1],
            key_metadata=None,
            split_offsets=None,
            equality_ids=None,
            sort_order_id=None,
            spec_id=self._table.spec().spec_id,
        )

    def _bounds(self, values: Mapping[str, Any]) -> dict[int, bytes]:
        found = {}
        for name, value in values.items():
            field = self._table.schema().find_field(name)
            number = _micros(value) if isinstance(value, str) else value
            found[field.field_id] = to_bytes(field.field_type, number)
        return found

    # Files.

    def _files(self) -> dict[str, IcebergFile]:
        """Return the files of the version that is loaded, by name.

        Raises:
            ConfigError: they do not contain exactly the table's rows, or another directory has some.
        """
        snapshot = self._table.current_snapshot()
        if snapshot is None:
            return {}
        if self._entries[0] != snapshot.snapshot_id:
            self._entries = snapshot.snapshot_id, self._catalogue.call(lambda: self._files_of(snapshot))
        return self._entries[1]

    def _files_of(self, snapshot: Any) -> dict[str, IcebergFile]:
        found = {}
        for manifest in snapshot.manifests(self._table.io):
            for entry in manifest.fetch_manifest_entry(self._table.io, discard_deleted=True):
                file = entry.data_file
                if manifest.content == ManifestContent.DELETES:
                    raise ConfigError(
                        f"{self._catalogue.url} has delete files: its files still have deleted rows",
                        hint="CALL system.rewrite_data_files(table => '…', options => map('delete-file-threshold', "
                        "'1', 'remove-dangling-deletes', 'true')) in Spark with Iceberg's library, then repeat",
                    )
                found[self._inside(file.file_path)] = file
        return found

    def _inside(self, path: str) -> str:
        """Return the name in the directory of the table's files of a path in a manifest."""
        if path.startswith(f"{self._root}/"):
            return path.removeprefix(f"{self._root}/")
        if self.location.is_local:
            with suppress(ConfigError, ValueError):
                return str(PurePath(locate(path, "the file").url).relative_to(self.location.url))
        raise ConfigError(
            f"{self._catalogue.url}: its file {path} is not in {self._root}; nothing was read or written",
            hint="copy the table: CREATE TABLE … AS SELECT",
        )

    def _bound(self, name: str, bounds: Mapping[int, bytes] | None) -> int | None:
        """Return the bound of a column in a file; None if it is not known."""
        found = (bounds or {}).get(self._table.schema().find_field(name).field_id)
        return None if found is None else int.from_bytes(found, "little", signed=True)

    def data_files(self) -> list[str]:
        """As in `Lake`."""
        self._update()
        return [self.location.child(name) for name in self._files()]

    def data_files_of(self, version: int) -> list[str]:
        """As in `Lake`. A version is the id of a snapshot."""
        self._update()
        snapshot = self._table.snapshot_by_id(version)
        if snapshot is None:
            current = self._table.current_snapshot()
            raise ConfigError(
                f"{self._catalogue.url} has no snapshot {version}",
                hint="it may have expired; " + (f"the newest is {current.snapshot_id}" if current else "it has none"),
            )
        names = list(self._catalogue.call(lambda: self._files_of(snapshot)))
        found = {entry.name for entry in self.location.entries(names)}
        gone = [name for name in names if name not in found]
        if gone:
            raise LocalError(
                f"snapshot {version} of {self._catalogue.url} cannot be read: {gone[0]} was deleted",
                hint="give a newer snapshot, or none",
            )
        return [self.location.child(name) for name in names]

    def data_files_within(self, start: int, end: int) -> list[str]:
        """As in `Lake`."""
        self._update()
        found = []
        for name, file in self._files().items():
            low = self._bound("commitLogOffset", file.lower_bounds)
            high = self._bound("commitLogOffset", file.upper_bounds)
            if low is None or high is None or (low < end and high >= start):
                found.append(self.location.child(name))
        return found

    def data_files_before(self, wall_ms: int) -> list[str]:
        """As in `Lake`."""
        self._update()
        found = []
        for name, file in self._files().items():
            low = self._bound("storeTimestamp", file.lower_bounds)
            if low is None or low < (wall_ms + 1) * 1000:
                found.append(self.location.child(name))
        return found

    def name_of(self, path: str) -> str:
        """As in `Lake`."""
        return self.location.name_of(path)

    def sizes(self) -> dict[str, int]:
        """As in `Lake`."""
        self._update()
        return {self.location.child(name): file.file_size_in_bytes for name, file in self._files().items()}

    def rows(self) -> int:
        """As in `Lake`."""
        self._update()
        return sum(file.record_count for file in self._files().values())

    # Maintenance.

    def locked(self) -> AbstractContextManager[None]:
        """As in `Lake`."""
        return locked(self.location)

    def compact(self) -> dict[str, Any]:
        """As in `Lake`; also lets snapshots expire (`SNAPSHOTS_KEPT`)."""
        with self.locked():
            before = self.mark(COMPACTED)
            groups = files_to_merge(
                ListedFile(
                    name,
                    file.record_count,
                    file.file_size_in_bytes,
                    self._bound("commitLogOffset", file.lower_bounds),
                )
                for name, file in self._files().items()
            )
            added = []
            for number, group in enumerate(groups):
                row = merge_files(
                    self.location, [file.name for file in group], sum(file.rows or 0 for file in group), number
                )
                added.append(DataFile(row["file"], row["rows"], row["bytes"], row["stats"]))
            removed = [file.name for group in groups for file in group]
            if groups:
                self._exchange(removed, added, before)
            self._expire(_superfluous(self._snapshots()))
        return {"filesAdded": len(groups), "filesRemoved": len(removed)}

    def vacuum(self, hours: int = VACUUM_HOURS, *, dry_run: bool = False) -> list[str]:
        """As in `Lake`. Snapshots that were replaced before that time expire; files that no snapshot has, and that were
        last changed before that time, are deleted, those of the metadata too."""
        with self.locked():
            self._update()
            before_s = time.time() - hours * 3600
            old = {
                snapshot.snapshot_id
                for successor, snapshot in pairwise(self._snapshots())
                if successor.timestamp_ms <= before_s * 1000
            }
            if not dry_run:
                self._expire(old)
            data, metadata = self._referenced(set() if not dry_run else old)
            found = [entry.name for entry in self.location.files() if _is_left(entry, data, before_s)]
            place = locate(self._metadata_root(), "the lake", dict(self.location.options))
            youngest_s = min(before_s, time.time() - COMMIT_S)
            left = [entry.name for entry in place.files() if _is_left(entry, metadata, youngest_s, ".avro")]
            for name in () if dry_run else found:
                self.location.delete(name)
            for name in () if dry_run else left:
                place.delete(name)
            abandoned = self.location.abandoned(before_s)
            for name in () if dry_run else abandoned:
                self.location.delete(name)
            return found + abandoned + [f"metadata/{name}" for name in left]

    def _parent(self, snapshot: Any) -> Any:
        """Return the parent of a snapshot; None if it has none, or has expired."""
        parent = snapshot.parent_snapshot_id
        return None if parent is None else self._table.snapshot_by_id(parent)

    def _snapshots(self) -> list[Any]:
        """Return the snapshots that may expire, and the newest one, which comes first: those that are in no branch of
        others and behind no tag."""
        kept = set[int]()
        for name, ref in self._table.refs().items():
            snapshot = None if name == MAIN_BRANCH else self._table.snapshot_by_id(ref.snapshot_id)
            while snapshot is not None and snapshot.snapshot_id not in kept:
                kept.add(snapshot.snapshot_id)
                snapshot = self._parent(snapshot)
        found = [snapshot for snapshot in self._table.snapshots() if snapshot.snapshot_id not in kept]
        return sorted(found, key=lambda snapshot: -snapshot.sequence_number)

    def _expire(self, snapshots: set[int]) -> None:
        """Let snapshots expire, except the newest ones of branches, and tagged ones; files remain."""
        kept = {ref.snapshot_id for ref in self._table.refs().values()}
        ids = sorted(snapshots - kept)
        if not ids:
            return
        with suppress(CommitFailedException, CommitStateUnknownException):  # the next time then
            self._catalogue.call(lambda: self._table.maintenance.expire_snapshots().by_ids(ids).commit())
        self._update()

    def _referenced(self, expired: set[int]) -> tuple[set[str], set[str]]:
        """Return the names of the files of all snapshots but some, and those of their manifests and lists."""
        kept = {ref.snapshot_id for ref in self._table.refs().values()}
        data, metadata, seen = set[str](), set[str](), set[str]()
        for snapshot in self._table.snapshots():
            if snapshot.snapshot_id in expired - kept:
                continue
            metadata.add(str(snapshot.manifest_list).rpartition("/")[2])
            for manifest in self._catalogue.call(partial(snapshot.manifests, self._table.io)):
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                metadata.add(manifest.manifest_path.rpartition("/")[2])
                entries = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
                data |= {self._inside(entry.data_file.file_path) for entry in entries}
        return data, metadata

    def _metadata_root(self) -> str:
        found = self._table.properties.get("write.metadata.path", f"{self._table.location().rstrip('/')}/metadata")
        return str(found)


def _schema() -> Schema:
    """Return the columns of a new table."""
    kinds = {
        pa.string(): StringType(),
        pa.binary(): BinaryType(),
        pa.int32(): IntegerType(),
        pa.int64(): LongType(),
        pa.timestamp("us", "UTC"): TimestamptzType(),
    }
    fields = enumerate(lake_schema(), 1)
    return Schema(*(NestedField(number, field.name, kinds[field.type], required=False) for number, field in fields))


def _order() -> SortOrder:
    """Return the order of the rows of a new table."""
    schema = _schema()
    return SortOrder(*(SortField(schema.find_field(name).field_id, transform=IdentityTransform()) for name in ORDER))


def _marks_in(properties: Mapping[str, str]) -> dict[str, int]:
    return {name.removeprefix(MARK): int(value) for name, value in properties.items() if name.startswith(MARK)}


def _micros(text: str) -> int:
    """Return the microseconds since 1970 of a time in statistics."""
    moment = datetime.fromisoformat(text)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond


def _superfluous(snapshots: Sequence[Any]) -> set[int]:
    """Return the ids of old snapshots whose files all belong to a younger one that stays, the last one before a change
    of files. `snapshots`: the newest first."""
    return {
        snapshot.snapshot_id
        for pair in pairwise(snapshots[SNAPSHOTS_KEPT - 1 :])
        if all(one.summary is not None and one.summary.operation == Operation.APPEND for one in pair)
        for snapshot in pair[1:]
    }


def _is_left(entry: FileEntry, referenced: set[str], before_s: float, suffix: str = ".parquet") -> bool:
    return entry.name.endswith(suffix) and entry.name not in referenced and entry.changed_s <= before_s
