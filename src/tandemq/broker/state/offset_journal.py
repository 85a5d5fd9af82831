"""Journal of the offsets committed since the offset table was last saved, so that a killed process loses none.

    config/consumerOffset.changes-<n>    one JSON table of changes per line, oldest first

The changes of a turn are one line, written before the responses of the turn are sent, and not synced. When the process
is killed, the kernel has them; when the machine fails, another member of the group has them, if one was connected.
Saving the table begins a new file, which the table names; older files are deleted once the table is on the disk. An
older file that is still found is not read: after a power loss it may be incomplete, and the table is newer.

Written in groups with a registry, read by every start. Owner: `ConsumerOffsets`.
Source: docs/internals/failover.md, "Metadata"; invariant: offsets never go back.
"""

import logging
from collections.abc import Iterator
from typing import Any

from tandemq.boundary import Disk, File
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, StoreError

log = logging.getLogger(__name__)
PREFIX = "consumerOffset.changes-"


class OffsetJournal:
    """Journal files of one store."""

    def __init__(self, disk: Disk) -> None:
        """List the existing files; write nothing yet."""
        self._disk = disk
        numbers = (name.removeprefix(PREFIX) for name in disk.list("config") if name.startswith(PREFIX))
        self._files = sorted(int(number) for number in numbers if number.isdecimal())
        self._next = self._files[-1] + 1 if self._files else 0
        self._file: File | None = None
        self._position = 0
        self._saved_below = 0
        self._is_failing = False

    def read(self, first: int) -> Iterator[dict[str, Any]]:
        """Yield the tables of changes from file `first` on, oldest first.

        A line that a crash left incomplete is the last of its file, and is skipped.
        """
        self._next = max(self._next, first)
        for number in self._files:
            if number < first:
                continue
            for line in (self._disk.read(f"config/{PREFIX}{number}") or b"").splitlines():
                try:
                    table = loads(line, is_trusted=True)
                except ProtocolError:
                    break
                if isinstance(table, dict):
                    yield table

    def append(self, line: bytes) -> bool:
        """Append the changes of a turn; return False if they cannot be written, which is logged once."""
        try:
            if self._file is None:
                self._file = self._disk.open(f"config/{PREFIX}{self._next}", create=True)
                self._files.append(self._next)
                self._next, self._position = self._next + 1, 0
            self._file.pwrite(line + b"\n", self._position)
            self._position += len(line) + 1
            self._is_failing = False
            return True
        except StoreError as error:
            if not self._is_failing:
                log.error("offsets: changes are kept in memory only for now: %s", error)
            self._is_failing = True
            return False

    def rotate(self) -> int:
        """Have the next append begin a new file, since the table is about to be saved; return that file's number."""
        self._file = None
        self._saved_below = self._next
        return self._next

    def saved(self) -> None:
        """Delete the files that the saved table includes."""
        for number in [number for number in self._files if number < self._saved_below]:
            try:
                self._disk.remove(f"config/{PREFIX}{number}")
            except StoreError as error:
                log.warning("offsets: a change file that is no longer needed cannot be deleted: %s", error)
                return
            self._files.remove(number)
