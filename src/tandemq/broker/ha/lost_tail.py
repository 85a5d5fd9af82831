"""The end of the log that a master may have lost in a crash of its machine, and the slaves that may hold it.

    start after a crash ─► messages refused ─► every known slave has returned its tail   ─► messages accepted
                                       └─► ASYNC_MASTER waited long enough, --accept-loss, or the slaves left the group:
                                           a new generation begins

If the start has found damage, messages are refused until it is repaired, or for `REPAIR_MS`: a queue whose last record
is damaged would give its queue offset to another message.

Kept on the disk: `config/replicas.json`, the slaves known so far and those still awaited.
Source: docs/internals/ha.md, "after a stop that may have lost bytes".
"""

import logging
from collections.abc import Callable, Collection
from typing import Any

from tandemq.boundary import Now
from tandemq.broker.kernel.kernel import Kernel
from tandemq.errors import StoreError
from tandemq.storage.json_tables import TableFile

log = logging.getLogger(__name__)


def _slaves(saved: dict[str, Any]) -> tuple[set[int], set[int]]:
    """Return the broker ids of the known slaves, and of those that are awaited."""
    known, awaited = saved.get("brokerIds", []), saved.get("awaitedIds", [])
    return {int(number) for number in known}, {int(number) for number in awaited}


FILE = TableFile("replicas.json", _slaves)
ACCEPT_AGAIN_MS = 1_000
"""Retry interval when a full disk could not take the note of an accepted loss."""
REPAIR_MS = 15_000
"""How long messages are refused for the repair of damage; one that could not begin is tried again after 10 s."""
LOST_TAIL, DAMAGE = "lost tail", "damage"


