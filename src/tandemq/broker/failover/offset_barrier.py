"""An offset is reported to a consumer when it cannot go back any more: when the disk of the broker that reports it has
taken it, so that this broker has it after a kill, and in `elect` when every member that could be the next master has it
too. Answers to commits and queries wait until then; a full disk makes them wait until there is room. A member becomes
one of those in sync when it has what was answered before that.

    commit ─► table ─► disk ─► slaves, and behind it a heartbeat ─► echoed by each: all before it was taken ─► answer
                                                          └► not the master any more: refused, so that the
                                                             consumer commits it at the next one

Owner: `Failover`. Source: docs/internals/failover.md, "Metadata"; invariant: offsets never go back.
"""

from collections.abc import Collection
from typing import NamedTuple

from tandemq.boundary import Turn
from tandemq.codec.remoting.frame import encode_command
from tandemq.model.codes import RequestCode as Code
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

GATED = frozenset({Code.UPDATE_CONSUMER_OFFSET, Code.QUERY_CONSUMER_OFFSET})
WAITING_MAX = 10_000
"""Answers that wait; beyond it the oldest requests are refused."""
BEATS_KEPT = 2_048
"""Twenty seconds of heartbeats, one in 10 ms: an echo that comes later than that counts for nothing."""


class _Waiting(NamedTuple):
    version: int
    link: int
    request: Command
    answer: Command


class OffsetGate:
    """Which version of the table which slave has, and the answers that wait. Versions count what slaves were told."""

    def __init__(self) -> None:
        """Nobody has anything."""
        self._beats: dict[int, tuple[int, Collection[int]]] = {}
        """By number of a heartbeat: the version told before it, and the links it was told on."""
        self._has: dict[int, int] = {}
        """By link of a slave: the version it has."""
        self._waiting: list[_Waiting] = []
        self._beaten = -1
        """The version the last heartbeat followed."""
        self.noted = 0
        """The version that the disk of this broker has; set by the owner."""

    @property
    def is_waited_at(self) -> bool:
        """Whether answers wait here."""
        return bool(self._waiting)

    @property
    def needs_beat(self) -> bool:
        """Whether something waits that no heartbeat has followed yet."""
        return bool(self._waiting) and self._beaten < self._waiting[-1].version <= self.noted

    def beat(self, number: int, version: int, links: Collection[int]) -> None:
        """A heartbeat leaves behind this version of the table, which was told on these links."""
        self._beats[number] = (version, frozenset(links))
        self._beats.pop(number - BEATS_KEPT, None)
        self._has = {link: has for link, has in self._has.items() if link in links}
        self._beaten = version

    def echoed(self, link: int | None, number: int) -> None:
        """A slave has taken all that came before a heartbeat."""
        version, links = self._beats.get(number, (-1, ()))
        if link is not None and link in links:
            self._has[link] = max(self._has.get(link, -1), version)

    def has(self, link: int | None, version: int) -> bool:
        """Whether the slave on a link has this version."""
        return link is not None and self._has.get(link, -1) >= version

    def _is_known(self, version: int, links: Collection[int | None]) -> bool:
        return all(self.has(link, version) for link in links)

    def holds(self, version: int, links: Collection[int | None], link: int, request: Command, answer: Command) -> bool:
        """Keep an answer to one of `GATED` that tells of this version until the disk and the slaves on `links` have it;
        False if they have. A slave without a link has nothing.
        """
        if version <= self.noted and self._is_known(version, links):
            return False
        self._waiting.append(_Waiting(version, link, request, answer))
        return True

    def release(self, links: Collection[int | None], turn: Turn) -> None:
        """Send the answers that all slaves on `links` have the offsets of."""
        kept: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.version <= self.noted and self._is_known(waiting.version, links):
                turn.send(waiting.link, encode_command(waiting.answer))
            else:
                kept.append(waiting)
        for waiting in kept[:-WAITING_MAX]:
            remark = "too many requests wait for offsets to be kept"
            turn.send(waiting.link, encode_command(waiting.request.answer(ResponseCode.SYSTEM_BUSY, remark=remark)))
        self._waiting = kept[-WAITING_MAX:]

    def refuse(self, why: str, turn: Turn) -> None:
        """Another member serves, or nobody: whoever waits is to ask there. What slaves have is to be learned anew."""
        for waiting in self._waiting:
            turn.send(waiting.link, encode_command(waiting.request.answer(ResponseCode.NO_PERMISSION, remark=why)))
        self._waiting.clear()
        self._beats.clear()
        self._has.clear()
        self._beaten = -1

    def drop_link(self, link: int) -> None:
        """Whoever asked there is gone."""
        self._waiting = [waiting for waiting in self._waiting if waiting.link != link]
