"""Queue entries compared with the records of the log, and rebuilt from them.

    compare(entries)     entries that a worker derived from the log, beside those of queues; wrong ones are rewritten
    suspect(queue, n)    an entry that cannot be right: its record is searched for at once, and the entry rebuilt
    next_range(now)      the part of the log that the scrubber has to read for the oldest suspect
    take_files()         files that were rewritten, to be synced by a worker

Only a record that verified, checksums included, becomes an entry. All of this runs in turns of the broker, the only
writer of queues; workers read the log and sync files.

Entries are in the order of the log, so the record of a suspect lies between those of the sound entries around it. A
search that did not find it (the record is damaged, or no longer in the log) is not repeated within `RETRY_MS`; repairs
and passes of the scrubber still rebuild such an entry once its record is good. Consumers skip the entry, unless damage
that waits for its repair may hold the record.

Source: docs/internals/storage.md, "scrubbing".
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tandemq.boundary import File, Now
from tandemq.broker.features.scrub.verify_job import Entries
from tandemq.broker.state.damage_table import WAITS, Damages
from tandemq.codec.record.entries import QUEUE_ENTRY, QUEUE_ENTRY_BYTES
from tandemq.codec.record.record import parse_record
from tandemq.errors import StoreError
from tandemq.model.topic import SCHEDULE_TOPIC
from tandemq.storage.consume_queue import ConsumeQueue, Entry, around
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
SUSPECTS_MAX = 10_000
"""Maximum number of entries that wait for their search, and of searches without a result that are remembered."""
RETRY_MS = 600_000
LOGGED_MAX = 20
"""Maximum number of entries logged one by one within `LOGGED_MS`; of the rest only the number is logged."""
LOGGED_MS = 60_000
DELAY_MAX_MS = 400 * 24 * 3_600_000
"""A deliver time longer than this after the store time is damage, not a setting of delay levels."""
_PLACE_BYTES = 12
"""Log offset and size of an entry; the tags code follows."""


class Key(NamedTuple):
    """One queue entry."""

    topic: str
    queue_id: int
    queue_offset: int


@dataclass(slots=True)
class Search:
    """The part of the log that may hold a suspect's record. `position` moves to `end`; both are record boundaries."""

    key: Key
    queue: ConsumeQueue
    start: int
    position: int
    end: int


class Missed(NamedTuple):
    """A part of the log where a suspect's record was not found, and when (monotonic ms)."""

    mono_ms: int
    start: int
    end: int


