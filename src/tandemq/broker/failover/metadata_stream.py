"""In a group with a registry the tables of whoever serves follow its log to the slaves, over the replication links: any
slave may have to go on with them the next moment.

    link new to us ─► all topics, all consumer groups ─► log bytes ─► all offsets, all delays
    each turn      ─► topics and groups that changed  ─► log bytes ─► offsets and delays that changed

Topics and groups go before the log bytes of their turn: whoever has acknowledged a message knows its topic, with the
queues that clients were told of. What consumers committed and the progress of delayed messages come behind: a
slave that knew of a delivery whose message it does not have would never deliver it. A link on which log bytes have to
wait is told of these two nothing, and everything once they are on their way. No link waits for another.

What is told whole takes the place of all the slave has: what was removed while it was away is gone there as well.
Only who serves tells, only who does not takes. Owner: `Failover`. Source: docs/internals/failover.md, "Metadata".
"""

import logging
from typing import TYPE_CHECKING, Any

from tandemq.boundary import Now, Turn
from tandemq.broker.state.consumer_offsets import WHOLE
from tandemq.broker.state.groups import parse_groups
from tandemq.broker.state.topics import parse_topics
from tandemq.codec.ha import KIND_DELAYS, KIND_GROUPS, KIND_OFFSETS, KIND_TOPICS
from tandemq.codec.remoting.fastjson import dumps, dumps_java, loads
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.text import brief
from tandemq.replication.master import MasterSession, MasterSessionState
from tandemq.storage.json_tables import DataVersion

if TYPE_CHECKING:
    from tandemq.broker.node import Broker

log = logging.getLogger(__name__)
NOTE_AGAIN_MS = 100
"""Changes of offsets that the disk did not take are tried again after this."""
BACKLOG_BYTES_MAX = 4 << 20
"""A link that has so much to send is told nothing more meanwhile."""
REMOVED = "tandemRemoved"
"""In a table of what changed: names that are not there any more."""
WHOLE_KINDS = frozenset({KIND_TOPICS, KIND_GROUPS, KIND_OFFSETS})
"""What a link is told whole at its beginning, and a slave needs before it can go on as the master."""


