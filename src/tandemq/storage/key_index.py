"""Key index: maps (topic, key, time) to log offsets.

A file has a header, a table of slots and a list of entries; the entries of one slot form a chain, newest first.
Keys are collected as packed rows (`KeyRow`). `absorb` writes their entries to disk. The slot table of the newest
file is kept in memory: it is written when the file is full or closed, and rebuilt from the entries after a crash.

Source: docs/internals/storage.md, "index"; RocketMQ IndexFile, IndexService.
"""

import logging
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from tandemq.boundary import Disk, File
from tandemq.codec.record.entries import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT_BYTES,
)
from tandemq.engine import KEY_ROW, KEY_ROW_BYTES, key_hash, link_keys
from tandemq.errors import StoreError
from tandemq.storage.cached_reads import read_cached
from tandemq.storage.segmented_file import write_zeroes

PENDING_MAX = 512
CHAIN_MAX = 100_000
log = logging.getLogger(__name__)
_ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ROW = np.dtype([("hash", "<i4"), ("offset", "<i8"), ("ms", "<i8")])
"""`engine.KEY_ROW` as a numpy dtype."""
_Array = np.ndarray[Any, np.dtype[Any]]


class IndexEntry(NamedTuple):
    """One key of an index file: its positive int32 hash, and the log offset of its record."""

    hash: int
    log_offset: int


class IndexGap(NamedTuple):
    """A part of the log behind an indexed record, or at its start, and before the next indexed record."""

    start: int
    """Log offset of a record, the indexed one unless it is the first of the log."""
    indexed: int
    """Log offset of the indexed record."""
    end: int


