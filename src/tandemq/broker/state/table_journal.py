"""Journal of one table in `config/`: a change is durable with one short line, and the table is written later.

    config/<table>.changes-<n>      CRC-32 of the JSON, 8 hexadecimal digits · space · JSON · newline, for each change

The first line of a file is the data version of the table that its changes continue. Every other line is a change: the
entries that changed, in the form of the table, the names of those that were removed, and the data version after it.
Writing the table begins a new file; once the table is on the device, older files are deleted. A new file is used only
beside a table that was written after its name, so that one sync of the directory covers both.

    start: table ─► changes after the table's version ─► table written, files deleted

Files of a table that another broker has written since, for example RocketMQ after a kill of this one, continue no
version of that table: then only entries that it lacks are added, and nothing is changed or removed.
An incomplete line at the end of a file was never waited for, and is ignored. A damaged line elsewhere is logged and
left out. If something may be missing, the table gets a new version, so that peers see that theirs is a different one.

Owner: `Saver`. Source: docs/internals/storage.md, "config files".
"""

import logging
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from zlib import crc32

from tandemq.boundary import Disk, File
from tandemq.codec.remoting.fastjson import dumps, loads
from tandemq.errors import ProtocolError, StoreDamaged, StoreError
from tandemq.storage.json_tables import DataVersion

log = logging.getLogger(__name__)
REMOVED = "tandemRemoved"
"""In a table of changes: names that no longer exist."""
JOURNAL_BYTES_MAX = 4 << 20
"""Size of the changes above which the table is written."""
_SUFFIX = ".changes-"
_SUM_BYTES = 9

Apply = Callable[[dict[str, Any], bool], None]
"""Applies a change to the table; True: only the entries that the table lacks.

Raises:
    StoreDamaged, ProtocolError: it cannot be read.
"""
Changes = Callable[[Iterable[str]], dict[str, Any]]
"""Returns the present entries with these names, `REMOVED`, and the data version, in the form of the table."""


class _Replay(NamedTuple):
    """The changes to apply to a table that was read at the start."""

    changes: list[dict[str, Any]]
    """Oldest first."""
    adds_only: bool
    """Whether another broker has written the table since: only entries that it lacks are to be added."""
    is_exact: bool
    """Whether the changes are known to be complete; if not, the table needs a new version."""


class _Step(NamedTuple):
    """One line: the data version after it, and its change; None for the first line of a file."""

    version: tuple[int, int]
    change: dict[str, Any] | None
    follows_gap: bool = False
    """Whether changes before it may be missing."""


