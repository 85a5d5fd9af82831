"""The key-value configuration, kept in kvConfig.json.

    kvConfig.json      {"configTable":{"<namespace>":{"<key>":"<value>"}}}

Namespace ORDER_TOPIC_CONFIG holds the queues per broker of order topics. The file is interchangeable with RocketMQ's. A
change is on disk before it is answered; a change that cannot be written is not made.

Limits: all keys and values together at most 8 MiB.
Owner: the name server's node. Source: docs/reference/requests.md, "Name server"; RocketMQ KVConfigManager.
"""

import json

from tandemq.boundary import Disk
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, RemoteError, StoreDamaged

FILE = "kvConfig.json"
CHARACTERS_MAX = 8 << 20

Table = dict[str, dict[str, str]]


class KeyValues:
    """Values by namespace and key."""

    __slots__ = ("_characters", "_disk", "_table")

    def __init__(self, disk: Disk) -> None:
        """Read the file, if it exists.

        Raises:
            StoreDamaged: it cannot be read.
        """
        self._disk = disk
        self._table = _load(disk)
        self._characters = sum(
            _weight(space, key, value) for space, items in self._table.items() for key, value in items.items()
        )

    def get(self, namespace: str, key: str) -> str | None:
        """Return one value; None if it is missing."""
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> dict[str, str] | None:
        """Return all values of a namespace; None if the namespace is unknown."""
        return self._table.get(namespace)

    def put(self, namespace: str, key: str, value: str) -> None:
        """Set a value, on disk first.

        Raises:
            RemoteError: the configuration would exceed CHARACTERS_MAX.
            StoreError: it cannot be written; nothing changed.
        """
        old = self.get(namespace, key)
        grown = self._characters + _weight(namespace, key, value) - (0 if old is None else _weight(namespace, key, old))
        if grown > CHARACTERS_MAX:
            raise RemoteError(
                f"the key-value configuration may have {CHARACTERS_MAX} characters, this makes {grown}",
                hint="delete values that are no longer needed",
            )
        if value != old:
            self._save({**self._table, namespace: {**self._table.get(namespace, {}), key: value}}, grown)

    def delete(self, namespace: str, key: str) -> None:
        """Remove a value, on disk first; nothing happens if it is missing.

        Raises:
            StoreError: it cannot be written; nothing changed.
        """
        old = self.get(namespace, key)
        if old is None:
            return
        rest = {name: value for name, value in self._table[namespace].items() if name != key}
        self._save({**self._table, namespace: rest}, self._characters - _weight(namespace, key, old))

    def _save(self, table: Table, characters: int) -> None:
        self._disk.replace(FILE, json.dumps({"configTable": table}, indent="\t", ensure_ascii=False).encode())
        self._table, self._characters = table, characters


def _weight(namespace: str, key: str, value: str) -> int:
    return len(namespace) + len(key) + len(value)


def _load(disk: Disk) -> Table:
    data = disk.read(FILE)
    if not data or not data.strip():
        return {}
    hint = f"restore {FILE} from a backup, or delete it to begin without a key-value configuration"
    try:
        content = loads(data)
    except ProtocolError as error:
        raise StoreDamaged(f"{FILE}: {error}", hint=hint) from error
    table = content.get("configTable", {}) if isinstance(content, dict) else None
    if not isinstance(table, dict) or not all(isinstance(items, dict) for items in table.values()):
        raise StoreDamaged(f'{FILE}: {{"configTable":{{namespace:{{key:value}}}}}} is expected', hint=hint)
    return {
        space: {key: value for key, value in items.items() if isinstance(value, str)} for space, items in table.items()
    }
