"""Metadata of an elected group follows the master's log to the slaves, on the replication connections: any slave may
have to continue with it the next moment.

    new connection ─► all topics, all consumer groups ─► log bytes ─► all offsets, all delays
    each turn      ─► topics and groups that changed  ─► log bytes ─► offsets and delays that changed

Topics and groups precede the log bytes of their turn: a slave that has acknowledged a message knows its topic, with the
queues that clients know of. Consumer offsets and the progress of delayed messages follow the log bytes: a slave that
knew of a delivery without its message would never deliver it. On a connection whose log bytes have to wait, these two
are withheld, and sent whole once the log bytes are in flight. No connection waits for another.

A whole table replaces the slave's: what was removed while it was away is removed there too.
Only the active member publishes metadata; the others apply it. Source: docs/internals/failover.md, "Metadata".
"""

import logging
from typing import Any, NamedTuple

from tandemq.boundary import Now, Outbox, Turn
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.kernel.progress_table import ProgressTable
from tandemq.broker.state.consumer_offsets import WHOLE, ConsumerOffsets
from tandemq.broker.state.groups import Groups
from tandemq.broker.state.table_journal import REMOVED, removed_names
from tandemq.broker.state.topics import Topics, parse_topics
from tandemq.codec.ha import KIND_DELAYS, KIND_GROUPS, KIND_OFFSETS, KIND_TOPICS
from tandemq.codec.remoting.fastjson import dumps, dumps_java, loads
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.text import brief
from tandemq.replication.master import MasterSession, MasterSessionState
from tandemq.storage.json_tables import DataVersion
from tandemq.storage.store import Store

log = logging.getLogger(__name__)
NOTE_AGAIN_MS = 100
"""Retry interval for changes of offsets that the disk did not take."""
BACKLOG_BYTES_MAX = 4 << 20
"""Maximum number of bytes that wait to leave on a connection before metadata is withheld from it."""
WHOLE_KINDS = frozenset({KIND_TOPICS, KIND_GROUPS, KIND_OFFSETS})
"""Tables that a slave has to have received whole before it can continue as the master."""


class Metadata(NamedTuple):
    """One frame of metadata: its kind, and a table or a change of one as JSON."""

    kind: int
    payload: bytes


