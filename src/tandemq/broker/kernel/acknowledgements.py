"""Responses to sends, from the commit of their messages until they may leave.

    committed ─► tables saved (new topics) ─► log flushed, replicas hold it ─► response
                                                     └► a deadline is over: response with the code that says so

    disk failed, or no longer the master: the outcome is unknown, and the response says so

Also responses to requests that change tables: they wait until the tables are saved; and to those that are recorded in
the log, such as the deletion of a topic: they wait until the record is on the device and on the replicas.
Source: docs/internals/ha.md, "synchronous wait"; requirements W04-W08, W11, W12, V11.
"""

import logging
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.kernel.response import recode, send_unknown_outcomes, unknown_outcome, with_status
from tandemq.broker.kernel.serving import Right
from tandemq.codec.remoting.frame import encode_command
from tandemq.engine import WAITS_UNCHANGED, Ack
from tandemq.errors import StoreError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command
from tandemq.replication.waiters import Waiters

log = logging.getLogger(__name__)
SAVE_AGAIN_MS = 1_000
"""Retry interval for tables that could not be saved."""
NEVER = 1 << 62


def joined(acks: list[Ack]) -> list[Ack]:
    """Return a turn's acknowledgements, consecutive ones of a connection as one that waits for its last message.

    The engine joins them already, up to the next request that it does not take. The time of a response must not depend
    on which way its message took.
    """
    found: list[Ack] = []
    for link, answers, end, waits, count in acks:
        if found and (found[-1][0], found[-1][2] > 0, found[-1][3]) == (link, end > 0, waits):
            _, before, _, _, counted = found.pop()
            found.append((link, (before or b"") + (answers or b""), end, waits, counted + count))
        else:
            found.append((link, answers or b"", end, waits, count))
    return found


class _UnsavedResponse(NamedTuple):
    """A response that waits until a change of tables is saved."""

    change: int
    """Number of the change; see `Saver.asked`."""
    log_end: int
    """End of its record in the log; 0: it has none."""
    due_ms: int
    """Monotonic time until which it may wait for replicas and the device."""
    link: int
    request: Command
    answer: Command


class _UnsavedAcks(NamedTuple):
    """Responses of a turn whose messages may need tables that are not saved yet."""

    change: int
    """Number of the last change that they need; see `Topics.needed_change`. Others do not keep the responses."""
    acks: list[Ack]
    stored: Now
    """When the messages were stored."""


