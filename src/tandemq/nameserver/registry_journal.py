"""The files of the embedded registry: a snapshot and a journal of the changes since.

    registry.snapshot        {"journal": 7, "lastSession": 12, "changes": [...]}, replaced as a whole
    registry.journal-7       batch, batch, …

    batch    | payload bytes 4 | CRC-32 of the payload 4 | payload: a JSON list of changes |      big endian

One batch is written at a time and made durable by one fdatasync before the next is written. So after a crash only the
last batch can be torn: it was never acknowledged, and is truncated, with a warning: a journal that something else has
cut looks the same. Damage before it is not the result of a crash: it is refused. A journal that is cut between two
batches, or replaced by an older copy, looks whole; brokers then find that their groups' records are older than what
they have seen.

A journal that exceeds `JOURNAL_BYTES_MAX` is folded into a snapshot, and a new one begins. A crash in between
leaves the old snapshot with the old journal, or the new snapshot with a journal that is empty or missing.

Owner: the registry host. Source: docs/internals/failover.md, "The registry in a name server".
"""

import logging
import struct
from zlib import crc32

import msgspec

from tandemq.boundary import Disk, File
from tandemq.coordination.registry.tree import Change, Tree
from tandemq.errors import StoreDamaged

SNAPSHOT = "registry.snapshot"
JOURNAL = "registry.journal-"
JOURNAL_BYTES_MAX = 1 << 20
_HEAD = struct.Struct(">II")
_HINT = (
    "delete all files registry.* to begin empty, and publish the configurations again (tandemq ha config apply): each "
    "group creates its record again when all its members are connected, and loses nothing. Or restore the files from "
    "a backup: members that have seen a newer record than the backup's then serve no client until tandemq ha "
    "force-master, which shows what is lost, has chosen the member whose log counts"
)
_LOSS = (
    "Brokers that have seen a newer record of their group than the registry now has serve no client, and tandemq ha "
    "status says why"
)
_log = logging.getLogger(__name__)


class _Snapshot(msgspec.Struct, rename="camel"):
    journal: int
    last_session: int
    changes: list[Change]


class Journal:
    """The files of one tree."""

    def __init__(self, disk: Disk) -> None:
        """Call `load` before anything else."""
        self._disk = disk
        self._number = 0
        self._file: File | None = None
        self.end = 0
        """End of the last complete batch in the journal, bytes."""

    def load(self) -> Tree:
        """Return the tree as of the last durable batch.

        Raises:
            StoreDamaged: a file has damage that no crash explains.
            StoreError: the disk failed.
        """
        tree = Tree()
        self._number = self._load_snapshot(tree)
        name = self._name()
        if not self._disk.exists(name):
            if self._number > 1:
                _log.warning(
                    "registry: %s is missing: changes since %s was written are lost. %s", name, SNAPSHOT, _LOSS
                )
            self._disk.replace(name, b"")
        self._file = self._disk.open(name)
        self.end = self._replay(tree, self._disk.read(name) or b"")
        self._file.truncate(self.end)
        for other in self._disk.list(""):
            if other.startswith(JOURNAL) and other != name:
                self._disk.remove(other)
        return tree

    def _load_snapshot(self, tree: Tree) -> int:
        data = self._disk.read(SNAPSHOT)
        if data is None:
            return 1
        try:
            snapshot = msgspec.json.decode(data, type=_Snapshot)
            tree.restore(snapshot.changes)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            raise StoreDamaged(f"{SNAPSHOT}: {error}", hint=_HINT) from error
        tree.last_session = max(tree.last_session, snapshot.last_session)
        return snapshot.journal

    def _replay(self, tree: Tree, data: bytes) -> int:
        position = 0
        while position < len(data):
            payload = _batch_at(data, position)
            if payload is None:
                self._check_torn(data, position)
                _log.warning(
                    "registry: %s ends with an incomplete batch: %d bytes from byte %d on are removed. After a crash "
                    "that is the batch which was being written, and nothing is lost. If the file was cut, changes are "
                    "missing. %s",
                    self._name(),
                    len(data) - position,
                    position,
                    _LOSS,
                )
                return position
            try:
                tree.restore(msgspec.json.decode(payload, type=list[Change]))
            except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
                raise StoreDamaged(f"{self._name()}: at byte {position}: {error}", hint=_HINT) from error
            position += _HEAD.size + len(payload)
        return position

    def _check_torn(self, data: bytes, position: int) -> None:
        """Raise if a complete batch follows: only the last batch can be torn."""
        for later in range(position + 1, len(data) - _HEAD.size):
            if _batch_at(data, later):
                raise StoreDamaged(
                    f"{self._name()}: the batch at byte {position} is damaged, and complete batches follow it",
                    hint=_HINT,
                )

    def _name(self) -> str:
        return f"{JOURNAL}{self._number}"

    def write(self, changes: list[Change]) -> File:
        """Write one batch; return the file whose `datasync` makes it durable. The previous one must be durable already.

        Raises:
            DiskFull: the same batch may be written again.
            DiskFailed: the device failed.
        """
        assert self._file is not None, "load first"
        payload = msgspec.json.encode(changes)
        self._file.pwrite(_HEAD.pack(len(payload), crc32(payload)) + payload, self.end)
        self.end += _HEAD.size + len(payload)
        return self._file

    def fold(self, tree: Tree) -> None:
        """Write the whole tree as a snapshot and begin a new journal. All batches must be durable.

        Cost: a few milliseconds, blocking, per JOURNAL_BYTES_MAX written.

        Raises:
            StoreError: it cannot be written; the old snapshot and journal stay valid.
        """
        snapshot = _Snapshot(self._number + 1, tree.last_session, tree.snapshot())
        self._disk.replace(f"{JOURNAL}{snapshot.journal}", b"")
        fresh = self._disk.open(f"{JOURNAL}{snapshot.journal}")
        self._disk.replace(SNAPSHOT, msgspec.json.encode(snapshot))
        old, self._file, self.end = self._file, fresh, 0
        former, self._number = self._name(), snapshot.journal
        if old is not None:
            old.close()
        self._disk.remove(former)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _batch_at(data: bytes, position: int) -> bytes | None:
    """Return the payload of the complete batch at a position; None if there is none. No batch is empty."""
    if position + _HEAD.size > len(data):
        return None
    size, checksum = _HEAD.unpack_from(data, position)
    if not size or position + _HEAD.size + size > len(data):
        return None
    payload = data[position + _HEAD.size : position + _HEAD.size + size]
    return payload if crc32(payload) == checksum else None
