"""What was committed since the table of offsets was saved last, so that a killed process forgets none of it.

    config/consumerOffset.changes-<n>    one JSON table of changes per line, in the order in which they hold

A turn's changes are one line, written before anybody is answered, and not synced: the system has them when the process
is killed; when the machine goes down another member of the group has them, if one was connected. When the table is
saved a new file begins; the table names it, and those before go as soon as the table is on the disk. One of them that
is found nevertheless is not read: after a power loss it may hold no more than its beginning, and the table is newer.

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
    """The files of changes."""

    def __init__(self, disk: Disk) -> None:
        """Those that are there; nothing is written yet."""
        self._disk = disk
        numbers = (name.removeprefix(PREFIX) for name in disk.list("config") if name.startswith(PREFIX))
        self._files = sorted(int(number) for number in numbers if number.isdecimal())
        self._next = self._files[-1] + 1 if self._files else 0
        self._file: File | None = None
        self._position = 0
        self._saved_below = 0
        self._is_failing = False

    def read(self, first: int) -> Iterator[dict[str, Any]]:
        """The tables of changes from file `first` on, oldest first. A line that a crash tore is the last of its file,
        and left out."""
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
        """Keep a turn's changes; False if the disk does not take them, which is said once."""
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
        """The table is about to be saved with all that was appended so far; returns the number of the next file."""
        self._file = None
        self._saved_below = self._next
        return self._next

    def saved(self) -> None:
        """It is on the disk."""
        for number in [number for number in self._files if number < self._saved_below]:
            try:
                self._disk.remove(f"config/{PREFIX}{number}")
            except StoreError as error:
                log.warning("offsets: a file of changes that is no longer needed stays: %s", error)
                return
            self._files.remove(number)