class MetadataStream:
    """Publishes metadata to slaves, or applies what the master publishes."""

    def __init__(
        self,
        store: Store,
        topics: Topics,
        groups: Groups,
        offsets: ConsumerOffsets,
        delay: ProgressTable,
        masters: MasterSide,
        outbox: Outbox,
    ) -> None:
        """Collect no changes yet."""
        self._store = store
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._delay = delay
        self._masters = masters
        self._outbox = outbox
        self._introduced: set[int] = set()
        """Connections that were sent all topics and groups since we are the master."""
        self.published_to: set[int] = set()
        """Connections that were sent all offsets and delays since we are the master, offsets up to `version`."""
        self.version = 0
        """Counts changes of tables that were collected."""
        self.noted = 0
        """The version that is on our disk, if ours are the offsets that count."""
        self._again_ms = 0
        self._unsent: list[Metadata] = []
        """Changes of offsets that were sent on no connection yet."""
        self._delays_version = -1
        self._versions = (-1, -1)
        """Versions of topics and groups whose changes were collected last."""
        self._received: set[int] = set()
        """Kinds of which a whole table was received."""
        self._is_source = False
        """Whether the record names this member as the one whose tables the others copy."""
        self._has_ignored = False
        """Whether a master sent tables while this member was the source by the record that it had read."""

    @property
    def is_whole(self) -> bool:
        """Whether a master has sent every table whole."""
        return self._received >= WHOLE_KINDS

    @property
    def has_changes(self) -> bool:
        """Whether offsets, topics or groups changed since the last publication."""
        return self._offsets.has_changes or self._versions != self._present_versions()

    def begin(self) -> None:
        """Begin to collect changes."""
        self._collect(is_wanted=True)

    def end(self) -> None:
        """Stop collecting changes."""
        self._collect(is_wanted=False)

    def _collect(self, *, is_wanted: bool) -> None:
        for table in (self._offsets, self._topics, self._groups):
            table.collect_changes(is_wanted=is_wanted)

    # Before the log bytes of a turn.

    def announce(self, now: Now, *, is_leading: bool) -> None:
        """Send slaves topics and groups ahead of messages in them.

        `is_leading`: our tables count, and our log is the one that is replicated.
        """
        news = self._changed_names()
        if not is_leading:
            self._introduced.clear()
            return
        sessions = self._sessions()
        self._introduced &= sessions.keys()
        fresh = sessions.keys() - self._introduced
        if not news and not fresh:
            return
        whole = self._whole_names() if fresh else []
        for link, session in sessions.items():
            if link not in fresh and self._outbox.backlog(link) > BACKLOG_BYTES_MAX:
                session.end("it takes no bytes, and topics or groups have to be sent")
                continue
            for kind, payload in whole if link in fresh else news:
                session.send_metadata(kind, payload, now.mono_ms)
        self._introduced |= fresh

    def _sessions(self) -> dict[int, MasterSession]:
        """Sessions of slaves that copy, by connection."""
        return {
            link: session
            for link, session in self._masters.sessions.items()
            if session.state is MasterSessionState.TRANSFER and not session.is_classic
        }

    def _whole_names(self) -> list[Metadata]:
        return [
            Metadata(KIND_TOPICS, dumps(self._topics.as_json() | self._topics.mappings.for_slaves() | {WHOLE: True})),
            Metadata(KIND_GROUPS, dumps(self._groups.as_json() | {WHOLE: True})),
        ]

    def _present_versions(self) -> tuple[int, int]:
        return self._topics.version.counter, self._groups.version.counter

    def _changed_names(self) -> list[Metadata]:
        """Topics and groups that changed since the last call."""
        topics, groups = self._topics, self._groups
        versions = self._present_versions()
        if versions == self._versions:
            return []
        self.version += 1
        found: list[Metadata] = []
        for at, kind, table in ((0, KIND_TOPICS, topics), (1, KIND_GROUPS, groups)):
            names = table.take_changed_names()
            if versions[at] != self._versions[at]:
                removed = [name for name in names if name not in table.table]
                beside = topics.mappings.for_slaves() if table is topics else {}
                found.append(Metadata(kind, dumps(table.as_json(names) | beside | {REMOVED: removed})))
        self._versions = versions
        return found

    # Behind the log bytes of a turn.

    def save_changes(self, now: Now, *, is_holder: bool) -> None:
        """Save the offsets that consumers committed in this turn. `is_holder`: our tables count."""
        if self._offsets.is_unnoted and now.mono_ms >= self._again_ms:
            self._again_ms = now.mono_ms + NOTE_AGAIN_MS
            self._offsets.note_all()
        if self._offsets.has_changes:
            self.version += 1
            changes = dumps_java(self._offsets.changes())
            if is_holder:
                self._offsets.note(changes)
                self._unsent.append(Metadata(KIND_OFFSETS, changes))
        if not (is_holder and self._offsets.is_unnoted):
            self.noted = self.version

    def publish(self, turn: Turn, now: Now, *, is_leading: bool) -> None:
        """Send slaves the progress that changed, or all of it on new connections.

        `is_leading`: our tables count, and our log is the one that is replicated.
        """
        if not is_leading:
            self.published_to.clear()
            self._unsent.clear()
            return
        sessions = self._sessions()
        self.published_to &= sessions.keys()
        changed = self._changed_progress()
        if not changed and len(self.published_to) == len(sessions):
            return
        ready = self._ready(sessions)
        if changed:
            self.published_to &= ready
        fresh = ready - self.published_to
        if not changed and not fresh:
            return
        self.published_to |= fresh
        whole = self._whole_progress() if fresh else []
        for link in ready:
            for kind, payload in whole if link in fresh else changed:
                sessions[link].send_metadata(kind, payload, now.mono_ms)
        self._masters.pump(turn, now)

    def _ready(self, sessions: dict[int, MasterSession]) -> set[int]:
        """Return the connections on which all log bytes are in flight and that take more bytes."""
        end = self._store.log.written_end
        return {
            link
            for link, session in sessions.items()
            if session.next_offset >= end and self._outbox.backlog(link) <= BACKLOG_BYTES_MAX
        }

    def _whole_progress(self) -> list[Metadata]:
        return [
            Metadata(KIND_OFFSETS, dumps_java(self._offsets.as_json() | {WHOLE: True})),
            Metadata(KIND_DELAYS, dumps_java(self._delay.as_json())),
        ]

    def _changed_progress(self) -> list[Metadata]:
        found, self._unsent = self._unsent, []
        if self._delay.version.counter != self._delays_version:
            self._delays_version = self._delay.version.counter
            found.append(Metadata(KIND_DELAYS, dumps_java(self._delay.as_json())))
        return found

    # A slave.

    def count_own(self, *, counts: bool) -> bool:
        """Set whether our own tables count; return whether the master has to send its own again: some came before."""
        self._is_source = counts
        has_missed = self._has_ignored and not counts
        self._has_ignored &= counts
        return has_missed

    @property
    def has_followed(self) -> bool:
        """Whether all that the master sent is applied, and the journal of offsets has it."""
        return not (self._is_source or self._has_ignored or self._offsets.is_unnoted)

    def take(self, kind: int, payload: bytes) -> None:
        """Apply what the master sent, unless our own tables count.

        What cannot be read is logged and ignored: the next whole table replaces it.
        """
        if self._is_source:
            self._has_ignored = True
            return
        try:
            table = loads(payload, is_trusted=True)
            if not isinstance(table, dict):
                raise ProtocolError("an object is expected")
            if kind == KIND_TOPICS:
                self._take_topics(table)
            elif kind == KIND_GROUPS:
                self._take_groups(table)
            elif kind == KIND_OFFSETS:
                self._offsets.follow(table, payload)
            else:
                self._delay.adopt(table)
            if table.get(WHOLE):
                self._received.add(kind)
        except (ProtocolError, StoreDamaged) as error:
            log.warning("replication: metadata of the master cannot be used: %s", brief(error, 1_000))

    def _take_topics(self, table: dict[str, Any]) -> None:
        topics, version = self._topics, DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            topics.follow(parse_topics(table), removed_names(table), version)
        elif version != topics.version:
            topics.replace(parse_topics(table), version)
            log.info("replication: took over %d topics", len(topics.table))
        topics.follow_mappings(table)

    def _take_groups(self, table: dict[str, Any]) -> None:
        groups, version = self._groups, DataVersion.from_json(table.get("dataVersion"))
        if not table.get(WHOLE):
            groups.follow(table, version)
        elif version != groups.version:
            groups.replace(table, version)
