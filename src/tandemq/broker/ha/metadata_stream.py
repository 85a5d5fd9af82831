"""Metadata of an elected group follows the master's log to the slaves, on the replication connections: any slave may
have to continue with it the next moment.

    new connection ─► all topics, all consumer groups ─► log bytes ─► all offsets, all delays
    each turn      ─► topics and groups that changed  ─► log bytes ─► offsets and delays that changed

Topics and groups (`Table.precedes_log`) precede the log bytes of their turn: a slave that has acknowledged a message
knows its topic, with the queues that clients know of. Consumer offsets and the progress of delayed messages follow the
log bytes: a slave that knew of a delivery without its message would never deliver it. On a connection whose log bytes
have to wait, these are withheld, and sent whole once the log bytes are in flight. No connection waits for another.

A whole table replaces the slave's: what was removed while it was away is removed there too.
Only the active member publishes metadata; the others apply it. Source: docs/internals/failover.md, "Metadata".
"""

import logging
from collections.abc import Iterable
from functools import cached_property
from typing import NamedTuple

from tandemq.boundary import Now, Turn
from tandemq.broker.ha.master import MasterSide
from tandemq.broker.kernel.copied_tables import StreamedTable
from tandemq.broker.kernel.kernel import Kernel
from tandemq.broker.state.consumer_offsets import WHOLE
from tandemq.codec.remoting.fastjson import loads
from tandemq.errors import ProtocolError, StoreDamaged
from tandemq.model.text import brief
from tandemq.replication.master import MasterSession, MasterSessionState

log = logging.getLogger(__name__)
NOTE_AGAIN_MS = 100
"""Retry interval for changes of offsets that the disk did not take."""
BACKLOG_BYTES_MAX = 4 << 20
"""Maximum number of bytes that wait to leave on a connection before metadata is withheld from it."""


class Metadata(NamedTuple):
    """One frame of metadata: its kind, and a table or a change of one as JSON."""

    kind: int
    payload: bytes


class MetadataStream:
    """Publishes metadata to slaves, or applies what the master publishes."""

    def __init__(self, kernel: Kernel, masters: MasterSide) -> None:
        """Collect no changes yet."""
        self._store = kernel.store
        self._features = kernel.features
        self._masters = masters
        self._outbox = kernel.outbox
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
        self._received: set[int] = set()
        """Kinds of which a whole table was received."""
        self._is_source = False
        """Whether the record names this member as the one whose tables the others copy."""
        self._has_ignored = False
        """Whether a master sent tables while this member was the source by the record that it had read."""

    @cached_property
    def _tables(self) -> list[StreamedTable]:
        return [table for table in self._features.tables if isinstance(table, StreamedTable)]

    @cached_property
    def _before(self) -> list[StreamedTable]:
        """Tables that are published before the log bytes of a turn."""
        return [table for table in self._tables if table.precedes_log]

    @cached_property
    def _behind(self) -> list[StreamedTable]:
        """Tables that are published behind the log bytes of a turn."""
        return [table for table in self._tables if not table.precedes_log]

    @property
    def is_whole(self) -> bool:
        """Whether a master has sent every table that is needed whole."""
        needed = {table.kind for table in self._tables if table.is_needed}
        return self._received >= needed

    @property
    def has_changes(self) -> bool:
        """Whether a table that responses wait for changed since the last publication."""
        return any(table.has_changes for table in self._tables if table.is_waited_for)

    def begin(self) -> None:
        """Begin to collect changes."""
        self._collect(is_wanted=True)

    def end(self) -> None:
        """Stop collecting changes."""
        self._collect(is_wanted=False)

    def _collect(self, *, is_wanted: bool) -> None:
        for table in self._tables:
            table.collect_changes(is_wanted=is_wanted)

    # Before the log bytes of a turn.

    def announce(self, now: Now, *, is_leading: bool) -> None:
        """Send slaves topics and groups ahead of messages in them.

        `is_leading`: our tables count, and our log is the one that is replicated.
        """
        changed = self._take_changes(self._before)
        if not is_leading:
            self._introduced.clear()
            return
        sessions = self._sessions()
        self._introduced &= sessions.keys()
        fresh = sessions.keys() - self._introduced
        if not changed and not fresh:
            return
        whole = _whole(self._before) if fresh else []
        for link, session in sessions.items():
            if link not in fresh and self._outbox.backlog(link) > BACKLOG_BYTES_MAX:
                session.end("it takes no bytes, and topics or groups have to be sent")
                continue
            for kind, payload in whole if link in fresh else changed:
                session.send_metadata(kind, payload, now.mono_ms)
        self._introduced |= fresh

    def _sessions(self) -> dict[int, MasterSession]:
        """Sessions of slaves that copy, by connection."""
        return {
            link: session
            for link, session in self._masters.sessions.items()
            if session.state is MasterSessionState.TRANSFER and not session.is_classic
        }

    def _take_changes(self, tables: list[StreamedTable]) -> list[Metadata]:
        """Return the changes since the last call, and count them."""
        found = _changes_of(tables)
        self.version += bool(found)
        return found

    # Behind the log bytes of a turn.

    def save_changes(self, now: Now, *, is_holder: bool) -> None:
        """Save this turn's changes of tables that responses wait for. `is_holder`: our tables count."""
        tables = [table for table in self._behind if table.is_waited_for]
        unnoted = [table for table in tables if table.is_unnoted]
        if unnoted and now.mono_ms >= self._again_ms:
            self._again_ms = now.mono_ms + NOTE_AGAIN_MS
            for table in unnoted:
                table.note_all()
        for table in tables:
            for kind, changes in self._take_changes([table]):
                if is_holder:
                    table.note(changes)
                    self._unsent.append(Metadata(kind, changes))
        if not (is_holder and any(table.is_unnoted for table in tables)):
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
        whole = _whole(self._behind) if fresh else []
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

    def _changed_progress(self) -> list[Metadata]:
        found, self._unsent = self._unsent, []
        return found + _changes_of(table for table in self._behind if not table.is_waited_for)

    # A slave.

    def count_own(self, *, counts: bool) -> bool:
        """Set whether our own tables count; return whether the master has to send its own again: some came before."""
        self._is_source = counts
        has_missed = self._has_ignored and not counts
        self._has_ignored &= counts
        return has_missed

    @property
    def has_followed(self) -> bool:
        """Whether all that the master sent is applied, and written where it has to be."""
        is_unnoted = any(table.is_unnoted for table in self._behind)
        return not (self._is_source or self._has_ignored or is_unnoted)

    def take(self, kind: int, payload: bytes) -> None:
        """Apply a table that the master sent, unless our own tables count.

        What cannot be read is logged and ignored: the next whole table replaces it.
        """
        if self._is_source:
            self._has_ignored = True
            return
        known = next((table for table in self._tables if table.kind == kind), None)
        try:
            content = loads(payload, is_trusted=True)
            if known is None or not isinstance(content, dict):
                raise ProtocolError(f"kind {kind} is not known" if known is None else "an object is expected")
            known.take(content, payload)
            if content.get(WHOLE):
                self._received.add(kind)
        except (ProtocolError, StoreDamaged) as error:
            log.warning("replication: metadata of the master cannot be used: %s", brief(error, 1_000))


def _changes_of(tables: Iterable[StreamedTable]) -> list[Metadata]:
    changes = [(table.kind, table.take_changes()) for table in tables]
    return [Metadata(kind, payload) for kind, payload in changes if payload is not None]


def _whole(tables: Iterable[StreamedTable]) -> list[Metadata]:
    return [Metadata(table.kind, piece) for table in tables for piece in table.pieces()]
