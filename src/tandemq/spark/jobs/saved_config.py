"""Configuration of a broker, kept beside its archived log: topics, groups, offsets of consumers, delay progress.

    LAKE/_tandemq_config/<broker>/<time>.json
        {"made": ms, "from": "…", "logEnd": n, "tables": {"topics.json": {…}, …}}

The tables have the form of the files in `config/` of a store. They are read first, then the log's end, and the document
is written when the archive has reached that end: a store of which the progress of delayed messages is newer than its
log would never deliver those that the log lacks. The newest `KEPT` documents are kept.

Source: docs/guides/pipeline.md, "Archive"; docs/internals/storage.md, "config files".
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from tandemq.boundary import Disk
from tandemq.broker.features.delay.service import FILE as DELAYS
from tandemq.broker.state.consumer_offsets import FILE as OFFSETS
from tandemq.broker.state.consumer_offsets import ConsumerOffsets
from tandemq.broker.state.groups import FILE as GROUPS
from tandemq.broker.state.persistence import Saver
from tandemq.broker.state.queue_mappings import DETAILS, TABLE, VERSION
from tandemq.broker.state.queue_mappings import FILE as MAPPINGS
from tandemq.broker.state.table_journal import TableJournal, removed_names
from tandemq.broker.state.topics import FILE as TOPICS
from tandemq.errors import StoreDamaged, TandemError
from tandemq.real.disk import RealDisk
from tandemq.spark.runtime.location import Location
from tandemq.storage.json_tables import DataVersion, TableFile

log = logging.getLogger(__name__)
DIRECTORY = "_tandemq_config"
KEPT = 24
EVERY_S = 300.0
"""Time between two documents of an archive that continues."""
FILES = (TOPICS, MAPPINGS, GROUPS, OFFSETS, DELAYS)
JOURNALED = {TOPICS: "topicConfigTable", GROUPS: "subscriptionGroupTable"}
"""Tables that may have files of changes beside them, and the key of their entries."""


@dataclass(frozen=True, slots=True)
class SavedConfig:
    """Tables of a broker at a moment."""

    made_ms: int
    """When they were read, by the clock of the machine that did."""
    origin: str
    """Address of the broker, or the directory of its store."""
    log_end: int | None
    """End of the broker's log after they were read; None: they are as old as the log beside them."""
    tables: Mapping[str, dict[str, Any]]
    """By file name in `config/`, checked."""

    def encode(self) -> bytes:
        """Return the document."""
        tree = {"made": self.made_ms, "from": self.origin, "logEnd": self.log_end, "tables": dict(self.tables)}
        return json.dumps(tree).encode()

    @classmethod
    def decode(cls, data: bytes, name: str) -> "SavedConfig":
        """Read a document.

        Raises:
            StoreDamaged: it is malformed.
        """
        try:
            tree = json.loads(data)
            return cls(int(tree["made"]), str(tree["from"]), tree["logEnd"], checked(tree["tables"], name))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StoreDamaged(f"{name} is no configuration of a broker: {error!r}", hint="delete it") from error


ConfigSource = Callable[[], SavedConfig]
"""Reads the configuration of a live broker. Raises NetworkError, RemoteError, StoreDamaged."""


def checked(tables: Mapping[str, Any], origin: str) -> dict[str, dict[str, Any]]:
    """Return the known ones of some tables.

    Raises:
        StoreDamaged: one of them has another content.
    """
    found = {file.name: tables[file.name] for file in FILES if tables.get(file.name)}
    for file in FILES:
        if file.name in found and file.check is not None:
            try:
                file.check(found[file.name])
            except (StoreDamaged, LookupError, TypeError, AttributeError, ValueError) as error:
                raise StoreDamaged(f"{file.name} of {origin}: {error}") from error
    return found


def tables_of_responses(topics: Any, groups: Any, offsets: Any, delays: Any) -> dict[str, Any]:
    """Return the tables in a broker's responses to the requests of its slaves (GET_ALL_…)."""
    own = dict(topics or {})
    version, details = own.pop(VERSION, None), own.pop(DETAILS, None)
    mappings = {"dataVersion": version, TABLE: details} if details else None
    values = (own, mappings, groups, offsets, delays)
    return {file.name: value for file, value in zip(FILES, values, strict=True)}


class _ConfigDisk:
    """The part of `Disk` that reads the tables of a store, without write access."""

    def __init__(self, store: Location) -> None:
        """`store`: directory of the store."""
        self._store = store

    def read(self, path: str) -> bytes | None:
        """Return the content of a file; None if there is none."""
        return self._store.read(path)

    def list(self, path: str) -> list[str]:
        """Return the names of the files in a directory."""
        return [file.name for file in self._store.within(path).files()]


