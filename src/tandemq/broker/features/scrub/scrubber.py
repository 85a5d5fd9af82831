"""The scrubber: reads the commit log again from its files, at a limited rate, and verifies every record.

    begin a pass ── step ── step ── … ── log end as it was then ── wait until the next pass is due
                     │ a worker reads and verifies (verify_job.CheckWork); the result comes back to a turn
                     ├─ damage: noted in the damage table, logged once, handed to `repair`
                     └─ queue entries that differ from the log: rebuilt from it (`entry_repair`)

A pass continues after a restart. A place is checked before all else if a slave received the same bad record from us
three times, or if a pull met something that cannot be a record; so is the record of a queue entry that cannot be right
(`suspect_entry`), whether passes are made or not.

Source: docs/internals/storage.md, "scrubbing".
"""

import logging
from functools import partial
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.features.scrub.entry_repair import EntryRepairs
from tandemq.broker.features.scrub.repair import Repairs
from tandemq.broker.features.scrub.verify_job import Checked, CheckWork, Entries, SyncWork
from tandemq.broker.kernel.connection import Link
from tandemq.broker.kernel.feature import Feature, Request
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.verification import A_DELAY, A_PULL, A_TIMER, A_TRANSACTION, Mismatch, Verification
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import is_true, read_fields
from tandemq.config.settings import BrokerConfig
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.refusals import Refusals
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.json_tables import TableFile

log = logging.getLogger(__name__)
FIRST_MS = 60_000
"""Delay of a pass that is due at the start, when the broker has other things to do."""
IDLE_MS = 60_000
"""Interval of checks whether a pass is due."""
STEPS_PER_SECOND = 64
"""Messages wait while a step holds the interpreter: a third of a millisecond at the default rate."""
STEP_BYTES = (64 << 10, 4 << 20)
"""Minimum and maximum size of one step."""
SAVE_MS = 30_000
SUSPECTS_MAX = 16
SEARCH_STEP_BYTES = 128 << 10
SEARCH_BYTES_PER_SECOND = 16 << 20
"""Minimum rate of the search for the record of a damaged queue entry: consumers wait for it."""

SHOWN_RANGES_MAX = 20


class ScrubFields(msgspec.Struct, rename="camel"):
    """TANDEM_SCRUB (7305): whether to begin a pass, and at which rate."""

    begin: str = "false"
    bytes_per_second: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


class Pass(msgspec.Struct, rename="camel"):
    """One pass over the log, up to the log end at its beginning. Times: calendar ms; `ended_ms` 0 while it runs."""

    until: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    bytes: int = 0
    records: int = 0
    damaged: int = 0


class Suspicion(msgspec.Struct, rename="camel"):
    """A place of our log that was reported as damaged, and what the check found there."""

    log_offset: int
    source: str
    reason: str
    told_ms: int
    found: str = ""


