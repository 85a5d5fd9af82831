"""Damaged ranges of the log are repaired with the good bytes of a twin.

    next range ─► ask a twin ─► weigh what came (worker) ─► write it in place ─► sync, read again (worker) ─► next piece
                     └── no answer, no good bytes: the next twin; when all were asked, again in `RETRY_MS`

One range at a time, at most `PIECE_BYTES` of whole records per answer. Whoever is asked verifies what it sends, and so
does whoever asks: whole records at the right offsets that join at both ends, of a history both have in common, with the
same bytes before and behind the range. What verifies here by itself is never overwritten. Bytes are written by a turn,
like all others of the log, so that no cut of the log can come in between.

A slave asks its master, a master the slaves that introduced themselves; both know each other's address from the
introduction. Java brokers have no such request: damage beside them stays reported.

Source: docs/internals/storage.md, "scrubbing"; docs/internals/ha.md, "repair".
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tandemq.boundary import Job, JobDone, Now, Turn
from tandemq.broker.connections.connection import Link
from tandemq.broker.failover.member_requests import call, sealed
from tandemq.broker.integrity.damage_table import Damage
from tandemq.broker.integrity.verify_job import (
    CONTEXT_BYTES,
    Context,
    Entries,
    Served,
    ServeWork,
    SettleWork,
    Wanted,
    Weighed,
    WeighWork,
)
from tandemq.codec.remoting.frame import encode_command
from tandemq.codec.remoting.requests import read_fields
from tandemq.errors import DiskFull, ProtocolError, StoreError
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.model.java_types import Int64
from tandemq.model.text import brief
from tandemq.storage.log.epochs import EpochTable, common_end

if TYPE_CHECKING:
    from tandemq.broker.context import Handler
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
PIECE_BYTES = 1 << 20
HEAD_BYTES = 64 << 10
"""What an answer may have besides its records."""
ASK_TIMEOUT_MS = 10_000
RETRY_MS = 10_000
SERVING_MAX = 4


class RecordsFields(msgspec.Struct, rename="camel"):
    """TANDEM_LOG_RECORDS (7303): a damaged range of the log, and how much next to it is to be told of."""

    offset: Int64
    size: Int64
    before: int = 0
    behind: int = 0


class SuspectFields(msgspec.Struct, rename="camel"):
    """TANDEM_LOG_SUSPECT (7304)."""

    offset: Int64
    broker_id: int
    reason: str = ""


class _Told(msgspec.Struct, rename="camel"):
    """The fields of an answer to TANDEM_LOG_RECORDS."""

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


class Twin(NamedTuple):
    """Another member of the group; `address` "" if it is not known where it takes requests."""

    name: str
    address: str


def handlers(broker: "Broker") -> "dict[Code, Handler]":
    """The handlers of this module, bound to a broker."""
    on = _Handlers(broker)
    return {Code.TANDEM_LOG_RECORDS: on.records, Code.TANDEM_LOG_SUSPECT: on.suspect}


class _Handlers:
    """What other members ask."""

    def __init__(self, broker: "Broker") -> None:
        self._broker = broker

    def records(self, link: Link, command: Command, _now: Now) -> Command | None:
        broker, wanted = self._broker, read_fields(RecordsFields, command.fields)
        store_log, segment = broker.store.log, broker.store.config.segment_bytes
        start, end = wanted.offset, wanted.offset + wanted.size
        if start < 0 or wanted.size <= 0 or start % segment + wanted.size > segment:
            return command.answer(ResponseCode.INVALID_PARAMETER, remark="a range of one log file is expected")
        if not store_log.start <= start < end <= store_log.written_end:
            held = f"[{store_log.start}, {store_log.written_end})"
            return self._answer(command, Served(b"", Context(0, 0), Context(0, 0), f"held here are {held} only"))
        work = ServeWork(
            broker.disk,
            segment,
            Wanted(start, end, _context(wanted.before), _context(wanted.behind)),
            store_log.start,
            store_log.written_end,
            PIECE_BYTES,
            broker.config.frame_bytes_max - HEAD_BYTES,
        )
        if not broker.scrubber.repairs.serve(
            work, link, lambda served: sealed(broker, command, self._answer(command, served))
        ):
            return command.answer(ResponseCode.SYSTEM_BUSY, remark="other twins are being served; ask again")
        return None

    def _answer(self, command: Command, served: Served) -> Command:
        broker = self._broker
        fields = {
            "cluster": broker.config.cluster,
            "brokerName": broker.config.broker_name,
            "logStart": str(broker.store.log.start),
            "logEnd": str(broker.store.log.written_end),
            "generations": generations_text(broker.replication.generations),
            "beforeSize": str(served.before.size),
            "beforeCrc": str(served.before.crc),
            "behindSize": str(served.behind.size),
            "behindCrc": str(served.behind.crc),
            "fault": served.fault,
        }
        return command.answer(ResponseCode.SUCCESS, fields=fields, body=served.data)

    def suspect(self, link: Link, command: Command, now: Now) -> Command | None:
        told = read_fields(SuspectFields, command.fields)
        log.error(
            "repair: slave %d at %s says that our record at log offset %d came damaged again and again: %s",
            told.broker_id,
            link.peer,
            told.offset,
            told.reason[:200],
        )
        self._broker.scrubber.look_at(told.offset, f"broker {told.broker_id}", told.reason[:200], now)
        return command.answer(ResponseCode.SUCCESS)


def _context(size: int) -> int:
    return max(0, min(size, CONTEXT_BYTES))


def generations_text(pairs: EpochTable) -> str:
    """A history as a header field: "1-0;2-4096"."""
    return ";".join(f"{number}-{start}" for number, start in pairs)


def read_generations(text: str) -> EpochTable:
    """A history from a header field.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return [(int(number), int(start)) for number, start in (pair.split("-") for pair in text.split(";") if pair)]
    except ValueError as error:
        raise ProtocolError(f"generations {text[:64]!r} cannot be read") from error


