"""Checks of a group that consumes by pops.

I25  A popped message is given to no other pop before its invisible time is over. One whose acknowledgement was
     confirmed in time is not given again, and one that is not acknowledged comes back.

Excused is what bytes lost in a power loss, flipped bits and jumps of the clock may rightly cause, and messages that the
broker may hold twice: their producer sent them twice, or a write failed or ended in the middle. In a group that elects,
a response that waited for replicas until `slaveTimeout` is sent all the same: the next master may not know of it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from lab.sim.checkers.model import ExpectedState, QueuePlace, SentMessage
from lab.sim.world.cluster import Cluster, Host
from lab.sim.world.world import MS, SECOND, Violation, World


@dataclass(slots=True, eq=False)
class Hold:
    """A message that the group holds. Times in µs."""

    key: str
    group: str
    """Broker group."""
    since_us: int
    """When the pop was sent."""
    until_us: int
    """Earliest time at which it may come back."""
    is_open: bool = True
    """Whether it must come back: no acknowledgement was sent that could have arrived."""
    acked_us: int | None = None
    """When its acknowledgement was confirmed, if it was in time."""
    is_replicated: bool = True
    """Whether the members in sync know of it: its response did not wait until its time was over."""
    place: QueuePlace | None = None
    """Where the message lies."""


class PopEvent(NamedTuple):
    """What happened to a hold, for the history of the run."""

    at_us: int
    what: str
    """"popped", "asked" and "acked" (an acknowledgement), "changed" and "renewed" (its invisible time)."""
    hold: Hold
    since_us: int = 0
    """When the request was sent."""
    invisible_ms: int = 0


class PopChecks:
    """What a consumer group has popped."""

    def __init__(
        self,
        world: World,
        cluster: Cluster,
        expected: ExpectedState,
        *,
        slack_ms: int = 0,
        slave_timeout_ms: int | None = None,
    ) -> None:
        """Begin without pops.

        Args:
            slack_ms: how far apart the clocks of members may be.
            slave_timeout_ms: how long responses wait for replicas; None: masters do not change.
        """
        self._world = world
        self._cluster = cluster
        self._expected = expected
        self._slack_us = slack_ms * MS
        self._slave_timeout_us = None if slave_timeout_ms is None else slave_timeout_ms * MS
        self._holds: dict[tuple[str, str], Hold] = {}
        """By broker group and unique key."""
        self._doubled: set[tuple[str, str]] = set()
        """Those of which a retry topic may hold another copy: one came back, and the offset behind it was lost."""
        self.excuses: Callable[[str], bool] = lambda _group: False
        """Whether a broker group may give messages early, late or again for other reasons."""
        self.came_back = 0
        """Messages given again, after their invisible time."""
        self.acked = 0
        """Acknowledgements confirmed in time."""
        self.events: list[PopEvent] = []

    def given(self, group: str, wanted: SentMessage, sent_us: int, invisible_ms: int) -> Hold:
        """Check a delivery by a pop sent at a time, and record it.

        Raises:
            Violation: I25.
        """
        known, now_us = self._holds.get((group, wanted.key)), self._world.now_us
        timeout_us = self._slave_timeout_us
        is_replicated = timeout_us is None or now_us - sent_us < timeout_us
        last = self._expected.given[-1]
        place = QueuePlace(last.group, last.topic, last.queue_id, last.queue_offset)
        hold = Hold(wanted.key, group, sent_us, sent_us + invisible_ms * MS, is_replicated=is_replicated, place=place)
        self.events.append(PopEvent(now_us, "popped", hold, sent_us, invisible_ms))
        if known is not None and sent_us < known.since_us:
            return hold  # a late response: the message has come back to another pop since
        if known is not None:
            self.came_back += 1
            if self._is_excused(known):
                self._doubled.add((group, wanted.key))
            is_once = is_stored_once(wanted) and (group, wanted.key) not in self._doubled
            if is_once and not self._has_torn_write():
                if known.acked_us is not None and known.acked_us < sent_us:
                    raise Violation(
                        "I25", f"{wanted.key} came again, acknowledged at {known.acked_us / SECOND:.3f} s: {known}"
                    )
                if known.acked_us is None and known.is_replicated and now_us < known.until_us - self._slack_us:
                    raise Violation("I25", f"{wanted.key} came again before its time: {known}")
        self._holds[group, wanted.key] = hold
        return hold

    def asked(self, hold: Hold) -> None:
        """Record that an acknowledgement is requested."""
        hold.is_open = False
        self.events.append(PopEvent(self._world.now_us, "asked", hold))

    def confirmed(self, hold: Hold) -> None:
        """Record that the broker confirmed an acknowledgement."""
        self.events.append(PopEvent(self._world.now_us, "acked", hold))
        if self._world.now_us < hold.until_us - self._slack_us:
            hold.acked_us = self._world.now_us
            self.acked += 1

    def changed(self, hold: Hold, sent_us: int, invisible_ms: int) -> None:
        """Record that a new invisible time was requested: the message comes back after the old or the new one."""
        self.events.append(PopEvent(sent_us, "changed", hold, sent_us, invisible_ms))
        hold.until_us = min(hold.until_us, sent_us + invisible_ms * MS)

    def renewed(self, hold: Hold, sent_us: int, invisible_ms: int) -> None:
        """Record that the broker confirmed, while the message was still invisible, a new invisible time."""
        self.events.append(PopEvent(self._world.now_us, "renewed", hold, sent_us, invisible_ms))
        hold.until_us = sent_us + invisible_ms * MS

    def missing(self) -> str:
        """Return a message that was not acknowledged and has not come back; "" if there is none."""
        for hold in self._holds.values():
            if hold.is_open and not self._is_excused(hold) and not self._is_deleted(hold):
                return f"a message that was not acknowledged has not come back: {hold}"
        return ""

    def _members(self, group: str) -> list[Host]:
        return [host for host in self._cluster.hosts if host.group.name == group]

    def _is_excused(self, hold: Hold) -> bool:
        return self.excuses(hold.group) or any(
            host.flips
            or any(when >= hold.since_us for when in host.losses_us)
            or any(when >= hold.since_us for when, _ in host.machine.jumps)
            for host in self._members(hold.group)
        )

    def _has_torn_write(self) -> bool:
        """Return whether a write may have stored messages that came back, without the record that they did."""
        torn = ("killed-at", "power-lost-at", "failing-pwrite", "disk-full")
        return any(kind.startswith(torn) for kind in self._world.faults)

    def _is_deleted(self, hold: Hold) -> bool:
        """Return whether the log has lost its oldest records, the message among them, perhaps."""
        return any(host.broker is not None and host.broker.store.log.start > 0 for host in self._members(hold.group))


def is_stored_once(message: SentMessage) -> bool:
    """Return whether topics hold a message at most once: delay levels may repeat one after a kill."""
    return len(message.attempts) == 1 and not message.delay_level
