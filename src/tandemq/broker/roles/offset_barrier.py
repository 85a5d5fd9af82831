"""A consumer offset is reported to a consumer only when it cannot go back: when the disk of this broker has it, so that
it survives a kill, and in `elect` when that of every member that could be the next master has it too. Responses to
commits and queries wait until then; while a disk is full they wait until there is room. A slave joins the members in
sync once it has the offsets that were reported before that.

So do responses to other requests with `Request.is_copied`. Changes of static topics: with the mapping before, the next
master would lead logical queues that have moved to another group. Deletions of topics, whose messages the next master
would still have. Changes of users and policies: it would let in a user that was deleted.

    commit ─► table ─► disk ─► slaves, and behind it a heartbeat ─► reported by each: all before it is saved ─► response
                                                          └► no longer the master: refused, so that the consumer
                                                             commits at the next one

Source: docs/internals/failover.md, "Metadata"; invariant: offsets never go back.
"""

from collections.abc import Collection
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.kernel.feature import Feature
from tandemq.broker.kernel.serving import Serving
from tandemq.codec.remoting.frame import encode_command
from tandemq.coordination.liveness import TableProgress
from tandemq.model.codes import ResponseCode
from tandemq.model.command import Command

WAITING_MAX = 10_000
"""Maximum number of responses that wait; beyond it the oldest requests are refused."""
BEATS_KEPT = 2_048
"""Heartbeats remembered: 20 s at one per 10 ms. Reports of older ones are ignored."""


class _Waiting(NamedTuple):
    version: int
    link: int
    request: Command
    answer: Command


class OffsetBarrier(Feature):
    """The version of offsets and mappings that each slave has, and the responses that wait.

    Versions count published changes.
    """

    def __init__(self) -> None:
        """No slave has anything yet."""
        self._beats: dict[int, tuple[int, Collection[int]]] = {}
        """By number of a heartbeat: the version published before it, and the connections it was sent on."""
        self._has: dict[int, int] = {}
        """By connection of a slave: the version it has."""
        self._needs: dict[int, int] = {}
        """By broker id of a slave: the version that it needs, since responses did not wait for it before."""
        self._published_then: dict[int, int] = {}
        """By broker id of a slave: the version that was published when it last had all earlier versions."""
        self._waiting: list[_Waiting] = []
        self._last_sent = -1
        """The version that precedes the last heartbeat."""
        self._noted = 0
        """The version that the disk of this broker has."""

    @property
    def is_waited_at(self) -> bool:
        """Whether responses wait."""
        return bool(self._waiting)

    @property
    def needs_beat(self) -> bool:
        """Whether a response waits whose version no heartbeat has followed yet."""
        return bool(self._waiting) and self._last_sent < self._waiting[-1].version <= self._noted

    def note_saved(self, version: int) -> None:
        """Take note of the version that the disk of this broker has."""
        self._noted = version

    def heartbeat_sent(self, number: int, version: int, links: Collection[int]) -> None:
        """Take note of a heartbeat that follows this version, which was published on these connections."""
        self._beats[number] = (version, frozenset(links))
        self._beats.pop(number - BEATS_KEPT, None)
        self._has = {link: has for link, has in self._has.items() if link in links}
        self._last_sent = version

    def progress(self, peer: int, link: int | None, *, needs: int | None, published: int | None) -> TableProgress:
        """Return how much the slave on a connection has.

        `needs`: the version that it needs from now on; None: the one before. `published`: the last version; None: no
        response waits for slaves, which may receive nothing.
        """
        if needs is not None:
            self._needs[peer] = needs
        keeps_up = published is None or self.has(link, self._published_then.get(peer, -1))
        if published is not None and keeps_up:
            self._published_then[peer] = published
        return TableProgress(self.has(link, self._needs.get(peer, 0)), keeps_up)

    def saved(self, link: int, number: int) -> None:
        """Take note that the slave on a connection has saved all that precedes a heartbeat."""
        version, links = self._beats.get(number, (-1, ()))
        if link in links:
            self._has[link] = max(self._has.get(link, -1), version)

    def has(self, link: int | None, version: int) -> bool:
        """Whether the slave on a connection has this version."""
        return link is not None and self._has.get(link, -1) >= version

    def _is_known(self, version: int, links: Collection[int | None]) -> bool:
        return all(self.has(link, version) for link in links)

    def holds(self, version: int, links: Collection[int | None], link: int, request: Command, answer: Command) -> bool:
        """Keep a response until the disk and the slaves on `links` have this version.

        Returns False if they have it. A slave without a connection has nothing.
        """
        if version <= self._noted and self._is_known(version, links):
            return False
        self._waiting.append(_Waiting(version, link, request, answer))
        return True

    def release(self, links: Collection[int | None], turn: Turn) -> None:
        """Send the responses whose offsets all slaves on `links` have."""
        kept: list[_Waiting] = []
        for waiting in self._waiting:
            if waiting.version <= self._noted and self._is_known(waiting.version, links):
                turn.send(waiting.link, encode_command(waiting.answer))
            else:
                kept.append(waiting)
        for waiting in kept[:-WAITING_MAX]:
            remark = "too many requests wait for offsets to be kept"
            turn.send(waiting.link, encode_command(waiting.request.answer(ResponseCode.SYSTEM_BUSY, remark=remark)))
        self._waiting = kept[-WAITING_MAX:]

    def on_serving_change(self, before: Serving, serving: Serving, turn: Turn, _now: Now) -> None:
        """Refuse waiting requests if offsets may not be committed here any more."""
        is_new = (before.read, before.write, before.commit) != (serving.read, serving.write, serving.commit)
        if is_new and serving.commit is not None:
            self.refuse(serving.commit, turn)

    def refuse(self, why: str, turn: Turn) -> None:
        """Refuse all waiting responses: another member serves, or none. Reports of slaves start over."""
        for waiting in self._waiting:
            turn.send(waiting.link, encode_command(waiting.request.answer(ResponseCode.NO_PERMISSION, remark=why)))
        self._waiting.clear()
        self._beats.clear()
        self._has.clear()
        self._last_sent = -1

    def drop_link(self, link: int) -> None:
        """Forget the responses for a closed connection."""
        self._waiting = [waiting for waiting in self._waiting if waiting.link != link]