class TableStream:
    """Tells slaves, or takes what the master tells."""

    def __init__(self, broker: "Broker") -> None:
        """Nobody has been told anything."""
        self._broker = broker
        self._acquainted: set[int] = set()
        """Links that have got all topics and groups since we serve."""
        self.told: set[int] = set()
        """Links that have got all offsets and delays since we serve, offsets up to `version`."""
        self.version = 0
        """How often offsets changed."""
        self.noted = 0
        """The version that our disk has, if ours are the offsets that count."""
        self._again_ms = 0
        self._untold: list[tuple[int, bytes]] = []
        """Changes of offsets that no link has got yet."""
        self._delays = -1
        self._versions = (-1, -1)
        self._taken: set[int] = set()
        """Kinds of which we have got all there was."""
        broker.offsets.changed, broker.topics.news, broker.groups.news = {}, {}, {}

    @property
    def is_whole(self) -> bool:
        """Whether a master told us every table."""
        return self._taken >= WHOLE_KINDS

    def end(self) -> None:
        """Nobody is told any more."""
        broker = self._broker
        broker.offsets.changed, broker.topics.news, broker.groups.news = None, None, None

    # Before the log bytes of a turn.

    def announce(self, now: Now, *, is_leading: bool) -> None:
        """Tell slaves of topics and groups before they get messages of them. `is_leading`: our tables count, and our
        log is the one that is copied."""
        broker = self._broker
        news = self._named_news()
        if not is_leading:
            self._acquainted.clear()
            return
        sessions = self._sessions()
        self._acquainted &= sessions.keys()
        fresh = sessions.keys() - self._acquainted
        if not news and not fresh:
            return
        whole = self._named_whole() if fresh else []
        for link, session in sessions.items():
            if link not in fresh and broker.outbox.backlog(link) > BACKLOG_BYTES_MAX:
                session.end("it takes nothing, and has to be told of topics or groups")
                continue
            for kind, payload in whole if link in fresh else news:
                session.send_metadata(kind, payload, now.mono_ms)
        self._acquainted |= fresh

    def _sessions(self) -> dict[int, MasterSession]:
        """Links of slaves that copy."""
        return {
            link: session
            for link, session in self._broker.replication.masters.sessions.items()
            if session.state is MasterSessionState.TRANSFER and not session.is_classic
        }

    def _named_whole(self) -> list[tuple[int, bytes]]:
        broker = self._broker
        return [
            (KIND_TOPICS, dumps(broker.topics.as_json() | {WHOLE: True})),
            (KIND_GROUPS, dumps(broker.groups.as_json() | {WHOLE: True})),
        ]

    def _named_news(self) -> list[tuple[int, bytes]]:
        """Topics and groups that changed since this was called last."""
        topics, groups = self._broker.topics, self._broker.groups
        versions = (topics.version.counter, groups.version.counter)
        if versions == self._versions:
            return []
        found: list[tuple[int, bytes]] = []
        for at, kind, table in ((0, KIND_TOPICS, topics), (1, KIND_GROUPS, groups)):
            names, table.news = table.news or {}, {}
            if versions[at] != self._versions[at]:
                removed = [name for name in names if name not in table.table]
                found.append((kind, dumps(table.as_json(names) | {REMOVED: removed})))
        self._versions = versions
        return found

    # Behind them.

    def pump(self, turn: Turn, now: Now, *, is_holder: bool, is_leading: bool) -> None:
        """Keep what consumers committed here, and tell every slave what is news.

        Args:
            turn: of the broker.
            now: this moment.
            is_holder: our tables count; a slave that is read from has nobody to tell.
            is_leading: they count, and our log is the one that is copied.
        """
        broker = self._broker
        if broker.offsets.is_unnoted and now.mono_ms >= self._again_ms:
            self._again_ms = now.mono_ms + NOTE_AGAIN_MS
            broker.offsets.note_all()
        if broker.offsets.changed:
            self.version += 1
            changes = dumps_java(broker.offsets.changes())
            if is_holder:
                broker.offsets.note(changes)
                self._untold.append((KIND_OFFSETS, changes))
        if not (is_holder and broker.offsets.is_unnoted):
            self.noted = self.version
        if not is_leading:
            self.told.clear()
            self._untold.clear()
            return
        sessions = self._sessions()
        self.told &= sessions.keys()
        news = self._news()
        if not news and len(self.told) == len(sessions):
            return
        end = broker.store.log.written_end
        ready = {
            link
            for link, session in sessions.items()
            if session.next_offset >= end and broker.outbox.backlog(link) <= BACKLOG_BYTES_MAX
        }
        if news:
            self.told &= ready
        fresh = ready - self.told
        if not news and not fresh:
            return
        self.told |= fresh
        everything = self._everything() if fresh else []
        for link in ready:
            for kind, payload in everything if link in fresh else news:
                sessions[link].send_metadata(kind, payload, now.mono_ms)
        broker.replication.masters.pump(turn, now)

    def _everything(self) -> list[tuple[int, bytes]]:
        broker = self._broker
        return [
            (KIND_OFFSETS, dumps_java(broker.offsets.as_json() | {WHOLE: True})),
            (KIND_DELAYS, dumps_java(broker.delay.as_json())),
        ]

    def _news(self) -> list[tuple[int, bytes]]:
        broker = self._broker
        found, self._untold = self._untold, []
        if broker.delay.version.counter != self._delays:
            self._delays = broker.delay.version.counter
            found.append((KIND_DELAYS, dumps_java(broker.delay.as_json())))
        return found

    # The other side.

    def take(self, kind: int, payload: bytes) -> None:
        """The master told something; what cannot be read is said and left, the next whole table mends it."""
        broker = self._broker
        try:
            table = loads(payload, is_trusted=True)
            if not isinstance(table, dict):
                raise ProtocolError("an object is expected")
            if kind == KIND_TOPICS:
                self._take_topics(table)
            elif kind == KIND_GROUPS:
                self._take_groups(table)
            elif kind == KIND_OFFSETS:
                broker.offsets.follow(table, payload)
            else:
                broker.delay.adopt(table)
            if table.get(WHOLE):
                self._taken.add(kind)
        except (ProtocolError, StoreDamaged) as error:
            log.warning("replication: tables that the master told are unusable: %s", brief(error, 1_000))

    def _take_topics(self, table: dict[str, Any]) -> None:
        topics, version = self._broker.topics, DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            topics.follow(parse_topics(table), _removed(table), version)
        elif version != topics.version:
            topics.replace(parse_topics(table), version)
            log.info("replication: took over %d topics", len(topics.table))

    def _take_groups(self, table: dict[str, Any]) -> None:
        groups, version = self._broker.groups, DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            groups.follow(parse_groups(table), _removed(table), version)
        elif version != groups.version:
            groups.replace(parse_groups(table), version)


def _removed(table: dict[str, Any]) -> list[str]:
    names = table.get(REMOVED, [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ProtocolError(f"{REMOVED} must be a list of names")
    return names
