"""The scrubber: the commit log is read again from its files, at a limited rate, and every record verified.

    begin a pass ── step ── step ── … ── end of the log as it was then ── wait until the next pass is due
                     │ a worker reads and verifies (scrubwork.CheckWork); what it found comes back to a turn
                     ├─ damage: noted in `damages`, said once, handed to `repair`
                     └─ queue entries that are not what the log says: rebuilt from it (`entry_repair`)

A pass goes on where it stood after a restart. A slave that got the same bad record from us three times, and a pull that
met what cannot be a record, have that place looked at before all else. So does the record of a queue entry that cannot
be right (`suspect_entry`), whether or not passes are made.

Source: docs/internals/storage.md, "scrubbing".
"""

import logging
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.connections.connection import Link
from tandemq.broker.integrity.entry_repair import EntryRepairs
from tandemq.broker.integrity.repair import Repairs
from tandemq.broker.integrity.verify_job import Checked, CheckWork, Entries, SyncWork
from tandemq.broker.pull.message_reader import Mismatch
from tandemq.codec.remoting.fastjson import dumps
from tandemq.codec.remoting.requests import is_true, read_fields
from tandemq.errors import StoreDamaged
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.storage.consume_queue import ConsumeQueue
from tandemq.storage.json_tables import load_table

if TYPE_CHECKING:
    from tandemq.broker.context import Handler
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
FILE = "scrub.json"
FIRST_MS = 60_000
"""A pass that is due at the start waits for so long: whoever starts has other things to do."""
IDLE_MS = 60_000
"""How often it is looked whether a pass is due."""
STEPS_PER_SECOND = 64
"""Messages wait while a step has the interpreter: for a third of a millisecond at the default rate."""
STEP_BYTES = (64 << 10, 4 << 20)
"""The least and the most of one step."""
SAVE_MS = 30_000
A_PULL = "a pull"
A_DELAY = "delivery after a delay"
SUSPECTS_MAX = 16
SEARCH_STEP_BYTES = 128 << 10
SEARCH_BYTES_PER_SECOND = 16 << 20
"""How fast the record of a damaged queue entry is searched for at least: consumers wait for it."""


class ScrubFields(msgspec.Struct, rename="camel"):
    """TANDEM_SCRUB (7305): whether to begin a pass, and how fast it shall be."""

    begin: str = "false"
    bytes_per_second: Annotated[int, msgspec.Meta(ge=0, le=1 << 40)] = 0


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""

    def scrub(_link: Link, command: Command, now: Now) -> Command | None:
        fields, scrubber = read_fields(ScrubFields, command.fields), broker.scrubber
        if is_true(fields.begin):
            if not (fields.bytes_per_second or broker.config.scrub_bytes_per_second):
                return command.answer(
                    ResponseCode.INVALID_PARAMETER, remark="scrubBytesPerSecond is 0 here; say how fast it shall be"
                )
            scrubber.begin(now, fields.bytes_per_second)
        return command.answer(ResponseCode.SUCCESS, body=dumps(scrubber.state(now)))

    return {Code.TANDEM_SCRUB: scrub}


class Pass(msgspec.Struct, rename="camel"):
    """One pass over the log, up to where that ended when it began; `ended_ms` 0 while it runs. Times: ms."""

    until: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    bytes: int = 0
    records: int = 0
    damaged: int = 0


class Suspicion(msgspec.Struct, rename="camel"):
    """A place of our log that somebody found bad, and what we found there."""

    log_offset: int
    source: str
    reason: str
    told_ms: int
    found: str = ""