class LostTail:
    """The known slaves, and the slaves that a master waits for before it accepts messages."""

    def __init__(self, kernel: Kernel, end_sessions: Callable[[str], None]) -> None:
        """Load the known slaves. `end_sessions`: ends the sessions of slaves, with a reason: they connect again."""
        self._store = kernel.store
        self._disk = kernel.disk
        self._puts = kernel.puts
        self._generations = kernel.generations
        self._tables = kernel.features.tables
        self._end_sessions = end_sessions
        self._current = kernel.current
        self._damages = kernel.damages
        self._repair_until_ms: int | None = None
        """Until when messages are refused for the repair of damage, monotonic ms; 0: as long as may be, from now on."""
        self._may_have_lost = kernel.recovered.may_have_lost
        self.known, self.awaited = _slaves(FILE.load(kernel.disk))
        """Broker ids of slaves that have connected, and of those of them that are awaited.

        Slaves that may hold records lost here. Saved, so that a restart while they are awaited forgets none."""
        self.waits_for_absent = True
        """Whether slaves that are not connected may still come back."""
        self.is_awaiting = False
        """Whether slaves are awaited, so that the log may lack its end."""
        self.accept_at_ms: int | None = None
        """When the loss is accepted, monotonic ms."""
        self._accepted_because = ""

    def begin(self, now: Now, *, accept_loss: bool, may_give_up: bool, holders: Collection[int] = ()) -> None:
        """Become the master; slaves are awaited if they may hold records lost here.

        Args:
            now: the time.
            accept_loss: whether an operator accepts the loss.
            may_give_up: whether the loss is accepted when no slave has answered for a time.
            holders: members that may hold it though they never connected here: another one was the master.
        """
        self.waits_for_absent = not accept_loss
        if not self._generations.pairs:
            self._generations.set([(1, self._store.log.start)])
        if not self._may_have_lost and not self.awaited:
            self._await_repair()
            self._correct_tables()
            return
        if accept_loss or not (self.known or holders):
            self._begin_generation("the loss is accepted" if accept_loss else "no slave is known")
            return
        if self._may_have_lost:
            self.awaited = self.known.union(holders)
            self._save()
        self.is_awaiting = True
        self._puts.refuse(
            LOST_TAIL,
            f"the machine went down; waiting for slave {sorted(self.awaited)}, which may hold what was lost here",
        )
        log.warning(
            "master: may have lost its tail behind log end %d; waiting for slaves %s",
            self._store.log.end,
            sorted(self.awaited),
        )
        if may_give_up:
            self.accept_at_ms = now.mono_ms + self._current.config.accept_loss_ms
            self._accepted_because = "no slave answered in time, ASYNC_MASTER accepts the loss"

    def settle(self) -> None:
        """Await no slave: another member of the group had the whole log, and this one has copied it, or an operator
        accepted the loss."""
        self._may_have_lost = False
        self._await_repair()
        self._accept_messages()

    def suspend(self) -> None:
        """Accept no loss any more, and wait for no repair: this member copies from another one."""
        self.accept_at_ms = self._repair_until_ms = None
        self._puts.admit(DAMAGE)

    def keep_awaiting(self, members: Collection[int]) -> None:
        """Accept the loss if all awaited slaves have left the group; a slave that returns truncates its longer log."""
        if self.awaited and not self.awaited & frozenset(members) and self.accept_at_ms is None:
            self.accept_at_ms = 0
            self._accepted_because = f"the awaited slaves {sorted(self.awaited)} are no longer members of the group"

    def deadline_ms(self) -> int | None:
        """Return when `tick` is needed, monotonic ms."""
        return min((ms for ms in (self.accept_at_ms, self._repair_until_ms) if ms is not None), default=None)

    def tick(self, now: Now) -> bool:
        """Accept messages once damage is repaired, and the loss when it is time; whether the latter was tried."""
        if self._repair_until_ms is not None:
            self._follow_repair(now)
        if self.accept_at_ms is None or now.mono_ms < self.accept_at_ms:
            return False
        try:
            self._begin_generation(self._accepted_because)
        except StoreError as error:
            log.error("master: the loss cannot be noted, tried again in %d ms: %s", ACCEPT_AGAIN_MS, error)
            self.accept_at_ms = now.mono_ms + ACCEPT_AGAIN_MS
        return True

    def _await_repair(self) -> None:
        """Refuse messages if the start found damage, whose records may have queue offsets that would be given again."""
        if self._store.damaged and any(not damage.is_lost for damage in self._damages.ranges):
            self._refuse_for_repair()

    def _refuse_for_repair(self) -> None:
        self._puts.refuse(DAMAGE, "the log was damaged when the broker started; its repair is awaited")
        self._repair_until_ms = 0

    def _follow_repair(self, now: Now) -> None:
        if not self._repair_until_ms:
            self._repair_until_ms = now.mono_ms + REPAIR_MS
        is_over = now.mono_ms >= self._repair_until_ms
        if not is_over and any(not damage.is_lost for damage in self._damages.ranges):
            return
        self._repair_until_ms = None
        self._puts.admit(DAMAGE)
        log.warning("master: damage %s, messages are accepted", "stays" if is_over else "is repaired or lost")

    def _begin_generation(self, why: str) -> None:
        end, pairs = self._store.log.end, self._generations.pairs
        number = pairs[-1][0] + 1
        # One that began behind our end is lost with what it had.
        self._generations.set([*(pair for pair in pairs if pair[1] <= end), (number, end)])
        self._accept_messages()
        self._end_sessions("a new generation of the log began here")
        log.warning("master: generation %d begins at log offset %d: %s", number, end, why)

    def _accept_messages(self) -> None:
        self._correct_tables()
        if self.awaited:
            self.awaited.clear()
            self._note_answers()
        self.accept_at_ms = None
        self.is_awaiting = False
        self._puts.admit(LOST_TAIL)

    def _correct_tables(self) -> None:
        """Set offsets beyond the end of a queue to that end, in all tables.

        An offset that is kept beyond the end skips every message stored there later. It is corrected, and saved, before
        a message is acknowledged; not while a slave may give the tail back, and never on a slave, whose log may simply
        be behind its offsets. Source: RocketMQ ScheduleMessageService.correctDelayOffset.
        """
        for table in self._tables:
            table.correct()

    def answered(self, broker_id: int) -> None:
        """Note that a slave has returned its part of the tail, or has none of it."""
        if broker_id in self.awaited:
            self.awaited.discard(broker_id)
            self._note_answers()
            if not self.awaited:
                # No slave holds bytes beyond our log end, so the generation continues.
                if self._damages.ranges:
                    self._refuse_for_repair()
                self._accept_messages()
                log.warning("master: every known slave has answered")

    def _note_answers(self) -> None:
        """Save who is still awaited. A failure is harmless: after a restart a slave is awaited once more."""
        try:
            self._save()
        except StoreError as error:
            log.warning("master: which slaves have answered could not be saved: %s", error)

    def remember(self, broker_id: int) -> str | None:
        """Save a slave's id before its acknowledgements count. Returns why that failed, None if it did not."""
        if broker_id in self.known:
            return None
        self.known.add(broker_id)
        try:
            self._save()
        except StoreError as error:
            self.known.discard(broker_id)
            return f"it cannot be noted here as a slave: {error}"
        return None

    def _save(self) -> None:
        table = {"brokerIds": sorted(self.known), "awaitedIds": sorted(self.awaited)}
        FILE.save(self._disk, table)
