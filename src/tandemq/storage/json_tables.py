"""Small JSON tables in `config/`, replaced atomically as a whole; the previous content is kept as .bak.

Source: docs/internals/storage.md, "config files"; RocketMQ ConfigManager.
"""

from typing import Any

import msgspec

from tandemq.boundary import Disk
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, StoreDamaged


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


def load_table(disk: Disk, name: str) -> dict[str, Any]:
    """Return a table, or its .bak if it is missing, empty or unreadable; {} if there is neither.

    Raises:
        StoreDamaged: files exist, but none can be read.
    """
    broken = ""
    for path in (f"config/{name}", f"config/{name}.bak"):
        data = disk.read(path)
        if not data or not data.strip(b"\x00 \r\n\t"):
            continue
        try:
            value = loads(data, is_trusted=True)
        except ProtocolError as error:
            broken = f"{path}: {error}"
            continue
        if isinstance(value, dict):
            return value
        broken = f"{path}: a JSON object is expected"
    if broken:
        raise StoreDamaged(broken, hint="restore the file from a backup, or delete it and its .bak to begin empty")
    return {}


def save_table(disk: Disk, name: str, value: dict[str, Any]) -> None:
    """Replace a table; its previous content becomes the .bak."""
    write_table(disk, name, encode_table(value))


def encode_table(value: dict[str, Any]) -> bytes:
    """Return the file content for a table."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def write_table(disk: Disk, name: str, data: bytes) -> None:
    """Replace a table's file; its previous content becomes the .bak. Blocking: two syncs."""
    path = f"config/{name}"
    before = disk.read(path)
    if before == data:
        return
    disk.replace(path, data)  # before the .bak, so that one of the two is valid at any time
    if before:
        disk.replace(f"{path}.bak", before)
