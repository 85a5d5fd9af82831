"""The tables of `config/` are written by a worker: a sync takes as long as the device likes, and a turn must not wait.

    later(name, table) … end of the turn: begin() → job → job_done()

One job at a time. It takes all tables that are due as they are when it begins, so one changed often is written once.
What must not be said before a table is on the device waits: `asked` counts the changes others wait for, `settled` how
many of them are decided. A table that could not be written is due again when the owner says `again`.

Source: docs/internals/storage.md, "config files"; requirement V11.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from tandemq.boundary import Disk, Job
from tandemq.model.codes import RequestCode
from tandemq.storage.json_tables import encode_table, write_table

Table = Callable[[], dict[str, Any]]
"""A table's present content."""
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
"""Requests whose answer says that tables are saved."""


class _SaveWork(NamedTuple):
    disk: Disk
    contents: list[tuple[str, bytes]]

    def run(self) -> None:
        for name, data in self.contents:
            write_table(self.disk, name, data)


class Saver:
    """Which tables are due, and which are being written."""

    def __init__(self, disk: Disk) -> None:
        """Nothing is due."""
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
        """Whether a change that somebody waits for is not decided yet."""
        return self.settled < self.asked

    def later(
        self, name: str, table: Table, *, is_awaited: bool = True, on_saved: Callable[[], None] | None = None
    ) -> None:
        """Have a table written after this turn. `is_awaited`: answers that depend on it wait. `on_saved` is called each
        time it is on the device."""
        self._due[name] = table
        if on_saved is not None:
            self._on_saved[name] = on_saved
        self.asked += is_awaited

    def begin(self) -> Job | None:
        """A job for what is due; None if nothing is, or one is under way."""
        if self._job is not None or not self._due:
            return None
        self._writing, self._due = self._due, {}
        contents = [(name, encode_table(table())) for name, table in self._writing.items()]
        self._job, self._job_asked = Job("save tables", _SaveWork(self.disk, contents).run), self.asked
        return self._job

    def job_done(self, job: Job, error: Exception | None) -> bool:
        """A job ended; False if it is none of ours."""
        if job is not self._job:
            return False
        if error is not None:
            self._failed |= self._writing
        else:
            self._tell_saved(self._writing)
        self._job, self._writing = None, {}
        self.settled = self._job_asked
        return True

    def _tell_saved(self, tables: dict[str, Table]) -> None:
        for name in tables:
            if name in self._on_saved:
                self._on_saved[name]()

    def again(self) -> None:
        """Have written what could not be written before."""
        self._due = self._failed | self._due
        self._failed = {}

    def finish(self) -> None:
        """Write at once all that is due, was under way or failed; no job may run any more.

        Raises:
            DiskFull, DiskFailed: something could not be written.
        """
        tables = self._failed | self._writing | self._due
        for name, table in tables.items():
            write_table(self.disk, name, encode_table(table()))
        self._tell_saved(tables)
        self._due, self._writing, self._failed, self._job = {}, {}, {}, None
        self.settled = self.asked
