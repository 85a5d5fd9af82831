"""Brokers that said they may not serve: which they are, and when they may again.

    serves ─► refused with NO_PERMISSION ─► in doubt ─► the check is refused too ─► shut ─► checked again and again
       ▲                                       └► the check is answered ─┐           └► answered, or the route says so
       └─────────────────────────────────────────────────────────────────┴───────────────────────┘

NO_PERMISSION may mean one topic, one group, or the whole broker: while another member of its group serves, or nobody
does. The check tells which: a question for an offset, which a broker that may not serve refuses as well. Only then its
link is left, after the answers that are still under way.

Pulls are held back while a broker is in doubt or shut: however many there are, it is asked one check at a time, less
and less often, and only while somebody wants it. Messages are not: who may not be read from may still take them.

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
"""Between a refused check and the next at most; doubled each time, up to `CHECK_MS_MAX`; a random half is taken off."""
CHECK_MS_MAX = 500
WANTED_MS = 1_000
"""Who has not been wanted for this long is not checked."""
FORGOTTEN_MS = 10_000
"""Who has not been wanted for this long counts as one who serves; the next request will show."""

MakeCheck = Callable[[], Command]


class _Doubt:
    """One broker that said no."""

    __slots__ = ("address", "check", "is_asked", "is_shut", "on_served", "refusals", "wanted_ms")

    def __init__(self, address: str, check: MakeCheck, now_ms: int) -> None:
        self.address = address
        self.check = check
        self.is_asked = False
        self.is_shut = False
        self.on_served: list[Callable[[Now], None]] = []
        self.refusals = 0
        self.wanted_ms = now_ms


class BrokerAvailability:
    """All brokers that said no, by address."""

    def __init__(self, links: RemotingClient, timers: Timers, random: Random) -> None:
        """Everybody serves."""
        self._links = links
        self._timers = timers
        self._random = random
        self._doubts: dict[str, _Doubt] = {}
        self._leased: set[str] = set()
        self.on_open: list[Callable[[str, Now], None]] = []
        """Called with an address that was shut and serves again, or is said to."""

    def serves(self, address: str) -> bool:
        """Whether nothing speaks against it."""
        return address not in self._doubts

    def is_shut(self, address: str) -> bool:
        """Whether it may not serve, and the check has confirmed it."""
        doubt = self._doubts.get(address)
        return doubt is not None and doubt.is_shut

    def is_leased(self, address: str) -> bool:
        """Whether it ever was shut: its permission comes and goes, so its group is one that fails over."""
        return address in self._leased

    def refused(
        self, address: str, check: MakeCheck, now: Now, on_served: Callable[[Now], None] = lambda _now: None
    ) -> None:
        """It answered NO_PERMISSION: check whether it means everybody.

        Args:
            check: makes the question that a broker which may not serve refuses, and every other answers.
            on_served: called if it does not mean everybody.
        """
        doubt = self._doubts.get(address)
        if doubt is None:
            doubt = self._doubts[address] = _Doubt(address, check, now.mono_ms)
            doubt.on_served.append(on_served)
            self._ask(doubt, now)
        elif not doubt.is_shut:
            doubt.on_served.append(on_served)

    def shut(self, address: str, check: MakeCheck, now: Now) -> None:
        """It refused what a broker that may serve never refuses: no check is needed."""
        doubt = self._doubts.get(address)
        if doubt is None:
            doubt = self._doubts[address] = _Doubt(address, check, now.mono_ms)
        if not doubt.is_shut:
            self._confirmed(doubt, now)

    def want(self, address: str, now: Now) -> None:
        """Somebody would use it: go on checking."""
        doubt = self._doubts.get(address)
        if doubt is not None:
            doubt.wanted_ms = now.mono_ms

    def trust(self, address: str, now: Now) -> None:
        """The name servers say that it serves now."""
        doubt = self._doubts.pop(address, None)
        if doubt is not None and doubt.is_shut:
            self._opened(address, now)

    # Checks.

    def _ask(self, doubt: _Doubt, now: Now) -> None:
        doubt.is_asked = True
        self._links.request(doubt.address, doubt.check(), now, lambda answer, at: self._answered(doubt, answer, at))

    def _answered(self, doubt: _Doubt, answer: Answer, now: Now) -> None:
        if self._doubts.get(doubt.address) is not doubt:
            return
        doubt.is_asked = False
        if isinstance(answer, TandemError):
            # It is down or silent: that is the links' business, and they find out when it speaks again.
            del self._doubts[doubt.address]
        elif answer.code == ResponseCode.NO_PERMISSION:
            if doubt.is_shut:
                self._check_later(doubt, now)
            else:
                self._confirmed(doubt, now)
        else:
            del self._doubts[doubt.address]
            if doubt.is_shut:
                self._opened(doubt.address, now)
            for tell in doubt.on_served:
                tell(now)

    def _confirmed(self, doubt: _Doubt, now: Now) -> None:
        log.info("shut address=%s: it may not serve now", doubt.address)
        doubt.is_shut = True
        doubt.on_served.clear()
        self._leased.add(doubt.address)
        self._links.leave(doubt.address, "it may not serve now")
        if not doubt.is_asked:
            self._check_later(doubt, now)

    def _check_later(self, doubt: _Doubt, now: Now) -> None:
        pause_ms = min(CHECK_MS_MAX, CHECK_MS << min(doubt.refusals, 8))
        doubt.refusals += 1
        self._timers.at(now.mono_ms + self._jitter(pause_ms), lambda at: self._due(doubt, at))

    def _jitter(self, ms: int) -> int:
        return ms - int(self._random.random() * ms / 2)

    def _due(self, doubt: _Doubt, now: Now) -> None:
        if self._doubts.get(doubt.address) is not doubt:
            return
        unwanted_ms = now.mono_ms - doubt.wanted_ms
        if unwanted_ms < WANTED_MS:
            self._ask(doubt, now)
        elif unwanted_ms < FORGOTTEN_MS:
            self._timers.at(now.mono_ms + self._jitter(CHECK_MS_MAX), lambda at: self._due(doubt, at))
        else:
            del self._doubts[doubt.address]

    def _opened(self, address: str, now: Now) -> None:
        log.info("open address=%s", address)
        for tell in self.on_open:
            tell(address, now)
