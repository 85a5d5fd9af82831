"""Offline check of a store's consume queues against its log: read only, while the log is verified.

    QueueCheck   in each worker: compares the entries that its records must have with those in the queue files
    judge        after the whole log was read: every entry in a queue file must belong to a record

Every valid record must have its queue entry: log offset, size, tags code. Not faults: records of topics that were
deleted (and maybe created again); entries of records before the log's start or in damaged ranges. If the file `abort`
shows that the broker is running or was killed, entries that are not written yet are not faults either: the next start
adds them.

Memory: a chunk of a queue, a few numbers per queue, `LISTED_MAX` findings. Where a queue has as many entries as correct
records were counted, no entry can lack its record; only in other queues each entry is looked up in the log.
Source: docs/internals/storage.md, "consume queue". Works on the stores of RocketMQ and TandemQ.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tandemq.broker.features.scrub.verify_job import entries_of
from tandemq.codec.record.entries import HOLE_SIZE_MIN, QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import parse_record, tags_code
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.replication.record_stream import Piece

LISTED_MAX = 100
CHUNK_ENTRIES = 50_000
_ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_EMPTY = bytes(QUEUE_ENTRY_BYTES)
_PLACE_BYTES = 12
_EXTENDED_BELOW = -(1 << 31)
"""RocketMQ's extended queue entries have an address below this as their tags code, instead of a hash."""

Array = np.ndarray[Any, np.dtype[Any]]
Name = tuple[str, int]
"""Topic and queue id."""
Read = Callable[[int, int], bytes]
"""(log offset, size) -> at most `size` bytes, not beyond the end of the file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault. `where`: queue entry like "T/0@17", or name of an index file."""

    where: str
    log_offset: int
    reason: str
    held: str = ""
    """Content of the entry: log offset, size, tags code."""


@dataclass(slots=True)
class Findings:
    """Faults: all are counted, at most `LISTED_MAX` are listed."""

    faults: int = 0
    listed: list[Finding] = field(default_factory=list)

    def add(self, *found: Finding) -> None:
        """Add faults."""
        self.faults += len(found)
        self.listed += found[: LISTED_MAX - len(self.listed)]


@dataclass(slots=True)
class QueueComparison:
    """Comparison of the records of a part of the log with the queue entries."""

    named: Counter[Name] = field(default_factory=Counter)
    """Number of records with a correct entry, by queue."""
    not_yet: int = 0
    """Records whose entry the next start writes."""
    missing: set[Name] = field(default_factory=set)
    """Queues of records that do not exist."""
    findings: Findings = field(default_factory=Findings)

    def merge(self, other: "QueueComparison") -> None:
        """Add the results of another part of the log."""
        self.named += other.named
        self.not_yet += other.not_yet
        self.missing |= other.missing
        self.findings.add(*other.findings.listed)
        self.findings.faults += other.findings.faults - len(other.findings.listed)


class Settings(NamedTuple):
    """Settings of the workers. `has_extended`: the store has a `consumequeue_ext`."""

    store: Path
    is_unclean: bool
    has_extended: bool

    def takes_code(self, topic: str, code: int) -> bool:
        """Return whether an entry's tags code is not a hash: a delivery time, or RocketMQ's extended address."""
        return topic == SCHEDULE_TOPIC or (self.has_extended and code < _EXTENDED_BELOW)


def settings_of(store: Path) -> Settings:
    """Return the settings for checking a store."""
    return Settings(store, (store / "abort").exists(), (store / "consumequeue_ext").is_dir())


