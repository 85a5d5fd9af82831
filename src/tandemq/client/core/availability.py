"""Brokers that refused a request with NO_PERMISSION: which they are, and when they may serve again.

    active ─► refuses a request ─► suspected ─► refuses the check ─► inactive ─► checked again and again
       ▲                               └► answers the check ─┐           └► answers, or a route lists it as new master
       └─────────────────────────────────────────────────────┴───────────────────────┘

NO_PERMISSION may concern one topic, one group, or the whole broker, for as long as another member of its broker group
is active or none is. The check tells which: a query for a consumer offset, which a broker that may not serve refuses
as well. The connection to an inactive broker is closed after its in-flight responses have arrived.

No pull is sent to a broker that is suspected or inactive. However many queues wait for it, it gets one check at a time,
with growing pauses, and only while a queue needs it. Messages are still sent to it: a broker that may not be read may
accept writes.

Owner: the node. Source: docs/internals/failover.md, "Clients"; requirements F07, F08, F11.
"""

import logging
from collections.abc import Callable
from random import Random

from tandemq.boundary import Now
from tandemq.client.core.calls import Timers
from tandemq.client.core.connections import Answer, RemotingClient
from tandemq.errors import TandemError
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

log = logging.getLogger(__name__)
CHECK_MS = 100
"""Longest pause between a refused check and the next; doubled each time up to `CHECK_MS_MAX`, less a random half."""
CHECK_MS_MAX = 500
WANTED_MS = 1_000
"""A broker that no queue has needed for this long is not checked."""
FORGOTTEN_MS = 10_000
"""A broker that no queue has needed for this long counts as active; the next request will show whether it is."""

MakeCheck = Callable[[], Command]


class _Suspect:
    """A broker that is suspected or inactive."""

    __slots__ = ("address", "check", "is_check_in_flight", "is_inactive", "on_active", "refusals", "wanted_ms")

    def __init__(self, address: str, check: MakeCheck, now_ms: int) -> None:
        self.address = address
        self.check = check
        self.is_check_in_flight = False
        self.is_inactive = False
        self.on_active: list[Callable[[Now], None]] = []
        self.refusals = 0
        self.wanted_ms = now_ms


class BrokerAvailability:
    """Suspected and inactive brokers by address; all others are active."""

    def __init__(self, remoting: RemotingClient, timers: Timers, random: Random) -> None:
        """All brokers are active."""
        self._remoting = remoting
        self._timers = timers
        self._random = random
        self._suspects: dict[str, _Suspect] = {}
        self._leased: set[str] = set()
        self.on_active: list[Callable[[str, Now], None]] = []
        """Called with the address of a broker that was inactive and is active again."""

    def is_active(self, address: str) -> bool:
        """Return whether a broker is neither suspected nor inactive."""
        return address not in self._suspects

    def is_inactive(self, address: str) -> bool:
        """Return whether a broker may not serve, as confirmed by a check."""
        suspect = self._suspects.get(address)
        return suspect is not None and suspect.is_inactive

    def is_leased(self, address: str) -> bool:
        """Return whether a broker was ever inactive: its permission depends on a lease, so its group fails over."""
        return address in self._leased

    def suspect(
        self, address: str, check: MakeCheck, now: Now, on_active: Callable[[Now], None] = lambda _now: None
    ) -> None:
        """Check whether a broker that answered NO_PERMISSION refuses all requests.

        Args:
            check: makes the request that a broker which may not serve refuses, and every other answers.
            on_active: called if the check is answered: the refusal concerned one topic or group.
        """
        suspect = self._suspects.get(address)
        if suspect is None:
            suspect = self._suspects[address] = _Suspect(address, check, now.mono_ms)
            suspect.on_active.append(on_active)
            self._send_check(suspect, now)
        elif not suspect.is_inactive:
            suspect.on_active.append(on_active)

    def mark_inactive(self, address: str, check: MakeCheck, now: Now) -> None:
        """Mark a broker inactive that refused what an active broker never refuses, so that no check is needed."""
        suspect = self._suspects.get(address)
        if suspect is None:
            suspect = self._suspects[address] = _Suspect(address, check, now.mono_ms)
        if not suspect.is_inactive:
            self._confirm(suspect, now)

    def keep_checking(self, address: str, now: Now) -> None:
        """Keep checking a broker because a queue needs it."""
        suspect = self._suspects.get(address)
        if suspect is not None:
            suspect.wanted_ms = now.mono_ms

    def mark_active(self, address: str, now: Now) -> None:
        """Mark a broker active that the name servers list as new, or as the new master."""
        suspect = self._suspects.pop(address, None)
        if suspect is not None and suspect.is_inactive:
            self._activated(address, now)

    # Checks.

    def _send_check(self, suspect: _Suspect, now: Now) -> None:
        suspect.is_check_in_flight = True
        self._remoting.request(
            suspect.address, suspect.check(), now, lambda answer, now: self._on_checked(suspect, answer, now)
        )

    def _on_checked(self, suspect: _Suspect, answer: Answer, now: Now) -> None:
        if self._suspects.get(suspect.address) is not suspect:
            return
        suspect.is_check_in_flight = False
        if isinstance(answer, TandemError):
            # It is down or silent, which the remoting client tracks.
            del self._suspects[suspect.address]
        elif answer.code == ResponseCode.NO_PERMISSION:
            if suspect.is_inactive:
                self._check_later(suspect, now)
            else:
                self._confirm(suspect, now)
        else:
            del self._suspects[suspect.address]
            if suspect.is_inactive:
                self._activated(suspect.address, now)
            for notify in suspect.on_active:
                notify(now)

    def _confirm(self, suspect: _Suspect, now: Now) -> None:
        log.info("broker inactive address=%s: it may not serve now", suspect.address)
        suspect.is_inactive = True
        suspect.on_active.clear()
        self._leased.add(suspect.address)
        self._remoting.close_when_idle(suspect.address, "it may not serve now")
        if not suspect.is_check_in_flight:
            self._check_later(suspect, now)

    def _check_later(self, suspect: _Suspect, now: Now) -> None:
        pause_ms = min(CHECK_MS_MAX, CHECK_MS << min(suspect.refusals, 8))
        suspect.refusals += 1
        self._timers.at(now.mono_ms + self._jitter(pause_ms), lambda now: self._check_due(suspect, now))

    def _jitter(self, ms: int) -> int:
        return ms - int(self._random.random() * ms / 2)

    def _check_due(self, suspect: _Suspect, now: Now) -> None:
        if self._suspects.get(suspect.address) is not suspect:
            return
        unwanted_ms = now.mono_ms - suspect.wanted_ms
        if unwanted_ms < WANTED_MS:
            self._send_check(suspect, now)
        elif unwanted_ms < FORGOTTEN_MS:
            self._timers.at(now.mono_ms + self._jitter(CHECK_MS_MAX), lambda now: self._check_due(suspect, now))
        else:
            del self._suspects[suspect.address]

    def _activated(self, address: str, now: Now) -> None:
        log.info("broker active address=%s", address)
        for notify in self.on_active:
            notify(address, now)