class Scrubber(Feature, Verification):
    """The scrubber of one broker."""

    def __init__(self, kernel: Kernel) -> None:
        """Continue where the last run stopped."""
        self._store = kernel.store
        self._saver = kernel.saver
        self._schedule = kernel.schedule
        self._current = kernel.current
        self._turn = kernel.turn
        self.damages = kernel.damages
        self.repairs = Repairs(kernel, self.save, self.settled)
        self.position = 0
        self.current_pass = Pass()
        self.last_pass = Pass()
        self.entries = EntryRepairs(kernel.store, kernel.damages, lambda topic: kernel.topics.get(topic) is not None)
        self.suspicion: Suspicion | None = None
        self._unfounded = Refusals()
        """Reports of places that are sound."""
        self._suspects: list[int] = []
        self._is_boundary = False
        """Whether a record is known to begin at `position`; after a restart or a truncation that is checked first."""
        self._is_busy = False
        self._asked_rate = 0
        self._saved_ms = kernel.began.mono_ms
        self._unsynced_from: int | None = None
        """Start of the step of a pass whose rewritten queue entries are not on the device yet."""
        self._due_ms: int | None = None
        self._load(kernel.began)
        self._plan(kernel.began.mono_ms + min(FIRST_MS, kernel.current.config.scrub_interval_ms), kernel.began)
        for queue, queue_offset in kernel.store.suspect_entries:
            self.suspect_entry(queue, queue_offset, "recovery found it so")

    def requests(self) -> dict[Code, Request]:
        """See `Feature`."""
        return {Code.TANDEM_SCRUB: Request(self._on_scrub)}

    def _on_scrub(self, _link: Link, command: Command, now: Now) -> Command | None:
        fields = read_fields(ScrubFields, command.fields)
        if is_true(fields.begin):
            if not (fields.bytes_per_second or self._current.config.scrub_bytes_per_second):
                return command.answer(
                    ResponseCode.INVALID_PARAMETER, remark="scrubBytesPerSecond is 0 here; give a rate"
                )
            self.begin(now, fields.bytes_per_second)
        return command.answer(ResponseCode.SUCCESS, body=dumps(self.state(now)))

    # What is kept.

    def _load(self, now: Now) -> None:
        table = FILE.load(self._saver.disk)
        self.damages.load(table)
        kept = msgspec.convert(table, _Kept)
        self.position, self.current_pass, self.last_pass = kept.position, kept.current_pass, kept.last_pass
        self.entries.rebuilt = kept.corrected
        if self.damages.ranges:
            log.warning("scrub: %d damaged ranges of the log are known from before", len(self.damages.ranges))
            self.repairs.plan(now.mono_ms)
        segment = self._store.config.segment_bytes
        for start, end, reason in self._store.damaged:
            cuts = [start, *range(start - start % segment + segment, end, segment), end]
            for range_start, range_end in pairwise(cuts):  # a replica is asked file by file
                self._note(range_start, range_end, reason, now)

    def as_json(self) -> dict[str, Any]:
        """Return the state as the file has it."""
        position = self.position if self._unsynced_from is None else min(self.position, self._unsynced_from)
        kept = _Kept(position, self.current_pass, self.last_pass, self.entries.rebuilt)
        return msgspec.to_builtins(kept) | self.damages.as_json()  # type: ignore[no-any-return]

    def save(self) -> None:
        """Save the state after this turn."""
        self._saver.later(FILE, self.as_json, is_awaited=False)

    def state(self, now: Now) -> dict[str, Any]:
        """Return the state for operators."""
        store_log, rate = self._store.log, self._rate()
        due = self.current_pass.began_ms + self._current.config.scrub_interval_ms
        return self.as_json() | {
            "state": "running" if self._runs else "waiting" if rate else "off",
            "bytesPerSecond": rate,
            "logStart": store_log.start,
            "logEnd": store_log.written_end,
            "nextPassMs": max(due, now.wall_ms) if rate and not self._runs else 0,
            "suspicion": msgspec.to_builtins(self.suspicion),
            "suspectEntries": self.entries.waiting,
        }

    # When.

    @property
    def _runs(self) -> bool:
        return self.current_pass.began_ms > 0 and not self.current_pass.ended_ms

    def _rate(self) -> int:
        return self._asked_rate or self._current.config.scrub_bytes_per_second

    def _plan(self, due_ms: int, now: Now) -> None:
        """Plan the next step for a time, unless an earlier one is planned."""
        if self._due_ms is not None and now.mono_ms <= self._due_ms <= due_ms:
            return
        self._due_ms = due_ms
        self._schedule.at(due_ms, self._due)

    def _due(self, now: Now) -> None:
        if self._due_ms is None or now.mono_ms < self._due_ms:
            return
        self._due_ms = None
        self._plan(now.mono_ms + min(IDLE_MS, self._current.config.scrub_interval_ms), now)
        if not self._is_busy:
            self._next(now)

    def begin(self, now: Now, bytes_per_second: int = 0) -> None:
        """Begin a pass now, unless one runs. `bytes_per_second`: the rate of this pass; 0: as configured."""
        self._asked_rate = bytes_per_second
        if not self._runs:
            self._begin_pass(now)
        self._plan(now.mono_ms, now)

    def look_at(self, log_offset: int, source: str, reason: str, now: Now) -> None:
        """Verify a place that was reported as damaged, before all else."""
        self.suspicion = Suspicion(log_offset, source, reason, now.wall_ms)
        if log_offset not in self._suspects and len(self._suspects) < SUSPECTS_MAX:
            self._suspects.append(log_offset)
        self._plan(now.mono_ms, now)

    def is_right(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry names its record, with the record's tags code; also if the entry no longer exists."""
        return self.entries.is_right(queue, queue_offset)

    def suspect_entry(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> bool:
        """Search the log for the record of a queue entry that cannot be right, and rebuild the entry, before all else.

        Harmless if the entry is right, was suspected before, or does not exist. At most `entry_repair.SUSPECTS_MAX`
        wait. Returns whether its message may still be found.
        """
        is_new = not self.entries.waiting
        waits = self.entries.suspect(queue, queue_offset, reason)
        if waits and is_new:
            self._schedule.at(0, lambda now: self._plan(now.mono_ms, now))
        return waits

    def suspect_pulled(self, queue: ConsumeQueue, found: Mismatch) -> bool:
        """See `Verification`."""
        if queue.plausible_offset(found.queue_offset) is not None:
            self._schedule.at(0, lambda now: self.look_at(found.log_offset, A_PULL, found.reason, now))
        return self.suspect_entry(queue, found.queue_offset, f"{A_PULL} found {found.reason}")

    def figures(self, _now: Now) -> dict[str, str]:
        """Return the results of verifying the commit log; these keys are TandemQ's own."""
        ranges = self.damages.ranges
        return {
            "scrubLastPassTimestamp": str(self.last_pass.ended_ms),
            "scrubLastPassBytes": str(self.last_pass.bytes),
            "scrubPosition": str(self.position),
            "logDamagedRanges": ";".join(f"{damage.start}-{damage.end}" for damage in ranges[:SHOWN_RANGES_MAX]),
            "logDamagedRangesTotal": str(len(ranges)),
            "logRepairedRangesTotal": str(self.damages.repaired_total),
            "queueEntriesRebuiltTotal": str(self.entries.rebuilt),
        }

    def save_tables(self) -> None:
        """See `Feature`."""
        self.save()

    def adopt_config(self, config: BrokerConfig) -> None:
        """Apply changed settings: the rate, and when a pass is due."""
        wait_ms = min(IDLE_MS, config.scrub_interval_ms)
        self._schedule.at(0, lambda now: self._plan(now.mono_ms + wait_ms, now))

    def _begin_pass(self, now: Now) -> None:
        self.current_pass = Pass(self._store.log.written_end, now.wall_ms)
        self.position, self._is_boundary = self._store.log.start, True

    def _next(self, now: Now) -> None:
        """Begin the next step if there is one."""
        store_log = self._store.log
        self.entries.forget_missed(now)
        if self.entries.has_files:
            self._start(SyncWork(self.entries.take_files()))
            return
        if self.damages.forget_outside(store_log.start, store_log.written_end):
            self.save()
        while self._suspects:
            offset = self._suspects.pop(0)
            if store_log.start <= offset < store_log.written_end:
                self._check(offset, store_log.written_end, near=True)
                return
        search = self.entries.next_range(now)
        if search is not None:
            self._check(search.position, store_log.written_end, searches=True)
            return
        if not self._runs and self._rate() and self._is_due(now):
            self._begin_pass(now)
        if not self._runs or not self._rate():
            return
        if self.position < store_log.start:
            self.position, self._is_boundary = store_log.start, True
        if self.position >= min(self.current_pass.until, store_log.written_end):
            self._end_pass(now)
            return
        self._check(self.position, store_log.written_end)

    def _is_due(self, now: Now) -> bool:
        since = now.wall_ms - self.current_pass.began_ms
        return not 0 <= since < self._current.config.scrub_interval_ms

    def _check(self, position: int, limit: int, *, near: bool = False, searches: bool = False) -> None:
        least, most = STEP_BYTES
        size = min(max(self._rate() // STEPS_PER_SECOND, SEARCH_STEP_BYTES if searches else least), most)
        segment, disk = self._store.config.segment_bytes, self._saver.disk
        self._start(CheckWork(disk, segment, position, limit, size, self._store.log.truncations, near, searches))

    def _start(self, work: CheckWork | SyncWork) -> None:
        name = "scrub" if isinstance(work, CheckWork) else "sync queue entries"
        self._is_busy = True
        self._turn.out.jobs.append(Job(name, work.run, done=partial(self._done, work)))

    def _end_pass(self, now: Now) -> None:
        self.current_pass.ended_ms = now.wall_ms
        self.last_pass = msgspec.structs.replace(self.current_pass)
        self._asked_rate = 0
        self.save()
        log.info(
            "scrub: pass over the log done bytes=%d records=%d seconds=%d damaged=%d",
            self.last_pass.bytes,
            self.last_pass.records,
            (self.last_pass.ended_ms - self.last_pass.began_ms) // 1000,
            self.last_pass.damaged,
        )

    # What was found.

    def _done(self, work: CheckWork | SyncWork, event: JobDone, _turn: Turn, now: Now) -> None:
        self._is_busy = False
        if isinstance(work, SyncWork):
            self._synced(event, now)
            return
        if isinstance(event.result, Checked) and work.truncations == self._store.log.truncations:
            self._take(work, event.result, now)
        elif event.error is not None:
            self._unread(work, event.error, now)
        else:  # the log was truncated meanwhile
            self._is_boundary = False
            if work.searches:
                self.entries.searched(None, now)
        size = work.size
        if isinstance(event.result, Checked):  # a record is read whole, however large
            size = max(event.result.end, event.result.resumes) - event.result.start
        rate = max(self._rate(), SEARCH_BYTES_PER_SECOND if work.searches else 1)
        if self.entries.has_files:
            self._plan(now.mono_ms, now)
        elif self._runs or self._suspects or self.entries.waiting:
            self._plan(now.mono_ms + (0 if work.near else size * 1000 // rate), now)
        if now.mono_ms - self._saved_ms >= SAVE_MS:
            self._saved_ms = now.mono_ms
            self.save()

    def _synced(self, event: JobDone, now: Now) -> None:
        if event.error is not None:
            log.error(
                "scrub: rebuilt queue entries may be lost with a power loss, and are found again by the pass "
                "after it: %s",
                event.error,
            )
        self._unsynced_from = None
        self._plan(now.mono_ms, now)

    def _unread(self, work: CheckWork, error: Exception, now: Now) -> None:
        """Handle a file that could not be opened: retention deleted it, or the disk failed."""
        segment = self._store.config.segment_bytes
        file = work.position - work.position % segment
        if file >= self._store.log.start:
            log.error("scrub: the log file %020d cannot be read: %s", file, error)
            self._note(file, min(file + segment, work.limit), f"it cannot be read: {error}", now, is_unread=True)
        if work.searches:
            self.entries.searched(max(file + segment, self._store.log.start), now)
        elif not work.near:
            self.position, self._is_boundary = file + segment, True

    def _take(self, work: CheckWork, found: Checked, now: Now) -> None:
        segment = self._store.config.segment_bytes
        is_pass = not work.near and not work.searches
        if found.fault and is_pass and not self._is_boundary and found.end == found.start:
            self.position, self._is_boundary = found.start - found.start % segment, True
            return
        was_damaged = self._sound(found.start, found.end, now)
        for entries in found.entries:
            self.entries.compare(entries, enters=was_damaged)
        if found.fault:
            self._note(found.end, found.resumes, found.fault, now, is_unread=found.is_unread)
        position = found.resumes if found.fault else found.end
        if work.searches:
            self.entries.searched(position, now)
            return
        if work.near:
            self._answer_suspicion(work.position, found, now)
            return
        self._is_boundary = True
        self.position = position
        if self.entries.has_files and self._unsynced_from is None:
            self._unsynced_from = found.start
        self.current_pass.bytes += self.position - found.start
        self.current_pass.records += found.records
        self.current_pass.damaged += bool(found.fault)

    def _sound(self, start: int, end: int, now: Now) -> bool:
        """Remove damage in a range whose records verify, because the device can read them again. Returns if any was."""
        known = [
            damage
            for damage in self.damages.ranges
            if start <= damage.start < end and damage is not self.repairs.under_way
        ]
        for damage in known:
            sound_end = min(end, damage.end)
            log.info("scrub: log=[%d,%d) is sound after all", damage.start, sound_end)
            self.damages.shrink(damage, sound_end, "", now.wall_ms)
        if known:
            self.save()
        return bool(known)

    def _answer_suspicion(self, log_offset: int, found: Checked, now: Now) -> None:
        if self.suspicion is not None and self.suspicion.log_offset == log_offset:
            is_bad = found.fault and found.end <= log_offset
            self.suspicion.found = found.fault if is_bad else "sound here"
            times = 1 if is_bad else self._unfounded.note("", now.mono_ms)
            if times:
                log.warning(
                    "scrub: log offset %d, found bad by %s (%r): %s times=%d",
                    log_offset,
                    self.suspicion.source,
                    self.suspicion.reason,
                    self.suspicion.found,
                    times,
                )
            if not is_bad and self.suspicion.source in (A_PULL, A_DELAY, A_TIMER, A_TRANSACTION) and self._rate():
                self.begin(now)

    def _note(self, start: int, end: int, reason: str, now: Now, *, is_unread: bool = False) -> None:
        """Note a damaged range: logged once, saved, handed to repair."""
        damage = self.damages.add(start, end, reason, now.wall_ms, is_unread=is_unread)
        if damage is None:
            return
        log.critical(
            "scrub: DAMAGE in log=[%d,%d) %d bytes: %s; the bytes stay in place until a replica has sent good ones; "
            "tandemq ha status shows the repair",
            start,
            end,
            end - start,
            reason,
        )
        self.save()
        self.repairs.plan(now.mono_ms)

    def settled(self, entries: list[Entries]) -> None:
        """Add the queue entries of records that are good again."""
        for record_entries in entries:
            self.entries.compare(record_entries, enters=True)
        if self.entries.has_files:
            self._schedule.at(0, lambda now: self._plan(now.mono_ms, now))


class _Kept(msgspec.Struct, rename="camel"):
    """The state in the file, besides the ranges."""

    position: int = 0
    current_pass: Pass = msgspec.field(default_factory=Pass, name="this")
    last_pass: Pass = msgspec.field(default_factory=Pass, name="last")
    corrected: int = 0


FILE = TableFile(
    "scrub.json", lambda table: msgspec.convert(table, _Kept), rebuilt="the log is verified from its start"
)
