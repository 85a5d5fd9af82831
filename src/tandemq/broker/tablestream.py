"""In a group with a registry: what consumers committed follows the log to the slaves at once, and so does the progress
of delayed messages; any slave may have to go on with them the next moment. Of changed topics and groups slaves are told
that they changed, and ask.

    serving ──link new to us──► everything once ──► what changed in a turn, behind the log bytes of that turn

A link on which log bytes have to wait is told nothing, and everything once they are on their way: a slave that knew of
a delivery whose message it does not have would never deliver it. No link waits for another.

Only who serves tells, only who does not takes. Owner: `Failover`. Source: docs/failover.md, "Tables".
"""

import logging
from typing import TYPE_CHECKING

from tandemq.boundary import Now, Turn
from tandemq.codec.fastjson import dumps_java, loads
from tandemq.codec.ha import KIND_CHANGED, KIND_DELAYS, KIND_OFFSETS
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.replication.master import State

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
BACKLOG_BYTES_MAX = 4 << 20
"""A link that has so much to send is told nothing more meanwhile."""


class TableStream:
    """Tells slaves, or takes what the master tells."""

    def __init__(self, broker: "Broker") -> None:
        """Nobody has been told anything."""
        self._broker = broker
        self._told: set[int] = set()
        """Links that have got everything since we serve."""
        self._untold: list[tuple[int, bytes]] = []
        """Changes of offsets that no link has got yet."""
        self._delays = -1
        self._versions = (-1, -1)
        broker.offsets.changed = {}

    def pump(self, turn: Turn, now: Now, *, is_holder: bool, is_serving: bool) -> None:
        """Keep what consumers committed here, and tell every slave what is news.

        Args:
            turn: of the broker.
            now: this moment.
            is_holder: clients are served here; a slave that is read from has nobody to tell.
            is_serving: so they are, and we are the master.
        """
        broker = self._broker
        if broker.offsets.changed:
            changes = dumps_java(broker.offsets.changes())
            if is_holder:
                broker.offsets.note(changes)
                self._untold.append((KIND_OFFSETS, changes))
        if not is_serving:
            self._told.clear()
            self._untold.clear()
            return
        sessions = {
            link: session for link, session in broker.replication.masters.sessions.items()
            if session.state is State.TRANSFER and not session.is_classic
        }  # fmt: skip
        end = broker.store.log.written_end
        ready = {
            link for link, session in sessions.items()
            if session.next_offset >= end and broker.outbox.backlog(link) <= BACKLOG_BYTES_MAX
        }  # fmt: skip
        self._told &= sessions.keys()
        news = self._news()
        if news:
            self._told &= ready
        fresh = ready - self._told
        if not news and not fresh:
            return
        self._told |= fresh
        everything = self._everything() if fresh else []
        for link in ready:
            for kind, payload in everything if link in fresh else news:
                sessions[link].tell(kind, payload, now.mono_ms)
        broker.replication.masters.pump(turn, now)

    def _everything(self) -> list[tuple[int, bytes]]:
        broker = self._broker
        return [
            (KIND_CHANGED, b""),
            (KIND_OFFSETS, dumps_java(broker.offsets.as_json())),
            (KIND_DELAYS, dumps_java(broker.delay.as_json())),
        ]

    def _news(self) -> list[tuple[int, bytes]]:
        broker = self._broker
        found, self._untold = self._untold, []
        versions = (broker.topics.version.counter, broker.groups.version.counter)
        if versions != self._versions:
            self._versions = versions
            found.append((KIND_CHANGED, b""))
        if broker.delay.version.counter != self._delays:
            self._delays = broker.delay.version.counter
            found.append((KIND_DELAYS, dumps_java(broker.delay.as_json())))
        return found

    def take(self, kind: int, payload: bytes, now: Now) -> None:
        """The master told something; what cannot be read is said and left, the next whole table mends it."""
        broker = self._broker
        try:
            if kind == KIND_CHANGED:
                broker.replication.ask_tables(now)
                return
            table = loads(payload)
            if not isinstance(table, dict):
                raise ProtocolError("an object is expected")
            if kind == KIND_OFFSETS:
                broker.offsets.follow(table, payload)
            else:
                broker.delay.adopt(table)
        except (ProtocolError, StoreDamaged) as error:
            log.warning("replication: tables that the master told are unusable: %s", error)