class TableJournal:
    """The change files of one table."""

    def __init__(self, disk: Disk, name: str, changes: Changes, *, is_secret: bool = False) -> None:
        """List the existing files; write nothing yet.

        Args:
            disk: the store directory.
            name: file name of the table.
            changes: returns the content of a line.
            is_secret: whether only the broker's own user may read the files.
        """
        self._disk = disk
        self._is_secret = is_secret
        self._changes = changes
        self._prefix = name.removesuffix(".json") + _SUFFIX
        numbers = (found.removeprefix(self._prefix) for found in disk.list("config") if found.startswith(self._prefix))
        self._files = sorted(int(number) for number in numbers if number.isdecimal())
        self._saved_below = 0
        self._is_unused = False
        """Whether the last file has no lines but the first, so that it can be replaced."""
        self._pending: dict[str, None] | None = None
        """Names that changed since the last line; None: there was no change."""
        self.file: File | None = None
        """The file for the next line; None: a change has to wait for the whole table."""
        self.size = 0
        """Bytes of lines in that file, without the first one."""
        self.is_unsynced = False
        """Whether lines were written since the last sync began."""
        self._end = 0

    # At the start.

    @property
    def has_files(self) -> bool:
        """Whether there are change files, so that the table has to be written."""
        return bool(self._files)

    def replay(self, version: DataVersion, wall_ms: int, apply: Apply, *, has_table: bool) -> DataVersion:
        """Apply the changes that the table on the disk lacks; return its data version after them.

        Args:
            version: data version of the table.
            wall_ms: the present time, for a new version if changes may be missing.
            apply: applies a change.
            has_table: whether there is a table on the disk.
        """
        found = self._read(version if has_table else None)
        for change in found.changes:
            try:
                apply(change, found.adds_only)
            except (StoreDamaged, ProtocolError) as error:
                log.error("tables: a change in %s cannot be read and is left out: %s", self._prefix, error)
            if not found.adds_only:
                version = DataVersion.from_json(change.get("dataVersion"))
        if found.changes and not found.is_exact:
            version = version.copy()
            version.next(wall_ms)
        return version

    def _read(self, version: DataVersion | None) -> _Replay:
        """Return the changes to apply to the table with this version; None: there is no table."""
        steps: list[_Step] = []
        for number in self._files:
            for step in self._read_file(number):
                is_gap = step.change is None and bool(steps) and step.version != steps[-1].version
                steps.append(step._replace(follows_gap=step.follows_gap or is_gap))
        if version is None:
            begin: int | None = 0
        else:
            own = (version.counter, version.timestamp)
            begin = next((index + 1 for index in reversed(range(len(steps))) if steps[index].version == own), None)
        newer = steps[begin or 0 :]
        changes = [step.change for step in newer if step.change is not None]
        adds_only = begin is None and bool(changes)
        if changes:
            log.warning(
                "tables: %d changes in %s%d to %d follow the table%s",
                len(changes),
                self._prefix,
                self._files[0],
                self._files[-1],
                ", which was written by another broker since: only missing entries are added" if adds_only else "",
            )
        is_exact = not adds_only and not any(step.follows_gap for step in newer)
        return _Replay(_net_additions(changes) if adds_only else changes, adds_only, is_exact)

    def _read_file(self, number: int) -> list[_Step]:
        """Return the readable lines of a file; log those before the last of them that are damaged."""
        data = self._disk.read(f"config/{self._prefix}{number}") or b""
        steps: list[_Step] = []
        damaged: list[int] = []
        for line_number, line in enumerate(data.split(b"\n"), start=1):
            step = _parse(line, is_first=line_number == 1)
            if step is None:
                damaged += [line_number] if line else []
                continue
            if damaged:
                log.error("tables: %s%d: damaged and left out: lines %s", self._prefix, number, damaged)
            steps.append(step._replace(follows_gap=bool(damaged)))
            damaged = []
        return steps

    # Changes.

    @property
    def is_pending(self) -> bool:
        """Whether something changed since the last line."""
        return self._pending is not None

    def note(self, names: Iterable[str]) -> None:
        """Record that these entries changed; without names only the version did."""
        if self._pending is None:
            self._pending = {}
        self._pending.update(dict.fromkeys(names))

    def skip(self) -> None:
        """Write no line for the changes so far: the whole table is going to be written."""
        self._pending = None

    def append(self) -> None:
        """Write a line with the changes since the last one.

        Raises:
            DiskFull, DiskFailed: it was not written, and the whole table has to be.
        """
        assert self.file is not None, "the table has to be written"
        line = _line(self._changes(self._pending or ()))
        try:
            self.file.pwrite(line, self._end)
        except StoreError:
            self.abandon()
            raise
        self._pending = None
        self._is_unused = False
        self._end += len(line)
        self.size += len(line)
        self.is_unsynced = True

    def abandon(self) -> None:
        """Write no more lines until the whole table is written: some may be missing."""
        self.file = None
        self.size = 0

    # Writing the table.

    def rotate(self, version: Any) -> None:
        """Begin a new file: the table is about to be written with this data version, as JSON."""
        self._pending = None
        self.abandon()
        self.is_unsynced = False
        line = _line({"dataVersion": version})
        try:
            if self._is_unused:
                self._disk.remove(f"config/{self._prefix}{self._files[-1]}")
                del self._files[-1]
                self._is_unused = False
            number = self._saved_below = max(self._saved_below, self._files[-1] + 1 if self._files else 0)
            file = self._disk.open(f"config/{self._prefix}{number}", create=True, is_secret=self._is_secret)
            self._files.append(number)
            self._is_unused = True
            file.pwrite(line, 0)
        except StoreError as error:
            log.error("tables: no file of changes can be begun, each change writes the table: %s", error)
            return
        self.file, self._end = file, len(line)

    def saved(self) -> None:
        """Delete the files that the saved table includes."""
        self._remove([number for number in self._files if number < self._saved_below])

    def close(self) -> None:
        """Delete all files: the table was written, and nothing changes any more."""
        self.abandon()
        self.is_unsynced = False
        self._pending = None
        self._is_unused = False
        self._remove(list(self._files))

    def _remove(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                self._disk.remove(f"config/{self._prefix}{number}")
            except StoreError as error:
                log.warning("tables: a change file that is no longer needed cannot be deleted: %s", error)
                return
            self._files.remove(number)


def removed_names(table: dict[str, Any]) -> list[str]:
    """Return the names of removed entries in a table of changes.

    Raises:
        ProtocolError: it is not a list of names.
    """
    names = table.get(REMOVED, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError(f"{REMOVED} must be a list of names")
    return names


def _net_additions(changes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return changes without the entries that a later one removes."""
    kept: list[dict[str, Any]] = []
    gone: set[str] = set()
    for change in reversed(changes):
        removed = {name for name in change.get(REMOVED, ()) if isinstance(name, str)}
        kept.append(
            {
                key: {name: entry for name, entry in value.items() if name not in gone}
                if isinstance(value, dict) and key != "dataVersion"
                else value
                for key, value in change.items()
                if key != REMOVED
            }
        )
        gone |= removed
    return kept[::-1]


def _line(value: dict[str, Any]) -> bytes:
    text = dumps(value)
    return b"%08x %s\n" % (crc32(text), text)


def _parse(line: bytes, *, is_first: bool) -> _Step | None:
    """Decode a line; None if it is damaged or incomplete."""
    text = line[_SUM_BYTES:]
    if line[:_SUM_BYTES] != b"%08x " % crc32(text):
        return None
    try:
        value = loads(text, is_trusted=True)
    except ProtocolError:
        return None
    if not isinstance(value, dict):
        return None
    version = DataVersion.from_json(value.get("dataVersion"))
    return _Step((version.counter, version.timestamp), None if is_first else value)
