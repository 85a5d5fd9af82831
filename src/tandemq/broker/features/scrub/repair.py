"""Repair of damaged ranges of the log with the bytes of a replica.

    next range ─► ask a replica ─► check its bytes (worker) ─► write in place ─► sync, read again (worker) ─► next piece
                     └── no response, no good bytes: the next replica; after the last one, again in `RETRY_MS`

One range at a time, at most `PIECE_BYTES` of whole records per response. Both sides verify: whole records at the right
offsets that join at both ends, of a history both have in common, with the same bytes before and behind the range. What
verifies here already is never overwritten. The bytes are written by a turn, like all others of the log, so that no
truncation can come in between.

A slave asks its master, a master the slaves that introduced themselves; both know each other's address from the
introduction. Java brokers have no such request: damage beside them stays reported.

Source: docs/internals/storage.md, "scrubbing"; docs/internals/ha.md, "repair".
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.features.scrub.verify_job import (
    CONTEXT_BYTES,
    Context,
    Entries,
    SettleWork,
    Wanted,
    Weighed,
    WeighWork,
)
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.log_flush import LogFlush
from tandemq.broker.kernel.replicas import Replica, Replicas
from tandemq.broker.kernel.role import LogDoubted
from tandemq.broker.state.damage_table import Damage
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import DiskFull, ProtocolError, StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.java_types import Int64
from tandemq.storage.log.epochs import EpochTable, common_end

log = logging.getLogger(__name__)
PIECE_BYTES = 1 << 20
ASK_TIMEOUT_MS = 10_000
RETRY_MS = 10_000


class _RecordsHeader(msgspec.Struct, rename="camel"):
    """The fields of a response to TANDEM_LOG_RECORDS."""

    cluster: str
    broker_name: str
    log_start: Int64
    log_end: Int64
    generations: str
    before_size: int = 0
    before_crc: int = 0
    behind_size: int = 0
    behind_crc: int = 0
    fault: str = ""


class _Attempt:
    """The repair of one range, and the replicas not asked yet."""

    def __init__(self, damage: Damage, replicas: list[Replica]) -> None:
        self.damage = damage
        self.replicas = replicas
        self.asked = replicas[0] if replicas else Replica("", "")
        self.failures: list[str] = []
        self.is_final = True
        """Whether every replica answered that it lacks the good bytes too."""


class Repairs:
    """The repairs of one broker."""

    def __init__(self, kernel: Kernel, changed: Callable[[], None], settled: Callable[[list[Entries]], None]) -> None:
        """Begin without a repair.

        Args:
            kernel: the broker's services.
            changed: called when the damage table has to be saved.
            settled: called with the queue entries of records that are good again.
        """
        self._store = kernel.store
        self._damages = kernel.damages
        self._generations = kernel.generations
        self._members = kernel.members
        self._replicas = kernel.features.find(Replicas)
        self._flush = kernel.features.find(LogFlush)
        self._schedule = kernel.schedule
        self._current = kernel.current
        self._turn = kernel.turn
        self._changed = changed
        self._settled = settled
        self._attempt: _Attempt | None = None
        self._weighed: Weighed | None = None
        self._tried: dict[int, int] = {}
        """When a range was tried last, by its start."""

    # One range at a time.

    @property
    def under_way(self) -> Damage | None:
        """The range that is being repaired."""
        return self._attempt.damage if self._attempt is not None else None

    def plan(self, due_ms: int) -> None:
        """Look at a time for a range to repair."""
        self._schedule.at(due_ms, self._next)

    def _next(self, now: Now) -> None:
        if self._attempt is not None or self._store.log.refused is not None:
            return
        damages = self._damages.ranges
        self._tried = {damage.start: self._tried.get(damage.start, now.mono_ms - RETRY_MS) for damage in damages}
        due = [damage for damage in damages if now.mono_ms - self._tried[damage.start] >= RETRY_MS]
        if not due:
            return
        self._tried[due[0].start] = now.mono_ms
        self.plan(now.mono_ms + RETRY_MS)
        self._attempt = _Attempt(due[0], self._replicas.replicas())
        self._ask(now)

    def _ask(self, now: Now) -> None:
        """Ask the next replica; without one the range has to wait."""
        attempt = self._attempt
        assert attempt is not None, "a range is being repaired"
        if not attempt.replicas:
            self._give_up(attempt, now)
            return
        attempt.asked = attempt.replicas.pop(0)
        if not attempt.asked.address:
            self._refused("is not connected", now, is_final=False)
            return
        wanted = self._wanted(attempt.damage)
        fields = {
            "offset": str(wanted.start),
            "size": str(wanted.end - wanted.start),
            "before": str(wanted.before),
            "behind": str(wanted.behind),
        }

        def on_answer(answer: Command | None, now: Now) -> None:
            if self._attempt is attempt:
                self._answered(wanted, answer, now)

        self._members.call(
            attempt.asked.address,
            Command(Code.TANDEM_LOG_RECORDS, fields=fields),
            ASK_TIMEOUT_MS,
            on_answer,
            self._turn.out,
            now,
        )

    def _wanted(self, damage: Damage) -> Wanted:
        """Return the damaged range and the sizes of the undamaged context before and behind it in its file."""
        store_log, segment = self._store.log, self._store.config.segment_bytes
        first = damage.start - damage.start % segment
        others = [other for other in self._damages.ranges if other is not damage]
        floor = max([first, store_log.start, *(other.end for other in others if other.end <= damage.start)])
        ceiling = min(
            [first + segment, store_log.written_end, *(other.start for other in others if other.start >= damage.end)]
        )
        return Wanted(damage.start, damage.end, context_size(damage.start - floor), context_size(ceiling - damage.end))

    def _refused(self, why: str, now: Now, *, is_final: bool) -> None:
        attempt = self._attempt
        assert attempt is not None, "a range is being repaired"
        attempt.failures.append(f"{attempt.asked.name}: {why}")
        attempt.is_final = attempt.is_final and is_final
        self._ask(now)

    def _give_up(self, attempt: _Attempt, now: Now) -> None:
        """Note that no replica could help this time."""
        damage, self._attempt = attempt.damage, None
        trouble = "; ".join(attempt.failures) or "no replica is known that may have the good bytes"
        is_new_trouble, was_lost = trouble != damage.trouble, damage.is_lost
        damage.trouble, damage.is_lost = trouble, attempt.is_final and not damage.is_unread
        if is_new_trouble or damage.is_lost != was_lost:
            self._changed()
            log.error("repair: damage in log=[%d,%d) stays: %s", damage.start, damage.end, trouble)
        if damage.is_lost and not was_lost:
            why = f"log=[{damage.start},{damage.end}) is damaged and cannot be repaired: {trouble}"
            self._turn.report(LogDoubted(why), now)
        self.plan(now.mono_ms)

    # The response of a replica.

    def _answered(self, wanted: Wanted, answer: Command | None, now: Now) -> None:
        if answer is None:
            self._refused("it does not answer", now, is_final=False)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._refused(f"it answers {answer.code} {answer.remark}", now, is_final=False)
            return
        try:
            header = read_fields(_RecordsHeader, answer.fields)
            generations = read_generations(header.generations)
        except ProtocolError as error:
            self._refused(str(error), now, is_final=False)
            return
        trouble = self._foreign(wanted, header, generations)
        if trouble or header.fault:
            self._refused(trouble or header.fault[:200], now, is_final=True)
            return
        if not 0 < len(answer.body) <= wanted.end - wanted.start:
            self._refused(f"it sent {len(answer.body)} bytes for {wanted.end - wanted.start}", now, is_final=False)
            return
        before, behind = Context(header.before_size, header.before_crc), Context(header.behind_size, header.behind_crc)
        if not (0 <= before.size <= wanted.before and 0 <= behind.size <= wanted.behind):
            self._refused("its response is about other bytes than those it was asked for", now, is_final=False)
            return
        store = self._store
        work = WeighWork(
            store.disk, store.config.segment_bytes, wanted, answer.body, before, behind, store.log.truncations
        )
        self._start("weigh repair", work)

    def _foreign(self, wanted: Wanted, header: _RecordsHeader, generations: EpochTable) -> str:
        """Return why the bytes of a replica do not belong to our history; "" if they belong to it."""
        config = self._current.config
        if (header.cluster, header.broker_name) != (config.cluster, config.broker_name):
            return f"it belongs to {header.cluster[:64]}/{header.broker_name[:64]}"
        ours, end = self._generations.pairs, self._store.log.written_end
        common = common_end(ours, end, generations, header.log_end)
        if common is None:
            return "its history has nothing in common with ours"
        return f"our histories part at {common}" if wanted.end > common else ""

    def _start(self, name: str, work: WeighWork | SettleWork) -> None:
        self._turn.out.jobs.append(Job(name, work.run, done=partial(self._done, work)))

    # Jobs.

    def _done(self, work: WeighWork | SettleWork, event: JobDone, turn: Turn, now: Now) -> None:
        if isinstance(work, WeighWork):
            self._weighed_out(work, event, now)
        else:
            self._written(event, turn, now)

    def _weighed_out(self, work: WeighWork, event: JobDone, now: Now) -> None:
        attempt, store_log = self._attempt, self._store.log
        assert attempt is not None, "a range is being repaired"
        weighed = event.result
        if not isinstance(weighed, Weighed):
            self._refused(f"our own log cannot be read: {event.error}", now, is_final=False)
        elif (
            work.truncations != store_log.truncations
            or store_log.refused is not None
            or (attempt.damage not in self._damages.ranges or work.wanted.start < store_log.start)
        ):
            self._attempt = None  # the log was truncated, or its beginning deleted, meanwhile
            self.plan(now.mono_ms)
        elif weighed.reason:
            self._refused(weighed.reason, now, is_final=False)
        elif not weighed.data:
            self._good_until(attempt, weighed, "", now)
        else:
            self._write(weighed, now)

    def _write(self, weighed: Weighed, now: Now) -> None:
        try:
            file = self._store.log.overwrite(weighed.data, weighed.offset)
        except DiskFull as error:
            self._refused(f"there is no room to write it: {error}", now, is_final=False)
            return
        except StoreError as error:
            self._attempt = None
            self._flush.disk_failed(error, self._turn.out, now)
            return
        self._weighed = weighed
        work = SettleWork(self._store.disk, self._store.config.segment_bytes, weighed.offset, weighed.data, file)
        self._start("sync repair", work)

    def _written(self, event: JobDone, turn: Turn, now: Now) -> None:
        attempt, weighed = self._attempt, self._weighed
        assert attempt is not None, "a range is being repaired"
        assert weighed is not None, "and was weighed"
        self._weighed = None
        if event.error is not None:
            self._attempt = None
            self._flush.disk_failed(event.error, turn, now)
            return
        self._good_until(attempt, weighed, attempt.asked.name, now)

    def _good_until(self, attempt: _Attempt, weighed: Weighed, source: str, now: Now) -> None:
        """Take note that records up to an offset are good; the rest of the range is requested at once."""
        damage, self._attempt = attempt.damage, None
        log.info(
            "repair: log=[%d,%d) is good again, %s",
            damage.start,
            weighed.end,
            f"from {source}" if source else "it is sound by itself",
        )
        self._damages.shrink(damage, weighed.end, source, now.wall_ms)
        damage.trouble, damage.is_lost = "", False
        self._changed()
        self._settled(weighed.entries)
        self.plan(now.mono_ms)


def context_size(size: int) -> int:
    """Return a size of bytes next to a range within the limits of a request."""
    return max(0, min(size, CONTEXT_BYTES))


def generations_text(pairs: EpochTable) -> str:
    """Return a history as a header field: "1-0;2-4096"."""
    return ";".join(f"{number}-{start}" for number, start in pairs)


def read_generations(text: str) -> EpochTable:
    """Return the history in a header field.

    Raises:
        ProtocolError: it is not a history.
    """
    try:
        return [(int(number), int(start)) for number, start in (pair.split("-") for pair in text.split(";") if pair)]
    except ValueError as error:
        raise ProtocolError(f"generations {text[:64]!r} cannot be read") from error
