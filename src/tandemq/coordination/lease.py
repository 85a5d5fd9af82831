"""Leases: a member serves only while others have promised not to take over.

    registry grant     the registry showed that our session was alive after `sent`    ──► sent + lease
    peer grants        every other member that could take over echoed a heartbeat     ──► oldest of them sent + lease

Either is enough; a member whom nobody can replace needs none. All times are this broker's monotonic clock, from the
moment before the request or the heartbeat left, so delays only shorten a lease.

Why nobody else can serve meanwhile: the live node vanishes no sooner than one session after the last confirmed request,
a taker waits for it to be absent in `checks` looks `check_ms` apart, and hears nothing for `silence_ms`; so

    (checks - 1) x check_ms + session_ms > lease_ms + drift          and          silence_ms >= lease_ms + drift

Source: docs/internals/failover.md, "Leases"; requirements F15, F16, F31.
"""

from collections.abc import Iterable
from dataclasses import dataclass

NEVER = -(1 << 62)
FOREVER = 1 << 62
LEASE_MS = 1_300
CHECKS = 2
CHECK_MS = 1_000
SESSION_SHARE = 65
"""A lease is at least this many percent of the session: a client that is asked for a long session pings rarely."""
HEARTBEATS_KEPT = 2_048
"""Longer than a lease, also at one in 10 ms: so many leave while offsets wait for slaves."""


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of one group, milliseconds; they fit together by construction, see `timing`."""

    session_ms: int
    lease_ms: int
    checks: int
    check_ms: int

    @property
    def drift_ms(self) -> int:
        """How much two clocks may disagree over one lease."""
        return drift_of(self.lease_ms)

    @property
    def silence_ms(self) -> int:
        """A peer not heard for longer than this has no lease from our promises any more."""
        return self.lease_ms + self.drift_ms

    @property
    def heartbeat_ms(self) -> int:
        """How often a holder sends numbered heartbeats, so that three may be lost."""
        return max(1, self.lease_ms // 4)


def drift_of(lease_ms: int) -> int:
    """Allowance for clocks that run differently: 5 % and 50 ms."""
    return lease_ms // 20 + 50


def timing(session_ms: int, *, lease_ms: int = LEASE_MS, checks: int = CHECKS, check_ms: int = CHECK_MS) -> Timing:
    """The times that go with the session a registry granted.

    A longer session makes the lease longer; a long lease makes more checks, so that the inequality above holds.
    """
    assert session_ms > 0 and lease_ms > 0 and checks > 0 and check_ms > 0, "times are positive"
    lease_ms = max(lease_ms, session_ms * SESSION_SHARE // 100)
    while (checks - 1) * check_ms + session_ms <= lease_ms + drift_of(lease_ms):
        checks += 1
    return Timing(session_ms, lease_ms, checks, check_ms)


class Lease:
    """Grants collected so far."""

    def __init__(self) -> None:
        """Nothing granted."""
        self._registry_sent_ms = NEVER
        self._granted: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._number = 0

    def next_heartbeat(self, now_ms: int) -> int:
        """The number of a heartbeat that leaves now."""
        self._number += 1
        self._sent[self._number] = now_ms
        self._sent.pop(self._number - HEARTBEATS_KEPT, None)
        return self._number

    def echoed(self, peer: int, number: int) -> None:
        """A peer promised, by the number of a heartbeat; numbers never sent, or long ago, promise nothing."""
        sent_ms = self._sent.get(number)
        if sent_ms is not None:
            self._granted[peer] = max(self._granted.get(peer, NEVER), sent_ms)

    def confirmed(self, sent_ms: int) -> None:
        """The registry had our session alive after `sent_ms`."""
        self._registry_sent_ms = max(self._registry_sent_ms, sent_ms)

    def drop_registry(self) -> None:
        """The registry grant is void: another session, in which nothing was claimed yet."""
        self._registry_sent_ms = NEVER

    def drop_peers(self) -> None:
        """Promises were for an earlier mastership."""
        self._granted.clear()
        self._sent.clear()

    def until_ms(self, others: Iterable[int], lease_ms: int) -> int:
        """When the lease ends. `others`: all members that could take over; none: FOREVER."""
        return max(self.registry_until_ms(lease_ms), self.peers_until_ms(others, lease_ms))

    def registry_until_ms(self, lease_ms: int) -> int:
        """When the registry's grant ends."""
        return self._registry_sent_ms + lease_ms

    def peers_until_ms(self, others: Iterable[int], lease_ms: int) -> int:
        """When the first of the peers' grants ends; FOREVER without peers."""
        return min((self._granted.get(peer, NEVER) + lease_ms for peer in others), default=FOREVER)


def is_lonely(
    *,
    is_master: bool,
    has_slave_assigned: bool,
    slave_once_connected: bool,
    no_slave_connected: bool,
    registry_lost: bool,
) -> bool:
    """Whether a master must give up all permissions: somebody may be taking over, and it could not know."""
    return is_master and has_slave_assigned and slave_once_connected and no_slave_connected and registry_lost