def config_of_files(store: Location) -> SavedConfig | None:
    """Read the tables of a store, with their files of changes; None if it has none. The caller finds the log's end.

    Raises:
        StoreDamaged: a table is damaged, and so is its .bak.
    """
    disk = cast(Disk, _ConfigDisk(store))
    names = set(disk.list("config"))
    made_ms = int(time.time() * 1000)
    tables = {file.name: _table(disk, file) for file in FILES if names & {file.name, f"{file.name}.bak"}}
    return SavedConfig(made_ms, str(store), None, checked(tables, str(store))) if any(tables.values()) else None


def offsets_of_files(store: Location) -> dict[str, dict[int, int]]:
    """Read the offsets of a store by "topic@group" and queue id, with their files of changes.

    Raises:
        StoreDamaged: the table is damaged, and so is its .bak.
    """
    return ConsumerOffsets(Saver(cast(Disk, _ConfigDisk(store))), 0).table


def _table(disk: Disk, file: TableFile) -> dict[str, Any]:
    if file is OFFSETS:
        return ConsumerOffsets(Saver(disk), 0).for_slaves()
    content = file.load(disk)
    key = JOURNALED.get(file)
    if key is None:
        return content

    def apply(change: dict[str, Any], adds_only: bool) -> None:  # as the journal calls it
        entries = content.setdefault(key, {})
        for name in () if adds_only else removed_names(change):
            entries.pop(name, None)
        for name, entry in (change.get(key) or {}).items():
            if not (adds_only and name in entries):
                entries[name] = entry

    journal = TableJournal(disk, file.name, lambda _names: {})
    version = DataVersion.from_json(content.get("dataVersion"))
    version = journal.replay(version, int(time.time() * 1000), apply, has_table=bool(content))
    return content | {"dataVersion": version.as_json()}


class ConfigKeeper:
    """Keeps the configuration of one broker group in a lake, while its log is archived."""

    def __init__(self, lake: Location, broker_name: str, store: Location, source: ConfigSource | None) -> None:
        """`source`: of a live broker; None: the files of the store, if it has them."""
        self._place = config_place(lake, broker_name)
        self._store = store
        self._source = source
        self._pending: SavedConfig | None = None
        self._taken_s = 0.0
        self.kept_ms: int | None = None
        """When the newest document of this run was read; None: there is none."""

    def take(self, log_end: Callable[[], int]) -> None:
        """Read the tables, then the end of the log.

        Args:
            log_end: returns the end of the archived log, for the files beside it.
        Raises:
            NetworkError, RemoteError, StoreDamaged: a live broker does not answer, refuses, or answers otherwise.
        """
        self._taken_s = time.monotonic()
        if self._source is not None:
            self._pending = self._source()
            return
        try:
            found = config_of_files(self._store)
        except StoreDamaged as error:
            log.warning("archive: the configuration is not kept: %s", error)
            return
        if found is not None:
            self._pending = SavedConfig(found.made_ms, found.origin, log_end(), found.tables)

    def reached(self, position: int, log_end: Callable[[], int]) -> None:
        """Write what was read when the archive has reached the end of the log at that time; read again if it is time
        to. Errors are logged: the next call tries again."""
        pending = self._pending
        try:
            if pending is not None and position >= (pending.log_end or 0):
                self._write(pending)
            if self._pending is None and time.monotonic() - self._taken_s >= EVERY_S:
                self.take(log_end)
        except TandemError as error:
            log.warning("archive: the configuration is not kept now: %s", error)

    def finish(self, position: int) -> None:
        """Write what was read, also if the archived log ends before the broker's: a slave's copy may."""
        if self._pending is None:
            return
        if position < (self._pending.log_end or 0):
            log.warning(
                "archive: the configuration of %s is newer than the archived log, which ends at %d, not at %d",
                self._pending.origin,
                position,
                self._pending.log_end,
            )
        self._write(self._pending)

    def _write(self, config: SavedConfig) -> None:
        made = datetime.fromtimestamp(config.made_ms / 1000, UTC)
        name = f"{made:%Y%m%dT%H%M%S}{made.microsecond // 1000:03d}Z.json"
        data = config.encode()
        if self._place.is_local:
            RealDisk(self._place.path, setting="the lake").replace(name, data)
        else:
            output = self._place.open_replacement(name)
            with self._place.errors(name):
                output.write(data)
                output.close()
        self._pending = None
        self.kept_ms = config.made_ms
        for file in self._place.files()[:-KEPT]:
            self._place.delete(file.name)


def config_place(lake: Location, broker_name: str) -> Location:
    """Return the directory of the documents of a broker group in a lake."""
    return lake.within(DIRECTORY).within(broker_name)


def kept_config(lake: Location, broker_name: str, log_end: int) -> SavedConfig | None:
    """Return the newest configuration in a lake that is not newer than a log with this end, else the newest one; None
    if there is none.

    Raises:
        StoreDamaged: a document is malformed.
    """
    place = config_place(lake, broker_name)
    newest: SavedConfig | None = None
    for file in reversed(place.files()):
        if not file.name.endswith(".json") or (data := place.read(file.name)) is None:
            continue
        found = SavedConfig.decode(data, place.child(file.name))
        if (found.log_end or 0) <= log_end:
            return found
        newest = newest or found
    return newest