class _Queue:
    """The files of one queue; they are opened for each access."""

    def __init__(self, directory: Path) -> None:
        """List the files of the queue."""
        self.exists = directory.is_dir()
        found = sorted(path for path in directory.iterdir() if path.name.isdigit()) if self.exists else []
        self.files = {int(path.name): path for path in found if path.stat().st_size}
        self.file_bytes = next(iter(self.files.values())).stat().st_size if self.files else 0
        self._first_place: int | None = None
        self._end: int | None = None

    def read(self, queue_offset: int, count: int) -> bytes:
        """Read `count` entries; missing ones are zeroes."""
        position, stop = queue_offset * QUEUE_ENTRY_BYTES, (queue_offset + count) * QUEUE_ENTRY_BYTES
        pieces: list[bytes] = []
        while position < stop:
            within = position % self.file_bytes if self.file_bytes else 0
            size = min(stop - position, self.file_bytes - within) if self.file_bytes else stop - position
            path = self.files.get(position - within)
            data = b""
            if path is not None:
                with path.open("rb", buffering=0) as file:
                    file.seek(within)
                    data = file.read(size)
            pieces.append(data.ljust(size, b"\0"))
            position += size
        return b"".join(pieces)

    def chunks(self) -> Iterator[tuple[int, Array]]:
        """Yield all entries in chunks, each with the queue offset of its first entry; file holes are skipped."""
        for start, path in sorted(self.files.items()):
            with path.open("rb", buffering=0) as file:
                position = 0
                while (position := _next_data(file.fileno(), position, self.file_bytes)) < self.file_bytes:
                    position -= position % QUEUE_ENTRY_BYTES
                    file.seek(position)
                    data = file.read(min(CHUNK_ENTRIES * QUEUE_ENTRY_BYTES, self.file_bytes - position))
                    whole = len(data) - len(data) % QUEUE_ENTRY_BYTES
                    if not whole:
                        break
                    yield (start + position) // QUEUE_ENTRY_BYTES, np.frombuffer(data[:whole], dtype=_ENTRY)
                    position += whole

    @property
    def first_place(self) -> int:
        """Log offset of the queue's first valid entry: older records belong to a topic that was deleted since."""
        if self._first_place is None:
            self._first_place = next((place for _, entries in self.chunks() for place in _places(entries)), 0)
        return self._first_place

    @property
    def end(self) -> int:
        """Queue offset after the last entry that is not empty; 0 if there is none."""
        if self._end is None:
            self._end = max((_end_of(first, entries) for first, entries in self.chunks()), default=0)
        return self._end


def _next_data(file: int, position: int, end: int) -> int:
    try:
        return os.lseek(file, position, os.SEEK_DATA)
    except OSError:
        return end


def _end_of(first: int, entries: Array) -> int:
    used = np.flatnonzero((entries["size"] != 0) | (entries["log_offset"] != 0) | (entries["code"] != 0))
    return first + int(used[-1]) + 1 if len(used) else 0


def _places(entries: Array) -> Iterator[int]:
    """Yield the smallest of the first three log offsets: a damaged offset may be too large, but hardly too small."""
    real = entries["log_offset"][_is_real(entries)][:3]
    if len(real):
        yield int(real.min())


def _is_real(entries: Array) -> Array:
    found: Array = (entries["size"] < HOLE_SIZE_MIN) & (entries["size"] != 0)
    return found & (entries["log_offset"] >= 0)


class QueueCheck:
    """Compares the records that one process reads with their queue entries, one log range after another."""

    def __init__(self, settings: Settings) -> None:
        """Create a check that has compared nothing yet."""
        self._settings = settings
        self._queues: dict[Name, _Queue] = {}
        self._waiting: dict[Name, tuple[int, bytearray]] = {}
        """By queue: the first queue offset of entries, and the entries."""
        self._found = QueueComparison()

    def take(self, pieces: list[Piece]) -> None:
        """Collect the entries that verified records must have. Cost: 20 bytes of memory per record until `end`."""
        for entries in entries_of(pieces):
            name = entries.topic.decode("utf-8", "replace"), entries.queue_id
            first, packed = self._waiting.get(name, (0, bytearray()))
            if first + len(packed) // QUEUE_ENTRY_BYTES != entries.queue_offset:
                self._compare(name, first, bytes(packed))
                first, packed = entries.queue_offset, bytearray()
            packed += entries.packed
            self._waiting[name] = first, packed

    def end(self) -> QueueComparison:
        """Compare the collected entries with the queues, and return the result for this range."""
        for name, (first, packed) in self._waiting.items():
            self._compare(name, first, bytes(packed))
        self._waiting.clear()
        found, self._found = self._found, QueueComparison()
        return found

    def _queue(self, name: Name) -> _Queue:
        queue = self._queues.get(name)
        if queue is None:
            topic, queue_id = name
            is_name = topic not in ("", ".", "..") and not {"/", "\0"} & set(topic)
            where = self._settings.store / "consumequeue" / (topic if is_name else "?") / str(queue_id)
            queue = self._queues[name] = _Queue(where)
        return queue

    def _compare(self, name: Name, first: int, wanted: bytes) -> None:
        queue, count = self._queue(name), len(wanted) // QUEUE_ENTRY_BYTES
        if not queue.exists:
            self._found.missing |= {name} if count else set()
            return
        held = queue.read(first, count)
        if held == wanted:
            self._found.named[name] += count
            return
        for position in range(0, len(wanted), QUEUE_ENTRY_BYTES):
            stop = position + QUEUE_ENTRY_BYTES
            self._compare_one(
                name, queue, first + position // QUEUE_ENTRY_BYTES, held[position:stop], wanted[position:stop]
            )

    def _compare_one(self, name: Name, queue: _Queue, queue_offset: int, held: bytes, wanted: bytes) -> None:
        entry, right = QUEUE_ENTRY.unpack(held), QUEUE_ENTRY.unpack(wanted)
        is_place_right = held[:_PLACE_BYTES] == wanted[:_PLACE_BYTES]
        if held == wanted or (is_place_right and self._settings.takes_code(name[0], entry[2])):
            self._found.named[name] += 1
        elif right[0] < queue.first_place:
            return
        elif held == _EMPTY and self._settings.is_unclean and queue_offset >= queue.end:
            self._found.not_yet += 1
        else:
            where = f"{name[0]}/{name[1]}@{queue_offset}"
            self._found.findings.add(Finding(where, right[0], "the record has no such queue entry", str(entry)))


