"""Tables of `config/`, written by a worker: a turn must not wait for a sync, which may take long.

    later(name, table) … end of the turn: begin() → job → job_done()

One job runs at a time. It writes all tables that are due, with their content when it begins, so a table that changes
often is written once. Responses that promise a saved table wait: `asked` counts the changes waited for, `settled` those
of them that are written or failed. A table that could not be written is due again when the owner calls `again`.

Source: docs/internals/storage.md, "config files"; requirement V11.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tandemq.boundary import Disk, Job
from tandemq.model.codes import RequestCode
from tandemq.storage.json_tables import encode_table, write_table

Table = Callable[[], dict[str, Any]]
"""Returns the current content of a table."""
SAVED_FIRST = frozenset(
    {
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_SUBSCRIPTIONGROUP,
    }
)
"""Requests whose response means that tables are saved."""


class _SaveWork(NamedTuple):
    disk: Disk
    contents: list[tuple[str, bytes]]

    def run(self) -> None:
        for name, data in self.contents:
            write_table(self.disk, name, data)


class Saver:
    """Tables that are due, being written, or failed."""

    def __init__(self, disk: Disk) -> None:
        """Begin with nothing due."""
        self.disk = disk
        self._due: dict[str, Table] = {}
        self._writing: dict[str, Table] = {}
        self._failed: dict[str, Table] = {}
        self._on_saved: dict[str, Callable[[], None]] = {}
        self._job: Job | None = None
        self._job_asked = 0
        self.asked = 0
        self.settled = 0

    @property
    def is_behind(self) -> bool:
        """Whether a change that responses wait for is neither written nor failed."""
        return self.settled < self.asked

    def later(
        self, name: str, table: Table, *, is_awaited: bool = True, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Schedule writing a table after this turn.

        Args:
            name: file below `config/`.
            table: returns its content.
            is_awaited: whether responses wait for it.
            on_saved: called each time the table is on the device.
        """
        self._due[name] = table
        if on_saved is not None:
            self._on_saved[name] = on_saved
        self.asked += is_awaited

    def begin(self) -> Job | None:
        """Return a job that writes the due tables; None if none is due, or a job is running."""
        if self._job is not None or not self._due:
            return None
        self._writing, self._due = self._due, {}
        contents = [(name, encode_table(table())) for name, table in self._writing.items()]
        self._job, self._job_asked = Job("save tables", _SaveWork(self.disk, contents).run), self.asked
        return self._job

    def job_done(self, job: Job, error: Exception | None) -> bool:
        """Note the end of a job; return False if it is not the one of `begin`."""
        if job is not self._job:
            return False
        if error is not None:
            self._failed |= self._writing
        else:
            self._notify_saved(self._writing)
        self._job, self._writing = None, {}
        self.settled = self._job_asked
        return True

    def _notify_saved(self, tables: dict[str, Table]) -> None:
        for name in tables:
            if name in self._on_saved:
                self._on_saved[name]()

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
        for name, table in tables.items():
            write_table(self.disk, name, encode_table(table()))
        self._notify_saved(tables)
        self._due, self._writing, self._failed, self._job = {}, {}, {}, None
        self.settled = self.asked
