"""Leases: a member serves only while no other member can take over.

    registry grant     the registry confirmed that the session was alive after `sent`    ──► sent + lease
    peer grants        every other member that could take over echoed a heartbeat        ──► oldest heartbeat + lease

Either is enough; a member that no other member can replace needs none. All times are this broker's monotonic clock, at
the moment before the request or heartbeat was sent, so that delays only shorten a lease.

Why no other member can serve meanwhile: the live node is deleted no sooner than one session timeout after the last
confirmed request, and a member takes over only after the node was missing in `checks` checks, `check_ms` apart, and no
byte was received for `silence_ms`. Hence

    (checks - 1) x check_ms + session_ms > lease_ms + drift          and          silence_ms >= lease_ms + drift

Source: docs/internals/failover.md, "Leases"; requirements F15, F16, F31.
"""

from collections.abc import Iterable
from dataclasses import dataclass

NEVER = -(1 << 62)
FOREVER = 1 << 62
SESSION_MS = 2_000
"""Session timeout that brokers request unless configured otherwise."""
CHECKS = 2
CHECK_MS_MAX = 1_000
UNCLEAN_HAND_BACK_MS = 30_000
"""After this time a master takes reading back from a missing reader, unless configured otherwise."""
LEASE_SHARE = 65
"""Lease in percent of the session timeout: a client with a long session pings rarely."""
HEARTBEATS_KEPT = 2_048
"""Number of sent heartbeats remembered: more than one lease, even at one per 10 ms while offsets wait for slaves."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Timeouts of one group in milliseconds, made consistent by `timing`."""

    session_ms: int
    lease_ms: int
    checks: int
    check_ms: int

    @property
    def drift_ms(self) -> int:
        """Allowed difference between two clocks over one lease."""
        return drift_of(self.lease_ms)

    @property
    def silence_ms(self) -> int:
        """A peer that was silent for longer than this has no lease by this member's grants any more."""
        return self.lease_ms + self.drift_ms

    @property
    def heartbeat_ms(self) -> int:
        """Interval of numbered heartbeats; up to three may be lost within a lease."""
        return max(1, self.lease_ms // 4)


def drift_of(lease_ms: int) -> int:
    """Return the allowance for clock drift over one lease: 5 % + 50 ms."""
    return lease_ms // 20 + 50


def timing(session_ms: int, *, checks: int = CHECKS) -> Timing:
    """Return the timeouts for a session timeout granted by the registry.

    A shorter session has a shorter lease and more frequent checks. The drift of a very short one needs more checks, so
    that the inequality above holds.
    """
    assert session_ms > 1 and checks > 0, "times are positive"
    lease_ms, check_ms = session_ms * LEASE_SHARE // 100, min(CHECK_MS_MAX, session_ms // 2)
    while (checks - 1) * check_ms + session_ms <= lease_ms + drift_of(lease_ms):
        checks += 1
    return Timing(session_ms, lease_ms, checks, check_ms)


class Lease:
    """Grants received by one member."""

    def __init__(self) -> None:
        """Start without grants."""
        self._registry_sent_ms = NEVER
        self._granted: dict[int, int] = {}
        self._sent: dict[int, int] = {}
        self._number = 0

    def next_heartbeat(self, now_ms: int) -> int:
        """Return the number of a heartbeat that is sent now."""
        self._number += 1
        self._sent[self._number] = now_ms
        self._sent.pop(self._number - HEARTBEATS_KEPT, None)
        return self._number

    def echoed(self, peer: int, number: int) -> None:
        """Take a peer's grant, the echo of a heartbeat's number. Numbers never sent, or forgotten, grant nothing."""
        sent_ms = self._sent.get(number)
        if sent_ms is not None:
            self._granted[peer] = max(self._granted.get(peer, NEVER), sent_ms)

    def confirmed(self, sent_ms: int) -> None:
        """Take the registry's grant: the session was alive after `sent_ms`."""
        self._registry_sent_ms = max(self._registry_sent_ms, sent_ms)

    def drop_registry(self) -> None:
        """Void the registry's grant: there is a new session, in which nothing was claimed yet."""
        self._registry_sent_ms = NEVER

    def drop_peers(self) -> None:
        """Void the peers' grants, which were for an earlier mastership."""
        self._granted.clear()
        self._sent.clear()

    def until_ms(self, others: Iterable[int], lease_ms: int) -> int:
        """Return when the lease ends. `others`: all members that could take over; FOREVER if there are none."""
        return max(self.registry_until_ms(lease_ms), self.peers_until_ms(others, lease_ms))

    def registry_until_ms(self, lease_ms: int) -> int:
        """Return when the registry's grant ends."""
        return self._registry_sent_ms + lease_ms

    def peers_until_ms(self, others: Iterable[int], lease_ms: int) -> int:
        """Return when the first of the peers' grants ends; FOREVER without peers."""
        return min((self._granted.get(peer, NEVER) + lease_ms for peer in others), default=FOREVER)


def is_lonely(
    *,
    is_master: bool,
    has_slave_assigned: bool,
    slave_once_connected: bool,
    no_slave_connected: bool,
    registry_lost: bool,
) -> bool:
    """Return whether a master must give up all permissions, because another member may take over unnoticed."""
    return is_master and has_slave_assigned and slave_once_connected and no_slave_connected and registry_lost