class Acknowledgements(Feature):
    """The responses that wait."""

    def __init__(self, kernel: Kernel) -> None:
        """Begin without responses."""
        self._store = kernel.store
        self._puts = kernel.puts
        self._saver = kernel.saver
        self._schedule = kernel.schedule
        self._requests = kernel.features.requests
        self._current = kernel.current
        self._turn = kernel.turn
        self.waiters = Waiters()
        self._unsaved_acks: list[_UnsavedAcks] = []
        self._unsaved: list[_UnsavedResponse] = []
        self._recorded: list[_UnsavedResponse] = []
        """Responses whose tables are saved, and whose records are not on the device or the replicas yet."""
        self._puts_seen = 0

    # Responses to sends.

    def acknowledge(self, acks: list[Ack], needed: int, turn: Turn, now: Now) -> None:
        """Acknowledge messages that were written to the log, once the change of tables that they need is saved; 0: they
        need none."""
        if needed > self._saver.saved:
            self._unsaved_acks.append(_UnsavedAcks(needed, acks, Now(now.mono_ms, now.wall_ms)))
        else:
            self._answer(acks, turn, now)

    def refuse(self, acks: list[Ack], error: StoreError, turn: Turn) -> None:
        """Answer messages that could not be written."""
        for link, answers, end, _, count in acks:
            self._puts.note_failed(count if end else 0)
            if answers:
                failed = recode(answers, ResponseCode.SERVICE_NOT_AVAILABLE, remark=str(error)) if end else answers
                turn.send(link, failed)

    def _answer(self, acks: list[Ack], turn: Turn, now: Now) -> None:
        taken, self._puts_seen = self._puts.count - self._puts_seen, self._puts.count
        config, serving = self._current.config, self._turn.serving
        if serving.is_elect and not serving.is_master:
            send_unknown_outcomes(acks, StoreError("another member of the group is the master now"), turn)
            return
        if config.flush_type == "SYNC_FLUSH" or serving.waits_for_replicas:
            self._wait(acks, turn, now)
            return
        for link, answers, _, _, _ in acks:
            if answers:
                turn.send(link, answers)
        self._puts.put_times.add(0, taken)

    def _wait(self, acks: list[Ack], turn: Turn, now: Now) -> None:
        replica_code = self._turn.serving.replica_code
        flush_due_ms = now.mono_ms + self._current.config.sync_flush_timeout_ms
        replica_due_ms = now.mono_ms + self._current.config.slave_timeout_ms
        for link, answers, end, waits, count in joined(acks):
            if not answers:
                continue
            if waits and end:
                is_fixed = waits == WAITS_UNCHANGED
                self.waiters.add((link, answers, end, flush_due_ms, replica_due_ms, replica_code, count, is_fixed))
            else:
                turn.send(link, answers)

    def release(self, turn: Turn, now: Now) -> None:
        """Send the responses whose wait is over."""
        if self._recorded:
            self._release_recorded(turn, now)
        if not len(self.waiters):
            return
        config = self._current.config
        flushed = self._store.log.flushed_offset if config.flush_type == "SYNC_FLUSH" else NEVER
        sends = turn.sends
        for link, answer, code in self.waiters.release(flushed, self._turn.serving.copied_to, now.mono_ms):
            if code is None:
                answer = self._late(answer)
            elif code is not ResponseCode.SUCCESS:
                answer = with_status(answer, code)
            if link in sends:
                sends[link].append(answer)
            else:
                sends[link] = [answer]
        for flush_due_ms, count in self.waiters.released:
            self._puts.put_times.add(now.mono_ms - flush_due_ms + config.sync_flush_timeout_ms, count)

    def _late(self, answer: bytes) -> bytes:
        """Return a response to pops that replicas do not have in time, or a refusal if this member may not serve now.

        Another member may, and hand the same messages out.
        """
        refusal = self._turn.serving.refusal(Right.POP)
        return answer if refusal is None else recode(answer, ResponseCode.NO_PERMISSION, remark=refusal)

    def drop(self, error: Exception, turn: Turn) -> None:
        """Answer all sends that wait with an unknown outcome: their messages may or may not stay in the log."""
        for link, answer in self.waiters.take_all():
            turn.send(link, unknown_outcome(answer, error))
        for unsaved in self._unsaved_acks:
            send_unknown_outcomes(unsaved.acks, error, turn)
        self._unsaved_acks.clear()
        for waiting in self._recorded:
            self._send_held(waiting, f"it may be undone: {error}", turn)
        self._recorded.clear()

    # Responses that wait for tables.

    @property
    def waits_for_records(self) -> bool:
        """Whether a response waits for a sync of the log, also if messages do not."""
        flushed = self._store.log.flushed_offset
        return any(waiting.log_end > flushed for waiting in (*self._unsaved, *self._recorded))

    def hold_until_saved(self, link: int, request: Command, answer: Command, now: Now) -> None:
        """Keep a response until the changes of tables so far are saved, and its record in the log too."""
        log_end = self._store.log.end if self._requests[request.code].is_recorded else 0
        due_ms = now.mono_ms + self._current.config.sync_flush_timeout_ms
        waiting = _UnsavedResponse(self._saver.asked, log_end, due_ms, link, request, answer)
        if log_end:
            self._schedule.at(due_ms, lambda _: None)
        (self._unsaved if self._saver.is_behind else self._recorded).append(waiting)

    def saved(self, error: Exception | None, turn: Turn, now: Now) -> None:
        """Send the responses whose tables are saved, or could not be."""
        settled = self._saver.settled
        for waiting in self._unsaved:
            if waiting.change <= settled:
                if error is None and waiting.log_end:
                    self._recorded.append(waiting)
                else:
                    self._send_held(waiting, f"not saved yet: {error}" if error is not None else None, turn)
        self._unsaved = [waiting for waiting in self._unsaved if waiting.change > settled]
        if error is not None:
            log.error("tables: could not be saved, and are tried again: %s", error)
            self._schedule.at(now.mono_ms + SAVE_AGAIN_MS, lambda _: self._saver.again())
        self._release_unsaved_acks(error, turn)

    def _release_unsaved_acks(self, error: Exception | None, turn: Turn) -> None:
        """Go on with the acknowledgements whose tables are saved; if they could not be, answer all with that."""
        waiting, self._unsaved_acks = self._unsaved_acks, []
        failed = self._store.log.refused or error
        for unsaved in waiting:
            if error is None and unsaved.change > self._saver.saved:
                self._unsaved_acks.append(unsaved)
            elif failed is None:
                self._answer(unsaved.acks, turn, unsaved.stored)
            else:
                send_unknown_outcomes(unsaved.acks, failed, turn)

    def _release_recorded(self, turn: Turn, now: Now) -> None:
        """Send the responses whose records are on the device and the replicas, or whose time is over."""
        serving = self._turn.serving
        copied = serving.copied_to if serving.replica_code is None else NEVER
        safe_end = min(self._store.log.flushed_offset, copied)
        left: list[_UnsavedResponse] = []
        for waiting in self._recorded:
            if waiting.log_end <= safe_end:
                self._send_held(waiting, None, turn)
            elif now.mono_ms >= waiting.due_ms:
                self._send_held(waiting, "not on every device that must have it yet", turn)
            else:
                left.append(waiting)
        self._recorded = left

    def _send_held(self, waiting: _UnsavedResponse, fault: str | None, turn: Turn) -> None:
        """Send a response that waited, unless the role takes it over. `fault`: why the change may be undone."""
        answer, refusal = waiting.answer, self._turn.serving.refusal(self._requests[waiting.request.code].right)
        if refusal is not None:  # it may not be known to the member that serves now
            answer = waiting.request.answer(ResponseCode.NO_PERMISSION, remark=refusal)
        data = encode_command(answer)
        if fault is not None:
            data = recode(data, ResponseCode.SYSTEM_ERROR, remark=f"in effect, but {fault}")
        elif refusal is None and self._turn.holds(waiting.link, waiting.request, answer):
            return
        turn.send(waiting.link, data)