@dataclass(slots=True)
class QueueReport:
    """Result of checking the queues."""

    queues: int = 0
    entries: int = 0
    not_yet: int = 0
    findings: Findings = field(default_factory=Findings)
    notes: list[str] = field(default_factory=list)


def judge(
    settings: Settings, found: QueueComparison, read: Read, log_start: int, damaged: list[tuple[int, int]]
) -> QueueReport:
    """Check that every queue entry belongs to a record; `found` is the comparison of the whole log."""
    outcome = QueueReport(not_yet=found.not_yet, findings=found.findings)
    for directory in sorted((settings.store / "consumequeue").glob("*/*")):
        if not directory.name.isdigit():
            continue
        name = directory.parent.name, int(directory.name)
        queue, real, end = _Queue(directory), 0, 0
        first_held = min(queue.files, default=0) // QUEUE_ENTRY_BYTES
        for first, entries in queue.chunks():
            real += len(_unproven(entries, log_start, damaged))
            end = max(end, _end_of(first, entries))
        outcome.queues += 1
        outcome.entries += max(0, end - first_held)
        if real != found.named[name]:
            _look_up(outcome.findings, settings, name, queue, read, log_start, damaged)
    if found.missing:
        names = sorted(f"{topic}/{queue_id}" for topic, queue_id in found.missing)
        outcome.notes.append(f"records of {len(names)} missing queues (deleted topics): {names[:5]}")
    return outcome


def _unproven(entries: Array, log_start: int, damaged: list[tuple[int, int]]) -> Array:
    """Return the indexes of the entries that must belong to a valid record."""
    offsets = entries["log_offset"]
    wanted = _is_real(entries) & (offsets >= log_start)
    for start, end in damaged:
        wanted &= (offsets < start) | (offsets >= end)
    return np.flatnonzero(wanted)


def _look_up(
    findings: Findings,
    settings: Settings,
    name: Name,
    queue: _Queue,
    read: Read,
    log_start: int,
    damaged: list[tuple[int, int]],
) -> None:
    for first, entries in queue.chunks():
        for place in _unproven(entries, log_start, damaged).tolist():
            entry = entries[place].item()
            if not _names_record(settings, name, first + place, entry, read):
                where = f"{name[0]}/{name[1]}@{first + place}"
                findings.add(Finding(where, entry[0], "the entry matches no record", str(entry)))


def _names_record(settings: Settings, name: Name, queue_offset: int, entry: tuple[int, int, int], read: Read) -> bool:
    log_offset, size, code = entry
    head = read(log_offset, 4)
    if size <= 0 or int.from_bytes(head, "big", signed=True) != size:
        return False
    data = read(log_offset, size)
    record = parse_record(data, 0, len(data))
    if isinstance(record, str):
        return False
    if (record.topic.decode("utf-8", "replace"), record.queue_id, record.queue_offset) != (*name, queue_offset):
        return False
    return record.log_offset == log_offset and (
        settings.takes_code(name[0], code) or code == tags_code(record.properties)
    )