class EntryRepairs:
    """Queue entries of one broker."""

    def __init__(self, store: Store, damages: Damages, has_topic: Callable[[str], bool]) -> None:
        """Begin without suspect entries. `has_topic`: returns whether a topic exists."""
        self._store = store
        self._has_topic = has_topic
        self._damages = damages
        self.rebuilt = 0
        """Entries rebuilt because they differed from the log, in the whole life of the store."""
        self._suspects: dict[Key, ConsumeQueue] = {}
        self._missed: dict[Key, Missed] = {}
        """Searches that ended without the record, oldest first."""
        self._search: Search | None = None
        self._files: dict[int, File] = {}
        self._logged = 0
        self._logged_since_ms = 0
        self._unlogged = 0

    # Suspects.

    @property
    def waiting(self) -> int:
        """Number of entries that wait for their search."""
        return len(self._suspects)

    def suspect(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> bool:
        """Queue an entry for its search. Returns whether its message may still be found, then or after a repair."""
        key = Key(queue.topic, queue.queue_id, queue_offset)
        missed = self._missed.get(key)
        if missed is not None:
            return self._damages.fate_of(missed.start, missed.end - missed.start) == WAITS
        if key in self._suspects or not _holds(queue, queue_offset):
            return key in self._suspects
        if len(self._suspects) >= SUSPECTS_MAX:
            return True
        self._suspects[key] = queue
        self._log(
            logging.ERROR,
            "scrub: entry of topic=%s queue=%d offset=%d is %s and does not name its "
            "record: %s; the log is searched for it",
            *key,
            tuple(queue.entry(queue_offset)),
            reason,
        )
        return True

    def forget_missed(self, now: Now) -> None:
        """Let entries whose last search is long ago be suspected again, and log how many were not logged."""
        while self._missed and now.mono_ms - next(iter(self._missed.values())).mono_ms >= RETRY_MS:
            del self._missed[next(iter(self._missed))]
        if now.mono_ms - self._logged_since_ms >= LOGGED_MS:
            self._logged_since_ms, self._logged = now.mono_ms, 0
            if self._unlogged:
                log.warning("scrub: %d more lines about queue entries were not logged", self._unlogged)
                self._unlogged = 0

    def next_range(self, now: Now) -> Search | None:
        """Return the search to continue; None if no entry waits. Suspects that are right meanwhile are dropped."""
        while self._search is None and self._suspects:
            key, queue = next(iter(self._suspects.items()))
            try:
                self._search = self._searched(key, queue)
            except StoreError as error:
                log.error("scrub: entry of topic=%s queue=%d offset=%d cannot be looked at: %s", *key, error)
                self._miss(key, Missed(now.mono_ms, 0, self._store.log.written_end))
            if self._search is None:
                del self._suspects[key]
        return self._search

    def searched(self, position: int | None, now: Now) -> None:
        """Take note that the log was compared up to a position; None: the search has to begin again."""
        search, self._search = self._search, None
        assert search is not None, "a search was in progress"
        if position is None:
            return
        if self.is_right(search.queue, search.key.queue_offset):
            del self._suspects[search.key]
        elif position < search.end:
            self._search = search
            search.position = position
        else:
            del self._suspects[search.key]
            self._miss(search.key, Missed(now.mono_ms, search.start, search.end))
            self._log(
                logging.ERROR,
                "scrub: entry of topic=%s queue=%d offset=%d stays wrong: its record is damaged, or is not in the log",
                *search.key,
            )

    def _miss(self, key: Key, missed: Missed) -> None:
        if len(self._missed) >= SUSPECTS_MAX:
            del self._missed[next(iter(self._missed))]
        self._missed[key] = missed

    def _searched(self, key: Key, queue: ConsumeQueue) -> Search | None:
        """Return where to search for the record of a suspect; None if there is no need."""
        if self.is_right(queue, key.queue_offset):
            return None
        store = self._store
        before, behind = self._around(queue, key.queue_offset, key.queue_offset + 1)
        start, end = max(before, store.log.start), min(behind, store.log.written_end)
        if start >= end:
            start, end = store.log.start, store.log.written_end
        return Search(key, queue, start, start, end) if start < end else None

    def is_right(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry names its record, with the record's tags code; also if the entry no longer exists."""
        store = self._store
        if store.queues.get((queue.topic, queue.queue_id)) is not queue or not _holds(queue, queue_offset):
            return True
        found = store.record_of(queue, queue_offset)
        if found is None:
            return False
        record, code = found[0], queue.entry(queue_offset).tags_code
        if queue.topic == SCHEDULE_TOPIC:
            return 0 <= code - record.store_ms <= DELAY_MAX_MS
        return code == store.entry_code(queue.topic, record.properties, record.store_ms)

    def _around(self, queue: ConsumeQueue, first: int, end: int) -> tuple[int, int]:
        """Return the end of the last sound record before the entries `[first, end)`, and the start of the first after.

        The ends of the log if there is none. Entries at growing distances are tried: about 40 records are read.
        """
        log_end = self._store.log.written_end
        before = self._first_sound(queue, _away(first, queue.min_offset - 1))
        behind = self._first_sound(queue, _away(end - 1, queue.max_offset))
        return sum(before) if before is not None else 0, behind[0] if behind is not None else log_end

    def _first_sound(self, queue: ConsumeQueue, offsets: Iterable[int]) -> tuple[int, int] | None:
        """Return log offset and size of the record of the first of some entries that names its record."""
        for queue_offset in offsets:
            found = self._store.record_of(queue, queue_offset)
            if found is not None:
                return found[0].log_offset, found[0].size
        return None

    # Comparing.

    def compare(self, entries: Entries, *, enters: bool = False) -> None:
        """Rewrite queue entries that differ from the log. `enters`: also add those behind a queue's end."""
        topic = entries.topic.decode("utf-8", "replace")
        queue = self._store.queues.get((topic, entries.queue_id))
        if queue is None and enters and entries.queue_id >= 0 and self._has_topic(topic):
            queue = self._store.queue(topic, entries.queue_id)  # all of its records were damaged
        if queue is None:
            return
        first = max(entries.queue_offset, queue.min_offset)
        wanted = entries.packed[(first - entries.queue_offset) * QUEUE_ENTRY_BYTES :]
        try:
            held = queue.read(first, len(wanted) // QUEUE_ENTRY_BYTES)
            if held != wanted[: len(held)]:
                self._rewrite(queue, first, held, wanted[: len(held)])
            if enters and len(held) < len(wanted):
                self._enter(queue, first + len(held) // QUEUE_ENTRY_BYTES, wanted[len(held) :])
        except StoreError as error:
            log.error("scrub: entries of topic=%s queue=%d cannot be rebuilt: %s", topic, entries.queue_id, error)

    def _rewrite(self, queue: ConsumeQueue, first: int, held: bytes, wanted: bytes) -> None:
        """Replace wrong entries of `held` by those of `wanted`, which the log has, from queue offset `first` on."""
        wrong = [
            position
            for position in range(0, len(held), QUEUE_ENTRY_BYTES)
            if held[position : position + QUEUE_ENTRY_BYTES] != wanted[position : position + QUEUE_ENTRY_BYTES]
            and not (queue.topic == SCHEDULE_TOPIC and _is_same_delay(held, wanted, position))
        ]
        if not wrong or not (len(wrong) < len(held) // QUEUE_ENTRY_BYTES or self._is_current(queue, first, wanted)):
            return
        for start, stop in _runs(wrong):
            packed = wanted[start:stop]
            if queue.topic == SCHEDULE_TOPIC:
                packed = b"".join(map(self._with_delay, QUEUE_ENTRY.iter_unpack(packed)))
            for file in queue.rewrite(first + start // QUEUE_ENTRY_BYTES, packed):
                self._files[id(file)] = file
        for position in wrong:
            self.rebuilt += 1
            self._log(
                logging.WARNING,
                "scrub: entry of topic=%s queue=%d offset=%d was %s, rebuilt from the log as %s",
                queue.topic,
                queue.queue_id,
                first + position // QUEUE_ENTRY_BYTES,
                QUEUE_ENTRY.unpack_from(held, position),
                QUEUE_ENTRY.unpack_from(wanted, position),
            )

    def _is_current(self, queue: ConsumeQueue, first: int, wanted: bytes) -> bool:
        """Whether records whose entries all differ are those that the queue should hold.

        If its topic was deleted and created again, the log has other, older records with the same queue offsets.
        """
        end = first + len(wanted) // QUEUE_ENTRY_BYTES
        log_offsets: list[int] = [log_offset for log_offset, _, _ in QUEUE_ENTRY.iter_unpack(wanted)]
        for queue_offset in around(first, end):
            found = self._store.record_of(queue, queue_offset)
            if found is not None and found[0].log_offset >= log_offsets[queue_offset - first]:
                return found[0].log_offset == log_offsets[queue_offset - first]
        before, behind = self._around(queue, first, end)
        return before <= log_offsets[0] and log_offsets[-1] < behind

    def _enter(self, queue: ConsumeQueue, first: int, wanted: bytes) -> None:
        """Add entries for repaired records behind a queue's last entry."""
        store = self._store
        for number, entry in enumerate(map(Entry._make, QUEUE_ENTRY.iter_unpack(wanted))):
            if queue.topic == SCHEDULE_TOPIC:
                entry = Entry._make(QUEUE_ENTRY.unpack(self._with_delay(entry)))
            if entry.log_offset >= queue.last_log_end and queue.enter(first + number, *entry):
                store.dirty_queues[queue] = None

    def _with_delay(self, entry: tuple[int, int, int]) -> bytes:
        """Return an entry of the schedule topic with its deliver time, which the settings decide."""
        log_offset, size, code = entry
        store = self._store
        data = store.record_at(log_offset, size)
        record = parse_record(data, 0, len(data)) if data is not None else "gone"
        if not isinstance(record, str):
            code = store.entry_code(SCHEDULE_TOPIC, record.properties, record.store_ms)
        return QUEUE_ENTRY.pack(log_offset, size, code)

    # Syncing and logging.

    @property
    def has_files(self) -> bool:
        """Whether files wait to be synced."""
        return bool(self._files)

    def take_files(self) -> list[File]:
        """Return the files rewritten since the last call; nothing else syncs entries of records this old."""
        files, self._files = list(self._files.values()), {}
        return files

    def _log(self, level: int, text: str, *arguments: object) -> None:
        if self._logged < LOGGED_MAX:
            self._logged += 1
            log.log(level, text, *arguments)
        else:
            self._unlogged += 1


def _holds(queue: ConsumeQueue, queue_offset: int) -> bool:
    return queue.min_offset <= queue_offset < queue.max_offset


def _away(start: int, limit: int) -> Iterable[int]:
    """Yield numbers from `start` towards `limit`, both excluded, at growing distances, and the last one before it."""
    sign, step = (1, 1) if limit > start else (-1, 1)
    while step < abs(limit - start):
        yield start + sign * step
        step *= 2
    if abs(limit - start) > 1:
        yield limit - sign


def _is_same_delay(held: bytes, wanted: bytes, position: int) -> bool:
    """Whether two entries of the schedule topic name the same record; `wanted` has its store time as code."""
    delay_ms = QUEUE_ENTRY.unpack_from(held, position)[2] - QUEUE_ENTRY.unpack_from(wanted, position)[2]
    return (
        held[position : position + _PLACE_BYTES] == wanted[position : position + _PLACE_BYTES]
        and 0 <= delay_ms <= DELAY_MAX_MS
    )


def _runs(positions: list[int]) -> list[tuple[int, int]]:
    """Join positions of adjacent entries to ranges."""
    runs: list[tuple[int, int]] = []
    for position in positions:
        start = runs.pop()[0] if runs and runs[-1][1] == position else position
        runs.append((start, position + QUEUE_ENTRY_BYTES))
    return runs