class IndexFile:
    """One index file. Entry numbers begin at 1."""

    def __init__(self, disk: Disk, path: str, slots: int, entries: int) -> None:
        """Open or create a file with `slots` slots and room for `entries` entries."""
        self.path = path
        self._slots = slots
        self.entries_max = entries
        self._entries_at = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots
        total = self._entries_at + INDEX_ENTRY_BYTES * entries
        self._file: File = disk.open(path, create=True)
        if self._file.size() < total:
            self._file.truncate(total)
        header = INDEX_HEADER.unpack(self._file.pread(INDEX_HEADER_BYTES, 0))
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, count = header
        self.count = max(1, count)
        self._table: _Array | None = None
        if not self._agrees():
            log.error("index: the header of %s does not agree with its entries; they are not used", path)
            self.count = 1

    @property
    def is_full(self) -> bool:
        """Whether no further entry fits."""
        return bool(self.count >= self.entries_max)

    def _agrees(self) -> bool:
        """Whether the header's number of entries is possible, and the first and the last are those that it names."""
        if self.count == 1:
            return True
        return self.count <= self.entries_max and (self._offset_of(1), self._offset_of(self.count - 1)) == (
            self.begin_offset,
            self.end_offset,
        )

    def _offset_of(self, number: int) -> int:
        raw = self._file.pread(INDEX_ENTRY_BYTES, self._entries_at + number * INDEX_ENTRY_BYTES)
        log_offset: int = INDEX_ENTRY.unpack(raw)[1]
        return log_offset

    def _slot_table(self) -> _Array:
        if self._table is None:
            if self.count <= 1:
                self._table = np.zeros(self._slots, dtype=np.int32)
            else:
                raw = self._file.pread(self._slots * INDEX_SLOT_BYTES, INDEX_HEADER_BYTES)
                table = np.frombuffer(raw, dtype=">i4").astype(np.int32)
                table[(table < 0) | (table >= self.count)] = 0
                self._table = table
        return self._table

    def rebuild_slots(self) -> bool:
        """Rebuild the slot table from the entries; False if they are not in log order (unsynced pages were lost)."""
        entries = self._read_entries()
        if not self._is_sound(entries):
            return False
        table = np.zeros(self._slots, dtype=np.int32)
        table[entries["hash"].astype(np.int64) % self._slots] = np.arange(1, len(entries) + 1, dtype=np.int32)
        self._table = table
        self.slots_used = int(np.count_nonzero(table))
        return True

    def _is_sound(self, entries: _Array) -> bool:
        """Whether the entries are in log order and none is missing: pages not synced may be missing or torn."""
        if not len(entries):
            return True
        offsets = entries["offset"]
        missing = (entries["hash"] == 0) & (offsets == 0)
        return bool(offsets[0] == self.begin_offset and (np.diff(offsets) >= 0).all() and not missing.any())

    def _read_entries(self) -> _Array:
        raw = self._file.pread((self.count - 1) * INDEX_ENTRY_BYTES, self._entries_at + INDEX_ENTRY_BYTES)
        return np.frombuffer(raw, dtype=_ENTRY)

    def truncate_from(self, log_end: int) -> bool:
        """Remove entries of records at or after `log_end`; False if the file is damaged.

        They are zeroed and synced: otherwise a power loss could mix them with the entries written in their place.
        """
        entries = self._read_entries()
        if not self._is_sound(entries):
            return False
        self.count = 1 + int(np.searchsorted(entries["offset"], log_end))
        if self.count > 1:
            newest = entries[self.count - 2]
            self.end_offset = int(newest["offset"])
            self.end_ms = self.begin_ms + int(newest["seconds"]) * 1000
        self._write_header()
        write_zeroes(self._file, self._entries_at + self.count * INDEX_ENTRY_BYTES)
        self._file.datasync()
        return self.rebuild_slots()

    def empty(self) -> None:
        """Remove all entries and sync: a power loss may bring the file back after it was deleted."""
        if self.count > 1:
            self.count = 1
            self._write_header()
            self._file.datasync()

    def add(self, rows: bytes) -> None:
        """Add packed keys (`engine.KEY_ROW`), in log order. The file must have room for them."""
        begin_ms, begin_offset = self.begin_ms, self.begin_offset
        if self.count == 1:
            _, begin_offset, begin_ms = KEY_ROW.unpack_from(rows)
        _, end_offset, end_ms = KEY_ROW.unpack_from(rows, len(rows) - KEY_ROW_BYTES)
        table = self._slot_table()
        entries, fresh = link_keys(rows, table, begin_ms, self.count)
        count = self.count + len(rows) // KEY_ROW_BYTES
        header = (begin_ms, end_ms, begin_offset, end_offset, self.slots_used + fresh, count)
        try:
            self._file.pwrite(entries, self._entries_at + self.count * INDEX_ENTRY_BYTES)
            self._file.pwrite(INDEX_HEADER.pack(*header), 0)
        except StoreError:  # all of them are added again later
            for hashed, _, _, previous in reversed(list(INDEX_ENTRY.iter_unpack(entries))):
                table[hashed % self._slots] = previous
            raise
        self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count = header

    def _write_header(self) -> None:
        self._file.pwrite(
            INDEX_HEADER.pack(
                self.begin_ms, self.end_ms, self.begin_offset, self.end_offset, self.slots_used, self.count
            ),
            0,
        )

    def write_slots(self) -> None:
        """Write the slot table, so that other readers of the file find its entries."""
        if self._table is not None:
            self._file.pwrite(self._table.astype(">i4").tobytes(), INDEX_HEADER_BYTES)

    def release(self) -> None:
        """Write the slot table of a full file and free its memory."""
        self.write_slots()
        self._table = None

    def find(self, wanted: int, begin_ms: int, end_ms: int, most: int, *, may_wait: bool = True) -> list[int]:
        """Return the log offsets of at most `most` entries with this hash and a time within the range, newest first.

        Raises:
            NotCached: the device would have to be waited for, and that may not be.
        """
        read = self._file.pread if may_wait else partial(read_cached, self._file)
        slot = wanted % self._slots
        if self._table is not None:
            number = int(self._table[slot])
        else:
            raw = read(INDEX_SLOT_BYTES, INDEX_HEADER_BYTES + slot * INDEX_SLOT_BYTES)
            number = int.from_bytes(raw, "big", signed=True)
        found: list[int] = []
        for _ in range(CHAIN_MAX):
            if not 0 < number < self.count or len(found) >= most:
                break
            raw = read(INDEX_ENTRY_BYTES, self._entries_at + number * INDEX_ENTRY_BYTES)
            there, offset, seconds, number = INDEX_ENTRY.unpack(raw)
            time_ms = self.begin_ms + seconds * 1000
            if time_ms < begin_ms - 1000:
                break
            if there == wanted and begin_ms - 1000 < time_ms <= end_ms:
                found.append(offset)
        return found

    def entries(self) -> list[IndexEntry]:
        """Return all entries, in log order."""
        return [IndexEntry(int(entry["hash"]), int(entry["offset"])) for entry in self._read_entries()]

    def close(self) -> None:
        """Write slot table and header, then close the file."""
        self.write_slots()
        self._write_header()
        self._file.close()

    def sync(self) -> None:
        """Write slot table and header, and sync the file; blocking."""
        self.write_slots()
        self._write_header()
        self._file.datasync()


