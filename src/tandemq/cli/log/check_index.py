"""Offline check of a store's key index against its log: read only, no broker needed.

Every key of a record must be in the index, and every entry of the index must belong to a record. Not faults: entries
for records before the log's start or in damaged ranges. If the file `abort` shows that the broker is running or was
killed, entries that are not written or not linked into their slots yet are not faults either: the next start adds them.

Memory: one batch of records, and the entries of one index file.
Source: docs/internals/storage.md, "index". Works on the stores of RocketMQ and TandemQ.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tandemq.cli.log.check_queues import Finding, Findings
from tandemq.codec.record.entries import INDEX_ENTRY_BYTES, INDEX_HEADER, INDEX_HEADER_BYTES, INDEX_SLOT_BYTES
from tandemq.codec.record.record import Record, record_keys
from tandemq.engine import key_hash

BATCH_RECORDS = 50_000
_INDEX_ENTRY = np.dtype([("hash", ">i4"), ("offset", ">i8"), ("seconds", ">i4"), ("previous", ">i4")])
_ROLLBACK, _TRANSACTION_BITS = 0xC, 0xC
"""Rolled-back transactions are not indexed."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(slots=True)
class IndexReport:
    """Result of checking the index."""

    entries: int = 0
    not_yet: int = 0
    """Records whose keys the next start adds."""
    findings: Findings = field(default_factory=Findings)
    notes: list[str] = field(default_factory=list)

    def add(self, where: str, log_offset: int, reason: str) -> None:
        """Add a fault."""
        self.findings.add(Finding(where, log_offset, reason))


class _Index:
    """All index files as one sequence of entries in log order."""

    def __init__(
        self,
        store: Path,
        slots: int,
        entries: int,
        found: IndexReport,
        damaged: list[tuple[int, int]],
        *,
        is_unclean: bool,
    ) -> None:
        total = INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots + INDEX_ENTRY_BYTES * entries
        directory = store / "index"
        self._found = found
        self._slots = slots
        self._is_unclean = is_unclean
        self._damaged = damaged
        self._files: list[tuple[Path, int]] = []
        self.begin, self.end = -1, -1
        for path in sorted(directory.iterdir()) if directory.is_dir() else ():
            if not path.name.isdigit() or not path.stat().st_size:
                continue
            if path.stat().st_size != total:
                found.notes.append(f"index/{path.name} is not checked: its size does not match --slots and --entries")
                self._files.clear()
                break
            with path.open("rb") as file:
                header = INDEX_HEADER.unpack(file.read(INDEX_HEADER_BYTES))
            if header[5] > 1:
                self.begin = header[2] if self.begin < 0 else self.begin
                self.end = header[3]
                self._files.append((path, header[5]))
        self._waiting: list[tuple[int, int]] = []
        self._rows = self._read()

    @property
    def exists(self) -> bool:
        """Whether there is an index to check."""
        return bool(self._files)

    def _read(self) -> Iterator[tuple[int, int]]:
        for path, count in self._files:
            with path.open("rb") as file:
                file.seek(INDEX_HEADER_BYTES)
                table = np.fromfile(file, dtype=">i4", count=self._slots)
                entries = np.fromfile(file, dtype=_INDEX_ENTRY, count=count)[1:]
            self._check_chains(f"index/{path.name}", table, entries, is_last=path == self._files[-1][0])
            self._found.entries += len(entries)
            yield from zip(entries["offset"].tolist(), entries["hash"].tolist(), strict=True)

    def _check_chains(self, name: str, table: Array, entries: Array, *, is_last: bool) -> None:
        """Check that each entry links to the previous one of its slot, and each slot to its newest entry."""
        slots = entries["hash"].astype(np.int64) % self._slots
        order = np.argsort(slots, kind="stable")
        again = slots[order][1:] == slots[order][:-1]
        previous = np.zeros(len(entries), dtype=np.int64)
        previous[order[1:][again]] = order[:-1][again] + 1
        for place in np.flatnonzero(entries["previous"] != previous):
            self._found.add(
                name, int(entries["offset"][place]), f"entry {place + 1} does not link to the previous one of its slot"
            )
        newest = np.zeros(self._slots, dtype=np.int64)
        newest[slots] = np.arange(1, len(entries) + 1)
        if not (is_last and self._is_unclean):
            for slot in np.flatnonzero(table != newest):
                self._found.add(name, -1, f"slot {slot} does not link to its newest entry")

    def take(self, expected: list[tuple[str, bytes, int]], log_end: int, log_start: int) -> None:
        """Compare with the keys of records below `log_end`, as (topic, key, log offset)."""
        if not self.exists:
            return
        rows = self._upto(log_end)
        real = Counter(row for row in rows if row[0] >= log_start and not _lies_in(row[0], self._damaged))
        wanted = Counter(
            (offset, key_hash(topic, key)) for topic, key, offset in expected if self.begin <= offset <= self.end
        )
        late = len({offset for _, _, offset in expected if offset > self.end})
        if self._is_unclean:
            self._found.not_yet += late
        elif late:
            self._found.add("index", self.end, f"{late} records after its last entry are missing")
        for offset, _ in (wanted - real).elements():
            self._found.add("index", offset, "a key of the record is missing")
        for offset, _ in (real - wanted).elements():
            self._found.add("index", offset, "an entry matches no key of the record")

    def _upto(self, log_end: int) -> list[tuple[int, int]]:
        rows, self._waiting = self._waiting, []
        for row in self._rows:
            if row[0] >= log_end:
                self._waiting = [row]
                break
            rows.append(row)
        return rows

    def finish(self, log_start: int) -> None:
        """Report entries after the last record."""
        for offset, _ in (*self._waiting, *self._rows) if self.exists else ():
            if offset >= log_start and not _lies_in(offset, self._damaged):
                self._found.add("index", offset, "an entry has no record")


def check_index(
    store: Path,
    records: Iterable[Record],
    log_start: int,
    damaged: list[tuple[int, int]],
    *,
    slots: int,
    entries: int,
    progress: Callable[[int], None],
) -> IndexReport:
    """Compare the index with the valid records of the log.

    Args:
        store: storePathRootDir.
        records: valid records in log order.
        log_start: first log offset of the log.
        damaged: damaged ranges of the log, as [start, end).
        slots: hash slots per index file.
        entries: entries per index file.
        progress: called with the log offset reached.
    """
    found = IndexReport()
    index = _Index(store, slots, entries, found, damaged, is_unclean=(store / "abort").exists())
    position = log_start
    for batch in _batches(records):
        keys: list[tuple[str, bytes, int]] = []
        for record in batch:
            topic = record.topic.decode("utf-8", "replace")
            keys += [(topic, key, record.log_offset) for key in indexed_keys(record)]
            position = record.log_offset + record.size
        index.take(keys, position, log_start)
        progress(position)
    index.finish(log_start)
    if not index.exists:
        found.notes.append("there is no index")
    return found


def indexed_keys(record: Record) -> list[bytes]:
    """Return the keys by which a record is in the index."""
    return [] if record.sys_flag & _TRANSACTION_BITS == _ROLLBACK else record_keys(record.properties)


def _lies_in(log_offset: int, ranges: list[tuple[int, int]]) -> bool:
    return any(start <= log_offset < end for start, end in ranges)


def _batches(records: Iterable[Record]) -> Iterator[list[Record]]:
    batch: list[Record] = []
    for record in records:
        batch.append(record)
        if len(batch) >= BATCH_RECORDS:
            yield batch
            batch = []
    if batch:
        yield batch
