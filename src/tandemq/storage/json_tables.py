"""Small JSON tables in `config/`, saved whole: written beside, synced, renamed over; the former content becomes .bak.

Source: docs/internals/storage.md, "config files"; RocketMQ ConfigManager.
"""

from typing import Any

import msgspec

from tandemq.boundary import Disk
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, StoreDamaged


class DataVersion:
    """RocketMQ's version of a table: compared whole, grows with each change."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, timestamp: int = 0, counter: int = 0, state_version: int = 0) -> None:
        """A version; 0, 0 is that of a table never changed."""
        self.timestamp = timestamp
        self.counter = counter
        self.state_version = state_version

    def next(self, wall_ms: int) -> None:
        """The table changed."""
        self.timestamp = wall_ms
        self.counter += 1

    def as_json(self) -> dict[str, int]:
        """As peers write it."""
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    @classmethod
    def from_json(cls, value: Any) -> "DataVersion":
        """From a peer's JSON; missing parts are 0."""
        if not isinstance(value, dict):
            return cls()
        return cls(*(_number(value.get(name)) for name in ("timestamp", "counter", "stateVersion")))

    def __eq__(self, other: object) -> bool:
        """Same moment and count."""
        return isinstance(other, DataVersion) and self.as_json() == other.as_json()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def copy(self) -> "DataVersion":
        """A version equal to this one."""
        return DataVersion(self.timestamp, self.counter, self.state_version)


def _number(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return 0


def load_table(disk: Disk, name: str) -> dict[str, Any]:
    """A table, or its .bak if it is missing, empty or unreadable; {} if neither is there.

    Raises:
        StoreDamaged: there are files, but none can be read.
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
    """Replace a table; what was there becomes the .bak."""
    write_table(disk, name, encode_table(value))


def encode_table(value: dict[str, Any]) -> bytes:
    """A table as its file has it."""
    return msgspec.json.format(msgspec.json.encode(value), indent=1)


def write_table(disk: Disk, name: str, data: bytes) -> None:
    """Replace a table's file; what was there becomes the .bak. Blocking: two syncs."""
    path = f"config/{name}"
    before = disk.read(path)
    if before == data:
        return
    disk.replace(path, data)  # first, so that one of the two is whole at any time
    if before:
        disk.replace(f"{path}.bak", before)