Answered = Callable[[Served], Command]


class _Attempt:
    """One range, and the twins not asked yet."""

    def __init__(self, damage: Damage, twins: list[Twin]) -> None:
        self.damage = damage
        self.twins = twins
        self.asked = twins[0] if twins else Twin("", "")
        self.troubles: list[str] = []
        self.is_final = True
        """Every twin said for certain that it cannot help."""


class Repairs:
    """The repairs of one broker."""

    def __init__(self, broker: "Broker", changed: Callable[[], None], settled: Callable[[list[Entries]], None]) -> None:
        """`changed`: the list of damages is to be saved; `settled`: records are good again."""
        self._broker = broker
        self._changed = changed
        self._settled = settled
        self._attempt: _Attempt | None = None
        self._job: Job | None = None
        self._weighed: Weighed | None = None
        self._tried: dict[int, int] = {}
        """When a range was tried last, by its start."""
        self._serving: dict[int, tuple[Job, Link, Answered]] = {}

    # Who can help.

    def twins(self) -> list[Twin]:
        """The other members that may have the good bytes."""
        replication = self._broker.replication
        if not self._broker.is_master:
            return [Twin("master", replication.slave.asked_at() if replication.slave is not None else "")]
        return [Twin(f"slave {number}", address) for number, address in sorted(replication.masters.addresses().items())]

    # One range at a time.

    @property
    def under_way(self) -> Damage | None:
        """The range that is being repaired."""
        return self._attempt.damage if self._attempt is not None else None

    def plan(self, due_ms: int) -> None:
        """Look for something to repair at a time."""
        self._broker.schedule.at(due_ms, self._next)

    def _next(self, now: Now) -> None:
        if self._attempt is not None or self._broker.store.log.refused is not None:
            return
        damages = self._broker.damages.ranges
        self._tried = {damage.start: self._tried.get(damage.start, now.mono_ms - RETRY_MS) for damage in damages}
        due = [damage for damage in damages if now.mono_ms - self._tried[damage.start] >= RETRY_MS]
        if not due:
            return
        self._tried[due[0].start] = now.mono_ms
        self.plan(now.mono_ms + RETRY_MS)
        self._attempt = _Attempt(due[0], self.twins())
        self._ask(now)

    def _ask(self, now: Now) -> None:
        """Ask the next twin; without one the range has to wait."""
        attempt = self._attempt
        assert attempt is not None, "a range is being repaired"
        if not attempt.twins:
            self._give_up(attempt, now)
            return
        attempt.asked = attempt.twins.pop(0)
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

        def on_answer(answer: Command | None, at: Now) -> None:
            if self._attempt is attempt:
                self._answered(wanted, answer, at)

        call(
            self._broker,
            attempt.asked.address,
            Command(Code.TANDEM_LOG_RECORDS, fields=fields),
            ASK_TIMEOUT_MS,
            on_answer,
            self._broker.turn_out,
            now,
        )

    def _wanted(self, damage: Damage) -> Wanted:
        """The range, and how much next to it in its file is not known to be damaged."""
        store_log, segment = self._broker.store.log, self._broker.store.config.segment_bytes
        first = damage.start - damage.start % segment
        others = [one for one in self._broker.damages.ranges if one is not damage]
        floor = max([first, store_log.start, *(one.end for one in others if one.end <= damage.start)])
        ceiling = min(
            [first + segment, store_log.written_end, *(one.start for one in others if one.start >= damage.end)]
        )
        return Wanted(damage.start, damage.end, _context(damage.start - floor), _context(ceiling - damage.end))

    def _refused(self, why: str, now: Now, *, is_final: bool) -> None:
        attempt = self._attempt
        assert attempt is not None, "a range is being repaired"
        attempt.troubles.append(f"{attempt.asked.name}: {why}")
        attempt.is_final = attempt.is_final and is_final
        self._ask(now)

    def _give_up(self, attempt: _Attempt, now: Now) -> None:
        """Nobody could help this time."""
        damage, self._attempt = attempt.damage, None
        trouble = "; ".join(attempt.troubles) or "no twin is known that may have the good bytes"
        is_news, was_lost = trouble != damage.trouble, damage.is_lost
        damage.trouble, damage.is_lost = trouble, attempt.is_final and not damage.is_unread
        if is_news or damage.is_lost != was_lost:
            self._changed()
            log.error("repair: damage in log=[%d,%d) stays: %s", damage.start, damage.end, trouble)
        if damage.is_lost and not was_lost:
            self._broker.doubt(f"log=[{damage.start},{damage.end}) is damaged and cannot be repaired: {trouble}", now)
        self.plan(now.mono_ms)

    # What a twin answers.

    def _answered(self, wanted: Wanted, answer: Command | None, now: Now) -> None:
        if answer is None:
            self._refused("it does not answer", now, is_final=False)
            return
        if answer.code != ResponseCode.SUCCESS:
            self._refused(f"it answers {answer.code} {answer.remark}", now, is_final=False)
            return
        try:
            told = read_fields(_Told, answer.fields)
            generations = read_generations(told.generations)
        except ProtocolError as error:
            self._refused(str(error), now, is_final=False)
            return
        trouble = self._stranger(wanted, told, generations)
        if trouble or told.fault:
            self._refused(trouble or told.fault[:200], now, is_final=True)
            return
        if not 0 < len(answer.body) <= wanted.end - wanted.start:
            self._refused(f"it sent {len(answer.body)} bytes for {wanted.end - wanted.start}", now, is_final=False)
            return
        before, behind = Context(told.before_size, told.before_crc), Context(told.behind_size, told.behind_crc)
        if not (0 <= before.size <= wanted.before and 0 <= behind.size <= wanted.behind):
            self._refused("it tells of other bytes than it was asked for", now, is_final=False)
            return
        store = self._broker.store
        work = WeighWork(
            self._broker.disk, store.config.segment_bytes, wanted, answer.body, before, behind, store.log.truncations
        )
        self._start(Job("weigh repair", work.run, work))

    def _stranger(self, wanted: Wanted, told: _Told, generations: EpochTable) -> str:
        """Why a twin's bytes are not to be taken for ours, "" if they are of one history."""
        config = self._broker.config
        if (told.cluster, told.broker_name) != (config.cluster, config.broker_name):
            return f"it belongs to {told.cluster[:64]}/{told.broker_name[:64]}"
        ours, end = self._broker.replication.generations, self._broker.store.log.written_end
        common = common_end(ours, end, generations, told.log_end)
        if common is None:
            return "its history has nothing in common with ours"
        return f"our histories part at {common}" if wanted.end > common else ""

    def _start(self, job: Job) -> None:
        self._job = job
        self._broker.turn_out.jobs.append(job)

    # Jobs.

    def job_done(self, event: JobDone, turn: Turn, now: Now) -> bool:
        """A job ended; False if it is none of ours."""
        if id(event.job) in self._serving:
            self._served(event, turn)
            return True
        if event.job is not self._job:
            return False
        self._job = None
        work = event.job.token
        if isinstance(work, WeighWork):
            self._weighed_out(work, event, now)
        else:
            self._written(event, turn, now)
        return True

    def _weighed_out(self, work: WeighWork, event: JobDone, now: Now) -> None:
        attempt, store_log = self._attempt, self._broker.store.log
        assert attempt is not None, "a range is being repaired"
        weighed = event.result
        if not isinstance(weighed, Weighed):
            self._refused(f"our own log cannot be read: {event.error}", now, is_final=False)
        elif (
            work.truncations != store_log.truncations
            or store_log.refused is not None
            or (attempt.damage not in self._broker.damages.ranges or work.wanted.start < store_log.start)
        ):
            self._attempt = None  # the log was cut, or lost its beginning, meanwhile
            self.plan(now.mono_ms)
        elif weighed.reason:
            self._refused(weighed.reason, now, is_final=False)
        elif not weighed.data:
            self._good_until(attempt, weighed, "", now)
        else:
            self._write(weighed, now)

    def _write(self, weighed: Weighed, now: Now) -> None:
        broker = self._broker
        try:
            file = broker.store.log.overwrite(weighed.data, weighed.offset)
        except DiskFull as error:
            self._refused(f"there is no room to write it: {error}", now, is_final=False)
            return
        except StoreError as error:
            self._attempt = None
            broker.disk_failed(error, broker.turn_out, now)
            return
        self._weighed = weighed
        work = SettleWork(broker.disk, broker.store.config.segment_bytes, weighed.offset, weighed.data, file)
        self._start(Job("sync repair", work.run, work))

    def _written(self, event: JobDone, turn: Turn, now: Now) -> None:
        attempt, weighed = self._attempt, self._weighed
        assert attempt is not None, "a range is being repaired"
        assert weighed is not None, "and was weighed"
        self._weighed = None
        if event.error is not None:
            self._attempt = None
            self._broker.disk_failed(event.error, turn, now)
            return
        self._good_until(attempt, weighed, attempt.asked.name, now)

    def _good_until(self, attempt: _Attempt, weighed: Weighed, source: str, now: Now) -> None:
        """Records up to an offset are good; the rest of the range is asked for at once."""
        damage, self._attempt = attempt.damage, None
        log.info(
            "repair: log=[%d,%d) is good again, %s",
            damage.start,
            weighed.end,
            f"from {source}" if source else "it is sound by itself",
        )
        self._broker.damages.shrink(damage, weighed.end, source, now.wall_ms)
        damage.trouble, damage.is_lost = "", False
        self._changed()
        self._settled(weighed.entries)
        self.plan(now.mono_ms)

    # For others.

    def serve(self, work: ServeWork, link: Link, answered: Answered) -> bool:
        """Read records for a twin; False if too many are being read."""
        if len(self._serving) >= SERVING_MAX:
            return False
        job = Job("serve records", work.run, work)
        self._serving[id(job)] = job, link, answered
        self._broker.turn_out.jobs.append(job)
        return True

    def _served(self, event: JobDone, turn: Turn) -> None:
        _, link, answered = self._serving.pop(id(event.job))
        served = event.result
        if not isinstance(served, Served):
            served = Served(b"", Context(0, 0), Context(0, 0), f"it cannot be read here: {event.error}")
        if link.number in self._broker.links:
            turn.send(link.number, encode_command(answered(served)))

    def tell_suspect(self, log_offset: int, reason: str, now: Now) -> None:
        """Tell the master that its record at an offset came damaged again and again."""
        broker = self._broker
        for twin in self.twins():
            if twin.address:
                fields = {"offset": str(log_offset), "brokerId": str(broker.config.broker_id), "reason": reason}
                command = Command(Code.TANDEM_LOG_SUSPECT, fields=fields)
                call(broker, twin.address, command, ASK_TIMEOUT_MS, _heard, broker.turn_out, now)


def _heard(answer: Command | None, _now: Now) -> None:
    if answer is None or answer.code != ResponseCode.SUCCESS:
        log.warning(
            "repair: the master did not hear that its copy is suspect: %s",
            "no answer" if answer is None else brief(answer.remark),
        )
