"""Checking the consume queues of a store directory against its log: read only, as the log is verified.

    QueueCheck   of a worker: the entries that its records must have, beside those in the queue files
    judge        once the whole log was read: every entry must be one that a record named

Every sound record must have its queue entry: log offset, size, tags code. Not faults: what a topic that was deleted, or
deleted and created again, left in the log; entries of records before the log's start or in damaged ranges of it; and,
where `abort` says that the broker runs or was killed, entries that were not written yet: a start enters them.

Memory: a piece of a queue, a few numbers per queue, `LISTED_MAX` findings. Where as many entries are there as records
named, no entry can be without its record; only elsewhere each is looked up in the log.
Source: docs/internals/storage.md, "consume queue"; works on RocketMQ's stores as on ours.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tandemq.broker.integrity.verify_job import entries_of
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import parse_record, tags_code
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.replication.record_stream import Piece
from tandemq.storage.consume_queue import PREFILL_SIZE

LISTED_MAX = 100
CHUNK_ENTRIES = 50_000
_ENTRY = np.dtype([("log_offset", ">i8"), ("size", ">i4"), ("code", ">i8")])
_EMPTY = bytes(QUEUE_ENTRY_BYTES)
_PLACE_BYTES = 12
_EXTENDED_BELOW = -(1 << 31)
"""Java's extended queue entries hold an address, and no hash, as their code."""

Array = np.ndarray[Any, np.dtype[Any]]
Name = tuple[str, int]
"""Topic and queue id."""
Read = Callable[[int, int], bytes]
"""(log offset, size) -> up to so many bytes, not beyond the file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What is wrong, and where: "T/0@17" or the name of an index file."""

    where: str
    log_offset: int
    reason: str
    held: str = ""
    """What the entry says: log offset, size, tags code."""


@dataclass(slots=True)
class Findings:
    """At most `LISTED_MAX` are listed, all are counted."""

    faults: int = 0
    listed: list[Finding] = field(default_factory=list)

    def add(self, *found: Finding) -> None:
        """Note faults."""
        self.faults += len(found)
        self.listed += found[: LISTED_MAX - len(self.listed)]


@dataclass(slots=True)
class Compared:
    """What the records of a part of the log say of queue entries."""

    named: Counter[Name] = field(default_factory=Counter)
    """Records by queue whose entry is right."""
    not_yet: int = 0
    """Records whose entry is still to be written by the next start."""
    missing: set[Name] = field(default_factory=set)
    """Queues that are not there."""
    findings: Findings = field(default_factory=Findings)

    def merge(self, other: "Compared") -> None:
        """Add what was found in another part."""
        self.named += other.named
        self.not_yet += other.not_yet
        self.missing |= other.missing
        self.findings.add(*other.findings.listed)
        self.findings.faults += other.findings.faults - len(other.findings.listed)


class Settings(NamedTuple):
    """What workers must know. `has_extended`: there is a `consumequeue_ext`."""

    store: Path
    is_unclean: bool
    has_extended: bool

    def takes_code(self, topic: str, code: int) -> bool:
        """Whether the tags code of an entry is no tag's hash: a time of delivery, or Java's extended address."""
        return topic == SCHEDULE_TOPIC or (self.has_extended and code < _EXTENDED_BELOW)


def settings_of(store: Path) -> Settings:
    """How the queues of a store are to be looked at."""
    return Settings(store, (store / "abort").exists(), (store / "consumequeue_ext").is_dir())


class _Queue:
    """The files of one queue; none stays open."""

    def __init__(self, directory: Path) -> None:
        """List them."""
        self.is_there = directory.is_dir()
        found = sorted(path for path in directory.iterdir() if path.name.isdigit()) if self.is_there else []
        self.files = {int(path.name): path for path in found if path.stat().st_size}
        self.file_bytes = next(iter(self.files.values())).stat().st_size if self.files else 0
        self._first_place: int | None = None
        self._end: int | None = None

    def read(self, queue_offset: int, count: int) -> bytes:
        """So many entries; zeroes where there are none."""
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
        """All entries, many at a time, with the queue offset of the first; holes of the files are passed over."""
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
        """The log offset of the queue's first entry that can be right: older records are of a topic deleted since."""
        if self._first_place is None:
            self._first_place = next((place for _, entries in self.chunks() for place in _places(entries)), 0)
        return self._first_place

    @property
    def end(self) -> int:
        """Queue offset behind the last entry that is not empty; 0 if there is none."""
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
    """The smallest of the first log offsets of some entries: one that is damaged may be too large, hardly too small."""
    real = entries["log_offset"][_is_real(entries)][:3]
    if len(real):
        yield int(real.min())


def _is_real(entries: Array) -> Array:
    found: Array = (entries["size"] != PREFILL_SIZE) & (entries["size"] != 0)
    return found & (entries["log_offset"] >= 0)


class QueueCheck:
    """Compares the records that one process reads, range by range of the log."""

    def __init__(self, settings: Settings) -> None:
        """No queue was looked at yet."""
        self._settings = settings
        self._queues: dict[Name, _Queue] = {}
        self._waiting: dict[Name, tuple[int, bytearray]] = {}
        """By queue: the first queue offset of entries, and the entries."""
        self._found = Compared()

    def take(self, pieces: list[Piece]) -> None:
        """Note the entries that verified records must have. Cost: 20 bytes of memory for each until `end`."""
        for entries in entries_of(pieces):
            name = entries.topic.decode("utf-8", "replace"), entries.queue_id
            first, packed = self._waiting.get(name, (0, bytearray()))
            if first + len(packed) // QUEUE_ENTRY_BYTES != entries.queue_offset:
                self._compare(name, first, bytes(packed))
                first, packed = entries.queue_offset, bytearray()
            packed += entries.packed
            self._waiting[name] = first, packed

    def end(self) -> Compared:
        """Compare what was noted with the queues; what was found in this range."""
        for name, (first, packed) in self._waiting.items():
            self._compare(name, first, bytes(packed))
        self._waiting.clear()
        found, self._found = self._found, Compared()
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
        if not queue.is_there:
            self._found.missing |= {name} if count else set()
            return
        held = queue.read(first, count)
        if held == wanted:
            self._found.named[name] += count
            return
        for at in range(0, len(wanted), QUEUE_ENTRY_BYTES):
            stop = at + QUEUE_ENTRY_BYTES
            self._compare_one(name, queue, first + at // QUEUE_ENTRY_BYTES, held[at:stop], wanted[at:stop])

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
class Queues:
    """The outcome."""

    queues: int = 0
    entries: int = 0
    not_yet: int = 0
    findings: Findings = field(default_factory=Findings)
    notes: list[str] = field(default_factory=list)


def judge(settings: Settings, found: Compared, read: Read, log_start: int, damaged: list[tuple[int, int]]) -> Queues:
    """What the queues of a store are like, `found` being what all of its log says of them."""
    outcome = Queues(not_yet=found.not_yet, findings=found.findings)
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
        outcome.notes.append(f"records of {len(names)} queues that are not there (deleted topics): {names[:5]}")
    return outcome


def _unproven(entries: Array, log_start: int, damaged: list[tuple[int, int]]) -> Array:
    """Places of the entries that must name a sound record."""
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
                findings.add(Finding(where, entry[0], "the entry names no such record", str(entry)))


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
