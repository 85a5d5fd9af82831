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
        """Create a version. 0, 0, 0: of a table without changes."""
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
    """Neither file exists."""


class StoredTable(NamedTuple):
    """The content of a table, and where it was read from."""

    content: dict[str, Any]
    origin: TableOrigin


_HINT = "restore the file from a backup, or delete it and its .bak to begin with an empty table"


@dataclass(frozen=True, slots=True, eq=False)
class TableFile:
    """The file of a table, declared in the module that owns the table.

    The file has a JSON object, even for an empty table: an empty file is damaged, as is a truncated one or one with the
    content of another table. If the file is missing or damaged, its .bak is used, with an ERROR in the log. If neither
    can be read, but one exists, the broker does not start, unless the table can be rebuilt.
    """

    name: str
    """File name in `config/`."""
    check: Callable[[dict[str, Any]], object] | None = None
    """Raises one of `_UNREADABLE` if the content is not that of this table."""
    loss: str = ""
    """Effect on users if the .bak lacks the last changes, for the log."""
    hint: str = _HINT
    """What to do if neither file can be read."""
    is_secret: bool = False
    """Whether only the broker's own user may read the file."""
    encode: Callable[[dict[str, Any]], bytes] | None = None
    """Returns the content of a file with a large table, in small steps on a worker thread: the table gives a snapshot,
    which does not change any more. None: `encode_table`, at once."""
    rebuilt: str = ""
    """How a table without a readable file is rebuilt, for the log; "": it cannot be."""

    @property
    def path(self) -> str:
        """Path of the file in the store directory."""
        return f"config/{self.name}"

    @property
    def backup(self) -> str:
        """Path of the .bak in the store directory."""
        return f"config/{self.name}.bak"

    def load(self, disk: Disk) -> dict[str, Any]:
        """Return the content; {} if neither file exists. Errors as for `read`."""
        return self.read(disk).content

    def read(self, disk: Disk) -> StoredTable:
        """Return the content and its origin.

        Raises:
            StoreDamaged: neither file can be read, one exists, and the table cannot be rebuilt.
        """
        try:
            return self._read(disk)
        except StoreDamaged as error:
            if not self.rebuilt:
                raise
            log.warning("%s; it is dropped: %s", error, self.rebuilt)
            return StoredTable({}, TableOrigin.NONE)

    def _read(self, disk: Disk) -> StoredTable:
        data = disk.read(self.path)
        backup = disk.read(self.backup)
        if data is None and backup is None:
            return StoredTable({}, TableOrigin.NONE)
        problem = f"{self.path} is missing"
        if data is not None:
            try:
                return StoredTable(self._decoded(data), TableOrigin.FILE)
            except _UNREADABLE as error:
                problem = f"{self.path} is damaged: {error}"
        if backup is None:
            raise StoreDamaged(f"{problem}; there is no {self.backup}", hint=self.hint)
        try:
            content = self._decoded(backup)
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
        """Write a table, whose previous content becomes the .bak. Blocking: two syncs."""
        self.write(disk, self.encoded(value))

    def encoded(self, value: dict[str, Any]) -> bytes:
        """Return the content of the file for a table."""
        return (self.encode or encode_table)(value)

    def write(self, disk: Disk, data: bytes) -> None:
        """Write the content that `encoded` returned; otherwise as `save`. Does nothing if the file has it."""
        previous = disk.read(self.path)
        if previous == data:
            return
        disk.replace(
            self.path, data, is_secret=self.is_secret
        )  # before the .bak, so that one of the two is valid at any time
        if previous is not None and _seems_whole(previous):
            disk.replace(self.backup, previous, is_secret=self.is_secret)


def require(table: dict[str, Any], key: str) -> None:
    """Check that the content of a file has a key that its table always has.

    Raises:
        StoreDamaged: the key is missing.
    """
    if key not in table:
        raise StoreDamaged(f"there is no {key!r} in it: it is another table, or a part of one")


def encode_table(value: dict[str, Any]) -> bytes:
    """Return the file content for a table."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def _seems_whole(data: bytes) -> bool:
    """Whether content begins and ends as a JSON object does: a truncated or zeroed file must not become the .bak."""
    text = data.strip()
    return text.startswith(b"{") and text.endswith(b"}")
