"""Tables of `config/`, written by a worker: a turn must not wait for a sync, which may take long.

    later(file, table), change(file, entries) … end of the turn: begin() → job → job_done()

One job runs at a time. It writes all tables that are due, with their content when it begins, so a table that changes
often is written once. Of a table with a journal (`keep_journal`) only the changes are written, one line for all since
the last job, and the table follows: each `FOLD_MS`, above `JOURNAL_BYTES_MAX`, at a clean stop, and whenever the
journal cannot be written. Responses that promise a saved table wait: `asked` counts the changes waited for, `settled`
those of them that are written or failed, `saved` those that are written like all before them. A table that could not be
written is due again when the owner calls `again`.

Source: docs/internals/storage.md, "config files"; requirement V11.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tandemq.boundary import Disk, Done, File, Job
from tandemq.broker.state.table_journal import JOURNAL_BYTES_MAX, Changes, TableJournal
from tandemq.errors import StoreError
from tandemq.storage.json_tables import TableFile, encode_table

log = logging.getLogger(__name__)
FOLD_MS = 10_000
"""Maximum time for which a table on the disk lacks changes that its journal has."""
Table = Callable[[], dict[str, Any]]
"""Returns the current content of a table."""


class _SaveWork(NamedTuple):
    disk: Disk
    contents: list[tuple[TableFile, dict[str, Any] | bytes]]
    """The content of a table, or for one that its file encodes by itself the snapshot, encoded here."""
    journals: Sequence[File]

    def run(self) -> None:
        for journal in self.journals:
            journal.datasync()
        for file, content in self.contents:
            file.write(self.disk, content if isinstance(content, bytes) else file.encoded(content))


class _JournaledTable(NamedTuple):
    table: Table
    journal: TableJournal


class Saver:
    """Tables that are due, being written, or failed."""

    def __init__(self, disk: Disk) -> None:
        """Begin with nothing due."""
        self.disk = disk
        self._due: dict[TableFile, Table] = {}
        self._writing: dict[TableFile, Table] = {}
        self._failed: dict[TableFile, Table] = {}
        self._on_saved: dict[TableFile, Callable[[], None]] = {}
        self._journaled: dict[TableFile, _JournaledTable] = {}
        self._syncing: list[TableFile] = []
        """Tables whose journals the job syncs."""
        self._is_writing = False
        self._job_asked = 0
        self._is_job_whole = True
        """Whether the job writes everything that is not written, so that nothing failed before it."""
        self.asked = 0
        self.settled = 0
        self.saved = 0

    @property
    def is_behind(self) -> bool:
        """Whether a change that responses wait for is neither written nor failed."""
        return self.settled < self.asked

    @property
    def has_unsaved(self) -> bool:
        """Whether a change that responses wait for is not written, or could not be."""
        return self.saved < self.asked

    def later(
        self, file: TableFile, table: Table, *, is_awaited: bool = True, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Schedule writing a table after this turn.

        Args:
            file: of the table.
            table: returns its content.
            is_awaited: whether responses wait for it.
            on_saved: called each time the table is on the device.
        """
        self._due[file] = table
        if on_saved is not None:
            self._on_saved[file] = on_saved
        self.asked += is_awaited

    def keep_journal(self, file: TableFile, table: Table, changes: Changes) -> TableJournal:
        """Keep a journal of a table; return it, to be replayed before the first change.

        The table is written soon if the process before left changes.

        Args:
            file: of the table.
            table: returns its content.
            changes: returns the content of a line of the journal.
        """
        journal = TableJournal(self.disk, file.name, changes, is_secret=file.is_secret)
        self._journaled[file] = _JournaledTable(table, journal)
        if journal.has_files:
            self._due[file] = table
        return journal

    def change(self, file: TableFile, entries: Iterable[str]) -> None:
        """Save changed or removed entries of a table with a journal after this turn; responses wait for them."""
        self._journaled[file].journal.note(entries)
        self.asked += 1

    def fold(self) -> None:
        """Schedule writing the tables that lack changes of their journals."""
        for file, (table, journal) in self._journaled.items():
            if journal.size and file not in self._writing:
                self._due.setdefault(file, table)

    def begin(self, done: Done) -> Job | None:
        """Return a job that writes what is due; None if nothing is, or a job is running.

        `done` is called at its end; it has to call `job_done`.
        """
        if self._is_writing:
            return None
        self._write_changes()
        self._syncing = [
            file
            for file, (_, journal) in self._journaled.items()
            if journal.is_unsynced and journal.file is not None and file not in self._due
        ]
        if not self._due and not self._syncing:
            return None
        self._writing, self._due = self._due, {}
        contents = [(file, self._content(file, table)) for file, table in self._writing.items()]
        journals = [self._begin_sync(file) for file in self._syncing]
        run = _SaveWork(self.disk, contents, journals).run
        self._is_writing, self._job_asked = True, self.asked
        self._is_job_whole = not self._failed
        return Job("save tables", run, syncs=() if contents else journals, done=done)

    def _write_changes(self) -> None:
        """Write a line for the changes of each table that is not going to be written itself."""
        for file, (table, journal) in self._journaled.items():
            if not journal.is_pending:
                continue
            if file in self._due or journal.file is None:
                journal.skip()
                self._due[file] = table
                continue
            try:
                journal.append()
            except StoreError as error:
                log.error("tables: the table %s is written, since its changes cannot be: %s", file.name, error)
                self._due[file] = table
            else:
                if journal.size > JOURNAL_BYTES_MAX:
                    self._due[file] = table

    def _content(self, file: TableFile, table: Table) -> dict[str, Any] | bytes:
        value = table()
        if file in self._journaled:
            self._journaled[file].journal.rotate(value["dataVersion"])
        return encode_table(value) if file.encode is None else value

    def _begin_sync(self, file: TableFile) -> File:
        journal = self._journaled[file].journal
        journal.is_unsynced = False
        assert journal.file is not None, "it has lines"
        return journal.file

    def job_done(self, error: Exception | None) -> None:
        """Note the end of the job of `begin`."""
        if error is not None:
            self._failed |= self._writing
            for file in {*self._writing, *self._syncing} & self._journaled.keys():
                # Lines may be missing, those of the journal before or, after a failed sync, those of this one.
                self._failed[file] = self._journaled[file].table
                self._journaled[file].journal.abandon()
        else:
            self._notify_saved(self._writing)
            if self._is_job_whole:
                self.saved = self._job_asked
        self._is_writing, self._writing, self._syncing = False, {}, []
        self.settled = self._job_asked

    def _notify_saved(self, tables: dict[TableFile, Table]) -> None:
        for file in tables:
            if file in self._on_saved:
                self._on_saved[file]()
            if file in self._journaled:
                self._journaled[file].journal.saved()

    def again(self) -> None:
        """Schedule writing the tables that could not be written before."""
        self._due = self._failed | self._due
        self._failed = {}

    def finish(self) -> None:
        """Write at once all tables that are due, being written, or failed; no job may be running.

        Raises:
            DiskFull, DiskFailed: a table could not be written.
        """
        tables = self._failed | self._writing | self._due
        for file, (table, journal) in self._journaled.items():
            if journal.is_pending or journal.has_files:
                tables[file] = table
        for file, table in tables.items():
            file.save(self.disk, table())
        self._notify_saved(tables)
        for _, journal in self._journaled.values():
            journal.close()
        self._due, self._writing, self._failed, self._is_writing, self._syncing = {}, {}, {}, False, []
        self.settled = self.saved = self.asked