class Scrubber:
    """The scrubber of one broker."""

    def __init__(self, broker: "Broker", now: Now) -> None:
        """Go on where the last run stood."""
        self._broker = broker
        self.damages = broker.damages
        self.repairs = Repairs(broker, self.save, self._settled)
        self.position = 0
        self.this = Pass()
        self.last = Pass()
        self.entries = EntryRepairs(broker)
        self.suspicion: Suspicion | None = None
        self._suspects: list[int] = []
        self._is_boundary = False
        """Whether a record is known to begin at `position`; after a restart or a cut that must be seen first."""
        self._job: Job | None = None
        self._asked_rate = 0
        self._saved_ms = now.mono_ms
        self._unsynced_from: int | None = None
        """Where the step of a pass began whose rewritten queue entries are not on the device yet."""
        self._due_ms: int | None = None
        self._load(now)
        broker.pull.suspects = self._suspected
        self._plan(now.mono_ms + min(FIRST_MS, broker.config.scrub_interval_ms), now)
        for queue, queue_offset in broker.store.suspect_entries:
            self.suspect_entry(queue, queue_offset, "recovery found it so")

    # What is kept.

    def _load(self, now: Now) -> None:
        try:
            table = load_table(self._broker.disk, FILE)
        except StoreDamaged as error:
            log.warning("scrub: begins anew: %s", error)
            table = {}
        self.damages.load(table)
        try:
            kept = msgspec.convert(table, _Kept)
        except msgspec.ValidationError as error:
            log.warning("scrub: begins anew: config/%s: %s", FILE, error)
            kept = _Kept()
        self.position, self.this, self.last, self.entries.rebuilt = kept.position, kept.this, kept.last, kept.corrected
        if self.damages.ranges:
            log.warning("scrub: %d damaged ranges of the log are known from before", len(self.damages.ranges))
            self.repairs.plan(now.mono_ms)
        segment = self._broker.store.config.segment_bytes
        for start, end, reason in self._broker.store.damaged:
            cuts = [start, *range(start - start % segment + segment, end, segment), end]
            for first, last in pairwise(cuts):  # a twin is asked file by file
                self._note(first, last, reason, now)

    def as_json(self) -> dict[str, Any]:
        """As the file has it."""
        position = self.position if self._unsynced_from is None else min(self.position, self._unsynced_from)
        kept = _Kept(position, self.this, self.last, self.entries.rebuilt)
        return msgspec.to_builtins(kept) | self.damages.as_json()  # type: ignore[no-any-return]

    def save(self) -> None:
        """Have the state saved after this turn."""
        self._broker.saver.later(FILE, self.as_json, is_awaited=False)

    def state(self, now: Now) -> dict[str, Any]:
        """What operators are shown."""
        store_log, rate = self._broker.store.log, self._rate()
        due = self.this.began_ms + self._broker.config.scrub_interval_ms
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
        return self.this.began_ms > 0 and not self.this.ended_ms

    def _rate(self) -> int:
        return self._asked_rate or self._broker.config.scrub_bytes_per_second

    def _plan(self, due_ms: int, now: Now) -> None:
        """Be called at a time, or earlier if that was planned already."""
        if self._due_ms is not None and now.mono_ms <= self._due_ms <= due_ms:
            return
        self._due_ms = due_ms
        self._broker.schedule.at(due_ms, self._due)

    def _due(self, now: Now) -> None:
        if self._due_ms is None or now.mono_ms < self._due_ms:
            return
        self._due_ms = None
        self._plan(now.mono_ms + min(IDLE_MS, self._broker.config.scrub_interval_ms), now)
        if self._job is None:
            self._next(now)

    def begin(self, now: Now, bytes_per_second: int = 0) -> None:
        """Begin a pass now, unless one runs; `bytes_per_second` holds for this pass, 0: as configured."""
        self._asked_rate = bytes_per_second
        if not self._runs:
            self._begin_pass(now)
        self._plan(now.mono_ms, now)

    def look_at(self, log_offset: int, source: str, reason: str, now: Now) -> None:
        """Somebody found a place bad: verify it before all else."""
        self.suspicion = Suspicion(log_offset, source, reason, now.wall_ms)
        if log_offset not in self._suspects and len(self._suspects) < SUSPECTS_MAX:
            self._suspects.append(log_offset)
        self._plan(now.mono_ms, now)

    def suspect_entry(self, queue: ConsumeQueue, queue_offset: int, reason: str) -> bool:
        """An entry of a queue cannot be right: search the log for its record and rebuild it, before all else.

        For whoever meets one: harmless if it is right, was suspected before, or does not exist. At most
        `entryrepair.SUSPECTS_MAX` wait. Returns whether its message may still be found.
        """
        is_new = not self.entries.waiting
        waits = self.entries.suspect(queue, queue_offset, reason)
        if waits and is_new:
            self._broker.schedule.at(0, lambda now: self._plan(now.mono_ms, now))
        return waits

    def _suspected(self, queue: ConsumeQueue, found: Mismatch) -> bool:
        """A pull met an entry that names no record of its own: verify the log there, or search it for the record."""
        if queue.plausible_offset(found.queue_offset) is not None:
            self._broker.schedule.at(0, lambda now: self.look_at(found.log_offset, A_PULL, found.reason, now))
        return self.suspect_entry(queue, found.queue_offset, f"{A_PULL} found {found.reason}")

    def adopt_config(self, now: Now) -> None:
        """The settings changed: the rate, and when a pass is due."""
        self._plan(now.mono_ms + min(IDLE_MS, self._broker.config.scrub_interval_ms), now)

    def _begin_pass(self, now: Now) -> None:
        self.this = Pass(self._broker.store.log.written_end, now.wall_ms)
        self.position, self._is_boundary = self._broker.store.log.start, True

    def _next(self, now: Now) -> None:
        """Begin a step if there is one to make."""
        store_log = self._broker.store.log
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
        if self.position >= min(self.this.until, store_log.written_end):
            self._end_pass(now)
            return
        self._check(self.position, store_log.written_end)

    def _is_due(self, now: Now) -> bool:
        since = now.wall_ms - self.this.began_ms
        return not 0 <= since < self._broker.config.scrub_interval_ms

    def _check(self, position: int, limit: int, *, near: bool = False, searches: bool = False) -> None:
        broker = self._broker
        least, most = STEP_BYTES
        size = min(max(self._rate() // STEPS_PER_SECOND, SEARCH_STEP_BYTES if searches else least), most)
        segment = broker.store.config.segment_bytes
        self._start(
            CheckWork(broker.disk, segment, position, limit, size, broker.store.log.truncations, near, searches)
        )

    def _start(self, work: CheckWork | SyncWork) -> None:
        self._job = Job("scrub" if isinstance(work, CheckWork) else "sync queue entries", work.run, work)
        self._broker.turn_out.jobs.append(self._job)

    def _end_pass(self, now: Now) -> None:
        self.this.ended_ms = now.wall_ms
        self.last = msgspec.structs.replace(self.this)
        self._asked_rate = 0
        self.save()
        log.info(
            "scrub: pass over the log done bytes=%d records=%d seconds=%d damaged=%d",
            self.last.bytes,
            self.last.records,
            (self.last.ended_ms - self.last.began_ms) // 1000,
            self.last.damaged,
        )

    # What was found.

    def job_done(self, event: JobDone, turn: Turn, now: Now) -> bool:
        """A job ended; False if it is none of ours."""
        if event.job is not self._job:
            return self.repairs.job_done(event, turn, now)
        self._job = None
        work = event.job.token
        if isinstance(work, SyncWork):
            self._synced(event, now)
            return True
        assert isinstance(work, CheckWork), "our job carries our work"
        if isinstance(event.result, Checked) and work.truncations == self._broker.store.log.truncations:
            self._take(work, event.result, now)
        elif event.error is not None:
            self._unread(work, event.error, now)
        else:  # the log was cut meanwhile
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
        return True

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
        """A file could not be opened: retention took it, or the disk is not what it was."""
        segment = self._broker.store.config.segment_bytes
        file = work.position - work.position % segment
        if file >= self._broker.store.log.start:
            log.error("scrub: the log file %020d cannot be read: %s", file, error)
            self._note(file, min(file + segment, work.limit), f"it cannot be read: {error}", now, is_unread=True)
        if work.searches:
            self.entries.searched(max(file + segment, self._broker.store.log.start), now)
        elif not work.near:
            self.position, self._is_boundary = file + segment, True

    def _take(self, work: CheckWork, found: Checked, now: Now) -> None:
        segment = self._broker.store.config.segment_bytes
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
        self.this.bytes += self.position - found.start
        self.this.records += found.records
        self.this.damaged += bool(found.fault)

    def _sound(self, start: int, end: int, now: Now) -> bool:
        """Records there verify: what was damage, as long as the device could not read it, is none; whether any was."""
        known = [one for one in self.damages.ranges if start <= one.start < end and one is not self.repairs.under_way]
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
            log.warning(
                "scrub: log offset %d, found bad by %s (%s): %s",
                log_offset,
                self.suspicion.source,
                self.suspicion.reason,
                self.suspicion.found,
            )
            if not is_bad and self.suspicion.source in (A_PULL, A_DELAY) and self._rate():
                self.begin(now)

    def _note(self, start: int, end: int, reason: str, now: Now, *, is_unread: bool = False) -> None:
        """A damaged range: said once, kept, handed to repair."""
        damage = self.damages.add(start, end, reason, now.wall_ms, is_unread=is_unread)
        if damage is None:
            return
        log.critical(
            "scrub: DAMAGE in log=[%d,%d) %d bytes: %s; the bytes stay in place and are asked from a twin; "
            "tandemq ha status tells what becomes of it",
            start,
            end,
            end - start,
            reason,
        )
        self.save()
        self.repairs.plan(now.mono_ms)

    def _settled(self, entries: list[Entries]) -> None:
        """Records are good again: queues learn of them."""
        for one in entries:
            self.entries.compare(one, enters=True)
        if self.entries.has_files:
            self._broker.schedule.at(0, lambda now: self._plan(now.mono_ms, now))


class _Kept(msgspec.Struct, rename="camel"):
    """What of the state is in the file, besides the ranges."""

    position: int = 0
    this: Pass = msgspec.field(default_factory=Pass)
    last: Pass = msgspec.field(default_factory=Pass)
    corrected: int = 0