class KeyIndex:
    """All index files, and the keys that are not in a file yet."""

    def __init__(self, disk: Disk, slots: int, entries: int) -> None:
        """Open the existing files; those of another size than configured are not used, see `drop_unused`."""
        self._disk = disk
        self._slots = slots
        self._entries = entries
        self.files: list[IndexFile] = []
        self.unused: list[str] = []
        """Paths of files of another size than configured: cut, or from before the configuration changed."""
        total = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries
        for name in disk.list("index"):
            if not name.isdigit():
                continue
            if disk.open(f"index/{name}").size() in (0, total):
                self.files.append(IndexFile(disk, f"index/{name}", slots, entries))
            else:
                log.warning("index: index/%s has another size than configured and is not used", name)
                self.unused.append(f"index/{name}")
        self.may_wait = True
        """Whether `find` may wait for the device."""
        self.pending = bytearray()
        """Keys that are not in a file yet, packed (`engine.KEY_ROW`), in log order."""

    @property
    def end_offset(self) -> int:
        """Log offset of the newest indexed record, -1 if there is none."""
        return self.files[-1].end_offset if self.files and self.files[-1].count > 1 else -1

    def gaps(self, log_start: int, log_end: int) -> list[IndexGap]:
        """Return the parts of the log without an indexed record: before, between and behind the files' records."""
        gaps, done = [], IndexGap(log_start, log_start - 1, log_start)
        for file in self.files:
            if file.count > 1:
                gaps.append(done._replace(end=file.begin_offset))
                done = IndexGap(file.end_offset, file.end_offset, 0)
        return [*gaps, done._replace(end=log_end)]

    def recover(self, log_end: int) -> bool:
        """After a crash, remove entries at or after `log_end` and rebuild the slots; False if a file is damaged."""
        while self.files and (self.files[-1].count <= 1 or self.files[-1].begin_offset >= log_end):
            self.files[-1].empty()
            self._drop(self.files.pop())
        unsure = [file for file in self.files[:-1] if file.end_offset >= log_end] + self.files[-1:]
        return all(file.truncate_from(log_end) for file in unsure)

    def drop_all(self) -> None:
        """Delete all files."""
        while self.files:
            self._drop(self.files.pop())

    def drop_unused(self) -> None:
        """Delete the files of another size, whose keys the others have: other readers would stumble over them."""
        for path in self.unused:
            log.warning("index: %s is deleted: all keys of the log are in the other files", path)
            self._disk.remove(path)
        self.unused.clear()

    def _drop(self, file: IndexFile) -> None:
        file.close()
        self._disk.remove(file.path)

    @property
    def waiting(self) -> int:
        """Number of keys that are not in a file yet."""
        return len(self.pending) // KEY_ROW_BYTES

    def not_indexed(self, rows: bytes) -> bytes:
        """Return the packed keys, in log order, whose records are after the newest indexed record."""
        end = self.end_offset
        if not rows or KEY_ROW.unpack_from(rows)[1] > end:
            return rows
        found = np.frombuffer(rows, dtype=_ROW)
        return found[found["offset"] > end].tobytes()

    def discard_from(self, log_end: int) -> None:
        """Discard keys not in a file yet whose records are at or after `log_end`."""
        rows = np.frombuffer(bytes(self.pending), dtype=_ROW)
        self.pending = bytearray(rows[rows["offset"] < log_end].tobytes())

    def absorb(self) -> None:
        """Write the entries of the keys that are not in a file yet.

        Raises:
            DiskFull, DiskFailed: the keys that could not be written are kept for the next call.
        """
        while self.pending:
            _, _, first_ms = KEY_ROW.unpack_from(self.pending)
            file = self._newest(first_ms)
            size = min(len(self.pending), (file.entries_max - file.count) * KEY_ROW_BYTES)
            file.add(bytes(self.pending[:size]))
            del self.pending[:size]
            if file.is_full:
                file.release()

    def _newest(self, wall_ms: int) -> IndexFile:
        if self.files and not self.files[-1].is_full:
            return self.files[-1]
        if self.files:
            self.files[-1].release()  # a retry, if the disk was full when the file became full
        moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
        name = int(moment.strftime("%Y%m%d%H%M%S") + f"{wall_ms % 1000:03d}")
        if self.files:
            name = max(name, int(self.files[-1].path.rsplit("/", 1)[1]) + 1)
        while self._disk.exists(f"index/{name:017d}"):  # one of another size
            name += 1
        self.files.append(IndexFile(self._disk, f"index/{name:017d}", self._slots, self._entries))
        return self.files[-1]

    def find(self, topic: str, key: str, begin_ms: int, end_ms: int, most: int) -> list[int]:
        """Return the log offsets of at most `most` candidates, ascending. Hash collisions are included; clients filter.

        Raises:
            DiskFull, DiskFailed: as `absorb`, which runs first.
            NotCached: the device would have to be waited for, and `may_wait` is false.
        """
        self.absorb()
        wanted = key_hash(topic, key.encode("utf-8", "surrogatepass"))
        found: list[int] = []
        for file in reversed(self.files):
            if file.count > 1 and file.begin_ms <= end_ms:
                found += file.find(wanted, begin_ms, end_ms, most - len(found), may_wait=self.may_wait)
            if len(found) >= most or (file.count > 1 and file.begin_ms < begin_ms):
                break
        return sorted(set(found))

    def drop_before(self, log_start: int) -> None:
        """Delete files whose records are all before `log_start`; never the last file."""
        while len(self.files) > 1 and self.files[0].end_offset < log_start:
            self._drop(self.files.pop(0))

    def last_full_ms(self) -> int:
        """Return the end time of the newest full file, ms: the index time of RocketMQ's checkpoint."""
        full = [file.end_ms for file in self.files if file.is_full]
        return full[-1] if full else 0

    def close(self) -> None:
        """Absorb the pending keys, then sync and close all files."""
        self.absorb()
        for file in self.files[-2:]:
            file.sync()
        for file in self.files:
            file.close()
