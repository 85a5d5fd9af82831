"""Small JSON tables in `config/`, replaced atomically as a whole; the previous content is kept as .bak.

Source: docs/internals/storage.md, "config files"; RocketMQ ConfigManager.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from tandemq.boundary import Disk
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, StoreDamaged

log = logging.getLogger(__name__)
_UNREADABLE = (ProtocolError, StoreDamaged, AttributeError, KeyError, TypeError, ValueError)


class DataVersion:
    """RocketMQ's version of a table: grows with each change, compared for equality only."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, timestamp: int = 0, counter: int = 0, state_version: int = 0) -> None:
        """Create a version; 0, 0, 0 is that of a table that was never changed."""
        self.timestamp = timestamp
        self.counter = counter
        self.state_version = state_version

    def next(self, wall_ms: int) -> None:
        """Advance the version after a change of the table."""
        self.timestamp = wall_ms
        self.counter += 1

    def as_json(self) -> dict[str, int]:
        """Return the JSON object that peers exchange."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> "DataVersion":
        """Read the JSON object of a peer; missing and malformed numbers are 0."""
        if not isinstance(value, dict):
            return cls()
        return cls(*(_number(value.get(name)) for name in ("timestamp", "counter", "stateVersion")))

    def __eq__(self, other: object) -> bool:
        """Whether all three numbers are equal."""
        return isinstance(other, DataVersion) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def copy(self) -> "DataVersion":
        """Return an independent copy."""
        return DataVersion(self.timestamp, self.counter, self.state_version)


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


class TableOrigin(Enum):
    """Where the content of a table comes from."""

    FILE = "file"
    BACKUP = "backup"
    """The .bak, which lacks the last changes: the file is missing or damaged."""
    NONE = "none"
    """There is neither file."""


class StoredTable(NamedTuple):
    """A table as it was found."""

    content: dict[str, Any]
    origin: TableOrigin


_HINT = "restore the file from a backup, or delete it and its .bak to begin with an empty table"


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """The file of a table, as the module of the table declares it.

    A table is replaced as a whole, and even an empty one is an object. So an empty file is damage, like one that was
    cut and one with the content of another table. If the file is missing or damaged, its .bak is used, with an ERROR
    in the log; if there are files and none can be read, the broker does not start, unless the table can be rebuilt.
    """

    name: str
    """Below `config/`."""
    check: Callable[[dict[str, Any]], object] | None = None
    """Raises StoreDamaged, ProtocolError or what unexpected values raise for content of another kind."""
    loss: str = ""
    """What changes that the .bak lacks mean for users, for the log."""
    hint: str = _HINT
    """What to do if neither file can be read."""
    rebuilt: str = ""
    """What happens without the table, for the log, if it can be rebuilt."""

    @property
    def path(self) -> str:
        """The file below the store directory."""
        return f"config/{self.name}"

    @property
    def backup(self) -> str:
        """The .bak below the store directory."""
        return f"config/{self.name}.bak"

    def load(self, disk: Disk) -> dict[str, Any]:
        """Return the content; {} if there is none. Errors as for `read`."""
        return self.read(disk).content

    def read(self, disk: Disk) -> StoredTable:
        """Return the table.

        Raises:
            StoreDamaged: there are files, none can be read, and the table cannot be rebuilt.
        """
        try:
            return self._read(disk)
        except StoreDamaged as error:
            if not self.rebuilt:
                raise
            log.warning("%s; it is dropped: %s", error, self.rebuilt)
            return StoredTable({}, TableOrigin.NONE)

    def _read(self, disk: Disk) -> StoredTable:
        found = disk.read(self.path)
        before = disk.read(self.backup)
        if found is None and before is None:
            return StoredTable({}, TableOrigin.NONE)
        problem = f"{self.path} is missing"
        if found is not None:
            try:
                return StoredTable(self._decoded(found), TableOrigin.FILE)
            except _UNREADABLE as error:
                problem = f"{self.path} is damaged: {error}"
        if before is None:
            raise StoreDamaged(f"{problem}; there is no {self.backup}", hint=self.hint)
        try:
            content = self._decoded(before)
        except _UNREADABLE as error:
            raise StoreDamaged(f"{problem}; {self.backup} is damaged too: {error}", hint=self.hint) from error
        log.error(
            "table: %s; %s is used, and may lack the last changes%s",
            problem,
            self.backup,
            self.loss and f": {self.loss}",
        )
        return StoredTable(content, TableOrigin.BACKUP)

    def _decoded(self, data: bytes) -> dict[str, Any]:
        if not data.strip(b"\x00 \r\n\t"):
            raise StoreDamaged(f"{len(data)} bytes without content")
        value = loads(data, is_trusted=True)
        if not isinstance(value, dict):
            raise StoreDamaged("a JSON object is expected")
        if self.check is not None:
            self.check(value)
        return value

    def save(self, disk: Disk, value: dict[str, Any]) -> None:
        """Replace the table; its previous content becomes the .bak."""
        self.write(disk, encode_table(value))

    def write(self, disk: Disk, data: bytes) -> None:
        """Replace the file's content, which becomes the .bak. Blocking: two syncs."""
        before = disk.read(self.path)
        if before == data:
            return
        disk.replace(self.path, data)  # before the .bak, so that one of the two is valid at any time
        if before is not None and _seems_whole(before):
            disk.replace(self.backup, before)


def require(table: dict[str, Any], key: str) -> None:
    """Check that a table has a key which every table of its kind has.

    Raises:
        StoreDamaged: it has not.
    """
    if key not in table:
        raise StoreDamaged(f"there is no {key!r} in it: it is another table, or a part of one")


def encode_table(value: dict[str, Any]) -> bytes:
    """Return the file content for a table."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _seems_whole(data: bytes) -> bool:
    """Whether content begins and ends as a table does: a file that was cut or zeroed must not become the .bak."""
    text = data.strip()
    return text.startswith(b"{") and text.endswith(b"}")
